"""Vectors and token ids of the corpus are those of sentence-transformers.

Tolerances: f32 sums in another order move a component by some 1e-7 (1 - cosine 1e-13 when everything is right); 3e-6
and 1e-7 are what a wrong epsilon, position or GELU clearly exceeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import reference
from numpy.typing import ArrayLike, NDArray
from setups import SETUPS, Golden, Setup, ask_oracle, load_golden, regenerate
from texts import corpus, random_texts

import embed
from embed.errors import GuessWarning, TruncationWarning

pytestmark = pytest.mark.filterwarnings("ignore::embed.errors.TruncationWarning")  # over-long texts are meant to be

COSINE = 1e-7  # most 1 - cosine, in float64, norms divided out
DELTA = 3e-6  # most absolute difference of a component of a vector of length 1


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: setup.name)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


@pytest.fixture(scope="module")
def embedder(setup: Setup, real_model: Callable[[str], Path]) -> Iterator[embed.Embedder]:
    with embed.load(real_model(setup.name), pool=setup.pooling) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def golden(
    setup: Setup,
    real_model: Callable[[str], Path],
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Golden:
    if pytestconfig.getoption("--regen"):
        real_model(setup.name)
        regenerate(setup, tmp_path_factory.mktemp("regen"))
    return load_golden(setup.name)


@pytest.fixture(scope="module")
def vectors(embedder: embed.Embedder) -> NDArray[np.float32]:
    """The corpus's vectors by `embed`, as it gives them by default: of length 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        return embedder.encode(corpus().values())


def assert_same_vectors(got: ArrayLike, want: ArrayLike, names: list[str]) -> None:
    """Compare rows of length 1; a failure names the worst text."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    cosine = (reference.normalized(got) * reference.normalized(want)).sum(axis=1)
    delta = np.abs(got - want).max(axis=1)
    assert (1 - cosine).max() <= COSINE, f"{names[int(cosine.argmin())]}: 1 - cosine is {1 - cosine.min():.2e}"
    assert delta.max() <= DELTA, f"{names[int(delta.argmax())]}: a component is off by {delta.max():.2e}"


def test_vectors_are_those_of_sentence_transformers(vectors: NDArray[np.float32], golden: Golden) -> None:
    assert vectors.dtype == np.float32
    assert np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max() <= 1e-6
    assert_same_vectors(vectors, golden.unit, list(corpus()))


def test_vectors_without_normalization_are_those_of_sentence_transformers(
    setup: Setup, embedder: embed.Embedder, golden: Golden
) -> None:
    if setup.unit:
        vectors = embedder.encode(["Hello, world!", ""], normalize=False)
        assert (np.abs(np.linalg.norm(vectors, axis=1) - 1) > 0.1).all()  # the directory's Normalize is put aside too
        return
    texts = corpus()
    vectors = embedder.encode(list(texts.values()), normalize=False)
    scale = np.linalg.norm(golden.vectors.astype(np.float64), axis=1, keepdims=True)
    assert_same_vectors(vectors / scale, golden.vectors / scale, list(texts))


def test_token_ids_have_not_moved(embedder: embed.Embedder, golden: Golden) -> None:
    texts = corpus()
    for name, text, ids in zip(texts, embedder.tokenize(list(texts.values())), golden.ids, strict=True):
        assert text.ids.dtype == np.int32
        assert text.ids.tolist() == ids, name
        assert len(ids) == min(text.tokens, embedder.maxseq), name
        assert text.truncated == (text.tokens > embedder.maxseq), name


def test_an_over_long_text_keeps_its_head_and_its_last_special_token(embedder: embed.Embedder) -> None:
    words = " ".join(["a"] * (embedder.maxseq - 2))
    fits, longer = embedder.tokenize([words, f"{words} b"])
    assert (fits.tokens, longer.tokens) == (embedder.maxseq, embedder.maxseq + 1)
    assert longer.ids.tobytes() == fits.ids.tobytes()
    with pytest.warns(TruncationWarning, match=r"1 of 2 texts"):
        vectors = embedder.encode([words, f"{words} b"])
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_texts_with_the_same_ids_have_the_same_bytes(vectors: NDArray[np.float32], golden: Golden) -> None:
    rows: dict[tuple[int, ...], bytes] = {}
    for ids, row in zip(golden.ids, vectors, strict=True):
        assert rows.setdefault(tuple(ids), row.tobytes()) == row.tobytes()


def test_a_bare_directory_is_pooled_by_cls_and_says_so(real_model: Callable[[str], Path]) -> None:
    with pytest.warns(GuessWarning, match=r"cls.*mean"), embed.load(real_model("bare")) as guessed:
        vector = guessed.encode("Hello, world!")
    with embed.load(real_model("bare"), pool="cls") as told:  # a warning would be an error
        assert told.encode("Hello, world!").tobytes() == vector.tobytes()


@pytest.mark.oracle
def test_goldens_are_what_sentence_transformers_says_today(setup: Setup, golden: Golden, tmp_path: Path) -> None:
    texts = corpus()
    today = ask_oracle(setup, list(texts.values()), tmp_path)
    print(f"{setup.name}: golden by {golden.versions}, today {today.versions}")
    assert today.ids == golden.ids
    assert_same_vectors(today.unit, golden.unit, list(texts))


@pytest.mark.oracle
def test_random_texts_have_sentence_transformers_vectors(
    setup: Setup, embedder: embed.Embedder, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    texts = random_texts(500, pytestconfig.getoption("--oracle-seed"))
    said = ask_oracle(setup, texts, tmp_path)
    assert [text.ids.tolist() for text in embedder.tokenize(texts)] == said.ids
    assert_same_vectors(embedder.encode(texts), said.unit, [repr(text) for text in texts])
