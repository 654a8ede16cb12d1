"""Listening: where clients connect, and how many the system has descriptors for.

Every connection and every file of the store takes a descriptor, and the process may have so many and no more. So the
server counts them at the start, keeps those that the store needs, and takes no more connections than the rest allows.
If the system runs out all the same, the server stops accepting for a second and tries again.
"""

import asyncio
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..files import UsageError

log = logging.getLogger("cancelmark.server")

BACKLOG = 1024  # connections that the system holds until they are accepted
TOGETHER = 16  # connections that are accepted before others have their turn
PAUSE = 1.0  # seconds without accepting when the system has no descriptors
SEND_BUFFER = 65_536  # bytes that the system holds for a reader that takes nothing; without this, megabytes

OWN_FILES = 16 + 2 * TOGETHER  # that a server needs for itself: the index, logs, connections that come and go
WORKSPACE_FILES = 10  # that a workspace needs for its store and trace
SPARE_FILES = 512  # for connections to language models, if the system allows so many
FEWEST = 4  # connections with which a server is of use


def plan_files(connections: int, workspaces: int) -> tuple[int, int]:
    """Lets the process open as many files as so many connections and workspaces need. Returns how many connections and
    workspaces there can be: fewer, if the system does not allow so many files."""
    needed = OWN_FILES + connections + workspaces * WORKSPACE_FILES
    files = _raise_file_limit(needed + SPARE_FILES)
    if files >= needed:
        return connections, workspaces
    room = files - OWN_FILES
    fewer = min(workspaces, max(1, room // 2 // WORKSPACE_FILES))
    left = min(connections, room - fewer * WORKSPACE_FILES)
    if left < min(connections, FEWEST):
        raise UsageError(f"the system allows {files} open files, and a server needs at least "
                         f"{OWN_FILES + WORKSPACE_FILES + FEWEST}; raise the limit with ulimit -n")
    log.warning("the system allows few open files, so there can be fewer connections and workspaces", extra={
        "files": files, "wanted": needed, "connections": left, "workspaces": fewer})
    return left, fewer


def _raise_file_limit(wanted: int) -> int:
    """How many files the process may open now: as many as wanted, or as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else soft


class Acceptor:
    """Accepts the connections that come to a socket."""

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._listener, self._make_protocol = listener, make_protocol
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._pause:
            self._pause.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(TOGETHER):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted for a second", extra={"problem": error.strerror})
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE, self._resume)
                return
            arriving = self._loop.create_task(self._welcome(connection))
            self._arriving.add(arriving)
            arriving.add_done_callback(self._arriving.discard)

    async def _welcome(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # it has gone already
            connection.close()


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
