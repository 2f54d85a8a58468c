"""What `embed executor` and the program that runs it say: one JSON object a line, in UTF-8, both ways.

No input or output here. docs/executor.md has the messages with an example of each; `PROTOCOL` changes when one of them
does in a way that an old reader would misunderstand.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from embed.errors import DeviceError, EmbedError, ModelError, OptionError, TextError, VectorError

PROTOCOL = 1
START = b'{"type":'  # of every message that the child writes

# What a Failure's kind stands for; of an error that is several, the first counts. A "fault" is any other.
KINDS: dict[str, type[Exception]] = {
    "vector": VectorError,
    "text": TextError,
    "model": ModelError,
    "option": OptionError,
    "device": DeviceError,
    "request": EmbedError,
    "memory": MemoryError,
}


class ProtocolError(EmbedError, ValueError):
    """A line is no message of this protocol."""


class BrokenMessage(ProtocolError):
    """A line is meant as a message of this protocol, and can't be understood."""


@dataclass(frozen=True)
class Ready:
    """The child's first message: the model is loaded."""

    model: str
    dimension: int
    device: str  # e.g. "cpu avx512"
    load_ms: int


@dataclass(frozen=True)
class Request:
    """Compute vectors of `texts`, or, where that is None, of token ids."""

    id: int
    ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # (tokens), text after text
    lengths: Sequence[int] = ()  # tokens of each text
    texts: Sequence[str] | None = None
    normalize: bool = True


@dataclass(frozen=True)
class Progress:
    """The computing thread has come so far."""

    id: int
    done: int
    of: int


@dataclass(frozen=True)
class Result:
    """`vectors` is (texts, dimension) float32."""

    id: int
    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class Failure:
    """A request can't be answered, or, with no `id`, the model not be loaded or a line not be read."""

    id: int | None
    kind: str  # one of KINDS, or fault
    message: str
    index: int | None = None  # of the text that is at fault


Message = Ready | Progress | Result | Failure


def encode_request(request: Request) -> bytes:
    """Return a request's line."""
    fields: dict[str, Any] = {"type": "embed", "id": request.id}
    if request.texts is None:
        fields["tokens"] = base64.b64encode(np.asarray(request.ids, "<i4").tobytes()).decode()
        fields["lengths"] = request.lengths
    else:
        fields["texts"] = request.texts
    return orjson.dumps({**fields, "normalize": request.normalize}) + b"\n"


def decode_request(line: bytes) -> Request:
    """Return the request of a line; raises `ProtocolError`."""
    fields = _fields(line)
    if fields.get("type") != "embed":
        raise ProtocolError(f'type {fields.get("type")!r} is not "embed", the only request there is')
    number, normalize = fields.get("id"), fields.get("normalize", True)
    if type(number) is not int:
        raise ProtocolError(f"id {number!r} is not a whole number")
    if not isinstance(normalize, bool):
        raise ProtocolError(f"normalize {normalize!r} is neither true nor false")
    if ("tokens" in fields) == ("texts" in fields):
        raise ProtocolError("give tokens with their lengths, or texts")
    if "texts" in fields:
        return Request(number, texts=_texts(fields["texts"]), normalize=normalize)
    ids, lengths = _tokens(fields["tokens"], fields.get("lengths"))
    return Request(number, ids, lengths, normalize=normalize)


def encode(message: Message) -> bytes:
    """Return the line of one of the child's messages."""
    if isinstance(message, Ready):
        fields = {
            "type": "ready",
            "protocol": PROTOCOL,
            "model": _utf8(message.model),
            "dimension": message.dimension,
            "device": message.device,
            "load_ms": message.load_ms,
        }
    elif isinstance(message, Progress):
        fields = {"type": "progress", "id": message.id, "done": message.done, "of": message.of}
    elif isinstance(message, Result):
        vectors = base64.b64encode(np.asarray(message.vectors, "<f4").tobytes()).decode()
        fields = {"type": "result", "id": message.id, "vectors": vectors, "rows": len(message.vectors)}
    else:
        fields = {"type": "error", "id": message.id, "kind": message.kind, "message": _utf8(message.message)}
        if message.index is not None:
            fields["index"] = message.index
    return orjson.dumps(fields) + b"\n"


def decode(line: bytes) -> Message:
    """Return the child's message of a line.

    Raises `ProtocolError` for what may be anybody's, and `BrokenMessage` for what can only be a child's.
    """
    fields = _fields(line)
    kind = fields.get("type")
    try:
        return _READERS[kind](fields)
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as ex:
        error = BrokenMessage if kind in ("ready", "result") else ProtocolError
        raise error(f"not a message: {_shown(line)}") from ex


def _ready(fields: dict[str, Any]) -> Ready:
    if fields["protocol"] != PROTOCOL:
        raise BrokenMessage(f"the child speaks protocol {fields['protocol']!r}, and this program {PROTOCOL}")
    return Ready(str(fields["model"]), int(fields["dimension"]), str(fields["device"]), int(fields["load_ms"]))


def _progress(fields: dict[str, Any]) -> Progress:
    return Progress(int(fields["id"]), int(fields["done"]), int(fields["of"]))


def _result(fields: dict[str, Any]) -> Result:
    numbers = np.frombuffer(base64.b64decode(fields["vectors"], validate=True), "<f4")
    rows = int(fields["rows"])
    return Result(int(fields["id"]), numbers.reshape(rows, len(numbers) // rows if rows else 0))


def _failure(fields: dict[str, Any]) -> Failure:
    number, index = fields.get("id"), fields.get("index")
    return Failure(
        None if number is None else int(number),
        str(fields["kind"]),
        str(fields["message"]),
        None if index is None else int(index),
    )


_READERS: dict[Any, Callable[[dict[str, Any]], Message]] = {
    "ready": _ready,
    "progress": _progress,
    "result": _result,
    "error": _failure,
}


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as ex:
        raise ProtocolError(f"not JSON ({ex}): {_shown(line)}") from ex
    if not isinstance(fields, dict):
        raise ProtocolError(f"not an object: {_shown(line)}")
    return fields


def _texts(texts: Any) -> list[str]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ProtocolError("texts is not a list of strings")
    return texts


def _tokens(tokens: Any, lengths: Any) -> tuple[NDArray[np.int32], list[int]]:
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ProtocolError("lengths is not a list of whole numbers above 0")
    try:
        ids = np.frombuffer(base64.b64decode(tokens, validate=True), "<i4").astype(np.int32, copy=False)
    except (TypeError, ValueError, binascii.Error) as ex:
        raise ProtocolError("tokens is not base64 of little-endian int32 numbers") from ex
    if sum(lengths) != len(ids):
        raise ProtocolError(f"lengths add up to {sum(lengths):,}, and tokens are {len(ids):,}")
    return ids, lengths


def _utf8(text: str) -> str:
    """Return `text` with what UTF-8 can't carry escaped: a file's name may hold any bytes."""
    return text.encode(errors="backslashreplace").decode()


def _shown(line: bytes) -> str:
    return repr(line[:100])[1:] + ("..." if len(line) > 100 else "")
