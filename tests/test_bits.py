"""The same bits: a text's vector depends on nothing but the text and the model.

Not on what it is batched with, in which order, on how many threads, nor on the instruction set. Two real models: XLM-R
of 12 layers, and BERT of 6.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from texts import corpus

import embed
from embed.errors import TruncationWarning

pytestmark = pytest.mark.filterwarnings("ignore::embed.errors.TruncationWarning")  # one text is over-long on purpose

COUNT = 40  # texts: more than the largest batch
SHORT = 40  # tokens of most of them, at most
SHUFFLES = {"minilm": 5, "e5-small": 1}  # the larger model's took a minute each where other programs share the CPUs


@pytest.fixture(scope="module", params=SHUFFLES)
def directory(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> Path:
    return real_model(request.param)


@pytest.fixture(scope="module")
def embedder(directory: Path) -> Iterator[embed.Embedder]:
    with embed.load(directory) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def texts(embedder: embed.Embedder) -> list[str]:
    """Return the corpus's over-long text, then short ones: of every length one, then more."""
    tokenized = dict(zip(corpus().values(), embedder.tokenize(corpus().values()), strict=True))
    short = {text: len(tokens.ids) for text, tokens in tokenized.items() if len(tokens.ids) <= SHORT}
    of_each_length = {length: text for text, length in short.items()}
    chosen = [corpus()["over-long english"], *of_each_length.values(), *short]
    return list(dict.fromkeys(chosen))[:COUNT]


@pytest.fixture(scope="module")
def alone(embedder: embed.Embedder, texts: list[str]) -> NDArray[np.float32]:
    """The vectors of `texts`, each computed on its own, (texts, width)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        return np.stack([embedder.encode(text) for text in texts])


def test_lengths_are_mixed(embedder: embed.Embedder, texts: list[str]) -> None:
    lengths = [len(tokens.ids) for tokens in embedder.tokenize(texts)]
    assert (len(lengths), max(lengths), min(lengths)) == (COUNT, embedder.maxseq, 2)
    assert len(set(lengths)) >= 20


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 17, 33])
def test_batching_and_order_change_no_bit(
    directory: Path, embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32], batch: int
) -> None:
    for seed in range(SHUFFLES[directory.name]):
        order = np.random.default_rng(seed).permutation(len(texts))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            assert embedder.encode([texts[i] for i in chosen]).tobytes() == alone[chosen].tobytes(), f"seed {seed}"


def test_no_neighbour_changes_a_bit(embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32]) -> None:
    for neighbour in (texts[0], "", "a"):
        for i in range(1, len(texts), 5):
            assert embedder.encode([neighbour, texts[i]])[1].tobytes() == alone[i].tobytes(), texts[i]


def test_forty_copies_are_forty_times_the_same_row(
    embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32]
) -> None:
    assert {row.tobytes() for row in embedder.encode([texts[5]] * 40)} == {alone[5].tobytes()}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_change_no_bit(directory: Path, texts: list[str], alone: NDArray[np.float32], threads: int) -> None:
    with embed.load(directory, threads=threads) as other:
        assert other.encode(texts).tobytes() == alone.tobytes()
        assert other.encode(texts[3]).tobytes() == alone[3].tobytes()


def test_instruction_sets_change_no_bit(
    directory: Path, texts: list[str], alone: NDArray[np.float32], isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBED_ISA", isa)
    with embed.load(directory) as other:
        assert other.device == f"cpu {isa}"
        chosen = np.argsort([len(tokens.ids) for tokens in other.tokenize(texts)])
        if isa == "scalar":  # calls the C library for every fma on x86, some 100 million a second: the shortest texts
            chosen = chosen[:6]
        assert other.encode([texts[i] for i in chosen]).tobytes() == alone[chosen].tobytes()
