"""What keeps a request from its vectors though nothing is wrong with it."""

from __future__ import annotations

from embed.errors import EmbedError

ENDING = "the service is ending; send the request again"


class Unavailable(EmbedError):
    """The model can't be asked now: it couldn't be loaded, or the service is ending; `retry_after_s` is a guess."""

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(EmbedError):
    """The queue has no room; `retry_after_s` is when it may have."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
