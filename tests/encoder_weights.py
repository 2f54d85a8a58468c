"""The weights of a model directory, and `_native.Encoder` over them: the forward without tokenizer and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embed import batching
from embed.batching import Batch
from embed.checkpoint import Checkpoint
from embed.config import ModelConfig, read_config
from embed.cpu import _native
from embed.cpu.backend import native_encoder
from embed.weights import EmbeddingWeights, LayerWeights, embedding_weights, layer_weights


@dataclass(frozen=True)
class Weights:
    config: ModelConfig
    embeddings: EmbeddingWeights
    layers: list[LayerWeights]


def read_weights(directory: Path) -> Weights:
    config, checkpoint = read_config(directory), Checkpoint.open(directory)
    layers = [layer_weights(checkpoint, config, i) for i in range(config.layers)]
    return Weights(config, embedding_weights(checkpoint, config), layers)


def random_batch(config: ModelConfig, lengths: Sequence[int], seed: int = 11) -> Batch:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(config.pad_id + 1, config.vocab, length).astype(np.int32) for length in lengths]
    return batching.pack(texts, config.position_pad_id)


def encoder(isa: str, weights: Weights, *, threads: int = 1, max_tokens: int = 1024) -> _native.Encoder:
    built = native_encoder(isa, weights.config, threads=threads, max_tokens=max_tokens)
    built.load_embeddings(*vars(weights.embeddings).values())
    for i, layer in enumerate(weights.layers):
        built.load_layer(i, **vars(layer))
    return built


def forward(
    built: _native.Encoder, weights: Weights, batch: Batch, *, pooling: str = "mean", normalize: bool = True
) -> NDArray[np.float32]:
    built.embed(batch.ids, batch.positions, batch.offsets)
    for i in range(weights.config.layers):
        built.self_attention(i)
        built.feed_forward(i)
    out = np.empty((batch.texts, weights.config.width), np.float32)
    built.pool(out, pooling, normalize)
    return out
