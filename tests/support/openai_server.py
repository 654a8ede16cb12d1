"""A chat completions server on this machine, for tests: real sockets, the real wire, and every way in which it breaks.

Each request takes the next reply that was given to it. A reply is the body in pieces, each of which goes out by itself,
with what happens between them. The server notes what it was sent, and whether the client left before a reply was over.
"""

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from itertools import pairwise
from types import TracebackType
from typing import Any, Self


class Act(Enum):
    """What can happen between two pieces of a body."""

    HOLD = auto()
    """Nothing more comes until the server is released, or the client leaves."""
    DROP = auto()
    """The connection ends here, as if that were the end."""
    RESET = auto()
    """The connection is torn down: the client gets an error, not an end."""


class Framing(Enum):
    """How the client can tell where the body ends."""

    CHUNKED = auto()
    """By a last chunk of length zero; each piece is a chunk."""
    UNTIL_CLOSE = auto()
    """By the end of the connection."""


@dataclass(frozen=True)
class Reply:
    """What one request is answered with. Without a head, not even the status is sent before the pieces are played."""

    pieces: tuple[bytes | Act | asyncio.Event, ...] = ()
    """What follows an event is sent once that is set."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    framing: Framing = Framing.CHUNKED
    head: bool = True


DONE = b"data: [DONE]\n\n"


def event(data: object, *, ascii: bool = False) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=ascii).encode() + b"\n\n"


def chunk(delta: Mapping[str, object] | None = None, finish: str | None = None) -> dict[str, Any]:
    """One chunk of an answer, with all the fields that the original sends."""
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "test-model",
        "service_tier": "default", "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": dict(delta or {}), "logprobs": None, "finish_reason": finish}],
        "usage": None,
    }


def usage(input_tokens: int = 7, output_tokens: int = 5) -> dict[str, Any]:
    """The chunk that comes last, and has no choices."""
    total = input_tokens + output_tokens
    spent = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens, "total_tokens": total}
    return {**chunk(), "choices": [], "usage": spent}


def call_piece(index: int, *, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    """A delta with a piece of a tool call. The first piece of a call has its id and name; the others have neither."""
    if id is None:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def answer(*deltas: Mapping[str, object], finish: str = "stop", ascii: bool = False) -> tuple[bytes, ...]:
    """A whole answer as the original sends it: the role, the deltas, the finish, the usage, the end."""
    role = {"role": "assistant", "content": "", "refusal": None}
    chunks = [chunk(role), *map(chunk, deltas), chunk({}, finish), usage()]
    return (*(event(each, ascii=ascii) for each in chunks), DONE)


def text(*pieces: str, finish: str = "stop") -> Reply:
    """An answer that says these pieces."""
    return Reply(answer(*({"content": piece} for piece in pieces), finish=finish))


def refusal(status: int, error: object, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer that is an error; the body is JSON unless it is given as bytes."""
    body = error if isinstance(error, bytes) else json.dumps({"error": error}).encode()
    return Reply((body,), status, {"content-type": "application/json", **(headers or {})})


@dataclass
class Received:
    """A request, and what became of it."""

    connection: int
    """The number of the connection that it came on."""
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    left_early: asyncio.Event = field(default_factory=asyncio.Event)
    """The client closed the connection before the reply was over."""


class Server:
    """Answers on 127.0.0.1, at a port of its own, while it is entered."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = deque(replies)
        self.received: list[Received] = []
        self.holding = asyncio.Event()
        """A reply has come to a hold."""
        self.released = asyncio.Event()
        """Set it, and nothing holds any more."""
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._count = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        connections = dict(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for writer in connections.values():
            await _close(writer)  # one that was canceled before its first step has closed nothing
        await self._server.wait_closed()

    def reply(self, received: Received) -> Reply:
        """What this request is answered with."""
        return self.replies.popleft() if self.replies else refusal(500, {"message": "no reply was given"})

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        connection = asyncio.create_task(self._serve(self._count, reader, writer))
        self._connections[connection] = writer
        connection.add_done_callback(self._connections.pop)

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while received := await _receive(number, reader):
                self.received.append(received)
                if not await self._answer(self.reply(received), received, reader, writer):
                    break
        finally:
            await _close(writer)

    async def _answer(
        self, reply: Reply, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> bool:
        """Plays the reply, and says whether the connection can be used again."""
        sending = asyncio.create_task(self._send(reply, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or sending.exception():
                received.left_early.set()
                return False
            return sending.result()
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        chunked = reply.framing is Framing.CHUNKED
        if reply.head:
            framing = ("transfer-encoding", "chunked") if chunked else ("connection", "close")
            lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
            lines += [f"{name}: {value}" for name, value in (*reply.headers.items(), framing)]
            writer.write("\r\n".join((*lines, "", "")).encode())
        for piece in reply.pieces:
            if piece is Act.HOLD:
                self.holding.set()
                await self.released.wait()
            elif isinstance(piece, asyncio.Event):
                await piece.wait()
            elif isinstance(piece, Act):
                if piece is Act.RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return False
            elif piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        return chunked


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await asyncio.shield(writer.wait_closed())  # a cancel of this task must not cancel what others wait for


async def _receive(number: int, reader: asyncio.StreamReader) -> Received | None:
    """The next request, or None if the client has left."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, path, _ = request.split(" ")
    return Received(number, method, path, headers, json.loads(body) if body else None)


def cut(body: bytes, places: Iterable[int]) -> tuple[bytes, ...]:
    """The body in pieces, cut at these places."""
    edges = sorted({0, len(body), *places})
    return tuple(body[start:end] for start, end in pairwise(edges))
