"""The whole forward, from text to vector, against reference.py in float64 on random weights.

Tolerance: a relative L2 error of 2e-6 a row. At the base shape chains of 256 products in f32 give about 5e-7, one
unbroken chain 1.2e-6; a tanh where erf belongs, or an epsilon of another model, gives 1e-4 and more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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


def expected(directory: Path, texts: list[str], shape: Shape, **options: object) -> NDArray[np.float64]:
    """Return reference.py's vectors for the directory's checkpoint."""
    ids = [encoding.ids for encoding in random_models.tokenizer(shape.words).encode_batch(texts)]
    tensors = reference.read_checkpoint(directory / "model.safetensors")
    return reference.encode(tensors, random_models.config(shape), ids, **options)


def error(directory: Path, texts: list[str], shape: Shape, *, pool: str = "cls", normalize: bool = True) -> float:
    """Return the largest relative error of any row."""
    with embed.load(directory, pool=pool, normalize=normalize) as embedder:
        got = embedder.encode(texts)
    want = expected(directory, texts, shape, pooling=pool, normalize=normalize)
    assert got.shape == want.shape
    return relative_error(got, want).max()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = random_models.make(tmp_path_factory.mktemp("models") / "base", BASE)
    yield home
    (home / "model.safetensors").unlink()  # 340 MB that pytest would keep for three runs


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_base_shape(base: Path, pool: str) -> None:
    texts = some_texts(BASE, [2, 3, 9, 33, 130])
    assert error(base, texts, BASE, pool=pool) <= TOLERANCE


@pytest.mark.parametrize("shape", [TINY, ODD, WIDE_HEADS], ids=["tiny", "odd", "wide heads"])
def test_every_instruction_set(shape: Shape, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_ISA", isa)
    directory = random_models.make(tmp_path / "model", shape)
    texts = some_texts(shape, [2, 3, 9] if isa == "scalar" else LENGTHS)
    assert error(directory, texts, shape, pool="mean") <= TOLERANCE


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", reference.POOLINGS)
def test_every_pooling(pool: str, normalize: bool, tmp_path: Path) -> None:
    directory = random_models.make(tmp_path / "model", ODD)
    assert error(directory, some_texts(ODD), ODD, pool=pool, normalize=normalize) <= TOLERANCE


@pytest.mark.parametrize("hidden_act", reference.ACTIVATION_OF)
def test_every_activation(hidden_act: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, hidden_act=hidden_act)
    directory = random_models.make(tmp_path / "model", shape)
    assert error(directory, some_texts(shape), shape) <= TOLERANCE


def test_activations_can_be_told_apart(tmp_path: Path) -> None:
    directory = random_models.make(tmp_path / "model", TINY)
    texts = some_texts(TINY)
    exact = expected(directory, texts, TINY, pooling="cls")
    for other in ("gelu_new", "relu", "silu"):
        wrong = expected(directory, texts, dataclasses.replace(TINY, hidden_act=other), pooling="cls")
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
