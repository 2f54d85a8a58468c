"""Precompiled charsmaps: sound ones pass as they are, empty ones go, broken ones are one sentence, and none panics."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from embed.charsmap import sound_charsmaps
from embed.errors import ModelError

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
