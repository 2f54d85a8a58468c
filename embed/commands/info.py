"""Say what was read from which file of a model folder, and what this machine can do; without MODEL, the latter alone.

Reads the small files and the headers of the weights, so it takes no time even for a large model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embed import machine, models
from embed.checkpoint import Checkpoint
from embed.config import ModelConfig, read_config
from embed.console import check_stdout, put
from embed.cuda.devices import cuda_devices
from embed.errors import DeviceError, OptionError
from embed.files import file_bytes
from embed.metadata import Metadata, read_metadata, transformer_directory
from embed.model_folder import TOKEN_BUDGET
from embed.version import __version__
from embed.weights import check, embedding_tensor_names, embedding_weights, layer_tensor_names

USAGE = "embed info [OPTION...] [MODEL]"
Facts = dict[str, Any]  # of JSON's types, nested


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help="the model, as for embed text (also: EMBED_MODEL)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace, operands: list[str]) -> int:
    check_stdout()
    if len(operands) + (options.model is not None) > 1:
        raise OptionError("embed info takes one model")
    model = operands[0] if operands else models.named(options.model)
    facts: Facts = {"version": __version__}
    if model is not None:
        facts["model"] = model_facts(models.resolve_aloud(model))
    facts["machine"] = machine_facts()
    text = json.dumps(facts, ensure_ascii=False, indent=2) + "\n" if options.json else "".join(_report(facts))
    put(text.encode(errors="backslashreplace"))
    return 0


def model_facts(directory: Path) -> Facts:
    """Return what the folder's files say. Raises `ModelError` for whatever would stop the model from loading."""
    inner = transformer_directory(directory)
    config = read_config(inner)
    metadata = read_metadata(directory, config)
    tokenizer_bytes = file_bytes(inner / "tokenizer.json")
    with Checkpoint.open(inner) as checkpoint:
        check(checkpoint, config)
        weights = _weights(checkpoint, config, directory)
        memory = _memory(checkpoint, config, metadata.maxseq)
    return {
        "folder": str(directory),
        "architecture": config.architecture,
        "sizes": {
            "layers": config.layers,
            "width": config.width,
            "heads": config.heads,
            "inner": config.inner,
            "vocab": config.vocab,
            "source": (inner / "config.json").relative_to(directory).as_posix(),
        },
        "activation": config.activation,
        "weights": weights,
        "tokenizer": {"name": "tokenizer.json", "size_bytes": tokenizer_bytes},
        **_settings(metadata, config),
        "memory": memory,
    }


def _settings(metadata: Metadata, config: ModelConfig) -> Facts:
    return {
        "pooling": {"name": metadata.pooling, "source": metadata.pooling_source},
        "maxseq": {"tokens": metadata.maxseq, "source": metadata.maxseq_source, "limit": config.max_length},
        "normalize_module": metadata.has_normalize,
        "prompts": metadata.prompts,
        "default_prompt_name": metadata.default_prompt_name,
    }


def _weights(checkpoint: Checkpoint, config: ModelConfig, directory: Path) -> Facts:
    names = embedding_tensor_names(checkpoint)
    for layer in range(config.layers):
        names += layer_tensor_names(checkpoint, config, layer)
    return {
        "dtypes": sorted({checkpoint.dtype_of(name) for name in names}),
        "files": [
            {"name": path.relative_to(directory).as_posix(), "size_bytes": size} for path, size in checkpoint.files
        ],
    }


def _memory(checkpoint: Checkpoint, config: ModelConfig, maxseq: int) -> Facts | None:
    """Return what a loaded model holds: packed f32 weights, the mapped word table, and a workspace at its fullest.

    None where no instruction set can be used, and so no model be loaded; `machine_facts` has the reason.
    """
    isa = _instruction_sets()["used"]
    if isa is None:
        return None
    from embed.cpu import _native

    packed, workspace = _native.memory_bytes(
        isa,
        layers=config.layers,
        width=config.width,
        inner=config.inner,
        heads=config.heads,
        threads=machine.thread_limit().count,
        max_tokens=max(TOKEN_BUDGET, maxseq),
    )
    return {
        "packed_bytes": packed,
        "mapped_bytes": embedding_weights(checkpoint, config).word.nbytes,
        "workspace_bytes": workspace,
    }


