"""What goes back to the client: the application's response, or a refusal of the worker's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from gunicorn.http import wsgi
from gunicorn.util import http_date

from embed.server.body import Body
from embed.server.connection import Connection
from embed.server.request import Request, Rules
from embed.server.waiting import give_way

JOIN_BYTES = 64 << 10  # head and first piece go out together up to here; beyond it copying costs more than a call

_dated = 0
_date = ""


class Answer(wsgi.Response):  # type: ignore[misc]
    """gunicorn's response, its head sent along with the first piece, and closing where the body was left unread."""

    def __init__(
        self, request: Request, body: Body, connection: Connection, rules: Rules, ending: Callable[[], bool]
    ) -> None:
        super().__init__(request, connection, rules)
        self.closing = False
        self.headers_sent = False
        self._body = body
        self._ending = ending
        self._head = b""

    def should_close(self) -> bool:
        return bool(super().should_close()) or self._body.unread or self._ending()

    def default_headers(self) -> list[str]:
        self.closing = self.should_close()
        lines = [f"HTTP/1.1 {self.status}\r\n", f"Date: {_now()}\r\n"]
        if self.closing:
            lines.append("Connection: close\r\n")
        elif self.req.version < (1, 1):
            lines.append("Connection: keep-alive\r\n")
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        return lines

    def send_headers(self) -> None:
        if not self.headers_sent:
            if self.status is None:
                raise RuntimeError("the application has not called start_response")
            self.headers_sent = True
            lines = [*self.default_headers(), *(f"{name}: {value}\r\n" for name, value in self.headers), "\r\n"]
            self._head = "".join(lines).encode("latin-1")

    def _emit_body(self, data: bytes) -> None:
        framed = b"%X\r\n%b\r\n" % (len(data), data) if self.chunked else data
        self._send(framed)

    def _send(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self.sock.answered = True
        if head and len(data) > JOIN_BYTES:
            self.sock.send(head)
            head = b""
        self.sock.send(head + data if head else data)

    def send_all(self, pieces: Any) -> None:
        """Send an application's iterable, others having their turn after each piece but the last."""
        waiting = False
        for piece in pieces:
            if waiting:
                give_way()
            self.write(piece)
            waiting = True
        self.send_headers()
        if self.chunked or self._head:
            self._send(b"0\r\n\r\n" if self.chunked else b"")
        if self.response_length is not None and self.sent < self.response_length and not self._omits_body:
            self.closing = True  # the client must not take the next answer for the rest of this one


def refusal(status: int, message: str, *, body: bool = True) -> bytes:
    """Return a whole response with a JSON error, after which the connection ends."""
    content = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nDate: {_now()}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + (content if body else b"")


def _now() -> str:
    global _dated, _date
    second = int(time.time())
    if second != _dated:
        _dated, _date = second, http_date(second)
    return _date
