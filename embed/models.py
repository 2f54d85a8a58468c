"""From what a user calls a model to the folder that holds it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from embed.errors import ModelError, OptionError

DEMO = "demo"
# Either makes a model folder: modules.json may say where config.json is.
SIGNS = frozenset({"config.json", "modules.json"})


def resolve(model: str | os.PathLike[str]) -> Path:
    """Return the folder of `model`: a path, or the name "demo", which is fetched when it isn't in the cache yet.

    Raises `ModelError` that says why it isn't a model folder. A folder called demo is reached as ./demo.
    """
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"{model!r} is not a model; pass the path of a model folder, or the name {DEMO}")
    name = os.fspath(model)
    if name == DEMO:
        from embed import demo

        return demo.fetch()
    if not name.strip() or "\0" in name:
        raise ModelError(f"{name!r} is not a model; pass the path of a model folder, or the name {DEMO}")
    folder = Path(name).expanduser() if name.startswith("~/") else Path(name)
    _check(folder, name)
    return folder


def named(option: str | None) -> str | None:
    """Return the model that --model or EMBED_MODEL names; a blank variable counts as none.

    Raises `OptionError` for a blank --model, as an unset variable in a script makes it.
    """
    if option is None:
        return os.environ.get("EMBED_MODEL", "").strip() or None
    if not option.strip():
        raise OptionError(f"--model is empty; give it the path of a model folder, or the name {DEMO}")
    return option


def is_model(name: str) -> bool:
    """Tell whether `name` could be meant as a model: "demo", or a folder that looks like one."""
    return name == DEMO or ("\0" not in name and any(os.path.isfile(os.path.join(name, sign)) for sign in SIGNS))


def _check(folder: Path, name: str) -> None:
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        raise ModelError(_missing(folder, name)) from None
    except NotADirectoryError:
        raise ModelError(f"{folder} is a file; pass the folder that holds it and the model's other files") from None
    except OSError as ex:
        raise ModelError(f"{folder} can't be read: {ex.strerror}") from None
    if not entries:
        raise ModelError(f"{folder} is an empty folder; a model folder holds config.json, tokenizer.json and weights")
    if not SIGNS.intersection(entries):
        raise ModelError(f"{folder} holds no config.json, so it isn't a model folder{_hint(folder, entries)}")


def _missing(folder: Path, name: str) -> str:
    if folder.is_symlink():
        return f"{name} is a dangling link to {os.readlink(folder)}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        return (
            f"there is no folder {name}, and names on a model hub aren't looked up by this version; download it "
            f"first, e.g. hf download {name} --local-dir {folder.name}, and pass that folder"
        )
    return f"there is no model folder {name!r}; pass the path of one, or the name {DEMO}"


def _hint(folder: Path, entries: list[str]) -> str:
    """Name the folder below that was meant, where it's plain: a hub cache's snapshot, or the only model inside."""
    inside = [folder / entry for entry in entries]
    if "snapshots" in entries and os.access(folder / "snapshots", os.R_OK | os.X_OK):
        inside = [folder / "snapshots" / entry for entry in os.listdir(folder / "snapshots")]
    models = sorted(str(path) for path in inside if os.path.isfile(path / "config.json"))
    # A pooling module's folder has a config.json too, but nobody means it.
    models = [path for path in models if not re.search(r"/\d+_[A-Z]\w*$", path)]
    if not models:
        return "; a model folder holds config.json, tokenizer.json and weights"
    return f"; perhaps {' or '.join(models[:3])} is meant"
