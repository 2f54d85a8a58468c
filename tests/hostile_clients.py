"""Hostile clients, many at once, and what `/health` does meanwhile.

with until_the_end(*[refused(port, request, 413)] * 4):
    taken = health_seconds(port)
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from raw_http import Client, Ended, get

SAMPLES = 200


def health_seconds(port: int, samples: int = SAMPLES) -> list[float]:
    """Ask `/health` so often, each time on a new connection; return how long each of the answers took."""
    taken = []
    for _ in range(samples):
        began = time.monotonic()
        with Client(port) as client:
            assert client.ask(get("/health")).status == 200
        taken.append(time.monotonic() - began)
    return taken


@contextlib.contextmanager
def clients(port: int, count: int, first: bytes, *, receive_bytes: int | None = None) -> Iterator[list[Client]]:
    """Have so many connections open, each with `first` sent."""
    with contextlib.ExitStack() as stack:
        all_ = [stack.enter_context(Client(port, receive_bytes=receive_bytes)) for _ in range(count)]
        for client in all_:
            client.send(first)
        yield all_


@contextlib.contextmanager
def waiting(port: int, count: int, request: bytes) -> Iterator[None]:
    """Have so many clients wait for an answer that takes long; in the end they break off, and it isn't computed."""
    with clients(port, count, request) as all_:
        yield
        for client in all_:
            client.reset()


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
def asking_again(port: int, count: int = 40) -> Iterator[None]:
    """Ask on so many connections, each again as soon as all are answered."""

    def ask() -> None:
        for client in all_:
            client.send(get("/health"))
        for client in all_:
            assert client.answer().status == 200

    with clients(port, count, b"") as all_, until_the_end(ask):
        yield


def answered(port: int, request: bytes, status: int) -> Callable[[], None]:
    """Return an action: send a request as far as the server takes it, and see the status."""

    def send() -> None:
        with Client(port) as client:
            client.try_to_send(request)
            with contextlib.suppress(Ended):  # a reset, since more was sent than the server wanted
                assert client.answer().status == status

    return send
