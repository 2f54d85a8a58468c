"""Where connections, descriptors or turns run short: a new client gets an answer, and who can best be spared goes."""

from __future__ import annotations

import contextlib
import re
import statistics
import threading
import time
from pathlib import Path

import pytest
from live_worker import running_worker
from raw_http import Ended, get, post
from serve_process import wait_until

MOST = 12
OPEN, LISTENS = "01", "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def worker():
    with running_worker(EMBED_LIMIT_CONNECTIONS=str(MOST), EMBED_LIMIT_LINGER_S="0.2") as worker:
        yield worker


@contextlib.contextmanager
def crowd(worker, data, count=MOST):
    """Open connections that have sent `data`, each once the server has read that of the one before."""
    worker.wait_for(lambda state: state["connections"] == 1, "earlier connections to end")
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(stack.enter_context(worker.client(receive_bytes=4096)))
            clients[-1].send(data)
            wait_until(lambda: has_read_all(worker, of=len(clients)), "the server to read it")
        yield clients


def queues(worker):
    """Return of each of the server's sockets, as the kernel sees it, the bytes not yet taken by the client, and those
    not yet read; the one that listens has the number of clients that wait there.
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [line for line in lines if int(line[1].partition(":")[2], 16) == worker.port and line[3] in (OPEN, LISTENS)]
    return [tuple(int(number, 16) for number in line[4].split(":")) for line in mine]


def has_read_all(worker, of):
    return [unread for _, unread in queues(worker)] == [0] * (of + 1)


def test_the_oldest_idle_connections_make_room(worker):
    with crowd(worker, b"") as clients:
        for _ in range(3):
            assert worker.ask(get("/health")).status == 200
        assert clients[0].has_ended()
        assert clients[-1].hears_nothing()
        assert clients[-1].is_open()


def test_a_kept_connection_is_idle_since_its_last_request(worker):
    with crowd(worker, b"") as clients:
        for client in clients[:-1]:
            assert client.is_open()
        worker.ask(get("/health"))
        assert clients[-1].has_ended()
        assert all(client.is_open() for client in clients[:-1])


def test_idle_connections_go_before_those_in_a_request(worker):
    with crowd(worker, get("/health")[:-1], MOST - 1) as slow, worker.client() as idle:
        assert worker.ask(get("/health")).status == 200
        assert idle.has_ended()
        assert all(client.hears_nothing() for client in slow)


@pytest.mark.parametrize("data", [get("/health")[:-1], post("/echo", b"hello")[:-1]], ids=["head", "body"])
def test_the_oldest_half_request_makes_room_and_is_told(data, worker):
    with crowd(worker, data) as clients:
        assert worker.ask(get("/health")).status == 200
        reply = clients[0].answer()
        assert (reply.status, reply.closes) == (503, True)
        assert clients[-1].hears_nothing()


def are_held_up(worker, number):
    return sum(untaken > 0 for untaken, _ in queues(worker)) == number


def test_the_oldest_reader_that_does_not_read_makes_room(worker):
    with crowd(worker, get("/large?size=9000000")[:-1]) as clients:
        for number, client in enumerate(clients, 1):
            client.send(b"\n")
            assert client.head()[0] == 200
            wait_until(lambda number=number: are_held_up(worker, number), "the answer to get stuck")
        assert worker.ask(get("/health")).status == 200
        with pytest.raises(Ended):
            clients[0].read(9_000_000)
        assert clients[-1].read(100_000) == bytes(100_000)


def test_where_all_are_being_answered_a_new_one_gets_503(worker):
    with crowd(worker, get("/watch")) as clients:
        for _ in range(2 * MOST):
            reply = worker.ask(get("/health"))
            assert (reply.status, reply.closes) == (503, True)
            assert reply.json["error"] == "the server is out of connections; try again later"
        clients[0].reset()
        worker.wait_until_answered()
        worker.ask(get("/release"))
        assert all(client.answer().status == 200 for client in clients[1:])


def test_where_descriptors_run_out_the_oldest_idle_connections_make_room():
    with running_worker(descriptors=120) as worker, contextlib.ExitStack() as stack:
        old = [stack.enter_context(worker.client()) for _ in range(10)]
        assert all(client.is_open() for client in old)
        assert old[-1].ask(get("/hoard?leave=0")).status == 200
        new = [stack.enter_context(worker.client()) for _ in range(4)]
        assert all(client.is_open() for client in new)
        assert [client.is_open() for client in old] == [False] * 4 + [True] * 6
        assert new[0].ask(get("/hoard?leave=-1")).status == 200
        assert worker.state()["connections"] == 11


def test_without_a_descriptor_to_spare_clients_wait():
    with running_worker(descriptors=120) as worker, worker.client() as first:
        assert first.ask(get("/hoard?leave=0")).status == 200
        first.send(get("/watch"))
        wait_until(lambda: has_read_all(worker, of=1), "the request to be read")
        with worker.client() as second:
            second.send(get("/health"))
            wait_until(lambda: told(worker), "the shortage")
            assert second.hears_nothing()
            first.reset()
            assert second.answer().status == 200
    assert told(worker) == 1


def told(worker):
    return worker.log().count("no connection can be accepted: Too many open files")


# --- turns


def test_clients_that_pipeline_take_turns(worker):
    """The loop has all their requests before it at once."""
    with contextlib.ExitStack() as stack:
        frozen, *clients = [stack.enter_context(worker.client()) for _ in "-abc"]
        assert all(client.is_open() for client in clients)
        frozen.send(get("/freeze"))
        for who, client in zip("abc", clients, strict=True):
            client.send(get(f"/order?who={who}") * 100)
        order = max((client.answer().body.decode() for client in clients for _ in range(100)), key=len)
    runs = [len(run[0]) for run in re.finditer(r"(.)\1*", order)]
    assert sorted(order) == sorted("abc" * 100)
    assert max(runs[:-1]) <= 3


def latencies(worker, count=200):
    taken = []
    with worker.client() as client:
        for _ in range(count):
            began = time.monotonic()
            assert client.is_open()
            taken.append(time.monotonic() - began)
    return taken


@pytest.mark.parametrize("busy", ["asks again", "pipelines", "uploads", "uploads chunks", "downloads"])
def test_one_busy_client_leaves_others_their_turn(busy, worker):
    done = threading.Event()
    served = 0

    def keep_busy():
        nonlocal served
        with worker.client() as client:
            while not done.is_set():
                if busy == "asks again":
                    assert client.is_open()
                elif busy == "pipelines":
                    client.send(get("/health") * 500)
                    for _ in range(500):
                        client.answer()
                elif busy == "uploads":
                    client.ask(post("/length", bytes(8_000_000)))
                elif busy == "uploads chunks":
                    chunks = (b"40\r\n" + bytes(64) + b"\r\n") * 20_000
                    client.ask(get("/echo", "Transfer-Encoding: chunked", method="POST") + chunks + b"0\r\n\r\n")
                else:
                    client.ask(get("/large?size=1000000&pieces=20"))
                served += 1

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        taken = latencies(worker)
    finally:
        done.set()
        thread.join()
    assert served
    assert statistics.median(taken) < 0.1
