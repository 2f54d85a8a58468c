"""Models by their name on the Hugging Face hub, found in the cache that its tools share. Reads it; no network.

models--org--name/refs/main                            holds the commit's hash
models--org--name/snapshots/<commit>/config.json    -> ../../blobs/<hash of the file>
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embed.errors import GuessWarning, ModelError
from embed.files import INDEX, PICKLES, SINGLE, JsonObject, exists, file_bytes, refuse_unreadable, shards, shown
from embed.metadata import read_modules

MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Each variable that names the cache, the strongest first, and what is appended to its value.
_VARIABLES = (
    ("MODEL_CACHE_DIR", "hub"),
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),  # its name of old
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # huggingface_hub heeds both
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads them
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(.*))?", re.ASCII)
_REVISION = re.compile(r"[\w.+-]+(/[\w.+-]+)*", re.ASCII)
_PULL_REQUEST = re.compile(r"(?:refs/)?(pr/\d+)")
_MAX_REF_BYTES = 1024


class NotCachedError(ModelError):
    """The cache lacks a model, or some of its files: a download would help. The message begins with the name."""


@dataclass(frozen=True)
class HubName:
    """`org/name`, or `org/name@revision`: a branch, a tag, a commit or refs/pr/N."""

    repo: str
    revision: str | None  # None: the branch main, or what stands in for it

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Return the name, or None where `text` isn't one. Raises `ModelError` for what no revision is called."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        repo, revision = match.groups()
        if revision is not None and (".." in revision or not _REVISION.fullmatch(revision)):
            raise ModelError(f"{text!r} names no revision; a branch, a tag or a commit goes behind the @")
        return cls(repo, revision)

    def __str__(self) -> str:
        return self.repo if self.revision is None else self.at(self.revision)

    def at(self, revision: str) -> str:
        return f"{self.repo}@{revision}"

    @property
    def folder(self) -> str:
        return f"models--{self.repo.replace('/', '--')}"


@dataclass(frozen=True)
class Cache:
    """The folder of a hub cache, and the variable that names it ("": none, it is the default) less what it appends."""

    path: Path
    variable: str = ""
    appended: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.variable})" if self.variable else str(self.path)


def cache() -> Cache:
    """Return the hub cache; a blank variable counts as unset."""
    for variable, appended in _VARIABLES:
        value = os.environ.get(variable, "").strip()
        if value:
            named = os.path.abspath(os.path.expanduser(os.path.expandvars(value)))
            return Cache(Path(named) / appended, variable, appended)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise ModelError("there is no home folder to look for models in; set HF_HOME to the folder of their cache")
    return Cache(Path(home) / ".cache" / "huggingface" / "hub")


def offline() -> str | None:
    """Return the variable that forbids the network, if one does."""
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").strip().upper() in _TRUE:
            return variable
    return None


def is_cached(name: HubName, where: Cache) -> bool:
    """Whether the cache has a folder for the repository, whatever is in it."""
    return (where.path / name.folder).is_dir()


def find(name: HubName, where: Cache) -> Path:
    """Return the folder of the snapshot, with every file that is needed in it.

    Raises `NotCachedError` where something isn't there, and `ModelError` where something is wrong, which a download
    of our own accord would cover up. A snapshot that was not plainly asked for is a `GuessWarning`.
    """
    home = where.path / name.folder
    if not is_cached(name, where):
        raise _absence(name, where)
    revision = name.revision or MAIN
    commit = revision if COMMIT.fullmatch(revision) else _read_ref(home, revision)
    if commit is None:
        return _without_ref(name, home)
    snapshot = home / "snapshots" / commit
    if not exists(snapshot):
        raise NotCachedError(f"{name}: the cache {home} doesn't hold the commit {commit}, which {revision} names")
    return _checked(name, home, snapshot)


def missing_files(snapshot: Path) -> list[str]:
    """Return the names of files that a model can't do without and that aren't there.

    Raises `ModelError` naming one that is there and no good: a dangling link, empty, or an unfinished download.
    """
    modules = read_modules(snapshot)
    paths = [modules.transformer / "config.json", modules.transformer / "tokenizer.json"]
    if modules.pooling is not None:
        paths.append(modules.pooling / "config.json")
    paths += weight_files(modules.transformer)
    return [path.relative_to(snapshot).as_posix() for path in paths if not _is_whole(path)]


def weight_files(directory: Path) -> list[Path]:
    """Return the paths of the weights, there or not: model.safetensors, or the index and the files that it names."""
    if exists(directory / SINGLE) or not exists(directory / INDEX):
        return [directory / SINGLE]
    names = sorted(set(shards(JsonObject.read(directory / INDEX)).values()))
    return [directory / INDEX, *(directory / name for name in names)]


def _is_whole(path: Path) -> bool:
    return exists(path) and file_bytes(path) > 0


def _checked(name: HubName, home: Path, snapshot: Path) -> Path:
    missing = missing_files(snapshot)
    if not missing:
        return snapshot
    said = f"{name}: the snapshot {snapshot} lacks {', '.join(missing)}"
    if missing[-1].rpartition("/")[2] != SINGLE:
        raise NotCachedError(said)
    if any(exists(snapshot / pickle) for pickle in PICKLES):
        said += f", and has its weights as {PICKLES[0]}, a pickle, which is not read"
    for revision, converted in _pull_requests(home):
        if name.revision is None:
            _warn(f"{said}; its pull request {revision} has them and is taken: say so with {name.at(revision)}")
            return converted
        said += f"; {name.at(revision)} has them"
    raise NotCachedError(said)


def _without_ref(name: HubName, home: Path) -> Path:
    """Return the only snapshot, where nothing says which one main is: a download by commit writes no ref."""
    refs, revision = _refs(home), name.revision or MAIN
    if name.revision is not None or refs:
        has = f"; it has {', '.join(refs[:5])}" if refs else ""
        raise NotCachedError(f"{name}: the cache {home} has no revision {revision}{has}")
    snapshots = _snapshots(home)
    whole = [snapshot for snapshot in snapshots if _is_complete(snapshot)]
    if len(whole) > 1:
        raise ModelError(
            f"{name}: {home} has no refs/{MAIN} that says which snapshot to take; name one of "
            + ", ".join(name.at(snapshot.name) for snapshot in whole)
        )
    if whole:
        _warn(f"{name}: {home} has no refs/{MAIN}, so its only snapshot is taken: say so with {name.at(whole[0].name)}")
        return whole[0]
    if len(snapshots) == 1:
        return _checked(name, home, snapshots[0])
    raise NotCachedError(f"{name}: the cache {home} has no complete snapshot")


def _is_complete(snapshot: Path) -> bool:
    try:
        return not missing_files(snapshot)
    except ModelError:
        return False


def _snapshots(home: Path) -> list[Path]:
    folder = home / "snapshots"
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir()) if exists(folder) else []
    except OSError as ex:
        refuse_unreadable(folder, ex)


def _refs(home: Path) -> list[str]:
    return sorted(path.relative_to(home / "refs").as_posix() for path in (home / "refs").rglob("*") if path.is_file())


def _pull_requests(home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the revisions refs/pr/N whose snapshots are complete."""
    for ref in _refs(home):
        if pull_request := _PULL_REQUEST.fullmatch(ref):
            commit = _read_ref(home, f"refs/{pull_request[1]}")
            if commit is not None and _is_complete(home / "snapshots" / commit):
                yield f"refs/{pull_request[1]}", home / "snapshots" / commit


