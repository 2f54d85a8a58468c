"""One connection from its first request to its end: what goes wrong on the way becomes the right answer."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import gevent

from embed.server.access import record
from embed.server.answer import Answer, refusal
from embed.server.body import Body
from embed.server.connection import Connection, Dropped, Refused
from embed.server.request import Request, Rules


class Handler:
    """Serves the connections of `worker`, each in a greenlet of its own."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._application = worker.wsgi
        self._log = worker.log
        self._rules = Rules(worker.cfg, worker.limits.head_bytes)
        self._request_s = worker.limits.request_s

    def serve(self, connection: Connection, environ: dict[str, Any]) -> None:
        """Answer request after request until the connection is to end."""
        host, port = connection.address[:2] if isinstance(connection.address, tuple) else ("", "")
        environ = {**environ, "REMOTE_ADDR": host, "REMOTE_PORT": str(port), "embed.connection": connection}
        try:
            self._serve(connection, environ)
        except (ConnectionError, Dropped) as ex:
            self._log.debug("connection lost: %r", ex)
        finally:
            self._worker.end(connection)

    def turn_away(self, connection: Connection, environ: dict[str, Any]) -> None:
        """Answer that no connection is left, without a look at the request."""
        try:
            self._refuse(connection, 503, "the server is out of connections; try again later")
        except (ConnectionError, Dropped):
            pass
        finally:
            self._worker.end(connection)

    def _serve(self, connection: Connection, environ: dict[str, Any]) -> None:
        try:
            while self._exchange(connection, environ):
                pass
        except Refused as ex:
            self._refuse(connection, ex.status, str(ex))
        except gevent.Timeout:
            self._refuse(connection, 504, f"the request took longer than {self._request_s:g} s")
        except (ConnectionError, Dropped):
            raise
        except Exception:
            self._log.exception("error in a request for %s", connection.request.path if connection.request else "-")
            self._refuse(connection, 500, "the request failed; the server's log says why")

    def _exchange(self, connection: Connection, environ: dict[str, Any]) -> bool:
        """Answer one request; False where no further one can follow."""
        request = self._next_request(connection)
        if request is None:
            return False
        began = datetime.now()
        body = Body(request, connection)
        answer = Answer(request, body, connection, self._rules, self._worker.is_ending)
        try:
            with gevent.Timeout(self._request_s):
                self._worker.before(request)
                self._run({**environ, **request.environ, "wsgi.input": body}, answer)
        finally:
            body.close()
            self._worker.after(request, environ, answer)
            if connection.answered:
                record(self._log, connection, answer, began)
        if not answer.closing and not body.unread:
            return True
        if body.unread or connection.has_input():
            connection.linger()
        return False

    def _next_request(self, connection: Connection) -> Request | None:
        last, connection.request = connection.request, None
        if last is not None and not last.is_reusable:
            last = None
        head = connection.head()
        if not head:
            return None
        connection.served += 1
        # Clients repeat themselves, and parsing takes 40 us, two thirds of what a small request costs without it.
        request: Request = last if last is not None and last.head == head else Request(head, self._rules)
        connection.request = request
        return request

    def _run(self, environ: dict[str, Any], answer: Answer) -> None:
        pieces = self._application(environ, answer.start_response)
        try:
            answer.send_all(pieces)
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    def _refuse(self, connection: Connection, status: int, message: str) -> None:
        if connection.answered:
            return  # all that can be done is to end
        began = datetime.now()
        self._application.refused(status)
        head_only = connection.request is not None and connection.request.method == "HEAD"
        data = refusal(status, message, body=not head_only)
        connection.answered = True
        connection.send(data)
        sent = len(data.partition(b"\r\n\r\n")[2])  # as for every answer, without its head
        record(self._log, connection, SimpleNamespace(status=str(status), sent=sent, headers=[]), began)
        connection.linger()
