"""The life of `embed serve`, with real processes and real signals: start, drain, reload, and deaths of every kind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
import tiny
from command_line import environment
from raw_http import Client, get, post
from serve_process import SECONDS, InBackground, Serve, alive, children_of, wait_until

from embed.server.master import HANGUP_S

SLOW = {"EMBED_ISA": "scalar"}  # with --threads 1 a text of 32 tokens takes 2 ms


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make("xlmr", tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture
def own_model(model, tmp_path):
    """A copy that the test may break."""
    return shutil.copytree(model, tmp_path / "own")


@contextlib.contextmanager
def slow_service(model, *options, **env):
    with Serve(model, "--threads", "1", *options, env={**SLOW, **env}) as service:
        service.ready()
        yield service


def post_in_background(service, texts):
    """Have `texts` long texts computed; return once the model has them."""
    answer = InBackground(service.embed, ["the quick fox is lazy and a dog " * 4] * texts)
    wait_until(lambda: b"embed_queue_requests 1.0" in service.get("/metrics").body, "the request to be computed")
    return answer


def is_refused(service):
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.contextmanager
def silent_index(folder):
    """Yield a package index that never answers, and the environment in which `demo` takes for ever to load."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(SECONDS)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/simple"
        pip = {"PIP_INDEX_URL": url, "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        yield sock, {**pip, "no_proxy": "*", "EMBED_CACHE_DIR": str(folder)}


# --- start


def test_it_says_where_it_listens_and_serves_there(model):
    with Serve(model) as service:
        line = service.ready()
        assert re.fullmatch(
            r"embed: listening on http://127\.0\.0\.1:\d+ \(tiny, 32 dimensions, cpu \w+, loaded in \d+\.\d s\)", line
        )
        assert service.get("/health").json["model_loaded"] is True
        answer = service.embed(["hello", "world"])
        assert (answer.status, len(answer.json["embeddings"])) == (200, 2)
        assert service.end() == 0
        assert service.lines == [line]


def test_health_answers_while_the_model_is_being_loaded(tmp_path):
    with silent_index(tmp_path) as (index, env), Serve("demo", env=env) as service:
        connection, _ = index.accept()  # from pip: the worker is up
        service.url = f"http://127.0.0.1:{listening_port(service.pid)}"
        health = service.get("/health").json
        assert (health["status"], health["model_loaded"], health["model"]) == ("healthy", False, "demo")
        waiting = InBackground(service.embed, "hello")
        wait_until(lambda: service.get("/health").json["requests"] == 1, "the request to be taken")
        (pip,) = children_of(service.worker)
        assert service.end() == 0  # a load is not waited for
        assert waiting.result().status == 503
        wait_until(lambda: not alive(pip), "pip to be ended with the worker that ran it")
        connection.close()


def listening_port(pid):
    """Return the TCP port on which a process listens."""
    own = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            return int(fields[1].partition(":")[2], 16)
    raise AssertionError("it listens nowhere")


def test_a_model_that_cannot_be_fetched_ends_it_with_one_line(tmp_path):
    with silent_index(tmp_path) as (index, env), Serve("demo", env=env) as service:
        connection, _ = index.accept()
        index.close()
        connection.close()
        assert service.wait() == 3
        assert len(service.lines) == 2
        assert "fetching the demo model" in service.lines[0]
        assert service.lines[1].startswith("embed: error: pip could not download the demo model")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--maxseq", "33"], 2, "maxseq 33: this model takes 3 to 32 tokens"),
        (["--device", "cuda"], 2, "device 'cuda' is not in this version"),
    ],
)
def test_what_only_the_model_can_refuse_ends_it_with_one_line(model, options, code, said):
    with Serve(model, *options) as service:
        assert service.wait() == code
        (line,) = service.lines
        assert line.startswith("embed: error: ")
        assert said in line


def test_a_damaged_model_ends_it_with_one_line(own_model):
    (own_model / "model.safetensors").write_bytes(b"not a model")
    with Serve(own_model) as service:
        assert service.wait() == 3
        (line,) = service.lines
        assert re.match(r"embed: error: .*model\.safetensors", line)


def test_a_worker_that_is_killed_before_the_model_is_loaded_ends_it(tmp_path):
    """As the kernel does when memory runs out; to try again for ever would help nobody."""
    with silent_index(tmp_path) as (index, env), Serve("demo", env=env) as service:
        connection, _ = index.accept()
        (pip,) = children_of(service.worker)
        os.kill(service.worker, signal.SIGKILL)
        assert service.wait() == 1
        assert service.lines[-1] == (
            "embed: error: the worker process was ended by SIGKILL before the model was loaded; is there enough memory?"
        )
        wait_until(lambda: not alive(pip), "pip to be ended with the worker that ran it")
        connection.close()


