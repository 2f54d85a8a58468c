"""The five set-ups whose vectors must be sentence-transformers', their goldens, and the way to ask for them again.

tests/goldens/NAME.npz holds what oracle.py says for the corpus: see there for its arrays. Set-ups that don't end in a
Normalize module have vectors of any length.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import real_models
import reference
from numpy.typing import NDArray
from texts import corpus, digest

GOLDENS = Path(__file__).parent / "goldens"


@dataclass(frozen=True)
class Setup:
    name: str  # of the directory in real_models.py and of the golden
    pooling: str | None = None  # for a directory that doesn't say
    unit: bool = True  # it ends in a Normalize module


SETUPS = [
    Setup("e5-small"),
    Setup("e5-small-bert"),
    Setup("minilm"),
    Setup("bare", pooling="cls", unit=False),
    Setup("no-normalize", unit=False),
]


class OracleError(Exception):
    """sentence-transformers could not be asked."""


@dataclass(frozen=True)
class Golden:
    vectors: NDArray[np.float32]  # (texts, width)
    ids: list[list[int]]  # of each text
    digest: str  # of the texts
    versions: dict[str, str]

    @property
    def unit(self) -> NDArray[np.float64]:
        """The vectors scaled to length 1."""
        return reference.normalized(self.vectors)


def load_golden(name: str) -> Golden:
    """Return the committed golden of a set-up; refuse one that was made for another corpus."""
    golden = _read(GOLDENS / f"{name}.npz")
    if golden.digest != digest(list(corpus().values())):
        raise ValueError(f"{name}.npz was made for another corpus: run pytest --regen")
    return golden


def regenerate(setup: Setup, folder: Path) -> None:
    """Rewrite a golden with what sentence-transformers says now."""
    _run_oracle(setup, list(corpus().values()), folder, GOLDENS / f"{setup.name}.npz")


def ask_oracle(setup: Setup, texts: list[str], folder: Path) -> Golden:
    """Return what sentence-transformers says for `texts`; `folder` is for files in between."""
    out = folder / f"{setup.name}.npz"
    _run_oracle(setup, texts, folder, out)
    return _read(out)


def _run_oracle(setup: Setup, texts: list[str], folder: Path, out: Path) -> None:
    questions = folder / "texts.json"
    questions.write_text(json.dumps(texts))
    command = [_oracle_python(), oracle.__file__, real_models.directory(setup.name), questions, out]
    command += ["--pooling", setup.pooling] if setup.pooling else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OracleError(f"oracle.py failed for {setup.name} with exit code {done.returncode}:\n{done.stderr[-4000:]}")


def _oracle_python() -> str:
    """Return an interpreter that has sentence-transformers."""
    python = os.environ.get("EMBED_ORACLE_PYTHON", "").strip() or sys.executable
    found = subprocess.run([python, "-c", "import sentence_transformers"], capture_output=True, check=False)
    if found.returncode:
        raise OracleError(
            f"{python} has no sentence-transformers: pip install 'sentence-transformers>=6', "
            "or set EMBED_ORACLE_PYTHON to an interpreter that has it"
        )
    return python


def _read(path: Path) -> Golden:
    with np.load(path) as file:
        arrays: dict[str, NDArray[Any]] = dict(file)
    ids = [part.tolist() for part in np.split(arrays["ids"], arrays["offsets"][1:-1])]
    return Golden(arrays["vectors"], ids, str(arrays["digest"]), json.loads(str(arrays["versions"])))
