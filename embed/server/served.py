"""The worker of `embed serve`: what the plain one says itself, this one tells its master."""

from __future__ import annotations

import math

from embed.server.worker import Worker


class ServedWorker(Worker):
    """`self.app` is an `embed.server.serve.Service`."""

    @property
    def has_successor(self) -> bool:
        return bool(self.app.report.reloading)

    @property
    def refuse_after_s(self) -> float:
        return math.inf if self.has_successor else 0.0

    def _ready(self, info: str) -> None:
        self.app.ready(info)

    def _failed(self, error: Exception) -> None:
        if self.app.failed(error):
            self._stop()
