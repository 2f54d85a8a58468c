"""One client's socket: reads and writes that wait on the loop, and a deadline for each stage of a request.

The socket is an ordinary non-blocking one, nothing is monkey patched. A connection that waits for its client stands
in the `Lobby` under what it waits for, which ends it where it's overdue or its place is needed.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import gevent

from embed.server.limits import Limits
from embed.server.waiting import give_way

if TYPE_CHECKING:
    from embed.server.lobby import Lobby

READ = 1  # the loop's event masks
WRITE = 2
READ_BYTES = 16 << 10  # a head with the body of a short text
BODY_READ_BYTES = 64 << 10
TLS_HANDSHAKE = 0x16
BARE_LF = re.compile(rb"(?<!\r)\n")

# What a connection can wait for, in the order in which connections are given up where they run short.
IDLE = "idle"  # the next request
LINGER = "linger"  # the peer, which has its answer, to stop sending
HEAD = "head"  # the rest of a head
BODY = "body"  # the rest of a body
ANSWER = "answer"  # room for the rest of an answer
STAGES = (IDLE, LINGER, HEAD, BODY, ANSWER)


class Refused(Exception):
    """The request gets `status` and one sentence for an answer, and its connection ends."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Dropped(Exception):
    """The connection ends and nothing more is said: there is no request, or its answer is under way or taken."""


