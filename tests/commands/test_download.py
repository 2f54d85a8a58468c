"""`embed download`: the folder on stdout, and nothing fetched for nothing. test_demo.py and test_download.py fetch."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from command_line import environment, run
from hub_cache import files
from hub_stand_in import EMBED_IN_SMALL_PIECES, HubStandIn

from embed import demo
from embed.cli import main


@pytest.fixture
def fetched(monkeypatch):
    """Return the list of fetches, none of which happens; the folder's name isn't UTF-8."""
    calls = []
    monkeypatch.setattr(demo, "fetch", lambda: calls.append("demo") or Path(os.fsdecode(b"/cache/caf\xe9")))
    return calls


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def remote(model):
    with HubStandIn() as stand_in:
        stand_in.add("org/name", files(model))
        yield stand_in


@pytest.fixture
def settings(remote, tmp_path):
    """Return the variables of a user with an empty cache."""
    return {"HF_ENDPOINT": remote.url, "MODEL_CACHE_DIR": str(tmp_path / "home"), "HF_HUB_OFFLINE": "", "HF_TOKEN": ""}


def test_the_folder_is_printed_in_its_own_bytes(fetched, capfdbinary):
    assert main(["download", "demo"]) == 0
    assert capfdbinary.readouterr() == (b"/cache/caf\xe9\n", b"")
    assert fetched == ["demo"]


@pytest.mark.parametrize("operands", [[], ["demo", "demo"], ["org/name", "org/other"]])
def test_one_model_at_a_time(operands, fetched, capfd):
    assert main(["download", *operands]) == 2
    assert "embed download takes one model: a name on the hub such as BAAI/bge-m3, or demo" in capfd.readouterr().err
    assert fetched == []


@pytest.mark.parametrize("operand", ["e5", "./demo", "/a/folder", ""])
def test_what_is_no_name_on_the_hub_is_refused(operand, fetched, capfd):
    assert main(["download", operand]) == 2
    assert f"{operand!r} can't be downloaded; say ORG/NAME, as in BAAI/bge-m3, or demo" in capfd.readouterr().err


def test_nothing_is_fetched_where_its_folder_cannot_be_told(fetched, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["download", "demo"]) == 1
    assert fetched == []


def test_a_hub_model_is_downloaded_and_then_used_without_the_hub(remote, settings, tmp_path):
    commit = remote.repositories["org/name"].refs["main"]
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / commit
    code, out, err = run("download", "org/name", **settings)
    assert (code, out.decode()) == (0, f"{snapshot}\n")
    assert err.splitlines() == [
        f"embed: downloading org/name (0 MB) from {remote.url} ...",
        f"embed: org/name is {snapshot}",
    ]
    before = len(remote.requests)
    code, out, err = run("text", "org/name", "hello", **settings)
    assert (code, out.count(b","), err) == (0, tiny.WIDTH - 1, f"embed: org/name is {snapshot}\n")
    code, out, err = run("info", "org/name", **settings)
    assert (code, err) == (0, f"embed: org/name is {snapshot}\n")
    assert f"folder           {snapshot}" in out.decode()
    assert len(remote.requests) == before


def test_any_command_downloads_what_is_missing(remote, settings, tmp_path):
    code, out, err = run("info", f"org/name@{remote.repositories['org/name'].refs['main']}", **settings)
    assert code == 0, err
    assert b"XLMRobertaModel" in out
    first, *others = err.splitlines()
    assert first.endswith(f"the cache {tmp_path}/home/hub (MODEL_CACHE_DIR) doesn't hold it; asking the hub ...")
    assert len(others) == 2


def test_offline_what_is_cached_is_printed_and_what_is_not_is_refused(remote, settings):
    settings["HF_HUB_OFFLINE"] = "1"
    code, out, err = run("download", "org/name", **settings)
    assert (code, out) == (3, b"")
    assert err.startswith("embed: error: org/name: the cache ")
    assert "HF_HUB_OFFLINE forbids to download it" in err
    assert run("download", "org/name", **{**settings, "HF_HUB_OFFLINE": "0"})[0] == 0
    before = len(remote.requests)
    code, out, _ = run("download", "org/name", **settings)
    assert (code, out.count(b"\n"), len(remote.requests)) == (0, 1, before)


def test_a_model_that_does_not_exist_is_one_line(settings, remote):
    code, out, err = run("download", "org/other", **settings)
    assert (code, out) == (3, b"")
    assert err.startswith(f"embed: error: org/other: {remote.url} has no such model, or keeps it private;")
    assert err.count("\n") == 1


def test_a_branch_that_has_moved_is_followed(remote, settings, model):
    run("download", "org/name", **settings)
    commit = remote.add("org/name", {**files(model), "config_sentence_transformers.json": b"{}"})
    assert run("download", "org/name", **settings)[1].decode().rstrip().endswith(f"/snapshots/{commit}")


def test_off_a_terminal_no_bar_is_drawn(settings, remote):
    err = run("download", "org/name", **settings)[2]
    assert err.count("\n") == 2
    assert "\r" not in err


def test_on_a_terminal_our_bar_is_drawn_and_of_the_library_s_noise_nothing(settings, remote):
    remote.cut["model.safetensors"] = 60_000
    remote.slow["model.safetensors"] = 0.015  # 1.5 s in all, and the bar is drawn from one on
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-c", EMBED_IN_SMALL_PIECES, "download", "org/name"]
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=environment(**settings)) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # that is how a terminal ends
            while piece := os.read(terminal, 1 << 16):
                said += piece
    os.close(terminal)
    assert process.returncode == 0
    lines = [line for line in re.split(r"[\r\n]+|\x1b\[K", said.decode()) if line]
    assert lines[0] == f"embed: downloading org/name (0 MB) from {remote.url} ..."
    assert "embed: org/name is /" in lines[-1]
    assert len(lines) > 2
    assert all(re.match(r"embed: \[#+\.*\] +\d+ % ", line) for line in lines[1:-1]), lines
