"""A child that speaks the executor's protocol in plain Python, so that it starts at once, and misbehaves on request.

    python stub_child.py [WORD...]     a WORD @FILE stands for the words that FILE holds then

A token is a character: the ids of a text are its code points, see `ids_of`, and `vector_of` says what it gives for one.
How it starts is for the words to say, and what happens to a request for its texts: see `Start` and `Trick`. Imports
nothing of `embed`, nor NumPy.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path

DIMENSION = 4
PARENT = os.getppid()
# What others may print where messages are expected; the last ends without a newline, so that a message follows at once.
STRAYS = [
    b"Loading weights...\n",
    b"\xff\x00\n",
    b"\n",
    b'{"level":"info","message":"a line of JSON that is somebody else\'s"}\n',
    b'{"type":"banner"}\n',
    b"[1, 2]\n",
    b'{"type":\n',
    b"x" * (1 << 20) + b"\n",
    b'{"type":"banner"} 100%|####|\r' + b"y" * (1 << 20),
]


def command(*words: str) -> list[str]:
    """Return the command that runs it; without site-packages, which take a third of its 30 ms."""
    return [sys.executable, "-I", "-S", __file__, *words]


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


def vector_of(text: str, dimension: int = DIMENSION, *, normalize: bool = True) -> list[float]:
    """Return its length and its first characters' code points."""
    points = [len(text), *map(ord, text[: dimension - 1])]
    return [float(point * (1 if normalize else 2)) for point in points + [0] * (dimension - len(points))]


