"""Tells when the peer of a connection hangs up, without reading what it may have sent before.

All connections share one epoll, which the loop watches. EPOLLRDHUP comes through even where a pipelined request lies
unread in the socket, and with edge triggering a peer that has shut down one side keeps nobody awake.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from types import TracebackType

import gevent

BROKEN = select.EPOLLERR | select.EPOLLHUP


class Hangups:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._watcher = gevent.get_hub().loop.io(self._epoll.fileno(), 1)
        self._watcher.start(self._told)

    def watch(self, descriptor: int, on_eof: Callable[[], object], on_reset: Callable[[], object]) -> Watch:
        return Watch(self, descriptor, on_eof, on_reset)

    def add(self, watch: Watch) -> None:
        self._watches[watch.descriptor] = watch
        self._epoll.register(watch.descriptor, select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, watch: Watch) -> None:
        if self._watches.pop(watch.descriptor, None):
            self._epoll.unregister(watch.descriptor)

    def _told(self) -> None:
        for descriptor, events in self._epoll.poll(0):
            watch = self._watches.get(descriptor)
            if watch is not None:
                watch.tell(broken=bool(events & BROKEN))


class Watch:
    """A context manager: callbacks come while it is active, on the loop, each at most once."""

    def __init__(
        self, hangups: Hangups, descriptor: int, on_eof: Callable[[], object], on_reset: Callable[[], object]
    ) -> None:
        self.descriptor = descriptor
        self._hangups = hangups
        self._on_eof: Callable[[], object] | None = on_eof
        self._on_reset = on_reset

    def __enter__(self) -> Watch:
        self._hangups.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._hangups.remove(self)

    def tell(self, *, broken: bool) -> None:
        if broken:
            self._hangups.remove(self)
            self._on_reset()
        elif self._on_eof is not None:
            on_eof, self._on_eof = self._on_eof, None
            on_eof()
