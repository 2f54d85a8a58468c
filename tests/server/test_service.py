"""The model thread and its queue, asked by greenlets: right answers to each, bounds, faults, hang-ups, loads."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings
import weakref

import gevent
import numpy as np
import pytest
from gevent.event import Event
from stub_embedder import ABORTS, NOT_FINITE, StubEmbedder, vector_of

from embed.errors import GuessWarning, ModelError, TextError, VectorError
from embed.server import service as service_module
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.service import QueueFull, Service, Unavailable

SECONDS = 10  # for anything that should take a hundredth of one


class Connection:
    """A client whose hanging up the test decides."""

    def __init__(self):
        self.on_eof = self.on_reset = None

    @contextlib.contextmanager
    def watch(self, on_eof, on_reset):
        self.on_eof, self.on_reset = on_eof, on_reset
        yield
        self.on_eof = self.on_reset = None


@pytest.fixture
def start():
    """Return a function that starts a service on an embedder; all end with the test."""
    services = []

    def start(load, **limits):
        services.append(Service(load, limits=Limits(**limits), metrics=Metrics()))
        return services[-1]

    yield start
    for service in services:
        service.close()


@pytest.fixture
def embedder():
    return StubEmbedder()


def ask(service, *texts, normalize=True, connection=None):
    return gevent.spawn(service.embed, texts, normalize=normalize, connection=connection or Connection())


def wait_until(condition):
    with gevent.Timeout(SECONDS):
        while not condition():
            gevent.sleep(0.001)


def answer_of(greenlet):
    return greenlet.get(timeout=SECONDS).vectors


def hold(service, embedder):
    """Have the model thread compute a request that doesn't end before the gate is opened."""
    embedder.gate.clear()
    greenlet = ask(service, "held")
    wait_until(lambda: embedder.chunks[-1:] == [["held"]])
    return greenlet


def test_each_request_gets_its_own_texts_in_their_order(start, embedder):
    service = start(lambda: embedder)
    requests = [[f"{i} " * (1 + (i * j) % 5) + str(j) for j in range(1 + i % 7)] for i in range(40)]
    greenlets = [ask(service, *texts) for texts in requests]
    for texts, greenlet in zip(requests, greenlets, strict=True):
        np.testing.assert_array_equal(answer_of(greenlet), [vector_of(text) for text in texts])


def test_requests_that_wait_are_computed_together(start, embedder):
    service = start(lambda: embedder)
    first = hold(service, embedder)
    others = [ask(service, text) for text in "abcdefgh"]
    wait_until(lambda: len(service._waiting) == 9)
    embedder.gate.set()
    gevent.joinall([first, *others], timeout=SECONDS, raise_error=True)
    assert embedder.chunks == [["held"], list("abcdefgh")]


def test_normalisation_is_each_request_s_own(start, embedder):
    service = start(lambda: embedder)
    yes, no = ask(service, "x"), ask(service, "x", normalize=False)
    np.testing.assert_array_equal(answer_of(yes) * 2, answer_of(no))


def test_texts_that_were_cut_are_counted(start):
    service = start(lambda: StubEmbedder(maxseq=3))
    assert ask(service, "a b c d", "a", "a b c d e").get(timeout=SECONDS).truncated == 2


def test_a_vector_that_is_not_finite_is_the_error_of_its_request_alone(start, embedder):
    service = start(lambda: embedder)
    first = hold(service, embedder)
    good, bad, also_good = ask(service, "a"), ask(service, "b", NOT_FINITE), ask(service, "c")
    wait_until(lambda: len(service._waiting) == 4)
    embedder.gate.set()
    with pytest.raises(VectorError, match="text 1: the model's vector is not finite") as caught:
        bad.get(timeout=SECONDS)
    assert caught.value.index == 1
    gevent.joinall([first, good, also_good], timeout=SECONDS, raise_error=True)
    assert sorted(embedder.chunks[1]) == ["a", "b", "c", NOT_FINITE]


def test_a_text_that_breaks_the_forward_is_found_and_the_others_are_computed(start, embedder):
    service = start(lambda: embedder)
    first = hold(service, embedder)
    good = [ask(service, f"{i}a", f"{i}b") for i in range(15)]
    bad = ask(service, "fine", "fine too", ABORTS)
    wait_until(lambda: len(service._waiting) == 17)
    embedder.gate.set()
    with pytest.raises(TextError, match=r"text 2 can't be computed \(MemoryError: out of memory\)"):
        bad.get(timeout=SECONDS)
    for i, greenlet in enumerate(good):
        np.testing.assert_array_equal(answer_of(greenlet), [vector_of(f"{i}a"), vector_of(f"{i}b")])
    first.get(timeout=SECONDS)
    assert len(embedder.chunks) < 20, "halves, not one text after the other"


