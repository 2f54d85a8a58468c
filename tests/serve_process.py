"""Runs `embed serve` as a process of its own, and talks to it over loopback.

with Serve(model, "--max-texts", "3") as service:      any free port of 127.0.0.1, unless --addr is given
    service.ready()
    assert service.get("/health").status == 200
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import environment

SECONDS = 30.0  # for anything that should take one
EMBED = [sys.executable, "-m", "embed"]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Serve:
    """The process, its stderr line by line, and its address once it has said that it listens."""

    def __init__(
        self,
        *arguments: object,
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
        **options: Any,
    ) -> None:
        """Start `embed serve` with `arguments`, or `command` instead; `options` are those of `subprocess.Popen`."""
        if command is None:
            command = [*EMBED, "serve", *map(str, arguments)]
            command += [] if "--addr" in arguments else ["--addr", "127.0.0.1:0"]
        self.lines: list[str] = []  # of stderr, so far
        self.url = ""
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            command,
            env={**environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **{"stdout": subprocess.DEVNULL, **options},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, *ex: object) -> None:
        """End what still runs, workers too, whatever the test has done to the master."""
        workers = self.workers() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in workers:
            wait_until(lambda pid=pid: not alive(pid), "the worker to notice that its master is gone")
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[int]:
        return children_of(self.pid)

    @property
    def worker(self) -> int:
        (pid,) = self.workers()
        return pid

    def line(self, pattern: str) -> str:
        """Return the next line of stderr that matches, waiting for it; all before it are skipped."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} came; there were {self.lines}") from None
            assert line is not None, f"stderr ended without a line like {pattern!r}: {self.lines}"
            if re.search(pattern, line):
                return line

    def ready(self) -> str:
        """Wait for the line that says where it listens, and return it."""
        line = self.line("listening on ")
        self.url = re.search(r"listening on (\S+)", line)[1]  # type: ignore[index]
        return line

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end by itself and return its exit code."""
        code = self.process.wait(SECONDS)
        self._reader.join()
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        self.send(number)
        return self.wait()

    def connect(self) -> socket.socket:
        if self.url.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(SECONDS)
            sock.connect(self.url.removeprefix("unix:"))
            return sock
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send one request on a connection of its own; a body that isn't bytes is sent as JSON."""
        connection = http.client.HTTPConnection("embed", timeout=SECONDS)
        connection.sock = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def embed(self, text: str | list[str], **headers: str) -> Answer:
        return self.request("POST", "/create_embedding", {"text": text}, **headers)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._arrived.put(self.lines[-1])
        self._arrived.put(None)


class InBackground:
    """Calls a function on a thread; `result()` waits for it, and raises what it raised."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        value, error = self._outcome.get(timeout=SECONDS)
        self._thread.join()
        if error is not None:
            raise error
        return value

    def _run(self, function: Any, arguments: tuple[Any, ...]) -> None:
        try:
            self._outcome.put((function(*arguments), None))
        except Exception as ex:
            self._outcome.put((None, ex))


def wait_until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    """Poll for something that no event tells of."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead but not reaped doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """Return the processes that any of its threads has started."""
    lists = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for children in lists for child in children.read_text().split()]
