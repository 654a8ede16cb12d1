"""Connections of strangers: slow, idle, torn, too many, more than the system has descriptors for. Others get in."""

import asyncio
import gc
import logging
import os
import resource
import socket
import subprocess
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from support.commands import COMMAND
from support.runtimes import until
from support.servers import PATIENCE, Place, Process, Server, placed, web
from uvicorn import Config
from uvicorn.server import ServerState

from cancelmark.impl.files import UsageError
from cancelmark.impl.server import connections, listening
from cancelmark.impl.server.connections import LASTS, READ_SIZE, Connection, Phase, Slots
from cancelmark.impl.server.listening import OWN_FILES, WORKSPACE_FILES, plan_files
from cancelmark.impl.server.logs import RateLimitFilter
from cancelmark.impl.server.site import Limits

HEAD = b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
SOON = 0.2  # seconds


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One byte at a time, for as long as somebody takes them."""
    with suppress(OSError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(SOON / 10)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ends the connection, one way or the other."""
    data = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(65_536), PATIENCE):
            data += piece
    return data


# --- slow ones

@pytest.mark.parametrize(("sent", "answer"), [
    (b"", b""), (b"G", b"HTTP/1.1 408 "), (HEAD, b"HTTP/1.1 408 "),
    (HEAD + b"x-more: " + b"x" * 5000, b"HTTP/1.1 408 "),
    (HEAD + b"\r\n" + HEAD[:20], b"HTTP/1.1 200 "),
], ids=["nothing", "a byte", "all but the end", "much", "a second one"])
async def test_a_head_has_a_time_as_a_whole(sent: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LASTS, Phase.HEAD, SOON)
    async with placed() as (server, _):
        reader, writer = await connect(server)
        writer.write(sent)
        trickling = asyncio.ensure_future(trickle(writer, b"x" * 100_000 if sent else b""))
        said = await read_all(reader)
        assert said.startswith(answer)
        assert said.count(b"HTTP/1.1 408 ") == (sent != b"")
        trickling.cancel()
        writer.close()


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
@pytest.mark.parametrize("framing", ["content-length: 100000", "transfer-encoding: chunked"])
@pytest.mark.parametrize("call", ["POST /v1/workspaces", "POST /v1/clients", "DELETE /v1/workspaces/x",
                                  "GET /v1/health"])
async def test_a_body_has_a_time_as_a_whole_whatever_was_answered(
        call: str, framing: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LASTS, Phase.BODY, 2 * SOON)
    monkeypatch.setattr("cancelmark.impl.server.guard.PATIENCE", SOON)
    async with placed() as (server, _):
        reader, writer = await connect(server)
        writer.write(f"{call} HTTP/1.1\r\nhost: {host}\r\n{framing}\r\n\r\n".encode())
        trickling = asyncio.ensure_future(trickle(writer, b"1\r\nx\r\n" * 10_000))
        said = await read_all(reader)
        assert said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200 ")), said
        trickling.cancel()
        writer.close()


