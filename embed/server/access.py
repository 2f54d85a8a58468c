"""The access log: a line for each request, which holds no query, no token, and nothing that could pass for a line."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

from embed.server.connection import Connection

SECRET = ("AUTHORIZATION", "PROXY_AUTHORIZATION", "COOKIE")


def record(log: Any, connection: Connection, response: Any, began: datetime) -> None:
    """Have gunicorn's `log` write its line, whatever format it was given. `response` has status, headers and sent."""
    if not log.access_log_enabled:
        return
    request = connection.request
    headers = [] if request is None else [(name, _plain(value)) for name, value in request.headers if _public(name)]
    # The path as it was sent: the parser let through printable ASCII alone, so that %0A is no end of line.
    path = "-" if request is None else request.path or "/"
    environ = {f"HTTP_{name.replace('-', '_')}": value for name, value in headers}
    if "HTTP_REFERER" in environ:
        environ["HTTP_REFERER"] = environ["HTTP_REFERER"].partition("?")[0]
    headers = [(name, environ[f"HTTP_{name.replace('-', '_')}"]) for name, _ in headers]
    environ |= {
        "REMOTE_ADDR": connection.address[0] if isinstance(connection.address, tuple) else "-",
        "REQUEST_METHOD": "-" if request is None else request.method,
        "RAW_URI": path,
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": "-" if request is None else f"HTTP/{request.version[0]}.{request.version[1]}",
    }
    log.access(response, SimpleNamespace(headers=headers), environ, datetime.now() - began)


def _public(name: str) -> bool:
    return name.replace("-", "_") not in SECRET


def _plain(value: str) -> str:
    return value.encode("ascii", "backslashreplace").decode()
