"""The bearer token: who may ask for what."""

from __future__ import annotations

import hmac
from urllib.parse import unquote_to_bytes

import falcon

OPEN_PATHS = ("/", "/health")  # answered to everybody, but in full only to who has the token


class TokenCheck:
    """Falcon middleware: without the token every path but the health check is a 401, known or not."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.trusted = self._token is None or hmac.compare_digest(_presented(req), self._token)
        if not req.context.trusted and not (req.path in OPEN_PATHS and req.method in ("GET", "HEAD")):
            raise falcon.HTTPUnauthorized(
                description="unauthorized - pass 'Authorization: Bearer <token>'", challenges=["Bearer"]
            )


def _presented(req: falcon.Request) -> bytes:
    """Return the token that came with a request, from its header or else its query; empty if there is none."""
    header = req.env.get("HTTP_AUTHORIZATION")
    if header is not None:
        scheme, _, token = header.partition(" ")
        return token.encode("latin-1") if scheme.lower() == "bearer" else b""
    for pair in req.query_string.split("&"):
        name, _, value = pair.partition("=")
        if name == "token":
            return unquote_to_bytes(value.encode("latin-1"))
    return b""
