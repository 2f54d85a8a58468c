"""The connections that wait for their clients, by what they wait for: who is overdue, and who can best be spared.

A timer ends those that are overdue. Where connections, descriptors or memory run short, those that have waited longest
go first.
"""

from __future__ import annotations

import time

import gevent

from embed.server.connection import BODY, HEAD, IDLE, STAGES, Connection, Dropped, Refused
from embed.server.hangups import Hangups
from embed.server.limits import Limits
from embed.server.waiting import give_way

DRAIN_S = 1.0  # while draining: for a client that has just connected, or sent half a head, to send the rest


class Lobby:
    """The connections that wait for their clients, by stage, longest first; and how many bytes bodies hold."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.hangups = Hangups()
        self.idle_s = limits.idle_s
        self.buffered = 0
        self.released = 0  # of what was buffered, ever
        self._waiting: dict[str, dict[Connection, None]] = {stage: {} for stage in STAGES}
        tick = max(0.02, min(limits.idle_s, limits.linger_s) / 10)
        self._timer = gevent.get_hub().loop.timer(tick, repeat=tick)
        self._timer.start(self.end_overdue)

    def enter(self, connection: Connection) -> None:
        waiting = self._waiting[connection.stage]
        if connection not in waiting:
            waiting[connection] = None

    def leave(self, connection: Connection) -> None:
        if connection.stage:
            self._waiting[connection.stage].pop(connection, None)

    def drain(self) -> None:
        """End the connections that are between requests; one that is new has a moment to send its first."""
        self.idle_s = min(DRAIN_S, self.idle_s)
        soon = time.monotonic() + self.idle_s
        for connection in (*self._waiting[IDLE], *self._waiting[HEAD]):
            if connection.stage == HEAD or not connection.served:
                connection.until = min(connection.until, soon)
            else:
                connection.interrupt(Dropped())

    def refuse_arrivals(self) -> None:
        """Refuse the requests that are still arriving."""
        for stage in (HEAD, BODY):
            for connection in list(self._waiting[stage]):
                self._give_up(connection, Refused(503, "the service is ending; send the request again"))

    def shed(self) -> bool:
        """Give up the connection that can best be spared; False if none waits for its client."""
        for stage in STAGES:
            for connection in self._waiting[stage]:
                self._give_up(connection, Refused(503, "the server is out of connections; try again later"))
                return True
        return False

    def make_room(self, connection: Connection) -> None:
        """See to it that bodies hold no more than they may: the one that is longest under way goes, or is refused."""
        while self.buffered > self.limits.buffered_bytes:
            error = Refused(503, "the server holds too many bytes of unfinished requests; try again later")
            oldest = next(iter(self._waiting[BODY]), connection)
            if oldest is connection:
                raise error
            self._give_up(oldest, error)
            give_way()

    def _give_up(self, connection: Connection, error: Refused) -> None:
        del self._waiting[connection.stage][connection]
        connection.give_up(error if connection.stage in (HEAD, BODY) else Dropped())

    def end_overdue(self) -> None:
        """End those whose time is past."""
        now = time.monotonic()
        for stage, waiting in self._waiting.items():
            for connection in [connection for connection in waiting if connection.until < now]:
                late = Refused(408, f"the request's {stage} did not arrive in time")
                connection.interrupt(late if stage in (HEAD, BODY) else Dropped())
