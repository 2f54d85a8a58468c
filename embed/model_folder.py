"""What a model folder says, read and checked before its weights are."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from embed.backend import Backend
from embed.checkpoint import Checkpoint
from embed.config import MIN_MAXSEQ, POOLINGS, ModelConfig, read_config
from embed.encoder import Progress
from embed.errors import DeviceError, GuessWarning, OptionError
from embed.machine import DEVICES, whole_number
from embed.metadata import Metadata, read_metadata, transformer_directory
from embed.models import resolve
from embed.tokenizer import Tokenizer
from embed.weights import check, embedding_weights, layer_tensor_names, layer_weights

TOKEN_BUDGET = 2048  # tokens in one forward: GEMMs run at full rate from about 500 rows on
Fingerprint = tuple[tuple[str, int, int, int], ...]  # of each file: path, inode, size, time of change in ns


@dataclass(frozen=True)
class ModelFolder:
    """A model folder and how it is to be used; nothing of it is in memory but its settings."""

    path: Path
    encoder_path: Path  # where config.json, tokenizer.json and the weights are
    config: ModelConfig
    metadata: Metadata
    maxseq: int  # tokens
    pooling: str
    fingerprint: Fingerprint  # of all files that were or will be read

    @classmethod
    def open(cls, model: str | Path, *, pool: str | None = None, maxseq: int | None = None) -> ModelFolder:
        """Read what the folder of `model` says; `pool` and `maxseq` override it.

        Raises `ModelError` naming the file at fault, and `OptionError` for what is asked of it; a pooling that is
        guessed is a `GuessWarning`.
        """
        if pool is not None and pool not in POOLINGS:
            raise OptionError(f"pool {pool!r} is not built; choose one of {', '.join(POOLINGS)}")
        path = resolve(model)
        fingerprint = _fingerprint(path)
        encoder_path = transformer_directory(path)
        config = read_config(encoder_path)
        metadata = read_metadata(path, config)
        maxseq = _checked_maxseq(maxseq, metadata, config)
        if pool is None and metadata.pooling_source is None:
            warnings.warn(
                f"{path}: no file says how to pool, so cls (the first token) is taken; say pool=cls (--pool cls) "
                "to confirm it, or mean, as sentence-transformers would",
                GuessWarning,
                stacklevel=3,
            )
        return cls(path, encoder_path, config, metadata, maxseq, pool or metadata.pooling, fingerprint)

    @property
    def has_changed(self) -> bool:
        """Whether any of its files has been replaced, changed, added or removed since it was opened."""
        return _fingerprint(self.path) != self.fingerprint

    @property
    def max_tokens(self) -> int:
        """The most tokens of one forward."""
        return max(TOKEN_BUDGET, self.maxseq)

    def read_tokenizer(self) -> Tokenizer:
        """Load tokenizer.json; raises `ModelError`."""
        return Tokenizer.from_directory(self.encoder_path, self.config, lowercase=self.metadata.lowercase)

    def check_weights(self) -> None:
        """Read the weight files' headers; raises `ModelError` naming a tensor that is missing or wrong."""
        with Checkpoint.open(self.encoder_path) as checkpoint:
            check(checkpoint, self.config)

    def load_backend(self, progress: Progress, *, threads: int) -> Backend:
        """Load the weights; `progress` is called before every layer, and may raise to give up.

        Raises `ModelError` naming the file or tensor, and `DeviceError`.
        """
        try:
            from embed.cpu.backend import CpuBackend
        except ImportError as ex:  # most often the source folder is the current one, and nothing was compiled in it
            raise DeviceError(
                f"the compiled part of embed can't be imported ({ex}); leave the source folder, or install there with "
                "pip install -e ."
            ) from ex

        with Checkpoint.open(self.encoder_path) as checkpoint:
            check(checkpoint, self.config)
            backend = CpuBackend(self.config, threads=threads, max_tokens=self.max_tokens)
            backend.load_embeddings(embedding_weights(checkpoint, self.config))
            for layer in range(self.config.layers):
                progress(layer, self.config.layers)
                backend.load_layer(layer, layer_weights(checkpoint, self.config, layer))
                checkpoint.release(layer_tensor_names(checkpoint, self.config, layer))
        return backend


def check_device(device: str) -> None:
    """Raise `OptionError` for what is no device, and `DeviceError` for one that isn't there."""
    if device not in DEVICES:
        raise OptionError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    if device == "cuda":
        raise DeviceError("device 'cuda' is not in this version, which computes on the CPU; use device cpu or auto")


def _checked_maxseq(maxseq: int | None, metadata: Metadata, config: ModelConfig) -> int:
    if maxseq is None:
        return metadata.maxseq
    maxseq = whole_number(maxseq, "maxseq")
    if not MIN_MAXSEQ <= maxseq <= config.max_length:
        raise OptionError(f"maxseq {maxseq}: this model takes {MIN_MAXSEQ} to {config.max_length} tokens")
    return maxseq


def _fingerprint(folder: Path) -> Fingerprint:
    """Return one of every JSON file and weight file in `folder` and the folders in it; () where it can't be read."""
    found = []
    for root, folders, names in os.walk(folder):
        if Path(root) != folder:
            folders.clear()
        found += [_of_file(os.path.join(root, name)) for name in names if name.endswith((".json", ".safetensors"))]
    return tuple(sorted(found))


def _of_file(path: str) -> tuple[str, int, int, int]:
    try:
        status = os.stat(path)
    except OSError:  # a dangling link: whoever reads it will say so
        return path, 0, 0, 0
    return path, status.st_ino, status.st_size, status.st_mtime_ns
