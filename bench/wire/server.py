"""The server over HTTP: what accepting a prompt costs beside answering at all, and how soon a cancel is seen.

The server is `cancelmark serve` itself, in a process of its own and durable on a disk. The clients are plain sockets in
this process that send requests made beforehand, so that it is the server that is measured. What is compared is measured
by turns in the same minute.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from ..report import Goal, Report, Table
from ..setting import Setting

CONNECTIONS = 32
REQUESTS = 3000  # of each kind in a round
SLICE = 500  # of one kind at a time
BUSY = 100  # sessions
SAMPLES = 5  # round trips for each cancel


ACCEPTING = ("An accepted prompt is two commits, of its acceptance and of its entry into the queue: the second is "
             "under way when the next prompt comes, which waits for it. The empty handler reads nothing and answers "
             "at once.")
CANCELING = ("An end is published once it is durable: one commit, which the end shares with the cancel, and for which "
             "an empty round trip does not wait. The entry of a prompt that was accepted just before is waited for "
             "too.")


@contextmanager
def server(*options: str, directory: str | None = None) -> Iterator[tuple[int, int]]:
    """A server on this data directory, or on one of its own; its port, and its process."""
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as own:
        command = [sys.executable, "-m", "cancelmark.impl.cli.main", "serve", "--port", "0", "--data-dir",
                   directory or own,
                   "--log-level", "error", "--max-queue", "1000000", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline().split(":")[2].split("/")[0]), process.pid
            finally:
                process.kill()


class Connection:
    """One connection that is used for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator["Connection"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head[9:12]), await self._reader.readexactly(length)

    async def call(self, request: bytes) -> Any:
        status, body = await self.send(request)
        if status not in (200, 202):
            raise RuntimeError(f"the server refused: {status} {body.decode()}")
        return json.loads(body)

    async def ends(self) -> AsyncIterator[Any]:
        """The terminal events of a stream that has been asked for."""
        async for line in self._reader:
            if line.startswith(b'data: {"type":"run_complete"'):
                yield json.loads(line[6:])["payload"]["payload"]

    async def watch(self, workspace: str, after: str = "") -> None:
        """Asks for the events from now on, or after a place."""
        place = f"last-event-id: {after}\r\n" if after else ""
        self._writer.write(get(f"/v1/workspaces/{workspace}/events?client_id={uuid4()}", place))
        await self._reader.readuntil(b"id: ")


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


