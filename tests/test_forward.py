"""The whole forward, from text to vector, against reference.py in float64 on random weights.

Tolerance: a relative L2 error of 2e-6 a row. At the base shape chains of 256 products in f32 give about 5e-7, one
unbroken chain 1.2e-6; a tanh where erf belongs, or an epsilon of another model, gives 1e-4 and more.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import random_models
import reference
from numpy.typing import NDArray
from random_models import Shape, random_text
from reference import relative_error

import embed

TOLERANCE = 2e-6
BASE = Shape(width=768, heads=12, inner=3072, layers=12)  # multilingual-e5-base without its vocabulary
ODD = Shape(width=312, heads=12, inner=1200, layers=4)  # head_dim 26
TINY = Shape(width=32, heads=4, inner=64, layers=2)  # head_dim 8
WIDE_HEADS = Shape(width=256, heads=2, inner=320, layers=2)  # head_dim 128, the most that is built
LENGTHS = [2, 3, 4, 9, 17, 33, 64, 65, 130]  # tokens; attention takes its keys 64 at a time


def some_texts(shape: Shape, lengths: list[int] = LENGTHS) -> list[str]:
    rng = np.random.default_rng(11)
    return [random_text(rng, length, shape.words) for length in lengths]


def expected_states(directory: Path, texts: list[str], shape: Shape) -> list[NDArray[np.float64]]:
    """Return reference.py's last hidden states (length, width) of every text, for the directory's checkpoint."""
    tensors = reference.read_checkpoint(directory / "model.safetensors")
    encodings = random_models.tokenizer(shape.words).encode_batch(texts)
    return [reference.hidden_states(tensors, random_models.config(shape), encoding.ids) for encoding in encodings]


def pooled(states: list[NDArray[np.float64]], pool: str, normalize: bool = True) -> NDArray[np.float64]:
    return np.concatenate([reference.pool(s, [0, len(s)], pooling=pool, normalize=normalize) for s in states])


def error(directory: Path, texts: list[str], shape: Shape, *, pool: str = "cls") -> float:
    """Return the largest relative error of any row."""
    with embed.load(directory, pool=pool) as embedder:
        got = embedder.encode(texts)
    want = pooled(expected_states(directory, texts, shape), pool)
    assert got.shape == want.shape
    return relative_error(got, want).max()


def test_base_shape(tmp_path: Path) -> None:
    texts = some_texts(BASE, [2, 3, 9, 33, 100])
    directory = random_models.make(tmp_path / "model", BASE)
    states = expected_states(directory, texts, BASE)
    for pool in ("cls", "mean"):
        with embed.load(directory, pool=pool) as embedder:
            assert relative_error(embedder.encode(texts), pooled(states, pool)).max() <= TOLERANCE
    shutil.rmtree(directory)  # 340 MB that pytest would keep for three runs


@pytest.mark.parametrize("shape", [TINY, ODD, WIDE_HEADS], ids=["tiny", "odd", "wide heads"])
def test_every_instruction_set(shape: Shape, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_ISA", isa)
    directory = random_models.make(tmp_path / "model", shape)
    texts = some_texts(shape, [2, 3, 9] if isa == "scalar" else LENGTHS)
    assert error(directory, texts, shape, pool="mean") <= TOLERANCE


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[NDArray[np.float64]]]:
    directory = random_models.make(tmp_path_factory.mktemp("odd") / "model", ODD)
    return directory, expected_states(directory, some_texts(ODD), ODD)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", reference.POOLINGS)
def test_every_pooling(odd: tuple[Path, list[NDArray[np.float64]]], pool: str, normalize: bool) -> None:
    directory, states = odd
    with embed.load(directory, pool=pool, normalize=normalize) as embedder:
        got = embedder.encode(some_texts(ODD))
    assert relative_error(got, pooled(states, pool, normalize)).max() <= TOLERANCE


@pytest.mark.parametrize("hidden_act", reference.ACTIVATION_OF)
def test_every_activation(hidden_act: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, hidden_act=hidden_act)
    directory = random_models.make(tmp_path / "model", shape)
    assert error(directory, some_texts(shape), shape) <= TOLERANCE


def test_activations_can_be_told_apart(tmp_path: Path) -> None:
    directory = random_models.make(tmp_path / "model", TINY)
    texts = some_texts(TINY)
    exact = pooled(expected_states(directory, texts, TINY), "cls")
    for other in ("gelu_new", "relu", "silu"):
        wrong = pooled(expected_states(directory, texts, dataclasses.replace(TINY, hidden_act=other)), "cls")
        assert relative_error(wrong, exact).min() > 10 * TOLERANCE


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-1])
def test_epsilon_is_the_config_s(eps: float, tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, eps=eps)
    directory = random_models.make(tmp_path / "model", shape)
    assert error(directory, some_texts(shape), shape) <= TOLERANCE


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
def test_positions_follow_the_model_type(model_type: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, model_type=model_type)
    directory = random_models.make(tmp_path / "model", shape)
    texts = [*some_texts(shape), "w1 <pad> w2", "<pad>", "w5 <s> </s> <pad> <pad> w6", ""]
    assert error(directory, texts, shape, pool="mean") <= TOLERANCE


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("shape", [TINY, ODD], ids=["tiny", "odd"])
def test_narrow_checkpoints_are_widened_exactly(shape: Shape, dtype: str, tmp_path: Path) -> None:
    directory = random_models.make(tmp_path / "model", shape, dtype)
    assert error(directory, some_texts(shape), shape, pool="mean") <= TOLERANCE


def test_a_text_of_the_greatest_length(tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, positions=1026)
    directory = random_models.make(tmp_path / "model", shape)
    assert error(directory, some_texts(shape, [1024, 2, 1023]), shape, pool="mean") <= TOLERANCE
