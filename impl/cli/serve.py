"""`cancelmark serve`: the server, for local clients or, with a token, for remote ones."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..discovery import Running, announce, data_directory, find, withdraw
from ..files import UsageError, make_directory

if TYPE_CHECKING:
    import socket

    from ..models import Model
    from ..runtime.retention import Retention
    from ..runtime.turn import ToolRunner
    from ..runtime.workspace import Workspaces

PORT = 4343
HOW = "a count such as 10000, or an age such as 30d (s, m, h, d, w); default: keep all"
LEVELS = ("debug", "info", "warning", "error")

DESCRIPTION = """\
Serve prompts to any number of clients until Ctrl-C or SIGTERM. By default, the server listens on this machine only,
uses a built-in model that repeats its input, and stores everything in the user's data directory. The other commands
find this server automatically; for a browser, open the address that it prints.
"""

EPILOG = """\
prompts that the built-in model treats specially:
  slow: TEXT        take ten times as long
  fast: TEXT        answer immediately
  fail: TEXT        fail halfway through the answer
  stubborn: TEXT    ignore requests to stop
  ask: TEXT         ask for permission before the answer (cancelmark asks, cancelmark answer)

examples:
  cancelmark serve
  cancelmark serve --unix /tmp/cancelmark.sock --data-dir /tmp/try
  OPENAI_API_KEY=… cancelmark serve --model openai --model-name gpt-4o-mini
  cancelmark serve --host 0.0.0.0 --token-file token      accept remote clients that have the token
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("listening")
    where.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                       help="the address to listen on (default: %(default)s)")
    where.add_argument("--port", type=int, metavar="N",
                       help=f"the port; 0 for any free port (default: {PORT}, or a free port if it is in use)")
    where.add_argument("--unix", type=Path, metavar="FILE", help="listen on this Unix socket instead of a port")
    where.add_argument("--token-file", type=Path, metavar="FILE",
                       help="require clients to send the bearer token in this file; the server creates the file if it "
                            "does not exist. Required if remote clients can connect")
    where.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                       help="also accept this host name in the Host header; may be repeated")
    what = parser.add_argument_group("model")
    what.add_argument("--model", default="scripted", metavar="KIND", help="scripted (default) or openai")
    what.add_argument("--model-name", metavar="NAME", help="openai: the model (default: OPENAI_MODEL)")
    what.add_argument("--base-url", metavar="URL", help="openai: any compatible endpoint (default: OPENAI_BASE_URL); "
                                                        "the key comes from OPENAI_API_KEY")
    what.add_argument("--pace", type=float, default=0.4, metavar="SECONDS",
                      help="scripted: seconds between two chunks of an answer (default: %(default)s)")
    keep = parser.add_argument_group("storage")
    keep.add_argument("--data-dir", type=Path, metavar="DIR",
                      help="store data here (default: CANCELMARK_DATA_DIR, or the user's data directory)")
    keep.add_argument("--database", metavar="URL",
                      help="store data in a PostgreSQL database, which several servers can share: "
                           "postgresql://USER@HOST/NAME (default: CANCELMARK_DATABASE)")
    keep.add_argument("--memory", action="store_true", help="store data in memory only: it is lost on exit")
    keep.add_argument("--trace", type=Path, metavar="DIR",
                      help="write a trace of each workspace to this directory, for `cancelmark trace check`: one line "
                           "per action, without texts; traces grow until you delete them")
    keep.add_argument("--keep-events", metavar="HOW", help=f"events to keep in each workspace's log: {HOW}")
    keep.add_argument("--keep-prompts", metavar="HOW",
                      help=f"finished prompts to keep in each workspace: {HOW}; their messages and run ids always stay")
    keep.add_argument("--grace", type=float, default=300.0, metavar="SECONDS",
                      help="close a workspace after this long without attached clients (default: %(default)g)")
    keep.add_argument("--drain", type=float, default=10.0, metavar="SECONDS",
                      help="on SIGTERM or Ctrl-C, abandon turns that are still running after this long (default: "
                           "%(default)g)")
    nodes = parser.add_argument_group("cluster (with --database)")
    nodes.add_argument("--lease", type=float, default=10.0, metavar="SECONDS",
                       help="other servers take over the sessions of a server that misses its heartbeats for this "
                            "long (default: %(default)g)")
    nodes.add_argument("--poll", type=float, default=1.0, metavar="SECONDS",
                       help="poll interval for changes by other servers, if notifications fail (default: %(default)g)")
    nodes.add_argument("--wake-ups", metavar="URL",
                       help="where to LISTEN for notifications: the address of the database itself if --database "
                            "points to a connection pooler; the word none disables LISTEN, and the server only "
                             "polls (default: --database)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-body", type=int, default=1_048_576, metavar="BYTES",
                        help="size of a request body (default: %(default)s)")
    limits.add_argument("--max-prompt", type=int, default=200_000, metavar="N",
                        help="characters of a prompt with its attachments (default: %(default)s)")
    limits.add_argument("--max-queue", type=int, default=1000, metavar="N",
                        help="unfinished prompts per session (default: %(default)s)")
    limits.add_argument("--max-connections", type=int, default=2048, metavar="N",
                        help="concurrent connections (default: %(default)s)")
    limits.add_argument("--max-workspaces", type=int, default=64, metavar="N",
                        help="open workspaces (default: %(default)s)")
    parser.add_argument("--log-level", default="info", metavar="LEVEL", help=f"{', '.join(LEVELS)} (default: info)")