def test_the_master_holds_neither_the_model_nor_its_libraries(model):
    with Serve(model) as service:
        service.ready()
        maps = Path(f"/proc/{service.pid}/maps").read_text()
        assert not any(name in maps for name in ("numpy", "gevent", "tokenizers"))
        assert "numpy" in Path(f"/proc/{service.worker}/maps").read_text()


# --- where it runs


def test_no_configuration_of_gunicorns_gets_in(model, tmp_path):
    (tmp_path / "gunicorn.conf.py").write_text("raise SystemExit('gunicorn.conf.py was read')")
    env = {
        "GUNICORN_CMD_ARGS": "--workers 3 --bind 127.0.0.1:1 --worker-class sync",
        "GUNICORN_PID": "1",
        "GUNICORN_FD": "0",
        "WEB_CONCURRENCY": "3",
        "PORT": "1",
        "FORWARDED_ALLOW_IPS": "nonsense, but nobody's",
        "HOME": str(tmp_path),
    }
    with Serve(model, env={**env, "FORWARDED_ALLOW_IPS": "*"}, cwd=tmp_path) as service:
        service.ready()
        assert len(service.workers()) == 1
        assert service.embed("hello").status == 200
        assert service.end() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gunicorn.conf.py"]  # no control socket either


def test_it_needs_no_home_no_folder_and_no_writing(model):
    bare = {"PATH": os.environ["PATH"], "TMPDIR": "/nonexistent"}
    process = subprocess.Popen(
        [sys.executable, "-B", "-m", "embed", "serve", str(model), "--addr", "127.0.0.1:0"],
        cwd="/",
        env=bare,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # a byte into any file fails
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        line = process.stderr.readline()
        assert "listening on" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_with_every_standard_stream_closed_no_socket_takes_their_place(model):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = f'exec "{sys.executable}" -m embed serve "{model}" --addr 127.0.0.1:{port} --access-log <&- >&- 2>&-'
    process = subprocess.Popen(["sh", "-c", command], env=environment())
    try:
        service = Serve.__new__(Serve)
        service.url = f"http://127.0.0.1:{port}"
        wait_until(lambda: not is_refused(service), "the socket")
        assert service.embed("hello").status == 200
        assert {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)} == {os.devnull}
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_it_raises_its_own_limit_of_descriptors(model):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with Serve(model, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))) as service:
        service.ready()
        soft, _ = resource.prlimit(service.worker, resource.RLIMIT_NOFILE)
        assert soft >= min(hard, 2000)


def test_the_access_log_shows_no_query_and_no_broken_line(model, tmp_path):
    with (tmp_path / "log").open("wb") as log, Serve(model, "--access-log", stdout=log) as service:
        service.ready()
        service.get("/create_embedding?text=secret&token=s3cret")
        service.get("/a%0Aforged%22?text=secret")
        assert service.end() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert [re.sub(r"\[.*?\]|\d+ \d+ ms", "…", line) for line in lines] == [
        '127.0.0.1 … "GET /create_embedding" 200 …',
        '127.0.0.1 … "GET /a%0Aforged%22" 404 …',
    ]


def test_the_token_is_in_no_log_and_no_process_title(model, tmp_path):
    with (
        (tmp_path / "log").open("wb") as log,
        Serve(model, "--access-log", "--log-level", "debug", env={"EMBED_TOKEN": "s3cret"}, stdout=log) as service,
    ):
        service.ready()
        assert service.get("/create_embedding?text=a").status == 401
        assert service.get("/create_embedding?text=a&token=s3cret").status == 200
        assert service.embed("a", Authorization="Bearer s3cret").status == 200
        for pid in (service.pid, service.worker):
            assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        service.end()
        said = "\n".join(service.lines)
    assert "s3cret" not in said + (tmp_path / "log").read_text()


def test_over_a_unix_socket_it_serves_and_leaves_no_file(model, tmp_path):
    path = tmp_path / "embed.sock"
    with Serve(model, "--addr", f"unix:{path}") as service:
        assert f"listening on unix:{path} (" in service.ready()
        assert service.embed("hello").status == 200
        with Serve(model, "--addr", f"unix:{path}") as second:
            assert second.wait() == 4
        assert service.embed("hello").status == 200
        assert service.end() == 0
    assert not path.exists()


# --- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_get_their_answers_first(model, number):
    with slow_service(model) as service:
        worker = service.worker
        answer = post_in_background(service, 256)
        with service.connect():  # idle: not waited for
            assert service.end(number) == 0
        assert answer.result().status == 200
        assert not alive(worker)
        assert is_refused(service)


