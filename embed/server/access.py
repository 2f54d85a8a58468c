"""The access log: a line for each request, which holds no query, no token, and nothing that could pass for a line."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

from embed.server.connection import Connection

SECRET = ("AUTHORIZATION", "PROXY-AUTHORIZATION", "COOKIE")


def record(log: Any, connection: Connection, response: Any, began: datetime) -> None:
    """Have gunicorn's `log` write its line, whatever format it was given. `response` has status, headers and sent."""
    if not log.access_log_enabled:
        return
    request = connection.request
    fields = [] if request is None else request.headers
    shown = [(name, _shown(name, value)) for name, value in fields if name not in SECRET]
    # The path as it was sent: the parser let through printable ASCII alone, so that %0A is no end of line.
    path = "-" if request is None else request.path or "/"
    environ = {f"HTTP_{name.replace('-', '_')}": value for name, value in shown}
    environ |= {
        "REMOTE_ADDR": connection.address[0] if isinstance(connection.address, tuple) else "-",
        "REQUEST_METHOD": "-" if request is None else request.method,
        "RAW_URI": path,
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": "-" if request is None else f"HTTP/{request.version[0]}.{request.version[1]}",
    }
    log.access(response, SimpleNamespace(headers=shown), environ, datetime.now() - began)


def _shown(name: str, value: str) -> str:
    if name == "REFERER":
        value = value.partition("?")[0]
    return value.encode("ascii", "backslashreplace").decode()
