"""A line on stderr that tells how far a long job is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

DELAY_S = 1.0  # quicker jobs show nothing
INTERVAL_S = 0.1  # between two drawings: smooth to the eye, and no load
BAR = 24  # characters


class Progress:
    """Counts `unit`s done; draws only where the stream is a terminal and the job takes longer than a second."""

    def __init__(self, unit: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._next = self._start + DELAY_S
        self._drawn = False
        self._live = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def update(self, done: int, fraction: float | None = None) -> None:
        """Say that `done` units are behind us; `fraction` (0 to 1) of the whole, where the whole is known."""
        now = self._clock()
        if not self._live or now < self._next:
            return
        self._next = now + INTERVAL_S
        line = describe(done, self._unit, now - self._start, fraction)
        self._stream.write("\r" + line[: _columns(self._stream) - 1] + "\x1b[K")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Wipe the line, so that other output can take its place; the next update draws it again."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, ex: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()


def describe(done: int, unit: str, elapsed_s: float, fraction: float | None) -> str:
    """Return the line: bar and time left where the whole is known, else the time so far."""
    rate = f"{done:,} {unit}, {done / elapsed_s:,.0f}/s" if elapsed_s > 0 else f"{done:,} {unit}"
    if fraction is None:
        return f"embed: {rate}, {_clock_time(elapsed_s)}"
    fraction = min(max(fraction, 0.0), 1.0)
    bar = "#" * int(fraction * BAR)
    left = f", {_clock_time(elapsed_s / fraction - elapsed_s)} left" if fraction > 0 else ""
    return f"embed: [{bar:.<{BAR}}] {int(fraction * 100):3d} %  {rate}{left}"


def _clock_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80  # a new pseudo-terminal says 0
    except OSError:
        return 80
