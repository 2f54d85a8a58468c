"""Runs the command as a user meets it, a process of its own: the real one, or the one on a model of plain Python.

Both return exit code, stdout and stderr. No EMBED_… variable of the caller's gets through.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STUB = str(Path(__file__).parent / "stub_command.py")
SECONDS = 30  # for anything that should take one


def environment(**settings: str) -> dict[str, str]:
    # Without PYTHONUNBUFFERED, which containers like to set: a buffered stdout fails once more at exit.
    others = {k: v for k, v in os.environ.items() if not k.startswith("EMBED_") and k != "PYTHONUNBUFFERED"}
    return {**others, **settings}


def run(*arguments: object, stdin: str | bytes | None = None, **settings: str) -> tuple[int, bytes, str]:
    """Run `embed`. Its stdout is returned as bytes; without `stdin` it is given none."""
    return _run("-m", "embed", *map(str, arguments), stdin=stdin, **settings)


def run_stub(*arguments: str | bytes, stdin: str | bytes | None = None, **settings: str) -> tuple[int, str, str]:
    """Run the command on the stub model."""
    code, out, err = _run(STUB, *arguments, stdin=stdin, **settings)
    return code, out.decode(), err


def start_stub(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, STUB, *arguments], env=environment(), **options)


def texts_of(output: str) -> list[str]:
    """Recover the texts from the stub's vectors."""
    rows = [[float(number) for number in line.split(",")] for line in output.splitlines()]
    return ["".join(chr(int(point)) for point in row if point) for row in rows]


def _run(*arguments: str | bytes, stdin: str | bytes | None, **settings: str) -> tuple[int, bytes, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=SECONDS,
        env=environment(**settings),
    )
    return done.returncode, done.stdout, done.stderr.decode()
