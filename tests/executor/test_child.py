"""The real child: the transcript in its documentation, right vectors, and an output that nobody else writes to."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from command_line import environment

import embed

SECONDS = 30
DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "executor.md"
NOISE = """
import os, sys
from embed.engine import DirectEngine
load = DirectEngine.load
def noisy(self, *arguments):
    print("a banner")
    os.write(1, b"from native code, without an end of line")
    load(self, *arguments)
DirectEngine.load = noisy
from embed.cli import command
command()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("model") / "MODEL")


class Child:
    """`embed executor`, asked line by line."""

    def __init__(self, *arguments, program=("-m", "embed"), cwd=None, **variables):
        self.process = subprocess.Popen(
            [sys.executable, *program, "executor", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**variables),
            cwd=cwd,
        )

    def __enter__(self):
        return self

    def __exit__(self, *ex):
        self.process.kill()
        self.process.communicate(timeout=SECONDS)

    def tell(self, line):
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def end(self):
        """Close its input; return its exit code, what it still wrote, and its stderr."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err.decode()


def vectors_of(answer):
    assert answer["type"] == "result", answer
    return np.frombuffer(base64.b64decode(answer["vectors"]), "<f4").reshape(answer["rows"], -1)


def masked(message):
    """Return a message without what differs from machine to machine."""
    return {**message, **{key: "…" for key in ("vectors", "device", "load_ms") if key in message}}


def test_the_transcript_in_the_documentation_is_what_happens(model):
    (transcript,) = re.findall(r"^```\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    with Child("MODEL", cwd=model.parent) as child:
        for line in transcript.splitlines():
            message = json.loads(line[2:])
            if line.startswith(">"):
                child.tell(message)
            else:
                assert masked(child.hear()) == masked(message)
        assert child.end() == (0, b"", "")


def test_texts_and_tokens_give_the_bits_that_the_library_gives(model):
    texts = ["hello world", "", "the quick fox " * 50, "漢字"]
    with embed.load(model) as embedder:
        tokenized = embedder.tokenize(texts)
        expected = embedder.encode_tokens(tokenized)
    ids = b"".join(text.ids.astype("<i4").tobytes() for text in tokenized)
    tokens = {"tokens": base64.b64encode(ids).decode(), "lengths": [len(text.ids) for text in tokenized]}
    with Child(model) as child:
        child.hear()
        for given in ({"texts": texts}, tokens):
            vectors = vectors_of(child.ask({"type": "embed", "id": 1, **given}))
            assert vectors.tobytes() == expected.tobytes()


def test_a_bad_request_is_an_error_and_the_next_is_answered(model):
    none = base64.b64encode(np.array([0, 10**6, 2], "<i4")).decode()
    with Child(model) as child:
        child.hear()
        assert child.ask(b"{")["kind"] == "request"
        bad = child.ask({"type": "embed", "id": 5, "tokens": none, "lengths": [3]})
        assert (bad["id"], bad["kind"], bad["index"]) == (5, "text", 0)
        assert "text 0 was not tokenised by this model" in bad["message"]
        assert child.ask({"type": "embed", "id": 6, "texts": []})["rows"] == 0
        assert child.ask({"type": "embed", "id": 7, "texts": ["a"]})["id"] == 7


def test_a_text_whose_vector_is_not_finite_is_told_by_its_index(tmp_path):
    model = tiny.make("xlmr", tmp_path / "model")
    with embed.load(model) as embedder:
        world = embedder.tokenize(["world"])[0].ids[1]
    tensors = tiny.random_tensors(json.loads((model / "config.json").read_text()))
    tensors["embeddings.word_embeddings.weight"][world] = np.nan
    tiny.write_weights(model, tensors)
    with Child(model) as child:
        child.hear()
        error = child.ask({"type": "embed", "id": 1, "texts": ["hello", "fox", "world", "dog"]})
        assert (error["kind"], error["index"]) == ("vector", 2)
        assert "not finite" in error["message"]
        assert vectors_of(child.ask({"type": "embed", "id": 2, "texts": ["hello"]})).shape == (1, tiny.WIDTH)


def test_requests_may_be_written_ahead(model):
    with Child(model) as child:
        for number in range(20):
            child.tell({"type": "embed", "id": number, "texts": ["a"]})
        child.hear()
        assert [child.hear()["id"] for _ in range(20)] == list(range(20))


def test_what_others_print_is_not_among_the_messages(model):
    with Child(model, program=("-c", NOISE)) as child:
        assert child.hear()["type"] == "ready"
        assert child.ask({"type": "embed", "id": 1, "texts": ["a"]})["id"] == 1
        code, out, err = child.end()
        assert (code, out) == (0, b"")
        assert "a banner" in err
        assert "from native code" in err


def test_progress_is_told_as_often_as_the_watchdog_needs_it(model):
    with Child(model, EMBED_EXECUTOR_WATCHDOG_MS="100") as child:
        child.hear()
        child.tell({"type": "embed", "id": 1, "texts": ["hello world " * 20] * 20_000})
        messages = [child.hear()]
        while messages[-1]["type"] == "progress":
            messages.append(child.hear())
        reports = messages[:-1]
        assert reports
        assert all(report["id"] == 1 and 0 <= report["done"] < report["of"] for report in reports)
        assert [report["done"] for report in reports] == sorted(report["done"] for report in reports)


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["nowhere"], "model", 3),
        (["--maxseq", "1", "MODEL"], "option", 2),
        (["--device", "cuda", "MODEL"], "device", 2),
        ([], "option", 2),
        (["MODEL", "MODEL"], "option", 2),
    ],
)
def test_what_keeps_it_from_starting_is_a_message_a_sentence_and_an_exit_code(model, arguments, kind, code):
    with Child(*arguments, cwd=model.parent) as child:
        error = child.hear()
        assert (error["type"], error["id"], error["kind"]) == ("error", None, kind)
        assert child.end() == (code, b"", f"embed: error: {error['message']}\n")


def test_it_ends_where_the_parent_it_was_told_is_another(model):
    with Child("--parent", "1", model) as child:
        assert child.end() == (0, b"", "")


def test_supervised_it_leaves_ctrl_c_to_its_parent(model):
    with Child("--parent", os.getpid(), model) as child:
        child.hear()
        child.process.send_signal(signal.SIGINT)
        assert child.ask({"type": "embed", "id": 1, "texts": ["a"]})["id"] == 1
    with Child(model) as child:
        child.hear()
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(SECONDS) == 130


def test_it_ends_when_nobody_reads_its_answers(model):
    with Child(model) as child:
        child.hear()
        child.process.stdout.close()
        child.tell({"type": "embed", "id": 1, "texts": ["a"]})
        assert child.process.wait(SECONDS) == 141
