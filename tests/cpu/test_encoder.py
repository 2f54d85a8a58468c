"""csrc/cpu/encoder.cc through the bridge: the same bits in any batch, from any team, on any instruction set.

Its accuracy is tests/test_forward.py's subject.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference
import tiny
from encoder_weights import Weights, encoder, forward, random_batch, read_weights
from kernel_inputs import runnable

from embed.batching import Batch

SHAPES = [
    tiny.shape(32, 4, 64, 2),  # heads of 8
    tiny.shape(312, 12, 600, 2),  # heads of 26
    tiny.shape(90, 3, 130, 1, hidden_act="gelu_new"),  # nothing a multiple of 16
    tiny.shape(128, 1, 64, 1, hidden_act="relu"),  # the widest head
]
LENGTHS = [3, 66, 1, 64, 17, 48, 2]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"width {shape['hidden_size']}")
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> Weights:
    return read_weights(tiny.make("xlmr", tmp_path / "model", config=request.param))


@pytest.fixture
def small(tmp_path: Path) -> Weights:
    return read_weights(tiny.make("xlmr", tmp_path / "model", config=SHAPES[0]))


def test_no_set_and_no_team_changes_a_bit(weights: Weights) -> None:
    batch = random_batch(weights.config, LENGTHS)
    results = {
        (isa, threads): forward(encoder(isa, weights, threads=threads), weights, batch).tobytes()
        for isa, threads in itertools.product(runnable(), [1, 2, 3, 4])
    }
    assert len(set(results.values())) == 1


def part(batch: Batch, texts: list[int]) -> Batch:
    """Return a batch of some of the texts, in that order."""
    spans = [slice(batch.offsets[t], batch.offsets[t + 1]) for t in texts]
    offsets = np.cumsum([0, *(span.stop - span.start for span in spans)]).astype(np.int32)
    ids, positions = (np.concatenate([rows[span] for span in spans]) for rows in (batch.ids, batch.positions))
    return Batch(ids, positions, offsets)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_no_neighbour_changes_a_bit(isa: str, weights: Weights, pooling: str) -> None:
    built = encoder(isa, weights, threads=2)
    batch = random_batch(weights.config, LENGTHS)
    whole = forward(built, weights, batch, pooling=pooling)
    for texts in ([0], [1], [2], [3], [4], [5], [6], [6, 5, 4, 3, 2, 1, 0], [2, 1], [1, 2, 3], [0, 0]):
        assert forward(built, weights, part(batch, texts), pooling=pooling).tobytes() == whole[texts].tobytes()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_narrow_weights_equal_their_widened_selves(isa: str, dtype: str, tmp_path: Path) -> None:
    narrow = read_weights(tiny.make("xlmr", tmp_path / "narrow", config=SHAPES[1], dtype=dtype))
    tensors = reference.read_checkpoint(tmp_path / "narrow" / "model.safetensors")
    widened = {name: reference.widen(tensor).astype(np.float32) for name, tensor in tensors.items()}
    wide_home = tiny.make("xlmr", tmp_path / "wide", config=SHAPES[1])
    tiny.write_weights(wide_home, widened)
    wide = read_weights(wide_home)
    assert wide.layers[0].up.dtype != narrow.layers[0].up.dtype
    batch = random_batch(narrow.config, [9])
    assert forward(encoder(isa, narrow), narrow, batch).tobytes() == forward(encoder(isa, wide), wide, batch).tobytes()


def test_a_full_workspace_is_enough(isa: str, small: Weights) -> None:
    batch = random_batch(small.config, [100, 27])
    exact, roomy = encoder(isa, small, max_tokens=127), encoder(isa, small, max_tokens=4096)
    assert forward(exact, small, batch).tobytes() == forward(roomy, small, batch).tobytes()


def test_an_abandoned_forward_leaves_no_trace(isa: str, small: Weights) -> None:
    built, batch = encoder(isa, small), random_batch(small.config, [20, 3])
    want = forward(built, small, batch)
    other = random_batch(small.config, [60], seed=1)
    built.embed(other.ids, other.positions, other.offsets)
    built.self_attention(0)
    assert forward(built, small, batch).tobytes() == want.tobytes()


def test_sizes_are_told(weights: Weights) -> None:
    built, config = encoder("scalar", weights, max_tokens=256), weights.config
    parameters = config.layers * (4 * config.width**2 + 2 * config.width * config.inner)
    assert 4 * parameters <= built.weight_bytes <= 4 * 2 * parameters + (2 << 20)  # heads of 8 are padded to 16
    assert 4 * 256 * config.width * 5 <= built.workspace_bytes <= 16 << 20


def test_a_small_stack_is_enough(isa: str, tmp_path: Path) -> None:
    """Of the thread that calls; the team's have 512 KiB. Attention's scratch was 70 to 200 KB of it."""
    model = tiny.make("xlmr", tmp_path / "model", config=tiny.shape(128, 4, 64, 2))
    program = (
        "import threading, sys; threading.stack_size(128 << 10)\n"
        "import embed; print(embed.load(sys.argv[1], threads=2, pool='mean').encode(['fox ' * 200] * 5).shape)"
    )
    environment = {**os.environ, "EMBED_ISA": isa}
    command = [sys.executable, "-W", "ignore", "-c", program, model]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "(5, 128)\n"), done.stderr
