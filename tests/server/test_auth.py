"""The token: every path but the health check is closed without it, and nothing about it is told."""

import ast
import inspect
import os

import falcon
import pytest
from stub_service import serving

from embed.errors import OptionError
from embed.server import auth
from embed.server.app import create_app
from embed.server.auth import TokenCheck

TOKEN = "s3cret-+/=~%"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CLOSED = ["/create_embedding", "/metrics", "/openapi.json", "/docs", "/nowhere", "/HEALTH", "//health", "/health/x"]


@pytest.fixture(scope="module")
def service():
    with serving(token=TOKEN) as service:
        yield service


def assert_is_401(result):
    assert result.status_code == 401
    assert result.headers["WWW-Authenticate"] == "Bearer"
    assert result.json == {"error": "unauthorized - pass 'Authorization: Bearer <token>'"}


def status_with(service, query="", **environ):
    """Return the status of a request for /metrics with this environment."""
    return service.raw(path="/metrics", QUERY_STRING=query, **environ)[0]


@pytest.mark.parametrize("path", [*CLOSED, "//create_embedding", "/create_embedding/", "/metrics/"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW"])
def test_without_the_token_every_path_is_a_401_known_or_not(service, path, method):
    status, headers, body = service.raw(method, path)
    assert (status, headers["www-authenticate"], headers["content-type"]) == (401, "Bearer", "application/json")
    assert TOKEN.encode() not in body


@pytest.mark.parametrize("path", ["/", "/health", "/health/"])
def test_the_health_check_tells_two_fields_without_the_token_and_all_with_it(service, path):
    brief, full = service.get(path), service.get(path, headers=BEARER)
    assert (brief.status_code, full.status_code) == (200, 200)
    assert brief.json == {"status": "healthy", "model_loaded": True}
    assert full.json["model"] == "stub"
    assert service.get(path, headers={"Authorization": "Bearer wrong"}).json == brief.json
    assert service.client.simulate_head(path).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "OPTIONS", "BREW"])
def test_the_health_check_is_open_to_reading_only(service, method):
    assert service.raw(method, "/health")[0] == 401


def test_with_the_token_every_route_answers(service):
    for path, query in [("/", ""), ("/health", ""), ("/metrics", ""), ("/openapi.json", "")]:
        assert service.get(path, query, headers=BEARER).status_code == 200
    assert service.get("/create_embedding", "text=a", headers=BEARER).status_code == 200
    assert service.embed({"text": "a"}, headers=BEARER).status_code == 200
    assert service.get("/nowhere", headers=BEARER).status_code == 404


@pytest.mark.parametrize(
    "header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}", f"bEaReR {TOKEN}"], ids=lambda text: text[:6]
)
def test_the_scheme_may_be_written_in_any_case(service, header):
    assert status_with(service, HTTP_AUTHORIZATION=header) == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Bearer  {TOKEN}",
        f"Bearer {TOKEN} ",
        f"Bearer\t{TOKEN}",
        f" Bearer {TOKEN}",
        f"Bearer {TOKEN},Bearer {TOKEN}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        f"Bearer wrong,Bearer {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN[:-1]}X",
        f"Bearer X{TOKEN[1:]}",
        f"Basic {TOKEN}",
        "Basic dXNlcjpzM2NyZXQ=",
        f"Token {TOKEN}",
        "Bearer s\xe9cr\xe9t",
        "Bearer \xff\x00",
        "Bearer None",
        "Bearer " + "x" * 65_536,
        "x" * 65_536,
    ],
    ids=lambda text: repr(text)[:30],
)
def test_a_header_that_is_not_the_token_is_a_401(service, header):
    assert status_with(service, HTTP_AUTHORIZATION=header) == 401


def test_the_token_may_come_in_the_query(service):
    encoded = "".join(f"%{ord(char):02X}" for char in TOKEN)
    for query in (f"token={encoded}", f"x=1&token={encoded}", f"token={encoded}&token=wrong"):
        assert status_with(service, query) == 200
    assert status_with(service, "token=s3cret-+/=~%25") == 200, "a plus is no space here: a token has none"


@pytest.mark.parametrize(
    "query",
    ["", "token", "token=", "token=wrong", "Token={}", "token={}x", "token=wrong&token={}", "token=%FF", "token=\xff"],
)
def test_a_query_without_the_token_is_a_401(service, query):
    assert status_with(service, query.format("s3cret-%2B/=~%25")) == 401


def test_a_header_wins_over_the_query(service):
    right = "token=s3cret-%2B/=~%25"
    for header in ("Bearer wrong", "Basic x", ""):
        assert status_with(service, right, HTTP_AUTHORIZATION=header) == 401
    assert status_with(service, "token=wrong", HTTP_AUTHORIZATION=f"Bearer {TOKEN}") == 200


def test_a_refusal_is_in_json_and_names_the_header(service):
    assert_is_401(service.get("/metrics"))
    assert_is_401(service.embed({"text": "a"}))


def test_without_a_token_nothing_is_asked_for():
    with serving() as service:
        for header in ("Bearer anything", "Basic x", "\xff", ""):
            assert status_with(service, "token=x", HTTP_AUTHORIZATION=header) == 200
        assert "model" in service.get("/health").json


@pytest.mark.parametrize("token", ["", "with space", "s\xe9cret", "tab\t", "line\n", "\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_at_the_start(token):
    with pytest.raises(OptionError, match="the token"):
        create_app("some/model", token=token)


def test_the_token_is_in_no_answer_and_no_log(service, caplog):
    caplog.set_level("DEBUG")
    answers = [
        service.get("/health", headers=BEARER),
        service.get("/metrics", headers=BEARER),
        service.get("/openapi.json", headers=BEARER),
        service.get("/create_embedding", f"token={TOKEN}"),
        service.get("/nowhere", headers=BEARER),
        service.embed({"text": 5}, headers=BEARER),
    ]
    assert all(TOKEN not in answer.text for answer in answers)
    assert TOKEN not in caplog.text


def test_the_token_is_compared_in_constant_time_and_nowhere_else():
    """By construction: no operator touches it, only `hmac.compare_digest`, and that of bytes."""
    tree = ast.parse(inspect.getsource(TokenCheck))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "_token"]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    compared = [call for call in calls if ast.unparse(call.func) == "hmac.compare_digest"]
    assert [ast.unparse(call) for call in compared] == ["hmac.compare_digest(_presented(req), self._token)"]
    others = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and "_token" in ast.unparse(node)]
    assert [ast.unparse(node) for node in others] == ["self._token is None"]
    assert len(uses) == 3, "set, found missing, compared"
    request = falcon.Request(falcon.testing.create_environ(headers=BEARER))
    assert auth._presented(request) == os.fsencode(TOKEN)