@pytest.mark.parametrize(("kind", "sent"), [
    ("too many", b""), ("malformed", b"nonsense\r\n\r\n"), ("slow head", b"GET /"),
    ("two lengths", POST.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")),
    ("tiny pieces", POST.replace(b"content-length: 9", b"transfer-encoding: chunked") + b"1\r\nx\r\n" * 1100),
    ("large head", HEAD + b"x-more: " + b"x" * 100_000),
])
@pytest.mark.parametrize("reads", [True, False])
async def test_a_connection_that_was_told_the_last_word_ends_in_its_time(kind: str, sent: bytes, reads: bool) -> None:
    """Whether or not its client reads that, and closes."""
    async def never(scope: Any, receive: Any, send: Any) -> None:
        """Answers nothing."""

    places = Slots(0 if kind == "too many" else 1)
    config = Config(never, interface="asgi3", lifespan="off", log_config=None)
    config.load()
    mine = type("Placed", (Connection,), {"places": places})(config, ServerState(), {})
    transport = Mock(**{"get_write_buffer_size.return_value": 0 if reads else 1})
    transport.get_extra_info = lambda name, *_: Mock(family=None) if name == "socket" else None
    mine.connection_made(transport)
    for start in range(0, len(sent), READ_SIZE):
        mine.data_received(sent[start:start + READ_SIZE])
    if kind == "slow head":
        places.sweep(mine.loop.time() + LASTS[Phase.HEAD])
    assert mine._leaving
    assert not transport.abort.called
    places.sweep(mine.loop.time() + LASTS[Phase.LEAVING] + LASTS[Phase.HEAD])
    assert transport.abort.called
    assert not places.taken
    await asyncio.sleep(0)  # a request that was complete has begun


async def test_nothing_is_done_for_a_request_before_all_of_it_is_there() -> None:
    async with placed() as (server, place):
        gate = server.holds("a")
        await place.send("a", "run-a")
        await gate.reached()
        for broken in (b"zz\r\n", b"5\r\nab\r\n\r\n\r\n"):
            reader, writer = await connect(server)
            writer.write(f"POST {place.url}/agent/sessions/{place.session}/cancel HTTP/1.1\r\nhost: localhost\r\n"
                         "transfer-encoding: chunked\r\n\r\n".encode() + broken)
            assert (await read_all(reader)).startswith(b"HTTP/1.1 400 ")
            writer.close()
        gate.open()
        await place.until(lambda prompts: [p.get("outcome") for p in prompts] == ["end_turn"])


@pytest.mark.parametrize("times", [1, 200], ids=["one answer", "many answers"])
async def test_who_does_not_take_the_answer_is_cut_off(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STUCK", SOON)
    monkeypatch.setitem(LASTS, Phase.WAITING, SOON)
    async with placed() as (server, _):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        host, port = server.url.removeprefix("http://").split(":")
        await loop.sock_connect(made, (host, int(port)))
        await loop.sock_sendall(made, b"GET /app.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * times)
        await until(lambda: len(server.places.taken) > 1)
        await until(lambda: len(server.places.taken) <= 1)  # the other is the client of this test
        made.close()


async def test_who_takes_a_long_answer_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STUCK", 5 * SOON)
    monkeypatch.setitem(LASTS, Phase.WAITING, SOON)
    async with placed() as (server, place):
        text = "x" * 150_000
        await gather_ends(place, [text] * 4)
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, (host, int(port)))
        await loop.sock_sendall(made, f"GET {place.url}/sessions/{place.session}/messages HTTP/1.1\r\n"
                                      "host: localhost\r\nconnection: close\r\n\r\n".encode())
        got = bytearray()
        began = loop.time()
        while piece := await loop.sock_recv(made, 65_536):
            got += piece
            await asyncio.sleep(SOON / 10)
        head, _, body = bytes(got).partition(b"\r\n\r\n")
        size = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        assert len(body) == size
        assert loop.time() - began > 5 * SOON, "it took longer than one who takes nothing is given"
        made.close()


async def gather_ends(place: Place, texts: list[str]) -> None:
    for text in texts:
        await place.send(text)
    await place.until(lambda session: not session["is_busy"], "")


# --- too many

async def test_when_all_places_are_taken_the_oldest_idle_one_has_to_go() -> None:
    async with placed(limits=Limits(connections=5)) as (server, place):
        await place.http.aclose()
        await until(lambda: not server.places.taken)
        idle = []
        for sent in (b"", b"G", HEAD, b"", POST):
            idle.append(await connect(server))
            idle[-1][1].write(sent)
            await until(lambda: len(server.places.taken) == len(idle))
        _, keen = idle[1]
        keen.write(HEAD[1:] + b"\r\n")
        assert (await asyncio.wait_for(idle[1][0].readuntil(b"}"), PATIENCE)).startswith(b"HTTP/1.1 200 ")
        for gone in (0, 2, 3, 4, 1):  # the second was answered last
            newcomer = await connect(server)
            newcomer[1].write(HEAD + b"\r\n")
            assert (await asyncio.wait_for(newcomer[0].readuntil(b"}"), PATIENCE)).startswith(b"HTTP/1.1 200 ")
            await read_all(idle[gone][0])
            assert len(server.places.taken) == 5
            left = [n for n, (reader, _) in enumerate(idle) if not reader.at_eof() and reader.exception() is None]
            assert gone not in left
            idle.append(newcomer)
        for _, writer in idle:
            writer.close()


async def test_strangers_who_hold_every_place_keep_nobody_out_and_no_stream_has_to_go() -> None:
    async with placed(limits=Limits(connections=20)) as (server, place), place.watching() as watch:
        strangers = []
        for n in range(100):
            strangers.append(await connect(server))
            strangers[-1][1].write((b"", b"G", HEAD, POST)[n % 4])
            if n % 10 == 9:
                async with server.client() as honest:
                    await place.seen_by(honest).send(f"hello {n}", f"run-{n}")
                    await watch.end(f"run-{n}")
        assert not watch.over
        assert len(server.places.taken) <= 20
        for _, writer in strangers:
            writer.close()


async def test_a_stream_that_nobody_reads_has_to_go_before_a_newcomer_is_refused() -> None:
    async with placed(limits=Limits(connections=3)) as (server, place), place.watching() as watch:
        reader, writer = await connect(server)
        writer.write(f"GET {place.url}/events?client_id={uuid4()} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await reader.readexactly(12)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not server.places._stuck:
            await place.send("x" * 190_000, run := str(uuid4()))
            await watch.end(run)
        async with place.watching(), server.client() as newcomer:
            assert (await newcomer.get("/v1/health")).status_code == 200
        writer.transport.abort()


@pytest.mark.parametrize("connections", [2, 10])
async def test_connections_that_are_torn_down_leave_nothing_behind(
    connections: int, caplog: pytest.LogCaptureFixture,
) -> None:
    """Some before they were accepted, some when they are told that there are too many, some after an answer."""
    caplog.set_level(logging.INFO)
    async with placed(limits=Limits(connections=connections)) as (server, place):
        async with place.watching(), place.watching() as watch:
            for n in range(300):
                made = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                if n % 3 and n > 50:
                    made.sendall(HEAD + b"\r\n")
                if n % 2:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0.002)
                made.close()
            assert not watch.over
        await until(lambda: len(server.places.taken) <= 1)
        await asyncio.sleep(0)
        gc.collect()
        assert sum(isinstance(each, Connection) for each in gc.get_objects()) < 10, "no timer keeps them"
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


# --- what is looked at at a time

async def test_a_body_in_tiny_pieces_is_refused() -> None:
    """Each byte costs as much as a hundred others."""
    async with placed() as (server, place):
        reader, writer = await connect(server)
        writer.write(b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * 2000)
        assert (await read_all(reader)).startswith(b"HTTP/1.1 400 ")
        writer.close()

        async def pieces() -> Any:
            for piece in ('{"path": ', '"', *(f"/{n}" for n in range(500)), '"}'):
                yield piece.encode()

        assert (await place.http.post("/v1/workspaces", content=pieces())).status_code == 200


async def test_others_have_their_turn_between_the_parts_of_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    take = Connection.data_received
    monkeypatch.setattr(Connection, "data_received", lambda self, data: sizes.append(len(data)) or take(self, data))
    async with placed() as (server, place):
        await place.send("x" * 190_000)
        reader, writer = await connect(server)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 40_000 + b"\r\n")
        assert (await read_all(reader)).startswith(b"HTTP/1.1 400 "), "a head is not taken that came fast"
        writer.close()
    assert 0 < max(sizes) <= READ_SIZE


# --- more than the system has descriptors for

def test_with_few_descriptors_strangers_keep_nobody_out_and_the_store_has_its_own(tmp_path: Path) -> None:
    async def main(server: Process) -> None:
        with ExitStack() as strangers:
            for n in range(200):
                stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
                stranger.sendall(HEAD if n % 2 else b"G")
            async with web(server.url) as http:
                place = await Server().workspace(http)
                async with place.watching() as watch:
                    await place.send("fast: hello", "run-a")
                    await watch.end("run-a")
        async with web(server.url) as http:
            await place.seen_by(http).send("fast: and later", "run-b")

    with Process(tmp_path / "data", files=80) as server:
        asyncio.run(main(server))
        assert server.stop() == 0
    log = server.log.read_text()
    assert "limiting connections and workspaces" in log
    assert "Traceback" not in log
    assert len(log.splitlines()) < 10


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits can be set on Linux alone")
def test_accepting_pauses_when_there_are_no_descriptors_and_comes_back(tmp_path: Path) -> None:
    def ask(made: socket.socket) -> bytes:
        made.settimeout(PATIENCE)
        made.sendall(HEAD + b"\r\n")
        return made.recv(12)

    with Process(tmp_path / "data") as server, ExitStack() as strangers:
        assert server.process
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 3, hard))
        made = [strangers.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(50)]
        paused = "accepting failed; pausing for a second"
        while server.log.read_text().count(paused) < 2:
            assert server.process.poll() is None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert ask(made[-1]) == b"HTTP/1.1 200"
        log = server.log.read_text()
        assert server.stop() == 0
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if paused in line]
    times = [float(line.partition("Z")[0][-6:]) for line in lines]
    assert all((later - earlier) % 60 > 0.9 * listening.PAUSE for earlier, later in pairwise(times)), lines


