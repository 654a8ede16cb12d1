"""Connections to a server that are opened in advance, so that a request is sent immediately and in one write.

A race is decided in microseconds. If a client had to connect first, or sent the head and the body of a request
separately, the order would be an accident.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx2

from .. import trouble
from ..client.calls import UNIX
from ..client.errors import Unreachable
from ..http import Answer, Endpoint

KEEP = 3600.0  # seconds that an idle connection stays open


class Connections:
    """One connection for each concurrent call; connections are reused. Calls have no timeout."""

    def __init__(self, server: str, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.server = server
        unix = server.removeprefix(UNIX) if server.startswith(UNIX) else None
        headers = {"content-type": "application/json", "user-agent": "cancelmark", **(headers or {}),
                   **({"authorization": f"Bearer {token}"} if token else {})}
        self._endpoint = Endpoint("http://localhost" if unix else server.rstrip("/"), headers, keep=KEEP, proxy=False,
                                  unix=unix)

    async def warm(self, n: int) -> None:
        """Open connections until there are `n`."""
        with self._told():
            await self._endpoint.warm(n)

    async def close(self) -> None:
        self._endpoint.close()

    async def ask(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> httpx2.Response:
        """Make a call, and return the response."""
        answer = await self.begin(method, path, sent)
        try:
            with self._told():
                return httpx2.Response(answer.status, content=b"".join([piece async for piece in answer.pieces()]))
        finally:
            answer.close()

    async def begin(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> Answer:
        """Make a call with a streamed response. The caller must close it."""
        with self._told():
            return await self._endpoint.request(method, path, _encode(sent))

    async def send_and_leave(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> None:
        """Send a call, and close the connection without waiting for the response."""
        with self._told():
            await self._endpoint.send_and_leave(method, path, _encode(sent))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Translate connection errors to the client's `Unreachable`."""
        try:
            yield
        except trouble.Unreachable as error:
            raise Unreachable(f"cannot connect to {self.server}", sent=False) from error
        except trouble.Trouble as error:
            raise Unreachable(f"{self.server} closed the connection", sent=True) from error


def _encode(sent: Mapping[str, object] | None) -> bytes:
    return b"" if sent is None else json.dumps(sent).encode()
