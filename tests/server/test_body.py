"""What a body may cost: bytes, chunks, memory of all bodies together; and how the application reads it."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
from live_worker import running_worker
from raw_http import Ended, chunked, get, post

LIMIT = 1_000_000
BUFFERED = 3_000_000


@pytest.fixture(scope="module")
def worker():
    limits = {"EMBED_LIMIT_BODY_BYTES": str(LIMIT), "EMBED_LIMIT_BUFFERED_BYTES": str(BUFFERED)}
    with running_worker(EMBED_LIMIT_LINGER_S="0.5", **limits) as worker:
        yield worker
        state = worker.state()
        assert (state["buffered"], state["connections"]) == (0, 1)


def digest(body: bytes) -> bytes:
    return f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode()


def in_chunks(body: bytes, size: int, extension: bytes = b"") -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    framed = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join([*framed, b"0\r\n\r\n"])


# --- size


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_body_up_to_the_limit_arrives_whole(size, worker):
    body = random.Random(size).randbytes(size)
    with worker.client() as client:
        assert client.ask(post("/digest", body)).body == digest(body)
        assert client.ask(chunked("/digest", in_chunks(body, 10_000))).body == digest(body)
        assert client.ask(chunked("/digest", in_chunks(body, LIMIT))).body == digest(body)
        assert client.is_open()


@pytest.mark.parametrize("excess", [1, LIMIT, 3 * LIMIT])
def test_one_byte_more_is_a_413(excess, worker):
    body = bytes(LIMIT + excess)
    for request in (post("/digest", body), chunked("/digest", in_chunks(body, 50_000))):
        with worker.client() as client:
            client.try_to_send(request)
            try:
                reply = client.answer()
            except Ended:  # more was under way than lingering swallows
                assert excess > LIMIT
                continue
            assert (reply.status, reply.closes) == (413, True)
            assert reply.json["error"] == "the body is over 1,000,000 bytes"


def test_a_refused_upload_of_twice_the_limit_still_gets_its_answer(worker):
    """A client that first sends everything and then reads must not find a reset in place of the 413."""
    with worker.client() as client:
        client.send(post("/digest", bytes(LIMIT + LIMIT // 2)))
        assert client.answer().status == 413


# --- chunks


def test_chunks_may_have_extensions_and_trailers(worker):
    body = b'3;a;b=c; d="e;\\"f"\r\nabc\r\n004\r\ndefg\r\n0;last\r\nX-Sum: 1\r\nY: z\r\n\r\n'
    with worker.client() as client:
        assert client.ask(chunked("/echo", body)).body == b"abcdefg"
        assert client.is_open()


def test_ten_thousand_tiny_chunks_are_read(worker):
    body = b"x" * 10_000
    with worker.client() as client:
        assert client.ask(chunked("/digest", in_chunks(body, 1))).body == digest(body)
        assert client.is_open()


@pytest.mark.parametrize(
    "body",
    [
        in_chunks(b"x" * 30_000, 1),
        in_chunks(b"x" * 100_000, 50, b";" + b"e" * 60),
        b"1;" + b"e" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
        b"0" * 100_000 + b"1\r\nx\r\n0\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * 15_000 + b"\r\n",
        b"0\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"0\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["tiny", "extensions", "an extension", "zeros", "trailers", "101 trailers", "a trailer"],
)
def test_chunks_that_cost_more_than_they_carry_are_refused(body, worker):
    with worker.client() as client:
        client.try_to_send(chunked("/digest", body))
        assert client.answer().status == 400
        assert client.has_ended()


# --- an end too early


@pytest.mark.parametrize(
    "request_",
    [
        post("/echo", b"hello")[:-1],
        get("/echo", "Content-Length: 5", method="POST"),
        chunked("/echo", b"5\r\nhel"),
        chunked("/echo", b"5\r\nhello"),
        chunked("/echo", b"5\r\nhello\r\n"),
        chunked("/echo", b"5\r\nhello\r\n0"),
        chunked("/echo", b"5\r\nhello\r\n0\r\n"),
        chunked("/echo", b"5\r\nhello\r\n0\r\nX: y\r\n"),
        get("/echo")[:-1],
        get("/echo")[:10],
        b"G",
    ],
)
def test_a_request_that_ends_early_is_not_executed(request_, worker):
    before = worker.calls("echo")
    with worker.client() as client:
        client.send(request_)
        client.end_sending()
        assert client.answer().status == 400
        assert client.has_ended()
    assert worker.calls("echo") - before == (b"\r\n\r\n" in request_)  # it began, and was told when it read


# --- reading


def test_a_body_can_be_read_bit_by_bit_and_by_lines(worker):
    with worker.client() as client:
        assert client.ask(post("/sip?size=3", b"abcdefgh")).body == b"abcdefgh"
        assert client.ask(chunked("/sip?size=100", in_chunks(b"x" * 1000, 7))).body == b"x" * 1000
        lines = client.ask(chunked("/lines", in_chunks(b"a\nb\r\n\nc", 2))).body
        assert json.loads(lines) == ["a\n", "b\r\n", "\n", "c"]
        assert client.is_open()


def test_the_application_sees_an_ordinary_request(worker):
    seen = worker.ask(chunked("/environ?a=b", in_chunks(b"abc", 1), "Content-Type: a/b", "X-Y: z")).json
    assert {name: seen[name] for name in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE")} == {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/environ",
        "QUERY_STRING": "a=b",
        "CONTENT_TYPE": "a/b",
    }
    assert (seen["HTTP_X_Y"], seen["HTTP_HOST"], seen["REMOTE_ADDR"]) == ("z", "test", "127.0.0.1")
    assert (seen["SERVER_NAME"], seen["SERVER_PORT"]) == ("127.0.0.1", str(worker.port))
    assert not {"HTTP_TRANSFER_ENCODING", "CONTENT_LENGTH", "HTTP_CONTENT_TYPE"} & set(seen)


# --- the memory of all bodies


def test_bodies_that_no_route_reads_cost_nothing(worker):
    with worker.client() as client:
        client.send(get("/nowhere", f"Content-Length: {LIMIT}", method="POST") + bytes(1000))
        assert client.answer().status == 404
    assert worker.state()["buffered"] == 0


def test_where_bodies_hold_too_much_the_one_longest_under_way_is_refused(worker):
    """So clients that announce and never send can't keep others from being served."""
    part = bytes(LIMIT - 1)
    holders = [worker.client() for _ in range(3)]
    for number, holder in enumerate(holders, 1):
        holder.send(post("/digest", part + b"x")[:-1])
        worker.wait_for(lambda state, number=number: state["buffered"] == number * (LIMIT - 1), "bodies to arrive")
    assert worker.ask(post("/digest", part)).body == digest(part)
    assert holders[0].answer().status == 503
    for holder in holders[1:]:
        assert holder.ask(b"x").body == digest(part + b"x")
    for holder in holders:
        holder.sock.close()
    worker.wait_for(lambda state: state["buffered"] == 0 and state["connections"] == 1, "everything to be given back")


def test_complete_bodies_are_kept_and_the_next_one_is_refused(worker):
    waiting = [worker.client() for _ in range(3)]
    for client in waiting:
        client.send(post("/keep", bytes(LIMIT)))
    worker.wait_for(lambda state: state["buffered"] == 3 * LIMIT, "bodies to arrive")
    reply = worker.ask(post("/digest", b"x"))
    assert (reply.status, reply.closes) == (503, True)
    assert worker.ask(get("/health")).status == 200
    worker.ask(get("/release"))
    assert [client.answer().status for client in waiting] == [200] * 3
    for client in waiting:
        assert client.is_open()
        client.sock.close()
