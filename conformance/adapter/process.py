"""A server process with its own home directory, isolated from the user's files.

    server = ServerProcess(["my-server", "--port", "{port}", "--model", model_url], ready="/health")
    await server.start()                returns when it responds at server.url, or raises `NotRunning` with its output
    await server.restart()              kills it, and starts it again on the same storage
    await server.close()                stops it, and removes its directories

`{port}` in the command is replaced by a free port. The process starts in an empty directory, `server.work`, which
exists until the server is closed. HOME, TMPDIR and the XDG directories are private. From this process's environment it
inherits only PATH and the locale; pass other variables as `environment`.
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

START = 60.0  # seconds for the first response
STOP = 10.0  # seconds between SIGTERM and SIGKILL
POLL = 0.05  # seconds
SHOWN = 2000  # characters of its output in an error
LAST = 4  # lines of its output in a finding
DYING = 1.0  # seconds between a broken connection and the exit of the process that broke it
PASSED_ON = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
XDG = {"XDG_DATA_HOME": ".local/share", "XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache",
       "XDG_STATE_HOME": ".local/state", "XDG_RUNTIME_DIR": ".local/run"}  # relative to the home directory


_STARTED: "WeakSet[ServerProcess]" = WeakSet()


class NotRunning(Exception):
    """The server did not start; the message has the reason and its output."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def find_exited(seconds: float) -> "list[ServerProcess]":
    """The servers started by this process that have exited by themselves, or do so within this time."""
    until = monotonic() + seconds
    while not (exited := [server for server in _STARTED if server.exited]) and monotonic() < until and any(
            server.running for server in _STARTED):
        await asyncio.sleep(POLL)
    return exited


class Home:
    """Private directories for a process: an empty working directory, and a home for the files that it stores."""

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
        """Everything that the process wrote to its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def remove(self) -> None:
        """Remove the directories."""
        shutil.rmtree(self.place, ignore_errors=True)
        atexit.unregister(self.remove)


class ServerProcess(Home):
    """A server process that can be restarted. `output` collects its standard output and standard error."""

    def __init__(
        self, command: Sequence[str | Path], *, ready: str = "", environment: Mapping[str, str] | None = None,
        start: float = START,
    ) -> None:
        """`ready` is a path that responds with 200 when the server is ready; without it, a listening port is enough."""
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
        """How it exited by itself, and its last output. Empty if it is running or was stopped."""
        code = self._running.poll() if self._running else None
        if code is None:
            return ""
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        last = " / ".join(self.output.splitlines()[-LAST:]) or "nothing"
        return f"{self.command[0]} exited with {how}; its last output: {last}"

    async def start(self) -> None:
        """Start the process, and return when it responds."""
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
                how = f"did not respond within {self._start:g} s" if self.running else "exited before it responded"
                self.kill()
                raise NotRunning(f"{self.command[0]} {how}; its output:\n{self.output[-SHOWN:].strip()}")
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
        """Kill the process and its children."""
        if self._running:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    async def stop(self) -> None:
        """Terminate the process; kill it if it does not exit in time, and its remaining children."""
        if self._running:
            self._running.terminate()
            until = monotonic() + STOP
            while self.running and monotonic() < until:
                await asyncio.sleep(POLL)
            self.kill()

    async def restart(self) -> None:
        """Kill the process, and start it again in the same directories."""
        self.kill()
        await self.start()

    async def close(self) -> None:
        """Stop the process, and remove its directories."""
        await self.stop()
        self.remove()

    def remove(self) -> None:
        self.kill()
        super().remove()
