"""What sentence-transformers' files in a model directory say: modules, pooling, maximum length, prompts.

Both spellings of each are read, that of releases before 5.4 and the one since, as sentence-transformers 6.2 reads
them. Where it would do something that isn't built (a Dense module, two poolings side by side), the directory is
refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embed.config import MIN_MAXSEQ, ModelConfig
from embed.errors import ModelError
from embed.files import MAX_JSON_BYTES, JsonObject, exists, inner_path, parse_json, read_bytes, shown

# A module's type is its class; the package around it was renamed in 5.4 and may be again, the class wasn't.
_MODULE_TYPE = re.compile(r"sentence_transformers\.(?:[\w]+\.)*(Transformer|Pooling|Normalize)")
_ORDER = ("Transformer", "Pooling", "Normalize")
_POOLING_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
}
_OLD_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TRANSFORMER_FILES = (  # the first one that says something counts; the others are names of old
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# Would change the tokens or the encoder. (model_kwargs, or model_args, only say how PyTorch is to compute.)
_UNBUILT_SETTINGS = (
    "processor_kwargs",
    "tokenizer_args",
    "config_kwargs",
    "config_args",
    "processing_kwargs",
    "tokenizer_name_or_path",
    "query_expansion",
)


@dataclass(frozen=True)
class Metadata:
    """How texts become tokens and token states a vector; a `source` is a path inside of the model directory."""

    pooling: str  # one of config.POOLINGS
    pooling_source: str | None  # None: no file says, so `pooling` is a guess
    maxseq: int  # tokens, at most ModelConfig.max_length
    maxseq_source: str
    prompts: dict[str, str]
    default_prompt_name: str | None
    include_prompt: bool  # False: the prompt's tokens are to be left out of the pooling
    has_normalize: bool  # whether a Normalize module is there; vectors are normalised by default all the same
    lowercase: bool  # texts are lower-cased before the tokenizer's own normalisation


@dataclass(frozen=True)
class Modules:
    """The modules of modules.json, each by its folder; without that file, what the usual places hold."""

    transformer: Path
    pooling: Path | None
    normalize: Path | None


def transformer_directory(directory: Path) -> Path:
    """Return the folder with config.json, the weights and the tokenizer: `directory`, or the module's in it.

    Raises `ModelError` if modules.json is malformed or names a module that isn't built.
    """
    return read_modules(directory).transformer


def read_metadata(directory: Path, config: ModelConfig) -> Metadata:
    """Return what the files in the model directory say, with `config`'s limit on the length.

    Raises `ModelError`, naming the file and the key, for what is malformed or not built.
    """
    modules = read_modules(directory)
    pooling, pooling_source, include_prompt = "cls", None, True
    if modules.pooling is not None:
        source = JsonObject.read(modules.pooling / "config.json")
        pooling, include_prompt = _pooling(source), source.boolean("include_prompt", True)
        pooling_source = source.path.relative_to(directory).as_posix()
    transformer = _read_transformer(modules.transformer)
    maxseq, maxseq_path = _maxseq(modules.transformer, transformer, config)
    prompts, default_prompt_name = _prompts(directory)
    return Metadata(
        pooling=pooling,
        pooling_source=pooling_source,
        maxseq=maxseq,
        maxseq_source=maxseq_path.relative_to(directory).as_posix(),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        include_prompt=include_prompt,
        has_normalize=modules.normalize is not None,
        lowercase=transformer.boolean("do_lower_case", False) if transformer else False,
    )


def read_modules(directory: Path) -> Modules:
    """Return what modules.json says, or the usual places hold. Raises `ModelError` as `transformer_directory` does."""
    path = directory / "modules.json"
    if not exists(path):
        pooling = directory / "1_Pooling"
        return Modules(directory, pooling if exists(pooling / "config.json") else None, None)
    entries = parse_json(path, read_bytes(path, MAX_JSON_BYTES))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelError(f"{path}: a JSON list of modules is expected; download the file again")
    modules = [_module(JsonObject(path, entry), directory) for entry in entries]
    _check_order(path, [kind for kind, _ in modules])
    folders = dict(modules)
    if "Normalize" in folders:
        _check_normalize(folders["Normalize"] / "config.json")
    return Modules(folders["Transformer"], folders.get("Pooling"), folders.get("Normalize"))


def _module(entry: JsonObject, directory: Path) -> tuple[str, Path]:
    kind = _MODULE_TYPE.fullmatch(entry.string("type"))
    if kind is None:
        raise ModelError(
            f"{entry.path}: the module {shown(entry.values['type'])} is not built; "
            f"models of {', '.join(_ORDER)} are, so export one without it"
        )
    return kind[1], directory / inner_path(entry.path, "path", entry.values.get("path"))


def _check_order(path: Path, kinds: list[str]) -> None:
    in_order = [kind for kind in _ORDER if kind in kinds]
    if kinds != in_order or "Transformer" not in kinds:
        raise ModelError(
            f"{path}: the modules are {', '.join(kinds) or 'none'}; {', '.join(_ORDER)}, each at most once "
            "and in this order, are expected"
        )


def _check_normalize(path: Path) -> None:
    if not exists(path):
        return  # before 5.4 the module had no settings
    source = JsonObject.read(path)
    for key in ("module_input_name", "module_output_name"):
        if source.says(key) and source.values[key] != "sentence_embedding":
            source.refuse(key, '"sentence_embedding"')


def _pooling(source: JsonObject) -> str:
    """Return the one pooling of 1_Pooling/config.json: `pooling_mode` if it is there, else the old switches."""
    if "pooling_mode" in source.values:
        modes = source.values["pooling_mode"]
        modes = modes if isinstance(modes, list) else [modes]
    else:
        modes = _old_pooling_modes(source)
    if len(modes) != 1:
        raise ModelError(
            f"{source.path}: poolings {shown(modes)} are asked for side by side, which is not built; name one of them"
        )
    if not isinstance(modes[0], str) or modes[0] not in _POOLING_NAMES:
        raise ModelError(
            f"{source.path}: pooling {shown(modes[0])} is not built; choose one of {', '.join(_POOLING_NAMES)}"
        )
    return _POOLING_NAMES[modes[0]]


def _old_pooling_modes(source: JsonObject) -> list[str]:
    switches = [key for key in source.values if key.startswith("pooling_mode_")]
    chosen = [key for key in switches if source.boolean(key, False)]
    for key in chosen:
        if key not in _OLD_POOLING_KEYS:
            raise ModelError(f"{source.path}: {key} is not built; choose one of {', '.join(_OLD_POOLING_KEYS)}")
    return [_OLD_POOLING_KEYS[key] for key in chosen] or ["mean"]  # sentence-transformers' default


def _read_transformer(directory: Path) -> JsonObject | None:
    """Return the settings of the Transformer module, checked for what isn't built; None if no file has any."""
    for name in TRANSFORMER_FILES:
        if not exists(directory / name):
            continue
        source = JsonObject.read(directory / name)
        if source.values:
            _check_transformer(source)
            return source
    return None


