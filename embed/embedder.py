"""Texts in, vectors out: what `embed.load` returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from embed import batching
from embed.encoder import Progress
from embed.engine import DirectEngine, Engine, LocalEngine
from embed.errors import OptionError, TextError, TextTypeError, TruncationWarning, VectorError
from embed.machine import thread_count
from embed.model_folder import TOKEN_BUDGET, ModelFolder, check_device
from embed.tokenizer import TokenizedText, Tokenizer

WARM_UP = "Hello, world!"


class Embedder:
    """A loaded model. Safe to use from several threads; one forward runs at a time, on a thread of its own."""

    def __init__(
        self,
        folder: ModelFolder,
        engine: Engine,
        *,
        tokenizer: Tokenizer | None = None,
        normalize: bool = True,
    ) -> None:
        """Put the parts together; `embed.load` is the way to get one from a model directory.

        Without a `tokenizer` the folder's is read when the first texts come.
        """
        self.folder = folder
        self.engine = engine
        self._tokenizer = tokenizer
        self._normalize = normalize

    @property
    def maxseq(self) -> int:
        """The most tokens of a text; a longer one is cut."""
        return self.folder.maxseq

    @property
    def pooling(self) -> str:
        """How token states become a vector."""
        return self.folder.pooling

    @property
    def dimension(self) -> int:
        """The number of components of a vector."""
        return self.folder.config.width

    @property
    def device(self) -> str:
        """What computes, e.g. "cpu avx512"."""
        return self.engine.description

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the model directory names."""
        return dict(self.folder.metadata.prompts)

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
        if self._tokenizer is None:
            self._tokenizer = self.folder.read_tokenizer()
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
        self,
        tokenized: Sequence[TokenizedText],
        *,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors (n, dimension) float32 of texts that `tokenize` returned, in their order.

        `progress` is called with the steps done and those there are, and may raise to give up. Raises `TextError`,
        with the index, for ids that this model's `tokenize` can't have returned.
        """
        normalize = self._normalize if normalize is None else _yes_or_no(normalize, "normalize")
        for index, text in enumerate(tokenized):
            self._check_ids(text, index)
        vectors = np.empty((len(tokenized), self.dimension), np.float32)
        chunks = list(batching.chunks([len(text.ids) for text in tokenized], TOKEN_BUDGET))
        for number, chunk in enumerate(chunks):
            report = None if progress is None else _counted_on(progress, number, len(chunks))
            vectors[chunk] = self.encode_chunk([tokenized[i] for i in chunk], normalize=normalize, progress=report)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            index = int(np.argmin(finite))
            raise VectorError(
                f"text {index}: the model's vector is not finite; the weights or this text break it", index
            )
        return vectors

    def encode_chunk(
        self, tokenized: Sequence[TokenizedText], *, normalize: bool, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors (n, dimension) float32 of texts computed in one forward, for a caller that cuts chunks.

        They should have some `TOKEN_BUDGET` tokens at most. `progress` is called now and then while they are
        computed, and may raise to give up. Nothing is checked: rows may hold NaN or infinities.
        """
        return self.engine.encode([text.ids for text in tokenized], normalize=normalize, progress=progress)

    def warm_up(self) -> None:
        """Compute a first text, so that whoever comes next finds everything in place."""
        self.encode_chunk(self.tokenize([WARM_UP]), normalize=True)

    def close(self) -> None:
        """Free the model's memory; whatever would compute afterwards raises `StateError`."""
        self.engine.close()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, kind: type[BaseException] | None, ex: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_ids(self, text: TokenizedText, index: int) -> None:
        ids = text.ids
        if not 0 < len(ids) <= self.maxseq or ids.min() < 0 or ids.max() >= self.folder.config.vocab:
            raise TextError(
                f"text {index} was not tokenised by this model: it takes 1 to {self.maxseq} ids below "
                f"{self.folder.config.vocab}; call this embedder's tokenize",
                index,
            )

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None and name is not None:
            raise OptionError("give prompt or prompt_name, not both")
        if not isinstance(prompt, str | None) or not isinstance(name, str | None):
            raise OptionError(f"prompt {prompt!r}, prompt_name {name!r}: pass a string")
        if prompt is None:
            name = self.folder.metadata.default_prompt_name if name is None else name
            prompt = "" if name is None else self._named_prompt(name)
        _refuse_surrogates(prompt)
        if prompt and not self.folder.metadata.include_prompt:
            raise OptionError(
                "this model's pooling leaves the prompt's tokens out (include_prompt is false), which is not built; "
                "pass the text without a prompt"
            )
        return prompt

    def _named_prompt(self, name: str) -> str:
        prompts = self.folder.metadata.prompts
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
    check_device(device)
    threads, normalize = thread_count(threads), _yes_or_no(normalize, "normalize")
    folder = ModelFolder.open(model, pool=pool, maxseq=maxseq)
    tokenizer = folder.read_tokenizer()
    engine = LocalEngine(direct_engine(folder, threads))
    embedder = Embedder(folder, engine, tokenizer=tokenizer, normalize=normalize)
    try:
        embedder.engine.load()
    except BaseException:
        embedder.close()
        raise
    return embedder


def direct_engine(folder: ModelFolder, threads: int) -> DirectEngine:
    """Return an engine of the model in `folder` that computes with so many threads, and has loaded nothing yet."""
    return DirectEngine(
        lambda progress: folder.load_backend(progress, threads=threads),
        layers=folder.config.layers,
        pooling=folder.pooling,
        pad_id=folder.config.position_pad_id,
    )


def _counted_on(progress: Progress, chunk: int, chunks: int) -> Progress:
    """Return the progress of one chunk out of several, each of as many steps."""
    return lambda done, steps: progress(chunk * steps + done, chunks * steps)


def _refuse_surrogates(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as ex:
        raise OptionError(f"the prompt {prompt!r} has a lone surrogate, which is no text; give it as UTF-8") from ex


def _yes_or_no(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} {value!r} is neither True nor False")
    return bool(value)


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
