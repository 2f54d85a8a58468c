"""The service's application on a model of plain Python that can be slow or broken on request, without a socket.

with serving() as service:
    service.client.simulate_post("/create_embedding", json={"text": "a"})
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import falcon.testing
import gevent.event
import numpy as np

from embed.errors import TextError
from embed.server.app import Application
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.service import Service
from embed.server.settings import Settings
from embed.tokenizer import TokenizedText

DIMENSION = 4
MAXSEQ = 32
FIRST, LAST = 256, 257  # the special tokens; every other token is a byte
PATIENCE_S = 30


class StubEmbedder:
    """A text's tokens are its UTF-8 bytes. One that holds NAN has no finite vector, BOOM ends its forward."""

    dimension = DIMENSION
    maxseq = MAXSEQ
    device = "cpu stub"

    def __init__(self):
        self._gate = threading.Event()  # what each forward waits for
        self._gate.set()
        self._held = threading.Event()
        self.chunks = []  # the texts of each forward
        self.closed = False

    def hold(self):
        """From now on a forward waits, until `release`."""
        self._held.clear()
        self._gate.clear()

    def wait_until_held(self):
        assert self._held.wait(PATIENCE_S)

    def release(self):
        self._gate.set()

    def tokenize(self, texts):
        for index, text in enumerate(texts):
            if "UNTOKENIZABLE" in text:
                raise TextError(f"text {index} cannot be tokenised; leave it out", index)
            if "FAULT" in text:
                raise ValueError("a secret of the inside")
        return [self._tokenized(text) for text in texts]

    def _tokenized(self, text):
        ids = np.array([FIRST, *text.encode(), LAST], np.int32)
        return TokenizedText(ids if len(ids) <= MAXSEQ else np.append(ids[: MAXSEQ - 1], ids[-1]), len(ids))

    def encode_chunk(self, tokenized, *, normalize):
        if not self._gate.is_set():
            self._held.set()
            assert self._gate.wait(PATIENCE_S)
        texts = [bytes(text.ids[1:-1].astype(np.uint8)).decode(errors="ignore") for text in tokenized]
        self.chunks.append(texts)
        if any("BOOM" in text for text in texts):
            raise RuntimeError("the forward broke")
        return np.array([vector(text, normalize) for text in texts])

    def close(self):
        self.closed = True


def vector(text: str, normalize: bool = True) -> np.ndarray:
    """Return the stub's vector of a text that isn't cut."""
    data = text.encode()
    row = np.array([len(data), sum(data), data[0] if data else 0, 1], np.float32)
    if "NAN" in text:
        row[1] = np.nan
    return row / np.linalg.norm(row) if normalize else row


class StubService:
    """An application and the client that asks it."""

    def __init__(self, load: Callable[[], Any], limits: Limits, **settings: Any) -> None:
        self.loads = gevent.event.Event()  # set after each load, whether or not it failed
        metrics = Metrics()
        service = Service(load, limits=limits, metrics=metrics)
        self.app = Application(service, metrics, Settings(**{"model": "models/stub", **settings}), limits)
        self.app.on_ready(lambda info: self.loads.set())
        self.app.on_failure(lambda ex: self.loads.set())
        self.client = falcon.testing.TestClient(self.app)

    def wait_for_load(self) -> None:
        assert self.loads.wait(PATIENCE_S)
        self.loads.clear()

    def embed(self, body: Any, **more: Any) -> falcon.testing.Result:
        return self.client.simulate_post("/create_embedding", json=body, **more)

    def get(self, path: str, **more: Any) -> falcon.testing.Result:
        return self.client.simulate_get(path, **more)

    def metrics(self) -> dict[str, float]:
        """Return what /metrics says: the value of each line."""
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def raw(self, method: str = "GET", path: str = "/health", **environ: Any) -> tuple[int, dict[str, str], bytes]:
        """Ask with exactly this WSGI environment: what a client that is no client may send."""
        began = []
        given = {**falcon.testing.create_environ(path), "REQUEST_METHOD": method, "PATH_INFO": path, **environ}
        pieces = self.app(given, lambda status, headers, *_: began.append((int(status[:3]), dict(headers))))
        return (*began[0], b"".join(pieces))


@contextlib.contextmanager
def serving(
    embedder: Any = None, *, load: Callable[[], Any] | None = None, limits: Limits | None = None, **settings: Any
) -> Iterator[StubService]:
    """Run the application on `embedder`, or on what `load` returns; wait until it is loaded, unless `load` is given."""
    embedder = embedder or StubEmbedder()
    service = StubService(load or (lambda: embedder), limits or Limits(), **settings)
    try:
        if load is None:
            service.wait_for_load()
        yield service
    finally:
        service.app.close()
