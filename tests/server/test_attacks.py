"""Hostile clients, many at once; meanwhile `/health` is asked 200 times, each time on a new connection.

What is asserted of its times is loose enough for a busy machine of two cores. Unprotected, it would not be answered.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_worker import LiveWorker, running_worker
from raw_http import Client, Ended, chunked, get, post

SAMPLES = 200


@pytest.fixture(scope="module")
def worker() -> Iterator[LiveWorker]:
    with running_worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def fresh(worker: LiveWorker) -> dict[str, Any]:
    """Return what a worker holds that has done nothing yet."""
    return worker.state()


def health(worker: LiveWorker) -> list[float]:
    """Return how long each of the answers took, in seconds."""
    taken = []
    for _ in range(SAMPLES):
        began = time.monotonic()
        assert worker.ask(get("/health")).body == b"ok"
        taken.append(time.monotonic() - began)
    return taken


@contextlib.contextmanager
def clients(worker: LiveWorker, count: int, first: bytes, **options: int) -> Iterator[list[Client]]:
    with contextlib.ExitStack() as stack:
        all_ = [stack.enter_context(worker.client(**options)) for _ in range(count)]
        for client in all_:
            client.send(first)
        yield all_


@contextlib.contextmanager
def until_the_end(*actions: Callable[[], object]) -> Iterator[None]:
    """Repeat each action on a thread of its own."""
    done = threading.Event()

    def repeat(action: Callable[[], object]) -> None:
        while not done.is_set():
            action()

    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def dripping(worker: LiveWorker, first: bytes) -> Iterator[None]:
    def drip() -> None:
        for client in all_:
            client.send(b"x")
        time.sleep(0.01)

    with clients(worker, 20, first) as all_, until_the_end(drip):
        yield


@contextlib.contextmanager
def asking_again(worker: LiveWorker) -> Iterator[None]:
    """Ask on forty connections, each again as soon as it's answered."""

    def ask() -> None:
        for client in all_:
            client.send(get("/health"))
        for client in all_:
            assert client.answer().status == 200

    with clients(worker, 40, b"") as all_, until_the_end(ask):
        yield


def sending(worker: LiveWorker, request: bytes, status: int, count: int = 4) -> contextlib.AbstractContextManager[None]:
    """Send a request from so many clients, again and again."""

    def send() -> None:
        with worker.client() as client:
            client.try_to_send(request)
            with contextlib.suppress(Ended):  # a reset, since more was sent than the server wanted
                assert client.answer().status == status

    return until_the_end(*[send] * count)


@contextlib.contextmanager
def hoarding_descriptors(worker: LiveWorker) -> Iterator[None]:
    with clients(worker, 30, b""), worker.client() as hoarder:
        assert hoarder.ask(get("/hoard?leave=0")).status == 200
        yield
        assert worker.ask(get("/hoard?leave=-1")).status == 200


ATTACKS: dict[str, Callable[[LiveWorker], contextlib.AbstractContextManager[object]]] = {
    "dripping heads": lambda worker: dripping(worker, b"GET /health HTTP/1.1\r\nX: "),
    "dripping bodies": lambda worker: dripping(worker, get("/echo", "Content-Length: 100000", method="POST")),
    "500 idle connections": lambda worker: clients(worker, 500, b""),
    "answers that nobody reads": lambda worker: clients(worker, 20, get("/large?size=3000000"), receive_bytes=4096),
    "answers in pieces that nobody reads": lambda worker: clients(
        worker, 20, get("/large?size=60000&pieces=50"), receive_bytes=4096
    ),
    "connections that stay": lambda worker: clients(worker, 40, get("/health")),
    "connections that ask again": asking_again,
    "one-byte chunks": lambda worker: sending(worker, chunked("/length", b"1\r\nx\r\n" * 2_500_000), 400),
    "large bodies": lambda worker: sending(worker, post("/length", bytes(12 << 20)), 200, 12),
    "large bodies that are refused": lambda worker: sending(worker, post("/length", bytes(20 << 20)), 413),
    "large bodies that nobody reads": lambda worker: sending(worker, post("/nowhere", bytes(12 << 20)), 404),
    "requests that wait": lambda worker: clients(worker, 20, get("/wait")),
    "nonsense": lambda worker: sending(worker, b"\x16\x03\x01" * 30_000, 400),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_health_is_answered_and_nothing_is_left(attack, worker, fresh):
    with attack(worker):
        taken = health(worker)
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
            taken = health(worker)
        after = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
        assert statistics.median(taken) < 0.1
        assert after["descriptors"] == before["descriptors"]