def test_the_thread_goes_on_after_a_fault(start, embedder):
    service = start(lambda: embedder)
    for _ in range(3):
        with pytest.raises(TextError):
            ask(service, ABORTS).get(timeout=SECONDS)
    assert service.trouble is None
    assert len(answer_of(ask(service, "a"))) == 1


def test_requests_wait_for_the_load(start, embedder):
    gate = threading.Event()

    def load():
        assert gate.wait(SECONDS)
        return embedder

    service = start(load)
    greenlets = [ask(service, "a") for _ in range(16)]
    gevent.sleep(0.01)
    assert not any(greenlet.ready() for greenlet in greenlets)
    assert service.status == "healthy"
    gate.set()
    gevent.joinall(greenlets, timeout=SECONDS, raise_error=True)
    assert service.loads == 1


def test_a_load_that_fails_is_said_to_every_request_and_tried_again_by_the_next(start, embedder):
    broken = [True]

    def load():
        if broken[0]:
            raise ModelError("model.safetensors: the file is empty")
        return embedder

    failures = []
    service = start(load)
    service.on_failure.append(failures.append)
    for greenlet in [ask(service, "a") for _ in range(3)]:
        with pytest.raises(Unavailable, match=r"can't be loaded: model\.safetensors: the file is empty"):
            greenlet.get(timeout=SECONDS)
    assert len(failures) == 1
    assert service.status == "degraded"
    broken[0] = False
    assert len(answer_of(ask(service, "a"))) == 1
    assert service.status == "healthy"


def test_a_guess_is_said_while_loading(start, embedder, capfd):
    def load():
        warnings.warn("no file says how to pool", GuessWarning, stacklevel=2)
        return embedder

    answer_of(ask(start(load), "a"))
    assert capfd.readouterr().err == "embed: warning: no file says how to pool\n"


def test_a_full_queue_refuses_by_requests(start, embedder):
    service = start(lambda: embedder, queue_requests=3)
    held = [hold(service, embedder), ask(service, "a"), ask(service, "b")]
    wait_until(lambda: len(service._waiting) == 3)
    with pytest.raises(QueueFull, match="3 requests, 3 texts, 3 tokens") as caught:
        ask(service, "c").get(timeout=SECONDS)
    assert 1 <= caught.value.retry_after_s <= 60
    embedder.gate.set()
    gevent.joinall(held, timeout=SECONDS, raise_error=True)
    assert len(answer_of(ask(service, "c"))) == 1


def test_a_full_queue_refuses_by_tokens_but_takes_any_request_when_empty(start, embedder):
    service = start(lambda: embedder, queue_tokens=10)
    assert len(answer_of(ask(service, "a " * 50))) == 1
    held = hold(service, embedder)
    with pytest.raises(QueueFull):
        ask(service, "a " * 10).get(timeout=SECONDS)
    fits = ask(service, "a " * 9)
    wait_until(lambda: len(service._waiting) == 2)
    embedder.gate.set()
    gevent.joinall([held, fits], timeout=SECONDS, raise_error=True)


def test_a_full_queue_gives_up_who_has_gone_first(start, embedder):
    service = start(lambda: embedder, queue_requests=2)
    held, leaver = hold(service, embedder), Connection()
    leaving = ask(service, "gone", connection=leaver)
    wait_until(lambda: leaver.on_eof)
    leaver.on_eof()
    here = ask(service, "here")
    with pytest.raises(Unavailable):
        leaving.get(timeout=SECONDS)
    embedder.gate.set()
    gevent.joinall([held, here], timeout=SECONDS, raise_error=True)
    assert embedder.chunks == [["held"], ["here"]]


def test_fifty_clients_that_broke_off_cost_no_forward(start, embedder):
    service = start(lambda: embedder)
    held = hold(service, embedder)
    connections = [Connection() for _ in range(50)]
    gone = [ask(service, "gone", connection=connection) for connection in connections]
    wait_until(lambda: all(connection.on_reset for connection in connections))
    for connection in connections:
        connection.on_reset()
    for greenlet in gone:
        with pytest.raises(ConnectionResetError):
            greenlet.get(timeout=SECONDS)
    good = ask(service, "good")
    wait_until(lambda: len(service._waiting) == 2)
    embedder.gate.set()
    gevent.joinall([held, good], timeout=SECONDS, raise_error=True)
    assert embedder.chunks == [["held"], ["good"]]


