"""`cancelmark acp`: the runtime as an agent of the Agent Client Protocol, for editors."""

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ..discovery import data_directory
from ..files import UsageError
from .serve import model_of
from .width import Help

DESCRIPTION = """\
Be an agent for an editor that speaks the Agent Client Protocol: it starts this command, and speaks to it over standard
input and output. Without --url the sessions are in this process; with it they are at a running server (cancelmark
serve), where several editors share them, and where prompts go on when an editor has gone.
"""

EPILOG = """\
in an editor's settings the agent is, for instance:
  "cancelmark": {"command": "cancelmark", "args": ["acp", "--url", "http://127.0.0.1:4343"]}

The model is OpenAI-compatible if OPENAI_BASE_URL or --base-url says where, and otherwise the built-in one, which
repeats what it hears. Judge this agent by: cancelmark conform acp -- cancelmark acp
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "acp", description=DESCRIPTION,
        epilog=EPILOG, formatter_class=Help)
    parser.add_argument("--url", metavar="URL", help="of the server: http://HOST:PORT or unix:PATH")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the token that the server wants")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where sessions are kept, without --url (default: "
                        "acp in CANCELMARK_DATA_DIR or in the user's)")
    parser.add_argument("--memory", action="store_true", help="keep nothing: all is gone when the editor has gone")
    parser.add_argument("--model", metavar="KIND", help="scripted or openai (default: see below)")
    parser.add_argument("--model-name", metavar="NAME", help="for openai (default: OPENAI_MODEL)")
    parser.add_argument("--base-url", metavar="URL", help="for openai (default: OPENAI_BASE_URL)")
    parser.add_argument("--pace", type=float, default=0.4, metavar="SECONDS",
                        help="between two pieces of the built-in model's answers (%(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    local = ("data_dir", "memory", "model", "model_name", "base_url")
    if arguments.url and (given := [name for name in local if getattr(arguments, name)]):
        raise UsageError(f"--{given[0].replace('_', '-')} is for sessions in this process; the server at --url has "
                         "its own")
    if arguments.model not in (None, "scripted", "openai"):
        raise UsageError(f"--model {arguments.model}: choose scripted or openai")
    if arguments.model is None:
        arguments.model = "openai" if arguments.base_url or os.environ.get("OPENAI_BASE_URL") else "scripted"
    asyncio.run(serve(arguments))
    return 0


async def serve(arguments: argparse.Namespace) -> None:
    """Until the editor closes this agent's standard input."""
    from ..acp.agent import AcpAgent
    from ..acp.stdio import standard_streams
    from ..client import Client, ClientError

    async with _server(arguments) as url:
        try:
            token = arguments.token_file.read_text().strip() if arguments.token_file else None
            client = Client(url, token=token)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file {arguments.token_file}: {getattr(error, 'strerror', error)}") from error
        except ValueError as error:
            raise UsageError(f"--url {error}") from error
        try:
            async with client:
                await client.version()
                await AcpAgent(client, await standard_streams()).serve()
        except ClientError as error:
            raise UsageError(f"{error}; start it with: cancelmark serve") from error


@asynccontextmanager
async def _server(arguments: argparse.Namespace) -> AsyncIterator[str]:
    """The server at --url, or one in this process that nobody else can reach."""
    if arguments.url:
        yield arguments.url
        return
    from ..runtime.workspace import Workspaces
    from ..server.app import application
    from ..server.listening import bind_unix
    from ..server.serving import run_server
    from ..server.site import Limits, Site

    directory = arguments.data_dir or data_directory(None) / "acp"
    model = model_of(arguments)
    limits = Limits()
    with tempfile.TemporaryDirectory(prefix="cancelmark-acp-") as place:
        socket = Path(place, "socket")
        workspaces = Workspaces(model, None if arguments.memory else directory)
        try:
            await workspaces.start()
            app = application(Site(workspaces, limits))
            with bind_unix(socket) as listener:
                async with run_server(app, listener, limits.connections):
                    yield f"unix:{socket}"
                    await workspaces.close(1.0)
        finally:
            await workspaces.close(1.0)
            await model.aclose()


