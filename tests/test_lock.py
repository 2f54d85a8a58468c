"""One process at a time; the others say once what they wait for."""

import errno
import fcntl
import threading

import pytest

from embed.lock import lock


def test_the_second_waits_for_the_first_and_says_so(tmp_path, capsys):
    said, entered = threading.Event(), threading.Event()

    def second():
        said.set()
        with lock(tmp_path / "lock", "the first"):
            entered.set()

    thread = threading.Thread(target=second)
    with lock(tmp_path / "lock", "nobody"):
        thread.start()
        said.wait(20)
        assert not entered.wait(0.1)
    thread.join(20)
    assert entered.is_set()
    assert capsys.readouterr().err == "embed: waiting for the first ...\n"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_no_hindrance(number, tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(number, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock(tmp_path / "lock", "nobody"):
        pass


def test_another_error_is_raised(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output"), lock(tmp_path / "lock", "nobody"):
        pass
