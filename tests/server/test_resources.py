"""The digits that leave: those of `Embedder.encode`, whole or in pieces; and the tiny model over HTTP."""

import json

import numpy as np
import orjson
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from stub_embedder import StubEmbedder
from stub_service import serving

import embed
from embed.errors import TruncationWarning
from embed.server import resources
from embed.server.resources import PIECE_NUMBERS, json_pieces

F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def f32_of(answer):
    """Return an answer's vectors as f32, each number rounded once, from its digits."""
    return np.array([[np.float32(number) for number in row] for row in answer["embeddings"]], np.float32)


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=F32))
def test_every_number_reads_back_to_its_very_bits(vectors):
    answer = json.loads(b"".join(json_pieces(vectors, "m")))
    assert f32_of(answer).tobytes() == vectors.tobytes()


@pytest.mark.parametrize("bits", [0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x80000000, 0x33D6BF95, 0x3DCCCCCD])
def test_the_corners_of_f32_read_back(bits):
    """The least and the largest subnormal, the least normal, the largest, minus zero, 1e-7, 0.1."""
    vectors = np.array([[bits]], np.uint32).view(np.float32)
    text = b"".join(json_pieces(vectors, "m"))
    assert f32_of(json.loads(text)).tobytes() == vectors.tobytes()
    assert len(text) < 80, "short digits"


@pytest.mark.parametrize("texts", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("dimension", [1, 3, 384, 1024, PIECE_NUMBERS - 1, PIECE_NUMBERS, PIECE_NUMBERS + 1])
def test_pieces_are_the_answer_built_whole(texts, dimension):
    vectors = np.random.default_rng(0).standard_normal((texts, dimension), np.float32)
    pieces = list(json_pieces(vectors, 'a "name" ä'))
    whole = {"embeddings": vectors, "model": 'a "name" ä', "dimension": dimension}
    assert b"".join(pieces) == orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    rows = max(1, PIECE_NUMBERS // dimension)
    assert len(pieces) == -(-texts // rows) + 1
    assert max(map(len, pieces)) < 16 * max(PIECE_NUMBERS, dimension) + 100


@pytest.mark.parametrize("piece_numbers", [1, 8, 1_000_000])
def test_a_large_answer_comes_in_pieces_and_is_the_same(piece_numbers, monkeypatch):
    texts = [f"{i}" * (1 + i % 5) for i in range(50)]
    with serving() as service:
        whole = service.embed({"text": texts})
        monkeypatch.setattr(resources, "PIECE_NUMBERS", piece_numbers)
        again = service.embed({"text": texts})
    assert again.content == whole.content
    assert ("Content-Length" in again.headers) == (piece_numbers > 200), "else it is in chunks"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("models") / "tiny-xlmr")


@pytest.fixture(scope="module")
def embedder(model):
    with embed.load(model) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def service(model):
    with serving(load=lambda: embed.load(model), model=str(model)) as service:
        service.wait_for_load()
        yield service


TEXTS = ["hello world", "", " ", "the quick fox", "äöü é", "東京日本語", "hello", "<s> </s>", "\0", "x" * 200]


@pytest.mark.filterwarnings("ignore::embed.errors.TruncationWarning")
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_the_embedder_to_the_bit(service, embedder, normalize):
    expected = embedder.encode(TEXTS, normalize=normalize)
    answer = service.embed({"text": TEXTS, "normalize": normalize})
    assert f32_of(answer.json).tobytes() == expected.tobytes()
    for text, row in zip(TEXTS, expected, strict=True):
        alone = service.embed({"text": text, "normalize": normalize})
        assert f32_of(alone.json).tobytes() == row.tobytes()


def test_a_vector_s_digits_are_orjson_s_of_the_embedder_s_row(service, embedder):
    row = embedder.encode("hello world")
    digits = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    name = b"tiny-xlmr"
    expected = b'{"embeddings":[%b],"model":"%b","dimension":%d}' % (digits, name, tiny.WIDTH)
    assert service.embed({"text": "hello world"}).content == expected
    assert service.get("/create_embedding", "text=hello+world").content == expected


def test_as_many_texts_are_said_to_be_cut_as_the_embedder_cuts(service, embedder):
    texts = ["hello", "hello " * 100, "world " * 200]
    with pytest.warns(TruncationWarning, match="2 of 3 texts"):
        embedder.encode(texts)
    assert service.embed({"text": texts}).headers["Embed-Truncated-Texts"] == "2"


def test_health_tells_what_the_model_is(service, embedder):
    health = service.get("/health").json
    assert health["model"] == "tiny-xlmr"
    assert health["device"] == "cpu"
    assert health["device_name"] == embedder.device
    assert (health["dimension"], health["max_seq"]) == (tiny.WIDTH, tiny.USABLE_POSITIONS)


def test_no_nan_leaves_even_if_each_text_has_one():
    class Broken(StubEmbedder):
        def encode_chunk(self, tokenized, *, normalize):
            return np.full((len(tokenized), 4), [1, np.inf, -np.inf, np.nan], np.float32)

    with serving(Broken()) as service:
        answer = service.embed({"text": ["a", "b"]})
    assert answer.status_code == 500
    assert answer.json["error"].startswith("text ")
