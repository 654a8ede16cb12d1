"""Access control and body limits: every request passes these checks first.

A web page from another origin must not be able to drive this server. So the Host header must be one of the server's
names; otherwise an attacker could point a DNS name at this machine, and the attacker's page would be same-origin (DNS
rebinding). And a request that a browser sends for another page, as Origin or Sec-Fetch-Site shows, is refused. If
remote clients can connect, a token is required as well.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from time import perf_counter
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answers import Response, problem

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PATIENCE = 30.0  # seconds within which a body must arrive
DRAINED = 16  # an oversized body is read up to this multiple of the limit, so that its sender sees the response


class TooLarge(Exception):
    """A body is larger than allowed."""


class TooSlow(Exception):
    """A body did not arrive in time."""


class Guard:
    """Passes a request to the application, or refuses it. Calls `note_answer` after each response."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, token: str | None,
                 public: Collection[str], note_answer: Callable[[Scope, int, float], None]) -> None:
        self._app, self._hosts, self._public, self._note_answer = app, hosts and frozenset(hosts), public, note_answer
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = self._refusal(scope)
            await (refused or self._app)(scope, receive, send_noted)
        finally:
            self._note_answer(scope, status, perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        if not _is_text(scope["raw_path"]) or not _is_text(scope["query_string"]):
            return problem(404, "not found: the path or the query is not UTF-8")
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in (b"host", b"origin", b"authorization"):
                return problem(400, f"duplicate header {name.decode()}; send it once")
            headers[name] = value
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _host_name(host) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            return problem(403, f"unknown Host {host[:80]!r}; use one of {names} (see cancelmark serve --allow-host)")
        page = scope["path"] in self._public
        origin = headers.get(b"origin")
        if origin is not None and not _is_own_origin(origin.decode("latin-1").lower(), host):
            return problem(403, "cross-origin request refused; only this server's own page may call")
        site = headers.get(b"sec-fetch-site", b"none")
        if not page and site not in (b"none", b"same-origin"):
            return problem(403, "cross-site request refused; only this server's own page may call")
        if self._token is not None and not page and not self._is_authorized(headers.get(b"authorization", b"")):
            return problem(401, "a token is required; send it as Authorization: Bearer TOKEN",
                           {"www-authenticate": "Bearer"})
        return None

    def _is_authorized(self, header: bytes) -> bool:
        assert self._token is not None
        scheme, _, token = header.partition(b" ")
        return hmac.compare_digest(token.strip(), self._token) and scheme.lower() == b"bearer"


def _is_text(quoted: bytes) -> bool:
    """Whether it is UTF-8. Decoding with replacement characters instead could turn it into another valid name."""
    try:
        unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        return False
    return True


def _host_name(host: str) -> str:
    """The host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and (port.isdigit() or not port) else host


def _is_own_origin(origin: str, host: str) -> bool:
    return bool(host) and origin in (f"http://{host}", f"https://{host}")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `TooLarge` or `TooSlow`."""
    said = request.headers.get("content-length", "0")
    async with _in_time():
        return await _read_body(request, limit, int(said) if said.isascii() and said.isdigit() else 0)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {PATIENCE:g} seconds; send it again") from None


async def _read_body(request: Request, limit: int, said: int) -> bytes:
    data, size = bytearray(), 0
    if said <= DRAINED * limit:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                data += chunk
            elif size > DRAINED * limit:
                break
    if max(size, said) > limit:
        raise TooLarge(f"the body is larger than {limit:,} bytes; send a smaller one")
    return bytes(data)
