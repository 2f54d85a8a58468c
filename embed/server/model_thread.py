"""The one thread that loads the model and computes, for as long as the process lives.

It alone touches the batcher and the engine; it talks to the event loop through `Loop.call`. What goes wrong in a chunk
is charged to whoever caused it: after an error the chunk is computed again in halves, until the text that fails is
alone; after the death of the process that computes, request by request, each once.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embed.console import say
from embed.embedder import Embedder
from embed.encoder import Progress
from embed.errors import ExecutorError, GuessWarning, TextError, VectorError
from embed.server.batcher import Batcher, Item, Job, Pace
from embed.server.failures import ENDING, Unavailable
from embed.server.waiting import Loop

QUICK_DEATH_S = 10.0  # after a load: who dies so soon is started again by the next request only
CLOSE_S = 5.0  # for a chunk to end; what goes on for longer ends with the process
UNWANTED_S = 10.0  # of computing what nobody waits for: then it is given up, which may cost a load


class Listener(Protocol):
    """What is told, on the event loop, of what the thread has done."""

    def opened(self, embedder: Embedder) -> None:
        """A model folder was read and is sound, as far as can be seen without loading."""

    def loaded(self, seconds: float | None, restarted: bool) -> None:
        """The model is loaded, in so many seconds, or was already; `restarted` after the death of what computed."""

    def not_loaded(self, ex: Exception) -> None:
        """Whatever waits for the model has to be given up."""

    def unloaded(self, asked: bool) -> None: ...
    def retried(self, requests: int) -> None: ...
    def finished(self, job: Job) -> None: ...
    def computed(self, jobs: Sequence[Job], texts: int, tokens: int, seconds: float) -> None:
        """A chunk is done; `jobs` are those that it finished."""


class ModelThread:
    """`open`, `load`, `unload` and `submit` may be called from any thread, and are done in turn."""

    def __init__(self, open_model: Callable[[], Embedder], loop: Loop, listener: Listener) -> None:
        self.quiet_since: float | None = None  # time.monotonic(), when the chunk that is computed last advanced
        self.pace = Pace()
        self._open_model = open_model
        self._loop = loop
        self._listener = listener
        self._embedder: Embedder | None = None
        self._is_wanted = False  # to be loaded
        self._is_warm = False
        self._loaded_at = 0.0
        self._batcher = Batcher()
        self._inbox: queue.SimpleQueue[Job | Callable[[], object]] = queue.SimpleQueue()
        self._closing = self._closed = False
        self._loading = False
        self._thread = threading.Thread(target=self._run, name="embed-batcher", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Read the model folder, but not the weights; the listener hears how it went."""
        self._loading = True
        self._inbox.put(self._open_first)

    def load(self) -> None:
        """Load the model, unless it is loaded; the listener hears how it went."""
        self._loading = True
        self._inbox.put(self._load)

    def unload(self) -> None:
        """Give its memory back."""
        self._inbox.put(self._unload)

    def submit(self, job: Job) -> None:
        """Compute a job; the listener hears when it is done."""
        self._inbox.put(job)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread after the chunk that it computes, and free the model. A load is not waited for."""
        self._closing = True
        self._inbox.put(self._close)
        if not self._loading:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closed:
            self._take_in()
            chunk = [] if self._closing else self._batcher.next_chunk(self.pace.chunk_tokens)
            if chunk:
                self._compute_chunk(chunk)
            del chunk  # or its jobs, and their vectors, would live until the next one

    def _take_in(self) -> None:
        """Take what has come in, and wait for something if there is nothing to do."""
        wait = self._closing or not self._batcher.has_work()
        while not self._closed and (wait or not self._inbox.empty()):
            item = self._inbox.get()
            wait = False
            if isinstance(item, Job):
                self._batcher.add(item)
            else:
                item()
            del item

    # --- the model

    def _open_first(self) -> None:
        try:
            self._open()
        except Exception as ex:  # not swallowed: the listener decides what it means
            self._loop.call(self._listener.not_loaded, ex)
        self._loading = False

    def _open(self) -> Embedder:
        """Open the model folder for the first time, or anew after it has changed."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GuessWarning)
            embedder = self._open_model()
        for warning in caught:
            say(f"warning: {warning.message}")
        if self._embedder is not None:
            say(f"{embedder.folder.path} has changed, and what is there now is taken")
            self._embedder.close()
        embedder.engine.watch(lambda: self._inbox.put(self._revive))
        self._embedder = embedder
        self._loop.call(self._listener.opened, embedder)
        return embedder

    def _load(self) -> bool:
        """Load the model, unless it is loaded; return whether it is."""
        began = time.monotonic()
        self.quiet_since = None
        try:
            if self._closing:
                raise Unavailable(ENDING)
            embedder = self._embedder
            if embedder is not None and embedder.engine.is_loaded:
                self._loop.call(self._listener.loaded, None, False)
                return True
            if embedder is None or embedder.folder.has_changed:
                embedder = self._open()
            embedder.engine.load()
            self._warm_up(embedder)
        except Exception as ex:  # not swallowed: the listener decides what it means
            self._loop.call(self._listener.not_loaded, ex)
            return False
        finally:
            self._loading = False
        self._loaded_at = time.monotonic()
        self._loop.call(self._listener.loaded, self._loaded_at - began, self._is_wanted)
        self._is_wanted = True
        return True

    def _warm_up(self, embedder: Embedder) -> None:
        """Compute a first text, once; what can't do that doesn't count as loaded."""
        try:
            if not self._is_warm:
                embedder.warm_up()
                self._is_warm = True
        except BaseException:
            embedder.engine.unload()
            raise

    def _unload(self) -> None:
        """Unload, unless a request has come in the meantime."""
        asked = self._embedder is not None and self._is_wanted and not self._batcher.has_work()
        if asked and self._embedder is not None:
            self._is_wanted = False
            self._embedder.engine.unload()
        self._loop.call(self._listener.unloaded, asked)

    def _revive(self) -> None:
        """Replace a process that died while it was idle; one that died young waits for somebody who wants it."""
        if self._embedder is None or not self._is_wanted or self._embedder.engine.is_loaded:
            return
        if time.monotonic() - self._loaded_at > QUICK_DEATH_S:
            self._load()
        else:
            self._loop.call(self._listener.unloaded, False)

    def _close(self) -> None:
        self._closed = True
        if self._embedder is not None:
            self._embedder.close()

    # --- chunks

    def _compute_chunk(self, chunk: list[Item]) -> None:
        tokens = sum(len(item.text.ids) for item in chunk)
        undisturbed, began = False, time.monotonic()
        try:
            self._ready_embedder()
            began = time.monotonic()
            undisturbed = self._compute(chunk)
        except _NoModel:  # the listener gives up what isn't finished
            self._batcher.clear()
        finally:
            self.quiet_since = None
        seconds = time.monotonic() - began
        if undisturbed:
            self.pace.add(tokens, seconds)
        finished = [job for job in dict.fromkeys(item.job for item in chunk) if job.finished]
        self._loop.call(self._listener.computed, finished, len(chunk), tokens, seconds)
        if not self._closing and self._embedder is not None and not self._embedder.engine.is_loaded:
            self._loop.call(self._listener.unloaded, False)

    def _compute(self, chunk: list[Item], *, again: bool = False) -> bool:
        """Compute items, and return whether nothing went wrong.

        `again` is for those of one request, after they were in a chunk whose process died.
        """
        embedder = self._ready_embedder()
        if any(item.job.embedder is not embedder for item in chunk):
            _fail(chunk, Unavailable("the model was replaced while the request waited; send it again", 1))
            return False
        texts = [item.text for item in chunk]
        try:
            vectors = embedder.encode_chunk(texts, normalize=chunk[0].job.normalize, progress=self._progress_of(chunk))
        except _Unwanted:
            return False
        except ExecutorError as ex:
            self._part(chunk, ex, again=again)
        except TextError as ex:  # the engine knows which one it is, counted within the chunk
            item = chunk[ex.index]
            item.job.fail(ex.counted_from(item.index - ex.index))
            self._compute_rest(chunk, again=again)
        except Exception as ex:  # not swallowed: it becomes the error of the job that caused it
            self._blame(chunk, ex, again=again)
        else:
            return _deliver(chunk, vectors)
        return False

    def _ready_embedder(self) -> Embedder:
        embedder = self._embedder
        if embedder is None or not embedder.engine.is_loaded:
            if not self._load():
                raise _NoModel
            embedder = self._embedder
            assert embedder is not None
        self.quiet_since = time.monotonic()
        return embedder

    def _progress_of(self, chunk: list[Item]) -> Progress:
        began = time.monotonic()

        def report(done: int, steps: int) -> None:
            self.quiet_since = now = time.monotonic()
            if now - began > UNWANTED_S and not any(item.job.is_wanted for item in chunk):
                raise _Unwanted

        return report

    def _part(self, chunk: list[Item], ex: ExecutorError, *, again: bool) -> None:
        """After the death of the process that computed: compute again, each request by itself, but only once."""
        jobs = dict.fromkeys(item.job for item in chunk)
        if again:
            _fail(chunk, _fatal(chunk, ex))
            return
        wanted = [job for job in jobs if job.is_wanted]
        self._loop.call(self._listener.retried, len(wanted))
        for job in wanted:
            if self._closing:
                raise _NoModel
            self._compute([item for item in chunk if item.job is job], again=True)
            if job.finished:  # who is innocent doesn't wait for the others
                self._loop.call(self._listener.finished, job)

    def _blame(self, chunk: list[Item], ex: Exception, *, again: bool) -> None:
        if len(chunk) == 1:
            item = chunk[0]
            error = TextError(f"text {item.index} can't be computed ({type(ex).__name__}: {ex})", item.index)
            error.__cause__ = ex
            item.job.fail(error)
            return
        chunk.sort(key=lambda item: id(item.job))  # so that halves part requests first
        for half in (chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]):
            self._compute_rest(half, again=again)

    def _compute_rest(self, chunk: list[Item], *, again: bool) -> None:
        rest = [item for item in chunk if item.job.error is None]
        if rest:
            self._compute(rest, again=again)


class _Unwanted(Exception):
    """Nobody waits for what is computed."""


class _NoModel(Exception):
    """The model can't be loaded, and the listener knows it."""


def _deliver(chunk: list[Item], vectors: NDArray[np.float32]) -> bool:
    """Give each job its vectors; return whether all are finite."""
    for item, vector in zip(chunk, vectors, strict=True):
        if np.isfinite(vector).all():
            item.job.put(item.index, vector)
        else:
            item.job.fail(_not_finite(item))
    return all(item.job.error is None for item in chunk)


def _fail(chunk: list[Item], error: Exception) -> None:
    for item in chunk:
        item.job.fail(error)


def _not_finite(item: Item) -> VectorError:
    return VectorError(f"text {item.index}: the model's vector is not finite", item.index)


def _fatal(chunk: list[Item], ex: ExecutorError) -> Exception:
    """Return the error of a request that has ended the process that computes, twice."""
    first = min(item.index for item in chunk)
    if len(chunk) == 1:
        return TextError(f"text {first} can't be computed ({ex})", first)
    return ExecutorError(f"{len(chunk)} texts, the first of them {first}, can't be computed ({ex}); send fewer at once")