def post(path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


EMPTY = get("/v1/health")


async def opened(connection: Connection, sessions: int) -> tuple[str, list[str]]:
    """A workspace with so many sessions."""
    told = await connection.call(post("/v1/workspaces", {"path": "/bench"}))
    workspace = f"/v1/workspaces/{told['id']}"
    await connection.call(post(f"{workspace}/agent/init"))
    made = [await connection.call(post(f"{workspace}/sessions", {"title": "bench"})) for _ in range(sessions)]
    return str(told["id"]), [session["id"] for session in made]


def prompts(workspace: str, sessions: Sequence[str], name: str, text: str, count: int) -> list[bytes]:
    return [post(f"/v1/workspaces/{workspace}/agent", {
        "session_id": sessions[n % len(sessions)], "prompt": text, "run_id": f"{name}-{n}"}) for n in range(count)]


async def seconds(connections: Sequence[Connection], requests: Sequence[bytes]) -> float:
    """How long the requests take, each connection sending the next as soon as it has its answer."""
    waiting = iter(requests)

    async def work(connection: Connection) -> None:
        for request in waiting:
            await connection.call(request)

    began = perf_counter()
    await asyncio.gather(*map(work, connections))
    return perf_counter() - began


async def acceptance(port: int, text: str, busy: bool) -> tuple[float, float]:
    """Requests a second: empty ones, and prompts. In busy sessions they are queued; otherwise they run."""
    async with asyncio.timeout(600):
        stacks = [Connection.to(port) for _ in range(CONNECTIONS)]
        connections = [await stack.__aenter__() for stack in stacks]
        workspace, sessions = await opened(connections[0], CONNECTIONS)
        if busy:
            await seconds(connections, prompts(workspace, sessions, "hold", "slow: hold", CONNECTIONS))
        accepting = prompts(workspace, sessions, uuid4().hex, text, REQUESTS)
        empty = accepted = 0.0
        for start in range(0, REQUESTS, SLICE):
            empty += await seconds(connections, [EMPTY] * SLICE)
            accepted += await seconds(connections, accepting[start:start + SLICE])
        for stack in stacks:
            await stack.__aexit__(None, None, None)
        return REQUESTS / empty, REQUESTS / accepted


async def canceling(port: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of empty round trips, of round trips that accept a prompt, and from cancel calls to ends at another
    client, while all sessions are busy."""
    async with asyncio.timeout(600), Connection.to(port) as one, Connection.to(port) as other:
        workspace, (queueing, *sessions) = await opened(one, BUSY)
        await other.watch(workspace)
        ends = other.ends()
        for request in prompts(workspace, [queueing, *sessions], "busy", "slow: " + "word " * 200, BUSY):
            await one.call(request)
        await asyncio.sleep(1)
        trips: list[float] = []
        accepts: list[float] = []
        cancels: list[float] = []
        for n, session in enumerate(sessions):
            accept, = prompts(workspace, [queueing], f"queued-{n}", "queued", 1)
            for request, times in ((EMPTY, trips),) * SAMPLES + ((accept, accepts),):
                began = perf_counter()
                await one.call(request)
                times.append(perf_counter() - began)
            seen = asyncio.ensure_future(anext(ends))
            began = perf_counter()
            calling = asyncio.ensure_future(one.call(post(
                f"/v1/workspaces/{workspace}/agent/sessions/{session}/cancel")))
            end = await seen
            cancels.append(perf_counter() - began)
            assert (end["session_id"], end["outcome"]) == (session, "canceled")
            await calling
        return trips, accepts, cancels


def measure(setting: Setting) -> Report:
    """Prompts that are accepted and queued, prompts that are accepted and run, and cancels."""
    rows: list[tuple[object, ...]] = []
    ratios: list[float] = []
    for n in range(setting.rounds):
        with server() as (port, _):
            empty, accepted = asyncio.run(acceptance(port, "queued", busy=True))
        ratios.append(accepted / empty)
        rows.append((n + 1, "accepted and queued", empty, accepted, accepted / empty))
    for n in range(setting.rounds):
        with server("--pace", "0") as (port, _):
            empty, accepted = asyncio.run(acceptance(port, "run", busy=False))
        rows.append((n + 1, "accepted while others run", empty, accepted, accepted / empty))
    delays: list[tuple[object, ...]] = []
    quotients: dict[str, list[float]] = {"memory": [], "disk": [], "durable": []}
    for n in range(setting.rounds):
        for kept, options in (("memory", ("--memory",)), ("disk", ())):
            with server(*options) as (port, _):
                trip, accept, cancel = (median(times) for times in asyncio.run(canceling(port)))
            quotients[kept].append(cancel / trip)
            if kept == "disk":
                quotients["durable"].append(cancel / accept)
            delays.append((n + 1, kept, trip * 1000, accept * 1000, cancel * 1000, cancel / trip, cancel / accept))
    what = "from a cancel call to RunComplete at another client"
    return Report(
        [Table(f"Requests a second, {CONNECTIONS} connections, {REQUESTS:,} requests of each kind, kept on disk",
               ("round", "prompts are", "empty handler", "prompts", "ratio"), rows),
         Table(f"From a cancel call to the end at another client, {BUSY} busy sessions, medians in milliseconds",
               ("round", "kept in", "empty round trip", "accepting round trip", "cancel to end", "to empty",
                "to accepting"), delays)],
        [Goal("accepted prompts a second over HTTP, beside the same server's empty handler", tuple(ratios), "at least",
              0.4, why=ACCEPTING),
         Goal(f"{what}, beside an empty round trip, kept in memory", tuple(quotients["memory"]), "at most", 3),
         Goal(f"{what}, beside a round trip that waits for the disk too, kept on disk", tuple(quotients["durable"]),
              "at most", 3),
         Goal(f"{what}, beside an empty round trip, kept on disk", tuple(quotients["disk"]), "at most", 3,
              why=CANCELING)],
        [f"An end is published once it is durable, which an empty round trip need not wait for: one commit with what a "
         f"cancel writes. One fsync of this disk takes {fsync() * 1000:.2g} ms, at the median."])


def fsync() -> float:
    """Seconds that this disk takes to keep a few bytes, at the median."""
    times = []
    with tempfile.TemporaryDirectory() as directory, (Path(directory) / "x").open("wb", buffering=0) as file:
        for _ in range(50):
            began = perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(perf_counter() - began)
    return median(times)
