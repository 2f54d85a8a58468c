"""Hostile weights: every kind of damage is one sentence, and costs neither memory nor time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny

from embed.checkpoint import Checkpoint
from embed.errors import ModelError

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 42\n"


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def write_header(directory: Path, header: Any, data: bytes = b"", **options: Any) -> Path:
    """Write model.safetensors with a header given as an object or as bytes."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    tiny.write_raw_safetensors(directory / "model.safetensors", content, data, **options)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(directory)
    assert str(directory) in str(caught.value)
    return str(caught.value)


F = [1]
DAMAGE: dict[str, tuple[Any, bytes, list[str]]] = {
    "overlap": ({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 8, 24)}, bytes(24), ['"b"', "overlaps"]),
    "same bytes twice": ({"a": entry("F32", F, 0, 4), "b": entry("F32", F, 0, 4)}, bytes(4), ['"b"', "overlaps"]),
    "gap": ({"a": entry("F32", F, 0, 4), "b": entry("F32", F, 8, 12)}, bytes(12), ['"b"', "gap"]),
    "no data": ({"a": entry("F32", [4], 0, 16)}, b"", ["the file is", "its header needs"]),
    "more data": ({"a": entry("F32", F, 0, 4)}, bytes(8), ["the file is", "its header needs"]),
    "backwards": ({"a": entry("U8", [4], 4, 0)}, bytes(4), ['"a"']),
    "huge shape": ({"a": entry("F32", [2**40, 2**40], 0, 16)}, bytes(16), ['"a"', "has 16 bytes", str(2**82)]),
    "huge dimension": ({"a": entry("F32", [2**64], 0, 16)}, bytes(16), ['"a"', "no dtype, shape"]),
    "negative": ({"a": entry("F32", [-1], 0, 4)}, bytes(4), ['"a"', "no dtype, shape"]),
    "wrong shape": ({"a": entry("F32", [3], 0, 16)}, bytes(16), ['"a"', "has 16 bytes", "needs 12"]),
    "fractions": ({"a": entry("F32", [1.0], 0, 4)}, bytes(4), ['"a"', "no dtype, shape"]),
    "true": ({"a": entry("F32", [True], 0, 4)}, bytes(4), ['"a"', "no dtype, shape"]),
    "one offset": ({"a": {"dtype": "F32", "shape": F, "data_offsets": [0]}}, bytes(4), ['"a"', "no dtype, shape"]),
    "no dtype": ({"a": {"shape": F, "data_offsets": [0, 4]}}, bytes(4), ['"a"', "no dtype, shape"]),
    "no fields": ({"a": 5}, b"", ['"a"', "no dtype, shape"]),
    "unknown dtype": ({"a": entry("F31", F, 0, 4)}, bytes(4), ["safetensors refuses"]),
    "name twice": (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
        ["'a' is given twice"],
    ),
    "nested": (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b"", ["model.safetensors"]),
    "nested deeper": (b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", b"", ["nested too deeply"]),
    "not UTF-8": (b'{"\xff": 1}', b"", ["not UTF-8"]),
    "not JSON": (b"{'a': 1}", b"", ["the header is not valid JSON"]),
    "a list": (b"[]", b"", ["not a JSON object"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence(tmp_path: Path, name: str) -> None:
    header, data, words = DAMAGE[name]
    message = refusal(write_header(tmp_path, header, data))
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))
    for word in words:
        assert word in message


def test_a_file_cut_anywhere_says_what_it_needs(tmp_path: Path) -> None:
    whole = tiny.make("xlmr", tmp_path / "whole") / "model.safetensors"
    content = whole.read_bytes()
    for size in (1, 7, 8, 9, 100, len(content) * 6 // 10, len(content) - 1):
        (tmp_path / "model.safetensors").write_bytes(content[:size])
        message = refusal(tmp_path)
        assert f"the file is {size:,} bytes, its header needs" in message
    assert f"needs {len(content):,}" in message


def test_pointers_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(LFS_POINTER)
    assert "Git LFS pointer" in refusal(tmp_path)
    assert "git lfs pull" in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "the file is empty" in refusal(tmp_path)


# Address space enough for Python and NumPy and little else: what allocates by a hostile number dies of it.
LIMIT_BYTES = 512 << 20
OPEN_EACH = """
import sys
from pathlib import Path
from embed.checkpoint import Checkpoint
from embed.errors import ModelError
for directory in sys.argv[1:]:
    try:
        Checkpoint.open(Path(directory))
        print("opened")
    except ModelError as ex:
        print(ex)
"""


def test_hostile_files_cost_no_memory_and_no_time(tmp_path: Path) -> None:
    directories = {name: tmp_path / str(i) for i, name in enumerate([*DAMAGE, "length", "long header", "big"])}
    for directory in directories.values():
        directory.mkdir()
    for name, (header, data, _) in DAMAGE.items():
        write_header(directories[name], header, data)
    write_header(directories["length"], {}, length=2**63 - 1)
    write_header(directories["long header"], {}, length=1 << 30)
    os.truncate(directories["long header"] / "model.safetensors", 8 + (1 << 30))
    os.truncate(_touch(directories["big"] / "model.safetensors"), 8 << 30)
    start = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", OPEN_EACH, *map(str, directories.values())],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )
    assert (run.returncode, run.stderr) == (0, "")
    messages = dict(zip(directories, run.stdout.splitlines(), strict=True))
    assert "opened" not in messages.values()
    assert "its header needs 9,223,372,036,854,775,815" in messages["length"]
    assert "don't fit into this process's memory" in messages["long header"]
    assert "don't fit into this process's memory" in messages["big"]
    assert time.monotonic() - start < 20  # 25 files; each alone well under a second


def test_a_long_header_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    write_header(tmp_path, {}, length=17 << 20)
    os.truncate(tmp_path / "model.safetensors", 8 + (17 << 20))
    assert "at most 16,777,216 are read" in refusal(tmp_path)


def _touch(path: Path) -> Path:
    path.touch()
    return path
