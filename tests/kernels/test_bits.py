"""The same bits, whatever the instruction set, the team and the neighbours: every kernel, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import reference
from kernel_inputs import normal, packed, runnable

from embed.cpu import _native

F32 = np.ndarray
TEAMS = [1, 2, 3, 4]
EPILOGUES = ["bias", "residual", *reference.ACTIVATIONS]


def one_result(run: Callable[[str, int], F32]) -> F32:
    """Return what `run(isa, threads)` gives, having seen it give the same bytes on every set, from every team."""
    results = {(isa, threads): run(isa, threads) for isa in runnable() for threads in TEAMS}
    first = results["scalar", 1]
    wrong = [key for key, result in results.items() if result.tobytes() != first.tobytes()]
    assert not wrong, f"differ from scalar: {wrong}"
    return first


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(("n", "k"), [(112, 272), (5, 7), (96, 1040)])
def test_gemm(n: int, k: int, epilogue: str) -> None:
    rng = np.random.default_rng(n)
    x, w, bias, residual = normal(rng, 61, k), normal(rng, n, k, scale=0.05), normal(rng, n), normal(rng, 61, n)

    def rows(first: int, last: int, isa: str, threads: int) -> F32:
        added = residual[first:last] if epilogue == "residual" else None
        return _native.gemm(isa, x[first:last], w, bias, epilogue=epilogue, residual=added, threads=threads)

    whole = one_result(lambda isa, threads: rows(0, 61, isa, threads))
    for isa in runnable():
        for count in (1, 2, 3, 5, 7, 8, 9, 12, 13, 15, 16, 17, 33):  # alone, and with other neighbours
            assert rows(7, 7 + count, isa, 2).tobytes() == whole[7 : 7 + count].tobytes(), (isa, count)


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 64), (3, 8), (1, 128)])
def test_attention(heads: int, head_dim: int) -> None:
    offsets = packed([1, 15, 17, 48, 64, 65, 129, 3])
    qkv = normal(np.random.default_rng(1), offsets[-1], 3 * heads * head_dim, scale=1.5)
    whole = one_result(lambda isa, threads: _native.attention(isa, qkv, offsets, heads=heads, threads=threads))
    for isa in runnable():
        for first, last in itertools.pairwise(offsets):
            alone = _native.attention(isa, qkv[first:last], packed([last - first]), heads=heads)
            assert alone.tobytes() == whole[first:last].tobytes(), (isa, last - first)


@pytest.mark.parametrize("width", [5, 16, 33, 312, 768])
def test_layer_norm(width: int) -> None:
    rng = np.random.default_rng(width)
    x, gain, bias = normal(rng, 37, width, mean=3), normal(rng, width), normal(rng, width)
    whole = one_result(lambda isa, threads: _native.layer_norm(isa, x, gain, bias, eps=1e-5, threads=threads))
    alone = _native.layer_norm(runnable()[-1], x[20:21], gain, bias, eps=1e-5)
    assert alone.tobytes() == whole[20].tobytes()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", reference.POOLINGS)
@pytest.mark.parametrize("width", [5, 37, 384])
def test_pool(width: int, pooling: str, normalize: bool) -> None:
    offsets = packed([1, 2, 64, 200, 7])
    x = normal(np.random.default_rng(width), offsets[-1], width)

    def run(isa: str, threads: int) -> F32:
        return _native.pool(isa, x, offsets, pooling=pooling, normalize=normalize, threads=threads)

    whole = one_result(run)
    alone = _native.pool(runnable()[-1], x[67:267], packed([200]), pooling=pooling, normalize=normalize)
    assert alone.tobytes() == whole[3].tobytes()


def patterns() -> F32:
    """Return every 1,021st f32, subnormals, infinities and all, but no NaN: its sign and payload are not promised."""
    x = np.arange(0, 1 << 32, 1021, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return x[~np.isnan(x)]


@pytest.mark.parametrize("name", reference.ACTIVATIONS)
def test_activation(name: str) -> None:
    x = patterns()
    results = {isa: _native.activation(isa, x, name=name) for isa in runnable()}
    want = results["scalar"]
    for isa, got in results.items():
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (isa, x[~same][:5])


def test_exp2() -> None:
    x = patterns()
    x = x[x <= 250]
    results = {isa: _native.exp2(isa, x) for isa in runnable()}
    assert all(got.tobytes() == results["scalar"].tobytes() for got in results.values())
