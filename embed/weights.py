"""The weights of an encoder under the names that the forward uses, read in place from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from embed.checkpoint import DTYPES, Checkpoint, Tensor
from embed.config import ModelConfig
from embed.errors import ModelError


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


# Field of EmbeddingWeights or LayerWeights: its name in the checkpoint and its shape in words of ModelConfig.
_Table = dict[str, tuple[str, tuple[str, ...]]]
_EMBEDDINGS: _Table = {
    "word": ("embeddings.word_embeddings.weight", ("vocab", "width")),
    "position": ("embeddings.position_embeddings.weight", ("positions", "width")),
    "token_type": ("embeddings.token_type_embeddings.weight", ("types", "width")),
    "gain": ("embeddings.LayerNorm.weight", ("width",)),
    "bias": ("embeddings.LayerNorm.bias", ("width",)),
}
_LAYER: _Table = {
    "query": ("attention.self.query.weight", ("width", "width")),
    "query_bias": ("attention.self.query.bias", ("width",)),
    "key": ("attention.self.key.weight", ("width", "width")),
    "key_bias": ("attention.self.key.bias", ("width",)),
    "value": ("attention.self.value.weight", ("width", "width")),
    "value_bias": ("attention.self.value.bias", ("width",)),
    "output": ("attention.output.dense.weight", ("width", "width")),
    "output_bias": ("attention.output.dense.bias", ("width",)),
    "attention_gain": ("attention.output.LayerNorm.weight", ("width",)),
    "attention_bias": ("attention.output.LayerNorm.bias", ("width",)),
    "up": ("intermediate.dense.weight", ("inner", "width")),
    "up_bias": ("intermediate.dense.bias", ("inner",)),
    "down": ("output.dense.weight", ("width", "inner")),
    "down_bias": ("output.dense.bias", ("width",)),
    "gain": ("output.LayerNorm.weight", ("width",)),
    "bias": ("output.LayerNorm.bias", ("width",)),
}
# Checkpoints that came from TensorFlow keep its names for a LayerNorm's parameters.
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def check(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Refuse, by name, a tensor that the encoder needs and that is missing, misshapen or of another dtype.

    Raises `ModelError`. Tensors that the encoder has no use for (poolers, heads, position_ids) aren't looked at.
    """
    prefix = _prefix(checkpoint)
    _check_table(checkpoint, config, prefix, _EMBEDDINGS)
    for layer in range(config.layers):
        _check_table(checkpoint, config, _layer_prefix(prefix, layer), _LAYER)


def embedding_weights(checkpoint: Checkpoint, config: ModelConfig) -> EmbeddingWeights:
    """Return the embedding tables as they lie in the checkpoint. Raises what `check` raises, for these tensors."""
    prefix = _prefix(checkpoint)
    _check_table(checkpoint, config, prefix, _EMBEDDINGS)
    return EmbeddingWeights(**_tensors(checkpoint, prefix, _EMBEDDINGS))


def layer_weights(checkpoint: Checkpoint, config: ModelConfig, layer: int) -> LayerWeights:
    """Return one layer's weights as they lie in the checkpoint. Raises what `check` raises, for these tensors."""
    prefix = _layer_prefix(_prefix(checkpoint), layer)
    _check_table(checkpoint, config, prefix, _LAYER)
    return LayerWeights(**_tensors(checkpoint, prefix, _LAYER))


def embedding_tensor_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names in the checkpoint of what `embedding_weights` reads."""
    prefix = _prefix(checkpoint)
    return [_spelling(checkpoint, prefix + suffix) for suffix, _ in _EMBEDDINGS.values()]


def layer_tensor_names(checkpoint: Checkpoint, config: ModelConfig, layer: int) -> list[str]:
    """Return the names in the checkpoint of what `layer_weights` reads, for `Checkpoint.release`."""
    prefix = _layer_prefix(_prefix(checkpoint), layer)
    return [_spelling(checkpoint, prefix + suffix) for suffix, _ in _LAYER.values()]


def _prefix(checkpoint: Checkpoint) -> str:
    """Return what stands before the encoder's tensor names: nothing, "bert.", "roberta.", "model." …

    Of several word tables (a two-tower model, an unused copy) the one that has a layer 0 beside it counts.
    """
    word, _ = _EMBEDDINGS["word"]
    prefixes = [name[: -len(word)] for name in checkpoint.names if name.endswith(word)]
    prefixes = [prefix for prefix in prefixes if prefix == "" or prefix.endswith(".")]
    if not prefixes:
        raise ModelError(
            f"{checkpoint.source}: there is no tensor {word}, under any prefix; "
            "check that these are an encoder's weights"
        )
    if len(prefixes) > 1:
        prefixes = [prefix for prefix in prefixes if _has_layer(checkpoint, prefix)]
    if len(prefixes) != 1:
        found = ", ".join(name for name in checkpoint.names if name.endswith(word))
        raise ModelError(f"{checkpoint.source}: which encoder is meant? There are {found}; keep one")
    return prefixes[0]


def _has_layer(checkpoint: Checkpoint, prefix: str) -> bool:
    return any(name.startswith(_layer_prefix(prefix, 0)) for name in checkpoint.names)


def _layer_prefix(prefix: str, layer: int) -> str:
    return f"{prefix}encoder.layer.{layer}."


def _spelling(checkpoint: Checkpoint, name: str) -> str:
    """Return the name under which the checkpoint has the tensor, the usual one if it hasn't."""
    for new, old in _OLD_NAMES.items():
        if name.endswith(new) and name not in checkpoint:
            renamed = name[: -len(new)] + old
            return renamed if renamed in checkpoint else name
    return name


def _tensors(checkpoint: Checkpoint, prefix: str, table: _Table) -> dict[str, Tensor]:
    return {field: checkpoint.tensor(_spelling(checkpoint, prefix + suffix)) for field, (suffix, _) in table.items()}


def _check_table(checkpoint: Checkpoint, config: ModelConfig, prefix: str, table: _Table) -> None:
    for suffix, dimensions in table.values():
        shape = tuple(getattr(config, dimension) for dimension in dimensions)
        _check_tensor(checkpoint, _spelling(checkpoint, prefix + suffix), shape, " x ".join(dimensions))


def _check_tensor(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], words: str) -> None:
    if name not in checkpoint:
        raise ModelError(
            f"{checkpoint.source}: tensor {name} is missing; the encoder needs it in shape {list(shape)} ({words}), "
            "so download the model again"
        )
    file = checkpoint.file_of(name)
    if checkpoint.dtype_of(name) not in DTYPES:
        raise ModelError(
            f"{file}: tensor {name} is {checkpoint.dtype_of(name)}; {', '.join(DTYPES)} are read, "
            "so convert the weights to one of them"
        )
    if checkpoint.shape_of(name) != shape:
        raise ModelError(
            f"{file}: tensor {name} has shape {list(checkpoint.shape_of(name))}, config.json asks for {list(shape)} "
            f"({words}); check that the two belong together"
        )
