"""The model as the service's greenlets see it: loading or loaded, with a bounded queue before it.

Everything here happens on the event loop, so nothing has a lock: the model thread reports by `Loop.call`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embed.embedder import Embedder
from embed.errors import DeviceError, ModelError, OptionError, TextError
from embed.server.batcher import Job
from embed.server.failures import ENDING, QueueFull, Unavailable
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.model_thread import ModelThread
from embed.server.waiting import Event, Loop, Offload, Semaphore, after
from embed.tokenizer import TokenizedText, slices

# A model folder that isn't in order is looked at again by each request; a process that can't start, ever more rarely.
MAX_DELAY_S, MAX_DOUBLINGS = 60.0, 6
OF_THE_MODEL = (ModelError, OptionError, DeviceError)
LOG = logging.getLogger("gunicorn.error")
SUSPICION = 3.0  # the part of a watchdog's time after which silence is told of
LOOK_S = 0.05
STUCK_S = 300.0  # a chunk is sized for a quarter of a second; a single text of 8,192 tokens may take a minute
MOST_LEAVING = 64  # clients that have shut their sending side and may wait for an answer: each holds a connection
INLINE_CHARACTERS = 1000  # tokenised in 0.1 ms, about what two thread switches cost
TEXT_CHARACTERS = 50  # what a text costs to tokenise though it's empty: 4 us, as much as so many characters
SLICE_CHARACTERS = 1 << 16  # tokenised at once, 15 to 80 ms; then others have a turn


class Watch(Protocol):
    """Tells of a client that hangs up while its request is computed; see `embed.server.connection`."""

    def watch(self, on_eof: Callable[[], None], on_reset: Callable[[], None]) -> AbstractContextManager[object]: ...


@dataclass(frozen=True)
class Answer:
    """`vectors` is (texts, dimension) float32; `truncated` counts the texts that were cut."""

    vectors: NDArray[np.float32]
    truncated: int


class Service:
    """One model, read in the background as soon as this is made, and loaded then or when it is first wanted."""

    def __init__(
        self,
        open_model: Callable[[], Embedder],
        *,
        limits: Limits,
        metrics: Metrics,
        warmup: bool = True,
        unload_after_s: float = 0.0,
    ) -> None:
        """Use what `open_model` returns, whose engine is loaded at once for a `warmup`.

        After `unload_after_s` seconds without work it is unloaded; never if that is 0.
        """
        self.embedder: Embedder | None = None
        self.is_loaded = False
        self.load_error: Exception | None = None
        self.requests = 0
        self.loads = self.unloads = self.restarts = 0
        self.last_load_s: float | None = None
        self.unload_after_s = unload_after_s
        self.draining = False
        self.on_ready: list[Callable[[], None]] = []
        self.on_failure: list[Callable[[Exception], None]] = []
        self._limits = limits
        self._metrics = metrics
        self._offload = Offload()
        self._large = Semaphore()  # megabytes without spaces may take seconds and a gigabyte: one at a time
        self._waiting: dict[Job, None] = {}  # oldest first
        self._waiting_texts = 0
        self._waiting_tokens = 0
        self._warmup = warmup
        self._is_announced = False
        self._settled = Event()  # no load is under way
        self._unloaded = Event()  # no unload is under way
        self._unloaded.set()
        self._failures = 0  # to start, one after the other
        self._load_again_at = 0.0
        self._last_used = time.monotonic()
        metrics.watch_queue(lambda: len(self._waiting), lambda: self._waiting_tokens)
        self._thread = ModelThread(open_model, Loop(), self)
        if warmup:
            self._thread.load()
        else:
            self._thread.open()
        if unload_after_s:
            after(unload_after_s, self._look_whether_idle)

    def embed(self, texts: Sequence[str], *, normalize: bool, connection: Watch) -> Answer:
        """Return the vectors of `texts`, computed together with those of other requests.

        Raises `QueueFull`, `Unavailable`, or the `TextError` of the first text that failed.
        """
        self.requests += 1
        self._check_room(texts=len(texts))
        job = Job(len(texts), normalize=normalize)
        self._waiting[job] = None
        self._waiting_texts += job.texts
        lost = ConnectionResetError("the client hung up")
        try:
            with connection.watch(lambda: self._leave(job), lambda: self._give_up(job, lost)):
                self._compute(job, texts)
        finally:  # an answer, or an error, or the deadline
            self._release(job)
            self._last_used = time.monotonic()
        truncated = sum(text.truncated for text in job.tokenized)
        self._metrics.embedded(len(texts), sum(text.tokens for text in job.tokenized), truncated)
        return Answer(job.vectors, truncated)

    def drain(self) -> None:
        """Take no more work; what was taken goes on. Who waits for the model to be loaded is told at once."""
        self.draining = True
        self._settled.set()

    def abandon(self) -> None:
        """Answer whatever still waits with an error."""
        self._settled.set()
        for job in [job for job in self._waiting if not (job.tokenized and job.finished)]:
            self._give_up(job, Unavailable(ENDING))

    def close(self) -> None:
        """End the model thread after the chunk that it computes, and free the model."""
        self._thread.close()

    @property
    def status(self) -> str:
        """healthy, also while the model is being loaded; draining; or degraded: see `trouble`."""
        if self.draining:
            return "draining"
        return "healthy" if self.trouble is None else "degraded"

    @property
    def idle_s(self) -> float:
        """How long no text has been computed or waited for."""
        return 0.0 if self._waiting else time.monotonic() - self._last_used

    @property
    def trouble(self) -> str | None:
        """What is wrong with the model, in a sentence; None if nothing is."""
        if self.load_error is not None:
            return str(self.load_error)
        if not self._thread.is_alive():
            return "the model thread has ended; restart the service"
        since = self._thread.quiet_since
        if since is None or self.embedder is None:
            return None
        patience_s, quiet_s = self.embedder.engine.patience_s, time.monotonic() - since
        if patience_s is None:
            return f"the forward has not advanced for {quiet_s:.0f} s and may hang" if quiet_s > STUCK_S else None
        if quiet_s * SUSPICION > patience_s:
            return f"the model process has not advanced for {quiet_s:.0f} s; after {patience_s:g} it is replaced"
        return None

    def load(self) -> None:
        """Load the model, unless it is loaded, and wait for that. Raises `Unavailable`."""
        self._last_used = time.monotonic()
        self._ready_model()

    def unload(self) -> bool:
        """Give the model's memory back until somebody wants it again; return whether nobody wants it now."""
        if self._waiting or not self._settled.is_set():
            return False
        if self.is_loaded:
            self.is_loaded = False
            self._unloaded.clear()
            self._thread.unload()
        return True

    def await_unload(self) -> None:
        """Wait until the memory is given back."""
        self._unloaded.wait()

    def _look_whether_idle(self) -> None:
        if self.is_loaded and self.idle_s >= self.unload_after_s:
            self.unload()
        left = self.unload_after_s - self.idle_s if self.is_loaded else self.unload_after_s
        after(max(left, LOOK_S), self._look_whether_idle)

    def _ready_model(self) -> Embedder:
        """Return the model, loaded; wait for that where need be."""
        if not self.draining and not self.is_loaded and self._settled.is_set():
            self._load_again()
        while not self._settled.is_set():  # after one load another may have begun
            self._settled.wait()
        if self.draining:
            raise Unavailable(ENDING)
        if not self._thread.is_alive():
            raise Unavailable("the model thread has ended; restart the service")
        if self.embedder is None or self.load_error is not None:
            raise self._not_loaded()
        return self.embedder

    def _load_again(self) -> None:
        if time.monotonic() >= self._load_again_at:
            self.load_error = None
            self._settled.clear()
            self._thread.load()

    def _not_loaded(self) -> Unavailable:
        seconds = math.ceil(self._load_again_at - time.monotonic())
        return Unavailable(f"the model can't be loaded: {self.load_error}", max(1, seconds))

    def _check_room(self, *, texts: int = 0, tokens: int = 0, own: Job | None = None) -> None:
        """Raise `QueueFull` unless a request of so much may wait beside the others; it may where there are none."""
        most = self._limits
        while others := len(self._waiting) - (own is not None):
            waiting_texts = self._waiting_texts - (own.texts if own else 0)
            if (
                others < most.queue_requests
                and waiting_texts + texts <= most.queue_texts
                and self._waiting_tokens + tokens <= most.queue_tokens
            ):
                return
            leaving = next((job for job in self._waiting if job.leaving and job is not own), None)
            if leaving is None:
                depth = f"{others:,} requests, {waiting_texts:,} texts, {self._waiting_tokens:,} tokens"
                seconds = max(1, min(60, round(self._waiting_tokens / self._thread.pace.tokens_per_s)))
                raise QueueFull(f"the queue is full ({depth}); try again in {seconds} s", seconds)
            self._give_up(leaving, Unavailable("the queue is full, and this client had shut its sending side"))

    def _compute(self, job: Job, texts: Sequence[str]) -> None:
        embedder = self._ready_model()
        job.fill(self._tokenize(embedder, texts, job), embedder)
        if not self.is_loaded:  # any more: it was lost meanwhile, and may not be had at once
            self._ready_model()
        self._raise_error_of(job)
        self._check_room(tokens=job.tokens, own=job)
        job.queued_tokens = job.tokens
        self._waiting_tokens += job.tokens
        self._thread.submit(job)
        job.done.wait()
        self._raise_error_of(job)

    def _tokenize(self, embedder: Embedder, texts: Sequence[str], job: Job) -> list[TokenizedText]:
        """Return the texts' tokens: of a few short ones at once, of others in slices, on native threads."""
        if sum(map(len, texts)) + TEXT_CHARACTERS * len(texts) <= INLINE_CHARACTERS:
            return embedder.tokenize(texts, count_all=False)
        tokenized: list[TokenizedText] = []
        for first, last in slices(texts, SLICE_CHARACTERS):
            part = texts[first:last]
            with self._large if len(part[0]) > SLICE_CHARACTERS else contextlib.nullcontext():
                self._raise_error_of(job)
                try:
                    tokenized += self._offload(embedder.tokenize, part, count_all=False)
                except TextError as ex:
                    raise ex.counted_from(first) from ex
        return tokenized

    def _raise_error_of(self, job: Job) -> None:
        if job.error is not None:
            raise job.error

    def _leave(self, job: Job) -> None:
        """Let everybody else go first, since the client may have gone; of those that may have, only some can wait."""
        job.leaving = True
        leaving = [job for job in self._waiting if job.leaving]
        if len(leaving) > MOST_LEAVING:
            self._give_up(leaving[0], ConnectionResetError("the client seems to have gone"))

    def _give_up(self, job: Job, error: Exception) -> None:
        """Compute a job no further, and have its greenlet raise `error`."""
        job.fail(error)
        job.done.set()
        self._release(job)

    def _release(self, job: Job) -> None:
        job.cancelled = True
        if job in self._waiting:
            del self._waiting[job]
            self._waiting_texts -= job.texts
            self._waiting_tokens -= job.queued_tokens

    # What the model thread reports.

    def opened(self, embedder: Embedder) -> None:
        self.embedder = embedder
        if not self._warmup and not self._is_announced:
            self._settled.set()
            self._announce()

    def loaded(self, seconds: float | None, restarted: bool) -> None:
        self.is_loaded, self.load_error, self._failures = True, None, 0
        self._last_used = time.monotonic()
        if seconds is not None:
            self.loads += 1
            self.restarts += restarted
            self.last_load_s = seconds
            self._metrics.loaded(seconds, restarted)
            LOG.info("the model was loaded in %.1f s", seconds)
        self._settled.set()
        self._announce()

    def not_loaded(self, ex: Exception) -> None:
        self.is_loaded, self.load_error = False, ex
        of_the_model = self.embedder is None or isinstance(ex, OF_THE_MODEL)
        self._failures = 0 if of_the_model else self._failures + 1
        delay_s = 2.0 ** min(self._failures - 2, MAX_DOUBLINGS) if self._failures > 1 else 0.0
        self._load_again_at = time.monotonic() + min(delay_s, MAX_DELAY_S)
        self._settled.set()
        for job in [job for job in self._waiting if job.tokenized and not job.finished]:
            self._give_up(job, self._not_loaded())  # the model thread has forgotten it
        if of_the_model and not self._is_announced:
            for callback in self.on_failure:
                callback(ex)
        else:
            LOG.warning("the model could not be loaded (%s); the next request tries again", ex)
            self._announce()

    def unloaded(self, asked: bool) -> None:
        self.is_loaded = False
        self._unloaded.set()
        self.unloads += asked
        if asked:
            self._metrics.unloaded()

    def retried(self, requests: int) -> None:
        self._metrics.retried(requests)

    def finished(self, job: Job) -> None:
        job.done.set()

    def _announce(self) -> None:
        """Tell, once, that requests are answered."""
        if not self._is_announced:
            self._is_announced = True
            for callback in self.on_ready:
                callback()

    def computed(self, jobs: Sequence[Job], texts: int, tokens: int, seconds: float) -> None:
        self._metrics.computed(texts, tokens, seconds)
        for job in jobs:
            job.done.set()
