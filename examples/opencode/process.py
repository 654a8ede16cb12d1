"""opencode from the npm registry, installed and run so that nothing of this machine's user is read or changed."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import httpx2 as httpx

from cancelmark.conformance.fake_llm import SIDE, TURN

START = 120.0  # seconds
STOP = 10.0  # seconds


class NotRunning(Exception):
    """opencode cannot be installed or started; says why, and what to do."""


def install(directory: Path, version: str) -> Path:
    """The program, installed into this directory if it is not there already."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotRunning("npm is needed and is not on the PATH; install Node.js with npm (Debian: apt install npm)")
    done = subprocess.run(
        [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", "--loglevel=error",
         f"opencode-ai@{version}"], capture_output=True, text=True, check=False)
    program = directory / "node_modules" / ".bin" / "opencode"
    if done.returncode or not program.exists():
        raise NotRunning(f"npm could not install opencode-ai@{version}:\n{done.stderr.strip()}")
    return program


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """`opencode serve` with a home of its own, whose language model is at `model_url`. It runs while it is entered."""

    def __init__(self, program: Path, model_url: str) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{free_port()}"
        self.place = Path(tempfile.mkdtemp(prefix="opencode-"))
        self.home, self.work = self.place / "home", self.place / "work"
        self.home.mkdir()
        self.work.mkdir()
        (self.work / "opencode.json").write_text(json.dumps(configuration(model_url)))
        self.running: subprocess.Popen[bytes] | None = None

    @property
    def version(self) -> str:
        return self._run("--version").strip()

    @property
    def log(self) -> Path:
        return self.place / "log"

    async def start(self) -> None:
        """Comes back when it answers."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [self.program, "serve", "--hostname", "127.0.0.1", "--port", self.url.rpartition(":")[2]],
                cwd=self.work, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        until = monotonic() + START
        async with httpx.AsyncClient(base_url=self.url, timeout=5, verify=False) as http:
            while True:
                try:
                    (await http.get("/session/status")).raise_for_status()
                    return
                except httpx.HTTPError as error:
                    if self.running.poll() is not None or monotonic() > until:
                        self.kill()
                        raise NotRunning(f"opencode did not start: {error!r}; it wrote:\n{self._wrote()}") from error
                    await asyncio.sleep(0.1)

    async def description(self) -> dict[str, str]:
        """What its OpenAPI description says, by operation, as in `POST /session`."""
        async with httpx.AsyncClient(base_url=self.url, timeout=START, verify=False) as http:
            paths = (await http.get("/doc")).json()["paths"]
        return {f"{method.upper()} {path}": operation.get("description", "")
                for path, operations in paths.items() for method, operation in operations.items()}

    def kill(self) -> None:
        """Ends it without warning, and whatever it has started."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait(STOP)
            self.running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        homes = {name: str(self.home / name.lower()) for name in (
            "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
        offline = dict.fromkeys((
            "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS"), "1")
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), **homes, **offline}

    def _run(self, *arguments: str) -> str:
        return subprocess.run([self.program, *arguments], cwd=self.work, env=self._environment(), capture_output=True,
                              text=True, check=True, timeout=START).stdout

    def _wrote(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def configuration(model_url: str) -> dict[str, object]:
    """`opencode.json`: the fake model for turns, and its other model for titles, which are no turns."""
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "fake", "options": {"baseURL": model_url, "apiKey": "none"},
        "models": {TURN: {"name": TURN}, SIDE: {"name": SIDE}},
    }
    return {"model": f"fake/{TURN}", "small_model": f"fake/{SIDE}", "provider": {"fake": provider},
            "share": "disabled", "autoupdate": False}
