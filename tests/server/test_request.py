"""What a head may say: each way of saying it wrong has its status, and nothing of a request comes back in an error."""

from __future__ import annotations

import pytest
from gunicorn.config import Config

from embed.server.connection import Refused
from embed.server.request import Request, Rules


def parse(head: bytes, **settings: object) -> Request:
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    return Request(head, Rules(cfg, 64 << 10))


def head(*lines: str, start: str = "POST /echo?a=b HTTP/1.1", host: str = "Host: test") -> bytes:
    return "\r\n".join([start, *([host] if host else []), *lines, "", ""]).encode("latin-1")


GOOD = {
    "plain": (head(), {"REQUEST_METHOD": "POST", "PATH_INFO": "/echo", "QUERY_STRING": "a=b", "HTTP_HOST": "test"}),
    "escapes": (head(start="GET /a%20b%2Fc%C3%A9 HTTP/1.1"), {"PATH_INFO": "/a b/c\xc3\xa9"}),
    "absolute form": (head(start="GET http://test:80/echo?q HTTP/1.1"), {"PATH_INFO": "/echo", "QUERY_STRING": "q"}),
    "absolute form without a path": (head(start="GET http://test HTTP/1.1"), {"PATH_INFO": "/"}),
    "two slashes": (head(start="GET //test/echo HTTP/1.1"), {"PATH_INFO": "//test/echo"}),
    "asterisk": (head(start="OPTIONS * HTTP/1.1"), {"PATH_INFO": "*"}),
    "an empty line before": (b"\r\n" + head(), {"PATH_INFO": "/echo"}),
    "an empty Host": (head(host="Host:"), {"HTTP_HOST": ""}),
    "IPv6 in Host": (head(host="Host: [::1]:8000"), {"HTTP_HOST": "[::1]:8000"}),
    "no Host in 1.0": (head(start="GET / HTTP/1.0", host=""), {"SERVER_PROTOCOL": "HTTP/1.0"}),
    "HTTP/1.2": (head(start="GET / HTTP/1.2"), {"SERVER_PROTOCOL": "HTTP/1.2"}),
    "repeated": (head("Accept: a", "accept: b", "Accept: c"), {"HTTP_ACCEPT": "a,b,c"}),
    "white space around": (head("X:  \t a b \t "), {"HTTP_X": "a b"}),
    "no value": (head("X:"), {"HTTP_X": ""}),
    "latin-1": (head("X: caf\xe9"), {"HTTP_X": "caf\xe9"}),
    "an underscore": (head("X_Y: 1"), {"HTTP_X_Y": None}),
    "SCRIPT_NAME": (head("SCRIPT_NAME: /x", "PATH_INFO: /y"), {"HTTP_SCRIPT_NAME": None, "PATH_INFO": "/echo"}),
    "forwarded": (head("X-Forwarded-Proto: https"), {"wsgi.url_scheme": "http"}),
    "a length": (head("Content-Length: 007", "Content-Type: a/b"), {"CONTENT_LENGTH": "007", "CONTENT_TYPE": "a/b"}),
    "chunked": (head("Transfer-Encoding: ChunkeD"), {"HTTP_TRANSFER_ENCODING": None, "CONTENT_LENGTH": None}),
    "a long query": (head(start=f"GET /?{'t' * 60_000} HTTP/1.1"), {"QUERY_STRING": "t" * 60_000}),
}


@pytest.mark.parametrize(("data", "expected"), GOOD.values(), ids=GOOD)
def test_a_good_head_is_understood(data, expected):
    environ = parse(data).environ
    assert {name: environ.get(name) for name in expected} == expected


