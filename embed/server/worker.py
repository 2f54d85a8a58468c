"""The gunicorn worker: a greenlet for each connection, and nothing monkey patched.

gunicorn's own gevent worker has no limit on a whole head, none on the time a request takes to arrive, and patches the
standard library, under which the model's native threads could not run. This one accepts, reads and answers by itself;
what it takes from gunicorn is the process around it and the parser.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
import traceback
from typing import Any

import gevent
from gevent.event import Event
from gunicorn.arbiter import Arbiter
from gunicorn.http.wsgi import base_environ
from gunicorn.workers import base

from embed.console import say
from embed.errors import EmbedError
from embed.server.connection import IDLE, LINGER, READ, Connection, on_loop
from embed.server.handler import Handler
from embed.server.limits import Limits
from embed.server.listener import Listener
from embed.server.lobby import DRAIN_S, Lobby
from embed.server.master import CUT_OFF

METHODS = ("refused", "drain", "abandon", "close", "on_ready", "on_failure")  # what the worker calls of Application
SPARE_DESCRIPTORS = 64  # for the model's files, logs, a child process
ARRIVE_S = 5.0  # after which a request that is still arriving holds up a drain, or a reload, no longer
ABANDON_S = 2.0  # before the grace period ends: for the answers that say 503
# After so many bytes of bodies, or so long after a request, what the allocator keeps is given back.
TRIM_BYTES, TRIM_S = 1 << 20, 5.0
SWITCH_S = 0.0005  # for the loop and the model thread to hand the GIL over; at Python's 5 ms, p99 was twice as long
LAST_S = 0.5  # before the grace period ends, when the master kills


class Worker(base.Worker):  # type: ignore[misc]
    is_here = False  # whether this process is one of these

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Raise `RuntimeError` for settings of gunicorn under which the service can't run."""
        try:
            Limits.from_environment()
        except EmbedError as ex:
            raise RuntimeError(str(ex)) from ex
        if cfg.is_ssl:
            raise RuntimeError("embed.server.Worker speaks plain HTTP; leave TLS to a proxy in front of it")
        if cfg.preload_app:
            raise RuntimeError("the model's threads don't survive a fork; leave out --preload (preload_app)")
        if cfg.proxy_protocol != "off":
            raise RuntimeError("embed.server.Worker knows no PROXY protocol; leave out --proxy-protocol")
        if cfg.protocol != "http" or set(cfg.http_protocols) != {"h1"}:
            raise RuntimeError("embed.server.Worker speaks HTTP/1.1; leave out --protocol and --http-protocols")
        if cfg.workers > 1:
            log.warning("each of the %d workers holds its own copy of the model; one is enough", cfg.workers)

    # --- the process

    def init_process(self) -> None:
        Worker.is_here = True
        gevent.reinit()
        sys.setswitchinterval(SWITCH_S)
        self.limits = Limits.from_environment()
        self.lobby = Lobby(self.limits)
        self.connections: set[Connection] = set()
        self._listeners: list[Listener] = []
        self._wake = Event()
        self._parent: Any = None
        self._hurry = False
        self._reopen = False
        self._status = 0
        self._trimmed = self._trimmed_nr = 0
        self._trim_at = 0.0
        super().init_process()

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the master says what to do

    def handle_quit(self, sig: int, frame: Any) -> None:
        self._hurry = True
        self.alive = False
        self.cfg.worker_int(self)

    def handle_abort(self, sig: int, frame: Any) -> None:
        """Say where the loop stood still for so long that the master ends this process."""
        self.log.critical("the event loop stood still:\n%s", "".join(traceback.format_stack(frame)))
        super().handle_abort(sig, frame)

    def handle_usr1(self, sig: int, frame: Any) -> None:
        self._reopen = True  # later, since a line may just be half written

    def load_wsgi(self) -> None:
        try:
            super().load_wsgi()
            if not all(callable(getattr(self.wsgi, name, None)) for name in METHODS):
                kind = type(self.wsgi).__name__
                raise EmbedError(f"embed.server.Worker runs what embed.server.create_app() returns, and no {kind}")
        except EmbedError as ex:
            say(f"error: {ex}")
            sys.exit(Arbiter.APP_LOAD_ERROR)

    def run(self) -> None:
        loop = gevent.get_hub().loop
        signals = loop.io(self.PIPE[0], READ)  # gunicorn has the interpreter write there on each signal
        signals.start(self._signalled)
        self._watch_parent(loop)
        self._raise_descriptors()
        self._listen()
        self.wsgi.on_ready(self._ready)
        self.wsgi.on_failure(self._failed)
        while self.alive:
            self._beat(1.0)
        if not self._hurry:
            self._drain()
        self.wsgi.close()
        if self._status:
            sys.exit(self._status)

    def _beat(self, seconds: float) -> None:
        """Tell the master that we live, and wait for a second or a signal."""
        self.notify()
        if os.getppid() != self.ppid:
            self._orphaned()
        if self._reopen:
            self._reopen = False
            self.log.reopen_files()
        now = time.monotonic()
        if self.lobby.released - self._trimmed > TRIM_BYTES or (self.nr != self._trimmed_nr and now > self._trim_at):
            self._trimmed, self._trimmed_nr, self._trim_at = self.lobby.released, self.nr, now + TRIM_S
            _give_memory_back()
        self._wake.wait(min(seconds, self.timeout or seconds))
        self._wake.clear()

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.PIPE[0], 4096)
        self._wake.set()

    def _watch_parent(self, loop: Any) -> None:
        with contextlib.suppress(OSError, AttributeError):  # an old kernel: `_beat` finds out within a second
            self._parent = loop.io(os.pidfd_open(self.ppid), READ)
            self._parent.start(self._orphaned)

    def _orphaned(self) -> None:
        if self._parent is not None:
            self._parent.stop()
        self.log.warning("the master process is gone, and its worker ends")
        self._hurry = True
        self._stop()

    def _stop(self) -> None:
        self.alive = False
        self._wake.set()

    def _ready(self, info: str) -> None:
        say(f"listening on {' and '.join(listener.url for listener in self._listeners)} {info}")

    def _failed(self, error: Exception) -> None:
        """End the server where it has just begun; a later worker stays, and the application answers 503."""
        if self.age > 1:
            self.log.error("the model could not be loaded: %s", error)
            return
        say(f"error: {error}")
        self._status = Arbiter.APP_LOAD_ERROR
        self._stop()

    @property
    def has_successor(self) -> bool:
        """Whether a worker follows that takes who connects from now on; this one then sends nobody away."""
        return False

    @property
    def refuse_after_s(self) -> float:
        """How long after the end has begun the application still takes texts from who is connected.

        gunicorn doesn't tell whether it reloads or ends. In a reload nobody should notice, and who connected in time
        has a moment to ask.
        """
        return DRAIN_S

    # --- connections

    def _listen(self) -> None:
        environ = {**base_environ(self.cfg), "wsgi.multithread": True, "SCRIPT_NAME": ""}
        del environ["wsgi.file_wrapper"]  # optional, and not worth a second way of sending
        self._handler = Handler(self)
        for listening in self.sockets:
            self._listeners.append(Listener(listening, self._welcome, self.lobby, self.log, environ))

    def _raise_descriptors(self) -> None:
        wanted = self.limits.connections + SPARE_DESCRIPTORS
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY:
            soft = wanted
        elif soft < allowed:
            soft = allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.most_connections = max(8, min(self.limits.connections, soft - SPARE_DESCRIPTORS))

    def _welcome(self, sock: socket.socket, address: Any, environ: dict[str, Any]) -> None:
        if len(self.connections) >= self.most_connections:
            self.lobby.shed()
        full = len(self.connections) >= self.most_connections
        connection = Connection(sock, address, self.lobby)
        self.connections.add(connection)
        handle = self._handler.turn_away if full else self._handler.serve
        # At once, so that it waits in the lobby: a flood of new clients is to make room for itself.
        on_loop(gevent.Greenlet(handle, connection, environ).switch)

    def before(self, request: Any) -> None:
        """Note that a request begins."""
        self.cfg.pre_request(self, request)
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("max_requests is reached, and a new worker takes over")
            self._stop()

    def after(self, request: Any, environ: Any, answer: Any) -> None:
        """Note that it has ended, with an answer or without."""
        self.cfg.post_request(self, request, environ, answer)

    def is_ending(self) -> bool:
        return not self.alive

    def end(self, connection: Connection) -> None:
        connection.close()
        self.connections.discard(connection)
        if not self.connections and not self.alive:
            self._wake.set()

    def _drain(self) -> None:
        """Answer what has come, and take no more; what is left when the grace period ends is answered 503, or cut."""
        began = time.monotonic()
        abandon_at = began + max(0.0, self.cfg.graceful_timeout - ABANDON_S)
        end_at = began + max(0.0, self.cfg.graceful_timeout - LAST_S)
        steps = [
            (min(began + self.refuse_after_s, abandon_at), self.wsgi.drain),
            (min(began + ARRIVE_S, abandon_at), self.lobby.refuse_arrivals),
            (abandon_at, self.wsgi.abandon),
        ]
        steps.sort(key=lambda step: step[0])
        for listener in self._listeners:
            listener.close(take_waiting=not self.has_successor)
        self.lobby.drain()
        while self.connections and not self._hurry and (now := time.monotonic()) < end_at:
            while steps and now >= steps[0][0]:
                steps.pop(0)[1]()
            self._beat(min(1.0, (steps[0][0] if steps else end_at) - now))
        cut = [connection for connection in self.connections if connection.stage not in (IDLE, LINGER)]
        if cut:
            self.log.warning("%d connections are cut off", len(cut))
            self._status = CUT_OFF


def _give_memory_back() -> None:
    """Have the C library return free memory to the system; after a 16 MiB body it would keep up to 64 MiB."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
