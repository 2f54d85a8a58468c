"""Lines out of a descriptor, however the bytes are cut up on their way."""

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embed import lines
from embed.errors import TextError


def through_a_pipe(pieces):
    """Return the batches read from a pipe into which `pieces` are written one by one."""
    reader, writer = os.pipe()

    def write():
        for piece in pieces:
            os.write(writer, piece)
            time.sleep(0)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return list(lines.Lines(reader))
    finally:
        thread.join()
        os.close(reader)


def flat(batches):
    return [line for batch in batches for line in batch]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=9), max_size=30), st.data())
def test_any_cut_gives_the_same_lines(texts, data):
    stream = "".join(f"{text}\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert flat(through_a_pipe(pieces)) == texts


def test_only_the_line_end_is_stripped():
    assert flat(through_a_pipe([b" a \r\n\r\r\n\nb\r\r\nlast\r"])) == [" a ", "\r", "", "b\r", "last\r"]


def test_batches_keep_to_the_limits(tmp_path):
    (tmp_path / "short").write_bytes(b"a\n" * 5000)
    (tmp_path / "long").write_bytes((b"b" * 9000 + b"\n") * 20)
    with (tmp_path / "short").open("rb") as file:
        assert {len(batch) for batch in lines.Lines(file.fileno())} == {lines.BATCH_LINES, 5000 % lines.BATCH_LINES}
    with (tmp_path / "long").open("rb") as file:
        assert {len(batch) for batch in lines.Lines(file.fileno())} == {2}


def test_fraction_grows_to_one_for_a_file_and_is_unknown_for_a_pipe(tmp_path):
    (tmp_path / "file").write_bytes(b"skipped\n" + b"line\n" * 5000)
    with (tmp_path / "file").open("rb") as file:
        os.lseek(file.fileno(), 8, os.SEEK_SET)  # a shell's `read` may have taken a line before
        reader = lines.Lines(file.fileno())
        fractions = [reader.fraction for _ in reader]
    assert fractions == sorted(fractions)
    assert fractions[0] == pytest.approx(lines.BATCH_LINES / 5000)
    assert fractions[-1] == 1
    ours, theirs = os.pipe()
    assert lines.Lines(ours).fraction is None
    os.close(ours)
    os.close(theirs)


def test_good_lines_come_before_the_complaint():
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n\xff\n")
    os.close(writer)
    batches = iter(lines.Lines(reader))
    assert next(batches) == ["one", "two"]
    with pytest.raises(TextError, match=r"line 3 is not UTF-8 \(byte 0xff after 0 others\)") as caught:
        next(batches)
    assert caught.value.index == 2
    os.close(reader)


def test_a_descriptor_that_does_not_block_is_waited_for():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    timer = threading.Timer(0.2, lambda: (os.write(writer, b"late\n"), os.close(writer)))
    timer.start()
    assert list(lines.Lines(reader)) == [["late"]]
    timer.join()
    os.close(reader)
