"""The process of an ACP agent, with a private home directory and without a network.

Many agents find their language model by the environment variables that are set for them (`USUAL`). For others use these
placeholders in the agent's command, environment and files: `{model_url}` is the base URL of the kit's language model,
which ends in /v1; `{model_root}` is the same without /v1; `{home}` is the agent's home and `{work}` its working
directory.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cancelmark.conformance.adapter.process import SHOWN, Home, NotRunning

from ..acp.peer import LONGEST, UNKNOWN, AnsweredError, Peer, RpcCall

JAIL = Path(__file__).with_name("jail.py")
CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
START = 90.0  # seconds for the handshake: agents start slowly on a busy machine
WARM = 90.0  # seconds for the first answer
STOP = 3.0  # seconds between closing its input and killing it
HELLO = "Say hello."
USUAL = {"OPENAI_BASE_URL": "{model_url}", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "turn",
         "ANTHROPIC_BASE_URL": "{model_root}", "ANTHROPIC_API_KEY": "none"}
"""The environment variables by which many agents find their language model."""


@dataclass(frozen=True)
class AgentCommand:
    """How to start an agent."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """File contents by path, relative to its home."""
    authenticate: str = ""
    """The authentication method to log in with, if the agent requires a login."""
    alone: bool = True
    """True: without a network. False: with this machine's network and dead proxy settings."""


class Agent:
    """One agent process, used for many histories until it exits or hangs."""

    def __init__(self, how: AgentCommand, model_url: str, serve: Callable[[socket.socket], Any]) -> None:
        """`serve` gets a listener in the agent's network namespace, on which the language model must serve."""
        self.how, self.model_url, self._serve = how, model_url, serve
        self.home = Home("cancelmark-agent-")
        self.sessions: dict[str, Callable[[dict[str, Any]], None]] = {}
        """By session, the callback for its updates."""
        self.network = ""
        """`alone`, or why the agent has a network."""
        self.about: dict[str, Any] = {}
        """Its response to `initialize`."""
        self.peer: Peer
        self._process: asyncio.subprocess.Process | None = None
        self.gone: asyncio.Future[None]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self.gone.done()

    async def start(self) -> None:
        """Start the process, and perform the handshake. Raises `NotRunning` with the agent's output."""
        environment = self.home.environment | {
            name: self._fill(value) for name, value in {**USUAL, **self.how.environment}.items()}
        for name, text in self.how.files.items():
            file = self.home.home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._fill(text))
        command = [self._fill(word) for word in self.how.command]
        mine, its = socket.socketpair()
        port = int(self.model_url.rsplit(":", 1)[1].split("/")[0]) if self.how.alone else -1
        with mine, its, self.home.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(JAIL), str(its.fileno()), str(port), *command, cwd=self.home.work,
                env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                pass_fds=[its.fileno()], start_new_session=True, limit=LONGEST)
            its.close()
            told, descriptors, *_ = await asyncio.to_thread(socket.recv_fds, mine, 1000, 1)
        self.network = told.decode()
        for descriptor in descriptors:
            await self._serve(socket.socket(fileno=descriptor))
        assert self._process.stdin
        assert self._process.stdout
        self.peer = Peer(self._process.stdout, self._process.stdin)
        self.gone = asyncio.ensure_future(self.peer.listen(self._hear))
        self.sessions.clear()
        await self._shake_hands()

    async def _shake_hands(self) -> None:
        client = {"name": "cancelmark", "title": "Cancelmark", "version": version("cancelmark")}
        self.about = await self.call("initialize", {
            "protocolVersion": 1, "clientCapabilities": CAPABILITIES, "clientInfo": client})
        if self.how.authenticate:
            await self.call("authenticate", {"methodId": self.how.authenticate})

    async def call(self, method: str, params: dict[str, Any], seconds: float = START) -> Any:
        """The result of a request. Raises `NotRunning` if the agent responds with an error, or not at all."""
        asking = asyncio.ensure_future(self.peer.call(method, params))
        try:
            await asyncio.wait([asking, self.gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        except AnsweredError as error:
            raise NotRunning(f"{self.how.command[0]} responded to {method} with an error: {error}; {self._advise()}"
                             ) from error
        finally:
            asking.cancel()
        how = (f"exited before it responded to {method}" if self.gone.done() else
               f"did not respond to {method} within {seconds:g} s")
        raise NotRunning(f"{self.how.command[0]} {how}; {self._advise()}")

    def _advise(self) -> str:
        methods = [method.get("id", "?") for method in self.about.get("authMethods") or ()]
        login = f"if it requires a login, choose a method with --auth: {', '.join(methods)}; " if methods else ""
        return f"{login}its output:\n{self.home.output[-SHOWN:].strip() or '(empty)'}"

    async def open_session(self) -> str:
        made = await self.call("session/new", {"cwd": str(self.home.work), "mcpServers": []})
        return str(made["sessionId"])

    async def warm_up(self, session: str) -> None:
        """Run one prompt, so that slow initialization is not measured later."""
        await self.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": HELLO}]}, WARM)

    def _hear(self, call: RpcCall) -> None:
        """Handle the agent's updates, and refuse all its requests and permissions."""
        if call.method == "session/update":
            if told := self.sessions.get(str(call.params.get("sessionId"))):
                told(call.params.get("update") or {})
        elif call.method == "session/request_permission":
            self.peer.reply(call, {"outcome": _refuse_permission(call.params.get("options") or ())})
        else:
            self.peer.refuse(call, UNKNOWN, f"this client does not support {call.method}")

    def _fill(self, text: str) -> str:
        words = {"model_url": self.model_url, "model_root": self.model_url.removesuffix("/v1"),
                 "home": str(self.home.home), "work": str(self.home.work)}
        for name, value in words.items():
            text = text.replace("{" + name + "}", value)
        return text

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Close the agent's input, which asks it to exit; kill it if it does not."""
        if self._process:
            if self._process.stdin:
                self._process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP):
                    await self._process.wait()
            self.kill()
            await self._process.wait()
            await asyncio.wait([self.gone])
            self._process = None

    async def close(self) -> None:
        """Stop the process, and remove its directories."""
        await self.stop()
        self.home.remove()


def _refuse_permission(options: Any) -> dict[str, Any]:
    refusals = [option["optionId"] for option in options if option.get("kind") == "reject_once"]
    return {"outcome": "selected", "optionId": refusals[0]} if refusals else {"outcome": "cancelled"}
