"""`/openapi.json` is held against the routes: nothing is in it that isn't so, and nothing is missing from it."""

import subprocess
import sys

import falcon.inspect
import falcon.testing
import gevent
import orjson
import pytest
import tiny
from command_line import environment
from serve_process import Serve
from stub_embedder import NOT_FINITE, StubEmbedder
from stub_service import SECONDS, behind_a_held_one, serving

import embed
from embed.server import resources
from embed.server.connection import Refused
from embed.server.limits import Limits
from embed.server.openapi import document
from embed.server.settings import Settings

TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
# What the worker says instead of any route; the tests of its stages provoke each.
OF_THE_WORKER = {400, 408, 417, 431, 500, 501, 503, 504, 505}
EMBED_TEXTS = ("POST", "/create_embedding")
EMBED_TEXT = ("GET", "/create_embedding")
LOAD, UNLOAD = ("POST", "/load"), ("POST", "/unload")
EXAMPLES = 60  # an operation
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "positive_data_acceptance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


@pytest.fixture(scope="module", params=[False, True], ids=["open", "secured"])
def secured(request):
    return request.param


@pytest.fixture(scope="module")
def service(secured):
    with serving(token=TOKEN if secured else None) as service:
        yield service


@pytest.fixture(scope="module")
def described(service):
    answer = service.get("/openapi.json", headers=BEARER)
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json


def operations(described):
    """Return each operation by its method and path."""
    paths = described["paths"].items()
    return {(method.upper(), path): operation for path, item in paths for method, operation in item.items()}


def references(part):
    """Return what every $ref says, anywhere in a part of the document."""
    if isinstance(part, dict) and "$ref" in part:
        return {part["$ref"]}
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return {found for value in inner for found in references(value)}


def response_of(described, operation, status):
    """Return what is said about an answer, with its reference followed."""
    about = operations(described)[operation]["responses"][str(status)]
    return described["components"]["responses"][about["$ref"].split("/")[-1]] if "$ref" in about else about


VALIDATE = "import json, schemathesis, sys; schemathesis.openapi.from_dict(json.load(sys.stdin)).validate()"


def validity_of(described):
    """Return what schemathesis says against a document. In a process of its own, whose warnings aren't ours."""
    command, text = [sys.executable, "-c", VALIDATE], orjson.dumps(described)
    return subprocess.run(command, input=text, capture_output=True, timeout=3 * SECONDS).stderr.decode()


def test_it_is_an_openapi_document(described):
    assert validity_of(described) == ""
    assert "is a required property" in validity_of({**described, "info": {"title": "without a version"}})
    assert described["openapi"].startswith("3.1.")
    assert described["info"]["version"] == embed.__version__


def test_every_reference_has_its_part_and_every_part_is_referred_to(described):
    components = described["components"]
    parts = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in components[kind]}
    # Two answers belong to no operation: they are what a request that asks for none gets.
    extra = {"#/components/responses/NotFound", "#/components/responses/MethodNotAllowed"}
    assert references(described) == parts - extra


def test_every_route_is_in_it_and_no_other(service, described):
    routes = {
        (method.method, route.path)
        for route in falcon.inspect.inspect_routes(service.app)
        for method in route.methods
        if not method.internal and method.method != "HEAD"
    }
    assert set(operations(described)) == routes
    identifiers = [operation["operationId"] for operation in operations(described).values()]
    assert len(set(identifiers)) == len(identifiers)


def test_the_document_says_what_is_so_for_every_path_and_no_operation_can(service, described):
    missing = service.get("/nowhere", headers=BEARER)
    refused = service.client.simulate_put("/health", headers=BEARER)
    for name, answer, status in (("NotFound", missing, 404), ("MethodNotAllowed", refused, 405)):
        assert answer.status_code == status
        about = described["components"]["responses"][name]
        assert set(about.get("headers", {})) == ({"Allow"} if status == 405 else set())
        assert all(header in answer.headers for header in about.get("headers", {}))


