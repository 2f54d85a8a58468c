"""The services that `serving.py` and `footprint.py` compare: started as processes, asked, measured and ended."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

START_S = 180.0  # PyTorch on a cold disk takes tens of seconds
END_S = 20.0
EMBED = f"{Path(sysconfig.get_path('scripts'), 'embed')} serve {{model}} --addr 127.0.0.1:{{port}}"
PEER = f"{{python}} {Path(__file__).with_name('fastapi_service.py')} {{model}} --port {{port}}"

JSON = {"Content-Type": "application/json"}  # FastAPI insists


def peer_command(python: str) -> str:
    return PEER.replace("{python}", shlex.quote(python))


def post(texts: list[str]) -> str:
    """Return a whole request for the vectors of `texts`; one text goes as a string."""
    body = json.dumps({"text": texts if len(texts) > 1 else texts[0]})
    head = "POST /create_embedding HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}"


def get(path: str) -> str:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass
class Service:
    """A service's process; use it with `with`, which ends it. `start_s` is from its start to its first vector."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    start_s: float = 0.0

    @classmethod
    def start(cls, name: str, command: str, model: str) -> Service:
        """Start `command`, in which {model} and {port} are filled in, and await the first vector."""
        port = free_port()
        words = [word.format(model=model, port=port) for word in shlex.split(command)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "EMBED_"))}
        log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        began = time.perf_counter()
        process = subprocess.Popen(
            words, stdout=log, stderr=log, env={**environment, "HF_HUB_OFFLINE": "1"}, start_new_session=True
        )
        service = cls(name, process, port)
        try:
            service._await_vector()
        except BaseException:
            service.end()
            log.seek(0)
            sys.stderr.buffer.write(log.read())
            raise
        service.start_s = time.perf_counter() - began
        return service

    def vectors(self, texts: list[str]) -> list[list[float]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        connection.request("POST", "/create_embedding", json.dumps({"text": texts}), JSON)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{self.name} answered {answer.status}: {body[:400].decode(errors='replace')}")
        return list(json.loads(body)["embeddings"])

    def chunks(self) -> tuple[float, int] | None:
        """Return the seconds computed and the chunks so far, or None from a service that doesn't tell."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("embed_chunk_seconds_"))
        if "embed_chunk_seconds_sum" not in values:
            return None
        return float(values["embed_chunk_seconds_sum"]), int(float(values["embed_chunk_seconds_count"]))

    def processes(self) -> list[int]:
        """Return the ids of the process and all that descend from it."""
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        return found

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the group that was made for it
            self.process.wait()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _await_vector(self) -> None:
        end = time.perf_counter() + START_S
        while time.perf_counter() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with exit code {self.process.returncode}")
            try:
                self.vectors(["first"])
                return
            except OSError:  # nobody listens yet
                time.sleep(0.005)
        raise SystemExit(f"{self.name} gave no vector within {START_S:.0f} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def embed_version() -> str:
    import embed

    return f"embed {embed.__version__}"


def peer_version(python: str) -> str:
    command = [python, str(Path(__file__).with_name("fastapi_service.py")), "--versions"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