def test_a_second_signal_ends_it_at_once(model):
    with slow_service(model) as service:
        worker = service.worker
        answer = post_in_background(service, 4096)  # of some 8 s
        service.send(signal.SIGTERM)
        time.sleep(0.7)  # within half a second it would count as the same
        assert service.end(signal.SIGTERM) == 1
        assert not alive(worker)
        with pytest.raises((OSError, json.JSONDecodeError)):
            answer.result()


def test_the_same_signal_twice_within_a_moment_is_one(model):
    """As Ctrl-C comes from the terminal and again from a wrapper."""
    with slow_service(model) as service:
        answer = post_in_background(service, 256)
        service.send(signal.SIGINT)
        time.sleep(0.1)  # or the kernel would make one of the two
        assert service.end(signal.SIGINT) == 0
        assert answer.result().status == 200


def test_what_is_not_done_in_the_grace_period_gets_a_503(model):
    with slow_service(model, "--graceful", "2") as service:
        answer = post_in_background(service, 4096)
        assert service.end() == 0
        assert answer.result().status == 503


def test_an_answer_that_is_cut_off_shows_in_the_exit_code(model):
    with Serve(model, "--graceful", "1", "--max-texts", "30000") as service:
        service.ready()
        with Client(service.port, receive_bytes=4096) as client, service.connect():  # idle: nothing of it is lost
            client.send(post("/create_embedding", json.dumps({"text": ["hello"] * 30_000}).encode()))
            assert client.head()[0] == 200
            assert service.end() == 1


def test_without_a_grace_period_an_idle_connection_is_nothing_cut_off(model):
    with Serve(model, "--graceful", "0") as service:
        service.ready()
        with Client(service.port) as client:
            assert client.ask(get("/health")).status == 200
            assert service.end() == 0


def test_what_a_reload_cut_off_is_no_part_of_the_exit_code(model):
    with Serve(model, "--graceful", "0") as service:
        service.ready()
        os.kill(service.worker, signal.SIGSTOP)  # it has to be killed
        service.send(signal.SIGHUP)
        service.ready()
        assert service.end() == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH])
def test_other_signals_change_nothing(model, number):
    with Serve(model) as service:
        service.ready()
        worker = service.worker
        service.send(number)
        service.send(number)
        time.sleep(0.3)  # nothing tells when a signal has done nothing
        assert service.workers() == [worker]
        assert service.get("/health").status == 200


def test_a_killed_master_leaves_no_worker(model):
    with Serve(model) as service:
        service.ready()
        worker = service.worker
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
        wait_until(lambda: not alive(worker), "the worker to end", seconds=5)


def test_a_killed_master_leaves_nothing_that_its_worker_has_started(tmp_path):
    with silent_index(tmp_path) as (index, env), Serve("demo", env=env) as service:
        connection, _ = index.accept()
        worker = service.worker
        (pip,) = children_of(worker)
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
        wait_until(lambda: not alive(worker) and not alive(pip), "the worker and pip to end")
        connection.close()


# --- reload


def test_a_reload_starts_the_new_worker_after_the_old_has_gone(model):
    with slow_service(model) as service:
        old = service.worker
        first = post_in_background(service, 256)
        service.send(signal.SIGHUP)
        second = InBackground(service.embed, "hello")  # comes while nobody accepts, and is not refused
        wait_until(lambda: has_loaded(service, times=2), "the new worker")
        service.ready()
        assert first.result().status == 200
        assert second.result().status == 200
        assert not alive(old)
        assert service.worker != old
        assert service.end() == 0


def has_loaded(service, times):
    assert len(service.workers()) <= 1
    return len(service.lines) == times


def test_clients_notice_nothing_of_reloads(model):
    """Each of these requests has a connection of its own, at any moment of the change."""
    with Serve(model) as service:
        service.ready()
        over = threading.Event()

        def ask():
            statuses = set()
            while not over.is_set():
                statuses.add(service.embed("hello").status)
            return statuses

        clients = [InBackground(ask) for _ in range(4)]
        for _ in range(3):
            service.send(signal.SIGHUP)
            service.ready()
        over.set()
        assert [client.result() for client in clients] == [{200}] * 4
        assert service.end() == 0


def test_a_signal_during_a_reload_ends_the_service(model):
    with slow_service(model) as service:
        answer = post_in_background(service, 256)
        service.send(signal.SIGHUP)
        wait_until(lambda: service.lines or is_draining(service), "the drain")
        assert service.end() == 0
        assert answer.result().status == 200
        assert len([line for line in service.lines if "listening" in line]) == 1