def machine_facts() -> Facts:
    threads, memory, cuda = machine.thread_limit(), machine.memory_limit(), cuda_devices()
    return {
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "instruction_set": _instruction_sets(),
        "threads": {"count": threads.count, "reason": threads.reason},
        "memory": {"bytes": memory.count, "reason": memory.reason},
        "cuda": {
            "used": False,
            "reason": "the CUDA backend is not in this version",
            "devices": [vars(device) for device in cuda.devices],
            "missing": cuda.missing,
        },
    }


def _instruction_sets() -> Facts:
    """Return the instruction set in use and why each other one isn't; the reason alone where there is none."""
    try:
        from embed.cpu import _native
        from embed.cpu.backend import instruction_set
    except ImportError as ex:
        return {"used": None, "reason": f"the compiled extension can't be imported ({ex}); install embed again"}
    sets = _native.instruction_sets()
    try:
        used = instruction_set()
    except DeviceError as ex:
        return {"used": None, "reason": str(ex), "missing": sets}
    forced = os.environ.get("EMBED_ISA", "").strip() == used
    return {"used": used, "reason": "EMBED_ISA" if forced else "the best this CPU runs", "missing": sets}


def _report(facts: Facts) -> Iterator[str]:
    yield f"embed {facts['version']}\n"
    for heading, lines in (("model", _model_lines), ("machine", _machine_lines)):
        if heading in facts:
            yield f"\n{heading}\n"
            for label, value in lines(facts[heading]):
                yield f"  {label:<17}{value}\n"


def _model_lines(model: Facts) -> Iterator[tuple[str, str]]:
    sizes, pooling, maxseq = model["sizes"], model["pooling"], model["maxseq"]
    yield "folder", model["folder"]
    yield "architecture", f"{model['architecture']}, {model['activation']} ({sizes['source']})"
    yield (
        "sizes",
        f"{sizes['layers']} layers, width {sizes['width']}, {sizes['heads']} heads, inner {sizes['inner']:,}, "
        f"vocabulary {sizes['vocab']:,} ({sizes['source']})",
    )
    for file in model["weights"]["files"]:
        yield "weights", f"{', '.join(model['weights']['dtypes'])}, {_mb(file['size_bytes'])} ({file['name']})"
    yield "tokenizer", f"{_mb(model['tokenizer']['size_bytes'])} ({model['tokenizer']['name']}), not opened here"
    guess = "a guess, since no file says; --pool decides"
    yield "pooling", f"{pooling['name']} ({pooling['source'] or guess})"
    yield "normalisation", f"to length 1 (--no-normalize: not; Normalize module: {_yes(model['normalize_module'])})"
    yield "maximum length", f"{maxseq['tokens']:,} tokens ({maxseq['source']}); --maxseq up to {maxseq['limit']:,}"
    for name, text in model["prompts"].items() or [("", None)]:
        default = ", the default" if name == model["default_prompt_name"] else ""
        yield "prompt", "none" if text is None else f"{name}: {text!r}{default} (config_sentence_transformers.json)"
    yield "memory", _memory_line(model["memory"])


def _memory_line(memory: Facts | None) -> str:
    if memory is None:
        return "unknown, since no instruction set can be used here"
    return (
        f"{_mb(memory['packed_bytes'])} packed weights, {_mb(memory['mapped_bytes'])} word table mapped from its file, "
        f"up to {_mb(memory['workspace_bytes'])} workspace; the tokenizer's own on top"
    )


def _machine_lines(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "system", facts["system"]
    isa = facts["instruction_set"]
    yield "instruction set", f"{isa['used'] or 'none'} ({isa['reason']})"
    for name, missing in isa.get("missing", {}).items():
        if name != isa["used"]:
            yield "", f"{name}: {missing or 'runs here too (EMBED_ISA=' + name + ')'}"
    yield "threads", f"{facts['threads']['count']} ({facts['threads']['reason']})"
    yield "memory", f"{_mb(facts['memory']['bytes'])} ({facts['memory']['reason']})"
    cuda = facts["cuda"]
    yield "CUDA", f"not used: {cuda['reason']}"
    if cuda["missing"]:
        yield "", f"no device seen: {cuda['missing']}"
    for device in cuda["devices"]:
        yield "", f"{device['name']}, {_mb(device['memory_bytes'])}, compute capability {device['capability']}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.0f} kB"
