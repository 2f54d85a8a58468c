"""From a stand-in for the hub into the cache: only what is read, once, by however many processes, whatever breaks."""

import subprocess
import sys

import huggingface_hub
import pytest
import tiny
from command_line import environment
from hub_cache import OTHER_SHA, VARIABLES, cached, files
from hub_stand_in import CONVERTER, EMBED_IN_SMALL_PIECES, HubStandIn

from embed import download, hub
from embed.errors import ModelError
from embed.hub import Cache, HubName

REPO = "org/name"
READ = {
    "1_Pooling/config.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
UNREAD = {
    "README.md": b"a model",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "model.fp16.safetensors": b"another",
    "2_Dense/model.safetensors": b"no module",
    "special_tokens_map.json": b"{}",
    "vocab.txt": b"words",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def remote(model, monkeypatch):
    with HubStandIn() as stand_in:
        stand_in.add(REPO, {**files(model), **UNREAD})
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        monkeypatch.setenv("NO_PROXY", "*")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", *VARIABLES):
            monkeypatch.delenv(name, raising=False)
        yield stand_in


@pytest.fixture
def where(tmp_path):
    return Cache(tmp_path / "hub")


def fetch(where, name=REPO, **options):
    return download.fetch(HubName.parse(name), where, **options)


def refusal(where, name=REPO):
    with pytest.raises(ModelError) as caught:
        fetch(where, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def got(remote):
    """Return the files that were asked for, redirects counted once."""
    return sorted(request.path.split("/", 5)[-1] for request in remote.asked("GET") if "/resolve/" in request.path)


def unfinished(where):
    return sorted(path.name for path in where.path.rglob("*.incomplete"))


def test_only_the_files_that_are_read_are_fetched(remote, where, model, capsys):
    snapshot = fetch(where)
    assert snapshot == where.path / "models--org--name" / "snapshots" / remote.repositories[REPO].refs["main"]
    assert got(remote) == sorted(READ)
    assert files(snapshot) == {name: content for name, content in files(model).items() if name in READ}
    assert unfinished(where) == []
    assert capsys.readouterr().err == f"embed: downloading org/name (0 MB) from {remote.url} ...\n"


def test_the_weights_come_last(remote, where):
    fetch(where)
    order = [request.path.rpartition("/")[2] for request in remote.asked("GET") if "/resolve/" in request.path]
    assert order[-1] == "model.safetensors"


def test_the_bar_goes_from_nothing_to_all_of_what_is_to_come(remote, where, model, monkeypatch):
    for module in ("constants", "file_download"):  # either has it, by version
        monkeypatch.setattr(f"huggingface_hub.{module}.DOWNLOAD_CHUNK_SIZE", 1000, raising=False)
    fractions = []
    monkeypatch.setattr(download.Progress, "update", lambda self, done, fraction: fractions.append(fraction))
    read = download.Remote.read

    def break_off(self, commit, file, into, blob):
        if file == "model.safetensors":
            into.write(files(model)[file][:60_000])
            raise ModelError("the connection ended")
        read(self, commit, file, into, blob)

    monkeypatch.setattr(download.Remote, "read", break_off)
    with pytest.raises(ModelError, match="the connection ended"):
        fetch(where)
    monkeypatch.setattr(download.Remote, "read", read)
    fractions.clear()
    fetch(where)
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 0.1
    assert fractions[-1] == 1


def test_the_hub_s_own_tools_find_it(remote, where):
    snapshot = fetch(where)
    found = huggingface_hub.try_to_load_from_cache(REPO, "1_Pooling/config.json", cache_dir=where.path)
    assert found == str(snapshot / "1_Pooling" / "config.json")
    (repo,) = huggingface_hub.scan_cache_dir(where.path).repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.refs, revision.commit_hash) == (REPO, {"main"}, snapshot.name)


def test_what_the_hub_s_own_tools_fetched_is_found(remote, where):
    program = (
        "import sys, huggingface_hub\nfor name in sys.argv[2:]: huggingface_hub.hf_hub_download(sys.argv[1], name)"
    )
    settings = environment(HF_ENDPOINT=remote.url, HF_HUB_CACHE=str(where.path))
    subprocess.run([sys.executable, "-c", program, REPO, *sorted(READ)], env=settings, check=True, timeout=60)
    before = len(remote.requests)
    fetch(where)
    assert len(remote.requests) == before


def test_a_model_that_is_there_is_not_asked_for(remote, where):
    fetch(where)
    before = len(remote.requests)
    fetch(where)
    assert len(remote.requests) == before


def test_a_branch_that_moved_is_followed_when_asked_to(remote, where, model):
    old = fetch(where)
    commit = remote.add(REPO, {**files(model), "sentence_bert_config.json": b'{"max_seq_length": 16}'})
    assert fetch(where) == old
    assert fetch(where, update=True).name == commit
    assert got(remote) == sorted([*READ, "sentence_bert_config.json"])
    assert hub.find(HubName.parse(REPO), where).name == commit


def test_until_the_new_commit_is_whole_the_old_one_stands(remote, where, model):
    old = fetch(where)
    remote.add(REPO, {**files(model), "model.safetensors": b"\0" * 5000})
    remote.corrupt.add("model.safetensors")
    with pytest.raises(ModelError, match="another hash than the hub says"):
        fetch(where, update=True)
    assert hub.find(HubName.parse(REPO), where) == old
    assert unfinished(where) == []


@pytest.mark.parametrize("revision", ["dev", "refs/pr/7"])
def test_another_revision(revision, remote, where, model):
    commit = remote.add(REPO, {**files(model), "README.md": b"other"}, revision=revision)
    assert fetch(where, f"{REPO}@{revision}").name == commit
    assert hub.find(HubName.parse(f"{REPO}@{revision}"), where).name == commit
    assert fetch(where, f"{REPO}@{commit}").name == commit


def test_a_commit_leaves_no_ref(remote, where):
    commit = remote.repositories[REPO].refs["main"]
    fetch(where, f"{REPO}@{commit}")
    assert not (where.path / "models--org--name" / "refs").exists()


def test_shards_are_fetched_as_their_index_names_them(remote, where, tmp_path):
    folder = tiny.make("bert", tmp_path / "shards", shards=3)
    remote.add("org/shards", {**files(folder), "model-00009-of-00009.safetensors": b"another"})
    snapshot = fetch(where, "org/shards")
    assert sorted(path.name for path in snapshot.glob("model*")) == sorted(path.name for path in folder.glob("model*"))
    assert hub.find(HubName.parse("org/shards"), where) == snapshot


def test_a_single_file_comes_before_shards(remote, where, model, tmp_path):
    shards = files(tiny.make("xlmr", tmp_path / "shards", shards=2))
    remote.add("org/both", {**shards, **files(model)})
    snapshot = fetch(where, "org/both")
    assert [path.name for path in snapshot.glob("model*")] == ["model.safetensors"]


def test_a_module_that_is_not_built_is_refused_before_the_weights_come(remote, where, model):
    modules = files(model)["modules.json"].replace(b"models.Normalize", b"models.Dense")
    remote.add(REPO, {**files(model), "modules.json": modules})
    assert 'models.Dense" is not built' in refusal(where)
    remote.add("org/t5", {**files(model), "config.json": b'{"model_type": "t5"}'})
    assert "t5" in refusal(where, "org/t5")
    assert remote.asked("GET", "model.safetensors") == []


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_repository_without_a_file_that_is_needed(name, remote, where, model):
    remote.add("org/less", {key: content for key, content in files(model).items() if key != name})
    assert f"org/less: there is no {name} in this repository" in refusal(where, "org/less")
    assert remote.asked("GET", "model.safetensors") == []


@pytest.fixture
def pickled(remote, model):
    """Return the files of a repository whose weights are a pickle."""
    pickle = {**files(model), "pytorch_model.bin": b"pickle"}
    del pickle["model.safetensors"]
    remote.add("org/pickle", pickle)
    return pickle


def test_a_pickle_alone_is_said_to_be_one(pickled, remote, where):
    remote.add("org/pickle", {**pickled, "README.md": b"better"}, revision="refs/pr/1")
    said = refusal(where, "org/pickle")
    assert said.startswith("org/pickle: there is no model.safetensors, only pytorch_model.bin, which is not read; load")


def test_a_pull_request_of_the_hub_s_converter_is_taken_and_found_again(pickled, remote, where, model, capsys):
    remote.add("org/pickle", {**pickled, "model.safetensors": b"evil" * 2000}, revision="refs/pr/1")
    converted = {**pickled, "model.safetensors": files(model)["model.safetensors"]}
    commit = remote.add("org/pickle", converted, revision="refs/pr/130", author=CONVERTER)
    assert fetch(where, "org/pickle").name == commit
    assert "the hub's own converter put it into refs/pr/130, which is taken" in capsys.readouterr().err
    with pytest.warns(match="its pull request refs/pr/130 has them and is taken"):
        assert hub.find(HubName.parse("org/pickle"), where).name == commit


def test_anybody_else_s_pull_request_is_named_and_not_taken(pickled, remote, where, model):
    weights = {**pickled, "model.safetensors": files(model)["model.safetensors"]}
    commit = remote.add("org/pickle", weights, revision="refs/pr/5")
    said = refusal(where, "org/pickle")
    assert said.endswith("refs/pr/5 has it: if you trust whoever made it, say org/pickle@refs/pr/5")
    assert fetch(where, "org/pickle@refs/pr/5").name == commit


def test_a_revision_that_was_asked_for_is_not_swapped(pickled, remote, where, model):
    weights = {**pickled, "model.safetensors": files(model)["model.safetensors"]}
    remote.add("org/pickle", weights, revision="refs/pr/5", author=CONVERTER)
    assert "say org/pickle@refs/pr/5" in refusal(where, "org/pickle@main")


def test_a_damaged_cache_is_mended_when_asked_to(remote, where, model):
    snapshot = fetch(where)
    (snapshot / "config.json").resolve().unlink()
    (snapshot / "tokenizer.json").resolve().write_bytes(b"")
    (snapshot / "1_Pooling" / "config.json").unlink()
    assert fetch(where, update=True) == snapshot
    assert {name: content for name, content in files(model).items() if name in READ} == files(snapshot)


def test_a_disk_without_room_is_told_before_the_weights_come(remote, where, monkeypatch):
    monkeypatch.setattr("embed.store.Store.free", lambda self: 10)
    assert "MB free; make room, or set MODEL_CACHE_DIR" in refusal(where)
    assert remote.asked("GET", "model.safetensors") == []


def test_a_cache_that_cannot_be_written_names_the_variable(remote, tmp_path):
    (tmp_path / "file").write_text("")
    said = refusal(Cache(tmp_path / "file" / "hub"))
    assert f"can't be kept in {tmp_path / 'file' / 'hub'} (Not a directory); set MODEL_CACHE_DIR" in said


def test_a_process_that_dies_is_gone_on_from(remote, where, model):
    remote.slow["model.safetensors"] = 0.05
    settings = environment(HF_ENDPOINT=remote.url, HF_HUB_CACHE=str(where.path))
    command = [sys.executable, "-c", EMBED_IN_SMALL_PIECES, "download", REPO]
    process = subprocess.Popen(command, env=settings, stderr=subprocess.DEVNULL)
    try:
        remote.wait_for("GET", "model.safetensors")
        while not any(path.stat().st_size > 3000 for path in where.path.rglob("*.incomplete")):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait(20)
    (part,) = where.path.rglob("*.incomplete")
    arrived = part.stat().st_size
    assert arrived < len(files(model)["model.safetensors"])
    remote.slow.clear()
    snapshot = fetch(where)
    assert remote.asked("GET", "model.safetensors")[-1].range == f"bytes={arrived}-"
    assert (snapshot / "model.safetensors").read_bytes() == files(model)["model.safetensors"]
    assert unfinished(where) == []


def test_six_processes_on_a_cold_cache_all_embed(remote, where):
    remote.slow["model.safetensors"] = 0.01  # so that they meet
    settings = environment(HF_ENDPOINT=remote.url, HF_HUB_CACHE=str(where.path), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "embed", "text", REPO, "hello"]
    processes = [
        subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, outputs
    assert len({out for out, _ in outputs}) == 1
    assert got(remote) == sorted(READ)
    assert unfinished(where) == []


def test_without_working_locks_every_process_ends_with_whole_files(remote, where, model, monkeypatch):
    """As on a network file system where flock does nothing: another one publishes while this one reads."""
    monkeypatch.setattr("fcntl.flock", lambda file, operation: None)
    read = download.Remote.read
    met = []

    def meet(self, commit, file, into, blob):
        if file == "model.safetensors" and not met:
            met.append(file)
            fetch(where)
        read(self, commit, file, into, blob)

    monkeypatch.setattr(download.Remote, "read", meet)
    snapshot = fetch(where)
    assert met
    assert files(snapshot) == {name: content for name, content in files(model).items() if name in READ}
    assert unfinished(where) == []


def test_another_commit_in_the_cache_is_no_hindrance(remote, where, model):
    cached(where.path, REPO, model, commit=OTHER_SHA, ref=None)
    commit = remote.repositories[REPO].refs["main"]
    assert fetch(where, f"{REPO}@{commit}").name == commit
