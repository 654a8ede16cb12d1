"""Where a command goes: the server, the workspace and the session that are meant."""

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
from ...wire import PROTOCOL, Attachment
from ..text import plain

if TYPE_CHECKING:
    from ...client import Client, Session, Workspace

SESSION = "default"
START = "cancelmark serve"


def add_place(parser: argparse.ArgumentParser, *, session: bool = True) -> None:
    """The options by which a command is told where to go."""
    place = parser.add_argument_group("where")
    place.add_argument("--server", metavar="URL", help="http://HOST:PORT or unix:PATH (default: the one that runs)")
    place.add_argument("--token-file", type=Path, metavar="FILE", help="the token that the server wants")
    place.add_argument("--data-dir", type=Path, metavar="DIR",
                       help="of the server to look for (default: CANCELMARK_DATA_DIR, or the user's)")
    place.add_argument("--workspace", type=Path, default=Path(), metavar="DIR", help="(default: this directory)")
    if session:
        place.add_argument("--session", default=SESSION, metavar="NAME", help="its title or id (default: %(default)s)")


@dataclass(frozen=True)
class Place:
    """A workspace, as a client sees it."""

    client: "Client"
    workspace: "Workspace"

    async def session(self, name: str, *, create: bool = False) -> "Session | None":
        """The session with this id or, the oldest first, this title. If there is none it is created, if that is wanted;
        only the usual one may be missing."""
        if found := await self._session(name):
            return found
        if create:
            await self.client.create_session(self.workspace.id, name)
            return await self._session(name)  # which is another, if somebody else was faster
        if name == SESSION:
            return None
        known = [session.title or session.id for session in await self.client.sessions(self.workspace.id)]
        raise UsageError(f"--session {name}: there is no such session in {self.workspace.path}; "
                         + (f"it has {', '.join(known)}" if known else "it has none yet"))

    async def _session(self, name: str) -> "Session | None":
        sessions = await self.client.sessions(self.workspace.id)
        return next((s for s in sessions if s.id == name), None) or next((s for s in sessions if s.title == name), None)


@asynccontextmanager
async def connect_place(arguments: argparse.Namespace) -> AsyncIterator[Place]:
    """The workspace that is meant, at the server that is meant, or a `UsageError` that says what to do."""
    server, token = _server(arguments)
    from ...client import Client, Refusal, Unreachable  # for those who have somewhere to go

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
                raise UsageError(f"{server} answers, but not as Cancelmark: something else runs there") from error
            if error.status == 401:
                raise UsageError(f"{error}; give its file with --token-file") from error
            raise
        if version.name == "cancelmark" and version.protocol != PROTOCOL:
            raise UsageError(f"{server} is Cancelmark {version.version} and speaks protocol {version.protocol}; this "
                             f"command speaks protocol {PROTOCOL}: install the same version as the server's")
        workspace = await client.open_workspace(str(_directory(arguments.workspace)))
        await client.init_agent(workspace.id)
        yield Place(client, workspace)


def carry_out(command: Coroutine[Any, Any, int]) -> int:
    """Runs a command to its end. What goes wrong between client and server is told in one line."""
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
    """What is said, and what is attached."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="what to say; - reads it from standard input")
    parser.add_argument("--attach", action="append", default=[], type=Path, metavar="FILE",
                        help="attach a text file; may be given more than once")
    busy = parser.add_mutually_exclusive_group()
    busy.add_argument("--now", action="store_const", const="interrupt", default="", dest="if_busy",
                      help="stop what runs, and go ahead of what waits")
    busy.add_argument("--if-idle", action="store_const", const="reject", default="", dest="if_busy",
                      help="only if the session has nothing else to do")


def read_attachments(files: list[Path]) -> list[Attachment]:
    """The files that were given, each of which is text."""
    attachments: list[Attachment] = []
    for file in files:
        try:
            text = file.read_bytes().decode()
        except OSError as error:
            raise UsageError(f"--attach {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"--attach {file}: not UTF-8 at byte {error.start}; attach a text") from error
        from mimetypes import guess_type

        kind = guess_type(file.name)[0] or ""
        attachments.append(Attachment.of(text, str(file), kind if kind.startswith("text/") else "text/plain"))
    return attachments


def prompt_of(words: list[str], *, attached: bool = False) -> str:
    """The prompt that was given: the words, or what comes from standard input for a lone `-`. It may be empty if
    something is attached."""
    if words == ["-"]:
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: not UTF-8 at byte {error.start}; send text") from error
    else:
        prompt = " ".join(words)
    if not (prompt.strip() or attached):
        raise UsageError("the prompt is empty; say something, or --attach a file")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is not UTF-8 at character {error.start}; send text") from error
    return prompt


def _server(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """The address of the server, and its token if it wants one."""
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
        raise UsageError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'it is not text'}") from error


def _remedy(arguments: argparse.Namespace) -> str:
    if arguments.server is None:
        return (f"{data_directory(arguments.data_dir) / NAME} says that a server is there; wait a little, or start it "
                f"again: {START}")
    return f"check the address, or start a server there: {START} --help"


def _directory(path: Path) -> Path:
    try:
        directory = path.resolve()
        os.fsencode(directory).decode()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"--workspace {path!r}: {error}") from error
    if not directory.is_dir():
        raise UsageError(f"--workspace {path}: there is no such directory")
    return directory
