"""The tensors of a model directory, read in place from its safetensors files.

A file is mapped and a tensor is a read-only view into the map, valid for as long as anything refers to it, `close()`
or not. Two exceptions: a tensor at an offset that isn't a multiple of its element's size is copied, and a file on a
mount that doesn't support mapping is read into memory. (A file that is cut while it is mapped is a SIGBUS.)

The header is checked and parsed here, since the safetensors package has no offset API, copies f32 and can't give
NumPy bf16; that package's own check is asked as well.
"""

from __future__ import annotations

import errno
import math
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from embed.errors import ModelError
from embed.files import (
    INDEX,
    PICKLES,
    SINGLE,
    JsonObject,
    exists,
    file_bytes,
    parse_json,
    refuse_lfs_pointer,
    refuse_unreadable,
    shards,
    shown,
)

Tensor = NDArray[Any]  # float32, float16, or uint16 holding the bits of bf16

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_LENGTH_BYTES = 8  # a file begins with the length of its header, little-endian
# 100 MB by the format; BGE-M3's is 40 KB. A hostile one shall not cost a gigabyte of Python objects.
_MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class _File:
    path: Path
    content: NDArray[np.uint8]  # (bytes)
    mapping: mmap.mmap | None  # None where the content was read instead


@dataclass(frozen=True)
class _Entry:
    file: _File
    dtype: str  # as the header says: "F32", "BF16", "I64" …
    shape: tuple[int, ...]
    start: int  # of its bytes in the file
    stop: int


class Checkpoint:
    """The named tensors of one model, from a single file or from the shards that an index names."""

    def __init__(self, source: Path, files: list[_File], entries: dict[str, _Entry]) -> None:
        self.source = source  # model.safetensors, or the index
        self._files = files
        self._entries = entries

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Map model.safetensors if it is there, else exactly the files that model.safetensors.index.json names.

        Raises `ModelError` naming the file, and the tensor where one is to blame.
        """
        if exists(directory / SINGLE):
            file, entries = _open_file(directory / SINGLE)
            return cls(file.path, [file], entries)
        if exists(directory / INDEX):
            return _open_shards(JsonObject.read(directory / INDEX))
        if any(exists(directory / name) for name in PICKLES):
            raise ModelError(
                f"{directory}: the weights are only there as {PICKLES[0]}, a pickle, which is not read; convert them: "
                "load the model with transformers and call save_pretrained, which writes model.safetensors"
            )
        raise ModelError(f"{directory}: there is neither {SINGLE} nor {INDEX}; check the model directory")

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    @property
    def files(self) -> list[tuple[Path, int]]:
        """The files that are open, each with its size in bytes."""
        return [(file.path, file.content.size) for file in self._files]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def dtype_of(self, name: str) -> str:
        """Return the dtype as the file spells it: "F32", "F16", "BF16" or one that `tensor` refuses."""
        return self._entry(name).dtype

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def file_of(self, name: str) -> Path:
        return self._entry(name).file.path

    def tensor(self, name: str) -> Tensor:
        """Return a read-only view in the tensor's shape: float32, float16, or uint16 holding the bits of bf16."""
        entry = self._entry(name)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise ModelError(
                f"{entry.file.path}: tensor {shown(name)} is {entry.dtype}; {', '.join(DTYPES)} are read, "
                "so convert it to one of them"
            )
        tensor: Tensor = entry.file.content[entry.start : entry.stop].view(dtype).reshape(entry.shape)
        return tensor if tensor.flags.aligned else tensor.copy()

    def release(self, names: Iterable[str]) -> None:
        """Give back the memory that reading these tensors took; they stay valid and are read again if need be.

        Only whole pages that belong to none but these tensors go. Does nothing where a file was read, not mapped.
        """
        entries = [self._entry(name) for name in names]
        for file in self._files:
            if file.mapping is None:
                continue
            spans = sorted((entry.start, entry.stop) for entry in entries if entry.file is file)
            for start, length in _whole_pages(spans):
                file.mapping.madvise(mmap.MADV_DONTNEED, start, length)

    def close(self) -> None:
        """Forget the files; each is unmapped when the last tensor that views it is gone."""
        self._entries = {}
        self._files = []

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, ex: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"{self.source}: there is no tensor {shown(name)}; check that the file is this model's")
        return entry


