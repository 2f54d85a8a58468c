"""LayerNorm against float64, at every kind of width.

Tolerance: y is of size 1 to 5, its error some roundings of 6e-8 each: 1.5e-6. At a mean of a hundred deviations the
sum's roundings put the mean off by 1e-5 of a deviation, and with it the row: 5e-5.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_inputs import normal

from embed.cpu import _native

WIDTHS = [1, 2, 15, 16, 17, 32, 33, 312, 384, 768, 1024]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("mean", "tolerance"), [(0, 1.5e-6), (100, 5e-5)])
def test_error(isa: str, width: int, mean: float, tolerance: float) -> None:
    rng = np.random.default_rng(width)
    x, gain, bias = normal(rng, 7, width, mean=mean), normal(rng, width), normal(rng, width)
    got = _native.layer_norm(isa, x, gain, bias, eps=1e-5, threads=2)
    assert np.abs(got - reference.layer_norm(x, gain, bias, eps=1e-5)).max() <= tolerance


@pytest.mark.parametrize("width", [5, 16, 100])
def test_a_constant_row_becomes_the_bias(isa: str, width: int) -> None:
    """Variance 0 to the last bit: columns of the padding must not count as zeros that lie off the mean."""
    x, bias = np.full((2, width), 0.5, np.float32), np.arange(width, dtype=np.float32)
    got = _native.layer_norm(isa, x, np.ones(width, np.float32), bias, eps=1e-12)
    assert (got == bias).all()


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-1])
def test_epsilon_counts(isa: str, eps: float) -> None:
    x = normal(np.random.default_rng(1), 3, 48, scale=1e-2)
    one, zero = np.ones(48, np.float32), np.zeros(48, np.float32)
    got, want = _native.layer_norm(isa, x, one, zero, eps=eps), reference.layer_norm(x, one, zero, eps=eps)
    assert np.abs(got - want).max() <= 1.5e-6


@pytest.mark.parametrize("big", [1e30, 3e38, np.inf])
@pytest.mark.parametrize("width", [5, 32])
def test_a_row_whose_sums_overflow_is_nan(isa: str, big: float, width: int) -> None:
    x = normal(np.random.default_rng(3), 3, width)
    x[1] = np.resize(np.float32([big, -big / 5]), width)  # at 3e38 the plain sum overflows too
    got = _native.layer_norm(isa, x, np.ones(width, np.float32), np.ones(width, np.float32), eps=1e-5)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[::2]).all()


def test_the_largest_row_that_does_not_overflow(isa: str) -> None:
    x = np.float32([[1e19, -1e19]])
    got = _native.layer_norm(isa, x, np.ones(2, np.float32), np.zeros(2, np.float32), eps=1e-5)
    assert got.tolist() == [[1, -1]]


def test_nan_stays_in_its_row(isa: str) -> None:
    x = normal(np.random.default_rng(2), 3, 20)
    x[1, 19] = np.nan
    got = _native.layer_norm(isa, x, np.ones(20, np.float32), np.zeros(20, np.float32), eps=1e-5)
    assert np.isnan(got).any(axis=1).tolist() == [False, True, False]
