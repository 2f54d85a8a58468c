"""`embed download demo`: its folder on stdout, and nothing fetched for nothing. test_demo.py has the fetching."""

import os
import sys
from pathlib import Path

import pytest

from embed import demo
from embed.cli import main


@pytest.fixture
def fetched(monkeypatch):
    """Return the list of fetches, none of which happens; the folder's name isn't UTF-8."""
    calls = []
    monkeypatch.setattr(demo, "fetch", lambda: calls.append("demo") or Path(os.fsdecode(b"/cache/caf\xe9")))
    return calls


def test_the_folder_is_printed_in_its_own_bytes(fetched, capfdbinary):
    assert main(["download", "demo"]) == 0
    assert capfdbinary.readouterr() == (b"/cache/caf\xe9\n", b"")
    assert fetched == ["demo"]


@pytest.mark.parametrize("operands", [[], ["e5"], ["demo", "demo"], ["./demo"]])
def test_nothing_else_can_be_downloaded(operands, fetched, capfd):
    assert main(["download", *operands]) == 2
    assert "embed download demo is the only download; other models: hf download" in capfd.readouterr().err
    assert fetched == []


def test_nothing_is_fetched_where_its_folder_cannot_be_told(fetched, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["download", "demo"]) == 1
    assert fetched == []
