"""What the worker relies on in gunicorn and gevent beyond what they document: an upgrade that changes it fails here."""

from __future__ import annotations

import inspect
import socket
import time

import gevent
import pytest
from gevent.event import Event
from gunicorn import SERVER_SOFTWARE, __version__, glogging, sock
from gunicorn.arbiter import Arbiter
from gunicorn.config import KNOWN_SETTINGS, Config
from gunicorn.http import errors, message, unreader, wsgi
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.workers import base

from embed.server.answer import Answer
from embed.server.request import Request, Rules
from embed.server.waiting import give_way
from embed.server.worker import Worker


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_version_is_one_that_was_looked_at():
    assert __version__.split(".")[0] == "27"
    assert SERVER_SOFTWARE.startswith("gunicorn/")


def test_the_base_worker_is_as_expected():
    assert parameters(base.Worker.__init__) == ["self", "age", "ppid", "sockets", "app", "timeout", "cfg", "log"]
    worker = Worker(1, 2, [], None, 15.0, Config(), None)
    try:
        own = {"age", "ppid", "sockets", "app", "timeout", "cfg", "log", "alive", "nr", "max_requests", "tmp", "PIPE"}
        assert {name for name in own if hasattr(worker, name)} == own
    finally:
        worker.tmp.close()
    for name in (
        "init_process",
        "init_signals",
        "load_wsgi",
        "run",
        "notify",
        "handle_quit",
        "handle_abort",
        "handle_usr1",
    ):
        assert callable(getattr(base.Worker, name))
    source = inspect.getsource(base.Worker.init_process)
    order = [
        source.index(step)
        for step in ("self.PIPE = os.pipe()", "self.init_signals()", "self.load_wsgi()", "self.run()")
    ]
    assert order == sorted(order)
    assert "signal.set_wakeup_fd(self.PIPE[1])" in inspect.getsource(base.Worker.init_signals)


def test_the_master_asks_and_judges_as_expected():
    assert "check_config" in inspect.getsource(Arbiter)
    assert Arbiter.APP_LOAD_ERROR == 4
    for name in ("getsockname", "accept", "fileno", "setblocking", "close"):
        assert hasattr(sock.TCPSocket, name) or hasattr(socket.socket, name)


def test_the_parsers_settings_are_those_that_the_rules_fix():
    """A setting of the parser that is new may be one more way to make it looser."""
    source = "".join(inspect.getsource(part) for part in (message.HeaderPolicy, message.Message, message.Request))
    known = {
        # fixed in Rules
        "casefold_http_method", "forwarder_headers", "header_map", "limit_request_field_size", "limit_request_fields",
        "limit_request_line", "permit_obsolete_folding", "permit_unconventional_http_method",
        "permit_unconventional_http_version", "proxy_protocol", "secure_scheme_headers", "strip_header_spaces",
        # without effect on how a request is understood
        "forwarded_allow_ips", "is_ssl", "proxy_allow_ips",
    }  # fmt: skip
    assert {name for name in KNOWN_NAMES if f"cfg.{name}" in source} == known - {"is_ssl"}
    rules = Rules(Config(), 1000)
    assert all(name in vars(rules) for name in known - {"forwarded_allow_ips", "is_ssl", "proxy_allow_ips"})
    assert message._check_fast_parser(rules) is False


KNOWN_NAMES = {setting.name for setting in KNOWN_SETTINGS}


def test_the_parser_reads_from_an_unreader_and_leaves_the_rest_there():
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = Request(head, Rules(Config(), 1000))
    assert isinstance(request.body.reader, ChunkedReader)
    wire = iter([b"3;a=b\r\nab", b"c\r\n0\r\n", b"X: y\r\n\r\nGET"])
    hints = []

    def receive(hint):
        hints.append(hint)
        return next(wire)

    assert b"".join(request.chunks(receive)) == b"abc"
    assert request.rest() == b"GET"
    assert hints == [None, 1, None]
    assert request.trailers == [("X", "y")]
    assert parameters(unreader.Unreader.chunk) == ["self", "size_hint"]


def test_a_length_is_the_readers():
    request = Request(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n", Rules(Config(), 1000))
    assert isinstance(request.body.reader, LengthReader)
    assert request.length == 5
    assert Request(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n", Rules(Config(), 1000)).length == 0


def test_errors_are_those_that_have_a_sentence():
    """All that the parser raises is refused; only those that are no client's doing may go without a status."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert errors.NoMoreData in kinds
    assert all(issubclass(kind, errors.ParseException) for kind in kinds - {errors.NoMoreData})


def test_the_response_is_as_expected():
    assert issubclass(Answer, wsgi.Response)
    assert parameters(wsgi.Response.__init__) == ["self", "req", "sock", "cfg"]
    for name in ("start_response", "should_close", "default_headers", "send_headers", "write", "_emit_body"):
        assert callable(getattr(wsgi.Response, name))
    assert "self._emit_body(arg)" in inspect.getsource(wsgi.Response.write)
    assert parameters(glogging.Logger.access) == ["self", "resp", "req", "environ", "request_time"]
    assert set(wsgi.base_environ(Config())) >= {"wsgi.errors", "wsgi.version", "wsgi.file_wrapper"}


def test_a_greenlet_can_be_started_and_interrupted_from_the_loop():
    """`Connection.give_up` and `Worker._welcome` do both, without waiting for the loop's next turn."""
    seen = []

    def wait():
        try:
            Event().wait()
        except KeyError as ex:
            seen.append(ex)

    def on_the_loop():
        greenlet = gevent.Greenlet(wait)
        greenlet.switch()
        greenlet.throw(KeyError("now"))
        seen.append(greenlet.dead)
        done.set()

    done = Event()
    gevent.get_hub().loop.run_callback(on_the_loop)
    assert done.wait(5)
    assert [str(thing) for thing in seen] == ["'now'", "True"]


@pytest.mark.parametrize("alone", [True, False])
def test_giving_way_lets_the_loop_look_at_its_sockets(alone):
    """And where nobody else has anything to do, it costs microseconds."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heard = []
        watcher = gevent.get_hub().loop.io(ours.fileno(), 1)
        watcher.start(lambda: heard.append(ours.recv(1)))
        try:
            if not alone:
                theirs.send(b"x")
            began = time.monotonic()
            for _ in range(1000 if alone else 2):
                give_way()
            assert time.monotonic() - began < 0.5
            assert heard == ([] if alone else [b"x"])
        finally:
            watcher.close()
