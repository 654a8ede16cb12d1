"""The server over HTTP: the cost of accepting a prompt compared with an empty request, the latency of a cancel, and
both compared with an earlier version.

The server is `cancelmark serve` in its own process, with its data on disk. The clients are plain sockets in this
process that send prepared requests, so that the server dominates the measurement. Compared figures are measured
alternately within a minute.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from .frame import Goal, Report, Setting, Table

CONNECTIONS = 32
REQUESTS = 3000  # of each kind per round
SLICE = 500  # of one kind at a time
BUSY = 100  # sessions
SAMPLES = 5  # empty round trips per cancel
QUEUE = "1000000"  # maximum length of the queue

WORKSPACES = 16  # for the comparison with an earlier version
CANCELS = 36  # per round: other load on the machine disturbs a few of them
SECONDS = 3.0  # duration of each rate measurement
HOLD = b"HOLD"
LAST = 400  # bytes at the end of a request to the model in which to search for its last message

ACCEPTING = ("An accepted prompt takes two commits, for its acceptance and for its entry into the queue: the second is "
             "in progress when the next prompt arrives, which waits for it. The empty handler reads nothing and "
             "responds at once.")
CANCELING = ("A terminal event is published once it is durable: this takes one commit, shared with the cancel, for "
             "which an empty round trip does not wait. The cancel also waits for the entry of the prompt accepted just "
             "before it.")


IN_MEMORY = ("The in-memory store is an SQLite database. A commit takes about 25 µs, and the turns of all busy "
             "sessions commit their output at the same time.")
COMPUTING = ("Two thirds of a prompt's processor time are the event loop's, where no function takes a twentieth "
             "according to a profile: the model's client and the event streams take a sixth each, h11 an eighth and "
             "JSON a twentieth. One third is the stores' threads: three commits that no other prompt shares, with a "
             "dozen waits for the interpreter lock in each.")
WAITING = ("The terminal event is in the commit of the cancel, and is sent at once. A bare writer on the same disk "
           "takes about half of the time spent inside the server.")
KINDS = ("one session: prompts/s", "one session: processor ms per prompt", "workspaces: prompts/s",
         "workspaces: processor ms per prompt", "cancel to end, ms")
GOALS = (  # the goal, its figure, relation, limit, and why it is missed if it is
    ("completed prompts per second, one session", KINDS[0], "at least", 3.5, COMPUTING),
    (f"completed prompts per second, {WORKSPACES} workspaces", KINDS[2], "at least", 3.3, COMPUTING),
    ("from a cancel to the terminal event at another client", KINDS[4], "at most", 0.7, WAITING),
)

OURS = (sys.executable, "-m", "cancelmark.impl.cli.main")


@contextmanager
def server(*options: str, command: Sequence[str] = OURS) -> Iterator[tuple[int, int]]:
    """A server with its own data directory: its port and its process id."""
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as own:
        whole = [*command, "serve", "--port", "0", "--data-dir", own, "--log-level", "error", *options]
        environment = {**os.environ, "OPENAI_API_KEY": "none", **({} if command is OURS else {"PYTHONPATH": ""})}
        with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline().split(":")[2].split("/")[0]), process.pid
            finally:
                process.kill()


class Connection:
    """One connection, used for one request at a time."""

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
        """The status and the body of the response."""
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
        """The terminal events of the stream that `watch` opened."""
        async for line in self._reader:
            if line.startswith(b'data: {"type":"run_complete"'):
                yield json.loads(line[6:])["payload"]["payload"]

    async def watch(self, workspace: str) -> None:
        """Subscribes to the events from now on."""
        self._writer.write(get(f"/v1/workspaces/{workspace}/events?client_id={uuid4()}"))
        await self._reader.readuntil(b"id: ")


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def post(path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


EMPTY = get("/v1/health")


async def opened(connection: Connection, sessions: int, path: str = "/bench") -> tuple[str, list[str]]:
    """A workspace with this many sessions."""
    told = await connection.call(post("/v1/workspaces", {"path": path}))
    await connection.call(post(f"/v1/workspaces/{told['id']}/agent/init"))
    return str(told["id"]), [await make_session(connection, told["id"]) for _ in range(sessions)]


async def make_session(connection: Connection, workspace: str) -> str:
    made = await connection.call(post(f"/v1/workspaces/{workspace}/sessions", {"title": "bench"}))
    return str(made["id"])


def prompts(workspace: str, sessions: Sequence[str], name: str, text: str, count: int) -> list[bytes]:
    return [post(f"/v1/workspaces/{workspace}/agent", {
        "session_id": sessions[n % len(sessions)], "prompt": text, "run_id": f"{name}-{n}"}) for n in range(count)]


async def seconds(connections: Sequence[Connection], requests: Sequence[bytes]) -> float:
    """The duration of all requests; each connection sends the next one as soon as it has a response."""
    waiting = iter(requests)

    async def work(connection: Connection) -> None:
        for request in waiting:
            await connection.call(request)

    began = perf_counter()
    await asyncio.gather(*map(work, connections))
    return perf_counter() - began


async def acceptance(port: int) -> tuple[float, float]:
    """Requests per second: empty ones, and prompts that are queued in busy sessions."""
    async with asyncio.timeout(600), AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection.to(port)) for _ in range(CONNECTIONS)]
        workspace, sessions = await opened(connections[0], CONNECTIONS)
        await seconds(connections, prompts(workspace, sessions, "hold", "slow: hold", CONNECTIONS))
        accepting = prompts(workspace, sessions, uuid4().hex, "queued", REQUESTS)
        empty = accepted = 0.0
        for start in range(0, REQUESTS, SLICE):
            empty += await seconds(connections, [EMPTY] * SLICE)
            accepted += await seconds(connections, accepting[start:start + SLICE])
        return REQUESTS / empty, REQUESTS / accepted


async def canceling(port: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of empty round trips, of round trips that accept a prompt, and from cancel calls to the terminal events
    at another client, while all sessions are busy."""
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


