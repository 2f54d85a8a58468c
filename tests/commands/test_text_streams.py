"""`embed text` on a model of plain Python: formats, warnings, standard input, and output that goes wrong."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import SECONDS, STUB, environment, texts_of
from command_line import run_stub as run
from command_line import start_stub as start


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


# --- numbers and formats


def test_json_is_one_array_of_arrays(model):
    out = run("text", model, "a", "b", "--format", "json")[1]
    assert [row[0] for row in json.loads(out)] == [97, 98]
    assert json.loads(run("text", model, "-", "--format", "json", stdin="")[1]) == []


def test_after_an_error_json_parses_and_npy_is_empty(model):
    """What was written before it is an array of good rows; the exit code tells."""
    for bad in ("not finite", "untokenisable", "a fault"):
        lines = "a\n" * 600 + f"{bad}\n"
        code, out, err = run("text", model, "-", "--format", "json", stdin=lines)
        assert (code, err.count("\n")) == (1, 1)
        assert [row[0] for row in json.loads(out)] == [97] * 512
        assert run("text", model, "-", "--format", "npy", stdin=lines)[:2] == (1, "")
        assert run("text", model, bad, "--format", "json")[:2] == (1, "")


def test_npy_is_one_f32_array(model):
    for stdin, shape in (("a\n" * 1500, (1500, 8)), ("", (0, 8))):
        done = subprocess.run(
            [sys.executable, STUB, "text", model, "-", "--format", "npy"],
            input=stdin.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        array = np.load(io.BytesIO(done.stdout))
        assert (array.shape, array.dtype) == (shape, np.float32)


def test_no_normalize_and_prompts_reach_the_model(model):
    assert run("text", model, "a", "--no-normalize")[1].split(",")[0] == "194.0"
    assert texts_of(run("text", model, "a", "--prompt", "to: ")[1]) == ["to: a"]
    assert texts_of(run("text", model, "a", "--prompt-name", "query")[1]) == ["query: a"]


def test_numbers_do_not_follow_the_locale(model):
    assert run("text", model, "a", LC_ALL="de_DE.UTF-8")[1] == "97.0" + ",0.0" * 7 + "\n"


# --- warnings


def test_truncation_is_told_once_with_the_count(model):
    code, out, err = run("text", model, "a b c d", "a b c", "e " * 1201)
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == "embed: warning: 2 of 3 texts were cut to 5 tokens (--maxseq); the longest had 1,203\n"
    err = run("text", model, "-", stdin="a b c d\n" * 3000)[2]
    assert err == "embed: warning: 3,000 of 3,000 texts were cut to 5 tokens (--maxseq); the longest had 6\n"


def test_vectors_that_precede_an_error_have_their_truncation_told(model):
    code, _, err = run("text", model, "-", stdin="a b c d\n" * 600 + "not finite\n")
    assert code == 1
    assert "embed: warning: 512 of 512 texts were cut" in err


def test_a_guess_is_one_line(model):
    err = run("text", model, "a", STUB_GUESS="1")[2]
    assert err == "embed: warning: model: no file says how to pool; taking cls\n"


@pytest.mark.parametrize("action", ["ignore", "error", "once"])
def test_a_guess_is_one_line_whatever_the_warning_filters_say(action, model):
    code, out, err = run("text", model, "a", STUB_GUESS="1", PYTHONWARNINGS=action)
    assert (code, texts_of(out)) == (0, ["a"])
    assert err == "embed: warning: model: no file says how to pool; taking cls\n"


# --- standard input


def test_lines_lose_their_line_end_and_nothing_else(model):
    out = run("text", model, "-", stdin="a \r\n\n\tb\n\ufeffc\x0bd\x85\u2028\n\r\r\nlast\r")[1]
    assert texts_of(out) == ["a ", "", "\tb", "\ufeffc\x0bd\x85\u2028", "\r", "last\r"]


def test_a_slow_writer_gets_its_vectors_before_the_end(model):
    with start("text", model, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for text in ("one", "two"):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert select.select([process.stdout], [], [], SECONDS)[0]
            assert texts_of(os.read(process.stdout.fileno(), 4096).decode()) == [text]
        process.stdin.close()
        assert process.wait(SECONDS) == 0


def test_a_line_that_is_not_utf8_is_named_after_the_vectors_before_it(model):
    code, out, err = run("text", model, "-", stdin=b"one\ntwo\ncaf\xe9\nfour\n")
    assert (code, texts_of(out)) == (1, ["one", "two"])
    assert err.startswith("embed: error: line 3 is not UTF-8 (byte 0xe9 after 3 others)")
    assert err.count("\n") == 1


@pytest.mark.parametrize("bad", ["not finite", "untokenisable"])
def test_a_text_that_fails_is_named_by_its_place_in_the_whole(bad, model):
    assert "embed: error: line 1301" in run("text", model, "-", stdin="fine\n" * 1300 + f"{bad}\n")[2]
    assert "embed: error: text 71" in run("text", model, *["fine"] * 70, bad)[2]


def test_an_endless_line_is_refused(model):
    code, _, err = run("text", model, "-", stdin=b"a\n" + bytes(17 << 20))
    assert code == 1
    assert "line 2 is longer than 16 MiB" in err


def test_memory_does_not_grow_with_the_number_of_lines(model):
    def peak(lines):
        err = run("text", model, "-", stdin="some words here\n" * lines, STUB_MEMORY="1")[2]
        return int(re.search(r"peak (\d+) KiB", err)[1])

    assert peak(60_000) < peak(3_000) + 4_000  # 60,000 vectors and their text would be 8 MB and more


def test_closed_descriptors_are_errors_not_traces(model):
    closed = f'"$0" "$1" text {model} - <&-', f'"$0" "$1" text {model} a >&-'
    for script, said in zip(closed, ("standard input is closed", "standard output is closed"), strict=True):
        done = subprocess.run(
            ["sh", "-c", script, sys.executable, STUB], capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode in (1, 2)
        assert done.stderr.startswith("embed: error: ")
        assert said in done.stderr


# --- output that goes wrong, signals


@pytest.mark.parametrize("form", ["csv", "json", "npy"])
def test_a_reader_that_leaves_ends_it_quietly(form, model):
    arguments = ["text", model, "-", "--format", form]
    with start(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        try:
            process.stdin.write(b"text\n" * 20_000)
            process.stdin.close()
        except BrokenPipeError:  # the command is gone already
            process.stdin = None
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == b""


def test_head_gets_its_line(model):
    script = f'yes text | "$0" "$1" text {model} - | head -n 1'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, STUB], capture_output=True, text=True, timeout=SECONDS, env=environment()
    )
    assert (texts_of(done.stdout), done.stderr) == (["text"], "")


@pytest.mark.parametrize(
    "arguments",
    [["text", "MODEL", "a"], ["text", "MODEL", "a", "--format=npy"], ["--version"], ["text", "--help"], ["info"]],
)
def test_a_full_disk_is_an_error(arguments, model):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, STUB, *[model if argument == "MODEL" else argument for argument in arguments]],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            env=environment(),
        )
    assert done.returncode == 1
    assert re.fullmatch(r"embed: error: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("texts", [["first", "sleep"], ["-"]])  # while computing, while waiting for input
def test_ctrl_c_ends_within_a_second_without_a_trace(texts, model):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("text", model, *texts, **pipes) as process:
        time.sleep(1.0)  # past the start of Python
        process.send_signal(signal.SIGINT)
        assert process.wait(1.0) == 130
        assert process.stderr.read() == b""


# --- terminals


def on_a_terminal(*arguments, stdin, descriptor, **others):
    """Run with `descriptor` (1 or 2) on a terminal; return exit code and what the terminal showed."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **others}
    streams["stdout" if descriptor == 1 else "stderr"] = theirs
    with start(*arguments, stdin=subprocess.PIPE, **streams) as process:
        os.close(theirs)
        process.stdin.write(stdin)
        process.stdin.close()
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        return process.wait(SECONDS), shown.decode()


def test_long_work_shows_a_line_that_is_wiped_at_the_end(model):
    code, shown = on_a_terminal("text", model, "-", stdin=b"nap\n" * 4, descriptor=2)
    assert code == 0
    assert re.search(r"\rembed: 4 texts, \d+/s, 0:0\d\x1b\[K", shown)
    assert shown.endswith("\r\x1b[K")


def test_short_work_shows_nothing(model):
    assert on_a_terminal("text", model, "-", stdin=b"a\nb\n", descriptor=2) == (0, "")


def test_a_file_as_input_shows_how_far_it_is(model, tmp_path):
    (tmp_path / "texts").write_bytes(b"nap\n" * 4 + b"a" * 17_000 + b"\nend\n")
    ours, theirs = pty.openpty()
    with (tmp_path / "texts").open() as stdin:
        process = start("text", model, "-", stdin=stdin, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    assert process.wait(SECONDS) == 0
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert re.search(r"\[#{20,}\.*\] +\d+ %  \d texts, \d+/s, 0:00 left", shown)


def test_npy_is_not_for_a_terminal(model):
    code, shown = on_a_terminal("text", model, "a", "--format", "npy", stdin=b"", descriptor=1)
    assert (code, shown) == (2, "")
