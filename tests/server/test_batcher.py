"""Chunks: every text once, in turn, within the budget; and who hangs up makes nobody wait."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_embedder import StubEmbedder

from embed.model_folder import TOKEN_BUDGET
from embed.server.batcher import CHUNK_S, FIRST_CHUNK_TOKENS, Batcher, Job, Pace


def job_of(*lengths: int, normalize: bool = True) -> Job:
    texts = [" ".join(["word"] * length) for length in lengths]
    job = Job(len(texts), normalize=normalize)
    job.fill(StubEmbedder().tokenize(texts), StubEmbedder())
    return job


def batcher_of(*jobs: Job) -> Batcher:
    batcher = Batcher()
    for job in jobs:
        batcher.add(job)
    return batcher


def lengths_of(chunk, names: dict[Job, str]) -> str:
    return " ".join(f"{names[item.job]}{len(item.text.ids)}" for item in chunk)


def test_the_example_of_the_module():
    a, b, c = job_of(5, 9, 7, 5), job_of(3), job_of(2, 4)
    names = {a: "A", b: "B", c: "C"}
    batcher = batcher_of(a, b, c)
    assert lengths_of(batcher.next_chunk(20), names) == "A9 B3 C4 C2"
    assert lengths_of(batcher.next_chunk(20), names) == "A7 A5 A5"
    assert batcher.next_chunk(20) == []


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), max_size=8), st.integers(1, 60))
def test_every_text_is_in_one_chunk_and_no_chunk_is_over_the_budget(requests, budget):
    jobs = [job_of(*lengths) for lengths in requests]
    batcher = batcher_of(*jobs)
    seen = set()
    while chunk := batcher.next_chunk(budget):
        assert sum(len(item.text.ids) for item in chunk) <= budget or len(chunk) == 1
        seen_now = {(id(item.job), item.index) for item in chunk}
        assert len(seen_now) == len(chunk)
        assert not seen & seen_now
        seen |= seen_now
    assert len(seen) == sum(map(len, requests))


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), min_size=1, max_size=8), st.integers(1, 60))
def test_a_waiting_request_is_served_within_as_many_chunks_as_there_are_requests(requests, budget):
    jobs = [job_of(*lengths) for lengths in requests]
    batcher = batcher_of(*jobs)
    served = {id(item.job) for _ in jobs for item in batcher.next_chunk(budget)}
    assert served == {id(job) for job in jobs}


def test_a_short_text_is_in_the_next_chunk_whatever_waits_before_it():
    bulk = [job_of(*[20] * 500) for _ in range(5)]
    batcher = batcher_of(*bulk)
    batcher.next_chunk(200)
    short = job_of(3)
    batcher.add(short)
    assert short in {item.job for item in batcher.next_chunk(200)}


def test_a_short_request_waits_for_half_a_chunk_of_a_long_one():
    bulk, short = job_of(*[20] * 500), job_of(3)
    batcher = batcher_of(bulk, short)
    tokens = [sum(len(item.text.ids) for item in batcher.next_chunk(200)) for _ in range(2)]
    assert tokens == [3 + 80, 200]


def test_short_requests_among_themselves_fill_a_chunk():
    assert len(batcher_of(*[job_of(10) for _ in range(30)]).next_chunk(200)) == 20


def test_a_text_over_the_budget_is_alone():
    long, short = job_of(5000), job_of(3)
    batcher = batcher_of(long, short)
    assert [item.job for item in batcher.next_chunk(100)] == [long]
    assert [item.job for item in batcher.next_chunk(100)] == [short]


def test_a_chunk_has_one_normalisation():
    yes, no, also_yes = job_of(1), job_of(1, normalize=False), job_of(1)
    batcher = batcher_of(yes, no, also_yes)
    assert [item.job for item in batcher.next_chunk(100)] == [yes, also_yes]
    assert [item.job for item in batcher.next_chunk(100)] == [no]


@pytest.mark.parametrize(
    "give_up", [lambda job: setattr(job, "cancelled", True), lambda job: job.fail(ValueError("bad"))]
)
def test_a_job_that_was_given_up_is_computed_no_further(give_up):
    gone, here = job_of(5, 5, 5), job_of(5)
    batcher = batcher_of(gone, here)
    assert [item.job for item in batcher.next_chunk(5)] == [gone]
    give_up(gone)
    assert [item.job for item in batcher.next_chunk(100)] == [here]
    assert not batcher.has_work()


def test_who_seems_to_have_gone_waits_for_everybody_else_and_is_served_then():
    leaving, here = job_of(5), job_of(5, 5)
    batcher = batcher_of(leaving, here)
    leaving.leaving = True
    assert [item.job for item in batcher.next_chunk(5)] == [here]
    assert [item.job for item in batcher.next_chunk(5)] == [here]
    assert [item.job for item in batcher.next_chunk(5)] == [leaving]


def test_the_pace_begins_small_and_follows_what_is_measured():
    pace = Pace()
    assert pace.chunk_tokens == FIRST_CHUNK_TOKENS
    for _ in range(30):
        pace.add(100, 1.0)
    assert pace.chunk_tokens == pytest.approx(100 * CHUNK_S, rel=0.02)
    for _ in range(30):
        pace.add(2048, 0.01)
    assert pace.chunk_tokens == TOKEN_BUDGET


def test_one_token_is_the_least_that_a_chunk_may_have():
    pace = Pace()
    for _ in range(50):
        pace.add(1, 1000.0)
    assert pace.chunk_tokens == 1


def test_small_chunks_hardly_move_a_pace_that_large_ones_set():
    pace = Pace()
    for _ in range(30):
        pace.add(2000, 0.5)
    pace.add(5, 0.005)
    assert pace.tokens_per_s == pytest.approx(4000, rel=0.01)


def test_a_job_that_is_done_is_not_held():
    """Its vectors may be 17 MB."""
    job = job_of(5)
    batcher = batcher_of(job)
    batcher.next_chunk(100)
    watched = weakref.ref(job)
    del job
    assert not batcher.has_work()
    assert watched() is None
