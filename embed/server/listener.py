"""A listening socket: accepts what comes, also where descriptors run out."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import gevent

from embed.server.connection import READ
from embed.server.lobby import Lobby

ACCEPTS = 64  # on one wake-up, so that a flood of connections leaves a turn to those that are there
LAST_ACCEPTS = 4096  # more than a backlog; a flood may not keep us from ending
PAUSE_S = 0.1  # where no descriptor is left and no connection can be spared


class Listener:
    """`welcome(sock, address, environ)` is called for each client; `environ` says where it came in."""

    def __init__(self, listening: Any, welcome: Callable[..., object], lobby: Lobby, log: Any, environ: Any) -> None:
        listening.setblocking(False)
        name = listening.getsockname()
        host, port = name[:2] if isinstance(name, tuple) else ("localhost", "")
        self.url = url_of(name)
        self._environ = {**environ, "SERVER_NAME": host, "SERVER_PORT": str(port)}
        self._listening = listening
        self._welcome = welcome
        self._lobby = lobby
        self._log = log
        self._short = False
        self._loop = gevent.get_hub().loop
        self._readable = self._loop.io(listening.fileno(), READ)
        self._readable.start(self._accept)
        self._again: Any = None

    def _accept(self) -> None:
        accepted = 0
        try:
            while accepted < ACCEPTS and self._accept_one():
                accepted += 1
        except OSError as ex:
            # Descriptors have run out, which the kernel says even where nobody waits: the loop has told of one client.
            if accepted == 0 and not self._lobby.shed():
                self._pause(ex)

    def _accept_one(self) -> bool:
        try:
            sock, address = self._listening.accept()
        except BlockingIOError:
            return False
        except ConnectionError:  # gone again
            return True
        self._short = False
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._welcome(sock, address, self._environ)
        return True

    def _pause(self, ex: OSError) -> None:
        if not self._short:
            self._log.warning("no connection can be accepted: %s", ex.strerror)
        self._short = True
        self._readable.stop()
        self._again = self._loop.timer(PAUSE_S)  # a new one: started a second time, it would fire at once
        self._again.start(self._readable.start, self._accept)

    def close(self, *, take_waiting: bool) -> None:
        """Accept no more, but maybe those who have connected already: nobody else might."""
        with contextlib.suppress(OSError):
            for _ in range(LAST_ACCEPTS if take_waiting else 0):
                if not self._accept_one():
                    break
        self._readable.close()
        if self._again is not None:
            self._again.close()
        self._listening.close()


def url_of(name: Any) -> str:
    """Return a socket's address as people write it."""
    if not isinstance(name, tuple):
        return f"unix:{name.decode() if isinstance(name, bytes) else name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
