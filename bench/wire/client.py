"""A client of the wire on plain sockets that costs little, so that it is the server that is measured."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

PATIENCE = 120.0  # seconds that anything is waited for

END = b'"run_complete"'
RUN_ID = b'"run_id":"'


def find_address(url: str) -> tuple[str, int]:
    """The host and the port of a server."""
    where = urlsplit(url)
    if where.scheme != "http" or not (where.hostname and where.port):
        raise ValueError(f"{url} has no host and port")
    return where.hostname, where.port


class Connection(asyncio.Protocol):
    """One connection that is used for one request after the other. Any server of the wire answers it."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._data = b""

    @classmethod
    async def to(cls, url: str) -> "Connection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, *find_address(url))
        return connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._answer and not self._answer.done() and (body := _find_body(self._data)) is not None:
            self._answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """What is answered, as JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        self._answer, self._data = asyncio.get_running_loop().create_future(), b""
        self._transport.write(b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                              b"content-length: %d\r\n\r\n%b" % (method.encode(), path.encode(), len(data), data))
        told = await self._answer
        if int(self._data[9:12]) >= 300:
            raise RuntimeError(f"{method} {path}: {self._data[9:12].decode()} {told[:200].decode()}")
        return json.loads(told) if told.strip() else None

    def close(self) -> None:
        self._transport.close()


def _find_body(data: bytes) -> bytes | None:
    """The body of an answer, once all of it is there."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    head = head.lower()
    if b"content-length:" in head:
        return body if len(body) >= int(head.split(b"content-length:")[1].split(b"\r\n")[0]) else None
    if b"transfer-encoding: chunked" not in head:
        return b""
    whole = b""
    while True:
        size, end, body = body.partition(b"\r\n")
        if not end or len(body) < int(size, 16) + 2:
            return None
        if int(size, 16) == 0:
            return whole
        whole, body = whole + body[:int(size, 16)], body[int(size, 16) + 2:]


class Watcher(asyncio.Protocol):
    """A subscriber of a workspace that hears of ends, by run id."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = b""
        self._waiting: dict[bytes, asyncio.Future[tuple[float, Any]]] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def of(cls, url: str, workspace: str) -> "Watcher":
        path = f"/v1/workspaces/{workspace}/events?client_id={uuid4()}"
        _, watcher = await asyncio.get_running_loop().create_connection(lambda: cls(path), *find_address(url))
        await watcher.ready
        return watcher

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if END in line[:60] and RUN_ID in line:
                future = self._waiting.pop(line.split(RUN_ID, 1)[1].split(b'"')[0], None)
                if future and not future.done():
                    future.set_result((perf_counter(), json.loads(line[5:])["payload"]["payload"]))

    def hear(self, run_id: str) -> "asyncio.Future[tuple[float, Any]]":
        """The end of that prompt, and when it came."""
        future = self._waiting[run_id.encode()] = asyncio.get_running_loop().create_future()
        return future

    def close(self) -> None:
        self._transport.close()


class Place:
    """A workspace of a server, with two subscribers."""

    def __init__(self, url: str, id: str, connection: Connection, watchers: tuple[Watcher, Watcher]) -> None:
        self.url, self.id, self._connection, self.watchers = url, id, connection, watchers

    @classmethod
    async def of(cls, url: str, path: str) -> "Place":
        connection = await Connection.to(url)
        made = await connection.call("POST", "/v1/workspaces", {"path": path, "client_id": str(uuid4())})
        watchers = await Watcher.of(url, made["id"]), await Watcher.of(url, made["id"])
        await connection.call("POST", f"/v1/workspaces/{made['id']}/agent/init", {"interactive": False})
        return cls(url, made["id"], connection, watchers)

    async def make_lane(self) -> "Lane":
        """A new session that has run a prompt."""
        made = await self._connection.call("POST", f"/v1/workspaces/{self.id}/sessions", {"title": "bench"})
        lane = Lane(self, made["id"], await Connection.to(self.url))
        await lane.prompt()
        return lane

    def close(self) -> None:
        for one in (self._connection, *self.watchers):
            one.close()


class Lane:
    """One session, and a connection on which it is called."""

    def __init__(self, place: Place, session: str, connection: Connection) -> None:
        self.place, self.session, self._connection = place, session, connection
        self.accepts: deque[float] = deque(maxlen=1000)  # seconds that acceptances took

    async def prompt(self, text: str = "hello") -> float:
        """Runs a prompt to its end, as the first subscriber hears it, and returns how long that took."""
        run_id, began = str(uuid4()), perf_counter()
        end = self.place.watchers[0].hear(run_id)
        await self.send(text, run_id)
        async with asyncio.timeout(PATIENCE):
            at, told = await end
        if told.get("error"):
            raise RuntimeError(f"{self.place.url}: {told}")
        return at - began

    async def cancel(self, settle: float = 0.1) -> float:
        """Cancels a prompt that runs, and returns how long the second subscriber waits for its end."""
        run_id = str(uuid4())
        end = self.place.watchers[1].hear(run_id)
        await self.send("HOLD", run_id)
        await asyncio.sleep(settle)
        began = perf_counter()
        await self._connection.call("POST", f"/v1/workspaces/{self.place.id}/agent/sessions/{self.session}/cancel")
        async with asyncio.timeout(PATIENCE):
            at, _ = await end
        return at - began

    async def send(self, text: str, run_id: str) -> None:
        """Has a prompt accepted."""
        began = perf_counter()
        await self._connection.call("POST", f"/v1/workspaces/{self.place.id}/agent", {
            "session_id": self.session, "prompt": text, "run_id": run_id})
        self.accepts.append(perf_counter() - began)

    def close(self) -> None:
        self._connection.close()


async def run_together(lanes: "list[Lane]", wanted: Callable[[int], bool]) -> int:
    """Prompts on all lanes at once, one after the other on each, while more than have begun are wanted."""
    begun = done = 0

    async def work(lane: Lane) -> None:
        nonlocal begun, done
        while wanted(begun):
            begun += 1
            await lane.prompt()
            done += 1

    await asyncio.gather(*map(work, lanes))
    return done
