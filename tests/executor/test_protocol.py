"""The messages: each comes back as it was, and what is none is refused by name."""

import base64
import json

import numpy as np
import pytest

from embed.executor import protocol
from embed.executor.protocol import BrokenMessage, Failure, Progress, ProtocolError, Ready, Request, Result

MESSAGES = [
    Ready("models/e5", 384, "cpu avx512", 812),
    Progress(7, 3, 24),
    Failure(7, "text", "text 2 is no good", 2),
    Failure(None, "model", "the file is empty"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_and_is_one_line(message):
    line = protocol.encode(message)
    assert protocol.decode(line) == message
    assert line.startswith(protocol.START)
    assert line.count(b"\n") == 1


def test_vectors_come_back_to_the_bit():
    vectors = np.array([[1.5, -0.0, 3e-45], [np.inf, np.nan, -3.4e38]], np.float32)
    result = protocol.decode(protocol.encode(Result(3, vectors)))
    assert result.vectors.tobytes() == vectors.tobytes()
    assert result.vectors.shape == (2, 3)


def test_tokens_are_little_endian_whatever_the_machine_s_order_is():
    for order in ("<i4", ">i4"):
        line = protocol.encode_request(Request(1, np.array([1, 258, 7], order), [2, 1], normalize=False))
        fields = json.loads(line)
        assert base64.b64decode(fields["tokens"]) == bytes([1, 0, 0, 0, 2, 1, 0, 0, 7, 0, 0, 0])
        assert fields == {
            "type": "embed",
            "id": 1,
            "tokens": fields["tokens"],
            "lengths": [2, 1],
            "normalize": False,
        }


def test_a_request_comes_back_as_it_was():
    request = protocol.decode_request(protocol.encode_request(Request(1, np.array([1, 2, 7], np.int32), [2, 1])))
    assert (request.id, request.ids.tolist(), request.lengths) == (1, [1, 2, 7], [2, 1])
    assert (request.texts, request.normalize) == (None, True)
    texts = ["", "é\u2028\n", "x" * 100_000]
    assert protocol.decode_request(protocol.encode_request(Request(2, texts=texts))).texts == texts


def document(**fields):
    return json.dumps({"type": "embed", "id": 1, "texts": ["a"], **fields}).encode()


def of_tokens(**fields):
    return json.dumps({"type": "embed", "id": 1, **fields}).encode()


IDS = base64.b64encode(bytes(8)).decode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\x00", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "type None is not"),
        (document(type="result"), "type 'result' is not"),
        (document(id=None), "id None is not a whole number"),
        (document(id=True), "id True is not"),
        (document(id=1.5), "id 1.5 is not"),
        (document(normalize="no"), "normalize 'no' is neither"),
        (document(texts="a"), "texts is not a list of strings"),
        (document(texts=["a", None]), "texts is not a list of strings"),
        (document(tokens=IDS, lengths=[2]), "give tokens with their lengths, or texts"),
        (b'{"type":"embed","id":1}', "give tokens with their lengths, or texts"),
        (json.dumps({"type": "embed", "id": 1, "tokens": IDS}).encode(), "lengths is not a list"),
        (json.dumps({"type": "embed", "id": 1, "tokens": IDS, "lengths": [0, 2]}).encode(), "lengths is not a list"),
        (
            json.dumps({"type": "embed", "id": 1, "tokens": IDS, "lengths": [3]}).encode(),
            "add up to 3, and tokens are 2",
        ),
        (json.dumps({"type": "embed", "id": 1, "tokens": "AAA=", "lengths": [1]}).encode(), "tokens is not base64"),
        (json.dumps({"type": "embed", "id": 1, "tokens": 5, "lengths": [1]}).encode(), "tokens is not base64"),
    ],
)
def test_what_is_no_request_is_refused(line, said):
    with pytest.raises(ProtocolError, match=said):
        protocol.decode_request(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ready","protocol":2,"model":"m","dimension":4,"device":"cpu","load_ms":1}',
        b'{"type":"ready","protocol":1}',
        b'{"type":"result","id":1,"vectors":"AAA","rows":1}',
        b'{"type":"result","id":1,"vectors":"AAAAAA==","rows":3}',
        b'{"type":"result","id":1}',
    ],
)
def test_a_message_that_matters_and_is_broken_is_told_from_a_stranger_s(line):
    with pytest.raises(BrokenMessage):
        protocol.decode(line)
    for stranger in (b'{"type":"banner"}', b'{"level":"info"}', b"Loading", b"null", b'{"type":["x"]}'):
        with pytest.raises(ProtocolError) as caught:
            protocol.decode(stranger)
        assert not isinstance(caught.value, BrokenMessage)
