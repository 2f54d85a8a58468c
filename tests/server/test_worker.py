"""The worker's life: how it starts, drains and ends, what it says, and what it leaves alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
from gunicorn.config import Config
from live_worker import LiveWorker, run_gunicorn, running_worker
from raw_http import SECONDS, Ended, get, post
from serve_process import InBackground, alive, wait_until

from embed.server.listener import url_of
from embed.server.worker import Worker

# --- the start


def test_one_line_says_where_it_listens(tmp_path):
    path = tmp_path / "socket"
    with running_worker("-b", "[::1]:0", "-b", f"unix:{path}") as worker:
        (line,) = [line for line in worker.lines if line.startswith("embed: ")]
        assert f"embed: listening on http://127.0.0.1:{worker.port} and http://[::1]:" in line
        assert line.endswith(f" and unix:{path} (stub)")
        with worker.client() as client:
            client.sock.close()
            client.sock = unix_socket(path)
            seen = client.ask(get("/environ")).json
    assert (seen["REMOTE_ADDR"], seen["SERVER_NAME"], seen["SERVER_PORT"]) == ("", "localhost", "")


def test_addresses_are_written_as_people_write_them():
    assert url_of(("127.0.0.1", 8000)) == "http://127.0.0.1:8000"
    assert url_of(("::1", 8000, 0, 0)) == "http://[::1]:8000"
    assert url_of("/run/embed.sock") == "unix:/run/embed.sock"


def unix_socket(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SECONDS)
    sock.connect(str(path))
    return sock


def test_a_model_that_cannot_be_loaded_at_the_start_ends_the_server():
    code, said = run_gunicorn("worker_app:create(fails='no model')")
    assert (code, said.count("embed:")) == (4, 1)
    assert "embed: error: no model; bring it back\n" in said
    assert "Traceback" not in said


def test_a_later_worker_stays_where_the_model_cannot_be_loaded(tmp_path):
    with running_worker(app=f"worker_app:create_once('{tmp_path}/flag')") as worker:
        first = worker.worker
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "could not be loaded: it has gone; bring it back" in worker.log(), "the second worker")
        assert worker.state()["pid"] != first


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("worker_app:create_badly()", "the option x is wrong; leave it out"),
        ("wsgiref.simple_server:demo_app", "embed.server.Worker runs what embed.server.create_app() returns"),
    ],
)
def test_an_application_that_cannot_run_ends_the_server_with_one_sentence(app, sentence):
    code, said = run_gunicorn(app)
    assert code == 4
    assert f"embed: error: {sentence}" in said
    assert "Traceback" not in said


REFUSED_SETTINGS = {
    "--preload": {"preload_app": True},
    "TLS": {"certfile": __file__},
    "PROXY protocol": {"proxy_protocol": "auto"},
    "HTTP/1.1": {"http_protocols": "h2,h1"},
    "--protocol": {"protocol": "uwsgi"},
}


@pytest.mark.parametrize("word", REFUSED_SETTINGS)
def test_settings_under_which_it_cannot_run_are_refused(word):
    cfg = Config()
    for name, value in REFUSED_SETTINGS[word].items():
        cfg.set(name, value)
    with pytest.raises(RuntimeError, match=word):
        Worker.check_config(cfg, None)


def test_a_refusal_is_one_sentence_before_anything_starts():
    code, said = run_gunicorn("--preload", "--log-level=warning", "worker_app:create()")
    assert (code, said.strip()) == (
        1,
        "Error: the model's threads don't survive a fork; leave out --preload (preload_app)",
    )
    code, said = run_gunicorn("--log-level=warning", "worker_app:create()", EMBED_LIMIT_IDLE_S="never")
    assert (code, said.strip()) == (1, "Error: EMBED_LIMIT_IDLE_S is 'never'; a number above 0 is expected")


def test_two_workers_are_warned_of():
    with running_worker("--workers", "2", "--log-level=warning") as worker:
        assert "each of the 2 workers holds its own copy of the model" in worker.log()
        for _ in range(20):
            assert worker.ask(get("/health")).status == 200


def test_nothing_is_monkey_patched():
    """The model's native threads need the locks, queues and subprocesses of the standard library as they are."""
    with running_worker() as worker:
        assert worker.state()["patched"] == []


# --- the end


LONG_S = 60  # twice the grace period, and what the tests' helpers wait


def ends_at_once(worker: LiveWorker) -> bool:
    """Wait for its end, and tell whether that was long before the grace period's."""
    began = time.monotonic()
    assert worker.wait() == 0
    return time.monotonic() - began < 10


def terminate(worker: LiveWorker) -> None:
    worker.send(signal.SIGTERM)


def test_an_idle_server_ends_at_once():
    with running_worker() as worker, worker.client() as kept:
        assert kept.is_open()
        terminate(worker)
        assert kept.has_ended()
        assert ends_at_once(worker)
        assert "app: closed" in worker.log()
        assert "cut off" not in worker.log()


