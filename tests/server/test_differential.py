"""Ours answers as a FastAPI service with the same routes does: the class of the status, keys, types, and vectors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny
from command_line import environment
from serve_process import Serve

TWIN = Path(__file__).with_name("fastapi_twin.py")
TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
MAX_TEXTS, MAX_BODY = 100, 1 << 20  # fastapi_twin.py has the same
BROKEN = "%"  # a text with it has no finite vector in the model of this test


def post(document: Any, **headers: str) -> dict[str, Any]:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return {"method": "POST", "url": "/create_embedding", "content": content, "headers": {**BEARER, **headers}}


def get(query: str, path: str = "/create_embedding", method: str = "GET", **headers: str) -> dict[str, Any]:
    return {"method": method, "url": f"{path}?{query}" if query else path, "headers": {**BEARER, **headers}}


def anonymous(request: dict[str, Any], **headers: str) -> dict[str, Any]:
    return {**request, "headers": headers}


GOOD = {
    "a string": post({"text": "hello world"}),
    "a list": post({"text": ["hello", "world", "the quick fox"]}),
    "a list of one": post({"text": ["hello"]}),
    "texts": post({"texts": ["hello", "world"]}),
    "texts as a string": post({"texts": "hello"}),
    "the same text twice": post({"text": ["hello", "hello"]}),
    "an empty text": post({"text": ""}),
    "empty texts among others": post({"text": ["", "hello", " "]}),
    "text null beside texts": post({"text": None, "texts": ["hello"]}),
    "not normalised": post({"text": ["hello", "world"], "normalize": False}),
    "normalised": post({"text": "hello", "normalize": True}),
    "normalize null": post({"text": "hello", "normalize": None}),
    "unknown keys": post({"text": "hello", "user": "u1", "dimensions": None}),
    "the last of two keys": post(b'{"text": "hello", "text": "world"}'),
    "many languages": post({"text": ["straße", "東京", "한국어", "рим", "שלום", "👩‍👩‍👧 é"]}),
    "escapes": post(b'{"text": "a\\u00e9\\ud83d\\ude00\\n\\t\\u0000b"}'),
    "raw UTF-8": post('{"text": "é 東京 😀"}'.encode()),
    "a cut text": post({"text": "hello world " * 100}),
    "a byte order mark": post(b'\xef\xbb\xbf{"text": "hello"}'),
    "white space around": post(b' \r\n{"text" : "hello"}\n'),
    "no media type": post({"text": "hello"}),
    "text/plain": post({"text": "hello"}, **{"Content-Type": "text/plain"}),
    "a charset": post({"text": "hello"}, **{"Content-Type": "application/json; charset=UTF-8"}),
    "as many texts as allowed": post({"text": ["a"] * MAX_TEXTS}),
    "a body as large as allowed": post({"text": "a" * (MAX_BODY - 12)}),
    "GET": get("text=hello"),
    "GET with plus and percent": get("text=hello+world%2C+%C3%A9%26"),
    "GET of an empty text": get("text="),
    "GET not normalised": get("text=hello&normalize=false"),
    "GET with another word": get("text=hello&normalize=0"),
    "GET with the token in the query": anonymous(get(f"text=hello&token={TOKEN}")),
    "bearer in small letters": anonymous(get("text=hello"), authorization=f"bearer {TOKEN}"),
    "HEAD": get("text=hello", method="HEAD"),
    "health": get("", "/health"),
    "health at the root": get("", "/"),
    "health by HEAD": get("", "/health", "HEAD"),
    "health without the token": anonymous(get("", "/health")),
    "health at the root, a wrong token": anonymous(get("", "/"), authorization="Bearer wrong"),
}
BAD = {
    "no body": post(b""),
    "not JSON": post(b"text=hello"),
    "half of JSON": post(b'{"text": "hel'),
    "two documents": post(b'{"text": "a"} {"text": "b"}'),
    "single quotes": post(b"{'text': 'hello'}"),
    "not UTF-8": post(b'{"text": "caf\xe9"}'),
    "a lone surrogate": post(b'{"text": "a\\ud800"}'),
    "a list for a document": post(["hello"]),
    "a string for a document": post("hello"),
    "null for a document": post(None),
    "an empty object": post({}),
    "another key": post({"input": "hello"}),
    "text null": post({"text": None}),
    "an empty list": post({"text": []}),
    "a number": post({"text": 5}),
    "an object": post({"text": {"a": "b"}}),
    "a list of lists": post({"text": [["hello"]]}),
    "null in a list": post({"text": ["hello", None]}),
    "a number in a list": post({"text": ["hello", 17, "world"]}),
    "text and texts": post({"text": "hello", "texts": ["world"]}),
    "normalize a string": post({"text": "hello", "normalize": "yes"}),
    "normalize a number": post({"text": "hello", "normalize": 1}),
    "latin-1": post({"text": "hello"}, **{"Content-Type": "application/json; charset=latin-1"}),
    "compressed": post(b"\x1f\x8b", **{"Content-Encoding": "gzip"}),
    "too many texts": post({"text": ["a"] * (MAX_TEXTS + 1)}),
    "too large a body": post({"text": "a" * (MAX_BODY - 11)}),
    "GET without a text": get(""),
    "GET of another key": get("q=hello"),
    "an unknown path": get("", "/embeddings"),
    "a path below": get("text=hello", "/create_embedding/more"),
    "capital letters": get("", "/HEALTH"),
    "PUT": {**post({"text": "hello"}), "method": "PUT"},
    "DELETE": get("", method="DELETE"),
    "POST to health": {**post({}), "url": "/health"},
    "no token": anonymous(post({"text": "hello"})),
    "a wrong token": anonymous(post({"text": "hello"}), authorization="Bearer s3cres"),
    "another scheme": anonymous(get("text=hello"), authorization=f"Basic {TOKEN}"),
    "a wrong token in the query": anonymous(get("text=hello&token=s3cre")),
    "an unknown path without the token": anonymous(get("", "/docs")),
    "a text that breaks the model": post({"text": ["hello", f"a{BROKEN}", "world"]}),
    "only a text that breaks the model": get("text=%25"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model in which one token's embedding is not finite."""
    folder = tiny.make("xlmr", tmp_path_factory.mktemp("models") / "tiny")
    tensors = tiny.random_tensors(json.loads((folder / "config.json").read_text()))
    tensors["embeddings.word_embeddings.weight"][tiny.unigram_tokenizer().token_to_id(BROKEN)] = np.nan
    tiny.write_weights(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def ours(model: Path) -> Iterator[httpx.Client]:
    limits = {"EMBED_MAX_TEXTS": str(MAX_TEXTS), "EMBED_LIMIT_BODY_BYTES": str(MAX_BODY), "EMBED_TOKEN": TOKEN}
    with Serve(model, env=limits) as service:
        service.ready()
        with client_of(service.url) as client:
            yield client


@pytest.fixture(scope="module")
def twin(model: Path) -> Iterator[httpx.Client]:
    command = [sys.executable, str(TWIN), str(model), TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            with client_of(process.stdout.readline().strip()) as client:
                yield client
        finally:
            process.kill()


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=20, trust_env=False)


def shape(value: Any) -> Any:
    """Return keys and types: a list by its length and its elements' shapes."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [len(value), *({repr(shape(inner)) for inner in value})]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def assert_alike(mine: httpx.Response, theirs: httpx.Response) -> None:
    assert mine.status_code // 100 == theirs.status_code // 100, (mine.text, theirs.text)
    assert mine.headers["content-type"].partition(";")[0] == theirs.headers["content-type"] == "application/json"
    assert bool(mine.content) == bool(theirs.content)
    if mine.content:
        assert shape(mine.json()) == shape(theirs.json())


@pytest.mark.parametrize("name", GOOD)
def test_good_requests_are_answered_alike_with_equal_vectors(name, ours, twin):
    mine, theirs = (client.request(**GOOD[name]) for client in (ours, twin))
    assert mine.status_code == 200, mine.text
    assert_alike(mine, theirs)
    if "embeddings" in mine.text:
        assert (mine.json()["model"], mine.json()["dimension"]) == ("tiny", tiny.WIDTH)
        vectors = [np.array(answer.json()["embeddings"], np.float32) for answer in (mine, theirs)]
        assert np.array_equal(*vectors)


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_alike(name, ours, twin):
    mine, theirs = (client.request(**BAD[name]) for client in (ours, twin))
    assert mine.status_code >= 400
    assert_alike(mine, theirs)
    assert list(mine.json()) == ["error"]
