"""Connections to a server that are open before they are needed: a request goes out at once, and in one write.

Who comes first in a race is decided in microseconds. A client that connects for a call, or sends the head and the body
of a request apart, decides it by accident.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import h11
import httpx2

from ..client.calls import UNIX
from ..client.errors import Unreachable

CHUNK = 65_536

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Incoming:
    """An answer, of which the head has come."""

    def __init__(self, server: str, method: str, streams: Streams) -> None:
        self.status = 0
        self._server, (self._reader, self._writer) = server, streams
        self._heard = h11.Connection(h11.CLIENT)
        self._heard.send(h11.Request(method=method, target="/", headers=[("host", "it was sent already")]))
        self._heard.send(h11.EndOfMessage())

    async def read_head(self) -> None:
        event = await self._next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next_event()
        assert isinstance(event, h11.Response)
        self.status = event.status_code

    async def read_pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        while not isinstance(event := await self._next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def _next_event(self) -> object:
        try:
            while (event := self._heard.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(CHUNK)
                if not data and not self.status:
                    raise ConnectionResetError("it was closed before the answer")
                self._heard.receive_data(data)
        except (OSError, h11.RemoteProtocolError) as error:
            self.leave()
            raise Unreachable(f"{self._server} broke the connection", sent=True) from error
        except BaseException:
            self.leave()
            raise
        return event

    @property
    def is_over(self) -> bool:
        """Whether the connection can carry another call."""
        return self._heard.our_state is h11.DONE and self._heard.their_state is h11.DONE

    def leave(self) -> None:
        self._writer.transport.abort()


class Connections:
    """As many connections as calls at the same time; each serves one call after the other."""

    def __init__(self, server: str, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.server = server
        parts = urlsplit("http://localhost" if server.startswith(UNIX) else server)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers = {"host": parts.netloc, "content-type": "application/json", "user-agent": "cancelmark",
                         **(headers or {})}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._idle: list[Streams] = []

    async def warm(self, n: int) -> None:
        """Sees to it that so many are open."""
        while len(self._idle) < n:
            self._idle.append(await self._open())

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def ask(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> httpx2.Response:
        """The answer to a call."""
        streams = await self._send(method, path, sent)
        incoming = await self._hear(method, streams)
        body = b"".join([piece async for piece in incoming.read_pieces()])
        if incoming.is_over:
            self._idle.append(streams)
        else:
            incoming.leave()
        return httpx2.Response(incoming.status, content=body)

    async def begin(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> Incoming:
        """Makes a call whose answer is read as it comes, and left when it is not wanted any more."""
        return await self._hear(method, await self._send(method, path, sent))

    async def _hear(self, method: str, streams: Streams) -> Incoming:
        incoming = Incoming(self.server, method, streams)
        await incoming.read_head()
        return incoming

    async def send_and_leave(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> None:
        """Sends a call, and breaks the connection off without waiting for the answer."""
        _, writer = await self._send(method, path, sent)
        with suppress(OSError):
            await writer.drain()
            writer.close()

    async def _open(self) -> Streams:
        try:
            if self.server.startswith(UNIX):
                return await asyncio.open_unix_connection(self.server.removeprefix(UNIX))
            return await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise Unreachable(f"nobody answers at {self.server}", sent=False) from error

    async def _send(self, method: str, path: str, sent: Mapping[str, object] | None) -> Streams:
        body = b"" if sent is None else json.dumps(sent).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{headers}content-length: {len(body)}\r\n\r\n"
        streams = self._take_idle() or await self._open()
        streams[1].write(head.encode() + body)
        return streams

    def _take_idle(self) -> Streams | None:
        """One that the server has not closed meanwhile."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and reader.exception() is None:
                return reader, writer
            writer.transport.abort()
        return None