def run(arguments: argparse.Namespace) -> int:
    from ..server import logs

    arguments.database = arguments.database or os.environ.get("CANCELMARK_DATABASE")
    check(arguments)
    logs.start(arguments.log_level)
    asyncio.run(serve(arguments))
    return 0


def check(arguments: argparse.Namespace) -> None:
    for name in ("max_body", "max_prompt", "max_queue", "max_connections", "max_workspaces"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least 1")
    for name in ("grace", "drain", "pace"):
        if not 0 <= getattr(arguments, name) < 1e9:
            raise UsageError(f"--{name} {getattr(arguments, name)}: must be at least 0 seconds")
    for name in ("lease", "poll"):
        if not 0.05 <= getattr(arguments, name) < 1e6:
            raise UsageError(f"--{name} {getattr(arguments, name)}: must be at least 0.05 seconds")
    if arguments.database and not arguments.database.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"--database {arguments.database!r:.40}: invalid URL; expected postgresql://USER@HOST/NAME")
    if arguments.database and arguments.memory:
        raise UsageError("--database and --memory are mutually exclusive")
    if arguments.database and arguments.trace:
        raise UsageError("--database and --trace are mutually exclusive: the database journals every step")
    retention_of(arguments)
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port {arguments.port}: must be from 0 to 65535")
    if arguments.log_level not in LEVELS:
        raise UsageError(f"--log-level {arguments.log_level}: choose one of {', '.join(LEVELS)}")
    if arguments.model not in ("scripted", "openai"):
        raise UsageError(f"--model {arguments.model}: choose scripted or openai")
    if arguments.unix and arguments.port is not None:
        raise UsageError("--unix and --port are mutually exclusive")
    if not arguments.unix and not is_loopback(arguments.host) and not arguments.token_file:
        raise UsageError(f"--host {arguments.host}: remote clients can connect to this address; add --token-file FILE")


def retention_of(arguments: argparse.Namespace) -> "Retention":
    from ..runtime.retention import Keep, Retention, parse_keep

    def read(name: str, text: str | None) -> Keep | None:
        try:
            return None if text is None else parse_keep(text)
        except ValueError as error:
            raise UsageError(f"{name} {text!r:.80}: {error}") from None

    return Retention(read("--keep-events", arguments.keep_events), read("--keep-prompts", arguments.keep_prompts))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_in(file: Path) -> str:
    """The token in the file. Creates the file with a new token if it does not exist."""
    import secrets

    try:
        with suppress(FileExistsError), open(file, "x", opener=partial(os.open, mode=0o600)) as new:
            new.write(secrets.token_urlsafe(32) + "\n")
        token = file.read_text().strip()
        others = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {getattr(error, 'strerror', error)}") from error
    if others:
        raise UsageError(f"--token-file {file}: other users can read or change it; run chmod 600 {file}, and replace "
                         "the token if it may have leaked")
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file {file}: a token needs at least 16 ASCII characters and no spaces; delete the "
                         "file, and the server creates one")
    return token


def model_of(arguments: argparse.Namespace) -> "Model":
    if arguments.model == "openai":
        from ..models.openai import OpenAIModel

        return OpenAIModel(arguments.model_name, base_url=arguments.base_url)
    from ..models.scripted import demo_model

    return demo_model(arguments.pace)


