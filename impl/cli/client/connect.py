"""The target of a command: its server, workspace and session."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...discovery import NAME, data_directory, find
from ...files import UsageError
from ...wire import PROTOCOL, Attachment, Revoked
from ..text import plain

if TYPE_CHECKING:
    from ...client import Client, Session, Workspace

SESSION = "default"
START = "cancelmark serve"


def add_target(parser: argparse.ArgumentParser, *, session: bool = True) -> None:
    """Adds the options that select the server, the workspace and the session."""
    target = parser.add_argument_group("target")
    target.add_argument("--server", metavar="URL",
                       help="the server: http://HOST:PORT or unix:PATH (default: the one running locally)")
    target.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token for the server")
    target.add_argument("--data-dir", type=Path, metavar="DIR",
                       help="data directory of the local server (default: CANCELMARK_DATA_DIR, or the user's data "
                            "directory)")
    target.add_argument("--workspace", type=Path, default=Path(), metavar="DIR",
                       help="the workspace (default: the current directory)")
    if session:
        target.add_argument("--session", default=SESSION, metavar="NAME",
                           help="title or id of the session (default: %(default)s)")


@dataclass(frozen=True)
class Target:
    """A workspace at a server."""

    client: "Client"
    workspace: "Workspace"

    async def session(self, name: str, *, create: bool = False) -> "Session | None":
        """The session with this id, or else the oldest one with this title.

        If there is none: creates it if `create` is set, returns None for the default session, and otherwise raises
        `UsageError`."""
        if found := await self._session(name):
            return found
        if create:
            await self.client.create_session(self.workspace.id, name)
            return await self._session(name)  # a different one if another client created it first
        if name == SESSION:
            return None
        known = [session.title or session.id for session in await self.client.sessions(self.workspace.id)]
        raise UsageError(f"--session {name}: no such session in {self.workspace.path}; "
                         + (f"choose from {', '.join(known)}" if known else "it has no sessions yet"))

    async def known_session(self, name: str, otherwise: str) -> "Session":
        """The session. If it does not exist, raises `UsageError`; its message ends with `otherwise`, what follows from
        that for the command."""
        if (found := await self.session(name)) is None:
            raise UsageError(f"session {name} does not exist yet: {otherwise}")
        return found

    async def _session(self, name: str) -> "Session | None":
        sessions = await self.client.sessions(self.workspace.id)
        return next((s for s in sessions if s.id == name), None) or next((s for s in sessions if s.title == name), None)


@asynccontextmanager
async def connect_target(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    """Connects to the server and workspace that the arguments select. Raises `UsageError` with a remedy."""
    server, token = _server(arguments)
    from ...client import Client, Refusal, Unreachable  # not loaded if there is no server

    try:
        client = Client(server, token=token)
    except ValueError as error:
        raise UsageError(f"--server {error}") from error
    async with client:
        try:
            version = await client.version()
        except Unreachable as error:
            raise UsageError(f"{error}; {_remedy(arguments)}") from error
        except Refusal as error:
            if error.status == 404:
                raise UsageError(f"{server} is not a Cancelmark server; check the address") from error
            if error.status == 401:
                raise UsageError(f"{error}; give the token's file with --token-file") from error
            raise
        if version.name == "cancelmark" and version.protocol != PROTOCOL:
            raise UsageError(f"{server} runs Cancelmark {version.version} with wire protocol {version.protocol}; this "
                             f"command uses protocol {PROTOCOL}: install the server's version of cancelmark")
        workspace = await client.open_workspace(str(_directory(arguments.workspace)))
        await client.init_agent(workspace.id)
        yield Target(client, workspace)


def run_client(command: Coroutine[Any, Any, int]) -> int:
    """Runs a command and returns its exit status. Raises client errors as `UsageError`, to be reported in one line."""
    try:
        return asyncio.run(command)
    except UsageError:
        raise
    except Exception as error:
        from ...client import ClientError

        if isinstance(error, ClientError):
            raise UsageError(plain(str(error))) from error
        raise


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the prompt and its attachments."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the prompt; - reads it from standard input")
    parser.add_argument("--attach", action="append", default=[], type=Path, metavar="FILE",
                        help="attach a text file; may be repeated")
    busy = parser.add_mutually_exclusive_group()
    busy.add_argument("--now", action="store_const", const="interrupt", default="", dest="if_busy",
                      help="stop the running prompt and start ahead of the queue")
    busy.add_argument("--if-idle", action="store_const", const="reject", default="", dest="if_busy",
                      help="fail unless the session is idle")


def read_attachments(files: list[Path]) -> list[Attachment]:
    """The contents of the given files, which must be text."""
    attachments: list[Attachment] = []
    for file in files:
        try:
            text = file.read_bytes().decode()
        except OSError as error:
            raise UsageError(f"--attach {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"--attach {file}: not UTF-8 at byte {error.start}; attach a text file") from error
        from mimetypes import guess_type

        kind = guess_type(file.name)[0] or ""
        attachments.append(Attachment.of(text, str(file), kind if kind.startswith("text/") else "text/plain"))
    return attachments


def prompt_of(words: list[str], *, attached: bool = False) -> str:
    """The prompt: the given words, or standard input for a lone `-`. It may be empty only if a file is attached."""
    if words == ["-"]:
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: not UTF-8 at byte {error.start}; send text") from error
    else:
        prompt = " ".join(words)
    if not (prompt.strip() or attached):
        raise UsageError("the prompt is empty; give a text, or attach a file with --attach")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is not UTF-8 at character {error.start}; send text") from error
    return prompt


def tell_revoked(told: Revoked) -> str:
    """The effect of canceling a prompt, as the predicate of a sentence."""
    return {"canceled": "is canceled", "asked": "is running and was asked to stop",
            "none": f"had already finished: {told.outcome.replace('_', ' ')}"}[told.effect]


def _server(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """The address of the server, and its token if it requires one."""
    file = arguments.token_file
    server = arguments.server
    if server is None:
        running = find(data_directory(arguments.data_dir))
        if running is None:
            raise UsageError(f"no server is running; start one in another terminal: {START}")
        server = f"unix:{running.unix}" if running.unix else running.url
        file = file or running.token_file
    if file is None:
        return server, None
    try:
        return server, Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'not a text file'}") from error


def _remedy(arguments: argparse.Namespace) -> str:
    if arguments.server is None:
        return (f"{data_directory(arguments.data_dir) / NAME} names this address; wait for the server, or restart it: "
                f"{START}")
    return f"check the address, or start a server there (see {START} --help)"


def _directory(path: Path) -> Path:
    try:
        directory = path.resolve()
        os.fsencode(directory).decode()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"--workspace {path!r}: {error}") from error
    if not directory.is_dir():
        raise UsageError(f"--workspace {path}: no such directory")
    return directory
