"""Makes the hub cache's tree around a model folder, as the hub's own tools lay it out.

snapshot = cached(hub, "org/name", model, ref="main")     hub/models--org--name/{blobs,refs,snapshots}
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

VARIABLES = ("MODEL_CACHE_DIR", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
SHA = "5617a9f61b028005a4858fdac845db406aefb181"
OTHER_SHA = "0123456789abcdef0123456789abcdef01234567"


def cached(hub: Path, repo: str, model: Path, *, commit: str = SHA, ref: str | None = "main") -> Path:
    """Add the files of `model` to the cache as a snapshot, and return its folder; `ref` then stands for it."""
    home = hub / f"models--{repo.replace('/', '--')}"
    snapshot = home / "snapshots" / commit
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        content = path.read_bytes()
        blob = home / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / path.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (home / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (home / "refs" / ref).write_text(commit)
    return snapshot


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below `folder`, links followed."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
