"""What the master decides by itself, without a process: how long it waits, and what a hang-up means."""

from __future__ import annotations

import time

import pytest

from embed.server import master
from embed.server.master import HANGUP_S, MAX_DELAY_S, Master, Report, Terminal


class Worker:
    def __init__(self) -> None:
        self.started = time.monotonic()


def test_a_worker_that_dies_for_days_is_started_again_each_time(capsys):
    judge = Master.__new__(Master)
    judge._report, judge._quick_deaths = Report(), 0
    judge._report.set_loaded()
    for _ in range(2000):
        judge._judge(Worker(), 1)
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition("another")[2] for line in said[:7]] == [
        "", " in 1 s", " in 3 s", " in 7 s", " in 15 s", " in 30 s", " in 30 s"
    ]  # fmt: skip
    assert judge._not_before <= time.monotonic() + MAX_DELAY_S


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock and terminal the test moves."""

    class Machine:
        now = 100.0
        has_terminal = True

    monkeypatch.setattr(master.time, "monotonic", lambda: Machine.now)
    monkeypatch.setattr(master, "_has_terminal", lambda: Machine.has_terminal)
    return Machine


def test_a_hang_up_right_after_the_terminal_has_gone_comes_from_its_closing(machine):
    terminal = Terminal()
    machine.now += 3600
    terminal.look()
    assert not terminal.was_closed()
    machine.has_terminal = False
    machine.now += 1
    terminal.look()
    assert terminal.was_closed()


def test_a_hang_up_long_after_logging_out_is_a_wish(machine):
    terminal = Terminal()
    machine.has_terminal = False
    machine.now += HANGUP_S + 1
    terminal.look()
    assert not terminal.was_closed()


def test_without_a_terminal_every_hang_up_is_a_wish(machine):
    machine.has_terminal = False
    assert not Terminal().was_closed()