def test_the_deadline_frees_the_place_and_drops_the_work(start, embedder):
    service = start(lambda: embedder)
    held = hold(service, embedder)

    def impatient():
        with gevent.Timeout(0.01):
            service.embed(["late"], normalize=True, connection=Connection())

    with pytest.raises(gevent.Timeout):
        gevent.spawn(impatient).get(timeout=SECONDS)
    assert len(service._waiting) == 1
    embedder.gate.set()
    held.get(timeout=SECONDS)
    answer_of(ask(service, "next"))
    assert embedder.chunks == [["held"], ["next"]]
    assert service._waiting_tokens == 0


def test_draining_finishes_what_was_taken_and_takes_no_more(start, embedder):
    service = start(lambda: embedder)
    held, queued = hold(service, embedder), ask(service, "queued")
    wait_until(lambda: len(service._waiting) == 2)
    service.drain()
    assert service.status == "draining"
    with pytest.raises(Unavailable, match="the service is ending"):
        ask(service, "new").get(timeout=SECONDS)
    embedder.gate.set()
    gevent.joinall([held, queued], timeout=SECONDS, raise_error=True)


def test_abandoning_answers_what_still_waits(start, embedder):
    service = start(lambda: embedder)
    held, queued = hold(service, embedder), ask(service, "queued")
    wait_until(lambda: len(service._waiting) == 2)
    service.drain()
    service.abandon()
    for greenlet in (held, queued):
        with pytest.raises(Unavailable):
            greenlet.get(timeout=SECONDS)
    embedder.gate.set()


def test_closing_ends_the_thread_and_frees_the_model(embedder):
    service = Service(lambda: embedder, limits=Limits(), metrics=Metrics())
    answer_of(ask(service, "a"))
    service.close()
    assert embedder.closed
    assert "embed-batcher" not in {thread.name for thread in threading.enumerate()}
    assert service.trouble == "the model thread has ended; restart the service"


def test_the_loop_goes_on_while_the_model_computes(start, embedder):
    service = start(lambda: embedder)
    held = hold(service, embedder)
    turns = Event()
    gevent.spawn_later(0, turns.set)
    assert turns.wait(SECONDS)
    embedder.gate.set()
    held.get(timeout=SECONDS)


def test_a_chunk_that_never_ends_is_told(start, embedder, monkeypatch):
    service = start(lambda: embedder)
    held = hold(service, embedder)
    monkeypatch.setattr(service_module, "STUCK_S", 0.01)
    wait_until(lambda: service.status == "degraded")
    assert "may hang" in service.trouble
    embedder.gate.set()
    held.get(timeout=SECONDS)
    assert service.status == "healthy"


def test_a_bulk_request_delays_a_short_one_by_two_chunks_at_most(start):
    """Within the chunk that is being computed and its own, each about 250 ms at the speed measured so far."""
    embedder = StubEmbedder(token_s=0.0005)
    service = start(lambda: embedder)
    bulk = ask(service, *["word " * 10] * 500)
    wait_until(lambda: len(embedder.chunks) == 3)
    began, before = time.monotonic(), len(embedder.chunks)
    answer_of(ask(service, "short"))
    assert len(embedder.chunks) - before <= 2
    assert time.monotonic() - began < 2
    bulk.kill()


def test_a_text_that_is_long_is_tokenised_off_the_loop(start, embedder):
    service = start(lambda: embedder)
    threads = []
    tokenize = embedder.tokenize
    embedder.tokenize = lambda texts, **how: threads.append(threading.current_thread()) or tokenize(texts)
    answer_of(ask(service, "short"))
    answer_of(ask(service, "long " * 1000))
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


class SlowTokenizer(StubEmbedder):
    """Tokenises a text over 1,000 words only while `tokenizing` is set; `tokenized` holds the first texts of calls."""

    def __post_init__(self):
        super().__post_init__()
        self.tokenizing = threading.Event()
        self.tokenized = []

    def tokenize(self, texts, **how):
        self.tokenized.append(texts[0][:6])
        if len(texts[0]) > service_module.SLICE_CHARACTERS:
            assert self.tokenizing.wait(SECONDS)
        return super().tokenize(texts)


