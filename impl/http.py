"""An HTTP/1.1 client with minimal overhead: every prompt calls a model, and in the conformance kit's races microseconds
decide.

A request is one write, on a connection that is kept from an earlier request or opened in advance (`warm`). A connection
is kept once its response is complete. There are no retries, and redirects are not followed. Closing a response early
closes its connection.

**Rejected:** httpx2. A request takes 0.8 ms of processor time instead of 0.3, which is a third of a whole prompt over
HTTP, and it writes head and body separately.
"""

import asyncio
import ssl
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11

from .trouble import Garbled, Lost, Silent, Trouble, Unreachable

IDLE = 5.0  # seconds that an idle connection is kept
KEPT = 100  # idle connections kept
LAST = 0.05  # seconds to read the rest of a response that is not needed
UNREAD = 262_144  # bytes received and not read, before the transport is paused

PIECE = 65_536  # bytes decompressed at a time: other tasks run in between
LARGEST = 128 * 1024 * 1024  # bytes of a response, decompressed

BROKEN = "the connection ended before the answer"
COMPRESSED = "the answer is compressed in an unsupported or corrupt way"
PORTS = {"http": 80, "https": 443}


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self.ended = False  # the peer has closed it
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self.http.receive_data(data)
        self._unread += len(data)
        if self._unread > UNREAD:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            with suppress(RuntimeError):  # the HTTP connection has ended already
                self.http.receive_data(b"")
            self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, patience: float | None) -> Any:
        """The next HTTP event."""
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                if self.ended:
                    raise Lost(BROKEN)
                self._unread = 0
                if not self.transport.is_reading():
                    self.transport.resume_reading()
                self._waiter = asyncio.get_running_loop().create_future()
                async with asyncio.timeout(patience):
                    await self._waiter
        except TimeoutError:
            raise Silent from None
        except h11.RemoteProtocolError:
            raise Lost(BROKEN) from None
        return event


