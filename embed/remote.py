"""The hub itself, asked through huggingface_hub, which only this module imports. What fails becomes one sentence.

huggingface_hub brings addresses, tokens (HF_TOKEN, or that of `hf auth login`), proxies and retries. Where the files
go, and that a broken download is gone on with, is in store.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    logging,
)

from embed.errors import ModelError
from embed.hub import COMMIT, MAIN, HubName
from embed.store import Blob
from embed.version import __version__

ENDPOINT = "https://huggingface.co"
CONVERTER = "SFconvertbot"  # the hub's own account, which opens a pull request with the safetensors of a pickle
ANSWER_S = 30  # for a listing; a file's head and its data have huggingface_hub's own 10 s
# The base of every error of the HTTP library in use: requests, httpx or httpx2, by the version of huggingface_hub.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
# Of writing what arrives; other numbers come from the network.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_ABOUT_US = {"library_name": "embed", "library_version": __version__}


@dataclass(frozen=True)
class Listing:
    """The commit that a revision stands for, and the names of all files in it."""

    commit: str
    files: frozenset[str]


class Remote:
    """One repository on the hub. Every method raises `ModelError`, and `OSError` only where a disk is to blame."""

    def __init__(self, name: HubName) -> None:
        self._name = name
        self.endpoint = _endpoint()
        self._api = HfApi(endpoint=self.endpoint, **_ABOUT_US)

    def listing(self, revision: str | None) -> Listing:
        """Return what is in a revision."""
        with self._sentences(revision):
            info = self._api.model_info(self._name.repo, revision=revision or MAIN, timeout=ANSWER_S)
            commit, files = info.sha, frozenset(file.rfilename for file in info.siblings or ())
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ModelError(f"{self._name}: {self.endpoint} names no commit; check HF_ENDPOINT")
        return Listing(commit, files)

    def blob(self, commit: str, file: str) -> Blob:
        """Return a file's hash and size."""
        with self._sentences(commit):
            metadata = get_hf_file_metadata(self._url(commit, file), **_ABOUT_US)
        return Blob(metadata.etag or "", metadata.size)

    def read(self, commit: str, file: str, into: BinaryIO, blob: Blob) -> None:
        """Append to `into` what it hasn't got yet of a file; a connection that ends is replaced while more arrives."""
        url, headers = self._url(commit, file), build_hf_headers(**_ABOUT_US)
        with self._sentences(commit):
            while True:
                before = into.tell()
                try:
                    http_get(url, into, resume_size=before, headers=headers, expected_size=blob.size)
                    return
                except (_HTTP_ERROR, OSError):
                    if not before < into.tell() < (blob.size or sys.maxsize):
                        raise

    def pull_requests(self) -> Iterator[tuple[str, bool]]:
        """Yield every pull request's revision, refs/pr/N, and whether the hub's converter made it; those first."""
        converted = self._converted()
        yield from ((revision, True) for revision in converted)
        with self._sentences(None):
            refs = self._api.list_repo_refs(self._name.repo, include_pull_requests=True).pull_requests or []
        yield from ((ref.ref, False) for ref in refs if ref.ref not in converted)

    def _converted(self) -> list[str]:
        try:
            with self._sentences(None):
                asked = self._api.get_repo_discussions(
                    self._name.repo, author=CONVERTER, discussion_type="pull_request"
                )
                # the author is looked at again, as another server may not know the filter
                return [each.git_reference for each in asked if (each.author, each.status) == (CONVERTER, "open")]
        except ModelError:  # an owner can switch discussions off
            return []

    def _url(self, commit: str, file: str) -> str:
        url: str = hf_hub_url(self._name.repo, file, revision=commit)
        return self.endpoint + url.removeprefix(constants.ENDPOINT)

    @contextlib.contextmanager
    def _sentences(self, revision: str | None) -> Iterator[None]:
        """Turn whatever an exchange with the hub raises into a `ModelError`."""
        try:
            with _quiet():
                yield
        except OfflineModeIsEnabled as ex:
            raise ModelError(f"{self._name}: huggingface_hub is set offline; unset HF_HUB_OFFLINE to download") from ex
        except HfHubHTTPError as ex:
            raise ModelError(f"{self._name}: {self._refusal(ex, revision)}") from ex
        except (ValueError, KeyError, TypeError, AttributeError) as ex:  # of parsing an answer
            raise ModelError(
                f"{self._name}: {self.endpoint} doesn't answer as a hub does ({type(ex).__name__}); check HF_ENDPOINT"
            ) from ex
        except (_HTTP_ERROR, OSError) as ex:
            if isinstance(ex, OSError) and ex.errno in _DISK_ERRORS:
                raise
            raise ModelError(
                f"{self._name}: the download from {self.endpoint} failed ({_reason(ex)}); check the network, or "
                f"HF_ENDPOINT and the proxy's variables, and try again: what has arrived is kept"
            ) from ex

    def _refusal(self, ex: HfHubHTTPError, revision: str | None) -> str:
        status = getattr(ex.response, "status_code", None)
        page = f"{self.endpoint}/{self._name.repo}"
        if isinstance(ex, GatedRepoError):
            return f"the model is gated; ask for access at {page}, and set HF_TOKEN to a token of that account"
        if isinstance(ex, RevisionNotFoundError):
            return f"{self.endpoint} has the model, but no revision {revision or MAIN}; see {page}/tree/{MAIN}"
        if isinstance(ex, RepositoryNotFoundError):
            return (
                f"{self.endpoint} has no such model, or keeps it private; check the name (the path, if a folder is "
                "meant), or set HF_TOKEN to a token that may read it"
            )
        if status in (401, 403):
            return f"{self.endpoint} refuses the token ({status}); set HF_TOKEN to one that may read {self._name.repo}"
        return f"{self.endpoint} answered with status {status}; try again later: what has arrived is kept"


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or ENDPOINT
    with contextlib.suppress(ValueError):
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and not re.search(r"\s", endpoint):
            return endpoint
    raise ModelError(f"HF_ENDPOINT is {endpoint!r}; it takes the address of a hub, such as {ENDPOINT}")


def _reason(ex: BaseException) -> str:
    """Return the system's word for what happened, of the innermost error that has one, else the first line."""
    said = " ".join(str(ex).split("\n")[0].split())[:200] or type(ex).__name__
    cause: BaseException | None = ex
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep huggingface_hub's own bars and its words about each retry off stderr."""
    level, bars = logging.get_verbosity(), not are_progress_bars_disabled()
    switch = bars and constants.HF_HUB_DISABLE_PROGRESS_BARS is None  # else the user's word stands
    logging.set_verbosity_error()
    if switch:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if switch:
            enable_progress_bars()