def _read_ref(home: Path, revision: str) -> str | None:
    paths = [home / "refs" / revision]
    if revision.startswith("refs/"):  # the hub's tools keep refs/pr/2 in refs/refs/pr/2
        paths.append(home / revision)
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_REF_BYTES).decode(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as ex:
            refuse_unreadable(path, ex)
        if not re.fullmatch(r"[0-9A-Za-z]+", text):
            raise ModelError(f"{path}: holds {shown(text)}, which is no commit; delete it and download the model again")
        return text
    return None


def _absence(name: HubName, where: Cache) -> ModelError:
    """Return the error for a repository that isn't in the cache: with a hint, where its variable is a level off."""
    said = f"{name}: the cache {where} doesn't hold it"
    if not where.variable:
        return NotCachedError(said)
    value = where.path.parents[len(Path(where.appended).parts) - 1] if where.appended else where.path
    if exists(value / "config.json"):
        return ModelError(f"{said}; {value} is a model folder and no cache: pass it in the place of {name}")
    for folder in _folders_around(where, value):
        if (folder / name.folder).is_dir():
            return ModelError(f"{said}, but {folder} does: {_how_to_name(folder, where)}")
    return NotCachedError(said)


def _folders_around(where: Cache, value: Path) -> Iterator[Path]:
    yield from (where.path.parent, where.path.parent.parent, value / "hub", value / "huggingface" / "hub")
    yield from sorted(value.glob(f"*/{where.appended or 'hub'}"))


def _how_to_name(folder: Path, where: Cache) -> str:
    appended = Path(where.appended).parts
    if not appended:
        return f"set {where.variable} to it"
    if folder.parts[-len(appended) :] == appended:
        return f"set {where.variable} to {folder.parents[len(appended) - 1]}"
    return f"unset {where.variable} and set HF_HUB_CACHE to it"


def _warn(message: str) -> None:
    warnings.warn(message, GuessWarning, stacklevel=2)
