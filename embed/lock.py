"""A lock between processes: a file that one of them at a time holds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

from embed.console import say


@contextlib.contextmanager
def lock(path: Path, others: str) -> Iterator[None]:
    """Hold the lock; while another process does, say so once and wait. `others` is what it is called then."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {others} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as ex:
            # Some network file systems have no locks; a rename keeps things whole there, a lock only saves work.
            if ex.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield
