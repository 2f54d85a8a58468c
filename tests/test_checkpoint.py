"""safetensors files: in place, bit for bit, and every kind of damage one sentence."""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tiny

from embed.checkpoint import Checkpoint, _whole_pages
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


def test_tensors_are_the_files_own_bytes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    dtypes = ("F32", "F16", "BF16")
    tiny.write_safetensors(tmp_path / "model.safetensors", {dtype: tiny.encoded(values, dtype) for dtype in dtypes})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert sorted(checkpoint.names) == sorted(dtypes)
        assert [checkpoint.dtype_of(dtype) for dtype in dtypes] == list(dtypes)
        assert checkpoint.shape_of("BF16") == (5, 3)
        f32, f16, bf16 = (checkpoint.tensor(dtype) for dtype in dtypes)
    assert (f32.dtype, f16.dtype, bf16.dtype) == (np.float32, np.float16, np.uint16)
    np.testing.assert_array_equal(f32, values)
    np.testing.assert_array_equal(f16, values.astype(np.float16))
    np.testing.assert_array_equal(bf16, tiny.to_bf16(values))


def test_a_tensor_is_a_view_into_the_map(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        name = "embeddings.word_embeddings.weight"
        first, second = checkpoint.tensor(name), checkpoint.tensor(name)
    assert np.shares_memory(first, second)
    assert not first.flags.writeable


def test_tensors_outlive_the_checkpoint_and_the_file(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    word = checkpoint.tensor("embeddings.word_embeddings.weight")
    before = word.copy()
    checkpoint.close()
    checkpoint.close()
    del checkpoint
    gc.collect()
    (tmp_path / "model.safetensors").unlink()
    np.testing.assert_array_equal(word, before)


def test_the_map_goes_with_the_last_tensor(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)

    def mapped() -> bool:
        return str(tmp_path / "model.safetensors") in Path("/proc/self/maps").read_text()

    with Checkpoint.open(tmp_path) as checkpoint:
        word = checkpoint.tensor("embeddings.word_embeddings.weight")
    assert mapped()
    del word
    gc.collect()
    assert not mapped()


def test_unaligned_tensors_are_copied(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    tensors = {"odd": ("U8", (1,), b"x"), "a": tiny.encoded(values, "F32"), "b": tiny.encoded(values, "F16")}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        for name in ("a", "b"):
            assert checkpoint.tensor(name).flags.aligned
            np.testing.assert_array_equal(checkpoint.tensor(name), values)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    tensors = {"none": ("F32", (0, 3), b""), "one": ("F32", (), np.float32(2.5).tobytes()), "end": ("F32", (0,), b"")}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.tensor("none").shape == (0, 3)
        assert checkpoint.tensor("one") == np.float32(2.5)
        assert checkpoint.tensor("end").size == 0


def test_other_dtypes_are_listed_and_refused(tmp_path: Path) -> None:
    tensors = {"ids": ("I64", (2,), bytes(16)), "f8": ("F8_E4M3", (4,), bytes(4))}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.dtype_of("ids") == "I64"
        with pytest.raises(ModelError, match=r'model\.safetensors: tensor "f8" is F8_E4M3; F32, F16, BF16 are read'):
            checkpoint.tensor("f8")
        with pytest.raises(ModelError, match='there is no tensor "nope"'):
            checkpoint.tensor("nope")


def test_release_gives_pages_back_and_keeps_tensors_valid(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 1 << 20)).astype(np.float32)  # 16 MB
    tensors = {str(i): tiny.encoded(row, "F32") for i, row in enumerate(values)}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)

    def resident_bytes() -> int:
        lines = Path("/proc/self/smaps").read_text().split("\n")
        at = next(i for i, line in enumerate(lines) if line.endswith(str(tmp_path / "model.safetensors")))
        return 1024 * next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))

    with Checkpoint.open(tmp_path) as checkpoint:
        read = [checkpoint.tensor(name) for name in "0123"]
        sums = [float(tensor.sum()) for tensor in read]
        before = resident_bytes()
        checkpoint.release(["1", "2", "0"])
        assert before - resident_bytes() >= 3 * values[0].nbytes - 2 * mmap.PAGESIZE
        assert [float(tensor.sum()) for tensor in read] == sums


def test_release_leaves_a_neighbours_pages_alone(tmp_path: Path) -> None:
    tiny.write_safetensors(tmp_path / "model.safetensors", {name: ("F32", (8,), bytes(32)) for name in "ab"})
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.release(["a"])  # less than a page: nothing to give back, and nothing to fail
        assert not checkpoint.tensor("a").any()


def test_whole_pages_of_touching_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 4)
    assert list(_whole_pages([(1, 6), (6, 13), (14, 19)])) == [(4, 8)]
    assert list(_whole_pages([(0, 4), (8, 12), (13, 15)])) == [(0, 4), (8, 4)]


def test_where_mapping_fails_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make("xlmr", tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        expected = {name: checkpoint.tensor(name).copy() for name in checkpoint.names}

    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with Checkpoint.open(tmp_path) as checkpoint:
        for name, tensor in expected.items():
            np.testing.assert_array_equal(checkpoint.tensor(name), tensor)
        checkpoint.release(checkpoint.names)
        np.testing.assert_array_equal(checkpoint.tensor(name), tensor)


def test_the_single_file_wins_over_a_stale_index(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    weight_map = {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.files == [(tmp_path / "model.safetensors", (tmp_path / "model.safetensors").stat().st_size)]


def test_shards_are_the_index_s_and_no_others(tmp_path: Path) -> None:
    single = tiny.make("xlmr", tmp_path / "single")
    sharded = tiny.make("xlmr", tmp_path / "sharded", shards=3)
    stray = {"embeddings.word_embeddings.weight": tiny.encoded(np.zeros((2, 2), np.float32), "F32")}
    tiny.write_safetensors(sharded / "adapter.safetensors", stray)
    with Checkpoint.open(single) as one, Checkpoint.open(sharded) as three:
        assert len(three.files) == 3
        assert sorted(one.names) == sorted(three.names)
        for name in one.names:
            np.testing.assert_array_equal(one.tensor(name), three.tensor(name))


def test_a_tensor_comes_from_the_shard_that_the_index_gives(tmp_path: Path) -> None:
    for i in (1, 2):
        tensor = tiny.encoded(np.full(2, i, np.float32), "F32")
        tiny.write_safetensors(tmp_path / f"{i}.safetensors", {"x": tensor, f"only{i}": tensor})
    weight_map = {"x": "2.safetensors", "only1": "1.safetensors"}
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert sorted(checkpoint.names) == ["only1", "x"]
        assert checkpoint.tensor("x")[0] == 2
        assert checkpoint.file_of("x").name == "2.safetensors"


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/tmp/x.safetensors", "a/../../x", "..\\x", "\0", 3])
def test_an_index_stays_inside_of_the_directory(tmp_path: Path, name: Any) -> None:
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"x": name}})
    assert "weight_map" in refusal(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, []])
def test_an_index_without_a_map(tmp_path: Path, index: Any) -> None:
    tiny.write_json(tmp_path / "model.safetensors.index.json", index)
    assert "model.safetensors.index.json" in refusal(tmp_path)


def test_a_shard_or_its_tensor_that_is_missing(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path, shards=2)
    first = tmp_path / "model-00001-of-00002.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["absent.weight"] = first.name
    tiny.write_json(tmp_path / "model.safetensors.index.json", index)
    message = refusal(tmp_path)
    assert first.name in message
    assert "absent.weight" in message
    first.unlink()
    assert f"{first}: there is no such file" in refusal(tmp_path)


def test_a_pickle_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    message = refusal(tmp_path)
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "adapter.safetensors").write_bytes(b"x")
    assert "neither model.safetensors nor" in refusal(tmp_path)


def test_dangling_links_are_named(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path, shards=2)
    (tmp_path / "model.safetensors").symlink_to("../../blobs/0123")  # it is there, so the shards don't count
    message = refusal(tmp_path)
    assert "dangling" in message
    assert "../../blobs/0123" in message


def test_links_are_followed(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path / "real")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/model.safetensors").symlink_to(tmp_path / "real/model.safetensors")
    with Checkpoint.open(tmp_path / "linked") as checkpoint:
        assert "embeddings.word_embeddings.weight" in checkpoint


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
