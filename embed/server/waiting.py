"""Greenlets and native threads: how one waits for the other without holding up the event loop.

Nothing is monkey patched, so a greenlet that blocked on a real lock, queue or sleep would stop every connection. What
is here are the only ways to wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import gevent
from gevent.event import Event
from gevent.lock import Semaphore
from gevent.threadpool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["Event", "Loop", "Offload", "Semaphore", "after", "give_way"]


class Loop:
    """The event loop of the thread that makes this, as other threads may use it."""

    def __init__(self) -> None:
        self._loop = gevent.get_hub().loop
        # Else gevent takes a loop in which everybody waits for another thread for a deadlock (gevent issue 2124).
        self._keep_alive = self._loop.async_()
        self._keep_alive.start(lambda: None)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call `function(*arguments)` soon; from any thread."""
        self._loop.run_callback_threadsafe(function, *arguments)


class Offload:
    """Runs functions that release the GIL on native threads, one a CPU or two, while the calling greenlet waits."""

    def __init__(self) -> None:
        self._pool = ThreadPool(max(2, len(os.sched_getaffinity(0))))

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._pool.apply(function, args, kwargs)
        return result


def after(seconds: float, function: Callable[[], None]) -> None:
    """Have the loop call `function` in so many seconds."""
    gevent.spawn_later(seconds, function)


def give_way() -> None:
    """Let other greenlets run, those too that wait for a socket.

    After `sleep(0)` only the ones that are ready do, and up to fifty turns pass before the loop looks at its sockets:
    25 ms where four greenlets work for half a millisecond each. After any longer sleep it looks each time.
    """
    gevent.sleep(1e-9)