def measure_server(setting: Setting) -> Report:
    """The cost of acceptance and the latency of cancels."""
    rows: list[tuple[object, ...]] = []
    ratios: list[float] = []
    for n in range(setting.rounds):
        with server("--max-queue", QUEUE) as (port, _):
            empty, accepted = asyncio.run(acceptance(port))
        ratios.append(accepted / empty)
        rows.append((n + 1, empty, accepted, accepted / empty))
    delays: list[tuple[object, ...]] = []
    quotients: dict[str, list[float]] = {"memory": [], "disk": [], "durable": []}
    for n in range(setting.rounds):
        for kept, options in (("memory", ("--memory",)), ("disk", ())):
            with server("--max-queue", QUEUE, *options) as (port, _):
                trip, accept, cancel = (median(times) for times in asyncio.run(canceling(port)))
            quotients[kept].append(cancel / trip)
            if kept == "disk":
                quotients["durable"].append(cancel / accept)
            delays.append((n + 1, kept, trip * 1000, accept * 1000, cancel * 1000, cancel / trip, cancel / accept))
    what = "from a cancel call to the terminal event at another client"
    return Report(
        [Table(f"Requests per second, {CONNECTIONS} connections, {REQUESTS:,} requests of each kind, kept on disk",
               ("round", "empty handler", "prompts", "ratio"), rows),
         Table(f"From a cancel call to the terminal event at another client, {BUSY} busy sessions, medians in "
               "milliseconds",
               ("round", "kept in", "empty round trip", "accepting round trip", "cancel to end", "to empty",
                "to accepting"), delays)],
        [Goal("accepted prompts per second over HTTP, relative to an empty handler", tuple(ratios), "at least",
              0.4, why=ACCEPTING),
         Goal(f"{what}, relative to an empty round trip, in memory", tuple(quotients["memory"]), "at most", 3,
              why=IN_MEMORY),
         Goal(f"{what}, relative to a durable round trip, on disk", tuple(quotients["durable"]),
              "at most", 3),
         Goal(f"{what}, relative to an empty round trip, on disk", tuple(quotients["disk"]), "at most", 3,
              why=CANCELING)],
        ["A terminal event is published once it is durable, for which an empty round trip does not wait: one commit, "
         f"shared with the cancel. The median fsync of this disk takes {fsync() * 1000:.2g} ms."])


def fsync() -> float:
    """Median seconds to write a few bytes durably to this disk."""
    times = []
    with tempfile.TemporaryDirectory() as directory, (Path(directory) / "x").open("wb", buffering=0) as file:
        for _ in range(50):
            began = perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(perf_counter() - began)
    return median(times)


# --- Comparison with an earlier version -------------------------------------------------------------------------------

