"""From a name to a model folder, and the sentence for each way of missing it."""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from command_line import environment
from hub_cache import SHA, VARIABLES, cached

from embed import models
from embed.config import read_config
from embed.errors import ModelError, OptionError

NO_MODEL = "pass the path of a model folder, a name on the hub such as BAAI/bge-m3, or the name demo"
# Runs the command where every attempt to reach an address ends the process with 99.
NO_NETWORK = """
import os, socket, sys
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, lambda *words: os._exit(99))
socket.getaddrinfo = lambda *words, **more: os._exit(99)
from embed.cli import main
code = main(sys.argv[1:])
assert "huggingface_hub" not in sys.modules
sys.exit(code)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Be in an empty folder, with an empty hub cache beside it and no network."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("tiny"))


def refusal(name):
    with pytest.raises(ModelError) as caught:
        models.resolve(name)
    return str(caught.value)


def make(folder, *names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_folder_is_taken_as_path_or_string_and_through_links(here):
    folder = make(here / "bge", "config.json")
    (here / "link").symlink_to(folder)
    assert models.resolve(folder) == models.resolve(str(folder)) == folder
    assert models.resolve("link").resolve() == models.resolve("bge/").resolve() == folder


def test_modules_json_alone_makes_a_model_folder(here):
    # older sentence-transformers keep config.json in 0_Transformer
    assert models.resolve(make(here / "old", "modules.json")) == here / "old"


def test_a_hub_name_is_found_in_the_cache(here, model):
    snapshot = cached(here.parent / "hub", "org/name", model)
    assert models.resolve("org/name") == models.resolve(f"org/name@{SHA}") == snapshot


def test_a_folder_comes_before_a_hub_name(here, model):
    cached(here.parent / "hub", "org/name", model)
    make(here / "org" / "name", "config.json")
    assert models.resolve("org/name") == Path("org/name")
    (here / "org" / "name" / "config.json").unlink()
    assert refusal("org/name").startswith("org/name is an empty folder")


def test_a_path_object_is_never_a_hub_name(here, model):
    cached(here.parent / "hub", "org/name", model)
    assert "there is no model folder 'org/name'" in refusal(Path("org/name"))


def test_offline_a_model_that_is_not_cached_is_one_sentence(here):
    assert refusal("org/name") == (
        f"org/name: the cache {here.parent}/hub (HF_HUB_CACHE) doesn't hold it, and HF_HUB_OFFLINE forbids to download "
        "it; unset that, or name the right cache with HF_HUB_CACHE"
    )


def test_a_cache_a_level_off_is_never_filled_anew(here, model, monkeypatch):
    cached(here.parent / "hub", "org/name", model)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("MODEL_CACHE_DIR", str(here.parent / "hub"))
    monkeypatch.setitem(sys.modules, "embed.download", None)  # an import of it would fail
    assert refusal("org/name").endswith(f"set MODEL_CACHE_DIR to {here.parent}")


def test_without_the_extra_its_installation_is_the_next_step(here, monkeypatch, capsys):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refusal("org/name@dev")
    assert "pip install 'embed-server[hub]' and embed download org/name@dev" in said
    assert "org/name@dev: the cache " in capsys.readouterr().err


def test_which_snapshot_a_hub_name_is_is_said_once(here, model, capsys):
    snapshot = cached(here.parent / "hub", "org/name", model)
    assert models.resolve_aloud("org/name") == snapshot
    assert capsys.readouterr().err == f"embed: org/name is {snapshot}\n"
    models.resolve_aloud(str(make(here / "plain", "config.json")))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["text", "org/name", "hello"], ["info", "org/name"], ["info", "--model=org/name"]])
def test_a_cached_model_costs_no_network(command, here, model):
    snapshot = cached(here.parent / "hub", "org/name", model)
    settings = environment(HF_HUB_OFFLINE="", HF_ENDPOINT="http://127.0.0.1:9", OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, *command], env=settings, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, f"embed: org/name is {snapshot}\n")


def test_a_copied_snapshot_without_its_blobs_is_said_to_dangle(here, model):
    snapshot = cached(here.parent / "hub", "org/name", model)
    shutil.copytree(snapshot, here / "copy", symlinks=True)
    (here / "copy" / "modules.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: is a dangling link to \.\./\.\./blobs/"):
        read_config(models.resolve("copy"))


@pytest.mark.parametrize("name", ["nowhere", "./org/name", "/no/where", "a/b/c"])
def test_what_is_not_there_is_not_called_a_hub_name(name, here):
    assert refusal(name) == f"there is no model folder '{name}'; {NO_MODEL}"


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_what_cannot_be_a_path_is_refused(name, here):
    assert "is not a model" in refusal(name)


def test_each_wrong_thing_has_its_own_sentence(here):
    (here / "weights.safetensors").write_text("")
    make(here / "empty")
    make(here / "other", "notes.txt")
    (here / "gone").symlink_to("elsewhere")
    assert "weights.safetensors is a file; pass the folder" in refusal("weights.safetensors")
    assert "empty is an empty folder" in refusal("empty")
    assert "other holds no config.json" in refusal("other")
    assert refusal("gone") == "gone is a dangling link to elsewhere"


def test_the_folder_that_was_meant_is_named(here):
    make(here / "models--org--name" / "snapshots" / "0123abc", "config.json")
    make(here / "parent" / "child", "config.json")
    make(here / "parent" / "1_Pooling", "config.json")
    assert "perhaps models--org--name/snapshots/0123abc is meant" in refusal("models--org--name")
    assert "perhaps parent/child is meant" in refusal("parent")


def test_a_model_is_named_by_the_option_or_else_by_the_variable(monkeypatch):
    monkeypatch.setenv("EMBED_MODEL", " there ")
    assert models.named("here") == "here"
    assert models.named(None) == "there"
    monkeypatch.setenv("EMBED_MODEL", " ")
    assert models.named(None) is None
    with pytest.raises(OptionError, match="--model is empty"):
        models.named("")


def test_a_folder_that_may_not_be_read_says_so(here, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)  # root, who runs this in CI, may read everything
    assert refusal("locked") == "locked can't be read: Permission denied"


def test_is_model(here):
    make(here / "bge", "config.json")
    (here.parent / "hub" / "models--org--name").mkdir(parents=True)
    assert all(models.is_model(name) for name in ("demo", "bge", "org/name", "org/name@dev"))
    assert not any(models.is_model(name) for name in ("nowhere", "", "a\0b", "and/or", "org/name@../x"))