BAD = {
    # request lines
    "no version": (head(start="GET /"), 400),
    "HTTP/0.9": (head(start="GET / HTTP/0.9"), 505),
    "HTTP/2.0": (head(start="GET / HTTP/2.0"), 505),
    "HTTP/1.10": (head(start="GET / HTTP/1.10"), 400),
    "http/1.1": (head(start="GET / http/1.1"), 400),
    "two spaces": (head(start="GET  / HTTP/1.1"), 400),
    "a tab for a space": (head(start="GET\t/ HTTP/1.1"), 400),
    "a space before": (head(start=" GET / HTTP/1.1"), 400),
    "a space after": (head(start="GET / HTTP/1.1 "), 400),
    "a space in the target": (head(start="GET /a b HTTP/1.1"), 400),
    "a control character in the target": (head(start="GET /\x01 HTTP/1.1"), 400),
    "a byte over 126 in the target": (head(start="GET /\xe9 HTTP/1.1"), 400),
    "NUL in the target": (head(start="GET /\x00 HTTP/1.1"), 400),
    "a fragment": (head(start="GET /#a HTTP/1.1"), 400),
    "another scheme": (head(start="GET ftp://test/ HTTP/1.1"), 400),
    "a user": (head(start="GET http://user@test/ HTTP/1.1"), 400),
    "no authority": (head(start="GET http:///x HTTP/1.1"), 400),
    "a relative target": (head(start="GET echo HTTP/1.1"), 400),
    "an asterisk for GET": (head(start="GET * HTTP/1.1"), 400),
    "a small method": (head(start="get / HTTP/1.1"), 400),
    "no method": (head(start="/ HTTP/1.1"), 400),
    "a bad method": (head(start="G@T / HTTP/1.1"), 400),
    "two empty lines before": (b"\r\n\r\n", 400),
    "binary": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    # Host
    "no Host": (head(host=""), 400),
    "two Hosts": (head("Host: test"), 400),
    "two different Hosts": (head("Host: other"), 400),
    "a space in Host": (head(host="Host: a b"), 400),
    "a path in Host": (head(host="Host: a/b"), 400),
    "a user in Host": (head(host="Host: a@b"), 400),
    # framing
    "length and chunks": (head("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    "chunks and length": (head("Transfer-Encoding: chunked", "Content-Length: 5"), 400),
    "two lengths": (head("Content-Length: 5", "Content-Length: 5"), 400),
    "two different lengths": (head("Content-Length: 5", "Content-Length: 6"), 400),
    "a list of lengths": (head("Content-Length: 5, 5"), 400),
    "a negative length": (head("Content-Length: -1"), 400),
    "a signed length": (head("Content-Length: +5"), 400),
    "an exponent": (head("Content-Length: 1e3"), 400),
    "a hexadecimal length": (head("Content-Length: 0x5"), 400),
    "an underscore in a length": (head("Content-Length: 1_0"), 400),
    "a space in a length": (head("Content-Length: 1 0"), 400),
    "another alphabet's digit": (head("Content-Length: \xb2"), 400),
    "an empty length": (head("Content-Length:"), 400),
    "a length of 5,000 digits": (head(f"Content-Length: {'9' * 5000}"), 400),
    "chunks in 1.0": (head("Transfer-Encoding: chunked", start="POST / HTTP/1.0"), 400),
    "two codings of the same kind": (head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
    "chunked twice": (head("Transfer-Encoding: chunked, chunked"), 501),
    "gzip and chunked": (head("Transfer-Encoding: gzip, chunked"), 501),
    "identity": (head("Transfer-Encoding: identity"), 501),
    "identity and chunked": (head("Transfer-Encoding: identity", "Transfer-Encoding: chunked"), 501),
    "an unknown coding": (head("Transfer-Encoding: xchunked"), 501),
    "a quoted coding": (head('Transfer-Encoding: "chunked"'), 501),
    "no coding": (head("Transfer-Encoding:"), 501),
    "a vertical tab before chunked": (head("Transfer-Encoding: \x0bchunked"), 400),
    "a space before the colon": (head("Transfer-Encoding : chunked"), 400),
    "a tab before the colon": (head("Content-Length\t: 5"), 400),
    # fields
    "folded": (head("X: a", " b"), 400),
    "folded at the start": (head(" X: a", host=""), 400),
    "a bare line feed": (head("X: a\nContent-Length: 5"), 400),
    "a bare carriage return": (head("X: a\rContent-Length: 5"), 400),
    "NUL in a value": (head("X: a\x00b"), 400),
    "a control character in a value": (head("X: a\x1bb"), 400),
    "DEL in a value": (head("X: a\x7fb"), 400),
    "NUL in a name": (head("X\x00: a"), 400),
    "latin-1 in a name": (head("\xdf: a"), 400),
    "no colon": (head("X"), 400),
    "no name": (head(": a"), 400),
    "two Content-Types": (head("Content-Type: a/b", "Content-Type: a/b"), 400),
    "101 fields": (head(*[f"X-{number}: a" for number in range(100)]), 431),
    "an unknown expectation": (head("Expect: 200-ok"), 417),
}


@pytest.mark.parametrize(("data", "status"), BAD.values(), ids=BAD)
def test_a_bad_head_is_refused(data, status):
    with pytest.raises(Refused) as refused:
        parse(data)
    assert refused.value.status == status
    assert refused.value.__suppress_context__ or refused.value.__context__ is None  # no trace that quotes the request


def test_an_error_quotes_nothing_of_the_request():
    for data, _ in BAD.values():
        secret = (
            data.replace(b"GET /", b"GET /?token=s3cret").replace(b"X: ", b"X: s3cret").replace(b"X\x00", b"s3\x00")
        )
        with pytest.raises(Refused) as refused:
            parse(secret)
        assert "s3" not in str(refused.value)


def test_gunicorns_settings_make_the_parser_no_looser():
    loose = {
        "permit_obsolete_folding": True,
        "strip_header_spaces": True,
        "permit_unconventional_http_method": True,
        "permit_unconventional_http_version": True,
        "casefold_http_method": True,
        "header_map": "dangerous",
        "limit_request_line": 100,
        "limit_request_fields": 20_000,
        "limit_request_field_size": 100,
        "forwarded_allow_ips": "*",
        "forwarder_headers": "*",
        "http_parser": "auto",
        "proxy_protocol": "auto",
    }
    for data, status in BAD.values():
        with pytest.raises(Refused) as refused:
            parse(data, **loose)
        assert refused.value.status == status
    for data, expected in GOOD.values():
        environ = parse(data, **loose).environ
        assert {name: environ.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("version", "fields", "closes"),
    [
        ("1.1", [], False),
        ("1.1", ["Connection: close"], True),
        ("1.1", ["Connection: Keep-Alive, CLOSE"], True),
        ("1.1", ["Connection: a", "Connection: close"], True),
        ("1.1", ["Connection: closed"], False),
        ("1.0", [], True),
        ("1.0", ["Connection: keep-alive"], False),
        ("1.0", ["Connection: keep-alive, close"], True),
    ],
)
def test_a_connection_is_kept_as_its_options_say(version, fields, closes):
    assert parse(head(*fields, start=f"GET / HTTP/{version}")).should_close() == closes


def test_after_connect_nothing_is_read_as_a_request():
    assert parse(head(start="CONNECT test:80 HTTP/1.1")).should_close()
