"""`cancelmark serve`: the server, for this machine or, with a token, for others."""

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..discovery import Running, announce, data_directory, find, withdraw
from ..files import UsageError, make_directory
from .width import Help

if TYPE_CHECKING:
    import socket

    from ..models import Model
    from ..runtime.retention import Retention
    from ..runtime.workspace import Workspaces

PORT = 4343
HOW = "the latest 10000, or for 30d (s, m, h, d, w); default: all, for ever"
LEVELS = ("debug", "info", "warning", "error")

DESCRIPTION = """\
Serve prompts to any number of clients, until Ctrl-C or SIGTERM. Without options: on this machine only, with the
built-in model, which repeats what it hears, and with everything kept in the user's data directory. The other commands
find this server by themselves; a browser finds it at the address that is printed.
"""

EPILOG = """\
what the built-in model understands, apart from plain text:
  slow: TEXT       takes ten times as long          fast: TEXT       takes no time
  fail: TEXT       fails in the middle              stubborn: TEXT   does not let itself be stopped

examples:
  cancelmark serve
  cancelmark serve --unix /tmp/cancelmark.sock --data-dir /tmp/try
  OPENAI_API_KEY=… cancelmark serve --model openai --model-name gpt-4o-mini
  cancelmark serve --host 0.0.0.0 --token-file token      (others on the network can call it with that token)
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=Help)
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                       help="an address of this machine (%(default)s)")
    where.add_argument("--port", type=int, metavar="N",
                       help=f"0 for any free one (default: {PORT}, or any if that is taken)")
    where.add_argument("--unix", type=Path, metavar="FILE", help="a socket file instead of a port")
    where.add_argument("--token-file", type=Path, metavar="FILE",
                       help="clients must send the token in this file; it is made if it is not there. Required if "
                            "others than this machine can connect")
    where.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                       help="another name by which clients may call it; can be given more than once")
    what = parser.add_argument_group("what it runs")
    what.add_argument("--model", default="scripted", metavar="KIND", help="scripted (default) or openai")
    what.add_argument("--model-name", metavar="NAME", help="for openai (default: OPENAI_MODEL)")
    what.add_argument("--base-url", metavar="URL", help="for openai: any compatible server (default: OPENAI_BASE_URL); "
                                                        "the key is taken from OPENAI_API_KEY")
    what.add_argument("--pace", type=float, default=0.4, metavar="SECONDS",
                      help="between two pieces of the built-in model's answers (%(default)s)")
    keep = parser.add_argument_group("what it keeps")
    keep.add_argument("--data-dir", type=Path, metavar="DIR",
                      help="where (default: CANCELMARK_DATA_DIR, or the user's)")
    keep.add_argument("--database", metavar="URL",
                      help="in a PostgreSQL database instead, postgresql://USER@HOST/NAME, which several servers may "
                           "share (default: CANCELMARK_DATABASE)")
    keep.add_argument("--memory", action="store_true", help="nothing: all is gone when it stops")
    keep.add_argument("--trace", type=Path, metavar="DIR",
                      help="a trace of every workspace, in this directory, for `cancelmark trace check`: a line for "
                           "each action, without texts; it grows until you delete it")
    keep.add_argument("--keep-events", metavar="HOW", help=f"how much of each workspace's log of events: {HOW}")
    keep.add_argument("--keep-prompts", metavar="HOW",
                      help=f"prompts of each workspace that are done: {HOW}; their messages and run ids stay")
    keep.add_argument("--grace", type=float, default=300.0, metavar="SECONDS",
                      help="a workspace that no client is attached to closes after so long (%(default)g)")
    keep.add_argument("--drain", type=float, default=10.0, metavar="SECONDS",
                      help="turns that have not ended so long after a SIGTERM or Ctrl-C are abandoned (%(default)g)")
    nodes = parser.add_argument_group("among the servers of a database")
    nodes.add_argument("--lease", type=float, default=10.0, metavar="SECONDS",
                       help="a server that says nothing for so long loses its sessions to others (%(default)g)")
    nodes.add_argument("--poll", type=float, default=1.0, metavar="SECONDS",
                       help="between two looks at what others have done, without wake-ups (%(default)g)")
    nodes.add_argument("--wake-ups", metavar="URL",
                       help="where wake-ups are listened to: an address of the database itself if --database is that "
                            "of a pool, or none (default: --database)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-body", type=int, default=1_048_576, metavar="BYTES", help="of a request (%(default)s)")
    limits.add_argument("--max-prompt", type=int, default=200_000, metavar="N", help="characters (%(default)s)")
    limits.add_argument("--max-queue", type=int, default=1000, metavar="N",
                        help="prompts of a session that are not done (%(default)s)")
    limits.add_argument("--max-connections", type=int, default=2048, metavar="N", help="at a time (%(default)s)")
    limits.add_argument("--max-workspaces", type=int, default=64, metavar="N", help="open at a time (%(default)s)")
    parser.add_argument("--log-level", default="info", metavar="LEVEL", help=f"{', '.join(LEVELS)} (default: info)")
    parser.set_defaults(run=run)


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
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: give at least 1")
    for name in ("grace", "drain", "pace"):
        if not 0 <= getattr(arguments, name) < 1e9:
            raise UsageError(f"--{name} {getattr(arguments, name)}: give a number of seconds, 0 or more")
    for name in ("lease", "poll"):
        if not 0.05 <= getattr(arguments, name) < 1e6:
            raise UsageError(f"--{name} {getattr(arguments, name)}: give a number of seconds, 0.05 or more")
    if arguments.database and not arguments.database.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"--database {arguments.database!r:.40}: give postgresql://USER@HOST/NAME")
    if arguments.database and (arguments.memory or arguments.trace):
        other = "--memory" if arguments.memory else "--trace; the database has a journal of all steps"
        raise UsageError(f"--database: choose it or {other}")
    retention_of(arguments)
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port {arguments.port}: give a number from 0 to 65535")
    if arguments.log_level not in LEVELS:
        raise UsageError(f"--log-level {arguments.log_level}: choose one of {', '.join(LEVELS)}")
    if arguments.model not in ("scripted", "openai"):
        raise UsageError(f"--model {arguments.model}: choose scripted or openai")
    if arguments.unix and arguments.port is not None:
        raise UsageError("--unix and --port: choose one of them")
    if not arguments.unix and not is_loopback(arguments.host) and not arguments.token_file:
        raise UsageError(f"--host {arguments.host}: others than this machine can connect there; give a --token-file")


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
    """The token in the file, which is made if it is not there."""
    import secrets

    try:
        with suppress(FileExistsError), open(file, "x", opener=partial(os.open, mode=0o600)) as new:
            new.write(secrets.token_urlsafe(32) + "\n")
        token = file.read_text().strip()
        others = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {getattr(error, 'strerror', error)}") from error
    if others:
        raise UsageError(f"--token-file {file}: others than its user can read or change it; chmod 600 {file}, and "
                         "choose a new token if anybody has")
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file {file}: a token has at least 16 characters and no spaces; delete the file, and "
                         "one is made")
    return token


def model_of(arguments: argparse.Namespace) -> "Model":
    if arguments.model == "openai":
        from ..models.openai import OpenAIModel

        return OpenAIModel(arguments.model_name, base_url=arguments.base_url)
    from ..models.demo import demo_model

    return demo_model(arguments.pace)


def listen(arguments: argparse.Namespace) -> "tuple[socket.socket, str, list[str] | None]":
    """Where it listens, the address that clients call it by, and the names that they may call it by, if not any."""
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
    known = is_loopback(arguments.host) or arguments.allow_host  # otherwise the token alone keeps strangers out
    hosts = [*LOOPBACK, name, *(host.lower() for host in arguments.allow_host)] if known else None
    return listener, f"http://{name}:{listener.getsockname()[1]}", hosts


def make_workspaces(arguments: argparse.Namespace, model: "Model", directory: Path, url: str, most: int,
                    ) -> "Workspaces":
    """What it keeps, and where."""
    from ..runtime.workspace import Workspaces

    options: dict[str, Any] = {"grace": arguments.grace, "queue": arguments.max_queue, "limit": most,
                               "retention": retention_of(arguments)}
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
    except StoreError as error:  # of a database: a workspace in a file that cannot be opened is left alone
        raise UsageError(f"--database {error}") from error


async def serve(arguments: argparse.Namespace) -> None:
    """Serves until a signal comes."""
    from ..server.app import application
    from ..server.calls import VERSION
    from ..server.listening import plan_files
    from ..server.serving import run_server, set_on_signal
    from ..server.site import Limits, Site

    connections, most = plan_files(arguments.max_connections, arguments.max_workspaces)
    limits = Limits(body=arguments.max_body, prompt=arguments.max_prompt, connections=connections)
    token = token_in(arguments.token_file) if arguments.token_file else None
    directory = data_directory(arguments.data_dir)
    model = model_of(arguments)
    listener, url, hosts = listen(arguments)
    running = Running(url, os.getpid(), str(arguments.unix.absolute()) if arguments.unix else None,
                      str(arguments.token_file.absolute()) if arguments.token_file else None, VERSION)
    asked = asyncio.Event()
    with listener:
        workspaces = make_workspaces(arguments, model, directory, url, most)
        app = application(Site(workspaces, limits), hosts=hosts, token=token)
        try:
            await start(workspaces)
            make_directory(directory, "--data-dir")
            with set_on_signal(asked):
                async with run_server(app, listener, limits.connections):
                    say_where(directory, running, bool(arguments.memory or arguments.database))
                    await asked.wait()
                    await workspaces.close(arguments.drain)
        finally:
            withdraw(directory)
            await workspaces.close(arguments.drain)
            await model.aclose()
            if arguments.unix:
                arguments.unix.unlink(missing_ok=True)


def say_where(directory: Path, running: Running, memory: bool) -> None:
    """Tells clients and the user where the server is. One that keeps nothing has not locked the data directory, and
    leaves the announcement of another to that other."""
    where = f"unix:{running.unix}" if running.unix else running.url
    other = find(directory) if memory else None
    if other is None:
        announce(directory, running)
    else:
        print(f"cancelmark: another server (process {other.pid}) is found in {directory}; call this one with "
              f"--server {where}", file=sys.stderr)
    print(f"serving at {running.unix or running.url + '/'} (Ctrl-C stops)", flush=True)
