"""Connections to a server that are open before they are needed: a request goes out at once, and in one write.

Who comes first in a race is decided in microseconds. A client that connects for a call, or sends the head and the body
of a request apart, decides it by accident.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx2

from .. import trouble
from ..client.calls import UNIX
from ..client.errors import Unreachable
from ..http import Answer, Endpoint

KEEP = 3600.0  # seconds that an open connection waits for its call


class Connections:
    """As many connections as calls at the same time; each serves one call after the other. No call has a timeout."""

    def __init__(self, server: str, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.server = server
        unix = server.removeprefix(UNIX) if server.startswith(UNIX) else None
        headers = {"content-type": "application/json", "user-agent": "cancelmark", **(headers or {}),
                   **({"authorization": f"Bearer {token}"} if token else {})}
        self._endpoint = Endpoint("http://localhost" if unix else server.rstrip("/"), headers, keep=KEEP, proxy=False,
                                  unix=unix)

    async def warm(self, n: int) -> None:
        """Sees to it that so many are open."""
        with self._told():
            await self._endpoint.warm(n)

    async def close(self) -> None:
        self._endpoint.close()

    async def ask(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> httpx2.Response:
        """The answer to a call."""
        answer = await self.begin(method, path, sent)
        try:
            with self._told():
                return httpx2.Response(answer.status, content=b"".join([piece async for piece in answer.pieces()]))
        finally:
            answer.close()

    async def begin(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> Answer:
        """Makes a call whose answer is read as it comes, and closed when it is not wanted any more."""
        with self._told():
            return await self._endpoint.request(method, path, _encode(sent))

    async def send_and_leave(self, method: str, path: str, sent: Mapping[str, object] | None = None) -> None:
        """Sends a call, and breaks the connection off without waiting for the answer."""
        with self._told():
            await self._endpoint.send_and_leave(method, path, _encode(sent))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Trouble is told as every client of the server tells it."""
        try:
            yield
        except trouble.Unreachable as error:
            raise Unreachable(f"nobody answers at {self.server}", sent=False) from error
        except trouble.Trouble as error:
            raise Unreachable(f"{self.server} broke the connection", sent=True) from error


def _encode(sent: Mapping[str, object] | None) -> bytes:
    return b"" if sent is None else json.dumps(sent).encode()
