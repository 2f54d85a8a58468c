"""Runs the worker under gunicorn's own command on a free port, with `worker_app` for an application.

with running_worker(EMBED_LIMIT_IDLE_S="0.5") as worker:
    with worker.client() as client: ...
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from command_line import environment
from raw_http import SECONDS, Client, get
from serve_process import Serve

TESTS = str(Path(__file__).parent)
LIMITED = """
import resource, runpy, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
runpy.run_module("gunicorn", run_name="__main__", alter_sys=True)
"""


class LiveWorker(Serve):
    """gunicorn's command, running; `pid` is its master's."""

    def client(self, **options: Any) -> Client:
        return Client(self.port, **options)

    def log(self) -> str:
        """Return what it has said on standard error, so far."""
        return "\n".join(self.lines)

    def ask(self, data: bytes) -> Any:
        """Send one request on a connection of its own."""
        with self.client() as client:
            return client.ask(data)

    def wait_until_answered(self) -> None:
        """Ask until the answer is no refusal."""
        until = time.monotonic() + SECONDS
        while self.ask(get("/health")).status != 200:
            assert time.monotonic() < until, "still refused"

    def state(self) -> dict[str, Any]:
        """Return what the process holds, see `worker_app`."""
        state: dict[str, Any] = self.ask(get("/state", "Connection: close")).json
        return state

    def calls(self, route: str) -> int:
        """Return how often the application was asked for `route`."""
        return int(self.state()["calls"].get(route, 0))

    def wait_for(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Ask for the state until it meets the condition."""
        until = time.monotonic() + SECONDS
        while not condition(state := self.state()):
            assert time.monotonic() < until, f"waited for {what}: {state}"
            time.sleep(0.02)
        return state


def gunicorn(*arguments: str, descriptors: int | None = None) -> list[str]:
    """Return gunicorn's command with the worker class, on a free port; `arguments` may name another class."""
    program = ["-m", "gunicorn"] if descriptors is None else ["-c", LIMITED, str(descriptors)]
    fixed = ["--no-control-socket", "-k", "embed.server.Worker", "-b", "127.0.0.1:0"]
    return [sys.executable, *program, *fixed, *arguments]


def run_gunicorn(*arguments: str, **env: str) -> tuple[int, str]:
    """Run it until it ends by itself; return its exit code and what it said."""
    settings = environment(PYTHONPATH=TESTS, **env)
    done = subprocess.run(gunicorn(*arguments), env=settings, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stderr


@contextlib.contextmanager
def running_worker(
    *options: str, app: str = "worker_app:create()", descriptors: int | None = None, **settings: str
) -> Iterator[LiveWorker]:
    """Start gunicorn with these options and environment variables, and end it with the block."""
    command = gunicorn(*options, app, descriptors=descriptors)
    with LiveWorker(command=command, env={"PYTHONPATH": TESTS, **settings}) as worker:
        worker.ready()
        yield worker
