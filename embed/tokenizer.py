"""Texts to token ids: the `tokenizers` library on the directory's own tokenizer.json.

Truncation and padding that are baked into the file are switched off. A text that is too long keeps its head and the
special tokens that end it, which is what the library's own truncation to the same length gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embed import head
from embed.charsmap import sound_charsmaps
from embed.config import ModelConfig
from embed.errors import ModelError, OptionError, TextError, TextTypeError
from embed.files import exists, read_bytes

if TYPE_CHECKING:
    import tokenizers

# XLM-R's file is 17 MB.
_MAX_FILE_BYTES = 512 << 20
# What one call into the library gets: it doesn't notice Ctrl-C, and takes 0.05 to 0.3 s for this much (2 cores of a
# Xeon at 2.1 GHz, XLM-R's and BERT's tokenizers, the worst of prose, CJK, emoji and text without spaces).
_SLICE_CHARACTERS = 1 << 18
_OTHER_TOKENIZER_FILES = ("sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json")


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """`ids` is (length) int32, special tokens included; `tokens` is how many there were before truncation."""

    ids: NDArray[np.int32]
    tokens: int

    @property
    def truncated(self) -> bool:
        return self.tokens > len(self.ids)


class Tokenizer:
    """The tokenizer of one model directory. Safe to use from several threads."""

    def __init__(self, library: tokenizers.Tokenizer, special_tokens: int) -> None:
        """Take a library tokenizer that neither cuts nor pads, and how many special tokens it adds to a text."""
        self._library = library
        self._special_tokens = special_tokens
        self._splits_locally = head.splits_locally(library)

    @classmethod
    def from_directory(cls, directory: Path, config: ModelConfig, *, lowercase: bool = False) -> Tokenizer:
        """Load tokenizer.json. `lowercase` puts a lower-casing before the file's own normalisation.

        Raises `ModelError` if the file is missing or broken, or can give an id that the word table has no row for.
        """
        path = directory / "tokenizer.json"
        if not exists(path):
            raise ModelError(_missing(path))
        library = _load(path, sound_charsmaps(path, read_bytes(path, _MAX_FILE_BYTES)))
        library.no_truncation()
        library.no_padding()
        if lowercase:
            _put_lowercase_first(library)
        special_ids = _special_ids(path, library)
        _check_ids(path, library, special_ids, config.vocab)
        return cls(library, len(special_ids))

    def encode(self, texts: Sequence[str], maxseq: int, *, count_all: bool = True) -> list[TokenizedText]:
        """Return the ids of each text, at most `maxseq`.

        With `count_all` false a text far longer than that is only tokenised as far as needed: its `tokens` is then
        some number above `maxseq`.

        Raises `TextTypeError` or `TextError`, with the text's index, for what is not a string, holds a lone
        surrogate, has no tokens, or makes the library fail; `OptionError` if `maxseq` leaves no room for text.
        """
        if maxseq <= self._special_tokens:
            raise OptionError(
                f"maxseq {maxseq}: this model's tokenizer adds {self._special_tokens} tokens to every text; "
                f"pass at least {self._special_tokens + 1}"
            )
        for index, text in enumerate(texts):
            _check_text(text, index)
        tokenized: dict[int, TokenizedText] = {}
        for index, text in enumerate(texts):
            if not count_all and (encoding := self._head(text, maxseq, index)) is not None:
                tokenized[index] = _cut(encoding, maxseq, index=index)
        rest = [index for index in range(len(texts)) if index not in tokenized]
        for first, last in slices([texts[index] for index in rest], _SLICE_CHARACTERS):
            for index, encoding in zip(rest[first:last], self._encodings(texts, rest[first:last]), strict=True):
                tokenized[index] = _cut(encoding, maxseq, index=index)
        return [tokenized[index] for index in range(len(texts))]

    def _head(self, text: str, maxseq: int, index: int) -> tokenizers.Encoding | None:
        """Return the encoding of a head of `text` that is enough for `maxseq` tokens; None if there is none."""
        length = head.CHARACTERS + head.CHARACTERS_PER_TOKEN * maxseq
        while self._splits_locally and length < len(text):
            encoding = self._encoding(text[:length], index)
            if head.sure_tokens(encoding) > maxseq:
                return encoding
            length *= head.GROWTH
        return None

    def _encodings(self, texts: Sequence[str], indices: Sequence[int]) -> list[tokenizers.Encoding]:
        try:
            return self._library.encode_batch_fast([texts[index] for index in indices])
        except BaseException as ex:
            if _library_reason(ex) is None:
                raise
        return [self._encoding(texts[index], index) for index in indices]  # to find out which one it was

    def _encoding(self, text: str, index: int) -> tokenizers.Encoding:
        try:
            return self._library.encode(text)  # the fast variant doesn't tell words apart
        except BaseException as ex:
            if (reason := _library_reason(ex)) is None:
                raise
            raise TextError(
                f"text {index} cannot be tokenised ({reason}); the model's tokenizer.json is at fault: repair it or "
                "leave the text out",
                index,
            ) from ex


def _check_text(text: object, index: int) -> None:
    if not isinstance(text, str):
        raise TextTypeError(
            f"text {index} is {type(text).__name__}, not a string; decode bytes, leave out nulls", index
        )
    if str.isascii(text):  # not a subclass's own idea of it
        return
    try:
        str.encode(text)
    except UnicodeEncodeError as ex:
        raise TextError(
            f"text {index} has a lone surrogate, U+{ord(text[ex.start]):04X}, as its character {ex.start}, which is no "
            "text; decode its source as UTF-8, or with errors='replace'",
            index,
        ) from ex


def slices(texts: Sequence[str], most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of texts, each of at most `most` characters in all or one text alone."""
    first, characters = 0, 0
    for index, text in enumerate(texts):
        if index > first and characters + len(text) > most:
            yield first, index
            first, characters = index, 0
        characters += len(text)
    if first < len(texts):
        yield first, len(texts)


