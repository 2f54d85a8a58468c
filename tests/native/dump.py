"""Write a forward down for `driver forward` (forward.cc describes the file), so that another machine can run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import reference
from encoder_weights import Weights
from numpy.typing import NDArray

from embed.batching import Batch

# In the order of csrc/cpu/kernels.h.
ACTIVATIONS = ("bias", "gelu", "gelu_tanh", "relu", "silu")
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weightedmean", "lasttoken")


def dump(path: Path, weights: Weights, batch: Batch, *, pooling: str = "mean", normalize: bool = True) -> None:
    """Write weights, widened to f32, and batch; of the tables only the rows that the batch needs."""
    config, tables = weights.config, weights.embeddings
    words, ids = np.unique(batch.ids, return_inverse=True)
    places, positions = np.unique(batch.positions, return_inverse=True)
    sizes = [
        *(config.layers, config.width, config.inner, config.heads),
        *(ACTIVATIONS.index(config.activation), POOLINGS.index(pooling), normalize),
        *(batch.texts, batch.tokens, len(words), len(places)),
    ]
    with path.open("wb") as file:
        file.write(np.array(sizes, "<i4").tobytes() + np.array(config.eps, "<f4").tobytes())
        for table in (tables.word[words], tables.position[places], tables.token_type[0], tables.gain, tables.bias):
            file.write(_widened(table))
        for layer in weights.layers:
            for tensor in vars(layer).values():  # in the order of LayerTensors in csrc/cpu/encoder.h
                file.write(_widened(tensor))
        for numbers in (ids, positions, batch.offsets):
            file.write(numbers.astype("<i4").tobytes())


def _widened(tensor: NDArray[Any]) -> bytes:
    return reference.widen(tensor).astype("<f4").tobytes()
