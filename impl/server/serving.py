"""Sockets, signals, and the order of a shutdown.

A shutdown goes from the inside out: first the workspaces close, so that every prompt has its end and every stream has
sent it, while the server still answers; then the sockets close. That takes at most about the deadline, twice if turns
have to be abandoned. A second signal ends the process at once, which is a crash that the next start takes up from.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..files import UsageError
from .answers import encode

log = logging.getLogger("cancelmark.server")

DRAIN = 10.0  # seconds
LINGER = 2  # seconds for the last bytes to go out
BACKLOG = 1024
FILES = 512  # that a server opens apart from its connections
SEND_BUFFER = 65_536  # bytes that the system holds for a reader that takes nothing; without this, megabytes


def raise_file_limit(connections: int) -> None:
    """Lets the process open as many files as so many connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < wanted:
            log.warning("the system allows fewer files than there may be connections", extra={
                "files": most, "connections": connections})


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # unnamed, Nagle's delay would stay on
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of each connection
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise UsageError(f"cannot listen on {host} port {port}: {why}; choose another with --host and --port"
                         ) from error
    return listener


def bind_unix(path: Path) -> socket.socket:
    """A socket at this path, which only its user can connect to. One that a dead server has left is replaced."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"cannot listen on {path}: it is there and is no socket; choose another with --unix")
            if _is_answered(path):
                raise UsageError(f"cannot listen on {path}: another server does; choose another with --unix")
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {path}: {error.strerror or error}; choose another with --unix") from error
    except UsageError:
        listener.close()
        raise
    return listener


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(str(path))
        except OSError:
            return False
    return True


class Connection(H11Protocol):
    """One connection. Beyond the limit it is told so and closed; one that asks for nothing is closed after a while; a
    request can cut it off."""

    limit = 0
    refused = False

    def connection_made(self, transport: Any) -> None:
        self.refused = len(self.connections) >= self.limit
        super().connection_made(transport)
        if self.refused:
            transport.write(_FULL)
            transport.write_eof()
            self.loop.call_later(LINGER, transport.abort)  # what it sends is read until then, or it might not listen
        else:
            self.app_state = {**self.app_state, "abort": transport.abort}
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        if not self.refused:
            super().data_received(data)


_BODY = encode({"message": "the server has too many connections; try again later"}).encode()
_FULL = (b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
         b"retry-after: 1\r\nconnection: close\r\n\r\n%b" % (len(_BODY), _BODY))


class Server(uvicorn.Server):
    """Serves an application on sockets that are bound already. Signals are not its affair."""

    def __init__(self, app: ASGIApp, connections: int) -> None:
        super().__init__(uvicorn.Config(
            app, http=type("Limited", (Connection,), {"limit": connections}), ws="none", lifespan="off",
            log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=LINGER, timeout_keep_alive=60))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def run_server(app: ASGIApp, listener: socket.socket, connections: int) -> AsyncIterator[None]:
    """Serves the application while it is entered. Left, it takes no more connections and lets the last bytes go."""
    server = Server(app, connections)
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise UsageError("the server could not start; its log says why")
            await asyncio.sleep(0.001)
        yield
    finally:
        server.should_exit = True
        await serving


@contextmanager
def set_on_signal(wanted: asyncio.Event) -> Iterator[None]:
    """Sets the event at the first SIGTERM or SIGINT. The second ends the process as it would have."""
    loop = asyncio.get_running_loop()

    def shut_down(number: int, frame: FrameType | None = None) -> None:
        log.info("shutting down", extra={"signal": signal.Signals(number).name})
        wanted.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shut_down, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
