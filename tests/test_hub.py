"""The hub cache as the hub's tools leave it, whole and not: what is found, and the sentence where nothing is."""

import os
import shutil
import warnings

import hub_cache
import pytest
import tiny
from hub_cache import OTHER_SHA, SHA, cached

from embed import hub
from embed.errors import GuessWarning, ModelError
from embed.hub import Cache, HubName, NotCachedError

REPO = "org/name"
HOME = "models--org--name"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def where(tmp_path):
    return Cache(tmp_path / "h" / "hub")


@pytest.fixture
def no_variables(monkeypatch):
    for name in hub_cache.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def find(name, where):
    return hub.find(HubName.parse(name), where)


def refusal(name, where, kind=ModelError):
    with pytest.raises(ModelError) as caught:
        find(name, where)
    assert type(caught.value) is kind, caught.value
    return str(caught.value)


def guessed(name, where):
    with pytest.warns(GuessWarning) as caught:
        folder = find(name, where)
    return folder, str(caught[0].message)


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("BAAI/bge-m3", "BAAI/bge-m3", None),
        ("org/name@main", "org/name", "main"),
        ("org/na.me_1@refs/pr/2", "org/na.me_1", "refs/pr/2"),
        (f"org/name@{SHA}", "org/name", SHA),
    ],
)
def test_a_hub_name_and_its_revision(text, repo, revision):
    name = HubName.parse(text)
    assert (name.repo, name.revision, str(name)) == (repo, revision, text)


@pytest.mark.parametrize(
    "text", ["", "demo", "name", "./org/name", "/org/name", "a/b/c", "~/name", "org/", "örg/n", "a b/c"]
)
def test_what_is_no_hub_name(text):
    assert HubName.parse(text) is None