def test_what_runs_is_answered_and_who_is_idle_goes_at_once():
    with running_worker() as worker, worker.client() as kept, worker.client() as asking, worker.client() as uploading:
        assert kept.is_open()
        uploading.send(post("/echo", b"hello")[:-1])
        asking.send(get("/slow?seconds=3"))
        worker.wait_for(lambda state: state["calls"].get("slow"), "the request to run")
        terminate(worker)
        assert kept.has_ended()
        assert asking.hears_nothing()  # not only when it was done
        reply = uploading.ask(b"o")
        assert (reply.body, reply.closes) == (b"hello", True)
        reply = asking.answer()
        assert (reply.body, reply.closes) == (b"slow", True)
        assert ends_at_once(worker)


def test_clients_that_connected_or_asked_before_the_end_are_answered():
    """While the loop stands still the kernel takes connections, and requests on those that are kept."""
    with running_worker() as worker, contextlib.ExitStack() as stack:
        freezing, kept, silent = [stack.enter_context(worker.client()) for _ in range(3)]
        assert kept.is_open()
        freezing.send(get("/freeze?seconds=0.5"))
        time.sleep(0.1)
        new = [stack.enter_context(worker.client()) for _ in range(150)]
        for client in (*new, kept):
            client.send(get("/health"))
        late = stack.enter_context(worker.client())
        terminate(worker)
        for client in (*new, kept):
            reply = client.answer()
            assert (reply.body, reply.closes) == (b"ok", True)
        assert late.ask(get("/health")).body == b"ok"  # it had connected, and has a moment to ask
        assert silent.has_ended()
        assert ends_at_once(worker)


def test_before_the_grace_period_ends_all_that_waits_is_given_up():
    with running_worker("--graceful-timeout", "3") as worker, worker.client() as waiting, worker.client() as stuck:
        waiting.send(get("/wait"))
        stuck.send(get("/stuck"))
        worker.wait_for(lambda state: {"wait", "stuck"} <= set(state["calls"]), "both to run")
        began = time.monotonic()
        terminate(worker)
        assert waiting.answer().body == b"waited"  # the application's `abandon` has it answered
        assert time.monotonic() - began > 0.5
        with pytest.raises(Ended):
            stuck.answer()
        assert worker.wait() == 0
        assert "1 connections are cut off" in worker.log()
        assert "app: closed" in worker.log()


def test_quit_ends_at_once():
    with running_worker() as worker, worker.client() as asking:
        asking.send(get(f"/slow?seconds={LONG_S}"))
        worker.wait_for(lambda state: state["calls"].get("slow"), "the request to run")
        worker.send(signal.SIGQUIT)
        assert ends_at_once(worker)
        with pytest.raises(Ended):
            asking.answer()


def test_ctrl_c_is_the_masters_business():
    """It reaches the whole process group."""
    with running_worker() as worker:
        os.kill(worker.worker, signal.SIGINT)
        with worker.client() as client:
            assert client.is_open()
            os.kill(worker.worker, signal.SIGINT)
            assert client.is_open()


@pytest.mark.parametrize("app", ["create", "create_on_an_old_kernel"])
def test_without_its_master_a_worker_ends(app):
    with running_worker(app=f"worker_app:{app}()") as worker, worker.client() as asking:
        asking.send(get(f"/slow?seconds={LONG_S}"))
        worker.wait_for(lambda state: state["calls"].get("slow"), "the request to run")
        pid = worker.worker
        worker.send(signal.SIGKILL)
        wait_until(lambda: not alive(pid), "the worker to end", seconds=10)
        wait_until(lambda: "the master process is gone" in worker.log(), "its last word")


def test_a_reload_loses_no_request():
    with running_worker() as worker, worker.client() as asking:
        first = worker.worker
        asking.send(get("/slow?seconds=1"))
        worker.wait_for(lambda state: state["calls"].get("slow"), "the request to run")
        over = threading.Event()

        def work():
            statuses = set()
            while not over.is_set():
                statuses.add(worker.ask(get("/work", "Connection: close")).status)
            return statuses

        clients = [InBackground(work) for _ in range(4)]
        worker.send(signal.SIGHUP)
        assert asking.answer().body == b"slow"
        wait_until(lambda: not alive(first), "the old worker to end")
        assert worker.state()["pid"] != first
        over.set()
        assert [client.result() for client in clients] == [{200}] * 4


def test_a_worker_can_be_replaced_after_so_many_requests():
    with running_worker("--max-requests", "20") as worker:
        pids = {worker.state()["pid"] for _ in range(60)}
    assert len(pids) >= 3


def test_a_loop_that_stands_still_says_where_and_is_replaced():
    with running_worker("--timeout", "2") as worker, worker.client() as client:
        first = worker.worker
        client.send(get("/freeze?seconds=60"))
        wait_until(lambda: "the event loop stood still" in worker.log(), "the worker to be ended")
        assert "in get_freeze" in worker.log()
        assert worker.state()["pid"] != first
