"""What takes too long: each stage of a request has its time, and who makes progress is not cut."""

from __future__ import annotations

import contextlib
import time

import pytest
from live_worker import running_worker
from raw_http import Client, Ended, chunked, get, post

IDLE_S = 0.7
# Where a client is to be in time: more than any of its pauses by as much as a busy machine may add.
PATIENT_S = 2.0
PAUSE_S = 0.8


@pytest.fixture(scope="module")
def worker():
    limits = {"EMBED_LIMIT_IDLE_S": str(IDLE_S), "EMBED_LIMIT_BODY_BYTES_PER_S": "20000", "EMBED_LIMIT_LINGER_S": "0.3"}
    with running_worker(**limits) as worker:
        yield worker
        state = worker.wait_for(lambda state: state["connections"] == 1, "connections to be given back")
        assert (state["greenlets"], state["buffered"]) == (1, 0)


@pytest.fixture(scope="module")
def patient():
    with running_worker(EMBED_LIMIT_IDLE_S=str(PATIENT_S), EMBED_LIMIT_BODY_BYTES_PER_S="20000") as worker:
        yield worker


def drip(client: Client, data: bytes, every_s: float) -> None:
    """Send byte by byte, until the server has something to say."""
    for number in range(len(data)):
        client.sock.settimeout(every_s)
        with contextlib.suppress(TimeoutError):
            client.sock.recv(1, 2)  # MSG_PEEK
            break
        client.try_to_send(data[number : number + 1])
    client.sock.settimeout(20)


def test_a_client_between_requests_is_dropped_without_a_word(worker):
    began = time.monotonic()
    with worker.client() as silent, worker.client() as kept:
        assert kept.is_open()
        assert silent.has_ended()
        assert time.monotonic() - began > IDLE_S * 0.9
        assert kept.has_ended()


def test_each_request_begins_the_idle_time_anew(patient):
    with patient.client() as client:
        for _ in range(3):
            time.sleep(PAUSE_S)
            assert client.is_open()


LATE = {
    "head": [b"G", get("/health")[:-1], b"\r\n" + get("/health")[:-2]],
    "body": [post("/echo", b"hello")[:-1], chunked("/echo", b"5\r\nhel"), chunked("/echo", b"5")],
}


@pytest.mark.parametrize("part", LATE)
def test_half_a_request_gets_408(part, worker):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(worker.client()) for _ in LATE[part]]
        for client, data in zip(clients, LATE[part], strict=True):
            client.send(data)
        for client in clients:
            reply = client.answer()
            assert (reply.status, reply.closes) == (408, True)
            assert reply.json["error"] == f"the request's {part} did not arrive in time"
            assert client.has_ended()


def test_a_dripping_head_gets_408(worker):
    """Progress doesn't help: a head has its time as a whole."""
    with worker.client() as client:
        began = time.monotonic()
        drip(client, get("/health", f"X: {'y' * 1000}"), 0.1)
        assert client.answer().status == 408
        assert time.monotonic() - began < 20  # all of it takes 100 s


def test_half_a_pipelined_head_gets_408_after_the_answers_before_it(worker):
    with worker.client() as client:
        client.send(get("/health") + get("/health")[:-1])
        assert client.answer().status == 200
        assert client.answer().status == 408


def test_a_body_that_only_drips_gets_408(worker):
    """After the idle time it must have come at 20,000 bytes a second."""
    with worker.client() as client:
        client.send(get("/echo", "Content-Length: 1000", method="POST"))
        began = time.monotonic()
        drip(client, b"x" * 1000, 0.1)
        assert client.answer().status == 408
        assert time.monotonic() - began < 20  # all of it takes 100 s


def test_a_slow_body_that_is_fast_enough_is_read(patient):
    body = bytes(120_000)
    with patient.client() as client:
        client.send(post("/digest", body)[: -len(body)])
        for start in range(0, len(body), 10_000):
            time.sleep(0.2)  # 50,000 bytes a second, for 2.4 s
            client.send(body[start : start + 10_000])
        assert client.answer().status == 200
        assert client.is_open()


def test_a_body_is_not_waited_for_where_nobody_reads_it(worker):
    with worker.client() as client:
        client.send(get("/nowhere", "Content-Length: 5", method="POST"))
        assert client.answer().status == 404  # and no 408, when it hasn't come


def test_a_reader_that_stops_is_dropped(worker):
    with worker.client(receive_bytes=4096) as client:
        client.send(get("/large?size=1000000&pieces=10"))
        worker.wait_for(lambda state: state["connections"] == 1, "the connection to be dropped")
        with pytest.raises(Ended):
            client.answer()


def test_a_slow_reader_that_makes_progress_gets_all(patient):
    with patient.client(receive_bytes=65536) as client:
        client.send(get("/large?size=4000000&pieces=3"))
        assert client.head()[0] == 200
        for piece in range(3):
            time.sleep(PAUSE_S)
            assert client.read(4_000_000) == bytes([piece]) * 4_000_000
        assert client.is_open()


def test_a_request_has_a_deadline():
    limits = {"EMBED_LIMIT_REQUEST_S": "1", "EMBED_LIMIT_LINGER_S": "0.1"}
    with running_worker(**limits) as worker, worker.client() as waiting, worker.client() as receiving:
        waiting.send(get("/wait"))
        receiving.send(get("/forever"))
        reply = waiting.answer()
        assert (reply.status, reply.closes) == (504, True)
        assert reply.json["error"] == "the request took longer than 1 s"
        assert waiting.has_ended()
        assert receiving.head()[0] == 200
        body = receiving.rest()  # nothing but ending can be done once an answer has begun
        assert b"and on" in body
        assert not body.endswith(b"0\r\n\r\n")
        state = worker.wait_for(lambda state: state["connections"] == 1, "both connections to be given back")
        assert state["calls"]["forever-closed"] == 1  # as for any iterable of an application


def test_who_does_not_hang_up_after_a_refusal_is_cut(worker):
    with worker.client() as client:
        client.send(get("/health", version="3.0"))
        assert client.answer().status == 505
        worker.wait_for(lambda state: state["connections"] == 1, "lingering to end")


def test_lingering_has_an_end_for_who_keeps_sending(worker):
    def send_for(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            client.send(bytes(10_000))
            time.sleep(0.01)

    with worker.client() as client:
        client.send(get("/health", version="3.0"))
        with pytest.raises(ConnectionError):
            send_for(10)
