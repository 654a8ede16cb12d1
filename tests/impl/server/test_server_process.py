"""`cancelmark serve` as a process: found by its clients, drained by a signal, killed in the middle of everything."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import pytest
from support.budget import TIER
from support.servers import PATIENCE, Place, Process, Server, Watch, web

from cancelmark.impl.cli.main import main
from cancelmark.impl.discovery import NAME, Running, announce, data_directory, find, withdraw
from cancelmark.impl.files import UsageError
from cancelmark.impl.server import logs

SESSIONS, PROMPTS = (4, 40) if TIER == "fast" else (20, 200)


def connect(server: Process) -> httpx.AsyncClient:
    return web(server.url)


class Persistent:
    """A client that watches a workspace, and comes back to its place whenever it is cut off."""

    def __init__(self, url: str, place: Place) -> None:
        self.url, self.place = url, place
        self.ends: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.connections = 0
        self.last_event_id = ""
        self.ready = asyncio.Event()
        self.news = asyncio.Event()

    async def watch(self) -> None:
        client = str(uuid4())
        while True:
            headers = {"last-event-id": self.last_event_id} if self.last_event_id else {}
            try:
                async with web(self.url) as http, http.stream(
                        "GET", f"{self.place.url}/events", params={"client_id": client}, headers=headers) as answer:
                    assert answer.status_code == 200
                    self.connections += 1
                    async for line in answer.aiter_lines():
                        self.hear(line)
            except httpx.TransportError:
                await asyncio.sleep(0.02)

    def hear(self, line: str) -> None:
        if line.startswith("id: "):
            self.last_event_id = line[4:]
            self.ready.set()
        elif line.startswith("data: ") and (told := json.loads(line[6:]))["type"] == "run_complete":
            end = told["payload"]["payload"]
            self.ends[end["run_id"]] += 1
            self.outcomes[end["outcome"]] += 1
            self.news.set()

    async def until(self, ends: int) -> None:
        while len(self.ends) < ends:
            self.news.clear()
            await self.news.wait()


async def persistently(url: str, path: str, body: Any) -> None:
    """Posts until there is an answer: a prompt that has a run id may be posted again."""
    while True:
        try:
            async with web(url) as http:
                answer = await http.post(path, json=body)
                assert answer.status_code == 202, answer.text
                return
        except httpx.TransportError:
            await asyncio.sleep(0.02)


@pytest.mark.smoke
def test_after_a_kill_in_the_middle_of_many_prompts_each_client_sees_each_end_exactly_once(tmp_path: Path) -> None:
    random = Random(7)
    server = Process(tmp_path / "data", "--pace", "0.004")

    async def main() -> None:
        async with connect(server) as http:
            place = await Server().workspace(http)
            sessions = [await place.new_session() for _ in range(SESSIONS)]
        clients = [Persistent(server.url, place) for _ in range(4)]
        watching = [asyncio.ensure_future(client.watch()) for client in clients]
        for client in clients:
            await client.ready.wait()
        bodies = [{"session_id": sessions[n % SESSIONS], "prompt": f"prompt {n}", "run_id": f"run-{n}"}
                  for n in range(PROMPTS)]
        posting = [asyncio.ensure_future(persistently(server.url, f"{place.url}/agent", body)) for body in bodies]
        # The first kill comes while they are being posted.
        for threshold in (PROMPTS // random.randint(5, 40), PROMPTS * random.randint(3, 6) // 10):
            for client in clients:  # each is back by then
                await client.until(threshold)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await asyncio.gather(*posting)
        for client in clients:
            await client.until(PROMPTS)
        # Whatever else there is comes before the end of a last prompt.
        await persistently(server.url, f"{place.url}/agent", {**bodies[0], "prompt": "last", "run_id": "last"})
        for client in clients:
            while "last" not in client.ends:
                client.news.clear()
                await client.news.wait()
            assert client.ends == {**{f"run-{n}": 1 for n in range(PROMPTS)}, "last": 1}
            assert client.connections >= 3
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        assert clients[0].outcomes["error"] > 0, "the kills have interrupted something"
        assert clients[0].outcomes["end_turn"] > PROMPTS / 2, "and what had not started went on"
        assert set(clients[0].outcomes) == {"error", "end_turn"}

    with server:
        async def guarded() -> None:
            async with asyncio.timeout(4 * PATIENCE):
                await main()

        asyncio.run(guarded())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_every_waiter_gets_its_end(number: signal.Signals, tmp_path: Path) -> None:
    server = Process(tmp_path / "data", "--pace", "5")

    async def main() -> None:
        async with connect(server) as http, connect(server) as other:
            place = await Server().workspace(http)
            sessions = [await place.new_session() for _ in range(4)]
            async with place.watching() as one, place.seen_by(other).watching() as two:
                for n in range(20):
                    await place.send(f"prompt {n}", f"run-{n}", sessions[n % 4])
                await one.until(lambda w: sum(p["state"] == "active" for p in w.of("prompt")) == 4)
                server.signal(number)
                for watch in (one, two):
                    await watch.until(lambda w: w.over)
                    assert sorted(watch.ends()) == sorted((f"run-{n}", "canceled") for n in range(20))
        assert await asyncio.to_thread(server.wait) == 0

    with server:
        assert find(server.directory)
        asyncio.run(main())
    assert not (server.directory / NAME).exists()
    assert "Traceback" not in server.log.read_text()
    assert f"signal={number.name}" in server.log.read_text()


def test_a_call_that_is_not_answered_when_the_server_ends_is_told_what_is_known(tmp_path: Path) -> None:
    """Of a body that has not come, that nothing was done; of a call that has begun, that nobody knows. Both are no
    failure, and the log has no traceback."""
    async def scene(server: Process) -> None:
        async with connect(server) as http:
            place = await Server().workspace(http)
            await place.send("fast: hello", "r1")
            await place.until(lambda prompts: all(prompt["state"] == "done" for prompt in prompts))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc")
            summarizing = asyncio.ensure_future(place.do("summarize"))
            await asyncio.sleep(0.5)  # both have arrived
            server.signal(signal.SIGTERM)
            answer, summary = await reader.read(), await summarizing
            writer.close()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"did not run this call" in answer
            assert summary.status_code == 500
            assert "retry it" in summary.text

    with Process(tmp_path / "data", "--pace", "20", "--drain", "0.1") as server:
        asyncio.run(scene(server))
        assert server.wait() == 0
    assert "Traceback" not in server.log.read_text()


def answering(watch: Watch) -> bool:
    """Whether the language model was asked: a turn that is stopped before that is not stubborn."""
    return any(message["role"] == "assistant" for message in watch.of("message"))


def test_a_turn_that_does_not_stop_is_abandoned_at_the_deadline_of_the_drain(tmp_path: Path) -> None:
    """It would take 40 minutes."""
    server = Process(tmp_path / "data", "--pace", "300", "--drain", "0.3")

    async def main() -> None:
        async with connect(server) as http:
            place = await Server().workspace(http)
            async with place.watching() as watch:
                await place.send("stubborn: hello", "run-a")
                await watch.until(answering)
                await place.send("next", "run-b")
                await watch.until(lambda w: any(p["state"] == "queued" for p in w.of("prompt")))
                server.signal(signal.SIGTERM)
                await watch.until(lambda w: w.over)
                assert sorted(watch.ends()) == [("run-a", "canceled"), ("run-b", "canceled")]

    with server:
        asyncio.run(main())
        assert server.wait() == 0


def test_while_it_drains_it_answers_and_accepts_nothing(tmp_path: Path) -> None:
    server = Process(tmp_path / "data", "--pace", "300", "--drain", "1000")

    async def main() -> None:
        async with connect(server) as http:
            place = await Server().workspace(http)
            async with place.watching() as watch:
                await place.send("stubborn: hello", "run-a")
                await watch.until(answering)
                server.signal(signal.SIGTERM)
                while (await http.get("/v1/health")).json()["status"] == "ok":
                    pass
                assert (await place.post("late", "run-b")).status_code == 409
                assert (await http.post("/v1/workspaces", json={"path": "/new"})).status_code == 409
                assert await place.send("stubborn: hello", "run-a") > 0, "this one it has"

    with server:
        asyncio.run(main())


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_of_either_kind_does_not_wait_and_the_next_start_goes_on(
        first: signal.Signals, second: signal.Signals, tmp_path: Path) -> None:
    server = Process(tmp_path / "data", "--pace", "300", "--drain", "1000")

    async def start() -> Place:
        async with connect(server) as http:
            place = await Server().workspace(http)
            async with place.watching() as watch:
                await place.send("stubborn: hello", "run-a")
                await watch.until(answering)
                server.signal(first)
                while (await http.get("/v1/health")).json()["status"] == "ok":
                    pass
                server.signal(second)
            return place

    async def check(place: Place) -> None:
        async with connect(server) as http:
            (prompt,) = await place.seen_by(http).get("prompts")
            assert (prompt["run_id"], prompt["outcome"]) == ("run-a", "error")

    with server:
        place = asyncio.run(start())
        assert server.wait() == -second
        assert find(server.directory) is None, "it could not say that it is gone, but it is seen"
        assert "Traceback" not in server.log.read_text()
        server.start()
        asyncio.run(check(place))


# --- the command

def refused(*arguments: str) -> str:
    """The one line with which bad usage is refused."""
    told = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(told):
        patch.setattr(logs, "start", lambda level: None)
        try:
            code = main(["serve", *arguments])
        except SystemExit as exit:
            code = int(str(exit.code))
    assert code == 2
    [line] = told.getvalue().splitlines()
    return line


@pytest.mark.real
@pytest.mark.parametrize(("arguments", "named"), [
    (["--port", "70000"], "--port 70000: must be from 0 to 65535"),
    (["--port", "-1"], "--port -1"),
    (["--host", "0.0.0.0"], "--host 0.0.0.0: remote clients can connect to this address; add --token-file FILE"),
    (["--host", "::"], "add --token-file FILE"),
    (["--host", "192.0.2.1", "--token-file", "TMP/token", "--port", "0"], "cannot listen on 192.0.2.1"),
    (["--host", "no such host"], "add --token-file FILE"),
    (["--unix", "TMP/s", "--port", "1"], "--unix and --port are mutually exclusive"),
    (["--unix", "TMP/no/such/dir/s"], "cannot listen on"),
    (["--unix", "TMP/" + "x" * 200], "cannot listen on"),
    (["--unix", "TMP"], "the file exists and is not a socket"),
    (["--model", "hal"], "--model hal: choose scripted or openai"),
    (["--model", "openai"], "no model name"),
    (["--grace", "-1"], "--grace -1"), (["--grace", "nan"], "--grace nan"), (["--drain", "inf"], "--drain inf"),
    (["--pace", "-1"], "--pace -1"), (["--max-queue", "0"], "--max-queue 0: must be at least 1"),
    (["--max-body", "x"], "--max-body"), (["--log-level", "loud"], "--log-level loud"),
    (["--token-file", "TMP"], "--token-file"), (["--token-file", "TMP/short"], "at least 16 ASCII characters"),
    (["--data-dir", "TMP/short"], "cannot create"), (["--data-dir", "/proc/nope"], "cannot create"),
    (["stray"], "stray"),
])
def test_bad_usage_is_one_clear_line(
        arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "short").chmod(0o600)
    for name, value in (("CANCELMARK_DATA_DIR", str(tmp_path / "data")), ("OPENAI_MODEL", ""), ("OPENAI_API_KEY", "")):
        monkeypatch.setenv(name, value)
    assert named in refused(*(argument.replace("TMP", str(tmp_path)) for argument in arguments))
    assert not (tmp_path / "data" / NAME).exists()


def test_a_data_directory_belongs_to_one_server(tmp_path: Path) -> None:
    with Process(tmp_path / "data"):
        line = refused("--data-dir", str(tmp_path / "data"), "--port", "0")
        assert "another server uses" in line


@pytest.mark.real
def test_a_damaged_index_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(b"not a database" * 100)
    assert "index.db" in refused("--data-dir", str(tmp_path), "--port", "0")


def test_a_server_that_keeps_nothing_leaves_the_announcement_of_another_alone(tmp_path: Path) -> None:
    with Process(tmp_path / "data") as server:
        announced = find(server.directory)
        assert announced is not None
        with Process(tmp_path / "data", "--memory") as guest:
            assert find(server.directory) == announced
            assert f"already announces another server (process {announced.pid})" in guest.log.read_text()
            assert f"--server {guest.url}" in guest.log.read_text()
            assert guest.stop() == 0
        assert find(server.directory) == announced
        assert server.stop() == 0
    with Process(tmp_path / "data", "--memory") as alone:
        assert (found := find(alone.directory)) is not None
        assert found.url == alone.url


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in refused(
            "--port", str(port), "--data-dir", str(tmp_path))


def test_on_a_socket_file_and_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # as a server that was killed has left it
    with Process(tmp_path / "data", "--unix", str(path), "--token-file", str(tmp_path / "token")) as server:
        running = find(server.directory)
        assert running is not None
        assert (running.unix, running.token_file) == (str(path), str(tmp_path / "token"))
        token = (tmp_path / "token").read_text().strip()
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url=running.url) as http:
            assert http.get("/v1/health").status_code == 401
            assert http.get("/v1/health", headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert "another server is using it" in refused("--unix", str(path), "--data-dir", str(tmp_path / "other"))
        assert server.stop() == 0
        assert not path.exists()
    assert token not in server.log.read_text()


def test_where_others_can_connect_a_token_is_required(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--host", "0.0.0.0", "--token-file", str(tmp_path / "token")) as server:
        token = (tmp_path / "token").read_text().strip()
        with httpx.Client(base_url=server.url, verify=False) as http:
            assert http.get("/v1/workspaces").status_code == 401
            assert http.get("/v1/workspaces", headers={"authorization": f"Bearer {token}"}).status_code == 200
            assert http.get("/").status_code == 200


def test_logs_are_lines_of_key_and_value_without_what_was_said(tmp_path: Path) -> None:
    secret = "my-secret-prompt"
    with Process(tmp_path / "data", "--pace", "0", "--log-level", "debug",
                 "--token-file", str(tmp_path / "token")) as server:
        token = (tmp_path / "token").read_text().strip()

        async def main() -> None:
            async with web(server.url, headers={"authorization": f"Bearer {token}"}) as http:
                place = await Server().workspace(http, f"/{secret}")
                async with place.watching() as watch:
                    await place.send(secret, "run-a")
                    await watch.end("run-a")
                    await place.send(f"fail: {secret}", "run-b")
                    await watch.end("run-b")
                await http.get(f"/v1/workspaces/{secret}?token={secret}", headers={"x-key": secret})

        asyncio.run(main())
        assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    value = r'("(\\.|[^"\\])*"|[^\s"]+)'
    assert len(lines) > 5
    for line in lines:
        assert re.fullmatch(rf"time=\S+ level=(debug|info|warning|error) event={value}( [a-z_]+={value})*", line), line
    text = "\n".join(lines)
    assert 'event=answered call=send_prompt status=202' in text
    assert "call=get_workspace status=404" in text
    assert secret not in text
    assert token not in text


# --- finding it

def test_a_running_server_is_found_and_a_dead_one_is_not(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    mine = Running("http://127.0.0.1:1", os.getpid(), version="0.1.0")
    path = announce(tmp_path, mine)
    assert path.stat().st_mode & 0o777 == 0o600
    assert find(tmp_path) == mine
    withdraw(tmp_path, pid=os.getpid() + 1)
    assert find(tmp_path) == mine, "another's is left alone"
    withdraw(tmp_path)
    assert find(tmp_path) is None
    withdraw(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    announce(tmp_path, Running("http://127.0.0.1:1", dead.pid))
    assert find(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"url": "x"}', '{"url": "x", "pid": "1", "more": 1}',
                                     '{"url": "x", "pid": 0}', '{"url": "x", "pid": -1}', '{"url": "x", "pid": null}',
                                     '{"url": "x", "pid": 1e99}', '{"url": "x", "pid": 99999999999999999999}',
                                     "\udcff"])
def test_a_file_that_says_nothing_sensible_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_bytes(content.encode(errors="surrogateescape"))
    assert find(tmp_path) is None
    withdraw(tmp_path)


def test_the_data_directory_is_the_one_given_or_of_the_environment_or_the_users(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANCELMARK_DATA_DIR", str(tmp_path / "environment"))
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    assert data_directory() == tmp_path / "environment"
    monkeypatch.delenv("CANCELMARK_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    if os.name == "posix" and "darwin" not in os.uname().sysname.lower():
        assert data_directory() == tmp_path / "xdg" / "cancelmark"


def test_a_link_in_the_place_of_the_announcement_is_not_followed(tmp_path: Path) -> None:
    precious, mine = tmp_path / "precious", Running("http://127.0.0.1:1", os.getpid())
    for target in (precious, tmp_path / "missing"):
        precious.write_text(json.dumps(vars(mine)))
        (tmp_path / NAME).symlink_to(target)
        assert find(tmp_path) is None
        withdraw(tmp_path)
        assert (tmp_path / NAME).is_symlink()
        path = announce(tmp_path, mine)
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o600
        assert find(tmp_path) == mine
        assert precious.read_text() == json.dumps(vars(mine))
        assert not (tmp_path / "missing").exists()
        withdraw(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["precious"]


def test_what_cannot_be_announced_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose another --data-dir"):
        announce(tmp_path / "no such directory", Running("http://127.0.0.1:1", os.getpid()))
