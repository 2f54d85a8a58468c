"""The one thread that loads the model and computes, for as long as the process lives.

It alone touches the batcher; it talks to the event loop through `Loop.call`. What goes wrong in a chunk is charged to
the text that caused it: the chunk is computed again in halves, until the text is alone.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from embed.console import say
from embed.embedder import Embedder
from embed.errors import GuessWarning, StateError, TextError, VectorError
from embed.server.batcher import Batcher, Item, Job, Pace
from embed.server.waiting import Loop


class Listener(Protocol):
    """What is told, on the event loop, of what the thread has done."""

    def loaded(self, embedder: Embedder, seconds: float) -> None: ...
    def not_loaded(self, ex: Exception) -> None: ...
    def computed(self, jobs: Sequence[Job], texts: int, tokens: int, seconds: float) -> None:
        """A chunk is done; `jobs` are those that it finished."""


class ModelThread:
    """`load` and `submit` may be called from any thread; the jobs must fit the model that was loaded."""

    def __init__(self, load: Callable[[], Embedder], loop: Loop, listener: Listener) -> None:
        self.computing_since: float | None = None  # time.monotonic()
        self.pace = Pace()
        self._load = load
        self._loop = loop
        self._listener = listener
        self._embedder: Embedder | None = None
        self._batcher = Batcher()
        self._inbox: queue.SimpleQueue[Job | Callable[[], None]] = queue.SimpleQueue()
        self._closing = False
        self._loading = False
        self._thread = threading.Thread(target=self._run, name="embed-batcher", daemon=True)
        self._thread.start()

    def load(self) -> None:
        """Load the model; the listener hears how it went."""
        self._loading = True
        self._inbox.put(self._load_model)

    def submit(self, job: Job) -> None:
        """Compute a job; the listener hears when it is done."""
        self._inbox.put(job)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread after the chunk that it computes, and free the model. A load is not waited for."""
        self._inbox.put(self._close)
        if not self._loading:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._take_in()
            chunk = self._batcher.next_chunk(self.pace.chunk_tokens)
            if chunk:
                self._compute_chunk(chunk)
            del chunk  # or its jobs, and their vectors, would live until the next one

    def _take_in(self) -> None:
        """Take what has come in, and wait for something if there is nothing to do."""
        wait = not self._batcher.has_work()
        while wait or not self._inbox.empty():
            item = self._inbox.get()
            wait = False
            if isinstance(item, Job):
                self._batcher.add(item)
            else:
                item()
            del item

    def _load_model(self) -> None:
        began = time.monotonic()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", GuessWarning)
                self._embedder = self._load()
        except Exception as ex:  # not swallowed: the listener decides what it means
            self._loading = False
            self._loop.call(self._listener.not_loaded, ex)
            return
        self._loading = False
        for warning in caught:
            say(f"warning: {warning.message}")
        self._loop.call(self._listener.loaded, self._embedder, time.monotonic() - began)

    def _close(self) -> None:
        self._closing = True
        if self._embedder is not None:
            self._embedder.close()

    @property
    def _live(self) -> Embedder:
        if self._embedder is None:
            raise StateError("no model is loaded")
        return self._embedder

    def _compute_chunk(self, chunk: list[Item]) -> None:
        tokens = sum(len(item.text.ids) for item in chunk)
        self.computing_since = began = time.monotonic()
        self._compute(chunk)
        self.computing_since = None
        seconds = time.monotonic() - began
        self.pace.add(tokens, seconds)
        finished = [job for job in dict.fromkeys(item.job for item in chunk) if job.finished]
        self._loop.call(self._listener.computed, finished, len(chunk), tokens, seconds)

    def _compute(self, chunk: list[Item]) -> None:
        try:
            vectors = self._live.encode_chunk([item.text for item in chunk], normalize=chunk[0].job.normalize)
        except Exception as ex:  # not swallowed: it becomes the error of the job that caused it
            self._blame(chunk, ex)
            return
        for item, vector in zip(chunk, vectors, strict=True):
            if np.isfinite(vector).all():
                item.job.put(item.index, vector)
            else:
                item.job.fail(VectorError(f"text {item.index}: the model's vector is not finite", item.index))

    def _blame(self, chunk: list[Item], ex: Exception) -> None:
        if len(chunk) == 1:
            item = chunk[0]
            error = TextError(f"text {item.index} can't be computed ({type(ex).__name__}: {ex})", item.index)
            error.__cause__ = ex
            item.job.fail(error)
            return
        chunk.sort(key=lambda item: id(item.job))  # so that halves part requests first
        for half in (chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]):
            rest = [item for item in half if item.job.error is None]
            if rest:
                self._compute(rest)
