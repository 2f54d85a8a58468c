"""What every command does with stdout and stderr: a message, a piece of output, and an end without noise."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from embed.errors import EmbedError

STDERR = 2
_kept: list[object] = []


def hold_standard_streams() -> None:
    """Open /dev/null wherever stdin, stdout or stderr is closed, or the next socket would be what they write to."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(number)


def say(message: str) -> None:
    """Print one line on stderr, if there is one that still takes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print("embed:", message, file=sys.stderr, flush=True)


def check_stdout() -> None:
    """Raise `EmbedError` if stdout is closed, where Python has none at all."""
    if sys.stdout is None:
        raise EmbedError("standard output is closed; there is nowhere to write to")


def put(data: bytes) -> None:
    """Write to stdout and flush. A reader that went away stays a `BrokenPipeError`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as ex:
        raise EmbedError(f"standard output can't be written: {ex.strerror}") from ex


def drop_output() -> None:
    """Point stdout at /dev/null, or what its buffer still holds would fail once more while Python exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def keep(thing: object) -> None:
    """Hold `thing` until the process ends, which frees it at once; piece by piece XLM-R's vocabulary takes 0.2 s."""
    _kept.append(thing)


def leave(code: int) -> NoReturn:
    """End the process without tidying up a memory that goes anyway."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