class Answer:
    """The response to a request: its head, and its body in pieces. Close it, at its end or before."""

    def __init__(self, endpoint: "Endpoint", line: Connection, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        self._endpoint, self._line = endpoint, line
        self._complete = False
        coding = headers.get("content-encoding", "identity").strip().lower()
        self._unpack = None if coding in ("identity", "") else _unpacker(coding)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `Garbled` beyond a size that no response has."""
        size = 0
        while (data := await self._next(self._endpoint.timeout)) is not None:
            while data:
                piece, data = self._unpack_some(data)
                size += len(piece)
                if size > LARGEST:
                    raise Garbled(f"the answer is larger than {LARGEST:,} bytes")
                yield piece
                if data:
                    await asyncio.sleep(0)

    def _unpack_some(self, data: bytes) -> tuple[bytes, bytes]:
        """A decompressed piece of the body, and what is left to decompress."""
        if self._unpack is None:
            return data, b""
        try:
            return self._unpack.decompress(data, PIECE), self._unpack.unconsumed_tail
        except zlib.error:
            raise Garbled(COMPRESSED) from None

    async def _next(self, patience: float | None) -> bytes | None:
        event = await self._line.read(patience)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.ConnectionClosed):
            raise Lost(BROKEN)
        self._complete = True
        return None

    async def finish(self) -> None:
        """Discard the rest of the body. If it is short, the connection can be used again."""
        with suppress(Trouble, TimeoutError):
            async with asyncio.timeout(LAST):
                while not self._complete:
                    await self._next(LAST)

    def close(self) -> None:
        """Release the connection."""
        self._endpoint.take_back(self._line, self._complete)


class Endpoint:
    """Requests to one URL, or below it. For one event loop.

    `timeout` applies to connecting, and to each wait for more of a response. `keep` is how long an idle connection is
    kept. With `proxy`, the environment's proxy is used (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`). `unix` is the path of
    a socket to connect to instead of the URL's host.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float | None = None, *,
                 keep: float | None = None, proxy: bool = True, unix: str | None = None) -> None:
        where = urlsplit(url)
        self.timeout, self._keep, self._unix = timeout, keep, unix
        self._host, self._port = where.hostname or "", where.port or PORTS[where.scheme]
        self._tls = where.scheme == "https"
        self._proxy = _find_proxy(where) if proxy else None
        target = f"{where.path or '/'}?{where.query}" if where.query else where.path
        host = f"[{self._host}]" if ":" in self._host else self._host
        netloc = host if self._port == PORTS[where.scheme] else f"{host}:{self._port}"
        self._target, self._prefix = target, ""
        if where.username is not None:
            headers = {**headers, **_make_basic("authorization", where)}
        if self._proxy and not self._tls:
            self._prefix = f"http://{netloc}"
            headers = {**headers, **_authorize_proxy(self._proxy)}
        self._headers = [(b"host", netloc.encode()), (b"accept-encoding", b"identity"),
                         *((name.encode(), value.encode()) for name, value in headers.items())]
        self._context: ssl.SSLContext | None = None
        self._idle: dict[Connection, asyncio.TimerHandle] = {}
        self._busy: set[Connection] = set()
        self._open = True

    async def warm(self, n: int) -> None:
        """Open connections until `n` are idle."""
        while len(self._idle) < n:
            self._put_aside(await self._connect_in_time())

    async def send_and_leave(self, method: str, path: str = "", body: bytes = b"") -> None:
        """Send a request, and close the connection without waiting for the response."""
        line = await self._send(method, path, body)
        self._busy.discard(line)
        line.transport.close()

    async def _send(self, method: str, path: str, body: bytes) -> Connection:
        head = h11.Request(method=method, target=self._prefix + (self._target + path or "/"), headers=[
            *self._headers, (b"content-length", b"%d" % len(body))])
        line = self._take_idle() or await self._connect_in_time()
        self._busy.add(line)
        parts = [line.http.send(head), line.http.send(h11.Data(data=body)), line.http.send(h11.EndOfMessage())]
        line.transport.write(b"".join(part for part in parts if part))
        return line

    async def request(self, method: str, path: str = "", body: bytes = b"") -> Answer:
        """The response, once its head has arrived."""
        line = await self._send(method, path, body)
        try:
            while isinstance(event := await line.read(self.timeout), h11.InformationalResponse):
                pass
            if not isinstance(event, h11.Response):
                raise Lost(BROKEN)
        except BaseException:
            self.take_back(line, complete=False)
            raise
        return Answer(self, line, event.status_code, {
            name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers})

    def _take_idle(self) -> Connection | None:
        """An idle connection that the server has not closed, or None."""
        while self._idle:
            line, timer = self._idle.popitem()
            timer.cancel()
            if not (line.ended or line.transport.is_closing()):
                return line
            line.transport.abort()
        return None

    async def _connect_in_time(self) -> Connection:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._connect()
        except TimeoutError:
            raise Silent from None
        except (OSError, ssl.SSLError, Trouble):
            raise Unreachable("could not connect") from None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._tls and self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        if self._unix:
            _, line = await loop.create_unix_connection(Connection, self._unix)
            return line
        if self._proxy is None:
            _, line = await loop.create_connection(Connection, self._host, self._port, ssl=self._context)
            return line
        _, line = await loop.create_connection(Connection, str(self._proxy.hostname), self._proxy.port or PORTS["http"])
        if self._context is None:
            return line
        try:
            await self._tunnel(line, self._proxy)
            transport = await loop.start_tls(line.transport, line, self._context, server_hostname=self._host)
        except BaseException:
            line.transport.abort()
            raise
        assert transport is not None
        line.transport = transport
        return line

    async def _tunnel(self, line: Connection, proxy: SplitResult) -> None:
        """Ask the proxy for a tunnel."""
        through = f"{self._host}:{self._port}"
        headers = {"host": through, **_authorize_proxy(proxy)}
        asking = h11.Request(method="CONNECT", target=through, headers=list(headers.items()))
        line.transport.write(line.http.send(asking) or b"")
        answer = await line.read(self.timeout)
        if not isinstance(answer, h11.Response) or answer.status_code >= 300:
            raise Unreachable
        line.http = h11.Connection(h11.CLIENT)

    def take_back(self, line: Connection, complete: bool) -> None:
        """Keep the connection for another request if its response is complete; otherwise abort it."""
        if line not in self._busy:
            return
        self._busy.discard(line)
        with suppress(h11.LocalProtocolError):
            if complete and self._open and not line.ended and len(self._idle) < KEPT:
                line.http.start_next_cycle()
                self._put_aside(line)
                return
        line.transport.abort()

    def _put_aside(self, line: Connection) -> None:
        self._idle[line] = asyncio.get_running_loop().call_later(self._keep or IDLE, self._drop, line)

    def _drop(self, line: Connection) -> None:
        self._idle.pop(line, None)
        line.transport.abort()

    def close(self) -> None:
        """Close all idle connections."""
        self._open = False
        for line, timer in self._idle.items():
            timer.cancel()
            line.transport.abort()
        self._idle.clear()


def _unpacker(coding: str) -> Any:
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise Garbled(COMPRESSED)
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects gzip or zlib by its header


def _find_proxy(where: SplitResult) -> SplitResult | None:
    proxies = getproxies()
    proxy = proxies.get(where.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(where.hostname or ""):
        return None
    found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return found if found.scheme == "http" and found.hostname else None


def _make_basic(name: str, where: SplitResult) -> dict[str, str]:
    pair = f"{unquote(where.username or '')}:{unquote(where.password or '')}"
    return {name: f"Basic {b64encode(pair.encode()).decode()}"}


def _authorize_proxy(proxy: SplitResult) -> dict[str, str]:
    return _make_basic("proxy-authorization", proxy) if proxy.username is not None else {}
