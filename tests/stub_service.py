"""The service's application on `stub_embedder.StubEmbedder`, asked without a socket.

with serving() as service:
    result = service.embed({"text": "a"})
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import falcon.testing
import gevent
from gevent.event import Event
from stub_embedder import StubEmbedder

from embed.server.app import Application
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.service import Service
from embed.server.settings import Settings

SECONDS = 20  # for anything that should take a hundredth of one


class StubService:
    """An application and the client that asks it."""

    def __init__(self, load: Callable[[], Any], limits: Limits, **settings: Any) -> None:
        self._load_ended = Event()
        metrics = Metrics()
        given = Settings(**{"model": "./models/stub", **settings})
        service = Service(load, limits=limits, metrics=metrics, warmup=given.warmup, unload_after_s=given.unload_after)
        self.app = Application(service, metrics, given, limits)
        self.app.on_ready(lambda info: self._load_ended.set())
        self.app.on_failure(lambda ex: self._load_ended.set())
        self.client = falcon.testing.TestClient(self.app)

    def wait_for_load(self) -> None:
        """Wait until the model is served, or known not to be."""
        assert self._load_ended.wait(SECONDS)
        self._load_ended.clear()

    def embed(self, document: Any, **more: Any) -> falcon.testing.Result:
        return self.client.simulate_post("/create_embedding", json=document, **more)

    def get(self, path: str, query: str = "", **more: Any) -> falcon.testing.Result:
        return self.client.simulate_get(path, query_string=query, **more)

    def counters(self) -> dict[str, float]:
        """Return the value of each line of /metrics."""
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def raw(self, method: str = "GET", path: str = "/health", **environ: Any) -> tuple[int, dict[str, str], bytes]:
        """Ask with exactly this WSGI environment: what a client that is no client may send."""
        began = []
        given = {**falcon.testing.create_environ(), "REQUEST_METHOD": method, "PATH_INFO": path, **environ}
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


def behind_a_held_one(service: StubService, embedder: StubEmbedder, documents: Sequence[Any]) -> list[gevent.Greenlet]:
    """Ask for `documents` while a forward holds at the gate, that of one more request. Open the gate to go on."""
    embedder.gate.clear()
    greenlets = [gevent.spawn(service.embed, {"text": "held"})]
    with gevent.Timeout(SECONDS):
        while embedder.chunks[-1:] != [["held"]]:
            gevent.sleep(0.001)
    greenlets += [gevent.spawn(service.embed, document) for document in documents]
    gevent.sleep(0)  # each runs until it waits for its answer
    return greenlets
