"""GEMM with every epilogue against float64.

Tolerance, in units of |x| |W|ᵀ + |bias|: 256 roundings of 2^-24 in a chain, which add up like their square root where
they are independent: 16 * 6e-8 = 1e-6. Measured: 1.7e-7. One unbroken chain over K = 3,072 would give thrice that; a
chunk left out, or a weight in the wrong place, gives 1e-2.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_inputs import narrow, normal

from embed.cpu import _native

TOLERANCE = 4e-7
EPILOGUES = ["bias", "residual", *reference.ACTIVATIONS]
SHAPES = [  # tokens, n, k
    (1, 16, 16),
    (11, 96, 48),  # one tall tile
    (13, 112, 64),  # two tiles, the last panel narrow
    (3, 5, 7),  # nothing a multiple of 16
    (9, 312, 312),
    (200, 48, 32),  # more rows than a task takes
    (10, 32, 1040),  # more K than a block takes, its last chunk short
    (2, 100, 3072),
]


def problem(tokens: int, n: int, k: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(tokens * n + k)
    return normal(rng, tokens, k), normal(rng, n, k, scale=k**-0.5), normal(rng, n), normal(rng, tokens, n)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("shape", SHAPES)
def test_error(isa: str, shape: tuple[int, int, int], epilogue: str) -> None:
    x, w, bias, residual = problem(*shape)
    added = residual if epilogue == "residual" else None
    got = _native.gemm(isa, x, w, bias, epilogue=epilogue, residual=added, threads=2)
    want = reference.gemm(x, w, bias, epilogue=epilogue, residual=added)
    size = reference.gemm(np.abs(x), np.abs(w), np.abs(bias))
    # No activation's slope is above 1.13; on top comes its own error, or the last rounding of the residual's sum.
    assert (np.abs(got - want) <= 1.13 * TOLERANCE * size + 1e-7 + 6e-8 * np.abs(want)).all()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (13, 112, 64), (1, 30, 272)])
def test_16_bit_weights_are_widened_exactly(isa: str, shape: tuple[int, int, int], dtype: str) -> None:
    x, w, bias, _ = problem(*shape)
    w[0, :4] = [1e-7, -3e-6, 0.0, -0.0]  # subnormal in F16
    narrowed = narrow(w, dtype)
    widened = reference.widen(narrowed).astype(np.float32)
    assert _native.gemm(isa, x, narrowed, bias).tobytes() == _native.gemm(isa, x, widened, bias).tobytes()


def test_every_bit_pattern_of_f16_and_bf16(isa: str) -> None:
    """One product of 1 per weight: the weights themselves come out."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for weights in (bits, bits.view(np.float16)):
        got = _native.gemm(isa, np.ones((1, 1), np.float32), weights[:, None], np.zeros(1 << 16, np.float32))[0]
        with np.errstate(invalid="ignore"):  # NumPy's own widening stumbles over signalling NaNs
            want = reference.widen(weights).astype(np.float32)
        np.testing.assert_array_equal(got, want)


def test_nan_stays_in_its_row(isa: str) -> None:
    x, w, bias, _ = problem(9, 48, 64)
    x[4, 63] = np.nan
    got = _native.gemm(isa, x, w, bias)
    assert np.isnan(got).all(axis=1).tolist() == [i == 4 for i in range(9)]
    assert np.isnan(got).any(axis=1).tolist() == [i == 4 for i in range(9)]
