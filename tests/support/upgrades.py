"""A data directory that another version has left, continued by `cancelmark serve`, as its clients see it.

Standard library only: the version that wrote a fixture runs this file too (tests/fixtures/*/make.py).
"""

import json
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

PATIENCE = 60.0  # seconds: only so that nothing hangs for ever
open_url = build_opener(ProxyHandler({})).open  # the server is on this machine, whatever proxy there is


class Server:
    """`cancelmark serve` on a data directory, with traces beside it."""

    def __init__(self, command: Sequence[str], directory: Path, *options: str) -> None:
        with (directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "serve", "--port", "0", "--data-dir", str(directory / "data"),
                 "--trace", str(directory / "traces"), *options], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("serving at "), (directory / "log").read_text()
        self.url = line.split()[2].rstrip("/")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        assert self.process.stdout
        self.process.stdout.close()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = Request(f"{self.url}/v1{path}", None if body is None else json.dumps(body).encode(),
                          {"content-type": "application/json"}, method=method)
        with open_url(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")

    def workspace(self, path: str) -> "Workspace":
        return Workspace(self, path, f"/workspaces/{self.call('POST', '/workspaces', {'path': path})['id']}")


class Workspace:
    """One workspace of a server."""

    def __init__(self, server: Server, path: str, url: str) -> None:
        self.server, self.path, self.url = server, path, url

    def new_session(self, title: str) -> str:
        return str(self.server.call("POST", f"{self.url}/sessions", {"title": title})["id"])

    def send(self, session: str, prompt: str, run_id: str | None = None) -> int:
        body = {"session_id": session, "prompt": prompt} | ({"run_id": run_id} if run_id else {})
        return int(self.server.call("POST", f"{self.url}/agent", body)["seq"])

    def do(self, session: str, what: str) -> None:
        self.server.call("POST", f"{self.url}/agent/sessions/{session}/{what}")

    def prompts(self, session: str) -> list[dict[str, Any]]:
        return list(self.server.call("GET", f"{self.url}/agent/sessions/{session}/prompts"))

    def states(self, session: str) -> list[str]:
        return [prompt["state"] for prompt in self.prompts(session)]

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{self.path}: {self.content()}"
            time.sleep(0.02)

    def until_idle(self) -> None:
        self.until(lambda: not self.server.call("GET", f"{self.url}/agent")["is_busy"])

    def content(self) -> dict[str, Any]:
        """Everything that clients can ask for."""
        sessions = self.server.call("GET", f"{self.url}/sessions")
        return {session["id"]: {
            "title": session["title"], "prompts": self.prompts(session["id"]),
            "messages": self.server.call("GET", f"{self.url}/sessions/{session['id']}/messages"),
        } for session in sessions}


class Watcher:
    """A client that watches a workspace from a place on, until the server ends the stream."""

    def __init__(self, workspace: Workspace, place: str = "") -> None:
        headers = {"last-event-id": place} if place else {}
        client = "00000000-0000-4000-8000-000000000000"
        request = Request(f"{workspace.server.url}/v1{workspace.url}/events?client_id={client}", headers=headers)
        self._answer = open_url(request, timeout=PATIENCE)
        self.place, self.ends = "", list[dict[str, Any]]()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._answer:
            try:
                for line in self._answer:
                    if line.startswith(b"id: "):
                        self.place = line[4:].decode().strip()
                    elif line.startswith(b"data: "):
                        envelope = json.loads(line[6:])
                        if envelope["type"] == "run_complete":
                            self.ends.append(envelope["payload"]["payload"])
            except OSError:  # the server was killed
                return

    def join(self) -> None:
        """Waits until the server has ended the stream."""
        self._thread.join(PATIENCE)


def pack(directory: Path, archive: Path) -> None:
    """The data directory and the traces as one file."""
    with tarfile.open(archive, "w:xz") as tar:
        for name in ("data", "traces"):
            for file in sorted((directory / name).rglob("*")):
                if file.is_file() and file.name != "server.json" and file.suffix != ".db-shm":
                    tar.add(file, file.relative_to(directory), filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory


def continue_from(command: Sequence[str], directory: Path, left: Mapping[str, Any]) -> dict[str, Any]:
    """A server takes up what is in the directory, and clients come back to the places that they had. What is there in
    the end, and which ends each client has seen, by session."""
    with Server(command, directory, "--pace", "0") as server:
        workspaces = {path: server.workspace(path) for path in left["workspaces"]}
        watchers = {name: Watcher(workspaces[client["path"]], client["place"])
                    for name, client in left["clients"].items()}
        for workspace in workspaces.values():
            workspace.until_idle()
        content = {path: workspace.content() for path, workspace in workspaces.items()}
    for watcher in watchers.values():
        watcher.join()
    return {"workspaces": content, "clients": {name: _by_session(w.ends) for name, w in watchers.items()}}


def _by_session(ends: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Sessions do not wait for one another: only the order within each is known."""
    return {session: [end for end in ends if end["session_id"] == session]
            for session in sorted({end["session_id"] for end in ends})}


TIMES = ("created_at", "updated_at", "time")


def without_later_times(value: Any, killed_at: float) -> Any:
    """The value without what a clock has said after the kill."""
    if isinstance(value, dict):
        return {key: without_later_times(inner, killed_at) for key, inner in value.items()
                if not (key in TIMES and inner > killed_at)}
    return [without_later_times(inner, killed_at) for inner in value] if isinstance(value, list) else value
