"""Requests into chunks: what the model computes together, so that it is busy and nobody waits for long.

A chunk takes one text from each waiting request in turn, longest first within a request, until its tokens are used up.
So a request of thousands of texts fills whatever room the others leave, and a short one is in the very next chunk,
which is then half as large, since the short one waits for all of it.

    waiting: A [9 7 5 5], B [3], C [4 2]     a chunk of 20 tokens: A9 B3 C4 C2     then: A7 A5 A5
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embed.embedder import Embedder
from embed.model_folder import TOKEN_BUDGET
from embed.server.waiting import Event
from embed.tokenizer import TokenizedText

CHUNK_S = 0.25  # of computing: what a short text waits for at most before its own chunk
# Before anything was measured: small enough for BGE-M3 on two cores (330 tokens/s), soon corrected on what is faster.
FIRST_CHUNK_TOKENS = 256
SHORT = 8  # a request is short if so many like it fit into a chunk
FORGET = 0.75  # the weight of everything measured so far against the next chunk, which has weight 1


class Job:
    """The texts of one request on their way through the model.

    The event loop owns `cancelled`, `leaving` and `done`, the model thread all else but `error`, which either may give.
    """

    def __init__(self, texts: int, *, normalize: bool) -> None:
        self.texts = texts
        self.normalize = normalize
        self.tokens = 0
        self.waiting_tokens = 0  # of the texts that are in no chunk yet
        self.queued_tokens = 0  # those of `tokens` that count in the queue's bound
        self.embedder: Embedder | None = None
        self.tokenized: Sequence[TokenizedText] = ()
        self.vectors = np.empty((0, 0), np.float32)
        self.error: Exception | None = None
        self.cancelled = False  # nobody waits any more: compute no further
        self.leaving = False  # the client has shut its sending side, and may be gone: after everybody else
        self.done = Event()
        self._order: list[int] = []
        self._taken = 0
        self._computed = 0

    def fill(self, tokenized: Sequence[TokenizedText], embedder: Embedder) -> None:
        """Take the texts' tokens, made by `embedder`, before the model thread is given the job."""
        self.embedder = embedder
        self.tokenized = tokenized
        self.tokens = self.waiting_tokens = sum(len(text.ids) for text in tokenized)
        self.vectors = np.empty((len(tokenized), embedder.dimension), np.float32)
        self._order = sorted(range(len(tokenized)), key=lambda i: -len(tokenized[i].ids))

    @property
    def waits(self) -> bool:
        """Whether it has texts that are in no chunk yet, and somebody who wants them."""
        return self._taken < len(self._order) and self.is_wanted

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it, and it can still succeed."""
        return not self.cancelled and self.error is None

    @property
    def next_length(self) -> int:
        return len(self.tokenized[self._order[self._taken]].ids)

    @property
    def finished(self) -> bool:
        return self.error is not None or self._computed == len(self._order)

    def take(self) -> int:
        """Return the index of the next text, the longest of those left."""
        index = self._order[self._taken]
        self._taken += 1
        self.waiting_tokens -= len(self.tokenized[index].ids)
        return index

    def put(self, index: int, vector: NDArray[np.float32]) -> None:
        self.vectors[index] = vector
        self._computed += 1

    def fail(self, error: Exception) -> None:
        """Give the job up; of several errors the first stands."""
        self.error = self.error or error


@dataclass(frozen=True)
class Item:
    """One text of a chunk: `index` is its place in its job."""

    job: Job
    index: int

    @property
    def text(self) -> TokenizedText:
        return self.job.tokenized[self.index]


class Batcher:
    """The waiting jobs. Only the model thread uses it, so it has no lock."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def has_work(self) -> bool:
        """Tell whether any job waits; those that don't are forgotten, and with them their vectors."""
        self._jobs = deque(job for job in self._jobs if job.waits)
        return bool(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def next_chunk(self, tokens: int) -> list[Item]:
        """Return texts of at most `tokens` tokens, or one text that has more; nothing if no job waits.

        All want the same normalisation, since it is part of the forward: that of the job whose turn it is.
        """
        if not self.has_work():
            return []
        staying = [job for job in self._jobs if not job.leaving] or list(self._jobs)
        first = staying[0]
        self._jobs.remove(first)
        self._jobs.append(first)  # the next chunk begins with another
        alike = [job for job in staying if job.normalize == first.normalize]
        short = [job for job in alike if job.waiting_tokens * SHORT <= tokens]
        if not short or len(short) == len(alike):
            return _fill(deque(alike), tokens)
        return _fill(deque(dict.fromkeys([first, *short, *alike])), tokens // 2)


def _fill(jobs: deque[Job], tokens: int) -> list[Item]:
    chunk: list[Item] = []
    while jobs:
        job = jobs.popleft()
        if chunk and job.next_length > tokens:
            continue
        tokens -= job.next_length
        chunk.append(Item(job, job.take()))
        if job.waits:
            jobs.append(job)
    return chunk


class Pace:
    """How fast the model has been, and so how many tokens a chunk may have."""

    def __init__(self) -> None:
        self._tokens = float(FIRST_CHUNK_TOKENS)
        self._seconds = CHUNK_S

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds

    @property
    def chunk_tokens(self) -> int:
        return max(1, min(TOKEN_BUDGET, int(CHUNK_S * self.tokens_per_s)))

    def add(self, tokens: int, seconds: float) -> None:
        """Note a chunk that was computed. Large ones count for more, as they should: small ones run at a lower rate."""
        self._tokens = FORGET * self._tokens + tokens
        self._seconds = FORGET * self._seconds + seconds
