"""The process that computes: loads a model, then answers the requests that come, one after the other.

The thread that computes is the one that reports progress, between sub-layers: a report means that the forward advances,
and not only that the interpreter lives.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from embed.embedder import Embedder, direct_engine
from embed.errors import EmbedError, TextError
from embed.executor import protocol
from embed.executor.channel import Channel
from embed.executor.protocol import KINDS, Failure, Progress, Ready, Request, Result
from embed.model_folder import ModelFolder
from embed.tokenizer import TokenizedText


class Child:
    """One loaded model at the end of a channel."""

    def __init__(self, channel: Channel, folder: ModelFolder, *, name: str, threads: int, report_s: float) -> None:
        """Serve the model in `folder`, called `name`; report progress every `report_s` seconds at most."""
        self._channel = channel
        self._name = name
        self._report_s = report_s
        self._embedder = Embedder(folder, direct_engine(folder, threads))

    def run(self) -> None:
        """Load the model, say that it's ready, and answer until no more requests come.

        Raises what loading raises, after the channel has been told.
        """
        began = time.monotonic()
        self._embedder.engine.load()
        load_ms = round((time.monotonic() - began) * 1000)
        self._send(Ready(self._name, self._embedder.dimension, self._embedder.device, load_ms))
        for line in self._channel.lines():
            if line.strip():
                self._send(self._answer(line))

    def _answer(self, line: bytes) -> Result | Failure:
        number = None
        try:
            request = protocol.decode_request(line)
            number = request.id
            return Result(number, self._compute(request))
        except BrokenPipeError:
            raise
        except Exception as ex:  # not swallowed: it is the answer
            return failure_of(ex, number)

    def _compute(self, request: Request) -> NDArray[np.float32]:
        if request.texts is None:
            ends = np.cumsum(request.lengths)[:-1]
            parts = np.split(request.ids, ends) if request.lengths else []
            tokenized = [TokenizedText(ids, len(ids)) for ids in parts]
        else:
            tokenized = self._embedder.tokenize(request.texts)
        reported = time.monotonic()

        def report(done: int, steps: int) -> None:
            nonlocal reported
            if time.monotonic() - reported >= self._report_s:
                self._send(Progress(request.id, done, steps))
                reported = time.monotonic()

        return self._embedder.encode_tokens(tokenized, normalize=request.normalize, progress=report)

    def _send(self, message: protocol.Message) -> None:
        self._channel.send(protocol.encode(message))


def failure_of(ex: BaseException, number: int | None = None) -> Failure:
    """Return what the channel is told of an error, in answer to the request `number`."""
    kind = next((kind for kind, error in KINDS.items() if isinstance(ex, error)), "fault")
    message = str(ex) if isinstance(ex, EmbedError) else f"{type(ex).__name__}: {ex}"
    return Failure(number, kind, message, ex.index if isinstance(ex, TextError) else None)
