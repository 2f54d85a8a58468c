"""The ground truth is checked too: against known values, and against sentence-transformers' goldens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference
from setups import load_golden


def test_gelu_is_exact_far_into_the_negative_tail() -> None:
    # Φ(-10) = 7.619853024160527e-24: an erf in double precision would have rounded it to 0.
    want = [0.0, 0.8413447460685429, -0.15865525393145705, -10 * 7.619853024160527e-24]
    np.testing.assert_allclose(reference.gelu([0, 1, -1, -10]), want, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "want"),
    [("gelu_tanh", 0.8411919906082768), ("silu", 0.7310585786300049), ("relu", 1.0)],
)
def test_activations_at_one(name: str, want: float) -> None:
    assert reference.activation([1.0], name=name) == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("name", reference.ACTIVATIONS)
def test_activations_do_not_overflow(name: str) -> None:
    assert reference.activation([-1e30, 0, 1e30], name=name).tolist() == [0, 0, 1e30]


def test_bf16_bits_are_widened() -> None:
    assert reference.widen(np.array([0x3F80, 0xC040], np.uint16)).tolist() == [1, -3]


def test_positions_skip_a_literal_pad() -> None:
    assert reference.position_ids([0, 10, 1, 11, 2], "xlm-roberta", 1) == [2, 3, 1, 4, 5]
    assert reference.position_ids([0, 10, 0, 11, 2], "bert", 0) == [0, 1, 2, 3, 4]


def test_attention_looks_at_its_own_text_only() -> None:
    qkv = np.random.default_rng(0).standard_normal((5, 24))
    together = reference.attention(qkv, [0, 2, 5], heads=2)
    np.testing.assert_array_equal(together[2:], reference.attention(qkv[2:], [0, 3], heads=2))
    np.testing.assert_array_equal(reference.attention(qkv[:1], [0, 1], heads=2), qkv[:1, 16:])


def test_poolings() -> None:
    states = np.array([[1.0, 8.0], [3.0, 2.0], [7.0, 0.0], [5.0, 6.0]])
    want = {
        "cls": [1, 8],
        "lasttoken": [5, 6],
        "max": [7, 8],
        "mean": [4, 4],
        "mean_sqrt_len": [8, 8],
        "weightedmean": [4.8, 3.6],
    }
    assert set(want) == set(reference.POOLINGS)
    for name, vector in want.items():
        got = reference.pool(states, [0, 4], pooling=name, normalize=False)
        np.testing.assert_allclose(got, [vector], rtol=1e-15, err_msg=name)


def test_a_zero_row_stays_zero() -> None:
    assert reference.normalized([[0.0, 0.0], [3.0, 4.0]]).tolist() == [[0, 0], [0.6, 0.8]]


@pytest.mark.parametrize(
    ("name", "pooling", "unit"), [("minilm", "mean", True), ("e5-small", "mean", True), ("bare", "cls", False)]
)
def test_the_forward_is_that_of_sentence_transformers(
    real_model: Callable[[str], Path], name: str, pooling: str, unit: bool
) -> None:
    directory, golden = real_model(name), load_golden(name)
    chosen = [i for i, ids in enumerate(golden.ids) if len(ids) <= 12][::7]
    assert len(chosen) >= 5
    got = reference.encode(
        reference.read_checkpoint(directory / "model.safetensors"),
        json.loads((directory / "config.json").read_text()),
        [golden.ids[i] for i in chosen],
        pooling=pooling,
        normalize=unit,
    )
    # The error is torch's, in f32: measured 5e-7 (e5-small) and 9e-7 (minilm).
    assert reference.relative_error(golden.vectors[chosen], got).max() <= 2e-6


def test_relative_error_is_per_row() -> None:
    error = reference.relative_error([[1.0, 0.0], [0.0, 2.1]], [[1.0, 0.0], [0.0, 2.0]])
    assert error.tolist() == [0, pytest.approx(0.05)]
    assert math.isclose(reference.exp2(10.0), 1024)
