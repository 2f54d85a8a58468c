"""Types of the compiled CPU extension. Arrays are C-contiguous NumPy arrays; bf16 travels as its bits in uint16."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Tensor = NDArray[Any]  # float32, float16, or uint16 holding bf16 bits

# The largest sizes that are built; embed/config.py refuses more.
MAX_HEAD_DIM: int
MAX_WIDTH: int
MAX_INNER: int

def instruction_sets() -> dict[str, str | None]:
    """Map each known instruction set, best first, to why it can't run here, or None if it can."""

def memory_bytes(
    isa: str, *, layers: int, width: int, inner: int, heads: int, threads: int, max_tokens: int
) -> tuple[int, int]:
    """Return what an encoder of that shape will hold, (weights, workspace), without taking any memory."""

class Encoder:
    """The forward of one encoder on one kernel table; owned by one thread. See csrc/cpu/encoder.h."""

    weight_bytes: int
    workspace_bytes: int

    def __init__(
        self,
        isa: str,
        *,
        layers: int,
        width: int,
        inner: int,
        heads: int,
        eps: float,
        activation: str,
        threads: int,
        max_tokens: int,
    ) -> None: ...
    def load_embeddings(
        self, word: Tensor, position: Tensor, token_type: Tensor, gain: Tensor, bias: Tensor
    ) -> None: ...
    def load_layer(
        self,
        layer: int,
        *,
        query: Tensor,
        query_bias: Tensor,
        key: Tensor,
        key_bias: Tensor,
        value: Tensor,
        value_bias: Tensor,
        output: Tensor,
        output_bias: Tensor,
        attention_gain: Tensor,
        attention_bias: Tensor,
        up: Tensor,
        up_bias: Tensor,
        down: Tensor,
        down_bias: Tensor,
        gain: Tensor,
        bias: Tensor,
    ) -> None: ...
    def embed(self, ids: I32, positions: I32, offsets: I32) -> None: ...
    def self_attention(self, layer: int) -> None: ...
    def feed_forward(self, layer: int) -> None: ...
    def pool(self, out: F32, pooling: str, normalize: bool) -> None: ...

# Single kernels on unpadded arrays, for the tests: each pads, forks a team of `threads` and returns a new array.
def pack(isa: str, weights: Sequence[Tensor], *, row_group: int, column_group: int, threads: int = ...) -> F32: ...
def gemm(
    isa: str, x: F32, weight: Tensor, bias: F32, *, epilogue: str = ..., residual: F32 | None = ..., threads: int = ...
) -> F32: ...
def attention(isa: str, qkv: F32, offsets: I32, *, heads: int, threads: int = ...) -> F32: ...
def layer_norm(isa: str, x: F32, gain: F32, bias: F32, *, eps: float, threads: int = ...) -> F32: ...
def gather(
    isa: str, word: Tensor, position: Tensor, token_type: Tensor, ids: I32, positions: I32, *, threads: int = ...
) -> F32: ...
def pool(isa: str, states: F32, offsets: I32, *, pooling: str, normalize: bool, threads: int = ...) -> F32: ...
def exp2(isa: str, x: F32) -> F32: ...
def activation(isa: str, x: F32, *, name: str) -> F32: ...
