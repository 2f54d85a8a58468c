"""The service and a child that misbehaves on request, over real sockets: each fault costs its own request alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import stub_child
from live_worker import running_worker
from serve_process import InBackground, Serve, alive, children_of, wait_until

TOKEN = "s3cret"
APP = "stub_child_app:create({})"
QUICK = {"EMBED_EXECUTOR_STARTUP_MS": "5000", "EMBED_EXECUTOR_WATCHDOG_MS": "400"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Log:
    """What the stub's children have noted, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    @property
    def starts(self) -> int:
        return sum(line.startswith("start") for line in self.lines)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "log")


@pytest.fixture
def start(log):
    """Return a context manager that runs the service on a stub with these words."""

    def start(*words, constants="", **settings):
        environment = {**QUICK, "STUB_CHILD": " ".join([f"log={log.path}", *words]), **settings}
        return running_worker(app=APP.format(constants), **environment)

    return start


def health(service: Serve) -> dict:
    return service.get("/health", **BEARER).json


def assert_right(service: Serve, text: str = "fine") -> None:
    answer = service.embed(text)
    assert (answer.status, answer.json.get("embeddings")) == (200, [stub_child.vector_of(text)]), answer.body


def child_of(service: Serve) -> int:
    return int(health(service)["executor"]["pid"])


def counter(service: Serve, name: str) -> float:
    lines = service.get("/metrics", **BEARER).body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_child_that_is_killed_while_idle_is_replaced_and_nobody_notices(start):
    with start(constants="QUICK_DEATH_S=0") as service:
        assert_right(service)
        os.kill(child_of(service), signal.SIGKILL)
        service.line("ended by SIGKILL while it was idle")
        wait_until(lambda: health(service)["loads"] == 2, "another child, before anybody asks")
        assert_right(service)
        assert health(service)["executor"]["restarts"] == 1
        assert "SIGKILL" in health(service)["executor"]["last_failure"]


def test_a_child_that_dies_young_and_idle_waits_for_a_request(start, log):
    with start() as service:
        os.kill(child_of(service), signal.SIGKILL)
        wait_until(lambda: not health(service)["model_loaded"], "its death to be seen")
        assert health(service)["status"] == "healthy"
        assert log.starts == 1
        assert_right(service)
        assert log.starts == 2


@pytest.mark.parametrize(
    ("trick", "how"),
    [
        ("die", "was ended by SIGKILL while it computed"),
        ("abort", "was ended by SIGABRT while it computed; it said last: terminate called after"),
        ("stop", r"was ended by SIGKILL after it had made no progress for 0.4 s \(EMBED_EXECUTOR_WATCHDOG_MS\)"),
        ("hang", "was ended by SIGTERM after it had made no progress for 0.4 s"),
        ("babble", "after it had made no progress for 0.4 s"),
        ("close", "while it computed"),
    ],
)
def test_a_request_whose_child_dies_once_is_computed_again_and_gets_its_answer(start, tmp_path, trick, how):
    with start(f"once={tmp_path / 'once'}" if trick != "babble" else "babbles") as service:
        answer = service.embed([f"{trick} here", "fine"])
        if trick == "babble":  # it does so each time
            assert answer.status == 500
            assert "no progress" in answer.json["error"]
        else:
            assert answer.json["embeddings"] == [stub_child.vector_of(f"{trick} here"), stub_child.vector_of("fine")]
            assert health(service)["executor"]["restarts"] == 1
            assert counter(service, "embed_retries_total") == 1
        service.line(how)
        assert_right(service)


@pytest.mark.parametrize("trick", ["die", "abort", "hang", "stop", "torn", "short", "narrow"])
def test_a_request_that_always_ends_its_child_is_a_500_for_it_alone(start, log, trick):
    with start() as service:
        worker = service.worker
        answer = service.embed(f"{trick} now")
        assert answer.status == 500
        assert answer.json["error"].startswith("text 0 can't be computed (the model process ")
        assert log.starts == 2, "computed again once"
        assert_right(service)
        assert log.starts == 3
        state = health(service)
        assert state["status"] == "healthy"
        assert state["executor"]["restarts"] == 2
        assert state["executor"]["last_failure"] in answer.json["error"]
        assert service.worker == worker


def test_fifteen_requests_that_share_a_chunk_with_an_aborting_one_are_answered(start, log, tmp_path):
    gate = tmp_path / "gate"
    with start(f"gate={gate}") as service:
        # Of many tokens, so that the pace measured has room for all the others in one chunk, however long it's held.
        held = InBackground(service.embed, "hold" + " x" * 300)
        wait_until(lambda: log.lines.count("embed 1") == 2, "the child to be busy, after its warm-up")
        good = [InBackground(service.embed, f"g{i}") for i in range(8)]
        bad = InBackground(service.embed, "abort")
        good += [InBackground(service.embed, f"g{i}") for i in range(8, 15)]
        wait_until(lambda: health(service)["requests"] == 17, "all to wait")
        gate.touch()
        assert held.result().status == 200
        for i, request in enumerate(good):
            answer = request.result()
            assert (answer.status, answer.json["embeddings"]) == (200, [stub_child.vector_of(f"g{i}")])
        answer = bad.result()
        assert (answer.status, "SIGABRT" in answer.json["error"]) == (500, True)
        assert "embed 16" in log.lines, "they did share a chunk"
        assert_right(service)


