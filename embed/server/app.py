"""The Falcon application: routes, errors as JSON, and what the worker asks of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import falcon
import orjson
from gunicorn.errors import AppImportError

from embed.embedder import Embedder, direct_engine
from embed.engine import LocalEngine
from embed.errors import ExecutorError, OptionError, TextError
from embed.executor.budgets import Budgets
from embed.executor.supervisor import supervised
from embed.machine import thread_count
from embed.model_folder import ModelFolder, check_device
from embed.models import DEMO, hub_name, resolve_aloud
from embed.server.auth import TokenCheck
from embed.server.connection import Refused
from embed.server.failures import QueueFull, Unavailable
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.resources import CreateEmbedding, Health, Load, MetricsText, OpenApi, Unload
from embed.server.service import Service
from embed.server.settings import Settings
from embed.server.worker import Worker

# Settings of `embed serve` that are gunicorn's own where people run it themselves.
OF_GUNICORN = {
    "addr": "--bind",
    "access_log": "--access-logfile",
    "graceful": "--graceful-timeout",
    "log_level": "--log-level",
}
LOG = logging.getLogger("gunicorn.error")  # where the worker logs, so that there is one log


class Application(falcon.App):  # type: ignore[type-arg]
    """The WSGI application of one service; the worker calls the methods below."""

    def __init__(self, service: Service, metrics: Metrics, settings: Settings, limits: Limits) -> None:
        token = settings.secret()
        super().__init__(
            media_type=falcon.MEDIA_JSON, middleware=[RequestMetrics(metrics), TokenCheck(token), KnownMethods()]
        )
        self._service = service
        self._metrics = metrics
        self._name = settings.model_name or served_name(settings.model)
        self.req_options.strip_url_path_trailing_slash = True
        self.set_error_serializer(_write_error)
        self._add_error_handlers()
        health = Health(service, self._name)
        self.add_route("/", health)
        self.add_route("/health", health)
        self.add_route("/create_embedding", CreateEmbedding(service, self._name, settings, limits))
        self.add_route("/load", Load(service, health, secured=token is not None))
        self.add_route("/unload", Unload(service, health, secured=token is not None))
        self.add_route("/metrics", MetricsText(metrics))
        self.add_route("/openapi.json", OpenApi(settings, limits, name=self._name, secured=token is not None))

    def _add_error_handlers(self) -> None:
        self.add_error_handler(Exception, _on_fault)
        self.add_error_handler(OSError, _on_lost_connection)
        self.add_error_handler(TextError, _on_failed_text)
        self.add_error_handler(ExecutorError, _on_failed_text)
        self.add_error_handler(QueueFull, _on_full_queue)
        self.add_error_handler(Unavailable, _on_unavailable)
        self.add_error_handler(Refused, _on_refused)

    def refused(self, status: int) -> None:
        """Count a request that the worker answered itself."""
        self._metrics.refused(status)

    def on_ready(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with what is served, once the model is loaded, or will be when it's wanted."""
        self._service.on_ready.append(lambda: callback(self._description()))

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback` called with the error if the model can't be served."""
        self._service.on_failure.append(callback)

    def drain(self) -> None:
        """Take no new texts; those that were taken are computed."""
        self._service.drain()

    def abandon(self) -> None:
        """Answer everything that still waits with a 503."""
        self._service.abandon()

    def close(self) -> None:
        """End the model thread."""
        self._service.close()

    def _description(self) -> str:
        embedder, seconds = self._service.embedder, self._service.last_load_s
        assert embedder is not None
        if seconds is None:
            return f"({self._name}, {embedder.dimension} dimensions, loaded when the first request comes)"
        return f"({self._name}, {embedder.dimension} dimensions, {embedder.device}, loaded in {seconds:.1f} s)"


def create_app(model: str | None = None, **given: Any) -> Application:
    """Return the application for `embed.server.Worker`; what isn't `given` is read from `EMBED_…` variables.

    gunicorn -k embed.server.Worker 'embed.server:create_app("path/to/model", token_file="token")'

    Raises `OptionError` for a setting that is refused, and `WorkerError` where gunicorn runs it otherwise.
    """
    _check_worker()
    for name in given:
        if name in OF_GUNICORN:
            raise OptionError(f"create_app takes no {name}; tell gunicorn, with {OF_GUNICORN[name]}")
        if name not in Settings.__dataclass_fields__:
            known = [name for name in Settings.__dataclass_fields__ if name not in OF_GUNICORN]
            raise OptionError(f"create_app knows no {name}; it takes {', '.join(known)}")
    settings = Settings.from_environment({"model": model, **given})
    settings.check()
    return make_app(settings, Limits.from_environment())


class WorkerError(AppImportError, RuntimeError):  # type: ignore[misc]
    """gunicorn has another worker class, or loads the application before it forks; it prints the message of either."""


def _check_worker() -> None:
    under_gunicorn = os.environ.get("SERVER_SOFTWARE", "").startswith("gunicorn/")
    if under_gunicorn and not Worker.is_here:
        raise WorkerError(
            "embed: error: this application runs in gunicorn's worker class embed.server.Worker alone, "
            "loaded after the fork; start gunicorn with -k embed.server.Worker and without --preload"
        )


def make_app(settings: Settings, limits: Limits) -> Application:
    """Return the application of these settings; its model is being read. Raises `OptionError`."""
    Budgets.from_environment()
    metrics = Metrics()
    service = Service(
        lambda: _open_model(settings),
        limits=limits,
        metrics=metrics,
        warmup=settings.warmup,
        unload_after_s=settings.unload_after,
    )
    return Application(service, metrics, settings, limits)


def _open_model(settings: Settings) -> Embedder:
    """Return the model, not loaded yet; everything but the weights themselves has been read and is sound."""
    check_device(settings.device)
    threads = thread_count(settings.threads)
    folder = ModelFolder.open(resolve_aloud(settings.model), pool=settings.pool, maxseq=settings.maxseq)
    tokenizer = folder.read_tokenizer()
    folder.check_weights()
    if settings.in_process:
        return Embedder(folder, LocalEngine(direct_engine(folder, threads)), tokenizer=tokenizer)
    engine = supervised(folder, device=settings.device, threads=threads, log=LOG.warning)
    return Embedder(folder, engine, tokenizer=tokenizer)


def served_name(model: str) -> str:
    """Return what a model is called in answers: its name on the hub, or its folder's name."""
    if model == DEMO:
        return DEMO
    if (name := hub_name(model)) is not None:
        return name.repo
    path = Path(os.path.abspath(os.path.expanduser(model)))  # links are left: a link's name was chosen by somebody
    for folder in (path, *path.parents[:2]):
        if folder.name.startswith("models--"):
            return folder.name.removeprefix("models--").replace("--", "/")
    return path.name or "model"


class RequestMetrics:
    """Falcon middleware that counts and times requests by route."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.began = time.perf_counter()

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: object, succeeded: bool) -> None:
        route = req.uri_template or "none"  # never the path: strangers would make a label each
        self._metrics.answered(route, resp.status_code, time.perf_counter() - req.context.began)


class KnownMethods:
    """Falcon middleware: a method that no HTTP standard knows is as little allowed as one that a route doesn't take."""

    def process_resource(self, req: falcon.Request, resp: falcon.Response, resource: object, params: object) -> None:
        if req.method not in falcon.HTTP_METHODS:
            allowed = [name for name in falcon.HTTP_METHODS if hasattr(resource, f"on_{name.lower()}")]
            raise falcon.HTTPMethodNotAllowed([*allowed, "OPTIONS"])


def _write_error(req: falcon.Request, resp: falcon.Response, ex: falcon.HTTPError) -> None:
    resp.data = orjson.dumps({"error": ex.description or _SENTENCES.get(ex.status_code, ex.title)})
    resp.content_type = falcon.MEDIA_JSON


def _on_failed_text(req: falcon.Request, resp: falcon.Response, ex: Exception, params: object) -> None:
    raise falcon.HTTPInternalServerError(description=str(ex))


def _on_full_queue(req: falcon.Request, resp: falcon.Response, ex: QueueFull, params: object) -> None:
    raise falcon.HTTPTooManyRequests(description=str(ex), retry_after=ex.retry_after_s)


def _on_unavailable(req: falcon.Request, resp: falcon.Response, ex: Unavailable, params: object) -> None:
    raise falcon.HTTPServiceUnavailable(description=str(ex), retry_after=ex.retry_after_s)


def _on_refused(req: falcon.Request, resp: falcon.Response, ex: Refused, params: object) -> None:
    raise falcon.HTTPError(ex.status, description=str(ex))


def _on_lost_connection(req: falcon.Request, resp: falcon.Response, ex: OSError, params: object) -> None:
    raise ex  # for the worker, which knows whether anybody is there to be answered


def _on_fault(req: falcon.Request, resp: falcon.Response, ex: Exception, params: object) -> None:
    LOG.error("a fault in embed itself, answering %s %s", req.method, req.path, exc_info=ex)
    raise falcon.HTTPInternalServerError(description="a fault in embed itself; the service's log has its trace")


_SENTENCES = {
    404: "there is nothing at this path; texts go to /create_embedding",
    405: "this path doesn't take that method; the Allow header lists those it does",
}