class Connection:
    """A client's socket, used by one greenlet."""

    def __init__(self, sock: socket.socket, address: Any, lobby: Lobby) -> None:
        sock.setblocking(False)
        self.address = address
        self.lobby = lobby
        self.limits = lobby.limits
        self.buffer = b""  # received, and not part of the request before
        self.stage = ""  # "" while it waits for nothing
        self.until = 0.0
        self.served = 0  # requests
        self.request: Any = None  # the present one, once its head is understood
        self.answered = False  # a response to the present request has begun
        self.hurried = False  # its place is wanted
        self._sock = sock
        self._hub = gevent.get_hub()
        self._readable = self._hub.loop.io(sock.fileno(), READ)
        self._writable: Any = None
        self._waiter: Any = None  # the greenlet, while it is in `_wait`
        self._began = 0.0
        self._received = 0

    # --- stages

    def begin(self, stage: str, seconds: float) -> None:
        """Enter `stage`, which is overdue after `seconds`."""
        self.lobby.leave(self)
        self.stage = stage
        self._began = time.monotonic()
        self.until = self._began + seconds
        self._received = 0

    def end_stage(self) -> None:
        """Wait for nothing."""
        self.lobby.leave(self)
        self.stage = ""

    def interrupt(self, error: Exception) -> None:
        """Raise `error` where the greenlet waits for the client, unless that has sent something it will find.

        After the process stood still, the deadlines of all are past, and what came meanwhile is unread.
        """
        if self.stage in (LINGER, ANSWER) or not self._has_unread():
            on_loop(self._throw, error, self.stage)

    def give_up(self, error: Exception) -> None:
        """Raise `error` where the greenlet waits for the client, whatever that has sent, and make haste to end."""
        on_loop(self._throw, error, self.stage, True)

    def _throw(self, error: Exception, stage: str, hurried: bool = False) -> None:
        if self._waiter is not None and self.stage == stage:
            self.hurried = hurried
            self._waiter.throw(error)

    def _wait(self, watcher: Any) -> None:
        self.lobby.enter(self)
        self._waiter = gevent.getcurrent()
        try:
            self._hub.wait(watcher)
        finally:
            self._waiter = None

    # --- reading and writing

    def receive(self, size: int) -> bytes:
        """Return at most `size` bytes, b"" at the end; raises `ConnectionError` where the peer is gone."""
        while (data := self._receive(size)) is None:
            self._wait(self._readable)
        if self.stage == BODY:
            self._progress(len(data))
        return data

    def _receive(self, size: int) -> bytes | None:
        try:
            return self._sock.recv(size)
        except BlockingIOError:
            return None
        except OSError as ex:
            raise ConnectionResetError(*ex.args) from ex

    def _progress(self, count: int) -> None:
        self._received += count
        slowest = self._began + self.limits.idle_s + self._received / self.limits.body_bytes_per_s
        self.until = min(slowest, time.monotonic() + self.limits.idle_s)

    def send(self, data: bytes) -> None:
        """Send all of `data`; a peer that takes nothing for `idle_s` is dropped."""
        sent = self._send(data)
        if sent == len(data):
            return
        view = memoryview(data)[sent:]
        if self._writable is None:
            self._writable = self._hub.loop.io(self._sock.fileno(), WRITE)
        self.begin(ANSWER, self.limits.idle_s)
        while view:
            self._wait(self._writable)
            view = view[self._send(view) :]
            self.until = time.monotonic() + self.limits.idle_s
        self.end_stage()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as ex:
            raise ConnectionResetError(*ex.args) from ex

    # --- heads

    def head(self) -> bytes:
        """Wait for a request and return its head, empty line included; b"" where the client has ended."""
        self.answered = False
        data = self.buffer
        if data:  # pipelined: it's the others' turn first
            self.begin(HEAD, self.limits.idle_s)
            give_way()
        else:
            self.begin(IDLE, self.lobby.idle_s)
            # Waits even where the request is there already, or one busy client would keep the loop from all others.
            self._wait(self._readable)
            data = self.receive(READ_BYTES)
            if not data:
                return b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if self.stage == IDLE:
                self.begin(HEAD, self.limits.idle_s)
            data, end = self._rest_of_head(bytearray(data))
        self.end_stage()
        if end + 4 > self.limits.head_bytes:
            raise _head_too_large(self.limits)
        self.buffer = data[end + 4 :]
        return data[: end + 4]

    def _rest_of_head(self, data: bytearray) -> tuple[bytes, int]:
        searched = 0
        while (end := data.find(b"\r\n\r\n", max(0, searched - 3))) < 0:
            if data[0] == TLS_HANDSHAKE:  # no line will end, and who tries TLS shouldn't have to wait
                raise Refused(400, "this is plain HTTP, and the client began with TLS")
            if BARE_LF.search(data, max(0, searched - 1)):
                raise Refused(400, "a line of the request's head ends in a line feed alone")
            if len(data) > self.limits.head_bytes:
                raise _head_too_large(self.limits)
            searched = len(data)
            piece = self.receive(READ_BYTES)
            if not piece:
                raise Refused(400, "the request ended within its head")
            data += piece
        return bytes(data), end

    # --- the end

    def watch(self, on_eof: Callable[[], object], on_reset: Callable[[], object]) -> AbstractContextManager[object]:
        """While active, call `on_eof` once the peer sends no more, `on_reset` once the connection is broken."""
        return self.lobby.hangups.watch(self._sock.fileno(), on_eof, on_reset)

    def has_input(self) -> bool:
        """Tell whether the peer has sent something, or its end, that nobody has taken yet."""
        return bool(self.buffer) or self._has_unread()

    def _has_unread(self) -> bool:
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:  # which the greenlet will find too
            pass
        return True

    def linger(self) -> None:
        """Discard what the peer still sends, for a while: left unread it would turn our answer into a reset."""
        if self.hurried:
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as ex:
            raise ConnectionResetError(*ex.args) from ex
        self.begin(LINGER, self.limits.linger_s)
        left = self.limits.body_bytes
        while left > 0:
            self._wait(self._readable)
            data = self.receive(BODY_READ_BYTES)
            if not data:
                return
            left -= len(data)

    def close(self) -> None:
        self.lobby.leave(self)
        self._readable.close()
        if self._writable is not None:
            self._writable.close()
        self._sock.close()


def on_loop(function: Callable[..., object], *arguments: object) -> None:
    """Call the function now where this is the loop's own greenlet, else when it has its turn."""
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub:
        function(*arguments)
    else:
        hub.loop.run_callback(function, *arguments)


def _head_too_large(limits: Limits) -> Refused:
    return Refused(431, f"the request's head is over {limits.head_bytes:,} bytes")
