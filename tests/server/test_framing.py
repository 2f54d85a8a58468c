"""Where a request ends and the next begins. What is refused, or left unread, is never taken for another request."""

from __future__ import annotations

import json

import pytest
from live_worker import running_worker
from raw_http import chunked, get, post

SECOND = get("/counted")  # what an attacker hides behind another request


@pytest.fixture(scope="module")
def worker():
    with running_worker(EMBED_LIMIT_BODY_BYTES="100000", EMBED_LIMIT_LINGER_S="0.5") as worker:
        yield worker


# --- one connection, several requests


def test_a_connection_is_kept(worker):
    with worker.client() as client:
        for number in range(50):
            body = b"x" * number
            assert client.ask(post("/echo", body)).body == body
            assert client.ask(chunked("/echo", b"3\r\nabc\r\n0\r\n\r\n")).body == b"abc"
            assert client.ask(get("/health")).status == 200


def test_pipelined_requests_are_answered_in_turn(worker):
    requests = [post("/echo", b"%d" % number) for number in range(100)]
    requests[10::20] = [chunked("/echo", b"2\r\n%d\r\n0\r\nX: y\r\n\r\n" % number) for number in range(10, 100, 20)]
    with worker.client() as client:
        client.send(b"".join(requests))
        assert [int(client.answer().body) for _ in requests] == list(range(100))
        assert client.is_open()


def test_nothing_follows_a_request_that_closes(worker):
    before = worker.calls("counted")
    for last in (get("/health", "Connection: close"), get("/health", version="1.0"), get("/x", method="CONNECT")):
        with worker.client() as client:
            client.send(last + SECOND)
            assert client.answer().closes
            assert client.has_ended()
    assert worker.calls("counted") == before


def test_http_1_0(worker):
    with worker.client() as client:
        reply = client.ask(get("/health", "Connection: keep-alive", version="1.0"))
        assert (reply.body, reply.headers["connection"]) == (b"ok", "keep-alive")
        reply = client.ask(get("/chunks?pieces=3", "Connection: keep-alive", version="1.0"))
        assert (reply.body, reply.closes) == (b"0,1,2,", True)  # no chunks, so the end is the connection's
        assert client.has_ended()


def test_head_has_the_header_of_get_and_no_body(worker):
    with worker.client() as client:
        client.send(get("/health", method="HEAD") + get("/chunks?pieces=2", method="HEAD"))
        assert client.answer(to_head=True).headers["content-length"] == "2"
        client.answer(to_head=True)
        assert client.is_open()


def test_answers_without_a_length_come_in_chunks(worker):
    with worker.client() as client:
        assert client.ask(get("/chunks?pieces=3")).body == b"0,1,2,"
        assert client.ask(get("/chunks?pieces=0")).body == b""
        assert client.is_open()


def test_an_answer_says_when_and_not_by_what(worker):
    headers = worker.ask(get("/health")).headers
    assert headers["date"].endswith(" GMT")
    assert "server" not in headers


def test_a_half_closed_client_gets_its_answers(worker):
    with worker.client() as client:
        client.send(post("/echo", b"one") + post("/echo", b"two"))
        client.end_sending()
        assert [client.answer().body, client.answer().body] == [b"one", b"two"]
        assert client.has_ended()


def test_one_empty_line_before_a_request_is_overlooked(worker):
    with worker.client() as client:
        for _ in range(3):
            assert client.ask(b"\r\n" + get("/health")).body == b"ok"


# --- refused: a JSON error, the connection ends, and what follows is not executed

