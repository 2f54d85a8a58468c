"""The progress line: when it is drawn, and what it says."""

import io
import os
import pty

import pytest

from embed.progress import Progress, describe


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        raise OSError("a stand-in has no descriptor")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_nothing_is_drawn_in_the_first_second():
    stream, clock = Terminal(), Clock()
    with Progress("texts", stream=stream, clock=clock) as progress:
        progress.update(1)
        clock.now += 0.9
        progress.update(2)
    assert stream.getvalue() == ""


def test_the_line_is_drawn_at_most_ten_times_a_second_and_wiped():
    stream, clock = Terminal(), Clock()
    with Progress("texts", stream=stream, clock=clock) as progress:
        for step in range(400):
            clock.now += 0.01
            progress.update(step)
    assert 25 <= stream.getvalue().count("embed:") <= 31
    assert stream.getvalue().endswith("\r\x1b[K")


def test_nothing_goes_to_what_is_not_a_terminal():
    stream, clock = io.StringIO(), Clock()
    with Progress("texts", stream=stream, clock=clock) as progress:
        clock.now += 10
        progress.update(5)
    assert stream.getvalue() == ""


def test_clear_makes_room_once():
    stream, clock = Terminal(), Clock()
    progress = Progress("texts", stream=stream, clock=clock)
    progress.clear()
    assert stream.getvalue() == ""
    clock.now += 2
    progress.update(5)
    progress.clear()
    progress.clear()
    assert stream.getvalue().count("\x1b[K") == 2  # of the drawing, of the wiping


def test_a_line_is_cut_to_the_terminal():
    ours, theirs = pty.openpty()
    os.environ.pop("COLUMNS", None)
    with open(theirs, "w") as stream:
        clock = Clock()
        progress = Progress("texts" * 60, stream=stream, clock=clock)
        clock.now += 2
        progress.update(5)
        drawn = os.read(ours, 4096).decode()
    os.close(ours)
    assert len(drawn.removeprefix("\r").removesuffix("\x1b[K")) == 79


@pytest.mark.parametrize(
    ("fraction", "line"),
    [
        (None, "embed: 1,200 texts, 120/s, 0:10"),
        (0.25, "embed: [######..................]  25 %  1,200 texts, 120/s, 0:30 left"),
        (0.0, "embed: [........................]   0 %  1,200 texts, 120/s"),
        (1.7, "embed: [########################] 100 %  1,200 texts, 120/s, 0:00 left"),
    ],
)
def test_the_line(fraction, line):
    assert describe(1200, "texts", 10.0, fraction) == line


def test_hours():
    assert describe(1, "texts", 10.0, 0.001).endswith("2:46:30 left")
