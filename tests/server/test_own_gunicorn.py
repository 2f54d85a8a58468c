"""gunicorn's own command with the service's worker and application, as people with a set-up of their own run it."""

from __future__ import annotations

import signal

import pytest
import tiny
from live_worker import gunicorn, run_gunicorn
from serve_process import Serve

from embed import models

LOADER = "embed.server:create_app"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("gunicorn") / "tiny")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_ends(model, number):
    with Serve(command=gunicorn(f'{LOADER}("{model}", token="s3cret")')) as service:
        assert "(tiny, 32 dimensions" in service.ready()
        assert service.embed("hello").status == 401
        assert service.embed("hello", Authorization="Bearer s3cret").status == 200
        assert service.end(number) == 0


def test_what_is_not_given_is_read_from_variables(model):
    env = {"EMBED_MODEL": str(model), "EMBED_MAX_TEXTS": "1"}
    with Serve(command=gunicorn(f"{LOADER}()"), env=env) as service:
        service.ready()
        assert service.embed(["a", "b"]).status == 413


def test_a_reload_serves_on(model):
    with Serve(command=gunicorn(f'{LOADER}("{model}")')) as service:
        service.ready()
        service.send(signal.SIGHUP)
        service.ready()
        assert service.embed("hello").status == 200
        assert service.end() == 0


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_another_worker_class_is_refused_in_one_sentence(model, worker):
    code, said = run_gunicorn("-k", worker, "--log-level", "critical", f'{LOADER}("{model}")')
    assert code != 0
    assert said.count("\n") == 1
    assert "start gunicorn with -k embed.server.Worker" in said


def test_loading_before_the_fork_is_refused_in_one_sentence(model):
    code, said = run_gunicorn("--preload", "--log-level", "critical", f'{LOADER}("{model}")')
    assert code != 0
    assert [line for line in said.splitlines() if line] == [said.strip()]
    assert "without --preload" in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("()", "no model given"),
        ('("MODEL", frobnicate=1)', "create_app knows no frobnicate; it takes model, token, token_file, model_name,"),
        ('("MODEL", addr="127.0.0.1:1")', "create_app takes no addr; tell gunicorn, with --bind"),
        ('("MODEL", token="")', "is empty"),
    ],
)
def test_a_refused_setting_is_told_in_one_sentence(model, call, said):
    call = call.replace("MODEL", str(model))
    code, err = run_gunicorn("--log-level", "critical", LOADER + call)
    assert code != 0
    assert (err.count("\n"), said in err) == (1, True), err


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path):
    code, said = run_gunicorn("--log-level", "critical", f'{LOADER}("{tmp_path}/nowhere")')
    assert code != 0
    assert said == f"embed: error: there is no model folder '{tmp_path}/nowhere'; pass {models.EXPECTED}\n"
