"""The engine on a child that misbehaves on request: what each fault is called, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import stub_child
from serve_process import alive, wait_until

from embed.errors import DeviceError, EmbedError, ExecutorError, ModelError, OptionError, StateError, VectorError
from embed.executor.budgets import Budgets
from embed.executor.supervisor import MAX_STRAYS, Supervisor

QUICK = Budgets(startup_s=5.0, watchdog_s=0.3)


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a supervisor of a stub with these words, loaded; its log is in `said`."""
    supervisors = []

    def start(*words, budgets=QUICK, load=True, command=None):
        said = []
        command = command or stub_child.command(*words)
        supervisor = Supervisor(command, dimension=stub_child.DIMENSION, budgets=budgets, log=said.append)
        supervisor.said = said
        supervisors.append(supervisor)
        if load:
            supervisor.load()
        return supervisor

    yield start
    for supervisor in supervisors:
        supervisor.close()


def encode(supervisor, *texts, normalize=True, progress=None):
    ids = [np.array(stub_child.ids_of(text), np.int32) for text in texts]
    return supervisor.encode(ids, normalize=normalize, progress=progress).tolist()


def test_each_text_gets_its_vector_normalised_or_not(start):
    supervisor = start()
    assert encode(supervisor, "ab", "xyz") == [stub_child.vector_of("ab"), stub_child.vector_of("xyz")]
    assert encode(supervisor, "ab", normalize=False) == [stub_child.vector_of("ab", normalize=False)]
    assert (supervisor.description, supervisor.last_failure) == ("cpu stub", None)


def test_it_loads_once_and_again_after_an_unload(start):
    supervisor = start()
    pid = supervisor.pid
    supervisor.load()
    assert supervisor.pid == pid
    supervisor.unload()
    assert (supervisor.is_loaded, supervisor.pid, alive(pid)) == (False, None, False)
    with pytest.raises(StateError, match="not loaded"):
        encode(supervisor, "a")
    supervisor.load()
    assert encode(supervisor, "a") == [stub_child.vector_of("a")]
    assert supervisor.said == []


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("model", ModelError),
        ("option", OptionError),
        ("device", DeviceError),
        ("request", EmbedError),
        ("fault", EmbedError),
        ("memory", MemoryError),
    ],
)
def test_what_a_child_says_of_itself_is_raised_as_if_it_were_here(start, kind, error):
    with pytest.raises(error, match=f"the {kind} is not in order"):
        start(f"fails={kind}")
    supervisor = start()
    with pytest.raises(error, match=f"text 0 is no good for the {kind}"):
        encode(supervisor, f"fail {kind}")
    assert encode(supervisor, "a"), "and the child lives on"


def test_a_text_that_is_at_fault_is_told_by_its_index(start):
    with pytest.raises(VectorError) as caught:
        encode(start(), "a", "b", "fail vector")
    assert caught.value.index == 2


@pytest.mark.parametrize("trick", ["die", "abort", "stop", "hang", "close", "babble", "torn", "short", "narrow"])
def test_after_a_death_there_is_no_child_and_the_next_load_brings_one(start, trick):
    supervisor = start("stays")  # also one that ignores SIGTERM
    pid = supervisor.pid
    with pytest.raises(ExecutorError, match="the model process "):
        encode(supervisor, trick)
    assert not supervisor.is_loaded
    assert not alive(pid)
    assert supervisor.last_failure in supervisor.said[-1]
    supervisor.load()
    assert encode(supervisor, "a") == [stub_child.vector_of("a")]


def test_the_error_names_the_budget_that_ran_out_and_the_last_words(start):
    with pytest.raises(ExecutorError, match=r"wasn't ready after 0\.2 s \(EMBED_EXECUTOR_STARTUP_MS\).*still loading"):
        start("chatters", budgets=Budgets(0.2, 5.0))
    with pytest.raises(ExecutorError, match=r"no progress for 0\.3 s \(EMBED_EXECUTOR_WATCHDOG_MS\)"):
        encode(start(), "hang")
    supervisor = start("floods")
    with pytest.raises(ExecutorError, match=r"SIGABRT while it computed; it said last: .*bad_alloc'$"):
        encode(supervisor, "abort")
    (words,) = [line for line in supervisor.said if "wrote last" in line]
    assert 4000 < len(words) < 4300, "4 KiB of a megabyte"


def test_a_program_that_is_not_there_or_no_child_is_one_sentence(start):
    with pytest.raises(ExecutorError, match=r"can't be started \(No such file or directory\)"):
        start(command=["/nowhere/at/all"])
    with pytest.raises(ExecutorError, match="ended with code 0 before it was ready"):
        start(command=[sys.executable, "-c", "print('hello')"])


def test_progress_is_passed_on_and_may_give_up_which_ends_the_child(start):
    supervisor = start()
    pid = supervisor.pid
    steps = []

    def report(done, of):
        steps.append((done, of))
        if len(steps) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        encode(supervisor, "hold", progress=report)
    assert steps == [(1, 2)] * 3
    assert not alive(pid)
    supervisor.load()
    assert encode(supervisor, "a")


def test_stray_output_and_late_answers_change_nothing_and_the_log_of_them_is_bounded(start):
    supervisor = start("prints", budgets=Budgets(5.0, 5.0))
    for text in ["print a", "late b", "flood c"] * 5:
        assert encode(supervisor, text) == [stub_child.vector_of(text)]
    strays = [line for line in supervisor.said if "no message" in line]
    assert len(strays) == MAX_STRAYS
    assert max(map(len, strays)) < 1000


def test_a_request_larger_than_the_pipes_passes_while_the_child_chatters(start):
    supervisor = start(budgets=Budgets(5.0, 20.0))
    texts = ["flood", *["x" * 500_000] * 2]
    assert encode(supervisor, *texts) == [stub_child.vector_of(text) for text in texts]


def test_an_idle_death_is_told_but_not_an_end_that_was_asked_for(start):
    supervisor = start()
    died = threading.Event()
    supervisor.watch(died.set)
    supervisor.unload()
    supervisor.load()
    assert not died.is_set()
    os.kill(supervisor.pid, signal.SIGKILL)
    assert died.wait(10)
    wait_until(lambda: not supervisor.is_loaded, "its death to be seen")
    supervisor.load()
    assert supervisor.last_failure == "the model process was ended by SIGKILL while it was idle"
    assert encode(supervisor, "a")


def test_many_loads_and_deaths_leave_no_descriptor_thread_or_zombie(start):
    supervisor = start()

    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = held()
    for trick in ["die", "abort", None, None] * 5:
        if trick is None:
            supervisor.unload()
        else:
            with pytest.raises(ExecutorError):
                encode(supervisor, trick)
        supervisor.load()
    wait_until(lambda: held() == before, "what they held to be given back")
    children = subprocess.run(["ps", "-o", "stat=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    assert "Z" not in children


def test_a_child_ends_with_the_process_that_started_it(tmp_path):
    """The real one, busy or not: the kernel ends it."""
    program = textwrap.dedent("""
        import sys, time
        from embed.executor import process
        from embed.executor.process import ChildProcess
        import os
        child = ChildProcess(
            [sys.executable, "-c", "import os, time; from embed.executor.channel import end_with;"
             f"end_with({os.getpid()}); print('bound', flush=True); time.sleep(60)"],
            on_stray=lambda line: print(child.pid, flush=True), on_end=lambda child: None,
        )
        child.read(time.monotonic() + 60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        began = time.monotonic()
        wait_until(lambda: not alive(pid), "the child to end")
        assert time.monotonic() - began < 1
