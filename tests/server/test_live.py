"""The real service under load and attack: the same bits whatever else goes on, and everything as before afterwards.

`/health` is asked 200 times during each attack, each time on a new connection. What is asserted of its times is loose
enough for a busy machine of two cores; benchmarks/attacks.py measures them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import command_line
import pytest
import tiny
from hostile_clients import answered, asking_again, clients, health_seconds, until_the_end, waiting
from raw_http import Client, Reply, chunked, get, post
from serve_process import Serve, wait_until

PATH = "/create_embedding"
Attack = Callable[[Serve], contextlib.AbstractContextManager[object]]
WORDS = ["the", "quick", "fox", "of", "hello", "world", "and", "lazy", "dog", "is", "a", "query", "to", "passage", "in"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that a few hundred texts take a good part of a second."""
    config = tiny.shape(256, 4, 1024, 4)
    return tiny.make("xlmr", tmp_path_factory.mktemp("live") / "model", config=config, maxseq=512)


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[Serve]:
    with Serve(model) as service:
        service.ready()
        yield service


def words(count: int, seed: int = 0) -> str:
    return " ".join(WORDS[(seed * 7 + i * i) % len(WORDS)] for i in range(count))


def ask(service: Serve, body: object) -> Reply:
    with Client(service.port) as client:
        return client.ask(asking(body))


def asking(body: object) -> bytes:
    return post(PATH, json.dumps(body).encode())


def bulk(texts: int = 500) -> dict[str, list[str]]:
    return {"text": [words(1 + i % 40, i) for i in range(texts)]}


def requests(longest: int = 90) -> list[bytes]:
    """Sixteen that differ in everything: lengths, up to `longest` words, number of texts, normalisation, spelling."""
    bodies = [
        {("text", "texts")[i % 2]: [words(1 + (i * 5 + j * 11) % longest, i + j) for j in range(1 + (i * i) % 9)]}
        | ({} if i % 3 else {"normalize": False})
        for i in range(15)
    ]
    return [asking(body) for body in [*bodies, {"text": words(30)}]]


def test_sixteen_at_once_get_byte_for_byte_what_they_get_one_at_a_time(service: Serve) -> None:
    alone = []
    for request in requests():
        with Client(service.port) as client:
            alone.append(client.ask(request).body)
    barrier = threading.Barrier(16)

    def at_once(request: bytes) -> list[bytes]:
        with Client(service.port) as client:
            barrier.wait()
            return [client.ask(request).body for _ in range(5)]

    with ThreadPoolExecutor(16) as pool:
        for together, one in zip(pool.map(at_once, requests()), alone, strict=True):
            assert together == [one] * 5


def test_thirty_two_clients_with_fifty_mixed_requests_each_are_all_served(service: Serve) -> None:
    mixed = [(request, 200) for request in requests(longest=10)] + [
        (asking({"text": 5}), 400),
        (asking({"text": [None]}), 400),
        (get("/health"), 200),
        (get(f"{PATH}?text=hello+world"), 200),
        (get("/nothing"), 404),
        (get(PATH, method="PUT"), 405),
    ]

    def serve(number: int) -> None:
        rounds = itertools.islice(itertools.cycle(mixed), number, number + 50)
        if number % 2:
            with Client(service.port) as client:
                for request, status in rounds:
                    assert client.ask(request).status == status
            return
        for request, status in rounds:
            with Client(service.port) as client:
                assert client.ask(request).status == status

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(serve, range(32)))


def test_numbers_are_written_as_the_shell_writes_them(service: Serve, model: Path) -> None:
    texts = [words(n, n) for n in (1, 5, 40, 200)]
    code, csv, error = command_line.run("text", "--model", model, *texts)
    assert code == 0, error
    rows = ",".join(f"[{line}]" for line in csv.decode().splitlines())
    assert ask(service, {"text": texts}).body.startswith(f'{{"embeddings":[{rows}],'.encode())


# --- attacks