class Stub:
    """`options` are the words, split at their first "="."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.dimension = int(options.get("dimension", DIMENSION))

    def run(self) -> None:
        self.note(f"start {os.getpid()}")
        for word, value in self.options.items():
            if hasattr(Start, word):
                getattr(Start, word)(self, value)
        ready = {"protocol": int(self.options.get("protocol", 1)), "model": "stub", "dimension": self.dimension}
        self.send("ready", **ready, device="cpu stub", load_ms=0)
        for line in sys.stdin.buffer:
            request = json.loads(line)
            self.answer(request)

    def answer(self, request: dict) -> None:
        ids = struct.iter_unpack("<i", base64.b64decode(request["tokens"]))
        points = [chr(number) for (number,) in ids]
        ends = [sum(request["lengths"][: i + 1]) for i in range(len(request["lengths"]))]
        starts = [0, *ends]
        texts = ["".join(points[first:last]) for first, last in zip(starts, ends, strict=False)]
        self.note(f"embed {len(texts)}")
        for index, text in enumerate(texts):
            trick = getattr(Trick, (text.split() or [""])[0], None)
            if trick is not None and trick(self, request["id"], index, text):
                return
        self.send_result(request["id"], [vector_of(text, normalize=request["normalize"]) for text in texts])

    def send(self, type_: str, **fields: object) -> None:
        write(1, json.dumps({"type": type_, **fields}, separators=(",", ":")).encode() + b"\n")

    def send_result(self, number: int, vectors: list[list[float]]) -> None:
        data = b"".join(struct.pack(f"<{len(vector)}f", *vector) for vector in vectors)
        self.send("result", id=number, vectors=base64.b64encode(data).decode(), rows=len(vectors))

    def note(self, line: str) -> None:
        """Tell the test, in the file that the word log=FILE names."""
        if "log" in self.options:
            with open(self.options["log"], "a") as file:
                file.write(f"{line}\n")

    def is_spared(self) -> bool:
        """Tell whether it has died before; then the word once=FILE keeps it alive."""
        if "once" not in self.options:
            return False
        try:
            os.close(os.open(self.options["once"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return True
        return False


class Start:
    """What the words do before it is ready."""

    @staticmethod
    def exits(stub: Stub, code: str) -> None:
        say("there is no luck here")
        sys.exit(int(code))

    @staticmethod
    def dies(stub: Stub, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def fails(stub: Stub, kind: str) -> None:
        stub.send("error", id=None, kind=kind, message=f"the {kind} is not in order")
        sys.exit(3)

    @staticmethod
    def sleeps(stub: Stub, seconds: str) -> None:
        time.sleep(float(seconds))

    @staticmethod
    def chatters(stub: Stub, _: str) -> None:
        while is_wanted():
            say("still loading")
            time.sleep(0.01)

    @staticmethod
    def hides(stub: Stub, _: str) -> None:
        hide()

    @staticmethod
    def prints(stub: Stub, _: str) -> None:
        print_strays()

    @staticmethod
    def floods(stub: Stub, _: str) -> None:
        flood()

    @staticmethod
    def stays(stub: Stub, _: str) -> None:
        """Ignore SIGTERM from now on."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Trick:
    """What a text does whose first word is the name; true if there is nothing more to answer."""

    @staticmethod
    def abort(stub: Stub, number: int, index: int, text: str) -> bool:
        if stub.is_spared():
            return False
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        say("terminate called after throwing an instance of 'std::bad_alloc'")
        os.abort()

    @staticmethod
    def die(stub: Stub, number: int, index: int, text: str) -> bool:
        if not stub.is_spared():
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    @staticmethod
    def stop(stub: Stub, number: int, index: int, text: str) -> bool:
        """Be stopped: even SIGTERM waits then."""
        if not stub.is_spared():
            os.kill(os.getpid(), signal.SIGSTOP)
        return False

    @staticmethod
    def hang(stub: Stub, number: int, index: int, text: str) -> bool:
        if not stub.is_spared():
            rest()
        return False

    @staticmethod
    def close(stub: Stub, number: int, index: int, text: str) -> bool:
        if not stub.is_spared():
            hide()
        return False

    @staticmethod
    def hold(stub: Stub, number: int, index: int, text: str) -> bool:
        """Report progress until the file exists that the word gate=FILE names; without one for ever."""
        gate = Path(stub.options.get("gate", "/nowhere/at/all"))
        while not gate.exists() and is_wanted():
            stub.send("progress", id=number, done=1, of=2)
            time.sleep(0.01)
        return False

    @staticmethod
    def late(stub: Stub, number: int, index: int, text: str) -> bool:
        """Say first what would be the answer to the request before, and about one to come."""
        stub.send_result(number - 1, [[0.0] * stub.dimension])
        stub.send("error", id=number + 1, kind="text", message="this is about another", index=0)
        stub.send("progress", id=number - 1, done=1, of=2)
        return False

    @staticmethod
    def fail(stub: Stub, number: int, index: int, text: str) -> bool:
        kind = text.split()[1]
        stub.send("error", id=number, kind=kind, message=f"text {index} is no good for the {kind}", index=index)
        return True

    @staticmethod
    def short(stub: Stub, number: int, index: int, text: str) -> bool:
        stub.send_result(number, [])
        return True

    @staticmethod
    def narrow(stub: Stub, number: int, index: int, text: str) -> bool:
        stub.send_result(number, [[1.0] * (stub.dimension - 1)])
        return True

    @staticmethod
    def torn(stub: Stub, number: int, index: int, text: str) -> bool:
        """Answer with what can't be read."""
        stub.send("result", id=number, vectors="AAA", rows=1)
        return True

    @staticmethod
    def print(stub: Stub, number: int, index: int, text: str) -> bool:
        print_strays()
        return False

    @staticmethod
    def babble(stub: Stub, number: int, index: int, text: str) -> bool:
        """Print for ever, but nothing that is a message."""
        while is_wanted():
            write(1, b"and another line\n")
            time.sleep(0.001)
        return True

    @staticmethod
    def flood(stub: Stub, number: int, index: int, text: str) -> bool:
        flood()
        return False


def print_strays() -> None:
    write(1, b"".join(STRAYS))


def flood() -> None:
    """Write more than a pipe holds, 1 MB, to stderr."""
    write(2, b"a warning that says little\n" * 40_000)


def hide() -> None:
    """Close stdout, and live on."""
    os.close(1)
    rest()


def rest() -> None:
    while is_wanted():
        time.sleep(0.02)


def is_wanted() -> bool:
    """End where the parent has: what a test has left behind must not stay."""
    if os.getppid() != PARENT:
        os._exit(0)
    return True


def say(line: str) -> None:
    write(2, f"{line}\n".encode())


def write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def words_of(arguments: list[str]) -> dict[str, str]:
    words = []
    for argument in arguments:
        words += Path(argument[1:]).read_text().split() if argument.startswith("@") else [argument]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


if __name__ == "__main__":
    Stub(words_of(sys.argv[1:])).run()
