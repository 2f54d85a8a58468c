"""Giving the model's memory back and loading it again, on a real model: the timer, operators, folders that change."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
import tiny
from serve_process import InBackground, Serve, children_of, wait_until

TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SECURED = {"EMBED_TOKEN": TOKEN}


@pytest.fixture
def model(tmp_path):
    return tiny.make("xlmr", tmp_path / "model")


def health(service: Serve) -> dict:
    return service.get("/health", **BEARER).json


def embed(service: Serve, text: str = "hello world") -> object:
    answer = service.embed(text, **BEARER)
    assert answer.status == 200, answer.body
    return answer.json["embeddings"]


def unload(service: Serve) -> None:
    assert service.request("POST", "/unload", **BEARER).json["model_loaded"] is False
    wait_until(lambda: not children_of(service.worker), "the child to end")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Return the resident memory in KiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


@pytest.mark.parametrize("options", [(), ("--in-process",)], ids=["child", "in-process"])
def test_an_idle_model_is_unloaded_and_sixteen_at_once_wake_it_with_one_load(model, options):
    with Serve(model, "--unload-after", "0.5", *options) as service:
        service.ready()
        before = embed(service)
        began = time.monotonic()
        while health(service)["unloads"] == 0:  # asking for its health doesn't keep it awake
            assert time.monotonic() - began < 5
            time.sleep(0.05)
        state = health(service)
        assert (state["status"], state["model_loaded"], state["device"]) == ("healthy", False, "none")
        assert state["unload_after_s"] == 0.5
        assert [state["loads"], state["unloads"]] == [1, 1]
        if not options:
            wait_until(lambda: not children_of(service.worker), "the child to end")
        requests = [InBackground(embed, service) for _ in range(16)]
        assert all(request.result() == before for request in requests)
        assert health(service)["loads"] == 2
        assert health(service)["executor"]["restarts"] == 0


def test_requests_about_when_the_timer_runs_out_are_all_answered(model):
    with Serve(model, "--unload-after", "0.2") as service:
        service.ready()
        before = embed(service)
        for pause in [0.19, 0.195, 0.2, 0.205, 0.21] * 4:
            time.sleep(pause)
            assert embed(service) == before
        state = health(service)
        assert state["loads"] - state["unloads"] <= 1
        assert state["executor"]["restarts"] == 0


def test_operators_load_and_unload_and_nobody_else(model):
    with Serve(model, env=SECURED) as service:
        service.ready()
        for path in ("/load", "/unload"):
            assert service.request("POST", path).status == 401
            assert service.request("GET", path, **BEARER).status == 405
        before = embed(service)
        for unloads in (1, 2):
            unload(service)
            assert health(service)["unloads"] == unloads
            assert service.request("POST", "/load", **BEARER).json["model_loaded"] is True
        assert embed(service) == before
        assert health(service)["loads"] == 3


def test_without_a_token_nobody_may_load_or_unload(model):
    with Serve(model) as service:
        service.ready()
        for path in ("/load", "/unload"):
            answer = service.request("POST", path)
            assert answer.status == 403
            assert "has no token" in answer.json["error"]
        assert health(service)["unloads"] == 0


def test_what_is_computed_is_not_unloaded(model):
    with Serve(model, env=SECURED) as service:
        service.ready()
        (child,) = children_of(service.worker)
        os.kill(child, signal.SIGSTOP)
        request = InBackground(embed, service)
        wait_until(lambda: health(service)["requests"] == 1, "the request to have come")
        answer = service.request("POST", "/unload", **BEARER)
        assert (answer.status, "being computed" in answer.json["error"]) == (409, True)
        os.kill(child, signal.SIGCONT)
        request.result()


def test_without_a_warm_up_the_first_request_loads(model):
    with Serve(model, "--no-warmup") as service:
        assert "loaded when the first request comes" in service.ready()
        state = health(service)
        assert (state["model_loaded"], state["loads"], state["dimension"]) == (False, 0, tiny.WIDTH)
        assert not children_of(service.worker)
        embed(service)
        assert health(service)["loads"] == 1


def remove(model):
    model.rename(model.with_name("elsewhere"))
    return lambda: model.with_name("elsewhere").rename(model)


def cut(model):
    """Cut the weights short, and put a copy of the old ones there again."""
    path, copy = model / "model.safetensors", model.with_name("copy")
    shutil.copy(path, copy)
    os.truncate(path, path.stat().st_size // 2)
    return lambda: shutil.copy(copy, path)


def empty_the_tokenizer(model):
    path, copy = model / "tokenizer.json", model.with_name("copy")
    shutil.copy(path, copy)
    os.truncate(path, 0)
    return lambda: shutil.copy(copy, path)


@pytest.mark.parametrize("break_it", [remove, cut, empty_the_tokenizer], ids=lambda function: function.__name__)
def test_a_model_that_breaks_while_it_is_unloaded_is_a_503_until_it_is_mended(model, break_it):
    with Serve(model, env=SECURED) as service:
        service.ready()
        before, worker = embed(service), service.worker
        unload(service)
        mend = break_it(model)
        for _ in range(2):
            answer = service.embed("hello", **BEARER)
            assert answer.status == 503
            assert str(model) in answer.json["error"]
        assert health(service)["status"] == "degraded"
        mend()
        assert embed(service) == before
        assert health(service)["status"] == "healthy"
        assert service.worker == worker


def test_a_model_that_is_replaced_while_it_is_unloaded_is_read_anew_tokenizer_and_all(model, tmp_path):
    other = tiny.make("bert", tmp_path / "other")
    with Serve(other) as service:
        service.ready()
        expected = embed(service)
    with Serve(model, env=SECURED) as service:
        service.ready()
        assert embed(service) != expected
        unload(service)
        shutil.rmtree(model)
        other.rename(model)
        assert embed(service) == expected
        service.line("has changed, and what is there now is taken")


def test_a_child_that_dies_after_the_folder_has_changed_is_not_mixed_with_the_old_tokenizer(model):
    with Serve(model, env=SECURED) as service:
        service.ready()
        before = embed(service)
        (child,) = children_of(service.worker)
        os.utime(model / "tokenizer.json")
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not health(service)["model_loaded"], "its death to be seen")
        assert embed(service) == before
        service.line("has changed, and what is there now is taken")


def test_fifty_cycles_leak_nothing(model):
    with Serve(model, env=SECURED) as service:
        service.ready()
        worker = service.worker
        held = []
        for cycle in range(50):
            embed(service)
            unload(service)
            if cycle in (9, 49):
                held.append((resident(worker), descriptors(worker)))
        (early, early_descriptors), (late, late_descriptors) = held
        wait_until(lambda: descriptors(worker) <= early_descriptors, f"{late_descriptors} descriptors to be fewer")
        assert late - early < 4096
        assert health(service)["unloads"] == 50


def test_both_ways_of_computing_give_the_same_bits(model):
    answers = []
    for options in ((), ("--in-process",)):
        with Serve(model, *options) as service:
            service.ready()
            assert bool(children_of(service.worker)) is not bool(options)
            answers.append(service.embed(["a", "hello world " * 40, ""] * 20).body)
    assert answers[0] == answers[1]
