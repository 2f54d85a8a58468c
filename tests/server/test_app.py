"""The application's routes and errors, asked without a socket, on a model of plain Python."""

import dataclasses
import os
import threading

import falcon
import gevent
import numpy as np
import pytest
from stub_embedder import ABORTS, DIMENSION, NOT_FINITE, StubEmbedder, vector_of
from stub_service import SECONDS, behind_a_held_one, serving

from embed.errors import ModelError, OptionError, TextError
from embed.server import app as app_module
from embed.server.app import create_app, served_name
from embed.server.connection import Refused
from embed.server.limits import Limits

ROUTES = ["/", "/health", "/create_embedding", "/metrics", "/openapi.json"]


@pytest.fixture(scope="module")
def service():
    with serving() as service:
        yield service


def assert_is_error(result, status):
    """Check that a refusal is JSON of one sentence, whatever it is about."""
    assert result.status_code == status
    assert result.headers["Content-Type"] == "application/json"
    assert list(result.json) == ["error"]
    sentence = result.json["error"]
    assert 0 < len(sentence) < 300
    assert "\n" not in sentence
    assert "Traceback" not in sentence


def test_posted_texts_get_a_vector_each_in_their_order(service):
    texts = ["a", "", "ä" * 5, "b" * 20, "a"]
    result = service.embed({"text": texts})
    assert result.status_code == 200
    assert result.headers["Content-Type"] == "application/json"
    assert list(result.json) == ["embeddings", "model", "dimension"]
    assert result.json["model"] == "stub"
    assert result.json["dimension"] == DIMENSION
    expected = np.array([vector_of(text) for text in texts])
    assert np.array_equal(np.array(result.json["embeddings"], np.float32), expected)


@pytest.mark.parametrize("body", [{"text": "a"}, {"text": ["a"]}, {"texts": ["a"]}, {"texts": "a"}], ids=str)
def test_every_spelling_of_one_text_gets_the_same_answer(service, body):
    assert service.embed(body).content == service.embed({"text": "a"}).content


def test_a_get_gives_what_a_post_of_one_text_gives(service):
    for text, query in [("a b", "text=a+b"), ("a b", "text=a%20b"), ("ä+c", "text=%C3%A4%2Bc"), ("", "text=")]:
        got = service.get("/create_embedding", query)
        assert got.status_code == 200
        assert got.content == service.embed({"text": text}).content


@pytest.mark.parametrize(
    ("query", "normalized"),
    [("", True), ("normalize=false", False), ("normalize=FALSE", False), ("normalize=0", True), ("normalize=", True)],
)
def test_in_a_query_only_the_word_false_turns_normalisation_off(service, query, normalized):
    got = service.get("/create_embedding", f"text=abc&{query}").json["embeddings"]
    assert np.array_equal(np.array(got, np.float32), [vector_of("abc", normalize=normalized)])


@pytest.mark.parametrize("no_normalize", [True, False])
def test_normalisation_is_the_services_unless_the_request_says(no_normalize):
    with serving(no_normalize=no_normalize) as service:
        for given, expected in [({}, not no_normalize), ({"normalize": True}, True), ({"normalize": False}, False)]:
            got = service.embed({"text": "abc", **given}).json["embeddings"]
            assert np.array_equal(np.array(got, np.float32), [vector_of("abc", normalize=expected)])
        got = service.get("/create_embedding", "text=abc").json["embeddings"]
        assert np.array_equal(np.array(got, np.float32), [vector_of("abc", normalize=not no_normalize)])


def test_a_header_counts_the_texts_that_were_cut(service):
    for texts, count in [(["a"], "0"), (["a " * 1001, "b", "c " * 1000, "d " * 5000], "2")]:
        assert service.embed({"text": texts}).headers["Embed-Truncated-Texts"] == count


