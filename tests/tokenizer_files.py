"""Writes a tokenizer.json and what must lie beside it, and loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from tokenizers import Tokenizer as Library

from embed.config import read_config
from embed.errors import ModelError
from embed.tokenizer import Tokenizer


def directory_with(directory: Path, library: Library, kind: str = "xlmr") -> Path:
    """Write a tokenizer.json and the config.json that fits it."""
    directory.mkdir(exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    tiny.write_json(directory / "config.json", tiny.default_config(kind, library.get_vocab_size()))
    return directory


def load(directory: Path, **options: Any) -> Tokenizer:
    return Tokenizer.from_directory(directory, read_config(directory), **options)


def ids_of(tokenizer: Tokenizer, texts: list[str], maxseq: int = 10**6) -> list[list[int]]:
    return [text.ids.tolist() for text in tokenizer.encode(texts, maxseq)]


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(directory)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)