def test_a_start_may_take_longer_than_the_watchdog_s_time(start):
    with start("sleeps=1.2") as service:
        assert_right(service)
        assert health(service)["executor"]["restarts"] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["exits=7"], "ended with code 7 before it was ready; it said last: there is no luck here"),
        (["dies"], "was ended by SIGKILL before it was ready"),
        (["chatters"], "since it wasn't ready after 0.5 s (EMBED_EXECUTOR_STARTUP_MS); it said last:"),
        (["sleeps=30"], "since it wasn't ready after 0.5 s (EMBED_EXECUTOR_STARTUP_MS)"),
        (["protocol=2"], "the child speaks protocol 2, and this program 1"),
        (["dimension=5"], "its vectors have 5 dimensions, not 4"),
        (["hides"], "before it was ready"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_a_child_that_cannot_start_is_a_503_with_the_reason_and_the_port_stays_open(start, tmp_path, words, reason):
    options = tmp_path / "words"
    options.write_text(" ".join(words))
    with start(f"@{options}", EMBED_EXECUTOR_STARTUP_MS="500") as service:
        state = health(service)
        assert (state["status"], state["model_loaded"]) == ("degraded", False)
        assert reason in state["error"]
        answer = service.embed("a")
        assert answer.status == 503
        assert reason in answer.json["error"]
        assert int(answer.headers["retry-after"]) >= 1
        options.write_text("")
        wait_until(lambda: service.embed("a").status == 200, "a later try")
        assert health(service)["status"] == "healthy"


def test_a_child_that_keeps_failing_to_start_is_tried_ever_more_rarely(start, log):
    with start("exits=1") as service:
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            assert service.embed("a").status == 503
            time.sleep(0.02)
        # At once for the second, then after 1, 2, 4 s.
        assert 3 <= log.starts <= 5


def test_nonsense_on_stdout_and_a_flood_on_stderr_are_survived(start):
    with start("prints", "floods") as service:
        for text in ("fine", "print", "flood", "late", "print flood"):
            assert_right(service, text)
        state = health(service)
        assert state["executor"] == {"pid": state["executor"]["pid"], "restarts": 0, "last_failure": None}
        assert sum("printed what is no message" in line for line in service.lines) <= 20


def test_a_late_answer_is_nobody_s(start):
    with start() as service:
        assert_right(service, "one")
        assert_right(service, "late two")
        assert_right(service, "three")


def test_progress_keeps_a_long_request_alive(start, tmp_path):
    gate = tmp_path / "gate"
    with start(f"gate={gate}") as service:
        request = InBackground(service.embed, "hold")
        time.sleep(1.0)  # more than twice the watchdog's
        gate.touch()
        assert request.result().status == 200
        assert health(service)["executor"]["restarts"] == 0


def test_health_tells_of_a_child_that_stands_still(start):
    with start(EMBED_EXECUTOR_WATCHDOG_MS="3000") as service:
        assert_right(service)
        os.kill(child_of(service), signal.SIGSTOP)
        request = InBackground(service.embed, "a")
        wait_until(lambda: health(service)["status"] == "degraded", "it to be told")
        assert "has not advanced for" in health(service)["error"]
        assert request.result().status == 200
        assert health(service)["status"] == "healthy"


def test_what_nobody_waits_for_any_more_is_given_up(start):
    with start(constants="UNWANTED_S=0.3", EMBED_LIMIT_REQUEST_S="0.5") as service:
        assert service.embed("hold").status == 504
        assert_right(service)


def test_no_child_outlives_a_worker_that_is_killed_while_it_is_busy(start):
    with start() as service:
        InBackground(service.embed, "hold")
        child = child_of(service)
        wait_until(lambda: health(service)["requests"] == 1, "the request to have come")
        os.kill(service.worker, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: not alive(child), "the child to end")
        assert time.monotonic() - began < 1


def test_ending_the_service_ends_the_child_and_answers_what_runs(start, tmp_path):
    gate = tmp_path / "gate"
    with start(f"gate={gate}", "stays") as service:
        request = InBackground(service.embed, "hold")
        child = child_of(service)
        wait_until(lambda: health(service)["requests"] == 1, "the request to have come")
        service.send(signal.SIGTERM)
        gate.touch()
        assert request.result().status == 200
        assert service.wait() == 0
        assert not alive(child)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "1e3", "9" * 30])
def test_nonsense_for_a_budget_is_refused_by_its_name(value):
    with Serve("model", env={"EMBED_EXECUTOR_WATCHDOG_MS": value, "EMBED_MODEL": ""}) as service:
        assert service.wait() == 2
        assert "EMBED_EXECUTOR_WATCHDOG_MS is" in service.lines[-1]


def test_no_children_are_left_after_many_loads(start):
    with start(EMBED_TOKEN=TOKEN) as service:
        for _ in range(10):
            assert service.request("POST", "/unload", **BEARER).status == 200
            wait_until(lambda: not children_of(service.worker), "the child to end")
            assert service.request("POST", "/load", **BEARER).json["model_loaded"] is True
        assert len(children_of(service.worker)) == 1
        assert health(service)["unloads"] == 10
        assert health(service)["executor"]["restarts"] == 0
