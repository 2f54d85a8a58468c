"""Small files, read whole and strictly; paths and values in them, kept within bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from embed.errors import ModelError
from embed.files import JsonObject, exists, file_bytes, inner_path, parse_json, read_bytes, shown

PATH = Path("folder/config.json")


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'["\xff"]', "is not UTF-8 (byte 2)"),
        (b"{'a': 1}", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_json_is_strict(content: bytes, said: str) -> None:
    message = refusal(parse_json, PATH, content)
    assert message.startswith(f"{PATH}: ")
    assert said in message


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_json(PATH, b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_every_way_of_not_being_there_has_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("blobs/1")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    assert "there is no such file" in refusal(file_bytes, tmp_path / "absent")
    assert "dangling link to blobs/1" in refusal(file_bytes, tmp_path / "gone")
    assert "the file is empty" in refusal(file_bytes, tmp_path / "empty")
    assert "is not a file" in refusal(file_bytes, tmp_path / "pipe")
    assert "is not a file" in refusal(file_bytes, tmp_path)
    assert exists(tmp_path / "gone")
    assert not exists(tmp_path / "absent")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 40)
    assert "the file is 1,099,511,627,776 bytes, and at most 10 are read" in refusal(read_bytes, tmp_path / "big", 10)


@pytest.mark.parametrize("text", ["../x", "a/../../x", "/etc", "C:\\x", "a\\..\\x", "\\\\host\\x", "a\0b", 5, None])
def test_a_path_stays_inside(text: object) -> None:
    assert refusal(inner_path, PATH, "path", text).startswith(f"{PATH}: path ")


@pytest.mark.parametrize(("text", "path"), [("", "."), ("./a//b/", "a/b"), ("..a", "..a"), ("1_Pooling", "1_Pooling")])
def test_an_inner_path_is_taken(text: str, path: str) -> None:
    assert inner_path(PATH, "path", text) == path


def test_a_shown_value_fits_a_sentence() -> None:
    assert shown("é") == '"é"'
    assert len(shown(["x" * 1000])) == 60
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert shown(nested) == "nested too deeply to show"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("integer", value) for value in (True, 1.0, "1", None, 0, 11)),
        *(("number", value) for value in (True, "1", 0, -1.0, None)),
        *(("string", value) for value in (1, None, ["a"])),
        *(("boolean", value) for value in (0, 1, "true")),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_key(kind: str, value: object) -> None:
    source = JsonObject(PATH, {"key": value})
    more = {"integer": (1, 10), "boolean": (False,)}.get(kind, ())
    assert refusal(getattr(source, kind), "key", *more).startswith(f"{PATH}: key is ")


def test_a_missing_key_is_called_missing_and_null_counts_as_not_said() -> None:
    source = JsonObject(PATH, {"null": None, "no": False})
    assert "width is missing; a whole number from 1 to 9" in refusal(source.integer, "width", 1, 9)
    assert not source.says("null")
    assert source.says("no")
    assert source.boolean("null", True)
    assert not source.boolean("no", True)


def test_a_path_that_cannot_be_looked_at_is_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root no folder is closed to a test, so the system's answer is made up."""

    def refuse(path: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "lstat", refuse)
    assert "Permission denied" in refusal(exists, Path("model/1_Pooling"))
