"""The model as the service's greenlets see it: loading or loaded, with a bounded queue before it.

Everything here happens on the event loop, so nothing has a lock: the model thread reports by `Loop.call`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embed.embedder import Embedder
from embed.errors import EmbedError, TextError
from embed.server.batcher import Job
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.model_thread import ModelThread
from embed.server.waiting import Event, Loop, Offload, Semaphore
from embed.tokenizer import TokenizedText, slices

LOAD_AGAIN_S = 5.0  # after a load that failed, requests get its error for so long before one of them tries anew
ENDING = "the service is ending; send the request again"
STUCK_S = 300.0  # a chunk is sized for a quarter of a second; a single text of 8,192 tokens may take a minute
MOST_LEAVING = 64  # clients that have shut their sending side and may wait for an answer: each holds a connection
INLINE_CHARACTERS = 1000  # tokenised in 0.1 ms, about what two thread switches cost
TEXT_CHARACTERS = 50  # what a text costs to tokenise though it's empty: 4 us, as much as so many characters
SLICE_CHARACTERS = 1 << 16  # tokenised at once, 15 to 80 ms; then others have a turn


class Unavailable(EmbedError):
    """The model can't be asked now: it couldn't be loaded, or the service is ending."""


class QueueFull(EmbedError):
    """The queue has no room; `retry_after_s` is when it may have."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Watch(Protocol):
    """Tells of a client that hangs up while its request is computed; see `embed.server.connection`."""

    def watch(self, on_eof: Callable[[], None], on_reset: Callable[[], None]) -> AbstractContextManager[object]: ...


@dataclass(frozen=True)
class Answer:
    """`vectors` is (texts, dimension) float32; `truncated` counts the texts that were cut."""

    vectors: NDArray[np.float32]
    truncated: int


class Service:
    """One model, loaded in the background as soon as this is made."""

    def __init__(self, load: Callable[[], Embedder], *, limits: Limits, metrics: Metrics) -> None:
        self.embedder: Embedder | None = None
        self.load_error: Exception | None = None
        self.requests = 0
        self.loads = 0
        self.last_load_s: float | None = None
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
        self._settled = Event()  # a load has ended, well or not
        self._failed_at = 0.0
        self._last_used = time.monotonic()
        metrics.watch_queue(lambda: len(self._waiting), lambda: self._waiting_tokens)
        self._thread = ModelThread(load, Loop(), self)
        self._thread.load()

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
        for job in list(self._waiting):
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
        since = self._thread.computing_since
        if since is not None and time.monotonic() - since > STUCK_S:
            return f"the model has computed one chunk for {time.monotonic() - since:.0f} s and may hang"
        return None

    def _model(self) -> Embedder:
        """Return the model, waiting for a load that is under way."""
        if not self.draining and self.load_error is not None and time.monotonic() - self._failed_at > LOAD_AGAIN_S:
            self.load_error = None
            self._settled.clear()
            self._thread.load()
        self._settled.wait()
        if self.draining:
            raise Unavailable(ENDING)
        if self.load_error is not None:
            raise Unavailable(f"the model can't be loaded: {self.load_error}")
        if self.embedder is None or not self._thread.is_alive():
            raise Unavailable("the model thread has ended; restart the service")
        return self.embedder

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
        embedder = self._model()
        job.fill(self._tokenize(embedder, texts, job), embedder.dimension)
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

    def loaded(self, embedder: Embedder, seconds: float) -> None:
        self.embedder, self.load_error, self.last_load_s = embedder, None, seconds
        self.loads += 1
        self._metrics.loaded(seconds)
        self._settled.set()
        for callback in self.on_ready:
            callback()

    def not_loaded(self, ex: Exception) -> None:
        self.load_error, self._failed_at = ex, time.monotonic()
        self._settled.set()
        for callback in self.on_failure:
            callback(ex)

    def computed(self, jobs: Sequence[Job], texts: int, tokens: int, seconds: float) -> None:
        self._metrics.computed(texts, tokens, seconds)
        for job in jobs:
            job.done.set()
