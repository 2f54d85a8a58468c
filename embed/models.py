"""From what a user calls a model to the folder that holds it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from pathlib import Path

from embed import hub
from embed.console import say
from embed.errors import ModelError, OptionError
from embed.hub import Cache, HubName, NotCachedError

DEMO = "demo"
EXPECTED = f"the path of a model folder, a name on the hub such as BAAI/bge-m3, or the name {DEMO}"
# Either makes a model folder: modules.json may say where config.json is.
SIGNS = frozenset({"config.json", "modules.json"})


def resolve(model: str | os.PathLike[str]) -> Path:
    """Return the folder of `model`: a path, or the name "demo", or a name on the hub: org/name[@revision].

    What isn't in its cache yet is downloaded. A folder comes before a hub name, and one called demo is reached as
    ./demo. Raises `ModelError` that says why it isn't a model folder, or can't be downloaded.
    """
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"{model!r} is not a model; pass {EXPECTED}")
    name = os.fspath(model)
    if model == DEMO:  # a path never equals a string
        from embed import demo

        return demo.fetch()
    if not name.strip() or "\0" in name:
        raise ModelError(f"{name!r} is not a model; pass {EXPECTED}")
    if isinstance(model, str) and (hub_name := _hub_name(name)) is not None:
        return _resolve_hub(hub_name)
    folder = _path(name)
    _check(folder, name)
    return folder


def resolve_aloud(model: str) -> Path:
    """Do as `resolve`, and say on stderr which snapshot a hub name stands for."""
    folder = resolve(model)
    if model != DEMO and _hub_name(model) is not None:
        say(f"{model} is {folder}")
    return folder


def download(model: str) -> Path:
    """Return the folder of "demo" or of a hub name, as the hub has it now; says on stderr which snapshot that is.

    Raises `OptionError` for what is neither, and `ModelError` as `resolve` does.
    """
    if model == DEMO:
        return resolve(model)
    name = HubName.parse(model)
    if name is None:
        raise OptionError(f"{model!r} can't be downloaded; say ORG/NAME, as in BAAI/bge-m3, or {DEMO}")
    folder = _resolve_hub(name) if hub.offline() else _download(name, hub.cache(), update=True)
    say(f"{model} is {folder}")
    return folder


def named(option: str | None) -> str | None:
    """Return the model that --model or EMBED_MODEL names; a blank variable counts as none.

    Raises `OptionError` for a blank --model, as an unset variable in a script makes it.
    """
    if option is None:
        return os.environ.get("EMBED_MODEL", "").strip() or None
    if not option.strip():
        raise OptionError(f"--model is empty; give it {EXPECTED}")
    return option


def is_model(name: str) -> bool:
    """Tell whether `name` could be meant as a model: "demo", a folder that looks like one, or a hub name in the cache.

    Asks nobody but the disk.
    """
    if name == DEMO or "\0" in name:
        return name == DEMO
    with contextlib.suppress(ModelError):
        if (hub_name := _hub_name(name)) is not None:
            return hub.is_cached(hub_name, hub.cache())
    return any(os.path.isfile(os.path.join(name, sign)) for sign in SIGNS)


def hub_name(model: str) -> HubName | None:
    """Return what `model` names on the hub; None for "demo" and for a folder, which comes first."""
    return None if model == DEMO else _hub_name(model)


def _path(name: str) -> Path:
    return Path(name).expanduser() if name.startswith("~/") else Path(name)


def _hub_name(name: str) -> HubName | None:
    return None if os.path.lexists(_path(name)) else HubName.parse(name)


def _resolve_hub(name: HubName) -> Path:
    where = hub.cache()
    try:
        return hub.find(name, where)
    except NotCachedError as ex:
        if variable := hub.offline():
            raise ModelError(
                f"{ex}, and {variable} forbids to download it; unset that, or name the right cache with HF_HUB_CACHE"
            ) from None
        say(f"{ex}; asking the hub ...")
    return _download(name, where)


def _download(name: HubName, where: Cache, *, update: bool = False) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(
            f"{name} can't be downloaded without the package huggingface_hub; pip install 'embed-server[hub]' and "
            f"embed download {name}, or pass the path of a model folder"
        )
    from embed.download import fetch

    return fetch(name, where, update=update)


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
    return f"there is no model folder {name!r}; pass {EXPECTED}"


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
