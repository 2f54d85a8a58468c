"""The model thread and the engine, on a backend of plain Python that can be slow or broken on request."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from embed.engine import DirectEngine, LocalEngine
from embed.errors import StateError

LAYERS = 4


class StubBackend:
    """Vectors that name their text's first id and length; notes which threads call."""

    description = "stub"
    weight_bytes = 0

    def __init__(self):
        self.threads = set()
        self.layers_run = 0
        self.gate = None  # an Event that each layer waits for
        self.closed = False

    def embed(self, batch):
        self.threads.add(threading.get_ident())
        if batch.ids[0] == 666:
            raise ValueError("id 666")
        return batch

    def self_attention(self, states, layer):
        if self.gate is not None:
            assert self.gate.wait(20)
        return states

    def feed_forward(self, states, layer):
        self.layers_run += 1
        return states

    def pool(self, states, pooling, normalize):
        starts = states.offsets[:-1]
        return np.stack([states.ids[starts], np.diff(states.offsets)], axis=1).astype(np.float32)

    def close(self):
        self.closed = True


@pytest.fixture
def backend():
    return StubBackend()


@pytest.fixture
def engine(backend):
    engine = LocalEngine(DirectEngine(lambda progress: backend, layers=LAYERS, pooling="cls", pad_id=None))
    engine.load()
    yield engine
    engine.close()


def ids_of(*lists):
    return [np.array(ids, np.int32) for ids in lists]


@contextlib.contextmanager
def interrupted_after(seconds):
    """Raise InterruptedError in the main thread, as Ctrl-C raises KeyboardInterrupt."""

    def interrupt(signum, frame):
        raise InterruptedError("Ctrl-C")

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def model_threads():
    return [t for t in threading.enumerate() if t.name == "embed-model"]


def test_encode_runs_every_layer_and_returns_a_row_a_text(engine, backend):
    assert engine.encode(ids_of([5, 6, 7], [9]), normalize=True).tolist() == [[5, 3], [9, 1]]
    assert backend.layers_run == LAYERS


def test_callers_on_many_threads_share_one_model_thread_and_get_their_own_rows(engine, backend):
    results = {}

    def call(i):
        results[i] = [engine.encode(ids_of([i, *range(n)]), normalize=True).tolist() for n in range(20)]

    callers = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == {i: [[[i, n + 1]] for n in range(20)] for i in range(8)}
    assert len(backend.threads) == 1
    assert threading.get_ident() not in backend.threads


def test_an_error_reaches_its_caller_and_the_next_forward_works(engine):
    with pytest.raises(ValueError, match="id 666"):
        engine.encode(ids_of([666]), normalize=True)
    assert engine.encode(ids_of([1]), normalize=True).tolist() == [[1, 1]]


def test_a_failing_load_raises_in_the_caller_and_the_next_one_may_succeed(backend):
    results = [OSError("no weights"), backend]

    def load(progress):
        if isinstance(results[0], OSError):
            raise results.pop(0)
        return results[0]

    with contextlib.closing(LocalEngine(DirectEngine(load, layers=LAYERS, pooling="cls", pad_id=None))) as engine:
        with pytest.raises(OSError, match="no weights"):
            engine.load()
        assert not engine.is_loaded
        with pytest.raises(StateError, match="not loaded"):
            engine.encode(ids_of([1]), normalize=True)
        engine.load()
        assert engine.encode(ids_of([1]), normalize=True).tolist() == [[1, 1]]


def test_an_engine_that_was_unloaded_loads_again(backend):
    loads = []
    with contextlib.closing(
        LocalEngine(DirectEngine(lambda _: loads.append(1) or backend, layers=LAYERS, pooling="cls", pad_id=None))
    ) as engine:
        for _ in range(3):
            engine.load()
            engine.load()
            assert engine.is_loaded
            assert engine.encode(ids_of([1]), normalize=True).tolist() == [[1, 1]]
            engine.unload()
            assert backend.closed
            assert not engine.is_loaded
    assert len(loads) == 3


def test_progress_is_told_before_each_sub_layer_by_the_thread_that_computes_and_may_give_up(engine, backend):
    steps = []
    engine.encode(ids_of([1]), normalize=True, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(step, 2 * LAYERS) for step in range(2 * LAYERS)]

    def give_up(done, of):
        assert threading.get_ident() in backend.threads
        if done == 3:
            raise InterruptedError

    run = backend.layers_run
    with pytest.raises(InterruptedError):
        engine.encode(ids_of([1]), normalize=True, progress=give_up)
    assert backend.layers_run == run + 1