REFUSED = {
    "length and chunks": (chunked("/echo", b"0\r\n\r\n", "Content-Length: 5"), 400),
    "two lengths": (post("/echo", b"hello", "Content-Length: 0"), 400),
    "a bad length": (get("/echo", "Content-Length: 1e3"), 400),
    "a length in another alphabet": (get("/echo", "Content-Length: \xb2"), 400),
    "gzip and chunked": (get("/echo", "Transfer-Encoding: gzip, chunked"), 501),
    "chunked after a vertical tab": (get("/echo", "Transfer-Encoding: \x0bchunked"), 400),
    "chunks in 1.0": (get("/echo", "Transfer-Encoding: chunked", version="1.0"), 400),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "a bare line feed in a field": (get("/health", "X: a\nContent-Length: 44"), 400),
    "bare line feeds alone": (b"GET /health HTTP/1.1\nHost: test\n\n", 400),
    "a bare line feed at the end": (b"GET /health HTTP/1.1\r\nHost: test\r\n\n", 400),
    "a folded field": (get("/health", "X: a", " Content-Length: 44"), 400),
    "a space before the colon": (get("/health", "Content-Length : 44"), 400),
    "NUL": (get("/health", "X: a\0b"), 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/3.0": (get("/health", version="3.0"), 505),
    "an unknown expectation": (get("/health", "Expect: coffee"), 417),
    "too many fields": (get("/health", *["X: y"] * 200), 431),
    "a head over 64 KiB": (get("/health", *[f"X: {'y' * 6000}"] * 12), 431),
    "a head over 64 KiB without an end": (b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000, 431),
    "a target over 64 KiB": (get(f"/health?{'y' * 66_000}"), 431),
    "a body too long": (post("/echo", b"x" * 100_001), 413),
    "a body announced too long": (get("/echo", "Content-Length: 100001", method="POST"), 413),
    "a body announced far too long": (get("/echo", f"Content-Length: {10**30}", method="POST"), 413),
    "chunks too long together": (
        chunked("/echo", b"ff\r\n" + b"x" * 255 + b"\r\n" + b"1869f\r\n" + b"x" * 99_999),
        413,
    ),
    "a bad chunk size": (chunked("/echo", b"xyz\r\n"), 400),
    "no chunk size": (chunked("/echo", b"\r\n"), 400),
    "a negative chunk size": (chunked("/echo", b"-1\r\n"), 400),
    "a prefixed chunk size": (chunked("/echo", b"0x3\r\nabc\r\n0\r\n\r\n"), 400),
    "a space after a chunk size": (chunked("/echo", b"3 \r\nabc\r\n0\r\n\r\n"), 400),
    "a chunk longer than it says": (chunked("/echo", b"3\r\nabcd\r\n0\r\n\r\n"), 400),
    "a chunk that ends in a bare line feed": (chunked("/echo", b"3\r\nabc\n0\r\n\r\n"), 400),
    "a chunk size that ends in a bare line feed": (chunked("/echo", b"3\nabc\r\n0\r\n\r\n"), 400),
    "a bad chunk extension": (chunked("/echo", b"3;a=\x00\r\nabc\r\n0\r\n\r\n"), 400),
    "a bare carriage return in an extension": (chunked("/echo", b"3;a\rb\r\nabc\r\n0\r\n\r\n"), 400),
    "a bare line feed in an extension": (chunked("/echo", b"3;a\nb\r\nabc\r\n0\r\n\r\n"), 400),
    "a bad trailer": (chunked("/echo", b"0\r\nX y\r\n\r\n"), 400),
    "a length for a trailer": (chunked("/echo", b"0\r\nContent-Length: 5\r\n\r\n"), 400),
    "a trailer that ends in a bare line feed": (chunked("/echo", b"0\r\nX: y\n\r\n\r\n"), 400),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_after_a_refusal_the_connection_ends(data, status, worker):
    before = worker.calls("counted")
    with worker.client() as client:
        client.try_to_send(data + SECOND)
        reply = client.answer()
        assert (reply.status, reply.closes, reply.headers["content-type"]) == (status, True, "application/json")
        assert list(json.loads(reply.body)) == ["error"]
        assert client.has_ended()
    state = worker.state()
    assert state["calls"].get("counted", 0) == before
    assert state["buffered"] == 0


def test_refusals_are_told_to_the_application(worker):
    before = worker.state()["refusals"]
    for data, _ in REFUSED.values():
        with worker.client() as client:
            client.try_to_send(data)
            client.answer()
    after = worker.state()["refusals"]
    told = sum(after.values()) - sum(before.values())
    assert told == len(REFUSED)


def test_a_refusal_of_head_has_no_body(worker):
    with worker.client() as client:
        client.send(get("/echo", "Content-Length: 100001", method="HEAD"))
        assert client.answer(to_head=True).status == 413
        assert client.has_ended()


# --- answered before the body was read: what is left of it is no request

UNREAD = {
    "all of it here": post("/nowhere", SECOND),
    "part of it here": post("/nowhere", SECOND + b"x" * 100)[:-50],
    "none of it here": get("/nowhere", "Content-Length: 50", method="POST"),
    "chunks": chunked("/nowhere", b"2c\r\n" + SECOND + b"\r\n0\r\n\r\n"),
    "with an expectation": get("/nowhere", "Content-Length: 44", "Expect: 100-continue", method="POST") + SECOND,
}


@pytest.mark.parametrize("data", UNREAD.values(), ids=UNREAD)
def test_a_body_that_the_application_did_not_read_ends_the_connection(data, worker):
    before = worker.calls("counted")
    with worker.client() as client:
        client.send(data + SECOND)
        reply = client.answer()
        assert (reply.status, reply.closes) == (404, True)
        assert client.has_ended()
    assert worker.calls("counted") == before


@pytest.mark.parametrize("route", ["short", "broken"])
def test_an_answer_that_stops_short_ends_the_connection(route, worker):
    with worker.client() as client:
        client.send(get(f"/{route}") + SECOND)
        assert client.head()[0] == 200
        assert client.rest() == b"half"


def test_a_body_can_be_read_when_the_answer_has_begun(worker):
    with worker.client() as client:
        reply = client.ask(post("/late", b"body"))
        assert (reply.body, reply.closes) == (b"begun body", True)
        assert client.has_ended()


@pytest.mark.parametrize("route", ["error", "oserror"])
def test_an_error_of_the_application_is_a_500_without_its_words(route, worker):
    with worker.client() as client:
        reply = client.ask(get(f"/{route}"))
        assert (reply.status, reply.closes) == (500, True)
        assert "secret" not in reply.json["error"]
        assert client.has_ended()


# --- Expect


def expecting(path: str, length: int, *headers: str) -> bytes:
    return get(path, f"Content-Length: {length}", "Expect: 100-Continue", *headers, method="POST")


def test_continue_is_sent_when_the_body_is_wanted(worker):
    with worker.client() as client:
        for _ in range(3):
            client.send(expecting("/echo", 5))
            assert client.head() == (100, {})
            assert client.ask(b"hello").body == b"hello"


def test_continue_is_not_sent_for_a_body_that_is_refused_or_not_read(worker):
    for request, status in ((expecting("/echo", 100_001), 413), (expecting("/nowhere", 5), 404)):
        with worker.client() as client:
            assert client.ask(request).status == status  # a 100 would have been read first
            assert client.has_ended()


def test_continue_is_not_sent_to_http_1_0_or_where_no_body_follows(worker):
    request = get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST", version="1.0")
    assert worker.ask(request + b"hello").body == b"hello"
    assert worker.ask(expecting("/echo", 0)).body == b""


def test_continue_is_not_sent_when_the_body_is_there_already(worker):
    assert worker.ask(expecting("/echo", 5) + b"hello").body == b"hello"
