"""Text embeddings from XLM-RoBERTa-family encoders, without PyTorch.

    >>> import embed
    >>> model = embed.load("demo")
    >>> model.encode(["Hello, world!", "Bonjour"]).shape
    (2, 384)

Importing `embed` imports nothing heavy: `load` and `Embedder` arrive when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embed.errors import (
    DeviceError,
    EmbedError,
    GuessWarning,
    ModelError,
    OptionError,
    StateError,
    TextError,
    TextTypeError,
    TruncationWarning,
    VectorError,
)
from embed.version import __version__

if TYPE_CHECKING:
    from embed.embedder import Embedder, load
    from embed.tokenizer import TokenizedText

__all__ = [
    "DeviceError",
    "EmbedError",
    "Embedder",
    "GuessWarning",
    "ModelError",
    "OptionError",
    "StateError",
    "TextError",
    "TextTypeError",
    "TokenizedText",
    "TruncationWarning",
    "VectorError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in ("Embedder", "TokenizedText", "load"):
        raise AttributeError(f"module 'embed' has no attribute {name!r}")
    from embed import embedder

    return getattr(embedder, name)


def __dir__() -> list[str]:
    return __all__
