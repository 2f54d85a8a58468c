"""The encoder in plain float64 NumPy: the truth that kernels and the forward are measured against.

One text at a time, one operation a line, nothing fused or blocked, so that it can be checked by reading it beside
"Attention Is All You Need" (Vaswani et al. 2017) and transformers' modeling_xlm_roberta.py. Operations have the names
and the argument order of `embed.cpu._native`; they take arrays of any dtype and return float64.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]

_erfc = np.frompyfunc(math.erfc, 1, 1)  # libm's, below 1 ULP; NumPy has none of its own

# config.json's `hidden_act` -> the kernel's name for it
ACTIVATION_OF = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def widen(tensor: ArrayLike) -> F64:
    """Return `tensor` in float64, exactly; uint16 holds the bits of bf16."""
    tensor = np.asarray(tensor)
    if tensor.dtype == np.uint16:
        tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float64, copy=False)


# --- single operations ------------------------------------------------------------------------------------------------


def exp2(x: ArrayLike) -> F64:
    """Return 2 ** x."""
    return np.exp2(widen(x))


def gelu(x: ArrayLike) -> F64:
    """Return x Φ(x), with Φ(x) = erfc(-x / √2) / 2, which keeps its relative accuracy for x < 0."""
    x = widen(x)
    return x * (_erfc(-x / math.sqrt(2)).astype(np.float64) / 2)


def gelu_tanh(x: ArrayLike) -> F64:
    """Return x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³), written as x / (1 + exp(-2u)): no cancellation."""
    x = widen(x)
    return x * _logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def relu(x: ArrayLike) -> F64:
    """Return max(x, 0)."""
    return np.maximum(widen(x), 0)


def silu(x: ArrayLike) -> F64:
    """Return x / (1 + exp(-x))."""
    x = widen(x)
    return x * _logistic(x)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "silu": silu}


def activation(x: ArrayLike, *, name: str) -> F64:
    """Return the activation `name` (gelu, gelu_tanh, relu or silu) of every element."""
    return ACTIVATIONS[name](x)


def _logistic(x: F64) -> F64:
    """Return 1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def softmax(scores: ArrayLike) -> F64:
    """Return the softmax over the last axis."""
    scores = widen(scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def gemm(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, epilogue: str = "bias", residual: ArrayLike | None = None
) -> F64:
    """Return epilogue(x Wᵀ + bias), (tokens, n): x (tokens, k), weight (n, k), bias (n), residual (tokens, n)."""
    y = widen(x) @ widen(weight).T + widen(bias)
    if epilogue == "bias":
        return y
    if epilogue == "residual":
        return y + widen(np.asarray(residual))
    return activation(y, name=epilogue)


def attention(qkv: ArrayLike, offsets: ArrayLike, *, heads: int) -> F64:
    """Return softmax(Q Kᵀ / √head_dim) V per text and head, (tokens, width).

    `qkv` (tokens, 3 width) is Q | K | V; text t owns rows `offsets[t]` to `offsets[t + 1]`.
    """
    qkv = widen(qkv)
    width = qkv.shape[1] // 3
    head_dim = width // heads
    out = np.zeros((len(qkv), width))
    for rows in _spans(offsets):
        for h in range(heads):
            query, key, value = (
                qkv[rows, part * width + h * head_dim : part * width + (h + 1) * head_dim] for part in range(3)
            )
            out[rows, h * head_dim : (h + 1) * head_dim] = softmax(query @ key.T / math.sqrt(head_dim)) @ value
    return out


def layer_norm(x: ArrayLike, gain: ArrayLike, bias: ArrayLike, *, eps: float) -> F64:
    """Return (x - mean) / √(variance + eps) gain + bias of every row, (tokens, width)."""
    x = widen(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * widen(gain) + widen(bias)


def gather(word: ArrayLike, position: ArrayLike, token_type: ArrayLike, ids: ArrayLike, positions: ArrayLike) -> F64:
    """Return word[ids] + type[0] + position[positions], (tokens, width)."""
    return widen(np.asarray(word)[ids]) + widen(np.asarray(token_type)[0]) + widen(np.asarray(position)[positions])


def pool(states: ArrayLike, offsets: ArrayLike, *, pooling: str, normalize: bool) -> F64:
    """Return one vector a text, (texts, width); `pooling` is a key of POOLINGS."""
    states = widen(states)
    vectors = np.stack([POOLINGS[pooling](states[rows]) for rows in _spans(offsets)])
    return normalized(vectors) if normalize else vectors


POOLINGS = {  # states (length, width) of one text -> (width)
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
    "max": lambda states: states.max(axis=0),
    "mean": lambda states: states.mean(axis=0),
    "mean_sqrt_len": lambda states: states.sum(axis=0) / math.sqrt(len(states)),
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
}


def normalized(vectors: ArrayLike) -> F64:
    """Return the rows scaled to length 1; torch.nn.functional.normalize's floor of 1e-12 keeps a zero row zero."""
    vectors = widen(vectors)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _spans(offsets: ArrayLike) -> list[slice]:
    bounds = np.asarray(offsets).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


# --- the forward ------------------------------------------------------------------------------------------------------


def position_ids(ids: Sequence[int], model_type: str, pad_id: int) -> list[int]:
    """Return the positions of one text's ids, counted by hand.

    BERT counts from 0. RoBERTa counts the ids that aren't <pad> from pad_id + 1; a <pad> itself sits at pad_id.
    """
    if model_type == "bert":
        return list(range(len(ids)))
    positions, last = [], pad_id
    for token in ids:
        last += token != pad_id
        positions.append(pad_id if token == pad_id else last)
    return positions


def hidden_states(tensors: Mapping[str, Any], config: Mapping[str, Any], ids: Sequence[int]) -> F64:
    """Return the last hidden states (length, width) of one text; `tensors` has the names of a bare checkpoint."""
    t, eps, heads = tensors, config["layer_norm_eps"], config["num_attention_heads"]
    act = ACTIVATION_OF[config["hidden_act"]]
    positions = position_ids(ids, config["model_type"], config["pad_token_id"])
    tables = (t[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    x = gather(*tables, ids, positions)
    x = layer_norm(x, *_affine(t, "embeddings.LayerNorm"), eps=eps)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        qkv = [gemm(x, *_affine(t, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value")]
        context = attention(np.concatenate(qkv, axis=1), [0, len(ids)], heads=heads)
        y = gemm(context, *_affine(t, f"{layer}.attention.output.dense"), epilogue="residual", residual=x)
        x = layer_norm(y, *_affine(t, f"{layer}.attention.output.LayerNorm"), eps=eps)
        inner = gemm(x, *_affine(t, f"{layer}.intermediate.dense"), epilogue=act)
        y = gemm(inner, *_affine(t, f"{layer}.output.dense"), epilogue="residual", residual=x)
        x = layer_norm(y, *_affine(t, f"{layer}.output.LayerNorm"), eps=eps)
    return x


def encode(
    tensors: Mapping[str, Any],
    config: Mapping[str, Any],
    texts: Sequence[Sequence[int]],
    *,
    pooling: str,
    normalize: bool = True,
) -> F64:
    """Return the vectors (texts, width) of `texts`, each the ids of one text with its special tokens."""
    states = [hidden_states(tensors, config, ids) for ids in texts]
    return np.concatenate([pool(s, [0, len(s)], pooling=pooling, normalize=normalize) for s in states])


def _affine(tensors: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def read_checkpoint(path: Path) -> dict[str, NDArray[Any]]:
    """Return the F32, F16 and BF16 tensors of a safetensors file, BF16 as its bits in uint16.

    Reads the format itself (an 8-byte length, a JSON header, the data): the reference shares no code with `embed`.
    """
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    dtypes = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if entry.get("dtype") in dtypes:
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[start + begin : start + end], dtypes[entry["dtype"]])
            tensors[name] = data.reshape(entry["shape"])
    return tensors


def relative_error(got: ArrayLike, want: ArrayLike) -> F64:
    """Return the relative L2 error of every row, ‖got - want‖ / ‖want‖, (rows)."""
    got, want = widen(got), widen(want)
    return np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
