"""Packing: panels of a checkpoint's matrices, stacked, widened exactly, each group padded with zeros to sixteens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from kernel_inputs import F32, narrow, normal
from numpy.typing import NDArray

from embed.cpu import _native

DTYPES = ["F32", "F16", "BF16"]
SHAPES = [  # matrices, rows, columns, row_group, column_group
    (1, 1, 1, 1, 1),
    (1, 16, 16, 16, 16),
    (1, 37, 50, 37, 50),  # nothing a multiple of 16
    (3, 24, 24, 8, 24),  # Q, K, V with heads of 8
    (3, 78, 78, 26, 78),  # heads of 26
    (1, 78, 78, 78, 26),  # the layer after attention, whose columns are the heads
    (2, 160, 33, 32, 11),
]


def padded(matrix: F32, row_group: int, column_group: int) -> F32:
    """Return the matrix with every group of rows and of columns padded with zeros to a multiple of 16."""
    rows, columns = (matrix.shape[0] // row_group, matrix.shape[1] // column_group)
    groups = matrix.reshape(rows, row_group, columns, column_group)
    wide = np.pad(groups, [(0, 0), (0, -row_group % 16), (0, 0), (0, -column_group % 16)])
    return wide.reshape(wide.shape[0] * wide.shape[1], -1)


def panels(matrix: F32, columns: int) -> F32:
    """Return (panels, k, columns): rows of the matrix become the columns of panels, the last one filled with zeros."""
    n, k = matrix.shape
    full = np.pad(matrix, [(0, -n % columns), (0, 0)])
    return full.reshape(-1, columns, k).transpose(0, 2, 1)


def matrices(shape: tuple[int, int, int, int, int], dtype: str) -> list[NDArray[Any]]:
    count, rows, columns, _, _ = shape
    return [narrow(normal(np.random.default_rng(i), rows, columns), dtype) for i in range(count)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_has_its_place(isa: str, shape: tuple[int, int, int, int, int], dtype: str, threads: int) -> None:
    _, _, _, row_group, column_group = shape
    weights = matrices(shape, dtype)
    got = _native.pack(isa, weights, row_group=row_group, column_group=column_group, threads=threads)
    widened = [reference.widen(weight).astype(np.float32) for weight in weights]
    stacked = np.concatenate([padded(weight, row_group, column_group) for weight in widened])
    want = panels(stacked, got.shape[2])
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("row_group", [0, 5, 25])
def test_groups_must_divide_the_rows(row_group: int) -> None:
    with pytest.raises(ValueError, match=f"24 rows aren't made of groups of {row_group}"):
        _native.pack("scalar", [np.zeros((24, 24), np.float32)], row_group=row_group, column_group=24)
