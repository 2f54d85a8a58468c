"""Hundreds of requests of every shape, pipelined and cut anywhere: each gets the answer it would get alone."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest
from live_worker import running_worker
from raw_http import Client, chunked, get, post

CONNECTIONS = 24
REQUESTS = 16  # on each
SEEDS = (1, 2, 3)


@dataclass
class Sent:
    """A request, and what must come back."""

    data: bytes
    status: int
    body: bytes | None  # None if it doesn't matter
    is_head: bool = False
    is_last: bool = False


def some_bytes(rng: random.Random, most: int) -> bytes:
    """Return a body; it likes to look like HTTP."""
    pieces = [
        b"\r\n",
        b"\n",
        b"0\r\n\r\n",
        b"GET /counted HTTP/1.1\r\nHost: x\r\n\r\n",
        b"{}",
        b"\0",
        b"\xff" * 40,
        b"a" * 300,
    ]
    body = b""
    while len(body) < most * rng.random():
        body += rng.choice(pieces)
    return body


def in_chunks(rng: random.Random, body: bytes) -> bytes:
    framed = []
    while body:
        size = rng.choice([1, 2, 7, 64, 1000, len(body)])
        piece, body = body[:size], body[size:]
        number = f"{len(piece):{rng.choice(['x', 'X', '04x'])}}".encode()
        extension = rng.choice([b"", b"", b";a", b";a=b", b' ; a = "b;\\"\\\\c" ;d'])
        framed.append(number + extension + b"\r\n" + piece + b"\r\n")
    end = rng.choice([b"0", b"000", b"0;end"])
    trailers = rng.choice([b"", b"", b"X: y\r\n", b"X: y\r\nZ: \r\n"])
    return b"".join([*framed, end, b"\r\n", trailers, b"\r\n"])


def fields(rng: random.Random) -> list[str]:
    some = ["Accept: */*", "X:", "X-Long: " + "y" * rng.randrange(3000), "Connection: keep-alive", "x-Y:\t z \t"]
    return rng.sample(some, rng.randrange(len(some)))


def good(rng: random.Random) -> Sent:
    body = some_bytes(rng, rng.choice([0, 50, 5000]))
    kind = rng.randrange(7)
    if kind == 0:
        return Sent(get("/health", *fields(rng)), 200, b"ok")
    if kind == 1:
        return Sent(get("/health", *fields(rng), method="HEAD"), 200, b"", is_head=True)
    if kind == 2:
        return Sent(get("/nowhere", *fields(rng)), 404, None)
    if kind == 3:
        return Sent(b"\r\n" + post("/echo", body, *fields(rng)), 200, body)
    if kind == 4:
        return Sent(get("http://test/health?a=b", *fields(rng)), 200, b"ok")
    if kind == 5:
        return Sent(post("/echo", body, "Expect: 100-continue", *fields(rng)), 200, body)
    return Sent(chunked("/echo", in_chunks(rng, body), *fields(rng)), 200, body)


def last(rng: random.Random) -> Sent:
    """Return one after which the connection ends, with more behind it that must not be executed."""
    bad: list[tuple[bytes, int]] = [
        (get("/health", "Connection: close"), 200),
        (get("/health", version="1.0"), 200),
        (post("/nowhere", some_bytes(rng, 500) + b"x"), 404),
        (get("/health", version="4.2"), 505),
        (get("/health", "Bad Name: x"), 400),
        (chunked("/echo", in_chunks(rng, some_bytes(rng, 500)), "Content-Length: 5"), 400),
        (chunked("/echo", b"5\r\nhello\r\nx\r\n"), 400),
        (get("/health", "X: y\nZ: z"), 400),
    ]
    data, status = rng.choice(bad)
    return Sent(data + get("/counted"), status, None, is_last=True)


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut anywhere; one byte at a time for a while, now and then."""
    pieces = []
    while data:
        size = rng.choice([1, 1, 1, 2, 3, 10, 100, 1500, 20_000])
        for _ in range(rng.choice([1, 1, 30])):
            pieces.append(data[:size])
            data = data[size:]
    return [piece for piece in pieces if piece]


def answers(client: Client, sent: Sent) -> None:
    status, headers = client.head()
    while status == 100:
        status, headers = client.head()
    assert (status, headers.get("connection") == "close") == (sent.status, sent.is_last)
    if not sent.is_head:
        body = client.read(int(headers["content-length"]))
        assert sent.body is None or body == sent.body
    if sent.is_last:
        assert client.has_ended()


@pytest.fixture(scope="module")
def worker():
    with running_worker() as worker:
        yield worker


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_cut_anywhere_are_answered_as_if_whole(seed, worker):
    rng = random.Random(seed)
    batches = [
        [*(good(rng) for _ in range(REQUESTS)), *([last(rng)] if rng.random() < 0.5 else [])]
        for _ in range(CONNECTIONS)
    ]
    clients = [worker.client() for _ in batches]
    fragments = [cut(rng, b"".join(sent.data for sent in batch)) for batch in batches]
    while open_ := [number for number, pieces in enumerate(fragments) if pieces]:
        number = rng.choice(open_)
        for piece in fragments[number][:20]:
            clients[number].try_to_send(piece)
        del fragments[number][:20]
        if rng.random() < 0.1:
            time.sleep(0.001)
    for client, batch in zip(clients, batches, strict=True):
        for sent in batch:
            answers(client, sent)
        if not batch[-1].is_last:
            assert client.is_open()
        client.sock.close()
    state = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
    assert "counted" not in state["calls"]
    assert (state["buffered"], state["greenlets"]) == (0, 1)