def tools_of(arguments: argparse.Namespace) -> "Sequence[ToolRunner]":
    """The tools of the built-in model. Its only one repeats a text, and asks first."""
    if arguments.model == "openai":
        return ()
    from ..models.scripted import REPEAT
    from ..runtime.questions import AskUser
    from ..runtime.turn import ToolRunner

    async def repeat(given: str) -> str:
        return str(json.loads(given).get("text", ""))

    return [ToolRunner(REPEAT, repeat, lambda given: AskUser(f"Repeat {json.loads(given).get('text', '')!r:.80}?"))]


def listen(arguments: argparse.Namespace) -> "tuple[socket.socket, str, list[str] | None]":
    """The listening socket, the server's URL, and the host names that it accepts (None: any)."""
    from ..server.guard import LOOPBACK
    from ..server.listening import bind, bind_unix

    if arguments.unix:
        return bind_unix(arguments.unix), "http://localhost", None
    try:
        listener = bind(arguments.host, PORT if arguments.port is None else arguments.port)
    except UsageError:
        if arguments.port is not None:
            raise
        listener = bind(arguments.host, 0)
    name = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    known = is_loopback(arguments.host) or arguments.allow_host  # otherwise only the token keeps strangers out
    hosts = [*LOOPBACK, name, *(host.lower() for host in arguments.allow_host)] if known else None
    return listener, f"http://{name}:{listener.getsockname()[1]}", hosts


def make_workspaces(arguments: argparse.Namespace, model: "Model", directory: Path, url: str, max_workspaces: int,
                    ) -> "Workspaces":
    """The workspaces, with the storage that the arguments select."""
    from ..runtime.workspace import Workspaces

    options: dict[str, Any] = {"grace": arguments.grace, "queue": arguments.max_queue, "limit": max_workspaces,
                               "retention": retention_of(arguments), "tools": tools_of(arguments)}
    if not arguments.database:
        return Workspaces(model, None if arguments.memory else directory, traces=arguments.trace, **options)
    from ..cluster.node import Lease
    from ..cluster.workspaces import SharedWorkspaces

    wake_ups = {"none": None, None: ""}.get(arguments.wake_ups, arguments.wake_ups)
    return SharedWorkspaces(model, arguments.database, url=url, lease=Lease(arguments.lease, arguments.poll),
                            wake_ups=wake_ups, **options)


async def start(workspaces: "Workspaces") -> None:
    from ..store import StoreError

    try:
        await workspaces.start()
    except StoreError as error:  # only with a database: a workspace file that cannot be opened is skipped
        raise UsageError(f"--database {error}") from error


async def serve(arguments: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT."""
    from ..server.app import application
    from ..server.calls import VERSION
    from ..server.listening import plan_files
    from ..server.serving import run_server, set_on_signal
    from ..server.site import Limits, Site

    connections, max_workspaces = plan_files(arguments.max_connections, arguments.max_workspaces)
    limits = Limits(body=arguments.max_body, prompt=arguments.max_prompt, connections=connections)
    token = token_in(arguments.token_file) if arguments.token_file else None
    directory = data_directory(arguments.data_dir)
    model = model_of(arguments)
    listener, url, hosts = listen(arguments)
    running = Running(url, os.getpid(), str(arguments.unix.absolute()) if arguments.unix else None,
                      str(arguments.token_file.absolute()) if arguments.token_file else None, VERSION)
    stop_requested = asyncio.Event()
    with listener:
        workspaces = make_workspaces(arguments, model, directory, url, max_workspaces)
        app = application(Site(workspaces, limits), hosts=hosts, token=token)
        try:
            await start(workspaces)
            make_directory(directory, "--data-dir")
            with set_on_signal(stop_requested):
                async with run_server(app, listener, limits.connections):
                    say_where(directory, running, bool(arguments.memory or arguments.database))
                    await stop_requested.wait()
                    await workspaces.close(arguments.drain)
        finally:
            withdraw(directory)
            await workspaces.close(arguments.drain)
            await model.aclose()
            if arguments.unix:
                arguments.unix.unlink(missing_ok=True)


def say_where(directory: Path, running: Running, is_unlocked: bool) -> None:
    """Announces the server's address to clients and prints it. A server that does not use the data directory has not
    locked it, so it does not overwrite another server's announcement there."""
    where = f"unix:{running.unix}" if running.unix else running.url
    other = find(directory) if is_unlocked else None
    if other is None:
        announce(directory, running)
    else:
        print(f"cancelmark: {directory} already announces another server (process {other.pid}); reach this one with "
              f"--server {where}", file=sys.stderr)
    print(f"serving at {running.unix or running.url + '/'} (Ctrl-C stops)", flush=True)