@pytest.mark.parametrize("path", ROUTES)
def test_head_gives_the_headers_of_get_and_no_body(service, path):
    query = "text=abc" if path == "/create_embedding" else ""
    get, head = service.get(path, query), service.client.simulate_head(path, query_string=query)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    volatile = {"content-length"} if path in ("/metrics", "/", "/health") else set()
    assert {k: v for k, v in head.headers.items() if k not in volatile} == {
        k: v for k, v in get.headers.items() if k not in volatile
    }


def test_head_of_a_bad_query_has_the_status_of_get(service):
    assert service.client.simulate_head("/create_embedding").status_code == 400


@pytest.mark.parametrize("path", ROUTES)
def test_a_trailing_slash_changes_nothing(service, path):
    query = "text=abc" if path == "/create_embedding" else ""
    assert service.get(path.rstrip("/") + "/", query).status_code == 200
    assert service.client.simulate_post("/create_embedding/", json={"text": "a"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/HEALTH", "/Create_Embedding", "/create_embedding/x", "/embed", "/v1/embeddings", "/health%00", "/favicon.ico"],
)
def test_another_path_is_a_404_in_json(service, path):
    assert_is_error(service.get(path), 404)
    assert_is_error(service.client.simulate_post(path, body=b"not json"), 404)


@pytest.mark.parametrize("path", ["/\xff\xfe", "/../../etc/passwd", "/" + "a" * 60_000, "/health\r\nX: y", "/%", "//x"])
def test_a_path_that_is_no_path_is_a_404_in_json(service, path):
    status, headers, body = service.raw("GET", path)
    assert (status, headers["content-type"]) == (404, "application/json")
    assert b"error" in body
    assert b"passwd" not in body


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "QUERY", "BREW", "get"])
def test_another_method_is_a_405_that_names_those_allowed(service, path, method):
    status, headers, body = service.raw(method, path)
    assert (status, headers["content-type"]) == (405, "application/json")
    assert b'{"error":"' in body
    expected = {"GET", "HEAD", "OPTIONS"} | ({"POST"} if path == "/create_embedding" else set())
    assert set(headers["allow"].split(", ")) == expected


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/create_embedding"])
def test_only_create_embedding_takes_a_post(service, path):
    result = service.client.simulate_post(path, body=b"{}")
    assert_is_error(result, 405)
    assert "POST" not in result.headers["Allow"]


@pytest.mark.parametrize("path", ROUTES)
def test_options_lists_the_methods(service, path):
    result = service.client.simulate_options(path)
    assert result.status_code == 200
    assert "GET" in result.headers["Allow"]
    assert result.content == b""


def test_a_service_of_at_most_two_texts_refuses_three_with_both_numbers():
    with serving(max_texts=2) as service:
        assert service.embed({"text": ["a", "b"]}).status_code == 200
        result = service.embed({"text": ["a", "b", "c"]})
        assert_is_error(result, 413)
        assert "3 texts" in result.json["error"]
        assert "at most 2 " in result.json["error"]


@pytest.mark.parametrize(("word", "reason"), [(NOT_FINITE, "not finite"), (ABORTS, "out of memory")])
def test_a_text_that_fails_is_a_500_naming_its_index(service, word, reason):
    result = service.embed({"text": ["fine", "fine too", word, "fine"]})
    assert_is_error(result, 500)
    assert result.json["error"].startswith("text 2")
    assert reason in result.json["error"]


class BrokenTokenizer(StubEmbedder):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def tokenize(self, texts, **how):
        raise self.error


def test_a_text_that_cannot_be_tokenised_is_a_500_naming_its_index():
    with serving(BrokenTokenizer(TextError("text 1 cannot be tokenised; leave it out", 1))) as service:
        result = service.embed({"text": ["a", "b"]})
        assert_is_error(result, 500)
        assert result.json["error"] == "text 1 cannot be tokenised; leave it out"