def _check_transformer(source: JsonObject) -> None:
    for key, built in (("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")):
        if source.says(key) and source.values[key] != built:
            source.refuse(key, f'"{built}", the only one that is built,')
    for key in _UNBUILT_SETTINGS:
        if source.says(key) and source.values[key] not in ({}, {"trust_remote_code": True}):
            source.refuse(key, "nothing, as such settings are not built,")
    if not source.says("modality_config"):
        return
    text = source.values["modality_config"].get("text") if isinstance(source.values["modality_config"], dict) else None
    if not isinstance(text, dict) or text.get("method_output_name") != "last_hidden_state":
        source.refuse("modality_config", '"text" with the method_output_name "last_hidden_state"')


def _maxseq(directory: Path, transformer: JsonObject | None, config: ModelConfig) -> tuple[int, Path]:
    """Return the tokens that a text is cut to, and the file that says so: config.json where the model's limit does."""
    limit = (config.max_length, directory / "config.json")
    path = directory / "tokenizer_config.json"
    tokenizer = JsonObject.read(path) if exists(path) else None
    if tokenizer is not None and tokenizer.values.get("truncation_side", "right") != "right":
        tokenizer.refuse("truncation_side", '"right" (long texts keep their head)')
    if transformer is not None and transformer.says("max_seq_length"):
        return _shorter((transformer.integer("max_seq_length", MIN_MAXSEQ, 2**31 - 1), transformer.path), limit)
    if tokenizer is not None and tokenizer.says("model_max_length"):
        length = tokenizer.number("model_max_length")  # 1e30 stands for "no limit"
        if length < MIN_MAXSEQ or length != int(length):
            tokenizer.refuse("model_max_length", f"a whole number of at least {MIN_MAXSEQ}")
        return _shorter((int(length), tokenizer.path), limit)
    return limit


def _shorter(said: tuple[int, Path], limit: tuple[int, Path]) -> tuple[int, Path]:
    return said if said[0] <= limit[0] else limit


def _prompts(directory: Path) -> tuple[dict[str, str], str | None]:
    path = directory / "config_sentence_transformers.json"
    if not exists(path):
        return {}, None
    source = JsonObject.read(path)
    if source.says("model_type") and source.values["model_type"] != "SentenceTransformer":
        source.refuse("model_type", '"SentenceTransformer", the only kind that is built,')
    prompts = _prompt_texts(source)
    if not source.says("default_prompt_name"):
        return prompts, None
    name = source.string("default_prompt_name")
    if name not in prompts:
        source.refuse("default_prompt_name", f"one of prompts ({', '.join(sorted(prompts)) or 'there are none'})")
    return prompts, name


def _prompt_texts(source: JsonObject) -> dict[str, str]:
    prompts: Any = source.values["prompts"] if source.says("prompts") else {}
    if not isinstance(prompts, dict) or not all(text is None or isinstance(text, str) for text in prompts.values()):
        source.refuse("prompts", "an object of names and texts")
    return {name: text or "" for name, text in prompts.items()}
