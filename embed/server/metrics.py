"""What `/metrics` tells, in Prometheus' text format. Touched by the event loop alone."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # what generate_latest writes, whatever it calls its latest
LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
CHUNK_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CHUNK_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters of one service, in a registry of their own; the process's memory and descriptors are added."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter("embed_requests", "Requests answered", ["route", "status"], registry=registry)
        self._latency = Histogram(
            "embed_request_seconds",
            "From a request's head to the start of its answer",
            ["route"],
            buckets=LATENCY_S,
            registry=registry,
        )
        self._texts = Counter("embed_texts", "Texts embedded", registry=registry)
        self._tokens = Counter("embed_tokens", "Tokens of the texts embedded, before truncation", registry=registry)
        self._truncated = Counter("embed_truncated_texts", "Texts cut to the maximum length", registry=registry)
        self._chunk_texts = Histogram(
            "embed_chunk_texts", "Texts computed together", buckets=CHUNK_TEXTS, registry=registry
        )
        self._chunk_tokens = Histogram(
            "embed_chunk_tokens", "Tokens computed together", buckets=CHUNK_TOKENS, registry=registry
        )
        self._chunk_seconds = Histogram(
            "embed_chunk_seconds", "Time of computing a chunk", buckets=LATENCY_S, registry=registry
        )
        self._loads = Counter("embed_loads", "Times the model was loaded", registry=registry)
        self._unloads = Counter("embed_unloads", "Times the model was unloaded", registry=registry)
        self._restarts = Counter(
            "embed_restarts", "Loads after the death of the process that computes", registry=registry
        )
        self._retries = Counter("embed_retries", "Requests computed again after such a death", registry=registry)
        self._load_seconds = Gauge("embed_last_load_seconds", "Time of the last load", registry=registry)
        self._queue_requests = Gauge("embed_queue_requests", "Requests waiting or computed", registry=registry)
        self._queue_tokens = Gauge("embed_queue_tokens", "Tokens waiting or computed", registry=registry)

    def watch_queue(self, requests: Callable[[], int], tokens: Callable[[], int]) -> None:
        """Read the queue's depth from these functions whenever it is asked for."""
        self._queue_requests.set_function(requests)
        self._queue_tokens.set_function(tokens)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that the worker answered before it had a route."""
        self._requests.labels("none", str(status)).inc()

    def embedded(self, texts: int, tokens: int, truncated: int) -> None:
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._truncated.inc(truncated)

    def computed(self, texts: int, tokens: int, seconds: float) -> None:
        self._chunk_texts.observe(texts)
        self._chunk_tokens.observe(tokens)
        self._chunk_seconds.observe(seconds)

    def loaded(self, seconds: float, restarted: bool) -> None:
        self._loads.inc()
        self._restarts.inc(restarted)
        self._load_seconds.set(seconds)

    def unloaded(self) -> None:
        self._unloads.inc()

    def retried(self, requests: int) -> None:
        self._retries.inc(requests)

    def text(self) -> bytes:
        return generate_latest(self._registry)
