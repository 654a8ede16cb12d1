"""Listening sockets, and the budget of file descriptors.

Every connection and every file of the store needs a file descriptor, and the system limits their number. So the server
plans them at startup: it reserves those that the store needs, and limits connections to the rest. If the system runs
out anyway, the server stops accepting for a second and retries.
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

BACKLOG = 1024  # connections that the system queues until they are accepted
TOGETHER = 16  # connections to accept before yielding to the event loop
PAUSE = 1.0  # seconds without accepting when the system has no descriptors
SEND_BUFFER = 65_536  # bytes that the system buffers for a stalled reader; the default is megabytes

OWN_FILES = 16 + 2 * TOGETHER  # files of the server itself: the index, logs, short-lived connections
WORKSPACE_FILES = 10  # files of a workspace: its store and trace
SPARE_FILES = 512  # files for connections to language models, if the system allows them
FEWEST = 4  # fewest connections with which a server is useful


def plan_files(connections: int, workspaces: int) -> tuple[int, int]:
    """Raises the limit on open files to fit the connections and workspaces. Returns the numbers of connections and
    workspaces that fit: fewer than requested, if the system does not allow enough files."""
    needed = OWN_FILES + connections + workspaces * WORKSPACE_FILES
    files = _raise_file_limit(needed + SPARE_FILES)
    if files >= needed:
        return connections, workspaces
    room = files - OWN_FILES
    fewer = min(workspaces, max(1, room // 2 // WORKSPACE_FILES))
    left = min(connections, room - fewer * WORKSPACE_FILES)
    if left < min(connections, FEWEST):
        raise UsageError(f"the system allows {files} open files, but the server needs at least "
                         f"{OWN_FILES + WORKSPACE_FILES + FEWEST}; raise the limit with ulimit -n")
    log.warning("limiting connections and workspaces: too few open files allowed; raise ulimit -n", extra={
        "files": files, "wanted": needed, "connections": left, "workspaces": fewer})
    return left, fewer


def _raise_file_limit(wanted: int) -> int:
    """Raises the limit on open files to `wanted`, or as far as the system allows. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # macOS allows less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else soft


class Acceptor:
    """Accepts the connections of a listening socket."""

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
                log.error("accepting failed; pausing for a second", extra={"problem": error.strerror})
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
        except OSError:  # the client is already gone
            connection.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on this address. Raises `UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if named
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of each connection
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "no such port"
        raise UsageError(f"cannot listen on {host} port {port}: {why}; choose another with --host and --port"
                         ) from error
    return listener


def bind_unix(path: Path) -> socket.socket:
    """A socket at this path that only its user can connect to. Replaces the socket of a dead server."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"cannot listen on {path}: the file exists and is not a socket; choose another path "
                                 "with --unix")
            if _is_answered(path):
                raise UsageError(f"cannot listen on {path}: another server is using it; choose another path with "
                                 "--unix")
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {path}: {error.strerror or error}; choose another path with --unix"
                         ) from error
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
