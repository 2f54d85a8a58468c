"""What `config.json` says: which encoder, its sizes, and how positions are counted.

Read as transformers' own classes read it. A key that decides nothing here (dropout, label names) is ignored; one
that decides something and asks for what isn't built is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from embed.errors import ModelError
from embed.files import JsonObject, exists, shown

POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weightedmean", "lasttoken")
# kMaxHeadDim in csrc/cpu/kernels.h, kMaxWidth and kMaxInner in csrc/cpu/encoder.h
MAX_HEAD_DIM, MAX_WIDTH, MAX_INNER = 128, 65536, 262144
MIN_MAXSEQ = 3  # <s>, one token of the text, </s>

# How each model_type is counted and called. RoBERTa's kind starts positions after the padding id, BERT's at 0; the
# padding ids are the classes' defaults.
_ROBERTA_PAD_ID = 1
_BERT_PAD_ID = 0
_MODEL_TYPES = {
    "xlm-roberta": "XLMRobertaModel",
    "roberta": "RobertaModel",
    "camembert": "CamembertModel",
    "bert": "BertModel",
}
# The body alone or under a head, which is ignored. Not RobertaPreLayerNormModel, XLMRobertaXLModel and such.
_ARCHITECTURE = re.compile(r"(XLMRoberta|Roberta|Camembert|Bert)(Model|LMHeadModel|For[A-Z]\w*)")

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_MAX_SIZE = 2**31 - 1  # ids and sizes are int32 from here on
_MAX_LAYERS = 1024  # BERT-large has 24; a loop over layers shall end


@dataclass(frozen=True)
class ModelConfig:
    """An encoder's sizes, in the words of csrc/README.md."""

    architecture: str  # e.g. "XLMRobertaModel"
    model_type: str  # "xlm-roberta", "roberta", "camembert" or "bert"
    layers: int
    width: int
    inner: int
    heads: int
    vocab: int
    positions: int  # rows of the position table
    types: int
    pad_id: int
    eps: float
    activation: str  # "gelu" (erf), "gelu_tanh", "relu" or "silu"

    @property
    def position_pad_id(self) -> int | None:
        """The id that positions are counted around (`batching.position_ids`), or None where they start at 0."""
        return None if self.model_type == "bert" else self.pad_id

    @property
    def max_length(self) -> int:
        """The most tokens a text may have: one for every position that a token can take."""
        pad_id = self.position_pad_id
        return self.positions if pad_id is None else self.positions - pad_id - 1


def read_config(directory: Path) -> ModelConfig:
    """Return what config.json in `directory` says.

    `directory` is the one that holds config.json and the weights (`metadata.transformer_directory`). Raises
    `ModelError`, naming the file and the key, for what is missing, malformed or not built.
    """
    _refuse_no_directory(directory)
    source = JsonObject.read(directory / "config.json")
    model_type = _model_type(source)
    _refuse_unbuilt(source)
    config = ModelConfig(
        architecture=_architecture(source, model_type),
        model_type=model_type,
        layers=source.integer("num_hidden_layers", 1, _MAX_LAYERS),
        width=source.integer("hidden_size", 1, MAX_WIDTH),
        inner=source.integer("intermediate_size", 1, MAX_INNER),
        heads=source.integer("num_attention_heads", 1, _MAX_SIZE),
        vocab=source.integer("vocab_size", 1, _MAX_SIZE),
        positions=source.integer("max_position_embeddings", 1, _MAX_SIZE),
        types=_types(source),
        pad_id=_pad_id(source, model_type),
        eps=source.number("layer_norm_eps", most=1.0) if "layer_norm_eps" in source.values else 1e-12,
        activation=_activation(source),
    )
    _check_sizes(source, config)
    return config


def _refuse_no_directory(directory: Path) -> None:
    if not directory.is_dir():
        reason = "is not a directory" if exists(directory) else "there is no such directory"
        raise ModelError(f"{directory}: {reason}; give the folder that holds config.json and model.safetensors")


def _model_type(source: JsonObject) -> str:
    model_type = source.string("model_type")
    if model_type not in _MODEL_TYPES:
        source.refuse("model_type", f"one of {', '.join(_MODEL_TYPES)}, the encoders that are built,")
    return model_type


def _architecture(source: JsonObject, model_type: str) -> str:
    if not source.says("architectures"):
        return _MODEL_TYPES[model_type]
    names = source.values["architectures"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        source.refuse("architectures", f'a list of names such as ["{_MODEL_TYPES[model_type]}"]')
    for name in names:
        if not _ARCHITECTURE.fullmatch(name):
            raise ModelError(
                f"{source.path}: architectures names {shown(name)}, which is not built; "
                f"{', '.join(_MODEL_TYPES.values())} are, alone or under a head"
            )
    return str(names[0])


def _types(source: JsonObject) -> int:
    return source.integer("type_vocab_size", 1, _MAX_SIZE) if "type_vocab_size" in source.values else 2


def _pad_id(source: JsonObject, model_type: str) -> int:
    if model_type == "bert" and not source.says("pad_token_id"):
        return _BERT_PAD_ID  # null counts as absent: BERT's positions don't ask for it
    if "pad_token_id" not in source.values:
        return _ROBERTA_PAD_ID
    return source.integer("pad_token_id", 0, _MAX_SIZE)


def _activation(source: JsonObject) -> str:
    name = source.string("hidden_act") if "hidden_act" in source.values else "gelu"
    if name not in _ACTIVATIONS:
        source.refuse("hidden_act", f"one of {', '.join(_ACTIVATIONS)}, the activations that are built,")
    return _ACTIVATIONS[name]


def _refuse_unbuilt(source: JsonObject) -> None:
    for key in ("is_decoder", "add_cross_attention"):
        if source.boolean(key, False):
            source.refuse(key, "false, as only encoders are built,")
    if source.says("position_embedding_type") and source.values["position_embedding_type"] != "absolute":
        source.refuse("position_embedding_type", '"absolute", the only kind that is built,')


def _check_sizes(source: JsonObject, config: ModelConfig) -> None:
    if config.width % config.heads:
        source.refuse("num_attention_heads", f"a divisor of hidden_size {config.width}")
    head_dim = config.width // config.heads
    if head_dim > MAX_HEAD_DIM:
        raise ModelError(
            f"{source.path}: hidden_size {config.width} over num_attention_heads {config.heads} is {head_dim} a head; "
            f"heads of at most {MAX_HEAD_DIM} are built"
        )
    if config.pad_id >= config.vocab:
        source.refuse("pad_token_id", f"an id below vocab_size {config.vocab}")
    if config.max_length < MIN_MAXSEQ:
        source.refuse("max_position_embeddings", f"room for texts of {MIN_MAXSEQ} tokens")
