"""Talks HTTP in bytes, so that a test can send what no client library would, and sees whether a connection lives on.

with Client(port) as client:
    client.send(get("/health"))
    assert client.answer().status == 200
    assert client.is_open()
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import dataclass
from typing import Any

SECONDS = 20.0  # for anything that should take one


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Ended(Exception):
    """The server has closed the connection, or reset it, in place of an answer."""


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """Return a request without a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: test", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def chunked(path: str, body: bytes, *headers: str) -> bytes:
    """Return a request whose body, chunks and all, is given."""
    return get(path, "Transfer-Encoding: chunked", *headers, method="POST") + body


class Client:
    """One connection."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_bytes is not None:  # before connecting, or the window is larger
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(SECONDS)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *ex: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def try_to_send(self, data: bytes) -> None:
        """Send as much as the server takes."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.sock.sendall(data)

    def end_sending(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End the connection as a process that is killed with unread data does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's head; an interim one (1xx) is one of its own."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        status, *fields = head.split("\r\n")[:-2]
        assert re.fullmatch(r"HTTP/1\.1 \d{3} [ -~]*", status), status
        return int(status.split()[1]), {k.lower(): v for k, _, v in (field.partition(": ") for field in fields)}

    def answer(self, *, to_head: bool = False) -> Reply:
        """Read one response; raises `Ended` where none comes."""
        status, headers = self.head()
        if to_head or status in (204, 304):
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, self._chunks())
        if "content-length" in headers:
            return Reply(status, headers, self.read(int(headers["content-length"])))
        assert headers["connection"] == "close"
        return Reply(status, headers, self.rest())

    def ask(self, data: bytes) -> Reply:
        self.send(data)
        return self.answer()

    def is_open(self) -> bool:
        """Tell whether the connection takes another request."""
        try:
            return self.ask(get("/health")).body == b"ok"
        except Ended:
            return False

    def hears_nothing(self) -> bool:
        """Tell whether the server has so far neither answered nor ended."""
        self.sock.setblocking(False)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return self._held == b""
        else:
            return False
        finally:
            self.sock.settimeout(SECONDS)

    def has_ended(self) -> bool:
        """Wait until the server ends the connection; False where it says more before."""
        try:
            return self._held == b"" and self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self.read(size)
            assert self.read(2) == b"\r\n"
        assert self.read(2) == b"\r\n"
        return body

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._held:
            self._more()
        data, _, self._held = self._held.partition(mark)
        return data + mark

    def read(self, count: int) -> bytes:
        """Read so many bytes, whatever they mean."""
        while len(self._held) < count:
            self._more()
        data, self._held = self._held[:count], self._held[count:]
        return data

    def rest(self) -> bytes:
        """Read to the connection's end."""
        try:
            while True:
                self._more()
        except Ended:
            data, self._held = self._held, b""
            return data

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError as ex:
            raise Ended(f"{ex!r} after {self._held[:200]!r}") from ex
        if not data:
            raise Ended(f"the connection ended after {self._held[:200]!r}")
        self._held += data
