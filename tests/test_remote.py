"""What the hub refuses, and what the network does, is one sentence with the next step."""

import io
import socket

import pytest
from hub_cache import SHA
from hub_stand_in import CONVERTER, HubStandIn

from embed.errors import ModelError
from embed.hub import HubName
from embed.remote import Remote
from embed.store import Blob

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 64}


@pytest.fixture
def hub(monkeypatch):
    with HubStandIn() as stand_in:
        stand_in.add("org/name", FILES)
        monkeypatch.setenv("HF_ENDPOINT", f"{stand_in.url}/")
        monkeypatch.setenv("NO_PROXY", "*")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield stand_in


def remote(name="org/name"):
    return Remote(HubName.parse(name))


def refusal(ask):
    with pytest.raises(ModelError) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_listing_names_the_commit_and_its_files(hub):
    listing = remote().listing(None)
    assert (listing.commit, listing.files) == (hub.repositories["org/name"].refs["main"], set(FILES))
    assert remote().listing(listing.commit) == listing


def test_a_pull_request_can_be_listed(hub):
    commit = hub.add("org/name", {}, revision="refs/pr/2")
    assert remote().listing("refs/pr/2").commit == commit


def test_a_file_is_read_from_where_it_broke_off(hub):
    commit = remote().listing(None).commit
    blob = remote().blob(commit, "model.safetensors")
    content = FILES["model.safetensors"]
    assert blob.size == len(content)
    into = io.BytesIO()
    into.write(content[:1000])
    remote().read(commit, "model.safetensors", into, blob)
    assert into.getvalue() == content
    assert hub.asked("GET", "model.safetensors")[-1].range == "bytes=1000-"


def test_a_cut_connection_is_taken_up_again(hub, monkeypatch):
    for module in ("constants", "file_download"):  # either has it, by version
        monkeypatch.setattr(f"huggingface_hub.{module}.DOWNLOAD_CHUNK_SIZE", 1000, raising=False)
    commit = remote().listing(None).commit
    hub.cut["model.safetensors"] = 10_000
    into = io.BytesIO()
    remote().read(commit, "model.safetensors", into, remote().blob(commit, "model.safetensors"))
    assert into.getvalue() == FILES["model.safetensors"]
    assert hub.asked("GET", "model.safetensors")[-1].range == "bytes=10000-"


def test_the_token_goes_to_the_hub_and_to_nobody_else(hub, monkeypatch):
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = remote().listing(None).commit
    remote().read(commit, "model.safetensors", io.BytesIO(), remote().blob(commit, "model.safetensors"))
    sent = {request.authorization for request in hub.asked("GET") if request.path.startswith("/elsewhere")}
    assert sent == {None}


def test_the_converter_s_pull_requests_come_first(hub):
    for number, author in ((1, "somebody"), (2, CONVERTER), (3, "somebody")):
        hub.add("org/name", {str(number): b""}, revision=f"refs/pr/{number}", author=author)
    assert list(remote().pull_requests()) == [("refs/pr/2", True), ("refs/pr/1", False), ("refs/pr/3", False)]


def test_who_does_not_exist(hub):
    said = refusal(lambda: remote("org/other").listing(None))
    assert said.startswith(f"org/other: {hub.url} has no such model, or keeps it private; check the name")
    assert "set HF_TOKEN" in said


def test_a_revision_that_does_not_exist(hub):
    said = refusal(lambda: remote("org/name@dev").listing("dev"))
    assert said == (f"org/name@dev: {hub.url} has the model, but no revision dev; see {hub.url}/org/name/tree/main")


def test_a_gated_model_names_its_page(hub):
    hub.repositories["org/name"].gated = True
    said = refusal(lambda: remote().blob(remote().listing(None).commit, "config.json"))
    assert f"the model is gated; ask for access at {hub.url}/org/name, and set HF_TOKEN" in said


def test_without_a_token_a_private_model_looks_absent(hub):
    hub.token = "hf_secret"
    assert "keeps it private" in refusal(lambda: remote().listing(None))


def test_a_wrong_token_is_refused(hub, monkeypatch):
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert f"{hub.url} refuses the token (401); set HF_TOKEN" in refusal(lambda: remote().listing(None))


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_any_other_status_is_named(status, hub):
    hub.status = status
    assert f"answered with status {status}; try again later" in refusal(lambda: remote().listing(None))


def test_a_file_that_has_gone(hub):
    assert "status 404" in refusal(lambda: remote().blob(remote().listing(None).commit, "gone.json"))


def test_nobody_listens(hub, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    said = refusal(lambda: remote().listing(None))
    assert said.startswith(f"org/name: the download from {url} failed (Connection refused); check the network")


@pytest.mark.parametrize("endpoint", ["huggingface.co", "http://[", "file:///x", "http://a b"])
def test_an_endpoint_that_is_no_address(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ModelError, match=r"HF_ENDPOINT is .*; it takes the address of a hub"):
        remote()


def test_what_is_no_hub(hub, monkeypatch):
    with HubStandIn() as other:
        monkeypatch.setattr("hub_stand_in._Handler._json", lambda self, value: self._head(200, {"Content-Length": "0"}))
        monkeypatch.setenv("HF_ENDPOINT", other.url)
        other.add("org/name", FILES)
        assert "doesn't answer as a hub does" in refusal(lambda: remote().listing(None))


@pytest.mark.parametrize("commit", ["../../elsewhere", "", None])
def test_a_commit_that_is_none_never_names_a_folder(commit, hub, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info", lambda *a, **o: type("Info", (), {"sha": commit, "siblings": []})
    )
    assert "names no commit" in refusal(lambda: remote().listing(None))


def test_a_full_disk_is_not_the_network_s_fault(hub):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        remote().read(remote().listing(None).commit, "config.json", Full(), Blob(SHA, 2))
