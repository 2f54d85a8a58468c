"""The CPU backend: the compiled encoder of the best instruction set that this processor has."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
from numpy.typing import NDArray

from embed.backend import States
from embed.batching import Batch
from embed.config import ModelConfig
from embed.cpu import _native
from embed.errors import DeviceError
from embed.weights import EmbeddingWeights, LayerWeights


def instruction_set() -> str:
    """Return the name of the instruction set to use: `EMBED_ISA` if set, else the best that runs here."""
    reasons = _native.instruction_sets()
    runnable = [name for name, missing in reasons.items() if missing is None]
    wanted = os.environ.get("EMBED_ISA", "").strip()
    if not wanted:
        return runnable[0]
    if wanted not in reasons:
        raise DeviceError(f"EMBED_ISA={wanted} is not an instruction set; this machine runs {', '.join(runnable)}")
    if reasons[wanted] is not None:
        raise DeviceError(f"EMBED_ISA={wanted}: {reasons[wanted]}; this machine runs {', '.join(runnable)}")
    return wanted


def native_encoder(isa: str, config: ModelConfig, *, threads: int, max_tokens: int) -> _native.Encoder:
    """Return the compiled encoder of the config's shape, without weights."""
    try:
        return _native.Encoder(
            isa,
            layers=config.layers,
            width=config.width,
            inner=config.inner,
            heads=config.heads,
            eps=config.eps,
            activation=config.activation,
            threads=threads,
            max_tokens=max_tokens,
        )
    except RuntimeError as ex:  # what std::system_error becomes
        raise DeviceError(f"{threads} threads can't be had ({ex}); ask for fewer with threads, --threads") from ex


class CpuBackend:
    """`embed.backend.Backend` on the CPU: one thread calls it, and its encoder has the others."""

    def __init__(self, config: ModelConfig, *, threads: int, max_tokens: int) -> None:
        isa = instruction_set()
        self.description = f"cpu {isa}"
        self._width = config.width
        encoder = native_encoder(isa, config, threads=threads, max_tokens=max_tokens)
        self.weight_bytes = encoder.weight_bytes
        self._encoder: _native.Encoder | None = encoder

    @property
    def _live(self) -> _native.Encoder:
        assert self._encoder is not None, "used after close()"
        return self._encoder

    def load_embeddings(self, weights: EmbeddingWeights) -> None:
        self._live.load_embeddings(weights.word, weights.position, weights.token_type, weights.gain, weights.bias)

    def load_layer(self, layer: int, weights: LayerWeights) -> None:
        tensors = {field.name: getattr(weights, field.name) for field in dataclasses.fields(weights)}
        self._live.load_layer(layer, **tensors)

    def embed(self, batch: Batch) -> States:
        self._live.embed(batch.ids, batch.positions, batch.offsets)
        return batch  # the states themselves stay in the encoder's workspace

    def self_attention(self, states: States, layer: int) -> States:
        self._live.self_attention(layer)
        return states

    def feed_forward(self, states: States, layer: int) -> States:
        self._live.feed_forward(layer)
        return states

    def pool(self, states: States, pooling: str, normalize: bool) -> NDArray[np.float32]:
        vectors = np.empty((states.texts, self._width), np.float32)
        self._live.pool(vectors, pooling, normalize)
        return vectors

    def close(self) -> None:
        self._encoder = None