def filled(pattern: bytes, size: int) -> bytes:
    return b'{"text": [' + pattern * (size // len(pattern)) + b"]}"


def json_bombs(service: Serve) -> contextlib.AbstractContextManager[object]:
    """Send what would be parsed for seconds: millions of strings, lists, objects and keys."""
    patterns = (b'"a",', b"[],", b'{"a":1},', b'{"a":', b"[[[[[[[[")
    bombs = [post(PATH, filled(pattern, 12 << 20)) for pattern in patterns]
    return until_the_end(*(answered(service.port, bomb, 413) for bomb in bombs))


def bytes_in_chunks(service: Serve) -> contextlib.AbstractContextManager[object]:
    return until_the_end(*[answered(service.port, chunked(PATH, b"1\r\nx\r\n" * 2_500_000), 400)] * 4)


@contextlib.contextmanager
def embeddings_queued(service: Serve) -> Iterator[None]:
    with waiting(service.port, 20, asking(bulk())):
        wait_until(lambda: queued(service) > 15, "the requests to wait")
        yield
        assert queued(service) > 0


@contextlib.contextmanager
def answers_that_nobody_reads(service: Serve) -> Iterator[None]:
    with clients(service.port, 20, asking({"text": [""] * 1000}), receive_bytes=4096) as all_:  # 3 MB of numbers
        for client in all_:
            assert client.sock.recv(1, socket.MSG_PEEK)
        yield


def idle_connections(service: Serve) -> contextlib.AbstractContextManager[object]:
    return clients(service.port, 500, b"")


def connections_that_ask_again(service: Serve) -> contextlib.AbstractContextManager[object]:
    return asking_again(service.port)


def long_texts(service: Serve) -> contextlib.AbstractContextManager[object]:
    return until_the_end(*[answered(service.port, asking({"text": "the quick fox " * 30_000}), 200)] * 4)


ATTACKS = [
    json_bombs,
    bytes_in_chunks,
    embeddings_queued,
    answers_that_nobody_reads,
    idle_connections,
    connections_that_ask_again,
    long_texts,
]


@dataclass(frozen=True)
class State:
    worker: int
    resident_mb: float
    descriptors: int
    body: bytes  # of one answer


@pytest.fixture(scope="module")
def before(service: Serve) -> State:
    """Return the state of a worker that has met every attack once, and so has had what it needs at most."""
    for attack in ATTACKS:
        with attack(service):
            health_seconds(service.port, 20)
    wait_until(lambda: queued(service) == 0, "the queue to be empty")
    body = ask(service, bulk(50)).body
    counts = [descriptors(service.worker)]
    while len(counts) < 25 or counts[-1] > min(counts):  # the last connections are still being closed
        time.sleep(0.02)
        counts.append(descriptors(service.worker))
    return State(service.worker, resident_mb(service.worker), min(counts), body)


@pytest.mark.parametrize("attack", ATTACKS)
def test_health_answers_meanwhile_and_all_is_as_before(service: Serve, before: State, attack: Attack) -> None:
    with attack(service):
        taken = health_seconds(service.port)
    assert statistics.median(taken) < 0.25
    assert statistics.quantiles(taken, n=100)[98] < 1
    assert ask(service, bulk(50)).body == before.body
    wait_until(lambda: queued(service) == 0, "the queue to be empty")
    wait_until(lambda: descriptors(before.worker) <= before.descriptors, "the descriptors to be closed")
    wait_until(lambda: resident_mb(before.worker) < before.resident_mb + 20, "the memory to go back")
    assert service.worker == before.worker


def test_a_body_of_millions_of_strings_is_refused_at_once(service: Serve) -> None:
    with Client(service.port) as client:
        client.send(post(PATH, filled(b'"a",', 12 << 20)))
        began = time.monotonic()
        reply = client.answer()
    assert (reply.status, "commas" in reply.json["error"]) == (413, True)
    assert time.monotonic() - began < 1


def resident_mb(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def queued(service: Serve) -> int:
    return int(metric(service, "embed_queue_requests"))


def metric(service: Serve, name: str) -> float:
    with Client(service.port) as client:
        text = client.ask(get("/metrics")).body.decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


# --- fairness


def longest_chunk_s(service: Serve) -> float:
    """Return the least bound of the histogram that no chunk has been over."""
    with Client(service.port) as client:
        text = client.ask(get("/metrics")).body.decode()
    bounds = re.findall(r'^embed_chunk_seconds_bucket{le="(.+)"} (\S+)$', text, re.MULTILINE)
    return min(float(bound) for bound, count in bounds if count == bounds[-1][1])


def test_a_short_text_waits_for_a_chunk_or_two_of_a_client_that_keeps_posting_500(model: Path) -> None:
    """Half of a chunk, on average, then its own; three leave room for a machine that has more to do."""
    with Serve(model) as service:
        service.ready()
        ask(service, bulk())  # and the pace is known
        taken = []
        with until_the_end(answered(service.port, asking(bulk()), 200)), Client(service.port) as client:
            wait_until(lambda: queued(service) == 1, "the texts to be computed")
            for _ in range(10):
                began = time.monotonic()
                assert client.ask(asking({"text": "hello world"})).status == 200
                taken.append(time.monotonic() - began)
        assert max(taken) < 3 * longest_chunk_s(service)


# --- clients that leave, and texts that fail


def test_texts_of_clients_that_broke_off_are_not_computed(service: Serve) -> None:
    before = metric(service, "embed_chunk_texts_sum")
    with Client(service.port) as first:
        first.send(asking(bulk()))
        wait_until(lambda: metric(service, "embed_queue_tokens") > 0, "the first request to be computed")
        tokens = metric(service, "embed_queue_tokens")
        with waiting(service.port, 30, asking(bulk())):
            wait_until(lambda: metric(service, "embed_queue_tokens") > 25 * tokens, "the others to wait")
        assert ask(service, bulk()).status == 200  # in turn with theirs, if those were still there
        assert first.answer().status == 200
    assert metric(service, "embed_chunk_texts_sum") - before < 1000 + 30 * 500 / 3  # some had their turn before


def test_a_client_that_half_closes_gets_its_answer_though_others_wait(service: Serve) -> None:
    with waiting(service.port, 3, asking(bulk(200))), Client(service.port) as client:
        wait_until(lambda: queued(service) == 3, "the others to wait")
        client.send(asking(bulk(100)))
        client.end_sending()
        assert len(client.answer().json["embeddings"]) == 100


def test_a_text_that_fails_fails_its_request_alone(tmp_path: Path) -> None:
    directory = tiny.make("xlmr", tmp_path / "model")
    tensors = tiny.random_tensors(json.loads((directory / "config.json").read_text()))
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    bad = [token for token, _ in vocabulary].index("▁fox") if isinstance(vocabulary, list) else vocabulary["fox"]
    tensors["embeddings.word_embeddings.weight"][bad] = float("nan")
    tiny.write_weights(directory, tensors)
    bodies: list[object] = [{"text": ["the dog", f"{WORDS[i % 2]} world"]} for i in range(15)]
    with Serve(directory) as service, ThreadPoolExecutor(16) as pool:
        service.ready()
        for _ in range(5):
            *good, failed = pool.map(lambda body: ask(service, body), [*bodies, {"text": ["the dog", "the fox"]}])
            assert [reply.status for reply in good] == [200] * 15
            assert failed.status == 500
            assert "text 1" in failed.json["error"]
