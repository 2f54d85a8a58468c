"""A listening socket: accepts what comes, also where descriptors run out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import gevent

from embed.server.connection import READ, Lobby

ACCEPTS = 64  # on one wake-up, so that a flood of connections leaves a turn to those that are there
LAST_ACCEPTS = 4096  # more than a backlog; a flood may not keep us from ending
PAUSE_S = 0.1  # where no descriptor is left and no connection can be spared


class Listener:
    """`welcome(sock, address, environ)` is called for each client; `environ` says where it came in."""

    def __init__(self, listening: Any, welcome: Callable[..., object], lobby: Lobby, log: Any, environ: Any) -> None:
        listening.setblocking(False)
        name = listening.getsockname()
        host, port = name[:2] if isinstance(name, tuple) else ("localhost", "")
        self.url = _url(name)
        self._environ = {**environ, "SERVER_NAME": host, "SERVER_PORT": str(port)}
        self._listening = listening
        self._welcome = welcome
        self._lobby = lobby
        self._log = log
        loop = gevent.get_hub().loop
        self._readable = loop.io(listening.fileno(), READ)
        self._again = loop.timer(PAUSE_S)
        self._start()

    def _start(self) -> None:
        self._readable.start(self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if not self._accept_one():
                return

    def _accept_one(self) -> bool:
        try:
            sock, address = self._listening.accept()
        except BlockingIOError:
            return False
        except ConnectionError:  # gone again
            return True
        except OSError as ex:
            if not self._lobby.shed():  # else its descriptor is free when the loop comes back
                self._log.warning("no connection can be accepted: %s", ex.strerror)
                self._readable.stop()
                self._again.start(self._start)
            return False
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._welcome(sock, address, self._environ)
        return True

    def close(self, *, take_waiting: bool) -> None:
        """Accept no more, but maybe those who have connected already: nobody else might."""
        for _ in range(LAST_ACCEPTS if take_waiting else 0):
            if not self._accept_one():
                break
        self._readable.close()
        self._again.close()
        self._listening.close()


def _url(name: Any) -> str:
    if not isinstance(name, tuple):
        return f"unix:{name.decode() if isinstance(name, bytes) else name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
