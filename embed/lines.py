"""Lines of a stream in batches, as soon as they arrive.

A batch is what is there when the first line is: a slow writer gets its vectors early, a file comes in batches of about
16 KiB, two chunks of the forward, so that memory stays the same however long the stream is.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Iterator

from embed.errors import EmbedError, TextError

READ_BYTES = 1 << 16
BATCH_BYTES = 1 << 14  # about 4,000 tokens; the forward takes 2,048 at a time
BATCH_LINES = 512  # of very short lines: no more than a screenful of waiting on a slow machine
MAX_LINE_BYTES = 16 << 20  # a stream without line ends (/dev/zero) must not fill the memory
LINGER_S = 0.01  # how long a batch waits for a next line: some writers put out one line at a time, but quickly


class Lines:
    """Iterates over lists of lines from a file descriptor; a line's own \\n or \\r\\n is stripped, nothing else."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._complete: deque[bytes] = deque()
        self._tail: list[bytes] = []  # pieces of the line whose end hasn't been seen
        self._tail_bytes = 0
        self._ended = False
        self._read_bytes = 0
        self._total_bytes = _remaining(fd)
        self.count = 0  # lines handed out

    @property
    def fraction(self) -> float | None:
        """How much of the stream was handed out, 0 to 1, or None for a pipe, whose end nobody knows."""
        if not self._total_bytes:
            return None
        waiting = sum(len(line) + 1 for line in self._complete) + self._tail_bytes
        return (self._read_bytes - waiting) / self._total_bytes

    def __iter__(self) -> Iterator[list[str]]:
        """Yield batches. Raises `TextError` after the lines before one that isn't UTF-8, or is far too long."""
        while self._fill():
            batch: list[str] = []
            size = 0
            while self._complete and len(batch) < BATCH_LINES and size < BATCH_BYTES:
                line = self._complete[0]
                size += len(line)
                try:
                    text = line.decode()
                except UnicodeDecodeError as ex:
                    if batch:
                        break  # the good lines first; the next round comes back to this one
                    raise _not_utf8(self.count, ex) from None
                self._complete.popleft()
                batch.append(text)
                self.count += 1
            yield batch

    def _fill(self) -> bool:
        """Wait for a line, then take what else is there; tell whether there is a line."""
        while not self._ended and not self._complete:
            select.select([self._fd], [], [])
            self._read()
        while not self._ended and len(self._complete) < BATCH_LINES and self._waiting_bytes() < BATCH_BYTES:
            if not select.select([self._fd], [], [], LINGER_S)[0]:
                break
            self._read()
        return bool(self._complete)

    def _waiting_bytes(self) -> int:
        return sum(map(len, self._complete)) + self._tail_bytes

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:  # another process shares the pipe and was quicker
            return
        except OSError as ex:
            raise EmbedError(f"standard input can't be read: {ex.strerror}") from ex
        self._read_bytes += len(data)
        if not data:
            self._ended = True
            if self._tail_bytes:
                self._complete.append(self._take_tail())
            return
        first, *rest = data.split(b"\n")
        self._keep(first)
        for piece in rest:
            self._complete.append(self._take_tail().removesuffix(b"\r"))
            self._keep(piece)
        self._refuse_endless()

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._tail.append(piece)
            self._tail_bytes += len(piece)

    def _take_tail(self) -> bytes:
        line = b"".join(self._tail)
        self._tail, self._tail_bytes = [], 0
        return line

    def _refuse_endless(self) -> None:
        if self._tail_bytes > MAX_LINE_BYTES:
            index = self.count + len(self._complete)
            raise TextError(
                f"line {index + 1} is longer than {MAX_LINE_BYTES >> 20} MiB; a text is one line, ended by \\n", index
            )


def _remaining(fd: int) -> int | None:
    status = os.fstat(fd)
    return status.st_size - os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else None


def _not_utf8(index: int, ex: UnicodeDecodeError) -> TextError:
    byte = ex.object[ex.start]
    return TextError(
        f"line {index + 1} is not UTF-8 (byte 0x{byte:02x} after {ex.start} others); convert the input first, "
        "e.g. with iconv -f LATIN1 -t UTF-8",
        index,
    )
