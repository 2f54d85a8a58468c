"""Vectors as text: every bit comes back, in few characters, quickly; and documents that an error cuts short."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embed import output
from embed.output import numbers

AWKWARD = [0.0, -0.0, 1.0, 0.1, 1 / 3, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1e-5, 1e16, 16777216.0, 8388609.0]


def read_back(text):
    return np.array([np.float32(word) for word in text.split(",")])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_every_f32_reads_back_to_the_same_bits(values):
    row = np.array(values, np.float32)
    assert read_back(numbers(row)).tobytes() == row.tobytes()


@pytest.mark.parametrize("value", AWKWARD)
def test_awkward_numbers_are_json_and_as_short_as_can_be(value):
    row = np.array([value], np.float32)
    text = numbers(row)
    assert np.float32(json.loads(text)).tobytes() == row.tobytes()
    digits = len(text.split("e")[0].strip("-").replace(".", "").strip("0"))
    for fewer in range(1, digits):
        with np.errstate(over="ignore"):
            assert np.float32(f"{row[0]:.{fewer - 1}e}") != row[0]


def test_a_thousand_long_vectors_take_well_under_two_seconds():
    vectors = np.random.default_rng(0).standard_normal((1000, 1024), np.float32) * np.float32(0.03)
    begin = time.perf_counter()
    text = [numbers(row) for row in vectors]
    assert time.perf_counter() - begin < 2  # 0.5 s on a 2-core virtual machine
    assert sum(map(len, text)) / vectors.size < 14


@pytest.fixture
def written(monkeypatch):
    """Return the list that collects what is put on stdout."""
    pieces = []
    monkeypatch.setattr(output, "put", pieces.append)
    return pieces


BATCH = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_batch_is_put_at_once(form, written):
    out = output.writer(form, 2)
    out.write(BATCH)
    out.write(BATCH)
    assert len(written) == 2


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_json_is_whole_after_an_error_or_not_there(batches, written):
    out = output.writer("json", 2)
    for _ in range(batches):
        out.write(BATCH)
    out.stop()
    text = b"".join(written)
    assert text == b"" if batches == 0 else json.loads(text) == [*BATCH.tolist() * batches]


def test_npy_is_not_there_after_an_error(written):
    out = output.writer("npy", 2)
    out.write(BATCH)
    out.stop()
    assert written == []
