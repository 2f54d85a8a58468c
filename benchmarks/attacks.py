"""How fast is `/health` answered while hostile clients attack `embed serve`, and what do they leave behind?

    python benchmarks/attacks.py MODEL_DIR [--seconds 5] [--service COMMAND]

Each attack goes on for as long as `/health` is asked, every 5 ms on a new connection, at least 200 times. Printed are
Markdown rows: p50, p99 and the longest of its times, from before connecting to the end of the answer. The p99 is to be
under 50 ms. All attacks run twice; of the second time, what the worker then holds is compared with what it held before:
what it needs at most it has had by then. In the end one text must have the vector that it had in the beginning.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from forward import WORDS, cpu_name
from services import EMBED, Service, embed_version, get, post

LEAST = 200  # times that /health is asked
PAUSE_S = 0.005
WARM_UP_S = 1.0  # of each attack, the first time
IDLE_DESCRIPTORS = 60  # of a worker, at most: some 30, and connections that haven't ended yet
SETTLE_S = 40.0  # for connections to end and memory to go back
BODY_BYTES = 12_000_000
LARGE_TEXTS = 700  # 3 MB at 384 dimensions
HEAD = "POST /create_embedding HTTP/1.1\r\nHost: 127.0.0.1\r\n"
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: on, 0 s

Attack = Callable[[int], contextlib.AbstractContextManager[object]]


def connect(port: int, receive_bytes: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_bytes is not None:  # before connecting, or the window is larger
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    return sock


def answer(sock: socket.socket) -> bytes:
    """Return the beginning of what comes, once something does; nothing where the connection was ended."""
    with contextlib.suppress(ConnectionError):
        return sock.recv(1 << 16)
    return b""


@contextlib.contextmanager
def repeating(count: int, action: Callable[[], object]) -> Iterator[None]:
    """Repeat `action` on so many threads."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            action()

    threads = [threading.Thread(target=repeat) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def sending(count: int, request: bytes) -> Attack:
    """Return an attack: so many clients send `request` again and again, each on a new connection."""

    def attack(port: int) -> contextlib.AbstractContextManager[object]:
        def send() -> None:
            with connect(port) as sock:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(request)
                answer(sock)

        return repeating(count, send)

    return attack


@contextlib.contextmanager
def connected(port: int, count: int, first: bytes, receive_bytes: int | None = None) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(port, receive_bytes)) for _ in range(count)]
        for sock in socks:
            sock.sendall(first)
        yield socks
        for sock in socks:  # so that what they still wait for isn't computed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def holding(count: int, request: bytes) -> Attack:
    """Return an attack: so many clients send `request` and do nothing more."""
    return lambda port: connected(port, count, request)


@contextlib.contextmanager
def never_reading(port: int) -> Iterator[None]:
    with connected(port, 20, post(["a"] * LARGE_TEXTS).encode(), 4096) as socks:
        for sock in socks:
            sock.recv(1, socket.MSG_PEEK)  # the answer has begun
        yield


def dripping(first: str) -> Attack:
    """Return an attack: twenty clients send `first`, and then a byte a second."""

    @contextlib.contextmanager
    def attack(port: int) -> Iterator[None]:
        def drip() -> None:
            time.sleep(1)
            for sock in socks:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(b"x")

        with connected(port, 20, first.encode()) as socks, repeating(1, drip):
            yield

    return attack


@contextlib.contextmanager
def asking_again(port: int) -> Iterator[None]:
    """Have forty clients keep their connections, and ask for the health again as soon as all have it."""

    def ask() -> None:
        for sock in socks:
            sock.sendall(get("/health").encode())
        for sock in socks:
            answer(sock)

    with connected(port, 40, b"") as socks, repeating(1, ask):
        yield


