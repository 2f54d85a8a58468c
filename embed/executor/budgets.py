"""How long the supervisor waits for its child: the two limits that environment variables set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from embed.errors import OptionError

STARTUP_VARIABLE, WATCHDOG_VARIABLE = "EMBED_EXECUTOR_STARTUP_MS", "EMBED_EXECUTOR_WATCHDOG_MS"
MIN_MS, MAX_MS = 100, 86_400_000
REPORTS = 4  # of progress within the watchdog's time, so that a late one isn't taken for silence


@dataclass(frozen=True)
class Budgets:
    """Two, since they see different things: loading is one long native call that can't report anything."""

    startup_s: float = 300.0  # from the start of the child until it is ready
    watchdog_s: float = 30.0  # the longest silence while it computes

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Budgets:
        """Return the budgets that the environment sets, in milliseconds; raises `OptionError` naming the variable."""
        return cls(
            startup_s=_seconds(environ, STARTUP_VARIABLE, cls.startup_s),
            watchdog_s=_seconds(environ, WATCHDOG_VARIABLE, cls.watchdog_s),
        )

    @property
    def report_s(self) -> float:
        """How often the child reports progress at most."""
        return min(1.0, self.watchdog_s / REPORTS)


def _seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_MS))
    if not (digits and MIN_MS <= int(text) <= MAX_MS):
        raise OptionError(
            f"{variable} is {text!r}; a whole number of milliseconds, {MIN_MS} to {MAX_MS:,}, is expected"
        )
    return int(text) / 1000