@pytest.mark.parametrize("revision", ["", " ", "../x", "a/../b", "/x", "x/", "a//b", "a\0b", "a b"])
def test_a_revision_never_leads_out_of_the_cache(revision):
    with pytest.raises(ModelError, match="names no revision"):
        HubName.parse(f"org/name@{revision}")


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({}, "/home/me/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/t/h"}, "/t/h/hub"),
        ({"HF_HOME": "/t/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/t/h/hub"}, "/t/h/hub"),
        ({"HF_HUB_CACHE": "/t/h/hub", "MODEL_CACHE_DIR": "/ours"}, "/ours/hub"),
        ({"HF_HOME": "  ", "HF_HUB_CACHE": "", "MODEL_CACHE_DIR": "\t"}, "/home/me/.cache/huggingface/hub"),
        ({"HF_HOME": "~/h"}, "/home/me/h/hub"),
        ({"HF_HUB_CACHE": "$HOME/h"}, "/home/me/h"),
    ],
)
def test_the_cache_folder(settings, folder, no_variables, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert str(hub.cache().path) == folder


def test_a_relative_cache_is_made_absolute(no_variables, monkeypatch, tmp_path):
    # or its links would lead nowhere from another folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", "hub")
    assert hub.cache().path == tmp_path / "hub"


def test_without_a_home_the_variable_is_named(no_variables, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a uid that has no entry in passwd
    with pytest.raises(ModelError, match="set HF_HOME"):
        hub.cache()


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ({"TRANSFORMERS_OFFLINE": "yes"}, "TRANSFORMERS_OFFLINE"),
        ({"HF_HUB_OFFLINE": "0"}, None),
        ({"HF_HUB_OFFLINE": " "}, None),
    ],
)
def test_offline(settings, variable, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert hub.offline() == variable


def test_a_branch_leads_to_its_snapshot(where, model):
    snapshot = cached(where.path, REPO, model)
    cached(where.path, REPO, model, commit=OTHER_SHA, ref="dev")
    assert find(REPO, where) == find("org/name@main", where) == snapshot
    assert find("org/name@dev", where).name == OTHER_SHA
    assert find(f"org/name@{SHA}", where) == snapshot


@pytest.mark.parametrize("ending", ["\n", "\r\n", "  "])
def test_a_ref_may_end_in_white_space(ending, where, model):
    snapshot = cached(where.path, REPO, model)
    (where.path / HOME / "refs" / "main").write_text(SHA + ending)
    assert find(REPO, where) == snapshot


@pytest.mark.parametrize("ref", ["refs/pr/2", "pr/2"])
def test_a_pull_request_is_found_where_either_tool_keeps_its_ref(ref, where, model):
    snapshot = cached(where.path, REPO, model, ref=ref)
    assert find("org/name@refs/pr/2", where) == snapshot


def test_a_commit_needs_no_ref(where, model):
    snapshot = cached(where.path, REPO, model, ref=None)
    assert find(f"org/name@{SHA}", where) == snapshot


def test_without_refs_the_only_snapshot_is_taken_with_a_warning(where, model):
    snapshot = cached(where.path, REPO, model, ref=None)
    folder, said = guessed(REPO, where)
    assert folder == snapshot
    assert said == (
        f"org/name: {where.path / HOME} has no refs/main, so its only snapshot is taken: say so with org/name@{SHA}"
    )


def test_an_incomplete_snapshot_beside_it_does_not_count(where, model):
    snapshot = cached(where.path, REPO, model, ref=None)
    (snapshot.parent / OTHER_SHA).mkdir()
    assert guessed(REPO, where)[0] == snapshot


def test_without_refs_several_snapshots_are_listed(where, model):
    cached(where.path, REPO, model, ref=None)
    cached(where.path, REPO, model, commit=OTHER_SHA, ref=None)
    assert refusal(REPO, where).endswith(f"name one of org/name@{OTHER_SHA}, org/name@{SHA}")


def test_another_branch_is_not_taken_for_main(where, model):
    cached(where.path, REPO, model, ref="dev")
    said = refusal(REPO, where, NotCachedError)
    assert said == f"org/name: the cache {where.path / HOME} has no revision main; it has dev"


def test_a_ref_to_an_absent_commit(where, model):
    cached(where.path, REPO, model, commit=OTHER_SHA, ref=None)
    (where.path / HOME / "refs").mkdir()
    (where.path / HOME / "refs" / "main").write_text(SHA)
    said = refusal(REPO, where, NotCachedError)
    assert said == f"org/name: the cache {where.path / HOME} doesn't hold the commit {SHA}, which main names"


@pytest.mark.parametrize("text", ["", "../../elsewhere", "ref: refs/heads/main", "a\0b"])
def test_a_ref_that_holds_no_commit(text, where, model):
    cached(where.path, REPO, model)
    (where.path / HOME / "refs" / "main").write_text(text)
    assert "refs/main: holds " in refusal(REPO, where)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_file_that_is_not_there_is_named(name, where, model):
    snapshot = cached(where.path, REPO, model)
    (snapshot / name).unlink()
    assert refusal(REPO, where, NotCachedError) == f"org/name: the snapshot {snapshot} lacks {name}"


def test_each_shard_counts(where, tmp_path):
    snapshot = cached(where.path, REPO, tiny.make("bert", tmp_path / "shards", shards=3))
    assert find(REPO, where) == snapshot
    (snapshot / "model-00002-of-00003.safetensors").unlink()
    assert "lacks model-00002-of-00003.safetensors" in refusal(REPO, where, NotCachedError)


def test_the_encoder_may_be_in_a_folder_of_its_own(where, tmp_path):
    folder = tiny.make("bert", tmp_path / "old")
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"):
        shutil.move(folder / name, folder / "0_Transformer" / name)
    text = (folder / "modules.json").read_text().replace('"path": ""', '"path": "0_Transformer"')
    (folder / "modules.json").write_text(text)
    snapshot = cached(where.path, REPO, folder)
    assert find(REPO, where) == snapshot
    (snapshot / "0_Transformer" / "tokenizer.json").unlink()
    assert "lacks 0_Transformer/tokenizer.json" in refusal(REPO, where, NotCachedError)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer.json", "model.safetensors"])
def test_a_dangling_link_is_named_with_its_target(name, where, model):
    snapshot = cached(where.path, REPO, model)
    blob = (snapshot / name).resolve()
    blob.unlink()
    assert f"{snapshot / name}: is a dangling link to ../../blobs/{blob.name};" in refusal(REPO, where)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer.json", "model.safetensors"])
def test_an_empty_file_is_named_with_its_target(name, where, model):
    snapshot = cached(where.path, REPO, model)
    blob = (snapshot / name).resolve()
    os.truncate(blob, 0)
    assert f"{snapshot / name}: the file is empty (a link to ../../blobs/{blob.name});" in refusal(REPO, where)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer.json", "model.safetensors"])
def test_an_unfinished_download_is_not_opened(name, where, model):
    snapshot = cached(where.path, REPO, model)
    blob = (snapshot / name).resolve()
    blob.rename(f"{blob}.incomplete")
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(f"../../blobs/{blob.name}.incomplete")
    said = refusal(REPO, where)
    assert f"{snapshot / name}: is an unfinished download (a link to ../../blobs/{blob.name}.incomplete);" in said


def test_an_unfinished_download_beside_a_good_snapshot_is_left_alone(where, model):
    snapshot = cached(where.path, REPO, model)
    (where.path / HOME / "blobs" / "0123.incomplete").write_text("half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find(REPO, where) == snapshot


def test_links_are_followed_everywhere(where, model, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    cached(elsewhere, REPO, model)
    where.path.parent.mkdir()
    where.path.symlink_to(elsewhere)
    assert (find(REPO, where) / "config.json").is_file()
    shutil.move(elsewhere / HOME, tmp_path / "moved")
    (elsewhere / HOME).symlink_to(tmp_path / "moved")
    assert (find(REPO, where) / "config.json").is_file()


def pickled(model, folder):
    """Return a copy of a model with its weights as a pickle alone."""
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def test_a_pickle_is_said_to_be_one(where, model, tmp_path):
    cached(where.path, REPO, pickled(model, tmp_path / "pickled"))
    said = refusal(REPO, where, NotCachedError)
    assert said.endswith(
        "lacks model.safetensors, and has its weights as pytorch_model.bin, a pickle, which is not read"
    )


def test_a_cached_pull_request_with_safetensors_is_taken_and_named(where, model, tmp_path):
    cached(where.path, REPO, pickled(model, tmp_path / "pickled"))
    cached(where.path, REPO, model, commit=OTHER_SHA, ref="refs/pr/130")
    folder, said = guessed(REPO, where)
    assert folder.name == OTHER_SHA
    assert said.endswith("its pull request refs/pr/130 has them and is taken: say so with org/name@refs/pr/130")
    said = refusal("org/name@main", where, NotCachedError)
    assert said.endswith("which is not read; org/name@refs/pr/130 has them")


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("MODEL_CACHE_DIR", "h/hub", "set MODEL_CACHE_DIR to {top}/h"),
        ("HF_HOME", "h/hub", "set HF_HOME to {top}/h"),
        ("HF_HOME", "", "set HF_HOME to {top}/h"),
        ("MODEL_CACHE_DIR", f"h/hub/{HOME}", "set MODEL_CACHE_DIR to {top}/h"),
        ("HF_HUB_CACHE", "h", "set HF_HUB_CACHE to it"),
        ("HF_HUB_CACHE", "", "set HF_HUB_CACHE to it"),
        ("HF_HUB_CACHE", "h/hub/hub", "set HF_HUB_CACHE to it"),
        ("XDG_CACHE_HOME", "h", "unset XDG_CACHE_HOME and set HF_HUB_CACHE to it"),
    ],
)
def test_a_cache_that_is_a_level_off_gets_a_hint(variable, value, hint, no_variables, monkeypatch, tmp_path, model):
    cached(tmp_path / "h" / "hub", REPO, model)
    monkeypatch.setenv(variable, str(tmp_path / value))
    said = refusal(REPO, hub.cache())
    assert f"({variable}) doesn't hold it, but {tmp_path}/h/hub does: " in said
    assert said.endswith(hint.format(top=tmp_path))


@pytest.mark.parametrize("value", ["", "x/huggingface"])
def test_an_xdg_folder_a_level_off_gets_a_hint(value, no_variables, monkeypatch, tmp_path, model):
    cached(tmp_path / "x" / "huggingface" / "hub", REPO, model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / value))
    assert refusal(REPO, hub.cache()).endswith(f"set XDG_CACHE_HOME to {tmp_path}/x")


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "MODEL_CACHE_DIR"])
def test_a_model_folder_in_the_place_of_a_cache_gets_a_hint(variable, no_variables, monkeypatch, model):
    monkeypatch.setenv(variable, str(model))
    assert f"{model} is a model folder and no cache: pass it" in refusal(REPO, hub.cache())


def test_what_is_nowhere_is_not_there(where, no_variables, monkeypatch, tmp_path):
    assert refusal(REPO, where, NotCachedError) == f"org/name: the cache {where.path} doesn't hold it"
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    said = refusal(REPO, hub.cache(), NotCachedError)
    assert said == f"org/name: the cache {tmp_path}/hub (HF_HOME) doesn't hold it"


def test_reading_a_cache_writes_nothing(where, model, tmp_path):
    cached(where.path, REPO, model)
    before = sorted(tmp_path.rglob("*"))
    find(REPO, where)
    refusal("org/other", where, NotCachedError)
    assert sorted(tmp_path.rglob("*")) == before