def test_limits_follow_from_the_descriptors_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def allow(files: int) -> None:
        monkeypatch.setattr(listening, "_raise_file_limit", lambda wanted: min(wanted, files))

    for allowed in range(OWN_FILES + WORKSPACE_FILES + 4, 5000, 7):
        allow(allowed)
        connections, workspaces = plan_files(2048, 64)
        assert 4 <= connections <= 2048
        assert 1 <= workspaces <= 64
        assert OWN_FILES + connections + workspaces * WORKSPACE_FILES <= allowed
    assert (connections, workspaces) == (2048, 64)
    for allowed in range(OWN_FILES + WORKSPACE_FILES + 4):
        allow(allowed)
        with pytest.raises(UsageError, match="ulimit -n"):
            plan_files(2048, 64)


def test_too_few_descriptors_are_said_so(tmp_path: Path) -> None:
    command = ["sh", "-c", 'ulimit -n 30 && exec "$@"', "sh", *COMMAND, "serve", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cancelmark: the system allows 30 open files")


# --- the log

def test_what_strangers_can_cause_is_logged_once_a_second() -> None:
    once, passed = RateLimitFilter(), []
    for n in range(1000):
        record = logging.makeLogRecord({"name": "uvicorn.error", "msg": "Invalid HTTP request received.",
                                        "created": 100 + n / 200})
        if once.filter(record):
            passed.append(getattr(record, "more", 0))
    assert passed == [0, 199, 199, 199, 199]
    ours = logging.makeLogRecord({"name": "cancelmark.server", "msg": "workspace opened", "created": 100})
    assert all(once.filter(ours) for _ in range(3))