class Refusing:
    """A body that the worker refuses while it is read."""

    def __init__(self, status):
        self.status = status

    def read(self, size=-1):
        raise Refused(self.status, "a sentence")


def refused_while_read(service, status):
    environ = {"wsgi.input": Refusing(status), "HTTP_AUTHORIZATION": BEARER["Authorization"]}
    got, headers, body = service.raw("POST", "/create_embedding", **environ)
    return falcon.testing.Result([body], f"{got} ", list(headers.items()))


def with_a_full_queue(secured):
    """Return what a POST and a GET get when no more fits, and what who wants to unload."""
    embedder = StubEmbedder()
    with serving(embedder, limits=Limits(queue_requests=1), token=TOKEN if secured else None) as service:
        service.client = falcon.testing.TestClient(service.app, headers=BEARER)
        waiting = behind_a_held_one(service, embedder, [])
        answers = (
            service.embed({"text": "a"}),
            service.get("/create_embedding", "text=a"),
            service.client.simulate_post("/unload"),
        )
        embedder.gate.set()
        gevent.joinall(waiting, timeout=SECONDS, raise_error=True)
    return answers


def ending(secured):
    """Return what a POST and a GET get while the service drains, and what who wants to load."""
    with serving(token=TOKEN if secured else None) as service:
        service.app.drain()
        return (
            service.embed({"text": "a"}, headers=BEARER),
            service.get("/create_embedding", "text=a", headers=BEARER),
            service.client.simulate_post("/load", headers=BEARER),
        )


@pytest.fixture(scope="module")
def answers(service, secured):
    """Return an answer of each operation for each status that its route can give."""

    def post(document, **headers):
        return service.embed(document, headers={**BEARER, **headers})

    def get(query):
        return service.get("/create_embedding", query, headers=BEARER)

    full, draining = with_a_full_queue(secured), ending(secured)
    answers = {
        (EMBED_TEXTS, 200): post({"text": ["a", "b"]}),
        (EMBED_TEXTS, 400): post({"text": 5}),
        (EMBED_TEXTS, 408): refused_while_read(service, 408),
        (EMBED_TEXTS, 413): post({"text": ["a"] * 5000}),
        (EMBED_TEXTS, 415): post({"text": "a"}, **{"Content-Encoding": "gzip"}),
        (EMBED_TEXTS, 429): full[0],
        (EMBED_TEXTS, 500): post({"text": NOT_FINITE}),
        (EMBED_TEXTS, 503): draining[0],
        (EMBED_TEXT, 200): get("text=a"),
        (EMBED_TEXT, 400): get(""),
        (EMBED_TEXT, 429): full[1],
        (EMBED_TEXT, 500): get(f"text={NOT_FINITE}".replace(" ", "+")),
        (EMBED_TEXT, 503): draining[1],
    }
    for path in ("/", "/health", "/metrics", "/openapi.json"):
        answers[("GET", path), 200] = service.get(path, headers=BEARER)
    for operation in (LOAD, UNLOAD):
        answers[operation, 200 if secured else 403] = service.client.simulate_post(operation[1], headers=BEARER)
    if secured:
        answers[UNLOAD, 409] = full[2]
        answers[LOAD, 503] = draining[2]
        for operation in (LOAD, UNLOAD):
            answers[operation, 401] = service.client.simulate_post(operation[1])
        answers[EMBED_TEXTS, 401] = service.embed({"text": "a"})
        for path in ("/create_embedding", "/metrics", "/openapi.json"):
            answers[("GET", path), 401] = service.get(path)
    return answers


def test_every_status_that_a_route_gives_is_documented_and_every_documented_one_is_given(described, answers):
    for (operation, status), answer in answers.items():
        assert answer.status_code == status, operation
    given = {(operation, status) for operation, status in answers}
    documented = {
        (operation, int(status)) for operation, about in operations(described).items() for status in about["responses"]
    }
    assert given <= documented
    assert documented - given <= {(operation, status) for operation, _ in documented for status in OF_THE_WORKER}
    for operation in operations(described):
        assert {(operation, status) for status in OF_THE_WORKER} <= documented


