"""From a request's body or query to the texts it asks about. Refusals are Falcon's errors, one sentence each."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, unquote_to_bytes

import falcon
import orjson

COUNTED_BYTES = 1 << 16  # 12 MB full of a mark would take 24 ms to count, under the GIL
EXAMPLE = '{"text": "Hello, world!"} or {"text": ["one", "two"]}'


@dataclass(frozen=True)
class Payload:
    """`normalize` None leaves it to the server's own setting."""

    texts: list[str]
    normalize: bool | None


def check_headers(req: falcon.Request) -> None:
    """Refuse a body that isn't plain UTF-8: another charset, or compressed. Any media type is let through, or none."""
    coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise falcon.HTTPUnsupportedMediaType(
            description=f"the content encoding {coding[:40]} is not read; send plain JSON"
        )
    for parameter in (req.content_type or "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii", ""):
            raise falcon.HTTPUnsupportedMediaType(description=f"the charset {charset[:40]} is not read; send UTF-8")


def from_body(body: bytes, *, max_texts: int, max_commas: int) -> Payload:
    """Return what a POST's JSON asks for."""
    _bound_cost(body, max_commas)
    # The collector would look through half a million lists again and again while they are made, for 0.2 s, though none
    # of them is left afterwards.
    gc.disable()
    try:
        return _parsed(body, max_texts)
    finally:
        gc.enable()


def _parsed(body: bytes, max_texts: int) -> Payload:
    body = body.removeprefix(b"\xef\xbb\xbf")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as ex:
        what = f"the body is not JSON ({ex})" if body.strip() else "the body is empty"
        raise _bad(f"{what}; send e.g. {EXAMPLE}") from ex
    if not isinstance(document, dict):
        raise _bad(f"the body is {_kind(document)}, not an object; send e.g. {EXAMPLE}")
    return Payload(_texts(document, max_texts), _normalize(document.get("normalize")))


def _bound_cost(body: bytes, max_commas: int) -> None:
    """Refuse a body that would be parsed for long, which stops every connection, since parsing holds the GIL.

    At the default of 250,000 commas it takes some 50 ms at most; three million strings took 0.13 s. A list or an object
    costs far more than a string and needs no comma: 16 MiB of them took 4 s. 5 MiB of C++, Python or even JSON as text
    have no more than 77,000 commas, 117,000 colons and 32,000 of each bracket.
    """
    for mark, name, most in (
        (b",", "commas", max_commas),
        (b":", "colons", max_commas // 2),
        (b"[", "opening brackets", max_commas // 5),
        (b"{", "opening braces", max_commas // 5),
    ):
        if _has_more(body, mark, most):
            raise _too_large(f"the body has more than {most:,} {name}; send its texts in several requests")


def _has_more(body: bytes, mark: bytes, most: int) -> bool:
    """Tell whether `mark` is there more than `most` times; of a body that is full of it, only the beginning is read."""
    count = 0
    for first in range(0, len(body), COUNTED_BYTES):
        count += body.count(mark, first, first + COUNTED_BYTES)
        if count > most:
            return True
    return False


def from_query(query: str) -> Payload:
    """Return what a GET asks for: one text, `+` for a space; only the word `false` turns normalisation off."""
    texts, normalize = [], None
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        name = unquote_plus(name)
        if name == "text":
            texts.append(_unquoted(value))
        elif name == "normalize":
            normalize = unquote_plus(value).lower() != "false"
    if len(texts) != 1:
        what = "no text given" if not texts else "several texts given, and GET takes one"
        raise _bad(f"{what}; ask e.g. /create_embedding?text=Hello%2C+world, or send a list with POST")
    return Payload(texts, normalize)


def _texts(document: dict[str, Any], max_texts: int) -> list[str]:
    given = [value for name in ("text", "texts") if (value := document.get(name)) is not None]
    if len(given) != 1 or given == [[]]:
        raise _bad(f"{'text and texts are both given' if len(given) > 1 else 'no text given'}; send e.g. {EXAMPLE}")
    texts = [given[0]] if isinstance(given[0], str) else given[0]
    if not isinstance(texts, list):
        raise _bad(f"text is {_kind(texts)}; send a string or a list of strings")
    if len(texts) > max_texts:
        raise _too_large(f"{len(texts):,} texts in one request, and at most {max_texts:,} are taken; send several")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise _bad(f"text {index} is {_kind(text)}, not a string; send strings only")
    return texts


def _normalize(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise _bad(f"normalize is {_kind(value)}; send true or false")


def _unquoted(value: str) -> str:
    # A WSGI query string is bytes read as latin-1.
    try:
        return unquote_to_bytes(value.replace("+", " ").encode("latin-1")).decode()
    except UnicodeDecodeError as ex:
        raise _bad("text is not UTF-8; percent-encode its UTF-8 bytes") from ex


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "null")


def _bad(sentence: str) -> falcon.HTTPBadRequest:
    return falcon.HTTPBadRequest(description=sentence)


def _too_large(sentence: str) -> falcon.HTTPContentTooLarge:
    return falcon.HTTPContentTooLarge(description=sentence)
