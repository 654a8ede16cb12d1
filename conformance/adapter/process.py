"""A server in a process of its own, with a home of its own: nothing of this machine's user is read or changed.

    server = ServerProcess(["my-server", "--port", "{port}", "--model", model_url], ready="/health")
    await server.start()                returns when it answers at server.url, or raises `NotRunning` with what it wrote
    await server.restart()              kills it without warning, and starts it again on what it has stored
    await server.close()                ends it, and removes its home and its directory

`{port}` in the command is a port that was free. The process starts in an empty directory, `server.work`, that stays for
as long as the server is not closed. HOME, TMPDIR and the XDG directories are its own, and of this process's environment
it gets PATH and the language alone; what else it needs is said with `environment`.
"""

import asyncio
import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from weakref import WeakSet

START = 60.0  # seconds for the first answer
STOP = 10.0  # seconds between the request to stop and the kill
POLL = 0.05  # seconds between two looks
SHOWN = 2000  # characters of what it wrote, in an error
LAST = 4  # lines of the same, in a finding
DYING = 1.0  # seconds between a broken connection and the end of the process that has broken it
PASSED_ON = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
XDG = {"XDG_DATA_HOME": ".local/share", "XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache",
       "XDG_STATE_HOME": ".local/state", "XDG_RUNTIME_DIR": ".local/run"}  # where they are in a home that says nothing


_STARTED: "WeakSet[ServerProcess]" = WeakSet()


class NotRunning(Exception):
    """The server does not start; says why, with what it wrote."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def find_exited(seconds: float) -> "list[ServerProcess]":
    """The servers of this process that have ended by themselves, now or within this time."""
    until = monotonic() + seconds
    while not (exited := [server for server in _STARTED if server.exited]) and monotonic() < until and any(
            server.running for server in _STARTED):
        await asyncio.sleep(POLL)
    return exited


class Home:
    """A place for a process: an empty directory to work in, and directories of its own for all that it keeps."""

    def __init__(self, prefix: str) -> None:
        self.place = Path(tempfile.mkdtemp(prefix=prefix))
        self.work, self.home, self.log = self.place / "work", self.place / "home", self.place / "log"
        directories = {"HOME": self.home, "TMPDIR": self.place / "tmp",
                       **{name: self.home / path for name, path in XDG.items()}}
        for directory in (self.work, *directories.values()):
            directory.mkdir(mode=0o700, parents=True)
        self.environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self.environment |= {name: str(path) for name, path in directories.items()}
        atexit.register(self.remove)

    @property
    def output(self) -> str:
        """All that was written to the log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def remove(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self.place, ignore_errors=True)
        atexit.unregister(self.remove)


class ServerProcess(Home):
    """A server that is started, killed and started again. What it writes, to standard output and standard error, is
    kept in `output`."""

    def __init__(
        self, command: Sequence[str | Path], *, ready: str = "", environment: Mapping[str, str] | None = None,
        start: float = START,
    ) -> None:
        """`ready` is a path that it answers with success when it is ready; without one, it is ready when it listens."""
        super().__init__("cancelmark-server-")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment |= environment or {}
        self.command = [str(word).replace("{port}", str(self.port)) for word in command]
        self._ready, self._start = ready, start
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def exited(self) -> str:
        """How it has ended by itself, and what it wrote last. Empty if it has not, or was asked to."""
        code = self._running.poll() if self._running else None
        if code is None:
            return ""
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        last = " / ".join(self.output.splitlines()[-LAST:]) or "nothing"
        return f"{self.command[0]} ended with {how}; it wrote last: {last}"

    async def start(self) -> None:
        """Returns when it answers."""
        _STARTED.add(self)
        with self.log.open("ab") as log:
            try:
                self._running = subprocess.Popen(
                    self.command, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True)
            except OSError as error:
                raise NotRunning(f"cannot start {self.command[0]}: {error.strerror}") from error
        until = monotonic() + self._start
        while not await self._answers():
            if not self.running or monotonic() > until:
                how = f"did not answer within {self._start:g} s" if self.running else "ended before it answered"
                self.kill()
                raise NotRunning(f"{self.command[0]} {how}; it wrote:\n{self.output[-SHOWN:].strip()}")
            await asyncio.sleep(POLL)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(STOP):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    if not self._ready:
                        return True
                    writer.write(f"GET {self._ready} HTTP/1.0\r\nhost: 127.0.0.1:{self.port}\r\n\r\n".encode())
                    return (await reader.readline()).split(b" ")[1:2] == [b"200"]
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def kill(self) -> None:
        """Ends it without warning, and whatever it has started."""
        if self._running:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    async def stop(self) -> None:
        """Asks it to end; kills it if it does not, and whatever it has left behind."""
        if self._running:
            self._running.terminate()
            until = monotonic() + STOP
            while self.running and monotonic() < until:
                await asyncio.sleep(POLL)
            self.kill()

    async def restart(self) -> None:
        """Kills it without warning, and starts it again where it was."""
        self.kill()
        await self.start()

    async def close(self) -> None:
        """Ends it, and leaves nothing behind."""
        await self.stop()
        self.remove()

    def remove(self) -> None:
        self.kill()
        super().remove()
