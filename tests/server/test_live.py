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
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import command_line
import pytest
import tiny
from raw_http import Client, Reply, chunked, get, post
from serve_process import Serve, wait_until

PATH = "/create_embedding"
SAMPLES = 200
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


def requests() -> list[bytes]:
    """Sixteen that differ in everything: lengths, number of texts, normalisation, spelling."""
    bodies = [
        {("text", "texts")[i % 2]: [words(1 + (i * 5 + j * 11) % 90, i + j) for j in range(1 + (i * i) % 9)]}
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
    mixed = [(request, 200) for request in requests()] + [
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


@contextlib.contextmanager
def repeating(attack: Callable[[], object], count: int) -> Iterator[None]:
    """Have `count` threads repeat `attack`, whatever becomes of it."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):  # a connection that the service ended
                attack()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def refused(service: Serve, request: bytes, status: int) -> Callable[[], None]:
    def attack() -> None:
        with Client(service.port) as client:
            client.try_to_send(request)
            assert client.answer().status == status

    return attack


def filled(pattern: bytes, size: int) -> bytes:
    return b'{"text": [' + pattern * (size // len(pattern)) + b"]}"


@contextlib.contextmanager
def json_bombs(service: Serve) -> Iterator[None]:
    patterns = (b'"a",', b"[],", b'{"a":1},', b"[[[[[[[[")
    attacks = [refused(service, post(PATH, filled(pattern, 12 << 20)), 413) for pattern in patterns]
    turns = itertools.cycle(attacks)
    with repeating(lambda: next(turns)(), 4):
        yield


@contextlib.contextmanager
def bytes_in_chunks(service: Serve) -> Iterator[None]:
    with repeating(refused(service, chunked(PATH, b"1\r\nx\r\n" * (1 << 20)), 400), 4):
        yield


@contextlib.contextmanager
def embeddings_queued(service: Serve) -> Iterator[None]:
    request = asking(bulk(200))

    def attack() -> None:
        with Client(service.port) as client:
            assert client.ask(request).status == 200

    with repeating(attack, 20):
        yield


@contextlib.contextmanager
def readers_that_never_read(service: Serve) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(Client(service.port, receive_bytes=4096))
            client.send(asking({"text": ["a"] * 1000}))  # 3 MB of numbers
        yield


@contextlib.contextmanager
def idle_connections(service: Serve) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(Client(service.port))
        yield


@contextlib.contextmanager
def long_texts(service: Serve) -> Iterator[None]:
    request = asking({"text": "the quick fox " * 30_000})

    def attack() -> None:
        with Client(service.port) as client:
            assert client.ask(request).status == 200

    with repeating(attack, 4):
        yield


ATTACKS = [json_bombs, bytes_in_chunks, embeddings_queued, readers_that_never_read, idle_connections, long_texts]


def health(service: Serve) -> list[float]:
    """Return how long each answer took, in seconds."""
    taken = []
    for _ in range(SAMPLES):
        began = time.monotonic()
        with Client(service.port) as client:
            assert client.ask(get("/health")).json["status"] == "healthy"
        taken.append(time.monotonic() - began)
    return taken


@pytest.mark.parametrize("attack", ATTACKS)
def test_health_answers_meanwhile(service: Serve, attack: Callable[[Serve], contextlib.AbstractContextManager]) -> None:
    with attack(service):
        taken = health(service)
    assert statistics.median(taken) < 0.25
    assert statistics.quantiles(taken, n=100)[98] < 1


def resident_mb(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def test_after_every_attack_all_is_as_it_was(model: Path) -> None:
    with Serve(model) as service:
        service.ready()
        for attack in ATTACKS:  # what a worker needs at most it has had then
            with attack(service):
                health(service)
        worker, before = service.worker, ask(service, bulk(50)).body
        wait_until(lambda: ask_queue(service) == 0, "the queue to be empty")
        time.sleep(2)  # in which free memory goes back
        memory, descriptors = resident_mb(worker), len(os.listdir(f"/proc/{worker}/fd"))
        for attack in ATTACKS:
            with attack(service):
                health(service)
        wait_until(lambda: ask_queue(service) == 0, "the queue to be empty")
        wait_until(lambda: len(os.listdir(f"/proc/{worker}/fd")) <= descriptors, "the descriptors to be closed")
        wait_until(lambda: resident_mb(worker) < memory + 20, "the memory to go back")
        assert service.worker == worker
        assert ask(service, bulk(50)).body == before


def ask_queue(service: Serve) -> int:
    return int(float(metric(service, "embed_queue_requests")))


def metric(service: Serve, name: str) -> str:
    with Client(service.port) as client:
        return re.search(rf"^{name} (\S+)$", client.ask(get("/metrics")).body.decode(), re.MULTILINE)[1]


# --- clients that leave, and texts that fail


def test_texts_of_clients_that_broke_off_are_not_computed(service: Serve) -> None:
    before = float(metric(service, "embed_texts_total"))
    with Client(service.port) as first:
        first.send(asking(bulk()))
        wait_until(lambda: ask_queue(service) == 1, "the first request to be computed")
        leavers = [Client(service.port) for _ in range(30)]
        for leaver in leavers:
            leaver.send(asking(bulk()))
        wait_until(lambda: ask_queue(service) > 25, "the others to wait")
        for leaver in leavers:
            leaver.reset()
        assert ask(service, {"text": "here"}).status == 200
        assert first.answer().status == 200
    wait_until(lambda: ask_queue(service) == 0, "the queue to be empty")
    assert float(metric(service, "embed_texts_total")) - before == 501


def test_a_client_that_half_closes_gets_its_answer(service: Serve) -> None:
    with Client(service.port) as client:
        client.send(asking({"text": "half"}))
        client.end_sending()
        assert client.answer().status == 200


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
