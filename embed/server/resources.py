"""The routes: what each reads from a request and writes into its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import falcon
import numpy as np
import orjson
from numpy.typing import NDArray

from embed.server.limits import Limits
from embed.server.metrics import CONTENT_TYPE, Metrics
from embed.server.openapi import TRUNCATED_HEADER, document
from embed.server.payload import Payload, check_headers, from_body, from_query
from embed.server.service import Service
from embed.server.settings import Settings

PIECE_NUMBERS = 8192  # 0.3 ms of writing, under the GIL; then others get a turn


class CreateEmbedding:
    """Texts to vectors."""

    def __init__(self, service: Service, name: str, settings: Settings, limits: Limits) -> None:
        self._service = service
        self._name = name
        self._normalize = not settings.no_normalize
        self._max_texts = settings.max_texts
        self._max_commas = limits.commas

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        check_headers(req)
        body = req.env["wsgi.input"].read(-1)
        self._answer(req, resp, from_body(body, max_texts=self._max_texts, max_commas=self._max_commas))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer(req, resp, from_query(req.query_string))

    on_head = on_get

    def _answer(self, req: falcon.Request, resp: falcon.Response, payload: Payload) -> None:
        answer = self._service.embed(
            payload.texts,
            normalize=self._normalize if payload.normalize is None else payload.normalize,
            connection=req.env.get("embed.connection", _Nobody()),
        )
        resp.set_header(TRUNCATED_HEADER, str(answer.truncated))
        pieces = json_pieces(answer.vectors, self._name)
        if answer.vectors.size <= PIECE_NUMBERS:
            resp.data = b"".join(pieces)
        else:
            resp.stream = pieces  # after each the worker gives way to others


class Health:
    """How the service is; in short for who has no token."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        state = self.state()
        if not req.context.trusted:
            state = {key: state[key] for key in ("status", "model_loaded")}
        resp.data = orjson.dumps(state)

    on_head = on_get

    def state(self) -> dict[str, Any]:
        service, embedder = self._service, self._service.embedder
        seconds = service.last_load_s
        device = embedder.device if embedder is not None and service.is_loaded else None
        state = {
            "status": service.status,
            "model": self._name,
            "model_loaded": service.is_loaded,
            "device": "none" if device is None else device.split()[0],
            "device_name": device,
            "dimension": None if embedder is None else embedder.dimension,
            "max_seq": None if embedder is None else embedder.maxseq,
            "requests": service.requests,
            "unload_after_s": service.unload_after_s,
            "loads": service.loads,
            "unloads": service.unloads,
            "last_load_ms": None if seconds is None else round(seconds * 1000),
            "idle_s": round(service.idle_s, 3),
            "executor": {
                "pid": None if embedder is None else embedder.engine.pid,
                "restarts": service.restarts,
                "last_failure": None if embedder is None else embedder.engine.last_failure,
            },
        }
        return state if service.trouble is None else {**state, "error": service.trouble}


class Load:
    """For operators: load the model now."""

    def __init__(self, service: Service, health: Health, *, secured: bool) -> None:
        self._service = service
        self._health = health
        self._secured = secured

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        _refuse_strangers(self._secured)
        self._service.load()
        resp.data = orjson.dumps(self._health.state())


class Unload(Load):
    """For operators: give the model's memory back until somebody asks for a vector."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        _refuse_strangers(self._secured)
        if not self._service.unload():
            raise falcon.HTTPConflict(
                description="requests are being computed, or the model is being loaded; try again after that"
            )
        self._service.await_unload()
        resp.data = orjson.dumps(self._health.state())


def _refuse_strangers(secured: bool) -> None:
    """Where there is no token, any web page could have a browser send such a request."""
    if not secured:
        raise falcon.HTTPForbidden(description="this service has no token, and without one nobody may do this")


class MetricsText:
    """Counters for Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.content_type = CONTENT_TYPE
        resp.data = self._metrics.text()

    on_head = on_get


class OpenApi:
    """The description of the routes, written once."""

    def __init__(self, settings: Settings, limits: Limits, *, name: str, secured: bool) -> None:
        self._json = orjson.dumps(document(settings, limits, name=name, secured=secured))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = self._json

    on_head = on_get


class _Nobody:
    """A connection that can't be watched, as in Falcon's test client."""

    @contextlib.contextmanager
    def watch(self, on_eof: Callable[[], None], on_reset: Callable[[], None]) -> Iterator[None]:
        yield


def json_pieces(vectors: NDArray[np.float32], name: str) -> Iterator[bytes]:
    """Yield the answer's JSON; numbers are written from the array, the shortest that read back to the same f32."""
    texts, dimension = vectors.shape
    rows = max(1, PIECE_NUMBERS // dimension)
    for first in range(0, texts, rows):
        inside = orjson.dumps(vectors[first : first + rows], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield (b"," if first else b'{"embeddings":[') + inside
    yield b'],"model":%b,"dimension":%d}' % (orjson.dumps(name), dimension)
