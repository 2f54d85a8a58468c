"""Model directories with random weights and a word-level tokenizer, of any shape, for comparing with reference.py.

Weights are scaled so that different texts get clearly different vectors, as in a trained model: with the small weights
of an initialisation every text would look alike, and errors small.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

Tensors = dict[str, NDArray[Any]]

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as in XLM-R
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}


@dataclass(frozen=True)
class Shape:
    width: int = 32
    heads: int = 4
    inner: int = 64
    layers: int = 2
    words: int = 200  # of the tokenizer: "w0" to "w199"
    positions: int = 514
    model_type: str = "xlm-roberta"
    hidden_act: str = "gelu"
    eps: float = 1e-5


def make(home: Path, shape: Shape, dtype: str = "F32", seed: int = 7) -> Path:
    """Write a model directory to `home` and return it; `dtype` is that of every tensor: F32, F16 or BF16."""
    home.mkdir(parents=True)
    tensors = {name: _narrowed(tensor, dtype) for name, tensor in random_tensors(shape, seed).items()}
    write_checkpoint(home / "model.safetensors", tensors)
    (home / "config.json").write_text(json.dumps(config(shape)))
    tokenizer(shape.words).save(str(home / "tokenizer.json"))
    return home


def config(shape: Shape) -> dict[str, Any]:
    """Return config.json's contents."""
    return {
        "model_type": shape.model_type,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": 1,
        "vocab_size": shape.words + len(SPECIALS),
        "layer_norm_eps": shape.eps,
        "hidden_act": shape.hidden_act,
        "pad_token_id": 1,
    }


def random_tensors(shape: Shape, seed: int) -> Tensors:
    """Return the tensors of a checkpoint, f32, under names without a prefix."""
    rng = np.random.default_rng(seed)

    def normal(*size: int, std: float, mean: float = 0) -> NDArray[np.float32]:
        return rng.standard_normal(size, np.float32) * np.float32(std) + np.float32(mean)

    def layer_norm(name: str) -> Tensors:
        return {
            f"{name}.weight": normal(shape.width, std=0.1, mean=1),
            f"{name}.bias": normal(shape.width, std=0.1),
        }

    def linear(name: str, rows: int, columns: int) -> Tensors:
        weight = normal(rows, columns, std=1.2 / columns**0.5)
        return {f"{name}.weight": weight, f"{name}.bias": normal(rows, std=0.05)}

    vocab, width, inner = shape.words + len(SPECIALS), shape.width, shape.inner
    tensors = {
        "embeddings.word_embeddings.weight": normal(vocab, width, std=1),
        "embeddings.position_embeddings.weight": normal(shape.positions, width, std=0.3),
        "embeddings.token_type_embeddings.weight": normal(1, width, std=0.1),
        **layer_norm("embeddings.LayerNorm"),
    }
    for i in range(shape.layers):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            tensors |= linear(f"{layer}.attention.self.{part}", width, width)
        tensors |= linear(f"{layer}.attention.output.dense", width, width)
        tensors |= layer_norm(f"{layer}.attention.output.LayerNorm")
        tensors |= linear(f"{layer}.intermediate.dense", inner, width)
        tensors |= linear(f"{layer}.output.dense", width, inner)
        tensors |= layer_norm(f"{layer}.output.LayerNorm")
    return tensors


def _narrowed(tensor: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return (tensor.view(np.uint32) >> 16).astype(np.uint16)  # cut off: any bits will do
    return tensor.astype({"F32": np.float32, "F16": np.float16}[dtype])


def write_checkpoint(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file; the package's NumPy side knows no BF16, which is uint16 here."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).data)


def tokenizer(words: int) -> Tokenizer:
    """Return a tokenizer of white-space separated words "w0" …, between <s> and </s>."""
    vocab = {token: i for i, token in enumerate([*SPECIALS, *(f"w{i}" for i in range(words))])}
    built = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    built.add_special_tokens(SPECIALS)
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, vocab[token]) for token in ("<s>", "</s>")]
    )
    return built


def random_text(rng: np.random.Generator, length: int, words: int) -> str:
    """Return a text of `length` tokens, the special ones included."""
    return " ".join(f"w{i}" for i in rng.integers(words, size=length - 2))
