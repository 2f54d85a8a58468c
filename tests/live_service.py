"""Runs a service as people do, as a process on loopback, and waits for its line "… listening on http://HOST:PORT …"."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from command_line import SECONDS, environment

LISTENING = re.compile(r"listening on (http://\S+)")


@dataclass
class LiveService:
    """A service's process; `log` grows by what it says on standard error."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    url: str = ""
    told: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def follow(self) -> None:
        """Read the log to its end, so that the pipe never fills."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if not self.url and (found := LISTENING.search(line)):
                self.url = found[1]
                self.told.set()
        self.told.set()

    def end(self) -> int:
        """End it as an operator would; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def running(*arguments: object, **settings: str) -> Iterator[LiveService]:
    """Run `python ARGUMENTS` with these environment variables until the block ends."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**settings),
    )
    service = LiveService(process)
    follower = threading.Thread(target=service.follow)
    follower.start()
    try:
        assert service.told.wait(SECONDS), "it doesn't say that it listens"
        assert service.url, "it ended:\n" + "".join(service.log)
        yield service
    finally:
        service.end()
        follower.join(SECONDS)
        process.stderr.close()


def serving(model: object, *options: object, **settings: str) -> contextlib.AbstractContextManager[LiveService]:
    """Run `embed serve` on a free port."""
    return running("-m", "embed", "serve", model, "--addr", "127.0.0.1:0", *options, **settings)
