"""The child's ends of the two pipes, and the bond to the process that started it.

Imports little: taking stdout is the child's first act, before a library could print there.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator

from embed.console import leave

PR_SET_PDEATHSIG = 1


class Channel:
    """stdin and stdout, taken: what anybody prints from now on goes to stderr, and nobody else reads."""

    def __init__(self) -> None:
        self._requests = os.fdopen(os.dup(0), "rb")
        self._answers = os.fdopen(os.dup(1), "wb", buffering=0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that come, until the other side closes the pipe."""
        return iter(self._requests.readline, b"")

    def send(self, line: bytes) -> None:
        """Write a whole line; raises `BrokenPipeError` if nobody reads any more."""
        rest = memoryview(line)
        while rest:
            rest = rest[self._answers.write(rest) :]


def end_with(parent: int) -> None:
    """Have the kernel end this process with the thread that started it, one of the process `parent`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        leave(0)
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's reach the whole group, and the parent decides
        signal.signal(number, signal.SIG_IGN)