def test_a_fault_of_ours_is_a_500_that_tells_nothing_and_a_trace_in_the_log(caplog):
    with serving(BrokenTokenizer(ValueError("a secret of the inside"))) as service:
        result = service.embed({"text": "a"})
    assert_is_error(result, 500)
    assert "secret" not in result.text
    (record,) = caplog.records
    assert record.name == "gunicorn.error"
    assert "a secret of the inside" in str(record.exc_info[1])


@pytest.mark.parametrize("broken", [NOT_FINITE, ABORTS])
def test_what_fails_in_a_shared_chunk_is_charged_to_its_own_request(broken):
    embedder = StubEmbedder()
    bodies = [{"text": ["a", "b"]}, {"text": ["c", broken]}, {"text": "d"}]
    with serving(embedder) as service:
        alone = service.embed(bodies[0]).content, service.embed(bodies[2]).content
        greenlets = behind_a_held_one(service, embedder, bodies)
        embedder.gate.set()
        results = [greenlet.get(timeout=SECONDS) for greenlet in greenlets]
        assert any(sorted(chunk) == sorted(["a", "b", "c", "d", broken]) for chunk in embedder.chunks)
        assert [result.status_code for result in results] == [200, 200, 500, 200]
        assert results[2].json["error"].startswith("text 1")
        assert (results[1].content, results[3].content) == alone


@pytest.mark.parametrize("text", ["short", ["a", "list"]])
@pytest.mark.parametrize("limits", [Limits(queue_requests=2), Limits(queue_tokens=2)], ids=["requests", "tokens"])
def test_a_full_queue_is_a_429_with_the_time_to_try_again(limits, text):
    embedder = StubEmbedder()
    with serving(embedder, limits=limits) as service:
        waiting = behind_a_held_one(service, embedder, [{"text": "waits"}])
        result = service.embed({"text": text})
        assert_is_error(result, 429)
        assert 1 <= int(result.headers["Retry-After"]) <= 60
        assert "2 requests, 2 texts, 2 tokens" in result.json["error"]
        assert service.get("/health").json["status"] == "healthy"
        embedder.gate.set()
        assert [greenlet.get(timeout=SECONDS).status_code for greenlet in waiting] == [200, 200]
        assert service.embed({"text": text}).status_code == 200, "the room is there again"


def test_one_request_over_the_tokens_of_the_queue_is_taken_when_it_is_alone():
    with serving(limits=Limits(queue_tokens=2)) as service:
        assert service.embed({"text": ["a", "b c"]}).status_code == 200


def test_a_draining_service_answers_503_and_finishes_what_it_has():
    embedder = StubEmbedder()
    with serving(embedder) as service:
        waiting = behind_a_held_one(service, embedder, [{"text": "waits"}])
        service.app.drain()
        result = service.embed({"text": "late"})
        assert_is_error(result, 503)
        assert int(result.headers["Retry-After"]) > 0
        assert service.get("/health").json["status"] == "draining"
        embedder.gate.set()
        assert [greenlet.get(timeout=SECONDS).status_code for greenlet in waiting] == [200, 200]


def test_an_abandoned_queue_is_answered_503():
    embedder = StubEmbedder()
    with serving(embedder) as service:
        waiting = behind_a_held_one(service, embedder, [{"text": "a"}, {"text": "b"}])
        service.app.drain()
        service.app.abandon()
        for greenlet in waiting:
            assert_is_error(greenlet.get(timeout=SECONDS), 503)
        embedder.gate.set()


HEALTH_FIELDS = {
    "status": "healthy",
    "model": "stub",
    "model_loaded": False,
    "device": "none",
    "device_name": None,
    "dimension": None,
    "max_seq": None,
    "requests": 0,
    "unload_after_s": 0,
    "loads": 0,
    "unloads": 0,
    "last_load_ms": None,
    "executor": {"pid": None, "restarts": 0, "last_failure": None},
}


