"""Clients that leave: whoever waits is told, and nothing is left behind."""

from __future__ import annotations

import contextlib

import pytest
from live_worker import running_worker
from raw_http import chunked, get, post


@pytest.fixture(scope="module")
def worker():
    with running_worker(EMBED_LIMIT_LINGER_S="0.2") as worker:
        yield worker


@pytest.fixture(autouse=True)
def nothing_left(worker):
    before = worker.wait_for(lambda state: state["connections"] == 1, "an earlier test's connections")
    yield
    worker.ask(get("/release"))
    after = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
    for thing in ("descriptors", "greenlets", "buffered"):
        assert after[thing] == before[thing]


def watched(worker):
    """Return a client whose request waits and is watched."""
    before = worker.calls("watch")
    client = worker.client()
    client.send(get("/watch"))
    worker.wait_for(lambda state: state["calls"].get("watch", 0) > before, "the request to run")
    return client


def told(worker, what, before):
    worker.wait_for(lambda state: state["calls"].get(what, 0) == before + 1, f"{what} to be told")


def test_a_half_closed_client_is_told_of_once_and_answered(worker):
    before = worker.calls("eof")
    with watched(worker) as client:
        client.end_sending()
        told(worker, "eof", before)
        worker.ask(get("/release"))
        assert client.answer().json == ["eof"]
        assert client.has_ended()


def test_a_client_that_closes_looks_half_closed(worker):
    before = worker.calls("eof")
    watched(worker).sock.close()
    told(worker, "eof", before)


def test_a_client_that_resets_is_told_of_at_once(worker):
    before = worker.calls("reset")
    watched(worker).reset()
    told(worker, "reset", before)


def test_a_reset_is_told_after_the_end_too(worker):
    ends, resets = worker.calls("eof"), worker.calls("reset")
    client = watched(worker)
    client.end_sending()
    told(worker, "eof", ends)
    client.reset()
    told(worker, "reset", resets)


def test_what_was_pipelined_hides_no_end(worker):
    """A peek would find the next request in the socket, and never what comes behind it."""
    ends, counted = worker.calls("eof"), worker.calls("counted")
    with watched(worker) as client:
        client.send(get("/counted"))
        assert worker.calls("eof") == ends
        client.end_sending()
        told(worker, "eof", ends)
        worker.ask(get("/release"))
        assert client.answer().json == ["eof"]
        assert client.answer().body == b"ok"
    assert worker.calls("counted") == counted + 1


def test_nothing_is_told_after_the_watch(worker):
    before = worker.state()["calls"]
    with watched(worker) as client:
        worker.ask(get("/release"))
        assert client.answer().json == []
        assert client.is_open()
        client.end_sending()
        assert client.has_ended()
    after = worker.state()["calls"]
    assert [after.get(what) for what in ("eof", "reset")] == [before.get(what) for what in ("eof", "reset")]


STAGES = {
    "before a request": b"",
    "in the head": get("/health")[:-1],
    "before the body": get("/echo", "Content-Length: 5", method="POST"),
    "before 100 Continue": get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST"),
    "in the body": post("/echo", b"x" * 100_000)[:-1],
    "in a chunk": chunked("/echo", b"5\r\nhel"),
    "while it's computed": get("/watch"),
    "while many are": get("/watch") * 50,
    "in the answer": get("/large?size=3000000"),
    "in the answer's chunks": get("/large?size=300000&pieces=100"),
    "between requests": get("/health"),
    "after a refusal": get("/health", version="3.0"),
    "after a refusal that leaves input unread": post("/nowhere", b"x" * 100_000),
}


@pytest.mark.parametrize("data", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_may_vanish_at_any_time(how, data, worker):
    for count in range(10):
        client = worker.client()
        with contextlib.suppress(ConnectionError):
            client.send(data)
            if count % 2 and b"large" in data:
                client.head()
        client.reset() if how == "resets" else client.sock.close()
    assert worker.ask(get("/health")).body == b"ok"
    assert not [line for line in worker.lines if "Traceback" in line or "[ERROR]" in line]