LARGE = "large " * service_module.SLICE_CHARACTERS
MIDDLE = "middle " * 500


def test_texts_of_megabytes_are_tokenised_one_at_a_time_and_hold_up_nobody(start):
    embedder = SlowTokenizer(maxseq=10)
    service = start(lambda: embedder)
    large = [ask(service, LARGE) for _ in range(6)]
    wait_until(lambda: embedder.tokenized)
    for _ in range(5):
        answer_of(ask(service, MIDDLE))
    assert embedder.tokenized.count("large ") == 1
    embedder.tokenizing.set()
    gevent.joinall(large, timeout=SECONDS, raise_error=True)


def test_who_breaks_off_while_tokenising_costs_no_more_of_it(start):
    embedder = SlowTokenizer(maxseq=10)
    service = start(lambda: embedder)
    connections = [Connection() for _ in range(6)]
    gone = [ask(service, LARGE, connection=connection) for connection in connections]
    wait_until(lambda: all(connection.on_reset for connection in connections) and embedder.tokenized)
    for connection in connections:
        connection.on_reset()
    embedder.tokenizing.set()
    for greenlet in gone:
        with pytest.raises(ConnectionResetError):
            greenlet.get(timeout=SECONDS)
    assert embedder.tokenized == ["large "]
    assert embedder.chunks == []
    assert not service._waiting


def test_many_empty_texts_are_tokenised_off_the_loop(start, embedder):
    service = start(lambda: embedder)
    threads = []
    tokenize = embedder.tokenize
    embedder.tokenize = lambda texts, **how: threads.append(threading.current_thread()) or tokenize(texts)
    answer_of(ask(service, *[""] * 4096))
    assert threading.main_thread() not in threads


def test_a_text_that_cannot_be_tokenised_is_named_by_its_place_in_the_request(start, embedder):
    service = start(lambda: embedder)

    def tokenize(texts, **how):
        if "bad" in texts:
            raise TextError(f"text {texts.index('bad')} has no tokens", texts.index("bad"))
        return StubEmbedder.tokenize(embedder, texts)

    embedder.tokenize = tokenize
    with pytest.raises(TextError, match=r"^text 3 has no tokens") as caught:
        ask(service, MIDDLE * 20, MIDDLE * 20, "good", "bad").get(timeout=SECONDS)
    assert caught.value.index == 3


def test_a_full_queue_refuses_by_texts(start, embedder):
    service = start(lambda: embedder, queue_texts=10)
    assert len(answer_of(ask(service, *"a" * 20))) == 20
    held = hold(service, embedder)
    with pytest.raises(QueueFull, match="1 requests, 1 texts, 1 tokens"):
        ask(service, *"a" * 10).get(timeout=SECONDS)
    embedder.gate.set()
    held.get(timeout=SECONDS)


def test_a_drain_after_a_failed_load_loads_no_more(start):
    loads = []

    def load():
        loads.append(1)
        raise ModelError("model.safetensors: the file is empty")

    service = start(load)
    wait_until(lambda: service.load_error)
    service.drain()
    for _ in range(2):
        with pytest.raises(Unavailable, match="the service is ending"):
            ask(service, "a").get(timeout=SECONDS)
    assert loads == [1]


def test_an_idle_service_holds_no_vectors(start, embedder):
    service = start(lambda: embedder)
    jobs = []
    submit = service._thread.submit
    service._thread.submit = lambda job: jobs.append(weakref.ref(job)) or submit(job)
    answer_of(ask(service, "a"))
    wait_until(lambda: gc.collect() >= 0 and jobs[0]() is None)


def test_only_some_can_wait_who_may_have_gone(start, embedder, monkeypatch):
    monkeypatch.setattr(service_module, "MOST_LEAVING", 2)
    service = start(lambda: embedder)
    held, connections = hold(service, embedder), [Connection() for _ in range(4)]
    greenlets = [ask(service, str(i), connection=connection) for i, connection in enumerate(connections)]
    wait_until(lambda: len(service._waiting) == 5)
    for connection in connections:
        connection.on_eof()
    for greenlet in greenlets[:2]:
        with pytest.raises(ConnectionResetError):
            greenlet.get(timeout=SECONDS)
    embedder.gate.set()
    gevent.joinall([held, *greenlets[2:]], timeout=SECONDS, raise_error=True)