def _cut(encoding: tokenizers.Encoding, maxseq: int, *, index: int) -> TokenizedText:
    ids = encoding.ids
    if not ids:
        raise TextError(f"text {index} has no tokens, so it has no vector; leave it out", index)
    tokens = len(ids)
    if tokens > maxseq:
        # The mask is 1 for what the post-processor added alone, not for a literal "</s>" in the text.
        mask = encoding.special_tokens_mask
        ending = next(i for i in range(tokens + 1) if i == tokens or not mask[-1 - i])
        ids = ids[: maxseq - ending] + ids[tokens - ending :]
    return TokenizedText(np.array(ids, np.int32), tokens)


def _missing(path: Path) -> str:
    others = [name for name in _OTHER_TOKENIZER_FILES if exists(path.parent / name)]
    there = f" ({', '.join(others)} is there, but not read)" if others else ""
    call = f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained({str(path.parent)!r})"
    return f"{path}: there is no such file{there}; make it with transformers: {call}"


def _load(path: Path, content: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except BaseException as ex:
        if (reason := _library_reason(ex)) is None:
            raise
        raise ModelError(f"{path}: the tokenizers library can't load it ({reason}); download the file again") from ex


def _library_reason(ex: BaseException) -> str | None:
    """Return the library's words if it is what failed, else None: the exception is not ours to handle.

    It raises plain `Exception`, `ValueError` when it parses, and, where its Rust code panics, a class that only
    derives from `BaseException` and can't be imported.
    """
    panic = type(ex).__module__ == "pyo3_runtime" and type(ex).__name__ == "PanicException"
    return str(ex) if panic or type(ex) in (Exception, ValueError) else None


def _put_lowercase_first(library: tokenizers.Tokenizer) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    inner = [] if library.normalizer is None else [library.normalizer]
    library.normalizer = Sequence([Lowercase(), *inner])


def _special_ids(path: Path, library: tokenizers.Tokenizer) -> list[int]:
    """Return what the tokenizer makes of an empty text: the ids of the special tokens that it adds."""
    try:
        return library.encode("").ids
    except BaseException as ex:
        if (reason := _library_reason(ex)) is None:
            raise
        raise ModelError(f"{path}: the tokenizer fails on an empty text ({reason}); download the file again") from ex


def _check_ids(path: Path, library: tokenizers.Tokenizer, special_ids: Iterable[int], rows: int) -> None:
    """Refuse a tokenizer that can give an id the word table has no row for."""
    largest = max([_largest_model_id(library), *library.get_added_tokens_decoder(), *special_ids])
    if largest >= rows:
        raise ModelError(
            f"{path}: the token {library.id_to_token(largest)!r} has id {largest}, for which the word table has no row "
            f"(vocab_size is {rows}); take the tokenizer.json that belongs to the weights"
        )


def _largest_model_id(library: tokenizers.Tokenizer) -> int:
    if type(library.model).__name__ == "Unigram":  # a list, whose indices are the ids: no need for 250,000 strings
        return library.get_vocab_size(with_added_tokens=False) - 1
    return max(library.get_vocab(with_added_tokens=False).values(), default=-1)