@pytest.mark.parametrize("path", ["/", "/health"])
def test_health_is_told_during_the_load_and_after_it(path):
    may_load = threading.Event()

    def load():
        assert may_load.wait(SECONDS)
        return StubEmbedder()

    with serving(load=load) as service:
        health = service.get(path).json
        assert health.pop("idle_s") >= 0
        assert health == HEALTH_FIELDS
        early = gevent.spawn(service.embed, {"text": "early"})
        gevent.sleep(0)
        assert service.get(path).json["requests"] == 1
        assert service.get(path).json["model_loaded"] is False
        may_load.set()
        service.wait_for_load()
        assert early.get(timeout=SECONDS).status_code == 200, "a request that came too early waits for the load"
        health = service.get(path).json
        assert health.pop("idle_s") >= 0
        assert health.pop("last_load_ms") >= 0
        loaded = {"model_loaded": True, "device": "cpu", "device_name": "cpu stub", "dimension": DIMENSION}
        expected = {**HEALTH_FIELDS, **loaded, "max_seq": 1000, "requests": 1, "loads": 1}
        del expected["last_load_ms"]
        assert health == expected


def test_a_load_that_failed_is_a_503_with_its_reason_and_is_tried_again():
    cut = ModelError("model.safetensors is cut short; download it again")
    results = [cut, cut, cut, OSError(5, "Input/output error")]

    def load():
        if results:
            raise results.pop(0)
        return StubEmbedder()

    with serving(load=load) as service:
        service.wait_for_load()
        result = service.embed({"text": "a"})
        assert_is_error(result, 503)
        assert "model.safetensors is cut short" in result.json["error"]
        health = service.get("/health")
        assert health.status_code == 200
        assert (health.json["status"], health.json["model_loaded"], health.json["loads"]) == ("degraded", False, 0)
        assert "model.safetensors is cut short" in health.json["error"]
        assert "model.safetensors is cut short" in service.embed({"text": "a"}).json["error"]
        assert "Input/output error" in service.embed({"text": "a"}).json["error"]
        assert service.embed({"text": "a"}).status_code == 200
        health = service.get("/health").json
        assert (health["status"], health["model_loaded"], health["loads"]) == ("healthy", True, 1)
        assert "error" not in health


def test_the_callbacks_of_a_load_are_told_what_was_loaded():
    with serving(load=StubEmbedder) as service:
        told = []
        service.app.on_ready(told.append)
        service.wait_for_load()
        assert told[0].startswith("(stub, 4 dimensions, cpu stub, loaded in ")


@pytest.mark.parametrize("status", [400, 408, 413, 503])
def test_a_body_that_the_worker_refuses_is_an_error_in_json(service, status):
    class Input:
        def read(self, size=-1):
            raise Refused(status, "the body is refused; send another")

    got, headers, body = service.raw("POST", "/create_embedding", **{"wsgi.input": Input()})
    assert (got, headers["content-type"]) == (status, "application/json")
    assert body == b'{"error":"the body is refused; send another"}'


def test_a_body_is_read_only_where_it_is_wanted():
    class Input:
        def read(self, size=-1):
            raise AssertionError("read")

    with serving(token="secret") as service:
        unread = {"wsgi.input": Input()}
        assert service.raw("POST", "/create_embedding", **unread)[0] == 401
        trusted = {**unread, "HTTP_AUTHORIZATION": "Bearer secret"}
        assert service.raw("POST", "/nowhere", **trusted)[0] == 404
        assert service.raw("POST", "/health", **trusted)[0] == 405
        assert service.raw("POST", "/create_embedding", HTTP_CONTENT_ENCODING="gzip", **trusted)[0] == 415
        assert service.raw("GET", "/health", **trusted)[0] == 200


def test_a_connection_that_is_lost_while_its_body_is_read_is_left_to_the_worker(service):
    class Input:
        def read(self, size=-1):
            raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        service.raw("POST", "/create_embedding", **{"wsgi.input": Input()})


