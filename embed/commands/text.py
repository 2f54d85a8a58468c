"""Turn texts into vectors, one CSV line a text, on standard output.

MODEL is the path of a model folder, a name on the Hugging Face hub such as BAAI/bge-m3 or BAAI/bge-m3@REVISION, or
`demo`; the latter are downloaded on first use. One argument is a text; with two or more the first is MODEL, unless
--model or EMBED_MODEL names it: then all are texts.

The text - stands for standard input, UTF-8, a text a line, and vectors are written as lines come in. A line ends with
\\n or \\r\\n, the last one perhaps with neither; whatever else is in it, NULs too, is text. An empty line is an empty
text and has a vector too; an empty input has none.

Where a text fails, the vectors of batches before it stand, and --format json closes its array, so look at the exit
code; --format npy writes all or nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embed import models
from embed.config import POOLINGS
from embed.console import keep, say
from embed.embedder import Embedder, load
from embed.errors import ModelError, OptionError, TextError
from embed.lines import Lines
from embed.machine import DEVICES
from embed.output import FORMATS, Writer, check_format, writer
from embed.progress import Progress

USAGE = 'embed text [OPTION...] [MODEL] TEXT...     e.g. embed text demo "Hello, world!"'
HOW_TO_GET_A_MODEL = (
    'put one first (embed text demo "Hello, world!" fetches a small one, 84 MB, on first use), '
    "or name it with --model or EMBED_MODEL"
)
ARGUMENTS_AT_ONCE = 64  # texts between two steps of the progress bar


class Source(Protocol):
    """Batches of texts; `noun` is what a text is called in messages, numbered from 1."""

    noun: str

    @property
    def fraction(self) -> float | None: ...
    def __iter__(self) -> Iterator[list[str]]: ...


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="MODEL", help="the model; every argument is a text then (also: EMBED_MODEL)")
    add("--format", choices=FORMATS, default="csv", help="csv (default), json: one array of arrays, npy: one array")
    add("--pool", choices=POOLINGS, help="how token states become a vector (default: what the model folder says)")
    add("--no-normalize", action="store_true", help="leave vectors as long as they are, instead of length 1")
    add("--maxseq", type=int, metavar="N", help="cut texts to N tokens (default: what the model folder says)")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="put TEXT before every text")
    prompt.add_argument("--prompt-name", metavar="NAME", help="put the model's prompt of that name before every text")
    add("--threads", type=int, metavar="N", help="threads to compute on (default: every CPU this process may use)")
    add("--device", choices=DEVICES, default="auto", help="where to compute (default: auto)")


def run(options: argparse.Namespace, operands: list[str]) -> int:
    named = models.named(options.model)
    model, texts = _model_and_texts(named, operands)
    if options.model is None and named is not None and len(texts) > 1 and models.is_model(texts[0]):
        say(f"warning: {texts[0]!r} is taken as a text, since EMBED_MODEL names the model ({named})")
    check_format(options.format)
    _check_unicode([*texts, options.prompt or ""])
    source = _Stdin() if texts == ["-"] else _Arguments(texts)
    embedder = load(
        _resolve(model, positional=named is None),
        device=options.device,
        pool=options.pool,
        normalize=not options.no_normalize,
        maxseq=options.maxseq,
        threads=options.threads,
    )
    keep(embedder)
    with embedder:
        embedder.tokenize([], prompt=options.prompt, prompt_name=options.prompt_name)  # refuse it before reading texts
        _embed(embedder, source, writer(options.format, embedder.dimension), options)
    return 0


def _model_and_texts(model: str | None, operands: list[str]) -> tuple[str, list[str]]:
    if model is None and len(operands) == 1:
        if models.is_model(operands[0]):
            raise OptionError(f"no text given for the model {operands[0]}; put it behind, or - for standard input")
        raise OptionError(f"no model given; {HOW_TO_GET_A_MODEL}")
    texts = operands if model is not None else operands[1:]
    if not texts:
        raise OptionError('no text given; e.g. embed text demo "Hello, world!", or - for standard input')
    if "-" in texts and len(texts) > 1:
        raise OptionError("- stands for standard input and can't be mixed with other texts")
    return model if model is not None else operands[0], texts


def _resolve(model: str, *, positional: bool) -> Path:
    try:
        return models.resolve_aloud(model)
    except ModelError as ex:
        if not positional or model == models.DEMO:
            raise
        raise ModelError(
            f"{ex} (the first of several arguments names the model; --model MODEL makes all of them texts)"
        ) from ex


def _check_unicode(texts: list[str]) -> None:
    for i, text in enumerate(texts):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise TextError(f"the argument {text!r} is not valid UTF-8; convert it, or pipe it in with -", i)


class _Arguments:
    noun = "text"

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._done = 0

    @property
    def fraction(self) -> float:
        return self._done / len(self._texts)

    def __iter__(self) -> Iterator[list[str]]:
        while self._done < len(self._texts):
            batch = self._texts[self._done : self._done + ARGUMENTS_AT_ONCE]
            self._done += len(batch)
            yield batch


class _Stdin(Lines):
    noun = "line"

    def __init__(self) -> None:
        if sys.stdin is None:
            raise OptionError("standard input is closed, so - has nothing to read")
        super().__init__(sys.stdin.fileno())


def _embed(embedder: Embedder, source: Source, out: Writer, options: argparse.Namespace) -> None:
    cuts = _Cuts(embedder.maxseq)
    try:
        with Progress("texts") as progress:
            for texts in source:
                vectors = _vectors(embedder, source.noun, texts, cuts, options)
                if sys.stdout.isatty():
                    progress.clear()  # or the bar and the vectors would share a line of the screen
                out.write(vectors)
                progress.update(cuts.texts, source.fraction)
        out.end()
    except BrokenPipeError:  # nobody reads
        raise
    except Exception:  # raised again; not at an interrupt, which must not wait for a reader
        out.stop()
        cuts.report()  # of the vectors that did get out
        raise
    cuts.report()


def _vectors(
    embedder: Embedder, noun: str, texts: list[str], cuts: _Cuts, options: argparse.Namespace
) -> NDArray[np.float32]:
    try:
        tokenized = embedder.tokenize(texts, prompt=options.prompt, prompt_name=options.prompt_name)
        vectors = embedder.encode_tokens(tokenized)
    except TextError as ex:  # its index counts within this batch
        raise ex.counted_from(cuts.texts + 1, noun) from ex
    cuts.add([text.tokens for text in tokenized])
    return vectors


class _Cuts:
    """Counts texts, and those among them that were cut."""

    def __init__(self, maxseq: int) -> None:
        self._maxseq = maxseq
        self.texts = 0
        self._cut = 0
        self._longest = 0

    def add(self, lengths: list[int]) -> None:
        self.texts += len(lengths)
        self._cut += sum(length > self._maxseq for length in lengths)
        self._longest = max([self._longest, *lengths])

    def report(self) -> None:
        if self._cut:
            texts, were = "text" if self.texts == 1 else "texts", "was" if self._cut == 1 else "were"
            say(
                f"warning: {self._cut:,} of {self.texts:,} {texts} {were} cut to {self._maxseq:,} tokens (--maxseq); "
                f"the longest had {self._longest:,}"
            )
