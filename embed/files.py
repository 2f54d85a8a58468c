"""The small files of a model directory: read whole, and refused with one sentence when something is wrong.

Everything here raises `ModelError`, naming the path. Symbolic links are followed, as model caches are made of them.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

from embed.errors import ModelError

# The largest that a configuration or an index has a use for; a hostile one shall not eat the memory.
MAX_JSON_BYTES = 64 << 20
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
UNFINISHED = ".incomplete"  # how the hub's tools, and embed, end the name of a download that hasn't ended


def exists(path: Path) -> bool:
    """Whether there is anything by that name; a dangling link counts, so that reading it can say what it is."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as ex:  # what can't be looked at isn't absent: a guess would take its place
        refuse_unreadable(path, ex)
    return True


def file_bytes(path: Path) -> int:
    """Return the size of a regular, non-empty file that isn't an unfinished download."""
    if os.path.realpath(path).endswith(UNFINISHED):
        raise ModelError(f"{path}: is an unfinished download{_link_note(path)}; download the model again")
    try:
        status = os.stat(path)
    except OSError as ex:
        refuse_unreadable(path, ex)
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path}: is not a file; check the model directory")
    if status.st_size == 0:
        raise ModelError(f"{path}: the file is empty{_link_note(path)}; download it again")
    return status.st_size


def refuse_unreadable(path: Path, ex: OSError) -> NoReturn:
    """Turn an `OSError` about `path` into the `ModelError` that says most."""
    if isinstance(ex, FileNotFoundError) and path.is_symlink():
        raise ModelError(
            f"{path}: is a dangling link to {os.readlink(path)}; restore that file or download the model again"
        ) from ex
    if isinstance(ex, FileNotFoundError):
        raise ModelError(f"{path}: there is no such file; check the model directory or download it again") from ex
    raise ModelError(f"{path}: cannot be read ({ex.strerror}); check the path and its permissions") from ex


def refuse_lfs_pointer(path: Path, head: bytes) -> None:
    """Refuse the text that a clone without Git LFS leaves in a file's place; `head` is how the file begins."""
    if head.startswith(LFS_POINTER):
        raise ModelError(f"{path}: looks like a Git LFS pointer, not the file itself; run `git lfs pull`")


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes."""
    size = file_bytes(path)
    if size > limit:
        raise ModelError(f"{path}: the file is {size:,} bytes, and at most {limit:,} are read; check the directory")
    try:
        content = path.read_bytes()
    except OSError as ex:
        refuse_unreadable(path, ex)
    refuse_lfs_pointer(path, content)
    return content


def parse_json(path: Path, content: bytes, what: str = "the file") -> Any:
    """Return the value of strict JSON in UTF-8: no key twice, no NaN, no infinity, of bounded depth.

    `path` and `what` are for the error to name.
    """
    try:
        return json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=_object_of_distinct_keys, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as ex:
        raise ModelError(f"{path}: {what} is not UTF-8 (byte {ex.start}), so not JSON; download it again") from ex
    except RecursionError as ex:
        raise ModelError(f"{path}: {what} is JSON nested too deeply; download it again") from ex
    except ValueError as ex:  # JSONDecodeError among them
        raise ModelError(f"{path}: {what} is not valid JSON ({ex}); correct it or download it again") from ex


def _object_of_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} is given twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def inner_path(source: Path, key: str, text: object) -> str:
    """Return `text`, a path that `source` names under `key`, if it stays inside of the model directory."""
    if not isinstance(text, str):
        raise ModelError(f"{source}: {key} is {shown(text)}; a relative path is expected")
    # Windows' syntax as well: a drive or a backslash has no honest use here either.
    if PureWindowsPath(text).anchor or ".." in PureWindowsPath(text).parts or "\0" in text:
        raise ModelError(f"{source}: {key} {shown(text)} leads out of the model directory; correct the file")
    return str(PurePosixPath(text))


def shards(index: JsonObject) -> dict[str, str]:
    """Return the file of each tensor that model.safetensors.index.json names."""
    weight_map = index.values.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        index.refuse("weight_map", "an object of tensor and file names")
    return {tensor: inner_path(index.path, "weight_map", name) for tensor, name in weight_map.items()}


def shown(value: object) -> str:
    """Return a value as JSON, cut to what a sentence can hold."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "nested too deeply to show"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class JsonObject:
    """A JSON object and the file it came from, so that whoever reads a key can refuse its value by name."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> JsonObject:
        values = parse_json(path, read_bytes(path, MAX_JSON_BYTES))
        if not isinstance(values, dict):
            raise ModelError(f"{path}: a JSON object is expected, not {shown(values)}; download the file again")
        return cls(path, values)

    def refuse(self, key: str, expected: str) -> NoReturn:
        if key not in self.values:
            raise ModelError(f"{self.path}: {key} is missing; {expected} is expected")
        raise ModelError(f"{self.path}: {key} is {shown(self.values[key])}; {expected} is expected")

    def says(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, most: float = sys.float_info.max) -> float:
        """Return a number above 0 and at most `most`."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            self.refuse(key, "a number above 0" + (f", at most {most:g}" if most < sys.float_info.max else ""))
        return value

    def string(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            self.refuse(key, "a string")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value


def _link_note(path: Path) -> str:
    return f" (a link to {os.readlink(path)})" if path.is_symlink() else ""
