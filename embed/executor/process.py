"""The child as its parent sees it: a process, its pipes, what it last said, and how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from embed.executor import protocol
from embed.executor.protocol import BrokenMessage, Message, ProtocolError

PIPE_BYTES = 1 << 20  # for a chunk's vectors in one piece: Linux's 64 KiB cost 64 texts 1 ms
READ_BYTES = 1 << 18
MAX_LINE_BYTES = 64 << 20  # a result of 2,048 texts of 4,096 dimensions is 45 MB
LAST_WORDS_BYTES = 4096
SECRETS = ("EMBED_TOKEN", "HF_TOKEN")  # of no use to a child
END_S = 1.0  # for a child to end after its input has, and again after SIGTERM
GONE_S = 5.0  # for a killed process to be gone; one that hangs in a driver may never be
# The child must find `embed` where this process did, and never in the folder that it happens to be started in.
BOOT = "import sys; sys.path = [path for path in sys.path if path]; from embed.cli import command; command()"


class ChildEnded(Exception):
    """It has closed its output: it ended, or is about to."""


class ChildProcess:
    """A running child. The thread that starts it must stay: its end is the child's."""

    def __init__(
        self, command: Sequence[str], *, on_stray: Callable[[bytes], None], on_end: Callable[[ChildProcess], None]
    ) -> None:
        """Start `command`; raises `OSError`.

        `on_stray` is told of what isn't a message. `on_end` is called on a thread of its own when stderr is closed.
        """
        self._on_stray, self._on_end = on_stray, on_end
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
            start_new_session=True,  # a terminal's signals are for the parent alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # the system's limits; a smaller pipe only costs time
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._unsent = memoryview(b"")
        self._line = bytearray()  # what has come of the next line
        self._messages: deque[Message] = deque()
        self._last_words = bytearray()
        self._listener = threading.Thread(target=self._listen, name="embed-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """What it last wrote to stderr, at most 4 KiB."""
        return self._last_words.decode(errors="replace").strip()

    def send(self, line: bytes) -> None:
        """Begin to write a line; `read` writes what the pipe doesn't take at once."""
        self._unsent = memoryview(line)
        self._write()

    def read(self, until: float) -> Message | None:
        """Return the next message; None if none comes by `until`, a time of `time.monotonic`.

        Raises `ChildEnded`, and `ProtocolError` for a child that can't be talked to.
        """
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        while not self._messages:
            left = until - time.monotonic()
            if self._unsent:
                poll.register(self._stdin, select.POLLOUT)
            # Also when it is too late: this process may have been stopped meanwhile, and the child not.
            for descriptor, _ in poll.poll(max(0, math.ceil(left * 1000))):
                if descriptor == self._stdout.fileno():
                    self._take(os.read(descriptor, READ_BYTES))
                else:
                    poll.unregister(self._stdin)
                    self._write()
            if left <= 0:
                break
        return self._messages.popleft() if self._messages else None

    def end(self, *, at_once: bool = False) -> str:
        """End it, and return how it ended: "was ended by SIGKILL", "ended with code 1".

        Without `at_once` it may first leave by itself, since its input ends.
        """
        self._unsent = memoryview(b"")
        self._stdin.close()
        self._stdout.close()
        if at_once or not self._has_left(END_S):
            self._process.terminate()
        if not self._has_left(END_S):
            self._process.kill()
        self._has_left(GONE_S)
        self._listener.join(END_S)  # it reads the last words; a process that the child started may keep the pipe open
        code = self._process.returncode
        if code is None:
            return "can't be ended, even by SIGKILL"
        return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"

    def _has_left(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it has ended, as `read` will find, or wants to hear nothing more
            self._unsent = memoryview(b"")

    def _take(self, data: bytes) -> None:
        if not data:
            raise ChildEnded
        first, *others = data.split(b"\n")
        self._line += first
        for part in others:
            line, self._line = bytes(self._line), bytearray(part)
            self._take_line(line)
        if len(self._line) > MAX_LINE_BYTES:
            raise ProtocolError(f"the child wrote a line of over {MAX_LINE_BYTES:,} bytes")

    def _take_line(self, line: bytes) -> None:
        """Take a message, also one that comes after what somebody else printed without ending the line.

        No string inside of a message can hold its start, whose quotes would be escaped there.
        """
        start = line.rfind(protocol.START)
        stray = line if start < 0 else line[:start]
        try:
            if start >= 0:
                self._messages.append(protocol.decode(line[start:]))
        except BrokenMessage:
            raise
        except ProtocolError:
            stray = line
        if stray.strip():
            self._on_stray(stray)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while data := os.read(pipe.fileno(), READ_BYTES):
                self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]
        with contextlib.suppress(ChildProcessError):  # somebody has asked for its exit code already
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # closed pipes come a little before the end
        self._on_end(self)


def command(*arguments: str) -> list[str]:
    """Return the command that runs `embed` with these arguments in another process of this Python."""
    return [sys.executable, "-c", BOOT, *arguments]


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def _environment() -> dict[str, str]:
    """Return this process's environment, with its module path, and without what is none of the child's business."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    return environment
