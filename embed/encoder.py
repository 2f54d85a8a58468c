"""The one forward of a BERT-shaped encoder, for every device.

Devlin et al. 2018 (BERT), Liu et al. 2019 (RoBERTa), Conneau et al. 2019 (XLM-R): post-norm layers of "Attention Is
All You Need", after learned embeddings of word, position and type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embed.backend import Backend
from embed.batching import Batch

Progress = Callable[[int, int], None]  # (steps done, steps there are); may raise to give up


def forward(
    backend: Backend, layers: int, batch: Batch, *, pooling: str, normalize: bool, progress: Progress
) -> NDArray[np.float32]:
    """Return the pooled vectors (texts, width) float32 of a packed batch.

    `progress` is called from the computing thread before every sub-layer; what it raises abandons the forward.
    """
    states = backend.embed(batch)
    for layer in range(layers):
        progress(2 * layer, 2 * layers)
        states = backend.self_attention(states, layer)
        progress(2 * layer + 1, 2 * layers)
        states = backend.feed_forward(states, layer)
    return backend.pool(states, pooling, normalize)
