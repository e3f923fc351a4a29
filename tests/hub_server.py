"""A hub of models on this machine: what the client `huggingface_hub` needs of the hub's API."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

WRITER, READER = "hf_writer", "hf_reader"  # tokens


@dataclass
class Repository:
    """Files by revision; a commit has the name of a hash, a branch points at one."""

    is_private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)  # names of files that are uploaded by LFS

    def __post_init__(self) -> None:
        self.commit("main", {})

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        content = json.dumps([len(self.commits), *sorted(files)])
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def resolve(self, revision: str) -> str | None:
        name = self.branches.get(revision, revision)
        return name if name in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[revision]]


@dataclass
class Hub:
    """What is on the hub, and what goes wrong."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # of LFS, by hash
    requests: list[str] = field(default_factory=list)
    broken: str = ""  # requests that match this pattern are answered with status 500
    cut_after: int = 0  # bytes of a download, after which the connection is lost


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a hub, which this process finds and writes to while the block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    constants = "huggingface_hub.constants"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_TOKEN", WRITER)
        patch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)  # the protocol of large files
        patch.setattr(f"{constants}.HF_TOKEN_PATH", "/nowhere")
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def do_PUT(self) -> None:
        size = self.headers["Content-Length"]
        self._answer(self.rfile.read(int(size)) if size else self._chunks())

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _answer(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.broken and re.search(self.hub.broken, f"{self.command} {path}"):
            return self._json(500, {"error": "the hub is out of order"})
        if not self._is_known():
            return self._json(401, {"error": "Invalid credentials in Authorization header"})
        if path == "/api/validate-yaml":
            return self._json(200, {"warnings": [], "errors": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.startswith("/lfs/"):
            self.hub.objects[path.removeprefix("/lfs/")] = body
            return self._json(200, {})
        for pattern, answer in _ROUTES.items():
            if match := re.fullmatch(pattern, path):
                repository = self.hub.repositories.get(match["repo"])
                if repository is None or (repository.is_private and not self._token):
                    return self._json(401 if not self._token else 404, {}, code="RepoNotFound")
                return answer(self, repository, match, body)
        raise AssertionError(f"not a part of the stand-in: {self.command} {self.path}")

    @property
    def _token(self) -> str:
        return (self.headers["Authorization"] or "").removeprefix("Bearer ")

    def _is_known(self) -> bool:
        return self._token in ("", WRITER, READER) or self.path.startswith("/lfs/")

    def _json(self, status: int, value: Any, code: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self._token != WRITER:
            return self._json(401 if not self._token else 403, {"error": "no right to write"})
        if name in self.hub.repositories:
            return self._json(409, {"error": "exists", "url": f"{self.hub.url}/{name}"})
        is_private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[name] = Repository(is_private)
        return self._json(200, {"url": f"{self.hub.url}/{name}"})

    def _info(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        sha = repository.resolve(match["revision"] or "main")
        if sha is None:
            return self._json(404, {}, code="RevisionNotFound")
        files = repository.commits[sha]
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        facts = {"id": match["repo"], "sha": sha, "private": repository.is_private}
        return self._json(200, {**facts, "siblings": siblings, "tags": [], "downloads": 0})

    def _tree(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        sha = repository.resolve(match["revision"])
        assert sha is not None
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": _sha1(data)}
            for name, data in repository.commits[sha].items()
        ]
        return self._json(200, entries)

    def _branch(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        if match["branch"] in repository.branches:
            return self._json(409, {"error": "exists"})
        repository.branches[match["branch"]] = repository.branches["main"]
        return self._json(200, {})

    def _preupload(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        if self._token != WRITER:
            return self._json(403, {"error": "no right to write"})
        names = [file["path"] for file in json.loads(body)["files"]]
        modes = [
            {
                "path": name,
                "uploadMode": "lfs" if name in repository.lfs else "regular",
                "shouldIgnore": False,
            }
            for name in names
        ]
        return self._json(200, {"files": modes})

    def _lfs_batch(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        objects = [
            {
                **asked,
                **(
                    {}
                    if asked["oid"] in self.hub.objects
                    else {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}"}}}
                ),
            }
            for asked in json.loads(body)["objects"]
        ]
        return self._json(200, {"transfer": "basic", "objects": objects})

    def _commit(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        files = dict(repository.files(match["branch"]))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(match["branch"], files)
        address = f"{self.hub.url}/{match['repo']}/commit/{sha}"
        return self._json(200, {"commitUrl": address, "commitOid": sha})

    def _file(self, repository: Repository, match: re.Match[str], body: bytes) -> None:
        sha = repository.resolve(match["revision"])
        if sha is None or match["name"] not in repository.commits[sha]:
            return self._json(404, {}, code="EntryNotFound" if sha else "RevisionNotFound")
        data = repository.commits[sha][match["name"]]
        start = int((self.headers["Range"] or "bytes=0-")[6:].partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_sha1(data)}"')
        self.send_header("X-Repo-Commit", sha)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if 0 < self.hub.cut_after < len(data) - start:
            self.wfile.write(data[start : start + self.hub.cut_after])
            self.hub.cut_after = 0
            self.close_connection = True
            return None
        self.wfile.write(data[start:])
        return None


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


_REPO = "(?P<repo>[^/]+/[^/]+)"
_ROUTES = {
    rf"/api/models/{_REPO}(?:/revision/(?P<revision>[^/]+))?": _Handler._info,
    rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)": _Handler._tree,
    rf"/api/models/{_REPO}/branch/(?P<branch>[^/]+)": _Handler._branch,
    rf"/api/models/{_REPO}/preupload/(?P<branch>[^/]+)": _Handler._preupload,
    rf"/api/models/{_REPO}/commit/(?P<branch>[^/]+)": _Handler._commit,
    rf"/{_REPO}\.git/info/lfs/objects/batch": _Handler._lfs_batch,
    rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)": _Handler._file,
}
