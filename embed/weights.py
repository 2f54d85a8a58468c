"""The weights of an encoder under the names that the forward uses, read in place from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Tensor = NDArray[Any]  # float32, float16, or uint16 holding the bits of bf16


@dataclass(frozen=True)
class EmbeddingWeights:
    word: Tensor  # (vocab, width), stays in the mapped file
    position: Tensor  # (positions, width)
    token_type: Tensor  # (types, width); row 0 is added to every token
    gain: Tensor  # (width) of the LayerNorm that follows the sum
    bias: Tensor  # (width)


@dataclass(frozen=True)
class LayerWeights:
    """One encoder layer; matrices are (out, in) as in the checkpoint."""

    query: Tensor  # (width, width)
    query_bias: Tensor  # (width)
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    output: Tensor  # (width, width)
    output_bias: Tensor
    attention_gain: Tensor  # (width) of the LayerNorm after attention
    attention_bias: Tensor
    up: Tensor  # (inner, width)
    up_bias: Tensor  # (inner)
    down: Tensor  # (width, inner)
    down_bias: Tensor  # (width)
    gain: Tensor  # (width) of the LayerNorm after the feed-forward
    bias: Tensor
