"""An embedder of plain Python, for what doesn't depend on vectors: `StubEmbedder` stands in for `embed.Embedder`.

A text has as many tokens as words, at least one, cut to `maxseq`. Its vector is its length and its first code points.
Some texts misbehave, by name, but only when they are computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embed.tokenizer import TokenizedText

DIMENSION = 4
NOT_FINITE, ABORTS, NAP = "not finite", "aborts", "nap"


@dataclass(frozen=True, eq=False)
class StubText(TokenizedText):
    text: str = ""


@dataclass
class StubEngine:
    """Loaded and unloaded on request; `failures` are raised by the next loads, one each."""

    description: str = "cpu stub"
    pid: int | None = None
    last_failure: str | None = None
    patience_s: float | None = None
    is_loaded: bool = False
    loads: int = 0
    failures: list[Exception] = field(default_factory=list)

    def watch(self, died: Callable[[], None]) -> None:
        self.died = died

    def load(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.loads += 1
        self.is_loaded = True

    def unload(self) -> None:
        self.is_loaded = False


@dataclass
class StubFolder:
    path: str = "models/stub"
    has_changed: bool = False


@dataclass
class StubEmbedder:
    """`chunks` are the texts of each call to `encode_chunk` but the warm-up; while `gate` isn't set, none returns."""

    maxseq: int = 1000
    dimension: int = DIMENSION
    engine: StubEngine = field(default_factory=StubEngine)
    folder: StubFolder = field(default_factory=StubFolder)
    token_s: float = 0.0
    chunks: list[list[str]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def device(self) -> str:
        return self.engine.description

    def tokenize(self, texts: Sequence[str], *, count_all: bool = True) -> list[StubText]:
        return [self._tokenized(text) for text in texts]

    def encode_chunk(
        self, tokenized: Sequence[StubText], *, normalize: bool, progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        texts = [item.text for item in tokenized]
        self.chunks.append(texts)
        assert self.gate.wait(30)
        if any(text.startswith(NAP) for text in texts):
            time.sleep(0.1)
        time.sleep(self.token_s * sum(len(item.ids) for item in tokenized))
        if any(text.startswith(ABORTS) for text in texts):
            raise MemoryError("out of memory")
        return np.stack([vector_of(text, normalize=normalize) for text in texts])

    def warm_up(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def _tokenized(self, text: str) -> StubText:
        words = max(1, len(text.split()))
        return StubText(np.zeros(min(words, self.maxseq), np.int32), words, text)


def vector_of(text: str, *, normalize: bool = True) -> NDArray[np.float32]:
    """Return the stub's vector of a text, (4) float32."""
    if text.startswith(NOT_FINITE):
        return np.full(DIMENSION, np.nan, np.float32)
    points = [ord(char) for char in text[: DIMENSION - 1]]
    row = [len(text), *points, *[0] * (DIMENSION - 1 - len(points))]
    return np.array(row, np.float32) * (1 if normalize else 2)
