"""Packed batches: RoBERTa's and BERT's positions, offsets, and how texts share chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embed import batching


def ids(*values):
    return np.array(values, np.int32)


def test_bert_positions_count_from_zero():
    assert batching.position_ids(ids(101, 0, 7, 0, 102), None).tolist() == [0, 1, 2, 3, 4]


def test_roberta_positions_start_after_pad_id():
    assert batching.position_ids(ids(0, 17, 18, 2), 1).tolist() == [2, 3, 4, 5]


def test_a_literal_pad_takes_the_pad_position_and_is_not_counted():
    # "a <pad> b": transformers counts the ids that aren't pad_id, and gives pad_id itself to those that are
    assert batching.position_ids(ids(0, 10, 1, 1, 11, 2), 1).tolist() == [2, 3, 1, 1, 4, 5]


def test_pack_concatenates_texts_and_restarts_positions():
    batch = batching.pack([ids(0, 5, 2), ids(0, 1, 6, 2)], 1)
    assert batch.ids.tolist() == [0, 5, 2, 0, 1, 6, 2]
    assert batch.positions.tolist() == [2, 3, 4, 2, 1, 3, 4]
    assert batch.offsets.tolist() == [0, 3, 7]
    assert (batch.texts, batch.tokens) == (2, 7)
    assert {batch.ids.dtype, batch.positions.dtype, batch.offsets.dtype} == {np.dtype(np.int32)}


def test_chunks_take_the_longest_first_and_keep_to_the_budget():
    assert list(batching.chunks([1, 9, 4, 5, 2], 10)) == [[1], [3, 2], [4, 0]]


def test_a_text_over_the_budget_is_a_chunk_of_its_own():
    assert list(batching.chunks([3, 50, 3], 10)) == [[1], [0, 2]]


def test_no_texts_make_no_chunks():
    assert list(batching.chunks([], 10)) == []


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 80))
def test_every_text_is_in_exactly_one_chunk(lengths, budget):
    chunks = list(batching.chunks(lengths, budget))
    assert sorted(i for chunk in chunks for i in chunk) == list(range(len(lengths)))
    for chunk in chunks:
        assert len(chunk) == 1 or sum(lengths[i] for i in chunk) <= budget


@pytest.mark.parametrize("pad_id", [None, 1])
def test_positions_of_a_text_do_not_depend_on_its_neighbours(pad_id):
    texts = [ids(0, 7, 1, 2), ids(0, 2), ids(0, 1, 1, 9, 2)]
    batch = batching.pack(texts, pad_id)
    for t, text in enumerate(texts):
        rows = slice(batch.offsets[t], batch.offsets[t + 1])
        assert batch.positions[rows].tolist() == batching.position_ids(text, pad_id).tolist()
