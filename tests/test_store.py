"""A repository's folder in the cache: whole files only, a broken download gone on with, and nothing left over."""

import errno
import hashlib
import os
import subprocess
import sys
import time

import pytest

from embed import store
from embed.errors import ModelError
from embed.store import Blob, Store

COMMIT = "5617a9f61b028005a4858fdac845db406aefb181"
CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BLOB = Blob(SHA256, len(CONTENT))


class Cut(Exception):
    """The connection ended."""


class Source:
    """What `read` appends: the rest of CONTENT, of which `limit` bytes come before the connection ends."""

    def __init__(self, content=CONTENT, limit=None):
        self.content, self.limit, self.starts = content, limit, []

    def __call__(self, into):
        self.starts.append(into.tell())
        assert into.tell() <= len(self.content), "no server has more than all"
        into.write(self.content[into.tell() :][: self.limit])
        if self.limit is not None:
            raise Cut


@pytest.fixture
def home(tmp_path):
    return tmp_path / "models--org--name"


@pytest.fixture
def kept(home):
    return Store(home)


def add(kept, source, blob=BLOB, file="1_Pooling/config.json"):
    told = []
    kept.add(COMMIT, file, blob, source, told.append)
    return told


def leave(home, content, *, name=SHA256, host=store._HOST, pid=None, age_s=0.0):
    """Put an unfinished file as if the process `pid` had left it; without one, it is a process that has died."""
    if pid is None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        pid = process.pid
    path = home / "blobs" / f"{name}.embed-{host}-{pid}-0123abcd.incomplete"
    path.write_bytes(content)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def blobs(home):
    return sorted(path.name for path in (home / "blobs").iterdir())


def test_a_file_is_a_link_to_the_blob_of_its_hash(kept, home):
    assert not kept.has(COMMIT, "1_Pooling/config.json", BLOB)
    assert add(kept, Source()) == [len(CONTENT)]
    link = home / "snapshots" / COMMIT / "1_Pooling" / "config.json"
    assert os.readlink(link) == f"../../../blobs/{SHA256}"
    assert link.read_bytes() == CONTENT
    assert blobs(home) == [SHA256]
    assert kept.has(COMMIT, "1_Pooling/config.json", BLOB)


def test_a_blob_that_is_there_is_not_read_again(kept):
    add(kept, Source())
    again = Source()
    add(kept, again, file="copy.json")
    assert again.starts == []


def test_what_arrived_before_the_cut_is_kept_and_gone_on_with(kept, home):
    with pytest.raises(Cut):
        add(kept, Source(limit=3000))
    assert kept.arrived(BLOB) == 3000
    assert not (home / "snapshots").exists()
    rest = Source()
    add(kept, rest)
    assert rest.starts == [3000]
    assert blobs(home) == [SHA256]


@pytest.mark.parametrize("left", [b"nonsense", CONTENT + b"more", b"\xff" * len(CONTENT)])
def test_nonsense_that_a_dead_process_left_is_started_anew(left, kept, home):
    leave(home, left)
    add(kept, Source())
    assert (home / "blobs" / SHA256).read_bytes() == CONTENT
    assert blobs(home) == [SHA256]


@pytest.mark.parametrize("etag", [SHA256, hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()])
def test_what_is_not_its_hash_never_gets_its_name(etag, kept, home):
    with pytest.raises(ModelError, match="another hash than the hub says"):
        add(kept, Source(content=b"\xff" * len(CONTENT)), Blob(etag, len(CONTENT)))
    assert blobs(home) == []
    add(kept, Source(), Blob(etag, len(CONTENT)))
    assert blobs(home) == [etag]


def test_an_etag_that_is_no_hash_still_names_a_file(kept, home):
    add(kept, Source(), Blob("v1-abc", None))
    assert blobs(home) == ["v1-abc"]


@pytest.mark.parametrize("etag", ["", "../x", "a/b", ".hidden", "a\0b", "a" * 300])
def test_an_etag_that_cannot_be_a_name_is_refused(etag):
    with pytest.raises(ModelError, match="can't name a file"):
        Blob(etag, 1)


def test_a_dangling_link_an_empty_and_a_short_file_are_mended(kept, home):
    add(kept, Source())
    for damage in (lambda path: path.unlink(), lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 9)):
        damage(home / "blobs" / SHA256)
        assert not kept.has(COMMIT, "1_Pooling/config.json", BLOB)
        add(kept, Source())
        assert kept.has(COMMIT, "1_Pooling/config.json", BLOB)


def test_other_tools_unfinished_downloads_are_left_alone(kept, home):
    theirs = home / "blobs" / f"{SHA256}.0123abcd.incomplete"
    theirs.write_bytes(CONTENT[:100])
    assert kept.arrived(BLOB) == 0
    add(kept, Source())
    assert theirs.read_bytes() == CONTENT[:100]


@pytest.mark.parametrize(
    ("left", "start"),
    [
        ({}, 100),
        ({"pid": os.getpid()}, 100),  # a container that was started again has the same ids
        ({"pid": os.getppid()}, 0),
        ({"pid": os.getppid(), "age_s": 2 * store.IDLE_S}, 100),
        ({"host": "elsewhere"}, 0),
        ({"host": "elsewhere", "age_s": 2 * store.IDLE_S}, 100),
    ],
    ids=str,
)
def test_only_a_dead_process_s_download_is_taken_over(left, start, kept, home):
    part = leave(home, CONTENT[:100], **left)
    source = Source()
    add(kept, source)
    assert source.starts == [start]
    assert part.exists() == (start == 0)
    assert (home / "blobs" / SHA256).read_bytes() == CONTENT


def test_two_at_once_without_a_lock_don_t_meet(kept, home):
    inner = Source()

    def read(into):
        into.write(CONTENT[:100])
        add(kept, inner)
        into.write(CONTENT[100:])

    add(kept, read)
    assert inner.starts == [0]
    assert (home / "blobs" / SHA256).read_bytes() == CONTENT
    assert blobs(home) == [SHA256]


def test_only_old_unfinished_downloads_of_other_files_are_removed(kept, home):
    leave(home, b"half", name="dead", age_s=2 * store.STALE_S)
    recent = leave(home, b"half", name="recent", age_s=60)
    add(kept, Source())
    assert blobs(home) == sorted([recent.name, SHA256])


def test_where_there_are_no_links_the_file_itself_is_put(kept, home, monkeypatch):
    def refuse(self, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    add(kept, Source())
    path = home / "snapshots" / COMMIT / "1_Pooling" / "config.json"
    assert not path.is_symlink()
    assert path.read_bytes() == CONTENT
    assert kept.has(COMMIT, "1_Pooling/config.json", BLOB)


def test_a_full_disk_keeps_what_arrived(kept, home):
    def fill(into):
        into.write(CONTENT[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        add(kept, fill)
    assert kept.arrived(BLOB) == 10


def test_refs_are_written_for_branches_alone(kept, home):
    kept.write_ref("main", COMMIT)
    kept.write_ref("refs/pr/2", COMMIT)
    kept.write_ref(COMMIT, COMMIT)
    refs = sorted(path.relative_to(home).as_posix() for path in (home / "refs").rglob("*") if path.is_file())
    assert refs == ["refs/main", "refs/refs/pr/2"]
    assert (home / "refs" / "main").read_text() == COMMIT
