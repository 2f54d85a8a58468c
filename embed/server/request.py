"""A request's head: parsed by gunicorn, with what a strict parser must not let through refused as well."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from gunicorn.http import errors, message, unreader
from gunicorn.http.body import LengthReader
from gunicorn.util import unquote_to_wsgi_str

from embed.server.connection import Refused

REUSED_BYTES = 2048  # what connections keep between requests stays small
# RFC 3986: what reg-name, IP-literal and port may consist of.
HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
ABSOLUTE = re.compile(r"https?://[^/?#@]+(?:[/?].*)?", re.IGNORECASE)

# Never the parser's own words: they quote the request, and with it what may be a token.
_SENTENCES: dict[type[Exception], tuple[int, str]] = {
    errors.InvalidRequestLine: (400, "the request line is malformed"),
    errors.InvalidRequestMethod: (400, "the request's method is malformed"),
    errors.InvalidHTTPVersion: (400, "the request's HTTP version is malformed"),
    errors.ObsoleteFolding: (400, "a header field is folded over several lines"),
    errors.InvalidSchemeHeaders: (400, "the header fields contradict each other about http and https"),
    errors.LimitRequestHeaders: (431, "the request has too many header fields"),
    errors.ExpectationFailed: (417, "only the expectation 100-continue can be met"),
}
_NO_ADDRESS = ""  # with one, each request would have it parsed and compared to those that may set forwarding headers
_FRAMING = ("HOST", "CONTENT-LENGTH", "CONTENT-TYPE", "TRANSFER-ENCODING")


class Rules:
    """gunicorn's settings as the parser sees them: what decides how a request is understood is not up for choice."""

    def __init__(self, cfg: Any, head_bytes: int) -> None:
        self._cfg = cfg
        self.http_parser = "python"
        self.limit_request_line = 0  # the head's limit is ours; the default would refuse ?text= of 5,000 characters
        self.limit_request_field_size = head_bytes
        self.limit_request_fields = 100
        self.header_map = "drop"
        self.forwarder_headers: list[str] = []
        self.secure_scheme_headers: dict[str, str] = {}
        self.proxy_protocol = "off"
        for loose in (
            "strip_header_spaces",
            "permit_obsolete_folding",
            "permit_unconventional_http_method",
            "permit_unconventional_http_version",
            "casefold_http_method",
        ):
            setattr(self, loose, False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cfg, name)  # a search each time: half of the time that parsing took
        setattr(self, name, value)
        return value


class _Source(unreader.Unreader):  # type: ignore[misc]
    """What gunicorn reads from: the head alone, and then the body's chunks from whoever receives them."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.receive: Callable[[int | None], bytes] | None = None
        self.unread(head)

    def chunk(self, size_hint: int | None = None) -> bytes:
        return self.receive(size_hint) if self.receive else b""


class Request(message.Request):  # type: ignore[misc]
    """A request whose head is understood. `length` is its body's, None where it comes in chunks."""

    def __init__(self, head: bytes, rules: Rules) -> None:
        """Raises `Refused`."""
        self.head = head
        try:
            super().__init__(rules, _Source(head), _NO_ADDRESS)
        except (errors.ParseException, errors.NoMoreData) as ex:
            raise _refusal_of(ex) from None
        reader = self.body.reader
        self.length: int | None = reader.length if isinstance(reader, LengthReader) else None
        self.expects_continue: bool = self._expected_100_continue

    def set_body_reader(self) -> None:
        hosts = 0
        for name, value in self.headers:
            if name == "HOST":
                hosts += 1
                if not HOST.fullmatch(value):
                    raise errors.InvalidHeader(name)
            elif name == "TRANSFER-ENCODING" and value.lower() != "chunked":
                raise Refused(501, "the only transfer coding that is understood is chunked")
        if hosts == 0 and self.version >= (1, 1):
            raise Refused(400, "the request has no Host")
        if "#" in self.uri or not (self.uri[0] in "/*" or self.method == "CONNECT" or ABSOLUTE.fullmatch(self.uri)):
            raise errors.InvalidRequestLine(self.uri)
        super().set_body_reader()

    @property
    def is_reusable(self) -> bool:
        """Whether the same bytes may come as this same object again: few, and with no state of reading chunks."""
        return self.length is not None and len(self.head) <= REUSED_BYTES

    def should_close(self) -> bool:
        options = [value.strip() for name, field in self.headers if name == "CONNECTION" for value in field.split(",")]
        asked = {option.lower() for option in options}
        if "close" in asked or self.method == "CONNECT":
            return True
        return self.version < (1, 1) and "keep-alive" not in asked

    def chunks(self, receive: Callable[[int | None], bytes]) -> Iterator[bytes]:
        """Yield the pieces of a chunked body; raises what gunicorn's parser raises."""
        self.unreader.receive = receive
        return self.body.reader.parser  # type: ignore[no-any-return]

    def rest(self) -> bytes:
        """Return what was received after a chunked body."""
        return self.unreader.take_buffered()  # type: ignore[no-any-return]

    @functools.cached_property
    def environ(self) -> dict[str, Any]:
        """What WSGI wants to know of the request itself."""
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.method,
            "RAW_URI": self.uri,
            "PATH_INFO": unquote_to_wsgi_str(self.path) if "%" in self.path else self.path or "/",
            "QUERY_STRING": self.query,
            "SERVER_PROTOCOL": f"HTTP/{self.version[0]}.{self.version[1]}",
            "wsgi.url_scheme": self.scheme,
        }
        for name, value in self.headers:
            if name == "TRANSFER-ENCODING":  # undone here
                continue
            key = name.replace("-", "_")
            if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
                key = f"HTTP_{key}"
            environ[key] = f"{environ[key]},{value}" if key in environ else value
        return environ


def _refusal_of(ex: Exception) -> Refused:
    if isinstance(ex, errors.InvalidHTTPVersion) and isinstance(ex.version, tuple):
        return Refused(505, "the HTTP versions that are understood are 1.0 and 1.1")
    if isinstance(ex, errors.InvalidHeader) and ex.hdr in _FRAMING:
        return Refused(400, f"the header field {ex.hdr.title()} is malformed, there twice, or contradicts another")
    return Refused(*_SENTENCES.get(type(ex), (400, "a header field is malformed")))
