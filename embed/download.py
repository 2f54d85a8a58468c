"""Models from the Hugging Face hub into the cache that its tools share: only the files that are read, weights last.

Several processes may do so at once: a lock lets one work, and the others find its files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from embed import hub
from embed.config import read_config
from embed.console import say
from embed.errors import ModelError
from embed.files import INDEX, PICKLES, SINGLE
from embed.hub import MAIN, Cache, HubName, NotCachedError
from embed.lock import lock
from embed.metadata import TRANSFORMER_FILES, read_metadata, read_modules
from embed.progress import Progress
from embed.remote import Listing, Remote
from embed.store import Blob, Store

MAX_PULL_REQUESTS = 100  # that are looked into for weights, at one question each; a popular repository has more


def fetch(name: HubName, where: Cache, *, update: bool = False) -> Path:
    """Return the folder of the model's snapshot, after what is missing has been downloaded into the cache.

    With `update` the hub is asked even if the cache has everything: a branch may have moved, a file be damaged.
    Raises `ModelError` when the hub hasn't got it or can't be reached, or the cache can't be written.
    """
    locks = where.path / ".locks" / name.folder
    try:
        locks.mkdir(parents=True, exist_ok=True)
        with lock(locks / "embed.lock", f"another process that is downloading {name.repo}"):
            if not update:
                with contextlib.suppress(NotCachedError):
                    return hub.find(name, where)  # another process was first
            return _Download(name, where).run()
    except OSError as ex:
        raise ModelError(
            f"{name}: the model can't be kept in {where} ({ex.strerror}); set MODEL_CACHE_DIR to a folder "
            "that can be written and has the room"
        ) from ex


class _Download:
    """One revision of a repository on its way into the cache."""

    def __init__(self, name: HubName, where: Cache) -> None:
        self._name = name
        self._remote = Remote(name)
        self._listing = self._remote.listing(name.revision)
        self._store = Store(where.path / name.folder)

    def run(self) -> Path:
        revision = self._name.revision or MAIN
        weights = self._fetch_settings()
        if not weights:
            self._store.write_ref(revision, self._listing.commit)  # so that the cache, too, leads to what is taken
            revision, self._listing = self._converted()
            weights = self._fetch_settings()
        self._fetch_large(weights)
        self._store.write_ref(revision, self._listing.commit)  # last: until now the branch's former commit is good
        return self._snapshot

    @property
    def _snapshot(self) -> Path:
        return self._store.snapshot(self._listing.commit)

    def _fetch_settings(self) -> list[str]:
        """Fetch the small files, refuse what isn't built while it is cheap, and return the weights' names, if any."""
        self._fetch_listed([self._snapshot / "modules.json"])
        modules = read_modules(self._snapshot)
        inner, folders = modules.transformer, [modules.pooling or self._snapshot / "1_Pooling", modules.normalize]
        self._check_listed([inner / "config.json", inner / "tokenizer.json"])
        self._fetch_listed([self._snapshot / "config_sentence_transformers.json"])
        self._fetch_listed([inner / name for name in ("config.json", "tokenizer_config.json", *TRANSFORMER_FILES)])
        self._fetch_listed([folder / "config.json" for folder in folders if folder is not None])
        read_metadata(self._snapshot, read_config(inner))
        if self._is_listed(inner / SINGLE):
            return [self._file(inner / SINGLE)]
        if not self._is_listed(inner / INDEX):
            return []
        self._fetch_listed([inner / INDEX])
        return [self._file(path) for path in hub.weight_files(inner)]

    def _fetch_large(self, weights: list[str]) -> None:
        files = [(Path(weights[0]).parent / "tokenizer.json").as_posix(), *weights]
        blobs = {file: self._remote.blob(self._listing.commit, file) for file in files}
        missing = {file: blob for file, blob in blobs.items() if not self._store.has(self._listing.commit, file, blob)}
        if not missing:
            return
        left = {file: self._store.arrived(blob) for file, blob in missing.items()}  # by an earlier download
        total = sum(blob.size or 0 for blob in missing.values()) - sum(left.values())
        self._check_room(total)
        say(f"downloading {self._name} ({total / 1e6:,.0f} MB) from {self._remote.endpoint} ...")
        with Progress("MB") as progress:
            done = 0
            for file, blob in missing.items():

                def advance(arrived: int, before: int = done - left[file]) -> None:
                    progress.update(round((before + arrived) / 1e6), (before + arrived) / total if total else None)

                self._fetch(file, blob, advance)
                done += (blob.size or 0) - left[file]

    def _fetch_listed(self, paths: list[Path]) -> None:
        for path in paths:
            if self._is_listed(path):
                blob = self._remote.blob(self._listing.commit, self._file(path))
                if not self._store.has(self._listing.commit, self._file(path), blob):
                    self._fetch(self._file(path), blob, lambda arrived: None)

    def _fetch(self, file: str, blob: Blob, advance: Callable[[int], None]) -> None:
        commit = self._listing.commit
        self._store.add(commit, file, blob, lambda into: self._remote.read(commit, file, into, blob), advance)

    def _file(self, path: Path) -> str:
        return path.relative_to(self._snapshot).as_posix()

    def _is_listed(self, path: Path) -> bool:
        return self._file(path) in self._listing.files

    def _check_listed(self, paths: list[Path]) -> None:
        for path in paths:
            if not self._is_listed(path):
                raise ModelError(
                    f"{self._name}: there is no {self._file(path)} in this repository; choose a model that "
                    "transformers or sentence-transformers saved, with a fast tokenizer"
                )

    def _check_room(self, needed: int) -> None:
        if (free := self._store.free()) < needed:
            raise ModelError(
                f"{self._name}: {needed / 1e6:,.0f} MB are to come, and {self._snapshot.parent} has {free / 1e6:,.0f} "
                "MB free; make room, or set MODEL_CACHE_DIR to a folder that has it"
            )

    def _converted(self) -> tuple[str, Listing]:
        """Return the pull request in which the hub's converter adds the weights; name one of anybody else's."""
        pickle = next((name for name in PICKLES if name in self._listing.files), None)
        said = f"{self._name}: there is no {SINGLE}" + (f", only {pickle}, which is not read" if pickle else "")
        for count, (revision, trusted) in enumerate(self._remote.pull_requests()):
            if count == MAX_PULL_REQUESTS:
                break
            listing = self._remote.listing(revision)
            if not {SINGLE, INDEX} & listing.files:
                continue
            if trusted and self._name.revision is None:
                say(f"{said}; the hub's own converter put it into {revision}, which is taken")
                return revision, listing
            raise ModelError(f"{said}; {revision} has it: if you trust whoever made it, say {self._name.at(revision)}")
        raise ModelError(f"{said}; load the model with transformers and call save_pretrained, which writes it")