def bomb(pattern: bytes) -> bytes:
    body = b'{"text": [' + pattern * (BODY_BYTES // len(pattern)) + b"]}"
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body


def attacks() -> dict[str, Attack]:
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, 8)) for _ in range(500)]
    chunks = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 2_500_000
    return {
        "none": lambda port: contextlib.nullcontext(),
        "20 clients dripping a header byte a second": dripping("GET /health HTTP/1.1\r\nX: "),
        "20 dripping a body": dripping(f"{HEAD}Content-Length: 100000\r\n\r\n"),
        "500 idle connections": holding(500, b""),
        f"20 that never read an answer of {LARGE_TEXTS} vectors": never_reading,
        "40 keep-alive clients that ask again": asking_again,
        "4 x 15 MB in 1-byte chunks": sending(4, chunks),
        "4 x 12 MB JSON of 3 M strings": sending(4, bomb(b'"a",')),
        "4 x 12 MB JSON of 4 M lists": sending(4, bomb(b"[],")),
        "4 x 12 MB JSON of 2 M nested objects": sending(4, bomb(b'{"a":')),
        "20 embeddings of 500 texts queued": holding(20, post(texts).encode()),
        "4 texts of 1 MB": sending(4, post([" ".join(WORDS * (1_000_000 // len(" ".join(WORDS))))]).encode()),
    }


@contextlib.contextmanager
def under(attack: Attack, port: int) -> Iterator[None]:
    """Attack from another process, whose threads don't hold up the one that measures."""

    def run() -> None:
        with attack(port):
            theirs.send("begun")
            theirs.recv()

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    ours.recv()
    yield
    ours.send("enough")
    process.join()
    if process.exitcode:
        raise SystemExit("the attack failed")


def health_ms(port: int, seconds: float, least: int) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < least:
        began = time.perf_counter()
        with connect(port) as sock:
            sock.sendall(get("/health").encode())
            if not answer(sock).startswith(b"HTTP/1.1 200"):
                raise SystemExit("/health was not answered with 200")
        taken.append((time.perf_counter() - began) * 1e3)
        time.sleep(PAUSE_S)
    return taken


def held(pid: int) -> tuple[float, int]:
    """Return a process's resident megabytes and its descriptors."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return kilobytes * 1024 / 1e6, len(os.listdir(f"/proc/{pid}/fd"))


def settled(service: Service, pid: int) -> tuple[float, int]:
    """Return what the worker holds once its connections have ended."""
    service.vectors(["after"])
    end = time.perf_counter() + SETTLE_S
    while time.perf_counter() < end and held(pid)[1] > IDLE_DESCRIPTORS:
        time.sleep(0.2)
    time.sleep(2)  # in which free memory goes back
    return held(pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack")
    parser.add_argument("--service", metavar="COMMAND", default=EMBED, help="attack this instead of embed serve")
    options = parser.parse_args()
    print(f"{cpu_name()}; {platform.platform()}, Python {platform.python_version()}; {datetime.date.today()}")
    print(f"{embed_version()}; {Path(options.model).resolve().name}, {options.seconds:g} s an attack", flush=True)
    planned = attacks()
    with Service.start("embed serve", options.service, options.model) as service:
        first, processes = service.vectors(WORDS), service.processes()
        worker = max(processes, key=lambda pid: held(pid)[0])  # it has the model
        for attack in planned.values():
            with under(attack, service.port):
                health_ms(service.port, WARM_UP_S, 1)
        before = settled(service, worker)
        print("\n| attack | p50 ms | p99 ms | longest ms | asked |\n| --- | --- | --- | --- | --- |")
        for name, attack in planned.items():
            with under(attack, service.port):
                taken = health_ms(service.port, options.seconds, LEAST)
            p50, p99 = np.percentile(taken, [50, 99])
            print(f"| {name} | {p50:.1f} | {p99:.1f} | {max(taken):.1f} | {len(taken)} |", flush=True)
        after = settled(service, worker)
        same = service.vectors(WORDS) == first and service.processes() == processes
    print(
        f"\nresident {before[0]:.0f} MB before, {after[0]:.0f} MB after; descriptors {before[1]}, {after[1]}; ", end=""
    )
    print("same processes, same vectors" if same else "PROCESSES OR VECTORS CHANGED")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
