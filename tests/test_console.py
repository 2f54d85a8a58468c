"""Stdout and stderr that are closed, full or read by nobody."""

import contextlib
import io
import os

import pytest

from embed import console
from embed.errors import EmbedError


@contextlib.contextmanager
def stdout_on(descriptor):
    """Have sys.stdout write to `descriptor`, and close it as Python does at exit."""
    file = os.fdopen(descriptor, "w")
    with contextlib.redirect_stdout(file):
        yield
        console.drop_output()
    file.close()  # fails if drop_output left anything to fail


def test_put_has_written_when_it_returns():
    reader, writer = os.pipe()
    with stdout_on(writer):
        console.put("é\n".encode())
        assert os.read(reader, 9) == b"\xc3\xa9\n"
    os.close(reader)


def test_a_full_disk_is_a_sentence_and_fails_no_second_time():
    said = "standard output can't be written: No space left on device"
    with stdout_on(os.open("/dev/full", os.O_WRONLY)), pytest.raises(EmbedError, match=said):
        console.put(b"x")


def test_a_reader_that_left_stays_itself():
    reader, writer = os.pipe()
    os.close(reader)
    with stdout_on(writer), pytest.raises(BrokenPipeError):
        console.put(b"x")


def test_a_closed_stdout_is_told_before_the_work():
    with contextlib.redirect_stdout(None), pytest.raises(EmbedError, match="standard output is closed"):
        console.check_stdout()


def test_a_message_is_one_line():
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        console.say("hello")
    assert stderr.getvalue() == "embed: hello\n"


def test_a_message_that_nobody_takes_is_no_error():
    with contextlib.redirect_stderr(None):
        console.say("hello")
    file = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)  # nothing stays in a buffer
    with contextlib.redirect_stderr(file):
        console.say("hello")
    file.close()
