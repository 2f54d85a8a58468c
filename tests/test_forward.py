"""The whole forward, from text to vector, against reference.py in float64 on random weights.

Tolerance: a relative L2 error of 2e-6 a row. At the base shape chains of 256 products in f32 give about 5e-7, one
unbroken chain 1.2e-6; a tanh where erf belongs, or an epsilon of another model, gives 1e-4 and more.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import tiny
from numpy.typing import NDArray
from reference import relative_error
from tokenizers import Tokenizer

import embed

States = list[NDArray[np.float64]]  # (length, width) of every text

TOLERANCE = 2e-6
LENGTHS = [2, 3, 4, 9, 17, 33, 64, 65, 130]  # tokens; attention takes its keys 64 at a time


BASE = tiny.shape(768, 12, 3072, 12)  # multilingual-e5-base's, but for its vocabulary
ODD = tiny.shape(312, 12, 1200, 4)  # head_dim 26
TINY = tiny.shape(32, 4, 64, 2)  # head_dim 8
WIDE_HEADS = tiny.shape(256, 2, 320, 2)  # head_dim 128, the most that is built


def make(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    """Write a model directory that leaves the pooling to `embed.load`; `changes` go into config.json."""
    dtype = changes.pop("dtype", "F32")
    return tiny.make("xlmr", directory, config={**config, **changes}, dtype=dtype, metadata=None)


def some_texts(lengths: list[int] = LENGTHS) -> list[str]:
    """Return texts of so many tokens, the special ones included: every word is one."""
    rng = np.random.default_rng(11)
    return [" ".join(rng.choice(["the", "of", "and", "to", "hello", "world", "fox"], n - 2)) for n in lengths]


def states_of(directory: Path, texts: list[str], **changes: Any) -> States:
    """Return reference.py's last hidden states for the directory's checkpoint."""
    checkpoint = reference.read_checkpoint(directory / "model.safetensors")
    tensors = {name: reference.widen(tensor) for name, tensor in checkpoint.items()}  # once, not for every text
    config = json.loads((directory / "config.json").read_text()) | changes
    encodings = Tokenizer.from_file(str(directory / "tokenizer.json")).encode_batch(texts)
    return [reference.hidden_states(tensors, config, encoding.ids) for encoding in encodings]


def pooled(states: States, pool: str, normalize: bool = True) -> NDArray[np.float64]:
    return np.concatenate([reference.pool(s, [0, len(s)], pooling=pool, normalize=normalize) for s in states])


def error(directory: Path, texts: list[str], *, pool: str = "cls") -> float:
    """Return the largest relative error of any row."""
    with embed.load(directory, pool=pool) as embedder:
        got = embedder.encode(texts)
    want = pooled(states_of(directory, texts), pool)
    assert got.shape == want.shape
    return relative_error(got, want).max()


def test_base_shape(tmp_path: Path) -> None:
    texts = some_texts([2, 3, 9, 33, 100])
    directory = make(tmp_path / "model", BASE)
    states = states_of(directory, texts)
    assert [len(s) for s in states] == [2, 3, 9, 33, 100]
    for pool in ("cls", "mean"):
        with embed.load(directory, pool=pool) as embedder:
            assert relative_error(embedder.encode(texts), pooled(states, pool)).max() <= TOLERANCE
    shutil.rmtree(directory)  # 340 MB that pytest would keep for three runs


@pytest.mark.parametrize("config", [TINY, ODD, WIDE_HEADS], ids=["tiny", "odd", "wide heads"])
def test_every_instruction_set(
    config: dict[str, Any], isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBED_ISA", isa)
    directory = make(tmp_path / "model", config)
    assert error(directory, some_texts([2, 3, 9] if isa == "scalar" else LENGTHS), pool="mean") <= TOLERANCE


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, States]:
    directory = make(tmp_path_factory.mktemp("odd") / "model", ODD)
    return directory, states_of(directory, some_texts())


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", reference.POOLINGS)
def test_every_pooling(odd: tuple[Path, States], pool: str, normalize: bool) -> None:
    directory, states = odd
    with embed.load(directory, pool=pool, normalize=normalize) as embedder:
        got = embedder.encode(some_texts())
    assert relative_error(got, pooled(states, pool, normalize)).max() <= TOLERANCE


@pytest.mark.parametrize("hidden_act", reference.ACTIVATION_OF)
def test_every_activation(hidden_act: str, tmp_path: Path) -> None:
    assert error(make(tmp_path / "model", TINY, hidden_act=hidden_act), some_texts()) <= TOLERANCE


def test_activations_can_be_told_apart(tmp_path: Path) -> None:
    directory = make(tmp_path / "model", TINY)
    exact = pooled(states_of(directory, some_texts()), "cls")
    for other in ("gelu_new", "relu", "silu"):
        wrong = pooled(states_of(directory, some_texts(), hidden_act=other), "cls")
        assert relative_error(wrong, exact).min() > 10 * TOLERANCE


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-1])
def test_epsilon_is_the_one_in_config_json(eps: float, tmp_path: Path) -> None:
    assert error(make(tmp_path / "model", TINY, layer_norm_eps=eps), some_texts()) <= TOLERANCE


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
def test_positions_follow_the_model_type(model_type: str, tmp_path: Path) -> None:
    directory = make(tmp_path / "model", TINY, model_type=model_type)
    texts = [*some_texts(), "hello <pad> world", "<pad>", "fox <s> </s> <pad> <pad> of", ""]
    assert error(directory, texts, pool="mean") <= TOLERANCE


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
def test_narrow_checkpoints_are_widened_exactly(config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    assert error(make(tmp_path / "model", config, dtype=dtype), some_texts(), pool="mean") <= TOLERANCE


def test_texts_of_the_greatest_length(tmp_path: Path) -> None:
    directory = make(tmp_path / "model", TINY, max_position_embeddings=1026)
    assert error(directory, some_texts([1024, 2, 1023]), pool="mean") <= TOLERANCE
