"""The seam between the forward and a device: what a backend must do, with every shape."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embed.batching import Batch
from embed.weights import EmbeddingWeights, LayerWeights

States = Any  # hidden states (tokens, width) f32 on the device, opaque to the forward and valid until the next `embed`


class Backend(Protocol):
    """A device that holds one encoder's weights and runs its sub-layers, one batch at a time, on one thread.

    The sub-layers are those of "Attention Is All You Need" (Vaswani et al. 2017), each with its residual and its
    LayerNorm, so that a device can fuse what lies inside of one.
    """

    description: str  # device and variant, e.g. "cpu avx512"
    weight_bytes: int  # held by the device, the mapped word-embedding table not counted

    def load_embeddings(self, weights: EmbeddingWeights) -> None:
        """Take the embedding tables; the tables' memory stays valid, `gain` and `bias` are copied."""

    def load_layer(self, layer: int, weights: LayerWeights) -> None:
        """Pack one layer's weights; their memory may go away afterwards."""

    def embed(self, batch: Batch) -> States:
        """Return LayerNorm(word[ids] + type[0] + position[positions]), (tokens, width)."""

    def self_attention(self, states: States, layer: int) -> States:
        """Return LayerNorm(states + output(softmax(Q Kᵀ / √head_dim) V)), every text over its own tokens."""

    def feed_forward(self, states: States, layer: int) -> States:
        """Return LayerNorm(states + down(activation(up(states))))."""

    def pool(self, states: States, pooling: str, normalize: bool) -> NDArray[np.float32]:
        """Return one vector a text, (texts, width) float32, in host memory."""

    def close(self) -> None:
        """Give the memory back; no other method may be called afterwards."""
