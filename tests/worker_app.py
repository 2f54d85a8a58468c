"""The application that the worker's tests run under gunicorn: what the worker calls of the real one, and routes that
show what reached it. `GET /health` answers at once; `/state` tells what the process holds.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import gc
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs

import gevent
import gevent.monkey
from gevent.event import Event

from embed.errors import ModelError, OptionError
from embed.server.connection import Connection


class App:
    def __init__(self, *, fails: str = "", info: str = "(stub)") -> None:
        self.calls = collections.Counter()  # by route, and what the worker called
        self.refusals = collections.Counter()
        self.go = Event()  # what /wait waits for
        self.hoard = []
        self.order = ""
        self.draining = False
        self._fails = fails
        self._info = info

    # --- what the worker calls

    def refused(self, status):
        self.refusals[str(status)] += 1

    def drain(self):
        self.draining = True

    def abandon(self):
        self.go.set()

    def close(self):
        print("app: closed", file=sys.stderr, flush=True)

    def on_ready(self, callback):
        if not self._fails:
            gevent.spawn(callback, self._info)

    def on_failure(self, callback):
        if self._fails:
            gevent.spawn(callback, ModelError(f"{self._fails}; bring it back"))

    # --- routes

    def __call__(self, environ, start_response):
        route = environ["PATH_INFO"].strip("/") or "health"
        self.calls[route] += 1
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        reply = getattr(self, f"get_{route}", None)
        if reply is None:
            return answer(start_response, b"nothing here", status="404 Not Found")
        return reply(environ, start_response, **query)

    def get_health(self, environ, start_response, **query):
        return answer(start_response, b"ok")

    get_counted = get_health  # `calls` has it

    def get_work(self, environ, start_response):
        """Answer as the real application does for a text, which it takes no more while it drains."""
        return answer(start_response, b"done", "503 Service Unavailable" if self.draining else "200 OK")

    def get_echo(self, environ, start_response):
        return answer(start_response, environ["wsgi.input"].read())

    def get_digest(self, environ, start_response):
        body = environ["wsgi.input"].read()
        return answer(start_response, f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode())

    def get_length(self, environ, start_response):
        return answer(start_response, b"%d" % len(environ["wsgi.input"].read()))

    def get_environ(self, environ, start_response, **query):
        environ = {name: value for name, value in environ.items() if isinstance(value, str)}
        return answer(start_response, json.dumps(environ).encode())

    def get_large(self, environ, start_response, size, pieces="1"):
        """Answer with `pieces` times `size` bytes, a number for all of whose bytes is its place."""
        start_response("200 OK", [("Content-Length", str(int(size) * int(pieces)))])
        return (bytes([number % 256]) * int(size) for number in range(int(pieces)))

    def get_chunks(self, environ, start_response, pieces):
        """Answer without a length, and with a piece that is empty."""
        start_response("200 OK", [])
        return iter([b"", *(b"%d," % number for number in range(int(pieces)))])

    def get_short(self, environ, start_response):
        start_response("200 OK", [("Content-Length", "10")])
        return [b"half"]

    def get_late(self, environ, start_response):
        """Read the body when the answer has begun."""
        start_response("200 OK", [])
        yield b"begun "
        yield environ["wsgi.input"].read()

    def get_error(self, environ, start_response, **query):
        raise RuntimeError("a secret of the inside")

    def get_broken(self, environ, start_response):
        start_response("200 OK", [("Content-Length", "10")])
        yield b"half"
        raise RuntimeError("a secret of the inside")

    def get_oserror(self, environ, start_response):
        raise FileNotFoundError("a secret of the inside")

    def get_sip(self, environ, start_response, size):
        """Read the body bit by bit."""
        read, pieces = environ["wsgi.input"].read, []
        while piece := read(int(size)):
            pieces.append(piece)
        return answer(start_response, b"".join(pieces))

    def get_lines(self, environ, start_response):
        return answer(start_response, json.dumps([line.decode() for line in environ["wsgi.input"]]).encode())

    def get_keep(self, environ, start_response):
        """Read the body, and hold it until `/release`."""
        body = environ["wsgi.input"].read()
        self.go.wait()
        return answer(start_response, b"%d" % len(body))

    def get_wait(self, environ, start_response):
        self.go.wait()
        return answer(start_response, b"waited")

    def get_hoard(self, environ, start_response, leave):
        """Open descriptors until so many are left, or with -1 give them back."""
        while self.hoard and int(leave) < 0:
            os.close(self.hoard.pop())
        if int(leave) >= 0:
            with contextlib.suppress(OSError):
                while True:
                    self.hoard.append(os.dup(0))
            for _ in range(int(leave)):
                os.close(self.hoard.pop())
        return answer(start_response, b"ok")

    def get_freeze(self, environ, start_response, seconds="0.3"):
        """Hold up the loop, so that what others send meanwhile is all there when it goes on."""
        time.sleep(float(seconds))
        return answer(start_response, b"ok")

    def get_slow(self, environ, start_response, seconds):
        gevent.sleep(float(seconds))
        return answer(start_response, b"slow")

    def get_stuck(self, environ, start_response):
        Event().wait()

    def get_order(self, environ, start_response, who):
        """Answer with who asked so far, in order."""
        self.order += who
        return answer(start_response, self.order.encode())

    def get_forever(self, environ, start_response):
        start_response("200 OK", [])
        try:
            while True:
                yield b"and on "
                gevent.sleep(0.1)
        finally:
            self.calls["forever-closed"] += 1

    def get_watch(self, environ, start_response):
        """Wait for `/release`, and answer with what the connection tells meanwhile; `calls` counts it too."""
        told = []
        broken = Event()
        with environ["embed.connection"].watch(
            lambda: self.told("eof", told), lambda: self.told("reset", told, broken)
        ):
            gevent.wait([self.go, broken], count=1)
        return answer(start_response, json.dumps(told).encode())

    def told(self, what, told, event=None):
        told.append(what)
        self.calls[what] += 1
        if event is not None:
            event.set()

    def get_release(self, environ, start_response):
        self.go, go = Event(), self.go
        go.set()
        return answer(start_response, b"ok")

    def get_state(self, environ, start_response):
        lobby = environ["embed.connection"].lobby
        gc.collect()
        things = gc.get_objects()
        state = {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "connections": sum(isinstance(thing, Connection) for thing in things),
            "greenlets": sum(isinstance(thing, gevent.Greenlet) and not thing.dead for thing in things),
            "buffered": lobby.buffered,
            "calls": self.calls,
            "refusals": self.refusals,
            "patched": list(gevent.monkey.saved),
            "pid": os.getpid(),
            "resident_mb": resident_mb(),
        }
        return answer(start_response, json.dumps(state).encode())


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def answer(start_response, body, status="200 OK"):
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def create(**settings):
    return App(**settings)


def create_badly():
    raise OptionError("the option x is wrong; leave it out")


def create_on_an_old_kernel():
    """Return an application in whose process no death of another can be watched."""

    def pidfd_open(pid):
        raise OSError(errno.ENOSYS, "this kernel has no pidfd_open")

    os.pidfd_open = pidfd_open
    return App()


def create_once(flag):
    """Return an application whose model loads in the first process that asks, and in none after it."""
    fails = "it has gone" if Path(flag).exists() else ""
    Path(flag).touch()
    return App(fails=fails)
