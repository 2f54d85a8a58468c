"""Whole vectors: equal to sentence-transformers', and the same bits whatever else is going on.

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


def load(directory: Path, **options: int) -> embed.Embedder:
    """Load a model; the bare one's warning has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        return embed.load(directory, **options)


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: setup.name)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


@pytest.fixture(scope="module")
def embedder(setup: Setup, real_model: Callable[[str], Path]) -> Iterator[embed.Embedder]:
    with load(real_model(setup.name)) as loaded:
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


def assert_same_vectors(got: ArrayLike, want: ArrayLike, names: list[str]) -> None:
    """Compare rows of length 1; a failure names the worst text."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    cosine = (reference.normalized(got) * reference.normalized(want)).sum(axis=1)
    delta = np.abs(got - want).max(axis=1)
    assert (1 - cosine).max() <= COSINE, f"{names[int(cosine.argmin())]}: 1 - cosine is {1 - cosine.min():.2e}"
    assert delta.max() <= DELTA, f"{names[int(delta.argmax())]}: a component is off by {delta.max():.2e}"


# --- equal ------------------------------------------------------------------------------------------------------------


def test_vectors_are_those_of_sentence_transformers(embedder: embed.Embedder, golden: Golden) -> None:
    texts = corpus()
    vectors = embedder.encode(list(texts.values()))
    assert vectors.dtype == np.float32
    assert np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max() <= 1e-6
    assert_same_vectors(vectors, golden.unit, list(texts))


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


def test_texts_with_the_same_ids_have_the_same_bytes(embedder: embed.Embedder, golden: Golden) -> None:
    rows: dict[tuple[int, ...], bytes] = {}
    for ids, row in zip(golden.ids, embedder.encode(list(corpus().values())), strict=True):
        assert rows.setdefault(tuple(ids), row.tobytes()) == row.tobytes()


def test_a_bare_directory_is_pooled_by_cls_and_says_so(real_model: Callable[[str], Path]) -> None:
    with pytest.warns(GuessWarning, match=r"cls.*mean"), embed.load(real_model("bare")) as guessed:
        vector = guessed.encode("Hello, world!")
    with embed.load(real_model("bare"), pool="cls") as told:  # a warning would be an error
        assert told.encode("Hello, world!").tobytes() == vector.tobytes()


# --- the same bits ----------------------------------------------------------------------------------------------------

NEIGHBOURS = 40  # texts of 2 to 40 tokens, and one of the model's limit


def mixed_texts(golden: Golden) -> list[str]:
    """Return texts of as many lengths as the corpus has, the longest first."""
    by_length = {len(ids): text for ids, text in zip(golden.ids, corpus().values(), strict=True) if len(ids) <= 40}
    short = [text for ids, text in zip(golden.ids, corpus().values(), strict=True) if len(ids) <= 12]
    texts = [corpus()["over-long english"], *by_length.values(), *short]
    return list(dict.fromkeys(texts))[:NEIGHBOURS]


@pytest.fixture(scope="module")
def texts(golden: Golden) -> list[str]:
    return mixed_texts(golden)


@pytest.fixture(scope="module")
def alone(embedder: embed.Embedder, texts: list[str]) -> NDArray[np.float32]:
    """The vectors of `texts`, each computed on its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        return np.stack([embedder.encode(text) for text in texts])


def test_there_are_enough_mixed_lengths(golden: Golden, texts: list[str]) -> None:
    lengths = dict(zip(corpus().values(), map(len, golden.ids), strict=True))
    assert len(texts) >= 34  # more than the largest batch below
    assert len({lengths[text] for text in texts}) >= 20


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 17, 33])
@pytest.mark.parametrize("seed", range(5))
def test_batching_and_order_change_no_bit(
    embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32], seed: int, batch: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(texts))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        assert embedder.encode([texts[i] for i in chosen]).tobytes() == alone[chosen].tobytes()


def test_no_neighbour_changes_a_bit(embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32]) -> None:
    for neighbour in (texts[0], "", "a"):
        for text, row in zip(texts[1:], alone[1:], strict=True):
            assert embedder.encode([neighbour, text])[1].tobytes() == row.tobytes(), text


def test_forty_copies_are_forty_times_the_same_row(
    embedder: embed.Embedder, texts: list[str], alone: NDArray[np.float32]
) -> None:
    vectors = embedder.encode([texts[5]] * 40)
    assert {row.tobytes() for row in vectors} == {alone[5].tobytes()}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_change_no_bit(
    setup: Setup, real_model: Callable[[str], Path], texts: list[str], alone: NDArray[np.float32], threads: int
) -> None:
    with load(real_model(setup.name), threads=threads) as other:
        assert other.encode(texts).tobytes() == alone.tobytes()
        assert other.encode(texts[3]).tobytes() == alone[3].tobytes()


def test_instruction_sets_change_no_bit(
    setup: Setup,
    real_model: Callable[[str], Path],
    texts: list[str],
    alone: NDArray[np.float32],
    isa: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Scalar code calls the C library's fma on x86, at some 100 MFLOP/s: it gets a few short texts.
    chosen = [i for i, text in enumerate(texts) if isa != "scalar" or len(text) < 6]
    assert len(chosen) >= 4
    monkeypatch.setenv("EMBED_ISA", isa)
    with load(real_model(setup.name)) as other:
        assert other.device == f"cpu {isa}"
        assert other.encode([texts[i] for i in chosen]).tobytes() == alone[chosen].tobytes()


# --- sentence-transformers itself -------------------------------------------------------------------------------------


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