def test_after_close_a_call_is_one_sentence_and_closing_again_is_fine(engine, backend):
    engine.close()
    engine.close()
    assert backend.closed
    with pytest.raises(StateError, match="closed"):
        engine.encode(ids_of([1]), normalize=True)


def test_every_close_waits_for_the_running_forward(engine, backend):
    backend.gate = threading.Event()
    rows, closed = [], []
    caller = threading.Thread(target=lambda: rows.append(engine.encode(ids_of([3]), normalize=True)))
    caller.start()
    while not backend.threads:
        time.sleep(0.01)
    closers = [threading.Thread(target=lambda: closed.append(engine.close())) for _ in range(3)]
    for closer in closers:
        closer.start()
    time.sleep(0.2)
    assert not closed
    assert not backend.closed
    backend.gate.set()
    for thread in (caller, *closers):
        thread.join(20)
    assert rows[0].tolist() == [[3, 1]]
    assert len(closed) == 3
    assert backend.closed


def test_an_interrupted_load_stops_at_the_next_layer():
    layers = []

    def load(progress):
        for layer in range(100):
            progress(layer, 100)
            layers.append(layer)
            time.sleep(0.05)
        return StubBackend()

    engine = LocalEngine(DirectEngine(load, layers=1, pooling="cls", pad_id=None))
    with interrupted_after(0.3), pytest.raises(InterruptedError):
        engine.load()
    engine.close()
    assert 0 < len(layers) < 20
    assert not model_threads()


def test_an_engine_that_is_dropped_ends_its_thread():
    before = len(model_threads())
    engine = LocalEngine(DirectEngine(lambda progress: StubBackend(), layers=1, pooling="cls", pad_id=None))
    assert len(model_threads()) == before + 1
    del engine
    gc.collect()
    assert len(model_threads()) == before


def test_an_interrupted_caller_leaves_at_once_and_its_forward_stops_at_the_next_sub_layer(engine, backend):
    backend.gate = threading.Event()

    start = time.monotonic()
    with interrupted_after(0.2), pytest.raises(InterruptedError):
        engine.encode(ids_of([1]), normalize=True)
    assert time.monotonic() - start < 1
    backend.gate.set()
    assert engine.encode(ids_of([2]), normalize=True).tolist() == [[2, 1]]
    assert backend.layers_run == LAYERS  # the abandoned forward ended in its first layer, before the feed-forward


def test_a_forked_child_gets_a_sentence_and_not_a_hang(engine):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            engine.encode(ids_of([1]), normalize=True)
            answer = b"a vector"
        except StateError as ex:
            answer = str(ex).encode()
        engine.close()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"before a fork" in pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert engine.encode(ids_of([1]), normalize=True).tolist() == [[1, 1]]


def test_the_interpreter_exits_while_a_forward_runs():
    program = textwrap.dedent("""
        import threading, time
        import numpy as np
        from embed.engine import DirectEngine, LocalEngine

        class Slow:
            description = ""
            def embed(self, batch): time.sleep(0.5); return batch
            def self_attention(self, states, layer): return states
            def feed_forward(self, states, layer): return states
            def pool(self, states, pooling, normalize): return np.zeros((1, 1), np.float32)
            def close(self): pass

        engine = LocalEngine(DirectEngine(lambda progress: Slow(), layers=1, pooling="cls", pad_id=None))
        engine.load()
        batch = [np.zeros(1, np.int32)]
        threading.Thread(target=engine.encode, args=(batch,), kwargs={"normalize": True}, daemon=True).start()
        time.sleep(0.1)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_signal_handler_may_encode_and_close_whatever_its_thread_is_doing():
    program = textwrap.dedent("""
        import faulthandler, signal, time
        import numpy as np
        from embed.engine import DirectEngine, LocalEngine
        from embed.errors import StateError

        class Quick:
            description = ""
            def embed(self, batch): return batch
            def self_attention(self, states, layer): return states
            def feed_forward(self, states, layer): return states
            def pool(self, states, pooling, normalize): return np.zeros((1, 1), np.float32)
            def close(self): pass

        faulthandler.dump_traceback_later(30, exit=True)
        engine = LocalEngine(DirectEngine(lambda progress: Quick(), layers=1, pooling="cls", pad_id=None))
        engine.load()
        batch = [np.zeros(1, np.int32)]
        signal.signal(signal.SIGALRM, lambda *_: engine.encode(batch, normalize=True))
        signal.setitimer(signal.ITIMER_REAL, 0.0011, 0.0011)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            engine.encode(batch, normalize=True)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # slower: on a busy machine handlers would nest without end
        signal.signal(signal.SIGALRM, lambda *_: engine.close())
        try:
            while True:
                engine.encode(batch, normalize=True)
        except StateError:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print("closed")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
