"""`cancelmark conform`: which of the guarantees does a server keep?"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..files import UsageError, write
from .terminal import output, progress_bar

if TYPE_CHECKING:
    from cancelmark.conformance.kit import Progress
    from cancelmark.conformance.report import Report

DESCRIPTION = """\
Judge a server that speaks the wire of specs/wire.md: several clients send it prompts, cancel, clear and watch, and what
they see is held against the guarantees of specs/protocol.md. A guarantee is kept (no history broke it), broken (the
shortest history found is shown), not observable on this server (and why), or not claimed.

Exit 0: nothing is broken. 1: something is. 2: the server cannot be judged, and nothing is claimed.
"""

EPILOG = """\
how turns are steered:
  Most races need a turn that lasts as long as it has to. With --llm-port the kit serves a language model of its own,
  which the server has to use: at http://127.0.0.1:PORT/v1, OpenAI-compatible, any key, any model name. For our own:

    OPENAI_API_KEY=none cancelmark serve --model openai --model-name turn --base-url http://127.0.0.1:4545/v1
    cancelmark conform http://127.0.0.1:4343 --llm-port 4545

  Without it the server's own turns are waited for, and what cannot be seen that way is reported as not observable.

other servers:
  Another wire takes an adapter, about a dozen lines of Python, and `judge(MyAdapter)`, or a test class for pytest:
  python -m pydoc cancelmark.conformance.adapter

The server gets one workspace, /cancelmark-conform-…, with a session or two for each history. Its other workspaces are
left alone; --keep-open spares it the histories that close that workspace.
"""

STYLE = {"kept": "green", "broken": "bold red", "not observable": "yellow", "not claimed": "dim"}
PROFILES = ("quick", "deep")
ANSWER = 10.0  # seconds for the first answer
PATIENCE = 3.0  # seconds without news from the server after which what has not happened will not happen


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "conform", help="judge a server: which guarantees does it keep?", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="http://HOST:PORT, https://HOST or unix:PATH")
    parser.add_argument("--token", metavar="TOKEN", help="that the server wants")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the same, in a file")
    parser.add_argument("--llm-port", type=int, metavar="PORT", help="serve the kit's language model here; see below")
    parser.add_argument("--profile", default="quick", choices=PROFILES,
                        help="quick: under a minute (default); deep: thousands of histories, some minutes")
    parser.add_argument("--only", action="append", metavar="GUARANTEE",
                        help="judge only this one; can be given more than once")
    parser.add_argument("--keep-open", action="store_true", help="never close the workspace that the kit uses")
    parser.add_argument("--json", action="store_true", help="the report for programs")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from cancelmark.conformance.adapter import GUARANTEES
    from cancelmark.conformance.kit import judge
    from cancelmark.conformance.venue import AdapterError, NotSteered

    from ..adapters.wire import OpenWireAdapter, WireAdapter
    from ..client import ClientError
    from .junit import junit

    if unknown := set(arguments.only or ()) - GUARANTEES:
        raise UsageError(f"--only {sorted(unknown)[0]}: there is no such guarantee; choose from "
                         f"{', '.join(sorted(GUARANTEES))}")
    if arguments.llm_port is not None and not 0 < arguments.llm_port < 65536:
        raise UsageError(f"--llm-port {arguments.llm_port}: give a port that the server is told, from 1 to 65535")
    url, token = arguments.url.rstrip("/"), token_of(arguments)
    asyncio.run(look(url, token))
    workspace = f"/cancelmark-conform-{uuid4()}"
    kind = OpenWireAdapter if arguments.keep_open else WireAdapter
    kind.patience = PATIENCE
    try:
        with progress() as bar:
            report = judge(lambda: kind(url, token, workspace), profile=arguments.profile, only=arguments.only,
                           llm_port=arguments.llm_port, progress=bar)
    except NotSteered as error:
        raise UsageError(f"{error} `cancelmark conform --help` says how; or leave --llm-port out") from error
    except AdapterError as error:
        cause = error.__cause__
        raise UsageError(f"{cause if isinstance(cause, ClientError) else error}; nothing is claimed") from error
    if arguments.junit:
        write(arguments.junit, junit(report))
    if arguments.json:
        print(json.dumps(report.json() | {"server": url}, indent=2))
    else:
        show(url, report)
    return 0 if report.ok else 1


def token_of(arguments: argparse.Namespace) -> str | None:
    if arguments.token_file is None:
        return str(arguments.token) if arguments.token else None
    try:
        return str(arguments.token_file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {arguments.token_file}: {getattr(error, 'strerror', None) or 'it is not text'}"
                         ) from error


async def look(url: str, token: str | None) -> None:
    """Whether there is a server to judge."""
    from ..client import BadAnswer, Client, ClientError, Refusal

    try:
        client = Client(url, token=token)
    except ValueError as error:
        raise UsageError(str(error)) from error
    async with client:
        try:
            async with asyncio.timeout(ANSWER):
                await client.health()
                await client.workspaces()
        except TimeoutError:
            raise UsageError(f"{url} does not answer within {ANSWER:g} s; is it a server of this wire?") from None
        except Refusal as error:
            if error.status in (401, 403):
                wrong = "the token is not the right one" if token else "it wants a token; give it with --token"
                raise UsageError(f"{error}; {wrong}") from error
            raise UsageError(f"{url} answers {error.status}, which no server of this wire does: something else runs "
                             "there. For another wire write an adapter; see --help") from error
        except BadAnswer as error:
            raise UsageError(f"{error}. For another wire write an adapter; see --help") from error
        except ClientError as error:
            raise UsageError(f"{error}; check the address, or start the server") from error


@contextmanager
def progress() -> "Iterator[Progress]":
    """How far it is, on a terminal."""
    bar = progress_bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("", total=None)
    with bar:
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def show(url: str, report: "Report") -> None:
    from cancelmark.conformance.report import LEGEND

    console = output()
    console.print(f"{url}, {report.histories} histories\n", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("guarantee", "verdict", ""):
        table.add_column(heading, no_wrap=bool(heading))
    for verdict in report.verdicts:
        status = verdict.status.value
        table.add_row(verdict.guarantee, f"[{STYLE[status]}]{status}[/]", escape(verdict.about))
    console.print(table, soft_wrap=False)
    for note in report.notes:
        console.print(note, markup=False)
    for verdict in report.verdicts:
        if verdict.finding:
            console.print(f"\n{verdict.story}", markup=False)
    console.print(LEGEND if report.broken else "", markup=False)
    console.print(report.summary, markup=False)