def test_a_deadline_passes_through_the_application_and_gives_the_queue_its_place_back():
    embedder = StubEmbedder()
    with serving(embedder, limits=Limits(queue_requests=1)) as service:
        embedder.gate.clear()
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
            service.embed({"text": "a"})
        embedder.gate.set()
        assert service.embed({"text": "b"}).status_code == 200


def hub_cache(folder):
    snapshot = folder / "models--BAAI--bge-m3" / "snapshots" / "5617a9f61b028005a4858fdac845db406aefb181"
    snapshot.mkdir(parents=True)
    return snapshot


def test_the_served_name_is_a_folders_or_a_hubs_and_never_a_path(tmp_path, monkeypatch):
    folder = tmp_path / "my-model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for given in (str(folder), f"{folder}/", ".", "./", f"{folder}/.", "../my-model", f"{tmp_path}/x/../my-model"):
        assert served_name(given) == "my-model", given
    snapshot = hub_cache(tmp_path)
    for given in (snapshot, f"{snapshot}/", snapshot.parent.parent):
        assert served_name(str(given)) == "BAAI/bge-m3", given
    monkeypatch.chdir(snapshot)
    assert served_name(".") == "BAAI/bge-m3"
    assert served_name("demo") == "demo"
    assert served_name("intfloat/multilingual-e5-small@refs/pr/2") == "intfloat/multilingual-e5-small"


def test_a_link_is_called_by_its_own_name(tmp_path):
    os.symlink(hub_cache(tmp_path), tmp_path / "current")
    assert served_name(str(tmp_path / "current")) == "current"
    assert served_name("/") == "model"


def test_the_model_name_setting_overrides():
    with serving(model_name="BAAI/bge-m3 (ours)") as service:
        assert service.embed({"text": "a"}).json["model"] == "BAAI/bge-m3 (ours)"
        assert service.get("/health").json["model"] == "BAAI/bge-m3 (ours)"


def test_create_app_takes_the_settings_and_loads_as_they_say(monkeypatch):
    given = {}

    def load(settings):
        given.update(dataclasses.asdict(settings))
        return StubEmbedder()

    monkeypatch.setattr(app_module, "_open_model", load)
    monkeypatch.setenv("EMBED_POOL", "cls")
    monkeypatch.setenv("EMBED_TOKEN", "secret")
    app = create_app("./some/model", maxseq=16, no_normalize=True, threads=2)
    try:
        client = falcon.testing.TestClient(app, headers={"Authorization": "Bearer secret"})
        assert client.simulate_post("/create_embedding", json={"text": "a"}).json["model"] == "model"
        assert (
            client.simulate_post(
                "/create_embedding", json={"text": "a"}, headers={"Authorization": "Bearer no"}
            ).status_code
            == 401
        )
    finally:
        app.close()
    expected = {
        "model": "./some/model",
        "device": "auto",
        "pool": "cls",
        "no_normalize": True,
        "maxseq": 16,
        "threads": 2,
    }
    assert given.items() >= expected.items()


def test_create_app_refuses_a_setting_that_it_does_not_know():
    with pytest.raises(OptionError, match="create_app knows no modle; it takes model, token"):
        create_app(modle="x")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("addr", "--bind"),
        ("access_log", "--access-logfile"),
        ("graceful", "--graceful-timeout"),
        ("log_level", "--l"),
    ],
)
def test_create_app_says_which_settings_are_gunicorn_s(name, option):
    with pytest.raises(OptionError, match=f"create_app takes no {name}; tell gunicorn, with {option}"):
        create_app("model", **{name: 1})


def test_create_app_needs_a_model(monkeypatch):
    monkeypatch.delenv("EMBED_MODEL", raising=False)
    with pytest.raises(OptionError, match="no model given"):
        create_app()


@pytest.mark.parametrize("given", [{"max_texts": 0}, {"pool": "median"}, {"token": ""}])
def test_create_app_refuses_a_value_that_nothing_could_take(given):
    with pytest.raises(OptionError):
        create_app("./some/model", **given)