def _whole_pages(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the whole pages in sorted spans of bytes, touching spans taken as one.

    With pages of 4: spans 1-6, 6-13 and 14-19 join to 1-13 and 14-19, in which the only whole pages are 4-12: (4, 8).
    """
    page = mmap.PAGESIZE
    joined: list[list[int]] = []
    for start, stop in spans:
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(stop, joined[-1][1])
        else:
            joined.append([start, stop])
    for start, stop in joined:
        first, last = -(-start // page) * page, stop // page * page
        if first < last:
            yield first, last - first


def _open_shards(index: JsonObject) -> Checkpoint:
    names = shards(index)
    opened = {name: _open_file(index.path.parent / name) for name in sorted(set(names.values()))}
    entries = {}
    for tensor, name in names.items():
        file, of_file = opened[name]
        if tensor not in of_file:
            raise ModelError(f"{file.path}: there is no tensor {shown(tensor)}, which {INDEX} expects in it")
        entries[tensor] = of_file[tensor]
    return Checkpoint(index.path, [file for file, _ in opened.values()], entries)


def _open_file(path: Path) -> tuple[_File, dict[str, _Entry]]:
    content, mapping = _content(path)
    file = _File(path, content, mapping)
    header, data_start = _header(file)
    entries = {
        name: _entry(file, name, fields, data_start) for name, fields in header.items() if name != "__metadata__"
    }
    _check_layout(file, entries, data_start)
    if mapping is not None:
        _ask_safetensors(path)
    return file, entries


def _content(path: Path) -> tuple[NDArray[np.uint8], mmap.mmap | None]:
    size = file_bytes(path)
    try:
        with path.open("rb") as stream:
            try:
                mapping = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
            except OSError as ex:
                if ex.errno == errno.ENOMEM:
                    raise MemoryError from ex
            else:
                return np.frombuffer(mapping, np.uint8), mapping
            content = np.empty(size, np.uint8)
            read = stream.readinto(content.data)
    except OSError as ex:
        refuse_unreadable(path, ex)
    except MemoryError as ex:
        raise ModelError(f"{path}: {size:,} bytes don't fit into this process's memory; raise its limit") from ex
    if read < size:
        raise ModelError(f"{path}: the file shrank while it was read; load the model again")
    return content, None


def _header(file: _File) -> tuple[dict[str, Any], int]:
    """Return the header's fields by tensor name, and where the data begins."""
    size = file.content.size
    refuse_lfs_pointer(file.path, file.content[:64].tobytes())
    length = int.from_bytes(file.content[:_LENGTH_BYTES].tobytes(), "little")
    data_start = _LENGTH_BYTES + length
    if size < _LENGTH_BYTES or data_start > size:
        raise ModelError(f"{file.path}: the file is {size:,} bytes, its header needs {data_start:,}; download it again")
    if length > _MAX_HEADER_BYTES:
        raise ModelError(f"{file.path}: the header is {length:,} bytes; at most {_MAX_HEADER_BYTES:,} are read")
    header = parse_json(file.path, file.content[_LENGTH_BYTES:data_start].tobytes(), "the header")
    if not isinstance(header, dict):
        raise ModelError(f"{file.path}: the header is not a JSON object; download the file again")
    return header, data_start


def _entry(file: _File, name: str, fields: object, data_start: int) -> _Entry:
    fields = fields if isinstance(fields, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ModelError(
            f"{file.path}: the header gives tensor {shown(name)} no dtype, shape and data_offsets that make sense; "
            "download the file again"
        )
    start, stop = offsets
    held = stop - start
    if dtype in DTYPES and held != (needed := math.prod(shape) * DTYPES[dtype].itemsize):
        raise ModelError(
            f"{file.path}: tensor {shown(name)} has {held} bytes, its shape {shown(shape)} in {dtype} needs {needed}; "
            "download the file again"
        )
    return _Entry(file, dtype, shape, data_start + start, data_start + stop)


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value):
        return tuple(value)
    return None


def _check_layout(file: _File, entries: dict[str, _Entry], data_start: int) -> None:
    """Refuse data that overlap, leave gaps, or end elsewhere than the file does."""
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end or entry.stop < entry.start:
            fault = "overlaps the one before" if entry.start < end else "leaves a gap before it"
            raise ModelError(f"{file.path}: tensor {shown(name)} {fault}; download the file again")
        end = entry.stop
    if end != file.content.size:
        raise ModelError(
            f"{file.path}: the file is {file.content.size:,} bytes, its header needs {end:,}; download it again"
        )


def _ask_safetensors(path: Path) -> None:
    """Have the reference implementation check the file too: it knows rules that a later format may add."""
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as ex:
        raise ModelError(f"{path}: safetensors refuses the file ({ex}); download it again") from ex
    except OSError as ex:
        refuse_unreadable(path, ex)
