"""Vectors onto stdout, in batches: CSV, JSON, or one NumPy array.

A number is written as the shortest decimal that reads back to the same f32; whatever the locale, it is valid JSON too.
Batches are written whole, so that an error leaves no half of a line behind: what precedes it stands in CSV, and in
JSON, whose array is closed, so that it parses; no array is written then.
"""

from __future__ import annotations

import io
import sys
from typing import Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from embed.console import check_stdout, put
from embed.errors import OptionError

FORMATS = ("csv", "json", "npy")


class Writer(Protocol):
    def write(self, vectors: NDArray[np.float32]) -> None:
        """Add vectors (n, dimension)."""

    def end(self) -> None:
        """Complete the document."""

    def stop(self) -> None:
        """Leave a document that parses, or nothing, since an error ends it here."""


def writer(form: str, dimension: int) -> Writer:
    """Return the writer of that format, for vectors of that many numbers."""
    if form == "npy":
        return NpyWriter(dimension)
    return JsonWriter() if form == "json" else CsvWriter()


def check_format(form: str) -> None:
    """Raise an `EmbedError` where stdout can't take the format; called before a model is loaded for nothing."""
    check_stdout()
    if form == "npy" and sys.stdout.isatty():
        raise OptionError("--format npy is not for a terminal; send it to a file or a program (> vectors.npy)")


class CsvWriter:
    """One line a vector, numbers separated by commas."""

    def write(self, vectors: NDArray[np.float32]) -> None:
        put("".join(f"{numbers(row)}\n" for row in vectors).encode())

    def end(self) -> None:
        pass

    def stop(self) -> None:
        pass


class JsonWriter:
    """One JSON array of arrays, a line each."""

    def __init__(self) -> None:
        self._opening = "["

    def write(self, vectors: NDArray[np.float32]) -> None:
        rows = ",\n".join(f"[{numbers(row)}]" for row in vectors)
        put((self._opening + rows).encode())
        self._opening = ",\n"

    def end(self) -> None:
        put(b"[]\n" if self._opening == "[" else b"]\n")

    def stop(self) -> None:
        if self._opening != "[":
            put(b"]\n")


class NpyWriter:
    """One (n, dimension) float32 array, for numpy.load; kept until the end, since its header tells n."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._batches: list[NDArray[np.float32]] = []

    def write(self, vectors: NDArray[np.float32]) -> None:
        self._batches.append(vectors)

    def end(self) -> None:
        header = io.BytesIO()
        shape = (sum(len(vectors) for vectors in self._batches), self._dimension)
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        put(header.getvalue())
        for vectors in self._batches:
            put(vectors.astype("<f4", copy=False).tobytes())

    def stop(self) -> None:
        pass


def numbers(row: NDArray[np.float32]) -> str:
    """Return a contiguous vector's numbers separated by commas, in the very characters that the HTTP service writes."""
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()
