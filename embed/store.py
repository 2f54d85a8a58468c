"""One repository's folder in the hub cache, written: blobs by their hash, links to them by name, refs.

A file arrives beside its place under a name of this process alone, its hash is checked, and it is renamed. What a
process that died left behind is taken over and gone on with. The caller holds a lock, but on some network file systems
locks silently do nothing: so nothing that a living process may be writing is touched.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from embed.errors import ModelError
from embed.files import UNFINISHED
from embed.hub import COMMIT

STALE_S = 24 * 3600  # what another file's download left is removed then; it may still be gone on with until then
IDLE_S = 600  # no download is silent for so long: the library gives up after 5 times 10 s
_ETAG = re.compile(r"[0-9A-Za-z][\w.+=-]{0,127}", re.ASCII)
_HOST = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
_PART = re.compile(r".+\.embed-(?P<host>\w+)-(?P<pid>\d+)-\w+" + re.escape(UNFINISHED))
_in_use: set[Path] = set()  # by this process
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Blob:
    """The content of a file on the hub; `etag` is its hash: sha256 for a large file, else that of git."""

    etag: str
    size: int | None  # bytes; None: the server doesn't say

    def __post_init__(self) -> None:
        if not _ETAG.fullmatch(self.etag):
            raise ModelError(f"the ETag {self.etag[:80]!r} can't name a file of the cache; check HF_ENDPOINT")

    def is_at(self, path: Path) -> bool:
        """Whether `path` leads to a finished file of this size."""
        size = _size(path)
        return size > 0 and size == (self.size or size) and not os.path.realpath(path).endswith(UNFINISHED)

    def is_sound(self, path: Path) -> bool:
        """Whether a file's hash is the ETag, where that is one: sha256, or sha1 as git takes it."""
        if re.fullmatch(r"[0-9a-f]{64}", self.etag):
            digest = hashlib.sha256()
        elif re.fullmatch(r"[0-9a-f]{40}", self.etag):
            digest = hashlib.sha1(f"blob {_size(path)}\0".encode(), usedforsecurity=False)
        else:
            return True
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest() == self.etag


class Store:
    """The folder models--org--name of a hub cache. Methods raise `OSError`, as the disk does."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._blobs = home / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def snapshot(self, commit: str) -> Path:
        return self._home / "snapshots" / commit

    def has(self, commit: str, file: str, blob: Blob) -> bool:
        return blob.is_at(self.snapshot(commit) / file)

    def arrived(self, blob: Blob) -> int:
        """Return how many bytes an earlier download left."""
        return max((_size(part) for part in self._left(blob.etag)), default=0)

    def free(self) -> int:
        """Return the bytes that the disk has left."""
        return shutil.disk_usage(self._blobs).free

    def add(
        self, commit: str, file: str, blob: Blob, read: Callable[[BinaryIO], None], advance: Callable[[int], None]
    ) -> None:
        """Put a file into a snapshot. `read` appends what is missing, and `advance` is told how much is there.

        Raises `ModelError` if what arrives isn't what its hash says.
        """
        path = self._blobs / blob.etag
        if not blob.is_at(path):
            with self._part(blob.etag) as part:
                _receive(part, blob, read, advance)
                part.replace(path)
            self._tidy(blob.etag)
        _link(self.snapshot(commit) / file, path)

    def write_ref(self, revision: str, commit: str) -> None:
        """Note which commit a branch or a tag stands for."""
        if COMMIT.fullmatch(revision):
            return
        path = self._home / "refs" / revision
        path.parent.mkdir(parents=True, exist_ok=True)
        with _in_place_of(path) as temporary:
            temporary.write_text(commit)

    @contextlib.contextmanager
    def _part(self, etag: str) -> Iterator[Path]:
        """Give the name of an unfinished file that is ours alone; it begins as the longest that a dead process left."""
        part = self._blobs / f"{etag}.embed-{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:8]}{UNFINISHED}"
        _in_use.add(part)
        try:
            for left in sorted(self._left(etag), key=_size, reverse=True)[:1]:
                with contextlib.suppress(FileNotFoundError):  # another process has taken it
                    left.rename(part)
            yield part
        finally:
            _in_use.discard(part)

    def _left(self, etag: str) -> list[Path]:
        """Return what is there of a file: of our own making only, since other tools keep theirs by other rules."""
        return [path for path in self._blobs.glob(f"{glob.escape(etag)}.embed-*{UNFINISHED}") if _is_left(path)]

    def _tidy(self, etag: str) -> None:
        for path in self._blobs.glob(f"*.embed-*{UNFINISHED}"):
            if _is_left(path) and (path.name.startswith(f"{etag}.embed-") or _idle_s(path) > STALE_S):
                path.unlink(missing_ok=True)


def _receive(part: Path, blob: Blob, read: Callable[[BinaryIO], None], advance: Callable[[int], None]) -> None:
    for _ in range(2):  # what was taken over may have been nonsense
        with _Part(part, advance) as stream:
            if blob.size is not None and stream.tell() > blob.size:
                stream.seek(0)
                stream.truncate()
            read(stream)
            os.fsync(stream.fileno())  # or a power cut after the rename could leave an empty file
        if blob.is_sound(part):
            return
        part.unlink()
    raise ModelError(f"{part.parent / blob.etag}: what arrived has another hash than the hub says; try again")


def _is_left(path: Path) -> bool:
    """Whether no process writes this unfinished file any more."""
    if path in _in_use:
        return False
    writer = _PART.fullmatch(path.name)
    if writer is None or writer["host"] != _HOST:
        return _idle_s(path) > IDLE_S
    return not _is_alive(int(writer["pid"])) or _idle_s(path) > IDLE_S


def _is_alive(pid: int) -> bool:
    """Whether another process has this id. Our own was that of an earlier one, as in a container started again."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, or no id at all
        pass
    return True


def _idle_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0


class _Part(io.FileIO):
    """A file that is appended to, and tells after each write how long it is."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path, "ab")
        self._advance = advance

    def write(self, data: bytes) -> int:  # type: ignore[override]
        left = memoryview(data)
        while left:  # a raw file may take less than all
            left = left[super().write(left) :]
        self._advance(self.tell())
        return len(data)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _link(link: Path, blob: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _in_place_of(link) as temporary:
            temporary.symlink_to(os.path.relpath(blob, link.parent))
    except OSError as ex:
        if ex.errno not in _NO_LINKS:
            raise
        blob.replace(link)


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """Give the name of a file to make; it then takes the place of `path` at once."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
