"""Precompiled charsmaps: sound ones pass as they are, empty ones go, broken ones are one sentence, and none panics."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from tokenizer_files import directory_with, ids_of, load

from embed.charsmap import sound_charsmaps
from embed.errors import ModelError, TextError

PATH = Path("tokenizer.json")
TRIE = b"\xff\xff\xff\xfb" * 256  # as base64 full of slashes


def charsmap(units: bytes, replacements: bytes = b"", *, length: int | None = None) -> str:
    size = len(units) if length is None else length
    return base64.b64encode(size.to_bytes(4, "little") + units + replacements).decode()


def file_with(value: Any) -> bytes:
    return json.dumps({"normalizer": {"type": "Precompiled", "precompiled_charsmap": value}}).encode()


def test_a_sound_charsmap_is_not_touched() -> None:
    content = file_with(charsmap(TRIE, "é".encode()))
    assert sound_charsmaps(PATH, content) is content


def test_a_charsmap_may_be_written_with_the_escapes_of_json() -> None:
    content = file_with(charsmap(TRIE))
    for escape in (rb"\/", rb"\u002f"):
        escaped = content.replace(b"/", escape)
        assert escaped != content
        assert json.loads(sound_charsmaps(PATH, escaped)) == json.loads(content)


def test_empty_ones_go_and_others_stay() -> None:
    replace = {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}
    empty = {"type": "Precompiled", "precompiled_charsmap": ""}
    content = json.dumps({"normalizer": {"type": "Sequence", "normalizers": [empty, replace]}}).encode()
    assert json.loads(sound_charsmaps(PATH, content)) == {"normalizer": {"type": "Sequence", "normalizers": [replace]}}
    assert json.loads(sound_charsmaps(PATH, json.dumps({"normalizer": empty}).encode())) == {"normalizer": None}


@pytest.mark.parametrize("value", ["AAAA", r"\/\/\/\/", "!!!", "é", 5, ["AAAA"], charsmap(bytes(5))])
def test_a_broken_one_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ModelError, match=r"^tokenizer\.json: precompiled_charsmap .* can't be decoded; download"):
        sound_charsmaps(PATH, file_with(value))


def test_a_token_of_that_name_is_no_normalizer() -> None:
    content = json.dumps({"normalizer": None, "model": {"vocab": {"Precompiled": 0}}}).encode()
    assert json.loads(sound_charsmaps(PATH, content)) == json.loads(content)


# What the tokenizers library then does with the file.


NO_CHANGE = charsmap(bytes(1024))  # a trie of one block in which nothing is found
OUT_OF_BOUNDS = charsmap(bytes(4))  # a trie that ends before the first letter: parses, and panics on any text
NEVER = "key left out"


def with_charsmap(directory: Path, value: Any, *, nested: bool = False) -> Path:
    directory_with(directory, tiny.unigram_tokenizer())
    normalizer: dict[str, Any] = {"type": "Precompiled"}
    if value != NEVER:
        normalizer["precompiled_charsmap"] = value
    if nested:
        replace = {"type": "Replace", "pattern": {"String": "x"}, "content": "dog"}
        normalizer = {"type": "Sequence", "normalizers": [normalizer, replace]}
    tiny.change_json(directory / "tokenizer.json", normalizer=normalizer)
    return directory


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("value", ["", None, NEVER, NO_CHANGE])
def test_an_empty_charsmap_changes_nothing(tmp_path: Path, value: Any, nested: bool) -> None:
    tokenizer = load(with_charsmap(tmp_path / "with", value, nested=nested))
    without = directory_with(tmp_path / "without", tiny.unigram_tokenizer())
    tiny.change_json(without / "tokenizer.json", normalizer=None)
    texts = ["hello world", "\ufb01 \uff21 \u2460", "e\u0301"]
    assert ids_of(tokenizer, texts) == ids_of(load(without), texts)
    assert ids_of(tokenizer, ["x"]) == ids_of(load(without), ["dog" if nested else "x"])


def test_other_normalizers_survive_the_mending(tmp_path: Path) -> None:
    with_charsmap(tmp_path, "", nested=True)
    assert ids_of(load(tmp_path), ["x"]) == ids_of(load(tmp_path), ["dog"])


BROKEN_CHARSMAPS: list[Any] = [
    "AAAA",
    base64.b64encode(b"abc").decode(),
    "!!!",
    "é",
    5,
    ["AAAA"],
    charsmap(b""),
    charsmap(bytes(8), length=2**32 - 1),
    charsmap(bytes(5)),
    charsmap(bytes(1024), b"\xff"),
]


def test_a_broken_charsmap_is_one_sentence_and_no_trace(tmp_path: Path) -> None:
    directories = []
    for i, value in enumerate(BROKEN_CHARSMAPS):
        directories += [
            with_charsmap(tmp_path / f"{i}", value),
            with_charsmap(tmp_path / f"{i}n", value, nested=True),
        ]
    script = (
        "import sys; from pathlib import Path; from embed.config import read_config\n"
        "from embed.tokenizer import Tokenizer; from embed.errors import ModelError\n"
        "for name in sys.argv[1:]:\n"
        "    try: Tokenizer.from_directory(Path(name), read_config(Path(name))); print('loaded')\n"
        "    except ModelError as ex: print(ex)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *map(str, directories)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
    )
    assert (run.returncode, run.stderr) == (0, "")
    for directory, line in zip(directories, run.stdout.splitlines(), strict=True):
        assert f"{directory}/tokenizer.json: precompiled_charsmap" in line


def test_a_panic_on_a_text_is_an_error_with_its_index(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = load(with_charsmap(tmp_path, OUT_OF_BOUNDS))
    empty = ids_of(tokenizer, [""])
    with pytest.raises(TextError, match="text 1 cannot be tokenised") as caught:
        tokenizer.encode(["", "hello", ""], 32)
    assert caught.value.index == 1
    assert ids_of(tokenizer, [""]) == empty
    assert "panicked" in capfd.readouterr().err  # it was a panic: a plain exception would prove less
