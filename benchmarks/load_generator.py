"""Closed-loop clients for `serving.py`, in a process of their own, on one thread and light: they share the cores.

Each line of standard input is a load, and is answered with a line when it has run:

    {"port": 8000, "seconds": 3.0, "groups": {"short": {"clients": 16, "requests": ["POST /create_embedding …", …]},
                                              "health": {"clients": 1, "requests": […], "pause_s": 0.05}}}
    {"short": {"rate": 812.4, "seconds": [0.0191, …]}, "health": {"rate": 19.8, "seconds": [0.0006, …]}}

A client keeps one connection, sends a request, waits for the whole answer, pauses for `pause_s`, and sends the next of
its group's requests. Requests are whole, head and body; of an answer only status and end are looked at. What is
answered in the first WARM_UP_S isn't counted. When the time is up, what is on its way is awaited and counted too:
leaving it out would favour a service whose answers come late. Slow ones get the time for LEAST answers. Any status but
200 ends the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

WARM_UP_S = 0.3
LEAST = 3  # answers counted of each group, however long that takes
STUCK_S = 300.0  # beyond the load's time
BUFFER = memoryview(bytearray(1 << 20))  # for what is received: one, since nobody keeps it
HEAD_END, LAST_CHUNK = b"\r\n\r\n", b"\r\n0\r\n\r\n"


class Answer:
    """Tells when an answer is complete: by its Content-Length, or by its last chunk."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._unread: int | None = None  # None where it is chunked
        self._tail = b""

    def complete(self, data: memoryview) -> bool:
        """Take what was received; return whether that was the end."""
        if self._head is not None:
            data = self._read_head(self._head + data)
        if self._head is not None:
            return False
        if self._unread is None:
            self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
            return self._tail == LAST_CHUNK
        self._unread -= len(data)
        return self._unread == 0

    def _read_head(self, received: bytes) -> memoryview:
        """Return what follows the head, which is kept for more where it isn't whole yet."""
        end = received.find(HEAD_END)
        if end < 0:
            self._head = received
            return memoryview(b"")
        head = received[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"a request was refused: {received[:400].decode(errors='replace')}")
        _, named, length = head.partition(b"\r\ncontent-length:")
        self._unread = int(length.split(b"\r\n", 1)[0]) if named else None
        self._head = None
        return memoryview(received)[end + len(HEAD_END) :]


@dataclass
class Group:
    """Clients that send the same requests, in turn, and what they measured."""

    clients: int
    requests: list[bytes]
    pause_s: float
    counts_from: float  # until the first answer after this nothing counts
    first: float | None = None
    last: float = 0.0
    seconds: list[float] = field(default_factory=list)
    sent: int = 0

    def next_request(self) -> memoryview:
        self.sent += 1
        return memoryview(self.requests[self.sent % len(self.requests)])

    def count(self, began: float, ended: float) -> None:
        if self.first is None:
            if ended >= self.counts_from:
                self.first = ended
            return
        self.last = ended
        self.seconds.append(ended - began)

    def result(self) -> dict[str, Any]:
        elapsed = self.last - (self.first or 0.0)
        return {"rate": len(self.seconds) / elapsed if self.seconds else 0.0, "seconds": self.seconds}


class Client:
    """One connection."""

    def __init__(self, group: Group, port: int, selector: selectors.BaseSelector) -> None:
        self.group = group
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.selector = selector
        selector.register(self.socket, selectors.EVENT_READ, self)
        self.rests_until, self.asking = 0.0, False

    def send(self, now: float) -> None:
        self.asking, self.began = True, now
        self.answer, self.unsent = Answer(), self.group.next_request()
        self.push()

    def push(self) -> None:
        """Send what the socket takes; ask to be called again while something is left."""
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
        if self.selector.get_key(self.socket).events != wanted:
            self.selector.modify(self.socket, wanted, self)

    def receive(self) -> bool:
        """Take what has come; return whether an answer is complete."""
        size = self.socket.recv_into(BUFFER)
        if not size and not self.asking:  # uvicorn closes after 5 s; others may still have their last answer to come
            self.selector.unregister(self.socket)
            return False
        if not size or not self.asking:
            raise SystemExit("the service closed a connection in an answer, or sent more than one")
        if not self.answer.complete(BUFFER[:size]):
            return False
        now = time.perf_counter()
        self.group.count(self.began, now)
        self.rests_until, self.asking = now + self.group.pause_s, False
        return True


def run(load: dict[str, Any]) -> dict[str, Any]:
    """Run one load; return what each group measured."""
    start = time.perf_counter()
    groups = {
        name: Group(
            group["clients"],
            [request.encode() for request in group["requests"]],
            group.get("pause_s", 0.0),
            start + WARM_UP_S,
        )
        for name, group in load["groups"].items()
    }
    with selectors.DefaultSelector() as selector:
        clients = [Client(group, load["port"], selector) for group in groups.values() for _ in range(group.clients)]
        drive(clients, list(groups.values()), selector, start + WARM_UP_S + load["seconds"])
        for client in clients:
            client.socket.close()
    return {name: group.result() for name, group in groups.items()}


def drive(clients: list[Client], groups: list[Group], selector: selectors.BaseSelector, end: float) -> None:
    """Keep all clients asking until `end`, or longer where little was counted; then await each one's last answer."""
    resting, asking = list(clients), True
    while asking or len(resting) < len(clients):
        now = time.perf_counter()
        asking = asking and (now < end or any(len(group.seconds) < LEAST for group in groups))
        if asking:
            for client in [client for client in resting if client.rests_until <= now]:
                resting.remove(client)
                client.send(now)
        events = selector.select(min([1.0, *(max(0.0, client.rests_until - now) for client in resting if asking)]))
        if now > end + STUCK_S:
            raise SystemExit(f"{STUCK_S:.0f} s after its time an answer is still missing")
        for key, mask in events:
            client = key.data
            if mask & selectors.EVENT_WRITE:
                client.push()
            if mask & selectors.EVENT_READ and client.receive():
                if asking and client.group.pause_s == 0 and client.rests_until < end:
                    client.send(client.rests_until)
                else:
                    resting.append(client)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
