"""From a name to a model folder, and the sentence for each way of missing it."""

import errno
import os

import pytest

from embed import models
from embed.errors import ModelError, OptionError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_a_hub_name_is_told_to_be_downloaded_first(here):
    said = refusal("intfloat/multilingual-e5-small")
    assert "hf download intfloat/multilingual-e5-small --local-dir multilingual-e5-small" in said
    make(here / "intfloat" / "multilingual-e5-small", "config.json")
    assert models.resolve("intfloat/multilingual-e5-small").is_dir()


@pytest.mark.parametrize("name", ["nowhere", "./org/name", "/no/where", "a/b/c"])
def test_what_is_not_there_is_not_called_a_hub_name(name, here):
    assert refusal(name) == f"there is no model folder '{name}'; pass the path of one, or the name demo"


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
    assert [models.is_model(name) for name in ("demo", "bge", "nowhere", "", "a\0b")] == [
        True,
        True,
        False,
        False,
        False,
    ]
