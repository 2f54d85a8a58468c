"""Every limit of the service, in one place; each can be set by its `EMBED_LIMIT_…` variable."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from embed.errors import OptionError

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of connections, requests and the queue. Sizes are bytes where the name says so, times seconds."""

    head_bytes: int = 64 << 10  # request line and header fields together; more is a 431
    body_bytes: int = 16 * MIB  # after de-chunking; more is a 413
    buffered_bytes: int = 256 * MIB  # bodies of all connections together; over it, a 503
    idle_s: float = 30.0  # a whole head; a body or an answer without progress; a kept connection between requests
    body_bytes_per_s: int = 1024  # what a body must average once idle_s have passed
    request_s: float = 600.0  # from the end of the head to the end of the answer; longer is a 504
    linger_s: float = 2.0  # for the peer to read a refusal before its unread bytes turn it into a reset
    connections: int = 2000  # at most; fewer where descriptors are short
    commas: int = 250_000  # in a JSON body, and half as many colons or brackets: bounds what parsing it can cost
    queue_requests: int = 1024  # waiting for the model; more is a 429
    queue_tokens: int = 2_000_000
    queue_texts: int = 65_536  # their vectors are 256 MB at BGE-M3's 1,024 dimensions

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Limits:
        """Return the defaults, but for what `environ` sets, e.g. EMBED_LIMIT_IDLE_S=5."""
        given = {}
        for field in dataclasses.fields(cls):
            text = environ.get(f"EMBED_LIMIT_{field.name.upper()}", "").strip()
            if text:
                given[field.name] = _number(field, text)
        return cls(**given)  # type: ignore[arg-type]  # _number chose the type by the field


def _number(field: dataclasses.Field[object], text: str) -> float:
    kind = float if isinstance(field.default, float) else int
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not (math.isfinite(number) and number > 0):
        what = "number" if kind is float else "whole number"
        raise OptionError(f"EMBED_LIMIT_{field.name.upper()} is {text!r}; a {what} above 0 is expected")
    return number
