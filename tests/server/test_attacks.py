"""Hostile clients, many at once; meanwhile `/health` is asked 200 times, each time on a new connection.

What is asserted of its times is loose enough for a busy machine of two cores. Unprotected, it would not be answered.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile_clients import answered, asking_again, clients, health_seconds, until_the_end
from live_worker import LiveWorker, running_worker
from raw_http import chunked, get, post


@pytest.fixture(scope="module")
def worker() -> Iterator[LiveWorker]:
    with running_worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def fresh(worker: LiveWorker) -> dict[str, Any]:
    """Return what a worker holds that has done nothing yet."""
    return worker.state()


@contextlib.contextmanager
def dripping(worker: LiveWorker, first: bytes) -> Iterator[None]:
    def drip() -> None:
        for client in all_:
            client.send(b"x")
        time.sleep(0.01)

    with clients(worker.port, 20, first) as all_, until_the_end(drip):
        yield


def sending(worker: LiveWorker, request: bytes, status: int, count: int = 4) -> contextlib.AbstractContextManager[None]:
    """Send a request from so many clients, again and again."""
    return until_the_end(*[answered(worker.port, request, status)] * count)


@contextlib.contextmanager
def hoarding_descriptors(worker: LiveWorker) -> Iterator[None]:
    with clients(worker.port, 30, b""), worker.client() as hoarder:
        assert hoarder.ask(get("/hoard?leave=0")).status == 200
        yield
        assert worker.ask(get("/hoard?leave=-1")).status == 200


ATTACKS: dict[str, Callable[[LiveWorker], contextlib.AbstractContextManager[object]]] = {
    "dripping heads": lambda worker: dripping(worker, b"GET /health HTTP/1.1\r\nX: "),
    "dripping bodies": lambda worker: dripping(worker, get("/echo", "Content-Length: 100000", method="POST")),
    "500 idle connections": lambda worker: clients(worker.port, 500, b""),
    "answers that nobody reads": lambda worker: clients(
        worker.port, 20, get("/large?size=3000000"), receive_bytes=4096
    ),
    "answers in pieces that nobody reads": lambda worker: clients(
        worker.port, 20, get("/large?size=60000&pieces=50"), receive_bytes=4096
    ),
    "connections that stay": lambda worker: clients(worker.port, 40, get("/health")),
    "connections that ask again": lambda worker: asking_again(worker.port),
    "one-byte chunks": lambda worker: sending(worker, chunked("/length", b"1\r\nx\r\n" * 2_500_000), 400),
    "large bodies": lambda worker: sending(worker, post("/length", bytes(12 << 20)), 200, 12),
    "large bodies that are refused": lambda worker: sending(worker, post("/length", bytes(20 << 20)), 413),
    "large bodies that nobody reads": lambda worker: sending(worker, post("/nowhere", bytes(12 << 20)), 404),
    "requests that wait": lambda worker: clients(worker.port, 20, get("/wait")),
    "nonsense": lambda worker: sending(worker, b"\x16\x03\x01" * 30_000, 400),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_health_is_answered_and_nothing_is_left(attack, worker, fresh):
    with attack(worker):
        taken = health_seconds(worker.port)
    worker.ask(get("/release"))
    after = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
    assert statistics.median(taken) < 0.1
    assert max(taken) < 2
    assert {thing: after[thing] for thing in ("descriptors", "greenlets", "buffered", "pid")} == {
        thing: fresh[thing] for thing in ("descriptors", "greenlets", "buffered", "pid")
    }
    worker.wait_for(lambda state: state["resident_mb"] < fresh["resident_mb"] + 20, "memory to be given back")


def test_health_is_answered_where_descriptors_run_out():
    with running_worker(descriptors=160) as worker:
        before = worker.state()
        with hoarding_descriptors(worker):
            taken = health_seconds(worker.port)
        after = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
        assert statistics.median(taken) < 0.1
        assert after["descriptors"] == before["descriptors"]
