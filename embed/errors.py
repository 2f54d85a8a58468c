"""The errors that `embed` raises on purpose: each is one sentence with the next step."""

from __future__ import annotations

import re


class EmbedError(Exception):
    """Base of every error that `embed` raises on purpose."""


class ModelError(EmbedError):
    """A model directory cannot be loaded; the message names the file, tensor or setting."""


class OptionError(EmbedError, ValueError):
    """An option's value is refused; the message names the option and what it accepts."""


class DeviceError(EmbedError):
    """The device, or the instruction set, that was asked for is not there."""


class AddressError(EmbedError):
    """The service cannot listen on the address it was given; the message names it and says why."""


class TextError(EmbedError, ValueError):
    """A text cannot be embedded; `index` is its place in the list that was passed."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index

    def counted_from(self, first: int, noun: str = "text") -> TextError:
        """Return this error for a list of which the texts it was raised about begin at `first`."""
        message = re.sub(r"^text \d+", f"{noun} {self.index + first}", str(self))
        return type(self)(message, self.index + first)


class TextTypeError(TextError, TypeError):
    """A text is not a string."""


class VectorError(TextError):
    """The model gave a vector with a NaN or an infinity for the text at `index`."""


class StateError(EmbedError, RuntimeError):
    """An embedder was used after `close()`, or in a forked child of its process."""


class ExecutorError(EmbedError):
    """The child process that computes can't be started, died or hung; the message says how, and its last words."""


class TruncationWarning(UserWarning):
    """Texts were longer than `maxseq` and were cut; the message counts them."""


class GuessWarning(UserWarning):
    """A setting that the model directory does not state was guessed; the message names the alternatives."""
