"""The clients that people use, against a live service: `requests`, `httpx`, `curl` and Node's `fetch`."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
import requests
import tiny
from command_line import SECONDS
from numpy.typing import NDArray
from serve_process import Serve

import embed

TEXTS = ["hello world", "straße 東京 한국어", '👩‍👩‍👧 é\u0000\u2028\n\t"\\', "", "the quick fox " * 50]
ODD = "a+b & c=d%2B #é?/;,'\"\\ 東京 😀 \t\n\u0000"
MANY = [f"text {number}" for number in range(2000)]
CURL = ("curl", "-sS", "--noproxy", "*")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("xlmr", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[Serve]:
    with Serve(model) as service:
        service.ready()
        yield service


@pytest.fixture(scope="module")
def url(service: Serve) -> str:
    return f"{service.url}/create_embedding"


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        yield session


@pytest.fixture(scope="module")
def vectors(model: Path) -> dict[str, NDArray[np.float32]]:
    """Return what `embed` itself gives for every text here."""
    texts = [*TEXTS, ODD, *MANY]
    with pytest.warns(embed.TruncationWarning), embed.load(model) as embedder:
        return dict(zip(texts, embedder.encode(texts), strict=True))


def assert_vectors(answer: dict[str, Any], texts: list[str], vectors: dict[str, NDArray[np.float32]]) -> None:
    assert np.array_equal(np.array(answer["embeddings"], np.float32), [vectors[text] for text in texts])


def run(*command: str, stdin: str = "") -> str:
    return subprocess.run(
        command, input=stdin, capture_output=True, encoding="utf-8", check=True, timeout=SECONDS
    ).stdout


def installed(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


# --- requests


def test_requests_posts_a_string_and_a_list(session, url, vectors):
    assert_vectors(session.post(url, json={"text": TEXTS[1]}, timeout=SECONDS).json(), TEXTS[1:2], vectors)
    assert_vectors(session.post(url, json={"text": TEXTS}, timeout=SECONDS).json(), TEXTS, vectors)


def test_requests_gets_odd_characters(session, url, vectors):
    assert_vectors(session.get(url, params={"text": ODD}, timeout=SECONDS).json(), [ODD], vectors)


def test_requests_keeps_its_connection_for_a_hundred_requests(session, url, vectors, caplog):
    caplog.set_level(logging.DEBUG, "urllib3.connectionpool")
    for number in range(100):
        text = TEXTS[number % len(TEXTS)]
        assert_vectors(session.post(url, json={"text": text}, timeout=SECONDS).json(), [text], vectors)
    assert sum(message.startswith("Starting new") for message in caplog.messages) == 1


def test_requests_uploads_in_chunks(session, url, vectors):
    body = json.dumps({"text": MANY}).encode()
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    answer = session.post(url, data=pieces, timeout=SECONDS)
    assert answer.request.headers["Transfer-Encoding"] == "chunked"
    assert_vectors(answer.json(), MANY, vectors)


def test_requests_gets_errors_as_json(session, service, url):
    asked = {
        400: session.post(url, data="{", timeout=SECONDS),
        404: session.get(f"{service.url}/nothing", timeout=SECONDS),
        405: session.put(url, json={}, timeout=SECONDS),
        415: session.post(url, data="{}", headers={"Content-Encoding": "gzip"}, timeout=SECONDS),
    }
    for status, answer in asked.items():
        assert answer.status_code == status
        assert isinstance(answer.json().pop("error"), str)


# --- httpx


def test_httpx_posts_gets_and_streams(url, vectors):
    with httpx.Client(timeout=SECONDS, trust_env=False) as client:
        assert_vectors(client.post(url, json={"texts": TEXTS}).json(), TEXTS, vectors)
        assert_vectors(client.get(url, params={"text": ODD}).json(), [ODD], vectors)
        body = json.dumps({"text": MANY}).encode()
        with client.stream("POST", url, content=iter([body[:7], body[7:]])) as answer:
            assert_vectors(json.loads(b"".join(answer.iter_bytes())), MANY, vectors)
        assert client.post(url, json={"text": 5}).json()["error"]


def test_sixteen_async_clients_of_httpx_get_what_each_asked_for(url, vectors):
    async def ask(client: httpx.AsyncClient, texts: list[str]) -> None:
        for _ in range(10):
            assert_vectors((await client.post(url, json={"text": texts})).json(), texts, vectors)

    async def ask_all() -> None:
        async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:
            await asyncio.gather(*(ask(client, MANY[n : n + 1 + n % 3]) for n in range(16)))

    asyncio.run(ask_all())


# --- curl


@installed("curl")
def test_curl_posts_and_gets(url, vectors):
    for options in ([], ["-H", "Content-Type: application/json"], ["-H", "Transfer-Encoding: chunked"], ["--http1.0"]):
        answer = run(*CURL, *options, "--data-binary", json.dumps({"text": TEXTS}), url)
        assert_vectors(json.loads(answer), TEXTS, vectors)
    text = ODD.replace("\u0000", "")  # which no command line can hold
    answer = json.loads(run(*CURL, "-G", "--data-urlencode", f"text={text}", url))
    assert answer == json.loads(run(*CURL, f"{url}?{urlencode({'text': text})}"))


@installed("curl")
def test_curl_waits_for_100_continue_before_a_large_body(url, vectors):
    """It asks for one by itself from 1 MB on, and would give up waiting after a second."""
    body = json.dumps({"text": MANY, "padding": "x" * 2_000_000})
    form = ["-w", "\n%{time_total}", "--expect100-timeout", "20", "-H", "Expect: 100-continue"]
    answer, seconds = run(*CURL, *form, "--data-binary", "@-", url, stdin=body).rsplit("\n", 1)
    assert_vectors(json.loads(answer), MANY, vectors)
    assert float(seconds) < 20


@installed("curl")
def test_curl_gets_the_refusal_of_a_body_that_is_too_large(url):
    body = json.dumps({"text": "x" * (17 << 20)})
    for expect in ("Expect: 100-continue", "Expect:"):
        answer = run(*CURL, "-w", "\n%{http_code}", "-H", expect, "--data-binary", "@-", url, stdin=body)
        said, status = answer.rsplit("\n", 1)
        assert status == "413"
        assert json.loads(said)["error"]


@installed("curl")
def test_curl_keeps_its_connection_through_several_urls(service, url):
    said = run(*CURL, "-w", "\n%{num_connects}\n", *[f"{url}?text=a"] * 3, f"{service.url}/nothing").splitlines()
    assert said[1::2] == ["1", "0", "0", "0"]
    assert said[0] == said[2] == said[4]


# --- Node

NODE = """
const [url, body] = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const post = (body, more) => fetch(url, { method: 'POST', body, ...more });
const pieces = (text) => new ReadableStream({
  start(to) {
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += 1000) to.enqueue(bytes.slice(at, at + 1000));
    to.close();
  },
});
(async () => {
  const answers = [await post(body), await post(pieces(body), { duplex: 'half' })];
  const refused = [await post('{'), await fetch(url, { method: 'PUT', body: '{}' }), await fetch(url + '/nothing')];
  for (let at = 0; at < 100; at++) await (await post('{"text": "again"}')).json();
  const query = new URLSearchParams({ text: JSON.parse(body).text[0] });
  answers.push(await fetch(`${url}?${query}`));
  console.log(JSON.stringify([
    await Promise.all(answers.map((answer) => answer.json())),
    await Promise.all(refused.map(async (answer) => [answer.status, typeof (await answer.json()).error])),
  ]));
})();
"""


@installed("node")
def test_fetch_of_node_posts_streams_and_gets(url, vectors):
    texts = [ODD, *TEXTS, *MANY]
    said = run("node", "-e", NODE, stdin=json.dumps([url, json.dumps({"text": texts})]))
    (posted, streamed, got), refused = json.loads(said)
    assert posted == streamed
    assert_vectors(posted, texts, vectors)
    assert_vectors(got, [ODD], vectors)
    assert refused == [[400, "string"], [405, "string"], [404, "string"]]
