"""What a server keeps on its disk: an index that it can use or refuses by name, files that nobody else can read, and a
start on a full disk that serves or says why not."""

import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from support.commands import COMMAND, read_refusal
from support.servers import PATIENCE, Process

from cancelmark.impl.store.index import Index

KB = 1024


# --- an index that cannot be used -------------------------------------------------------------------------------------

def spoil(index: Path, how: str) -> None:
    if how == "a directory":
        index.mkdir()
    elif how == "garbage":
        index.write_bytes(b"garbage" * 1000)
    elif how == "a dead link":
        index.symlink_to(index.parent / "nowhere" / "index.db")
    else:
        with closing(sqlite3.connect(index)) as db:
            db.execute("PRAGMA user_version = 7")


@pytest.mark.real
@pytest.mark.parametrize(("how", "why"), [
    ("a directory", "unable to open"), ("garbage", "not a database"), ("newer", "version 7"),
    ("a dead link", "unable to open"),
])
def test_an_index_that_cannot_be_used_is_refused_by_name(tmp_path: Path, how: str, why: str) -> None:
    index = tmp_path / "index.db"
    spoil(index, how)
    before = index.read_bytes() if index.is_file() else None
    told = read_refusal("serve", "--port", "0", "--data-dir", str(tmp_path))
    assert str(index) in told
    assert why in told
    assert "--data-dir" in told
    assert (index.read_bytes() if index.is_file() else None) == before


# --- who can read it --------------------------------------------------------------------------------------------------

def modes(*directories: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode)
            for directory in directories for file in directory.rglob("*") if not file.is_socket()}


def test_nobody_else_can_read_what_the_server_keeps(tmp_path: Path) -> None:
    """In a directory that others may look into, and with a mask that forbids nothing; also what was there before."""
    data, traces = tmp_path / "data", tmp_path / "traces"
    data.mkdir(mode=0o755)
    traces.mkdir(mode=0o755)
    mask = os.umask(0)
    try:
        server = Process(data, "--trace", str(traces))
        with server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            assert http.post("/v1/workspaces", json={"path": str(tmp_path)}).status_code == 200
            found = modes(data, traces)
            kinds = {Path(name).suffix for name in found}
            assert kinds >= {".db", ".db-wal", ".db-shm", ".db-lock", ".ndjson", ".json"}
            assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
            server.kill()
        for file in data.rglob("*.db*"):
            file.chmod(0o644)
        (data / "workspaces").chmod(0o755)
        with Process(data):
            assert {name: mode for name, mode in modes(data).items() if mode & 0o077} == {}
    finally:
        os.umask(mask)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o775, 0o1777, 0o755, 0o700])
@pytest.mark.parametrize("options", [(), ("--memory",)])
def test_others_cannot_replace_what_the_server_keeps(tmp_path: Path, mode: int, options: tuple[str, ...]) -> None:
    data, traces = tmp_path / "data", tmp_path / "traces"
    for directory in (data, traces, data / "workspaces"):
        directory.mkdir()
        directory.chmod(mode)
    with Process(data, "--trace", str(traces), *options):
        after = [stat.S_IMODE(directory.stat().st_mode) for directory in (data, traces)]
    assert after == [mode if mode & stat.S_ISVTX else mode & 0o755] * 2
    if not options:
        assert stat.S_IMODE((data / "workspaces").stat().st_mode) & 0o077 == 0


def test_an_index_is_its_users_alone_from_the_beginning(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        with closing(Index(tmp_path)):
            assert {name: mode for name, mode in modes(tmp_path).items() if mode & 0o077} == {}
    finally:
        os.umask(mask)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_token_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text("a" * 40)
    file.chmod(mode)
    told = read_refusal("serve", "--port", "0", "--data-dir", str(tmp_path), "--token-file", str(file))
    assert f"chmod 600 {file}" in told
    assert "a" * 40 not in told


# --- a full disk ------------------------------------------------------------------------------------------------------

@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system may not be mounted here")  # in CI too: it takes a privilege, not a package
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(path: Path, left: int = 0) -> None:
    """Fills the disk up to so many bytes."""
    with (path / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * KB)
        except OSError:
            if left:
                file.truncate(file.tell() - left)


@pytest.mark.parametrize(("used", "left"), [(False, 0), (False, 64 * KB), (True, 0), (True, 8 * KB), (True, 200 * KB)])
def test_a_start_on_a_full_disk_serves_or_says_why_not(tmp_path: Path, left: int, used: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        data = disk / "data"
        if used:
            with Process(data, "--pace", "1") as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
                workspace = http.post("/v1/workspaces", json={"path": str(tmp_path)}).json()["id"]
                url = f"/v1/workspaces/{workspace}"
                http.post(f"{url}/agent/init", json={"interactive": False})
                session = http.post(f"{url}/sessions", json={"title": "s"}).json()["id"]
                for run_id in "ab":
                    body = {"session_id": session, "prompt": "slow: " + "x" * 20_000, "run_id": run_id}
                    assert http.post(f"{url}/agent", json=body).status_code == 202
                server.kill()
        fill(disk, left)
        with (tmp_path / "log").open("w") as log:
            options = ["--port", "0", "--pace", "0", "--drain", "0", "--data-dir", str(data)]
            process = subprocess.Popen([*COMMAND, "serve", *options], text=True, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("serving at "):
                assert process.wait(PATIENCE) == 2
                told = (tmp_path / "log").read_text()
                assert "Traceback" not in told
                assert "--data-dir" in told.splitlines()[-1]
                return
            if used:
                (disk / "ballast").unlink()
                with httpx.Client(base_url=line.split()[2], timeout=PATIENCE) as http:
                    assert http.post("/v1/workspaces", json={"path": str(tmp_path)}).status_code == 200
                    while True:
                        told = http.get(f"{url}/agent/sessions/{session}/prompts").json()
                        if all(prompt["state"] == "done" for prompt in told):
                            break
                    assert [prompt["outcome"] for prompt in told] == ["error", "end_turn"]
        finally:
            process.kill()
            process.communicate()


def test_a_server_whose_disk_is_full_says_so_and_is_not_ready(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, Process(disk / "data") as server, \
            httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        workspace = http.post("/v1/workspaces", json={"path": str(tmp_path)}).json()["id"]
        assert http.get("/v1/ready").status_code == 200
        fill(disk)
        url = f"/v1/workspaces/{workspace}/sessions"
        while (answer := http.post(url, json={"title": "x" * 200})).status_code == 200:
            pass
        assert answer.status_code == 503
        assert answer.json()["message"].startswith("the disk is full; free some space")
        assert str(tmp_path) not in answer.text
        assert (http.get("/v1/ready").status_code, http.get("/v1/ready").json()["status"]) == (503, "away")
