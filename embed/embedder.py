"""Texts in, vectors out: what `embed.load` returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from embed import batching
from embed.backend import Backend
from embed.checkpoint import Checkpoint
from embed.config import MIN_MAXSEQ, POOLINGS, ModelConfig, read_config
from embed.encoder import Progress
from embed.engine import Engine, LocalEngine
from embed.errors import (
    DeviceError,
    GuessWarning,
    OptionError,
    TextError,
    TextTypeError,
    TruncationWarning,
    VectorError,
)
from embed.machine import DEVICES, thread_count, whole_number
from embed.metadata import Metadata, read_metadata, transformer_directory
from embed.models import resolve
from embed.tokenizer import TokenizedText, Tokenizer
from embed.weights import check, embedding_weights, layer_tensor_names, layer_weights

TOKEN_BUDGET = 2048  # tokens in one forward: GEMMs run at full rate from about 500 rows on


class Embedder:
    """A loaded model. Safe to use from several threads; one forward runs at a time, on a thread of its own."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        *,
        config: ModelConfig,
        metadata: Metadata,
        maxseq: int,
        pooling: str,
        normalize: bool,
    ) -> None:
        """Put the parts together; `embed.load` is the way to get one from a model directory."""
        self._tokenizer = tokenizer
        self._engine = engine
        self._config = config
        self._metadata = metadata
        self._normalize = normalize
        self.maxseq = maxseq
        self.pooling = pooling

    @property
    def dimension(self) -> int:
        """The number of components of a vector."""
        return self._engine.dimension

    @property
    def device(self) -> str:
        """What computes, e.g. "cpu avx512"."""
        return self._engine.description

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the model directory names."""
        return dict(self._metadata.prompts)

    def tokenize(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        count_all: bool = True,
    ) -> list[TokenizedText]:
        """Return each text's token ids, cut to `maxseq`, and how many tokens it had before.

        With `count_all` false a text far longer than `maxseq` is only tokenised as far as needed, and its `tokens` is
        then some number above it.

        `ids` is (length) int32, special tokens included; `truncated` tells whether `tokens` exceeded `maxseq`. The
        prompt is put before every text. Raises `TextTypeError` or `TextError`, with the text's index, for what is
        not a string, holds a lone surrogate or has no tokens; `OptionError` for an unknown prompt name.
        """
        prefix = self._prompt(prompt, prompt_name)
        texts = _as_list(texts)
        if prefix:
            # what isn't a string is left for the tokenizer to refuse by index
            texts = [prefix + text if isinstance(text, str) else text for text in texts]
        return self._tokenizer.encode(texts, self.maxseq, count_all=count_all)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        normalize: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of `texts`, (n, dimension) float32; of one string, (dimension).

        `normalize` None takes what `embed.load` was told. A text longer than `maxseq` tokens is cut, with a
        `TruncationWarning`. Raises what `tokenize` raises, and `VectorError` for a vector that isn't finite.
        """
        single = isinstance(texts, str)
        tokenized = self.tokenize([texts] if isinstance(texts, str) else texts, prompt=prompt, prompt_name=prompt_name)
        _warn_of_truncation(tokenized, self.maxseq)
        vectors = self.encode_tokens(tokenized, normalize=normalize)
        return vectors[0] if single else vectors

    def encode_tokens(
        self, tokenized: Sequence[TokenizedText], *, normalize: bool | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors (n, dimension) float32 of texts that `tokenize` returned, in their order.

        Raises `TextError`, with the index, for ids that this model's `tokenize` can't have returned.
        """
        normalize = self._normalize if normalize is None else _yes_or_no(normalize, "normalize")
        for index, text in enumerate(tokenized):
            self._check_ids(text, index)
        vectors = np.empty((len(tokenized), self.dimension), np.float32)
        for chunk in batching.chunks([len(text.ids) for text in tokenized], TOKEN_BUDGET):
            vectors[chunk] = self.encode_chunk([tokenized[i] for i in chunk], normalize=normalize)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            index = int(np.argmin(finite))
            raise VectorError(
                f"text {index}: the model's vector is not finite; the weights or this text break it", index
            )
        return vectors

    def encode_chunk(self, tokenized: Sequence[TokenizedText], *, normalize: bool) -> NDArray[np.float32]:
        """Return the vectors (n, dimension) float32 of texts computed in one forward, for a caller that cuts chunks.

        They should have some `TOKEN_BUDGET` tokens at most. Nothing is checked: rows may hold NaN or infinities.
        """
        batch = batching.pack([text.ids for text in tokenized], self._config.position_pad_id)
        return self._engine.encode(batch, normalize=normalize)

    def close(self) -> None:
        """Free the model's memory; whatever would compute afterwards raises `StateError`."""
        self._engine.close()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, kind: type[BaseException] | None, ex: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_ids(self, text: TokenizedText, index: int) -> None:
        ids = text.ids
        if not 0 < len(ids) <= self.maxseq or ids.min() < 0 or ids.max() >= self._config.vocab:
            raise TextError(
                f"text {index} was not tokenised by this model: it takes 1 to {self.maxseq} ids below "
                f"{self._config.vocab}; call this embedder's tokenize",
                index,
            )

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None and name is not None:
            raise OptionError("give prompt or prompt_name, not both")
        if not isinstance(prompt, str | None) or not isinstance(name, str | None):
            raise OptionError(f"prompt {prompt!r}, prompt_name {name!r}: pass a string")
        if prompt is None:
            name = self._metadata.default_prompt_name if name is None else name
            prompt = "" if name is None else self._named_prompt(name)
        _refuse_surrogates(prompt)
        if prompt and not self._metadata.include_prompt:
            raise OptionError(
                "this model's pooling leaves the prompt's tokens out (include_prompt is false), which is not built; "
                "pass the text without a prompt"
            )
        return prompt

    def _named_prompt(self, name: str) -> str:
        prompts = self._metadata.prompts
        if name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise OptionError(f"prompt_name {name!r} is not one of this model's prompts ({known})")
        return prompts[name]


def load(
    model: str | Path,
    *,
    device: str = "auto",
    pool: str | None = None,
    normalize: bool = True,
    maxseq: int | None = None,
    threads: int | None = None,
) -> Embedder:
    """Load a model directory, or the model named "demo", and return its `Embedder`.

    `pool` (one of cls, mean, max, mean_sqrt_len, weightedmean, lasttoken) and `maxseq` (tokens, 3 to the model's
    limit) override what the directory says; `threads` None is every CPU that this process may use. Raises
    `ModelError` naming the file or tensor at fault, `OptionError` for an option, `DeviceError` for a device.
    """
    _check_device(device)
    if pool is not None and pool not in POOLINGS:
        raise OptionError(f"pool {pool!r} is not built; choose one of {', '.join(POOLINGS)}")
    threads, normalize = thread_count(threads), _yes_or_no(normalize, "normalize")
    directory = resolve(model)
    encoder_directory = transformer_directory(directory)
    config = read_config(encoder_directory)
    metadata = read_metadata(directory, config)
    maxseq = _checked_maxseq(maxseq, metadata, config)
    pooling = metadata.pooling if pool is None else pool
    if pool is None and metadata.pooling_source is None:
        warnings.warn(
            f"{directory}: no file says how to pool, so cls (the first token) is taken; say pool=cls (--pool cls) "
            "to confirm it, or mean, as sentence-transformers would",
            GuessWarning,
            stacklevel=2,
        )
    tokenizer = Tokenizer.from_directory(encoder_directory, config, lowercase=metadata.lowercase)
    max_tokens = max(TOKEN_BUDGET, maxseq)
    engine = LocalEngine(
        lambda progress: _cpu_backend(encoder_directory, config, progress, threads=threads, max_tokens=max_tokens),
        layers=config.layers,
        dimension=config.width,
        pooling=pooling,
    )
    return Embedder(
        tokenizer, engine, config=config, metadata=metadata, maxseq=maxseq, pooling=pooling, normalize=normalize
    )


def _cpu_backend(directory: Path, config: ModelConfig, progress: Progress, *, threads: int, max_tokens: int) -> Backend:
    try:
        from embed.cpu.backend import CpuBackend
    except ImportError as ex:  # most often the source folder is the current one, and nothing was compiled in it
        raise DeviceError(
            f"the compiled part of embed can't be imported ({ex}); leave the source folder, or install there with "
            "pip install -e ."
        ) from ex

    with Checkpoint.open(directory) as checkpoint:
        check(checkpoint, config)
        backend = CpuBackend(config, threads=threads, max_tokens=max_tokens)
        backend.load_embeddings(embedding_weights(checkpoint, config))
        for layer in range(config.layers):
            progress(layer, config.layers)
            backend.load_layer(layer, layer_weights(checkpoint, config, layer))
            checkpoint.release(layer_tensor_names(checkpoint, config, layer))
    return backend


def _refuse_surrogates(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as ex:
        raise OptionError(f"the prompt {prompt!r} has a lone surrogate, which is no text; give it as UTF-8") from ex


def _check_device(device: str) -> None:
    if device not in DEVICES:
        raise OptionError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    if device == "cuda":
        raise DeviceError("device 'cuda' is not in this version, which computes on the CPU; use device cpu or auto")


def _yes_or_no(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} {value!r} is neither True nor False")
    return bool(value)


def _checked_maxseq(maxseq: int | None, metadata: Metadata, config: ModelConfig) -> int:
    if maxseq is None:
        return metadata.maxseq
    maxseq = whole_number(maxseq, "maxseq")
    if not MIN_MAXSEQ <= maxseq <= config.max_length:
        raise OptionError(f"maxseq {maxseq}: this model takes {MIN_MAXSEQ} to {config.max_length} tokens")
    return maxseq


def _as_list(texts: Iterable[str]) -> list[str]:
    # A string is an iterable of strings too, a set has no order for rows to stand in, a dict's values would be lost.
    if (
        isinstance(texts, str | bytes | bytearray | memoryview | dict | Set)
        or not isinstance(texts, Iterable)
        or (isinstance(texts, np.ndarray) and texts.ndim == 0)
    ):
        raise TextTypeError(f"texts is {type(texts).__name__}; pass a list of strings", 0)
    return list(texts)


def _warn_of_truncation(tokenized: Sequence[TokenizedText], maxseq: int) -> None:
    cut = [index for index, text in enumerate(tokenized) if text.truncated]
    if not cut:
        return
    longest = max(cut, key=lambda index: tokenized[index].tokens)
    warnings.warn(
        f"{len(cut)} of {len(tokenized)} texts were cut to {maxseq} tokens; "
        f"the longest, text {longest}, had {tokenized[longest].tokens:,}",
        TruncationWarning,
        stacklevel=3,
    )
