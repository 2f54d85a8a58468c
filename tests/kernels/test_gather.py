"""The sum of the three embeddings: two f32 additions in a fixed order, so NumPy's f32 gives the very same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
from kernel_inputs import narrow, normal

from embed.cpu import _native

DTYPES = ["F32", "F16", "BF16"]


def widened(tensor: np.ndarray) -> np.ndarray:
    return reference.widen(tensor).astype(np.float32)


@pytest.mark.parametrize("width", [1, 5, 16, 17, 33, 312])
@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, repeat=3)), ids="-".join)
def test_bits(isa: str, width: int, dtypes: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(width)
    word, position, kind = (
        narrow(normal(rng, rows, width), dtype) for rows, dtype in zip((9, 6, 2), dtypes, strict=True)
    )
    ids, positions = np.array([8, 0, 3, 3, 1], np.int32), np.array([5, 0, 1, 2, 2], np.int32)
    got = _native.gather(isa, word, position, kind, ids, positions, threads=2)
    want = (widened(word)[ids] + widened(kind)[0]) + widened(position)[positions]
    assert got.tobytes() == want.tobytes()


def test_a_table_above_two_gigabytes(isa: str) -> None:
    """Rows are found by 64-bit arithmetic: this table has more elements than an int32 counts."""
    rows, width = 70_000, 32_768
    word = np.zeros((rows, width), np.uint16)  # 4.6 GB of pages that the kernel never makes, but for one
    word[-1] = 0x3F80  # 1 in bf16
    table = np.zeros((1, width), np.uint16)
    ids = np.array([rows - 1, 0], np.int32)
    got = _native.gather(isa, word, table, table, ids, np.zeros(2, np.int32))
    assert got.min(axis=1).tolist() == [1, 0]
    assert got.max(axis=1).tolist() == [1, 0]