def test_answers_have_the_headers_and_the_media_type_that_are_documented(described, answers):
    for (operation, status), answer in answers.items():
        about = response_of(described, operation, status)
        assert list(about["content"]) == [answer.headers["Content-Type"]]
        assert all(header in answer.headers for header in about.get("headers", {})), (operation, status)
        undocumented = set(answer.headers) - {name.lower() for name in about.get("headers", {})}
        assert undocumented <= {"content-type", "content-length", "vary"}, (operation, status)


def test_errors_are_as_documented(described, answers):
    (key,) = described["components"]["schemas"]["Error"]["required"]
    for (_, status), answer in answers.items():
        if status >= 400:
            assert list(answer.json) == [key]
            assert answer.json[key]


def test_health_has_the_fields_that_are_documented(service, described, secured):
    schemas = described["components"]["schemas"]
    full = service.get("/health", headers=BEARER).json
    assert list(full) == schemas["Health"]["required"]
    assert set(schemas["Health"]["properties"]) - set(full) == {"error"}
    if secured:
        assert list(service.get("/health").json) == schemas["HealthInBrief"]["required"]


def test_the_token_s_two_ways_are_documented_where_there_is_one(described, secured):
    needed = {
        operation: about.get("security", described.get("security"))
        for operation, about in operations(described).items()
    }
    if not secured:
        assert "securitySchemes" not in described["components"]
        assert set(map(str, needed.values())) == {"None"}
        return
    schemes = described["components"]["securitySchemes"]
    assert {(scheme["type"], scheme.get("scheme", scheme.get("name"))) for scheme in schemes.values()} == {
        ("http", "bearer"),
        ("apiKey", "token"),
    }
    either = [{name: []} for name in schemes]
    for (_, path), security in needed.items():
        assert security == ([{}, *either] if path in ("/", "/health") else either)


def test_it_has_this_service_s_limits_defaults_and_name():
    limits = Limits(body_bytes=1234, queue_requests=7, queue_tokens=77, idle_s=5, request_s=60, head_bytes=999)
    settings = Settings(model="m", max_texts=12, no_normalize=True)
    about = document(settings, limits, name="BAAI/bge-m3", secured=False)
    assert about["components"]["schemas"]["Texts"]["anyOf"][1]["maxItems"] == 12
    text = orjson.dumps(about).decode()
    for said in ("1,234 bytes", "12 texts", "7 requests or 77 tokens", "over 5 s", "over 60 s", "999 bytes"):
        assert said in text
    assert text.count("it is off in this service") == 2
    assert about["components"]["schemas"]["Embeddings"]["properties"]["model"]["examples"] == ["BAAI/bge-m3"]


def test_it_is_written_once(monkeypatch):
    with serving() as service:
        first = service.get("/openapi.json").content
        monkeypatch.setattr(resources, "document", None)
        monkeypatch.setattr(resources, "orjson", None)
        assert service.get("/openapi.json").content == first


@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "secured"])
def test_schemathesis_finds_nothing(token, tmp_path):
    """A live service, asked with data that the document allows and data that it forbids; the same in every run."""
    model = tiny.make("xlmr", tmp_path / "tiny")
    (tmp_path / "schemathesis.toml").write_text(
        '[checks.negative_data_rejection]\nexpected-statuses = ["400", "401", "404", "405", "413", "415"]\n'
    )
    with Serve(model, "--max-texts", "8", env={"EMBED_TOKEN": token} if token else {}) as live:
        live.ready()
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/openapi.json", "--no-color"]
        bounds = ["--phases=examples,coverage,fuzzing", f"--max-examples={EXAMPLES}", "--generation-deterministic"]
        credentials = [f"--header=Authorization: Bearer {token}"] if token else []
        done = subprocess.run(
            [*command, *bounds, *credentials, f"--checks={','.join(CHECKS)}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=10 * SECONDS,
            env=environment(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Tested: 7" in done.stdout
        assert live.end() == 0
        assert len(live.lines) == 1, "nothing but the line that says where it listens"
