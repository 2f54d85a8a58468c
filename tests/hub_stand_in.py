"""A hub on loopback, as far as huggingface_hub asks one: listings, refs, pull requests, files with Range and redirects.

with HubStandIn() as hub:                   set HF_ENDPOINT to hub.url
    hub.add("org/name", files)              the commit that main stands for
    hub.cut["model.safetensors"] = 1000     the connection ends after so many bytes of an answer with that file
    hub.asked("GET", "model.safetensors")   the requests for it, each with its Range and Authorization

Files of LARGE_BYTES and more are answered as those in Git LFS are: by a redirect to another host's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_BYTES = 4096
PIECE_BYTES = 1024
CONVERTER = "SFconvertbot"


# A program that runs `embed` and writes every kilobyte that arrives; huggingface_hub has it gather ten million.
EMBED_IN_SMALL_PIECES = """
import sys
from huggingface_hub import constants, file_download
constants.DOWNLOAD_CHUNK_SIZE = file_download.DOWNLOAD_CHUNK_SIZE = 1000
from embed.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass
class Repository:
    refs: dict[str, str] = field(default_factory=dict)  # main, refs/pr/N … -> commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    authors: dict[int, str] = field(default_factory=dict)  # of pull requests
    gated: bool = False


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


class HubStandIn:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.token: str | None = None  # that every request has to bear
        self.status: int | None = None  # that every request is answered with
        self.cut: dict[str, int] = {}
        self.corrupt: set[str] = set()  # files of which the first byte is wrong
        self.slow: dict[str, float] = {}  # seconds between two pieces of a file
        self.ignores_range = False
        self.requests: list[Request] = []
        self.arrived = threading.Condition()  # notified with each request
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.stand_in = self  # type: ignore[attr-defined]
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HubStandIn:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *ex: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, repo: str, files: dict[str, bytes], *, revision: str = "main", author: str = "somebody") -> str:
        """Make `revision` stand for a commit of these files, and return its hash."""
        repository = self.repositories.setdefault(repo, Repository())
        told = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
        commit = hashlib.sha1(told.encode()).hexdigest()
        repository.refs[revision] = commit
        repository.commits[commit] = files
        if number := re.fullmatch(r"refs/pr/(\d+)", revision):
            repository.authors[int(number[1])] = author
        return commit

    def asked(self, method: str, file: str = "") -> list[Request]:
        """Return the requests so far whose path ends in `file`; redirects to the other host among them."""
        return [request for request in self.requests if request.method == method and request.path.endswith(file)]

    def wait_for(self, method: str, file: str, seconds: float = 20) -> None:
        """Return when a request for that file has come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.asked(method, file), seconds), f"no {method} of {file}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubStandIn:
        return self.server.stand_in  # type: ignore[attr-defined,no-any-return]

    def log_message(self, *words: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self._note(url.path)
        authorization = self.headers["Authorization"]
        if self.hub.status is not None:
            self._refuse(self.hub.status, "", "out of order")
        elif large := re.fullmatch(r"/elsewhere/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", url.path):
            self._file(self.hub.repositories[large[1]].commits[large[2]][large[3]], large[3], {})
        elif self.hub.token is not None and authorization != f"Bearer {self.hub.token}":
            error = "Invalid credentials in Authorization header" if authorization else "Invalid username or password."
            self._refuse(401, "" if authorization else "RepoNotFound", error)
        elif api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision/([^/]+)|refs|discussions)", url.path):
            self._api(api[1], api[2], parse_qs(url.query))
        elif resolve := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            self._resolve(resolve[1], unquote(resolve[2]), unquote(resolve[3]))
        else:
            self._refuse(404, "RepoNotFound", "Repository not found")

    def _note(self, path: str) -> None:
        request = Request(self.command, unquote(path), self.headers["Range"], self.headers["Authorization"])
        with self.hub.arrived:
            self.hub.requests.append(request)
            self.hub.arrived.notify_all()

    def _commit(self, repo: str, revision: str) -> str | None:
        """Return the commit, or answer with what is wrong."""
        repository = self.hub.repositories.get(repo)
        if repository is None:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        commit = revision if revision in repository.commits else repository.refs.get(revision)
        return commit or self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def _api(self, repo: str, what: str, query: dict[str, list[str]]) -> None:
        commit = self._commit(repo, unquote(what.removeprefix("revision/")) if what.startswith("revision") else "main")
        if commit is None:
            return
        repository = self.hub.repositories[repo]
        if what == "refs":
            self._json(_refs(repository))
        elif what == "discussions":
            self._json(_discussions(repo, repository, query.get("author", [""])[0]))
        else:
            siblings = [{"rfilename": name} for name in repository.commits[commit]]
            self._json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        commit = self._commit(repo, revision)
        if commit is None:
            return
        repository = self.hub.repositories[repo]
        content = repository.commits[commit].get(name)
        if repository.gated:
            self._refuse(403, "GatedRepo", f"Access to model {repo} is restricted")
        elif content is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif len(content) < LARGE_BYTES:
            git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            self._file(content, name, {"ETag": f'"{git}"', "X-Repo-Commit": commit})
        else:
            sha256 = hashlib.sha256(content).hexdigest()
            where = f"http://localhost:{self.hub.port}/elsewhere/{repo}/{commit}/{name}"
            head = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": commit}
            self._head(302, {**head, "Location": where, "Content-Length": "0"})

    def _file(self, content: bytes, name: str, head: dict[str, str]) -> None:
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked and not self.hub.ignores_range:
            start = int(asked[1])
            head["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._head(206 if start else 200, {**head, "Content-Length": str(len(content) - start)})
        if self.command == "HEAD":
            return
        if name in self.hub.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        body = content[start:][: self.hub.cut.get(name)]
        self.close_connection = name in self.hub.cut
        with contextlib.suppress(ConnectionError):  # the client was killed
            for i in range(0, len(body), PIECE_BYTES):
                self.wfile.write(body[i : i + PIECE_BYTES])
                time.sleep(self.hub.slow.get(name, 0))

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        head = {"X-Error-Code": code} if code else {}
        self._head(status, {**head, "X-Error-Message": message, "Content-Length": "0"})

    def _head(self, status: int, head: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.end_headers()


def _refs(repository: Repository) -> dict[str, Any]:
    listed = [{"name": ref, "ref": ref, "targetCommit": commit} for ref, commit in repository.refs.items()]
    pull_requests = [ref for ref in listed if ref["ref"].startswith("refs/pr/")]
    branches = [{**ref, "ref": f"refs/heads/{ref['ref']}"} for ref in listed if ref not in pull_requests]
    return {"branches": branches, "converts": [], "tags": [], "pullRequests": pull_requests}


def _discussions(repo: str, repository: Repository, author: str) -> dict[str, Any]:
    found = [
        {
            "title": "Adding `safetensors` variant of this model",
            "num": number,
            "author": {"name": name},
            "createdAt": "2026-01-01T00:00:00.000Z",
            "status": "open",
            "repo": {"name": repo, "type": "model"},
            "isPullRequest": True,
        }
        for number, name in repository.authors.items()
        if author in ("", name)
    ]
    return {"discussions": found, "count": len(found), "start": 0}
