"""Pooling against float64, every mode, normalised or not.

Tolerance: some roundings of 6e-8 of the sum of the summands' sizes, 4e-7; the vector's length divides the error as it
does the vector.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_inputs import normal, packed

from embed.cpu import _native

LENGTHS = [1, 2, 63, 64, 65, 300]


@pytest.mark.parametrize("width", [1, 16, 37, 384])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", reference.POOLINGS)
def test_error(isa: str, pooling: str, normalize: bool, width: int) -> None:
    offsets = packed(LENGTHS)
    x = normal(np.random.default_rng(width), offsets[-1], width)
    got = _native.pool(isa, x, offsets, pooling=pooling, normalize=normalize, threads=2)
    want = reference.pool(x, offsets, pooling=pooling, normalize=normalize)
    size = reference.pool(np.abs(x), offsets, pooling=pooling, normalize=False)
    scale = np.maximum(np.linalg.norm(reference.pool(x, offsets, pooling=pooling, normalize=False), axis=1), 1e-12)
    assert (np.abs(got - want) <= 4e-7 * (size / scale[:, None] if normalize else size) + 1e-7).all()


def test_a_long_text_is_summed_in_blocks(isa: str) -> None:
    x = np.random.default_rng(1).uniform(0.9, 1.1, (8192, 16)).astype(np.float32)
    got = _native.pool(isa, x, packed([8192]), pooling="mean", normalize=False)
    want = reference.pool(x, [0, 8192], pooling="mean", normalize=False)
    assert np.abs(got - want).max() <= 6e-7  # measured 3.4e-7; one running sum: 1.8e-6


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_zero_vector_stays_zero(isa: str, pooling: str) -> None:
    x = np.zeros((3, 20), np.float32)
    assert (_native.pool(isa, x, packed([1, 2]), pooling=pooling, normalize=True) == 0).all()


@pytest.mark.parametrize("width", [1, 16, 37])
def test_a_vector_whose_length_overflows_is_nan(isa: str, width: int) -> None:
    x = normal(np.random.default_rng(3), 3, width)
    x[1] = 1e20
    got = _native.pool(isa, x, packed([1, 1, 1]), pooling="cls", normalize=True)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[::2]).all()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["max", "mean", "mean_sqrt_len", "weightedmean"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_row_is_not_hidden(isa: str, bad: float, pooling: str, normalize: bool) -> None:
    """Whatever comes after it, and whatever is larger: a vector made of a bad row is never finite."""
    x = normal(np.random.default_rng(2), 9, 20)
    x[4, 3] = bad  # of the text in the middle
    finite = np.isfinite(_native.pool(isa, x, packed([3, 3, 3]), pooling=pooling, normalize=normalize))
    assert finite.all(axis=1).tolist() == [True, False, True]