def is_draining(service):
    """Tell whether the worker has stopped to accept: a connection then stays unanswered."""
    with service.connect() as sock:
        sock.settimeout(0.2)
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        try:
            return not sock.recv(1)
        except TimeoutError:
            return True


def test_a_reload_reads_the_token_file_again(model, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    with Serve(model, env={"EMBED_TOKEN_FILE": str(token)}) as service:
        service.ready()
        assert service.embed("a", Authorization="Bearer first").status == 200
        token.write_text("second\n")
        service.send(signal.SIGHUP)
        service.ready()
        assert service.embed("a", Authorization="Bearer first").status == 401
        assert service.embed("a", Authorization="Bearer second").status == 200
        token.write_text("\n")
        service.send(signal.SIGHUP)
        assert "is empty" in service.line("warning: .*; the token stays what it was")
        service.ready()
        assert service.embed("a", Authorization="Bearer second").status == 200


def test_a_reload_of_a_damaged_model_answers_503_until_it_is_whole(own_model):
    weights = own_model / "model.safetensors"
    whole = weights.read_bytes()
    with Serve(own_model) as service:
        service.ready()
        vector = service.embed("hello").json["embeddings"]
        new = own_model / "new"
        new.write_bytes(b"not a model")
        new.rename(weights)
        service.send(signal.SIGHUP)
        assert "model.safetensors" in service.line("error: ")
        answer = service.embed("hello")
        assert answer.status == 503
        assert "model.safetensors" in answer.json["error"]
        assert service.get("/health").json["status"] == "degraded"
        new.write_bytes(whole)
        new.rename(weights)
        service.send(signal.SIGHUP)
        service.ready()
        assert service.embed("hello").json["embeddings"] == vector
        assert service.end() == 0


# --- deaths


def test_a_killed_worker_is_replaced_ever_more_slowly(model):
    with Serve(model) as service:
        service.ready()
        for said in ("starting another$", "starting another in 1 s$", "starting another in 3 s$"):
            worker = service.worker
            os.kill(worker, signal.SIGKILL)
            service.line(f"warning: the worker process was ended by SIGKILL; {said}")
            if not said.endswith("3 s$"):
                service.ready()
                assert service.worker != worker
                assert service.embed("hello").status == 200
        assert service.end() == 0  # also where no worker runs


# --- a terminal


@contextlib.contextmanager
def terminal_service(model, hangups=signal.SIG_DFL):
    """Run the service in the foreground of a terminal of its own."""
    master, slave = pty.openpty()

    def control():
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, hangups)

    try:
        with Serve(model, "--threads", "1", env=SLOW, start_new_session=True, preexec_fn=control) as service:
            os.close(slave)
            service.ready()
            yield service, master
    finally:
        with contextlib.suppress(OSError):
            os.close(master)


def test_ctrl_c_lets_running_requests_finish(model):
    with terminal_service(model) as (service, terminal):
        answer = post_in_background(service, 256)
        os.write(terminal, b"\x03")
        assert service.wait() == 0
        assert answer.result().status == 200


def test_closing_the_window_ends_it(model):
    """The hang-up that the kernel sends then is no wish for a reload."""
    with terminal_service(model) as (service, terminal):
        os.close(terminal)
        assert service.wait() == 0


def test_with_nohup_it_outlives_its_window_and_can_be_reloaded(model):
    with terminal_service(model, signal.SIG_IGN) as (service, terminal):
        worker = service.worker
        os.close(terminal)
        time.sleep(HANGUP_S + 0.5)  # so long a hang-up is taken for the window's
        assert service.worker == worker
        service.send(signal.SIGHUP)
        service.ready()
        assert service.worker != worker
        assert service.end() == 0


# --- systemd


def test_systemd_is_told_when_the_model_is_loaded(model, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(SECONDS)
        with Serve(model, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as service:
            service.ready()
            assert re.fullmatch(rb"READY=1\nSTATUS=\(tiny, 32 dimensions, .*\)", notify.recv(1000))
            assert service.end() == 0


PASS_A_SOCKET = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, sys.argv[1:])"


def test_a_socket_from_systemd_is_served(model):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", PASS_A_SOCKET, sys.executable, "-m", "embed", "serve", str(model)],
            env=environment(LISTEN_FDS="1", EMBED_ADDR="127.0.0.1:1"),
            preexec_fn=lambda: os.dup2(sock.fileno(), 3),
            close_fds=False,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert f"listening on http://127.0.0.1:{port} " in process.stderr.readline()
        process.terminate()
        assert process.wait(SECONDS) == 0
