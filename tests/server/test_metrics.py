"""What /metrics counts, and that strangers can't make it grow."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stub_embedder import NOT_FINITE, StubEmbedder
from stub_service import behind_a_held_one, serving

from embed.server.limits import Limits


@pytest.fixture
def service():
    with serving(StubEmbedder(maxseq=3)) as service:
        yield service


def requests(counters):
    """Return the counter of requests by (route, status)."""
    pattern = re.compile(r'embed_requests_total\{route="(.*)",status="(.*)"\}')
    return {found.groups(): value for name, value in counters.items() if (found := pattern.fullmatch(name))}


def test_the_text_is_what_prometheus_reads(service):
    service.embed({"text": "a"})
    answer = service.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {"embed_requests", "embed_request_seconds", "embed_queue_tokens", "process_open_fds"} <= set(families)
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_requests_are_counted_by_route_and_status(service):
    service.embed({"text": "a"})
    service.embed({"text": "a"})
    service.embed({"text": NOT_FINITE})
    service.embed({"text": 5})
    service.get("/create_embedding", "text=a")
    service.get("/health")
    service.get("/health/")
    service.get("/")
    service.raw("PUT", "/health")
    service.raw("BREW", "/metrics")
    service.get("/nowhere")
    assert requests(service.counters()) == {
        ("/create_embedding", "200"): 3,
        ("/create_embedding", "400"): 1,
        ("/create_embedding", "500"): 1,
        ("/health", "200"): 2,
        ("/", "200"): 1,
        ("/health", "405"): 1,
        ("/metrics", "405"): 1,
        ("none", "404"): 1,
    }
    assert requests(service.counters())["/metrics", "200"] == 1, "the answer before"


def test_a_request_without_the_token_is_counted_under_no_route():
    with serving(token="s3cret") as service:
        service.get("/metrics")
        service.embed({"text": "a"})
        service.get("/health")
        answer = service.get("/metrics", headers={"Authorization": "Bearer s3cret"}).text
    assert 'embed_requests_total{route="none",status="401"} 2.0' in answer
    assert 'embed_requests_total{route="/health",status="200"} 1.0' in answer


def test_what_the_worker_refuses_is_counted(service):
    for status in (408, 431, 431):
        service.app.refused(status)
    assert requests(service.counters()) == {("none", "408"): 1, ("none", "431"): 2}


def test_strangers_make_no_labels(service):
    """Whatever paths, methods, queries and headers they send."""
    for path in ("/", "/health", "/create_embedding", "/nowhere"):
        for method in ("GET", "POST", "BREW"):
            service.raw(method, path)
    before = set(service.counters())
    for i in range(200):
        service.raw(path=f"/{i}")
        service.raw(path=f"/create_embedding/{i}")
        service.raw(f"M{i}", "/health")
        service.raw(f"M{i}", f"/{i}")
        service.raw(path="/health", QUERY_STRING=f"a{i}=b{i}", HTTP_HOST=f"host{i}", HTTP_USER_AGENT=f"{i}")
    after = set(service.counters())
    assert after - before == {name for name in after if "/metrics" in name}


def test_texts_tokens_and_cut_texts_are_counted(service):
    service.embed({"text": ["one", "one two", "one two three four"]})
    service.embed({"text": "a"})
    service.embed({"text": ["a", NOT_FINITE]})
    counters = service.counters()
    assert counters["embed_texts_total"] == 4
    assert counters["embed_tokens_total"] == 8, "as they were before they were cut"
    assert counters["embed_truncated_texts_total"] == 1


def test_chunks_are_counted_as_they_were_computed(service):
    service.embed({"text": ["one", "one two", "one two three four"]})
    service.embed({"text": "a"})
    counters = service.counters()
    assert counters["embed_chunk_texts_count"] == counters["embed_chunk_seconds_count"] == 2
    assert counters["embed_chunk_texts_sum"] == 4
    assert counters["embed_chunk_tokens_sum"] == 7
    assert counters['embed_chunk_texts_bucket{le="1.0"}'] == 1
    assert counters['embed_chunk_tokens_bucket{le="16.0"}'] == 2


def test_the_queue_s_depth_is_what_it_is_now():
    embedder = StubEmbedder()
    with serving(embedder, limits=Limits(queue_requests=3)) as service:
        assert service.counters()["embed_queue_requests"] == 0
        greenlets = behind_a_held_one(service, embedder, [{"text": "one two"}, {"text": ["a", "b", "c"]}])
        counters = service.counters()
        assert (counters["embed_queue_requests"], counters["embed_queue_tokens"]) == (3, 6)
        assert service.embed({"text": "refused"}).status_code == 429
        embedder.gate.set()
        for greenlet in greenlets:
            assert greenlet.get(timeout=20).status_code == 200
        counters = service.counters()
        assert (counters["embed_queue_requests"], counters["embed_queue_tokens"]) == (0, 0)
        assert requests(counters)["/create_embedding", "429"] == 1


def test_latencies_are_observed_for_each_route(service):
    service.embed({"text": "a"})
    service.get("/health")
    counters = service.counters()
    for route in ("/create_embedding", "/health"):
        assert counters[f'embed_request_seconds_count{{route="{route}"}}'] == 1
        assert 0 < counters[f'embed_request_seconds_sum{{route="{route}"}}'] < 20


def test_loads_are_counted(service):
    counters = service.counters()
    assert counters["embed_loads_total"] == 1
    assert 0 <= counters["embed_last_load_seconds"] < 20


def test_two_services_in_one_process_count_for_themselves(service):
    with serving() as other:
        other.embed({"text": "a"})
        assert "embed_texts_total" in service.counters()
        assert service.counters()["embed_texts_total"] == 0
