"""`cancelmark acp`: the runtime as an Agent Client Protocol agent, for editors."""

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..discovery import data_directory
from ..files import UsageError
from .serve import model_of

DESCRIPTION = """\
Run as an agent for an editor that speaks the Agent Client Protocol. The editor starts this command and talks to it over
standard input and output. Without --url, the sessions live in this process. With --url, they live on a running server
(cancelmark serve): several editors can share them, and prompts keep running after an editor exits.
"""

EPILOG = """\
example of an editor setting:
  "cancelmark": {"command": "cancelmark", "args": ["acp", "--url", "http://127.0.0.1:4343"]}

The default model is openai if OPENAI_BASE_URL or --base-url is set, and otherwise scripted, a built-in model that
repeats its input. To test this agent: cancelmark conform acp -- cancelmark acp
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="address of a running server: http://HOST:PORT or unix:PATH")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token for the server")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where to store sessions, without --url (default: "
                        "acp in CANCELMARK_DATA_DIR or the user's data directory)")
    parser.add_argument("--memory", action="store_true", help="store sessions in memory only: they are lost on exit")
    parser.add_argument("--model", metavar="KIND", help="scripted or openai (default: see below)")
    parser.add_argument("--model-name", metavar="NAME", help="openai: the model (default: OPENAI_MODEL)")
    parser.add_argument("--base-url", metavar="URL", help="openai: the endpoint (default: OPENAI_BASE_URL)")
    parser.add_argument("--pace", type=float, default=0.4, metavar="SECONDS",
                        help="scripted: seconds between two chunks of an answer (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    local = ("data_dir", "memory", "model", "model_name", "base_url")
    if arguments.url and (given := [name for name in local if getattr(arguments, name)]):
        raise UsageError(f"--{given[0].replace('_', '-')} and --url are mutually exclusive: the server at --url has "
                         "its own setting")
    if arguments.model not in (None, "scripted", "openai"):
        raise UsageError(f"--model {arguments.model}: choose scripted or openai")
    if arguments.model is None:
        arguments.model = "openai" if arguments.base_url or os.environ.get("OPENAI_BASE_URL") else "scripted"
    asyncio.run(serve(arguments))
    return 0


async def serve(arguments: argparse.Namespace) -> None:
    """Serves the editor until it closes this agent's standard input."""
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
    """The address of the server at --url, or of a private one in this process."""
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