class Lane:
    """A session in its own workspace, and two subscribers of the workspace."""

    def __init__(self, calling: Connection, watching: Sequence[Connection], workspace: str) -> None:
        self._calling, self._ends = calling, [each.ends() for each in watching]
        self._workspace = workspace

    @classmethod
    async def to(cls, port: int, path: str, stack: AsyncExitStack) -> "Lane":
        calling, *watching = [await stack.enter_async_context(Connection.to(port)) for _ in range(3)]
        workspace, _ = await opened(calling, 0, path)
        for each in watching:
            await each.watch(workspace)
        return cls(calling, watching, workspace)

    async def begin(self) -> None:
        """Creates a new session, since the cost of a prompt may depend on earlier ones."""
        self._session = await make_session(self._calling, self._workspace)

    async def run(self) -> None:
        """Runs a prompt until both subscribers have received its terminal event."""
        await self._accept("hello")
        await self._hear()

    async def cancel(self) -> float:
        """Seconds from the cancel of a running prompt to its terminal event at both subscribers."""
        await self._accept(HOLD.decode())
        await asyncio.sleep(0.1)
        began = perf_counter()
        calling = asyncio.ensure_future(self._calling.call(post(
            f"/v1/workspaces/{self._workspace}/agent/sessions/{self._session}/cancel")))
        await self._hear()
        seconds = perf_counter() - began
        await calling
        return seconds

    async def _accept(self, text: str) -> None:
        await self._calling.call(prompts(self._workspace, [self._session], uuid4().hex, text, 1)[0])

    async def _hear(self) -> None:
        await asyncio.gather(*(anext(ends) for ends in self._ends))


async def rate(lanes: Sequence[Lane], pid: int) -> tuple[float, float]:
    """Completed prompts per second, and the server's processor time per prompt in milliseconds."""
    for lane in lanes:
        await lane.begin()
        await lane.run()
    began, spent, done = perf_counter(), read_processor_time(pid), 0

    async def work(lane: Lane) -> None:
        nonlocal done
        while perf_counter() < began + SECONDS:
            await lane.run()
            done += 1

    await asyncio.gather(*map(work, lanes))
    return done / (perf_counter() - began), (read_processor_time(pid) - spent) / done * 1000


def read_processor_time(pid: int) -> float:
    """The processor time of a process so far, in seconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


async def compare(servers: Mapping[str, tuple[int, int]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """The figures of each server in each round, by kind. The servers are measured alternately."""
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in servers}
    async with asyncio.timeout(600), AsyncExitStack() as stack:
        lanes = {name: [await Lane.to(port, f"/bench/{number}", stack) for number in range(WORKSPACES)]
                 for name, (port, _) in servers.items()}
        for number in range(rounds):
            for name in list(servers)[::1 if number % 2 == 0 else -1]:
                (first, *_), (_, pid) = lanes[name], servers[name]
                figures = [*await rate([first], pid), *await rate(lanes[name], pid)]
                await first.begin()
                figures.append(median([await first.cancel() for _ in range(CANCELS)]) * 1000)
                for kind, figure in zip(KINDS, figures):
                    found[name][kind].append(figure)
    return found


def measure_beside(setting: Setting) -> Report:
    """Compares this version with the baseline, if given: with a model that responds at once, and data on disk."""
    baseline = setting.baseline
    commands = {**({baseline.version: baseline.list_command()} if baseline else {}), "now": OURS}
    with ExitStack() as stack:
        options = ("--model", "openai", "--model-name", "turn", "--base-url", stack.enter_context(model()))
        servers = {name: stack.enter_context(server(*options, command=command)) for name, command in commands.items()}
        found = asyncio.run(compare(servers, setting.rounds))
    (first, *_), ours = found.items(), found["now"]
    rows = [(kind, name, median(kinds[kind]), median(kinds[kind]) / median(first[1][kind]))
            for kind in KINDS for name, kinds in found.items()]
    goals = [Goal(f"{what}, relative to {first[0]}", tuple(a / b for a, b in zip(ours[kind], first[1][kind])), relation,
                  limit, why=why) if baseline else
             Goal(f"{what}, relative to 0.1.0", (), relation, limit, why="No baseline: give BASELINE=e117825.")
             for what, kind, relation, limit, why in GOALS]
    return Report([Table(f"Servers side by side ({WORKSPACES} workspaces), medians of the rounds",
                         ("what", "server", "figure", f"× {first[0]}"), rows)], goals)


# A language model that responds at once, behind an OpenAI-compatible endpoint in its own process. A prompt with the
# word HOLD gets no response until its connection is closed.

def _make_chunk(choices: list[Any], **more: Any) -> bytes:
    told = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "turn", "choices": choices, **more}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


_STREAM = b"".join([
    _make_chunk([{"index": 0, "delta": {"role": "assistant", "content": "fine"}, "finish_reason": None}]),
    _make_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    _make_chunk([], usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}),
    b"data: [DONE]\n\n"])
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(_STREAM), _STREAM)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Responds to one request after the other on a connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            if HOLD in body[-LAST:]:
                await reader.read(1)  # until the connection is closed
                return
            writer.write(ANSWER)


def _serve(told: Any) -> None:
    async def serve() -> None:
        listening = await asyncio.start_server(_answer, "127.0.0.1", 0, limit=1 << 24)
        told.send(listening.sockets[0].getsockname()[1])
        await listening.serve_forever()

    asyncio.run(serve())


@contextmanager
def model() -> Iterator[str]:
    """The base URL of the model."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.kill()
        process.join()
