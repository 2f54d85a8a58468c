"""Streaming attention over a packed, ragged batch against float64.

Tolerance: outputs are weighted means of values of size 1 to 5. A score, a chain of head_dim roundings of 6e-8 with
partial sums up to 15, is off by some 1e-6, which softmax turns into a relative error of its weight. Measured: 1e-6 for
heads of 32, 6.1e-6 for heads of 128. A key left out or taken from a neighbour moves outputs by 1e-3 and more.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_inputs import normal, packed

from embed.cpu import _native

LENGTHS = [1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 129, 200, 12]  # around vectors, panels and key blocks


@pytest.mark.parametrize(("heads", "head_dim"), [(12, 32), (2, 64), (1, 128), (4, 8), (3, 26), (2, 1)])
def test_error(isa: str, heads: int, head_dim: int) -> None:
    offsets = packed(LENGTHS)
    qkv = normal(np.random.default_rng(head_dim), offsets[-1], 3 * heads * head_dim, scale=1.5)
    got = _native.attention(isa, qkv, offsets, heads=heads, threads=2)
    assert np.abs(got - reference.attention(qkv, offsets, heads=heads)).max() <= 1e-5


def test_large_scores(isa: str) -> None:
    """Scores of thousands: without the running maximum every exponential would be infinite."""
    qkv = normal(np.random.default_rng(1), 300, 3 * 64, scale=30)
    got, want = _native.attention(isa, qkv, packed([300]), heads=1), reference.attention(qkv, [0, 300], heads=1)
    assert np.abs(got - want).max() <= 2e-2  # a score of 8,000 has an error of 5e-4, and values are 30


def test_very_negative_scores(isa: str) -> None:
    """All scores near -1e35: a running maximum that starts at a mere -1e30 would divide 0 by 0."""
    qkv = np.ones((3, 3 * 16), np.float32)
    qkv[:, :16], qkv[:, 16:32] = -1e17, 1e17
    assert _native.attention(isa, qkv, packed([3]), heads=1).tolist() == [[1] * 16] * 3


def test_the_maximum_may_come_last(isa: str) -> None:
    """Each block of keys outdoes all before it, so that everything summed so far is scaled down to nothing."""
    qkv = normal(np.random.default_rng(2), 200, 3 * 16)
    qkv[:, :16] = 1
    qkv[:, 16:32] = np.arange(200, dtype=np.float32)[:, None] * 10
    got = _native.attention(isa, qkv, packed([200]), heads=1)
    np.testing.assert_allclose(got, np.broadcast_to(qkv[199, 32:], (200, 16)), rtol=1e-6)


@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_stays_in_its_text_and_head(isa: str, where: str) -> None:
    offsets = packed([5, 70, 3])
    qkv = normal(np.random.default_rng(3), 78, 3 * 32)
    qkv[40, ["query", "key", "value"].index(where) * 32 + 20] = np.nan  # the second text, the second head
    spoilt = np.isnan(_native.attention(isa, qkv, offsets, heads=2))
    assert spoilt[40, 16:].any()
    assert not spoilt[:5].any()
    assert not spoilt[75:].any()
    assert not spoilt[:, :16].any()
