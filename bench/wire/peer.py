"""Servers of the wire side by side: any servers that are up, measured by turns in one run.

    python -m cancelmark.bench llm 8001                                      a model that answers at once
    cancelmark serve --port 8002 --model openai --model-name turn --base-url http://127.0.0.1:8001/v1
    python -m cancelmark.bench peer first=http://127.0.0.1:8002 second=http://127.0.0.1:8003

The first is what the others are compared with. Each must have the same model. It is no command of `cancelmark`: nothing
that is installed to work imports what measures it.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from cancelmark.impl.cli.main import Parser
from cancelmark.impl.cli.terminal import output
from cancelmark.impl.files import UsageError

from ..report import Report, Table
from .client import Lane, Place, Watcher, find_address, run_together
from .llm import serve

WORKSPACES = 16
CANCELS = 36  # a round: what else the machine does reaches a few of them
READERS = 100
SAMPLES = 20  # prompts that all readers wait for


@dataclass
class Server:
    """A server that is measured, and what was found in each round."""

    name: str
    url: str
    pid: int | None = None  # if its processor time can be looked at
    found: dict[str, list[float]] = field(default_factory=dict)

    def note(self, kind: str, figure: float) -> None:
        self.found.setdefault(kind, []).append(figure)

    def read_processor_time(self) -> float:
        """Seconds that the server has computed so far."""
        if self.pid is None:
            return 0.0
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


@asynccontextmanager
async def lanes_of(places: Sequence[Place], number: int = 1) -> AsyncIterator[list[Lane]]:
    """So many new sessions in each of the places."""
    lanes = [await place.make_lane() for place in places for _ in range(number)]
    try:
        yield lanes
    finally:
        for lane in lanes:
            lane.close()


async def measure_rate(server: Server, kind: str, lanes: list[Lane], seconds: float) -> None:
    """Prompts that are completed in a second, and what the server has computed for each."""
    began, spent = perf_counter(), server.read_processor_time()
    done = await run_together(lanes, lambda begun: perf_counter() < began + seconds)
    server.note(f"{kind}: prompts/s", done / (perf_counter() - began))
    if server.pid is not None:
        server.note(f"{kind}: processor ms a prompt", (server.read_processor_time() - spent) / done * 1000)


async def measure_one(server: Server, places: Sequence[Place], seconds: float) -> None:
    async with lanes_of(places[:1]) as lanes:
        await measure_rate(server, "one session", lanes, seconds)
        server.note("accept, ms", median(lanes[0].accepts) * 1000)


async def measure_workspaces(server: Server, places: Sequence[Place], seconds: float) -> None:
    async with lanes_of(places) as lanes:
        await measure_rate(server, "workspaces", lanes, seconds)


async def measure_sessions(server: Server, places: Sequence[Place], seconds: float, number: int) -> None:
    async with lanes_of(places[:1], number) as lanes:
        await measure_rate(server, f"{number} sessions of one workspace", lanes, seconds)


async def measure_cancels(server: Server, places: Sequence[Place], seconds: float) -> None:
    async with lanes_of(places[:1]) as (lane,):
        server.note("cancel to end, ms", median([await lane.cancel() for _ in range(CANCELS)]) * 1000)


async def measure_readers(server: Server, places: Sequence[Place], seconds: float) -> None:
    """How long it takes until every subscriber has heard of a prompt's end."""
    place = places[0]
    readers = [await Watcher.of(server.url, place.id) for _ in range(READERS)]
    times = []
    async with lanes_of([place]) as (lane,):
        for number in range(SAMPLES):
            run_id, began = f"{lane.session}-{number}", perf_counter()
            heard = [reader.hear(run_id) for reader in readers]
            await lane.send("hello", run_id)
            times.append(max([at for at, _ in await asyncio.gather(*heard)]) - began)
    for reader in readers:
        reader.close()
    server.note(f"prompt to its end at all of {READERS} subscribers, ms", median(times) * 1000)


Kind = Callable[[Server, Sequence[Place], float], Awaitable[None]]
KINDS: Mapping[str, Kind] = {
    "one": measure_one,
    "workspaces": measure_workspaces,
    "four": lambda server, places, seconds: measure_sessions(server, places, seconds, 4),
    "sixty-four": lambda server, places, seconds: measure_sessions(server, places, seconds, 64),
    "cancel": measure_cancels,
    "readers": measure_readers,
}


async def compare(servers: Sequence[Server], rounds: int, seconds: float, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Measures all servers by turns, so that what disturbs one disturbs the others."""
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
        places: dict[str, list[Place]] = {}
        for server in servers:
            paths = [Path(directory, server.name, str(number)) for number in range(WORKSPACES)]
            for path in paths:
                path.mkdir(parents=True)
            places[server.name] = [await Place.of(server.url, str(path)) for path in paths]
        for number in range(rounds):
            for kind in kinds:
                for server in servers[::1 if number % 2 == 0 else -1]:
                    await KINDS[kind](server, places[server.name], seconds)
        for place in (place for found in places.values() for place in found):
            place.close()


def tabulate(servers: Sequence[Server]) -> Table:
    """The medians, and the ratios to the first server, each formed within a round."""
    first = servers[0]
    rows = []
    for kind in first.found:
        for server in servers:
            if kind not in server.found:
                continue
            ratios = find_ratios(server, first, kind)
            rows.append((kind, server.name, median(server.found[kind]), median(ratios),
                         f"{min(ratios):.2f} to {max(ratios):.2f}"))
    return Table(f"Servers side by side ({WORKSPACES} workspaces), medians of the rounds",
                 ("what", "server", "figure", f"× {first.name}", "in the rounds"), rows)


def find_ratios(server: Server, first: Server, kind: str) -> list[float]:
    """What one server has against another, round by round."""
    return [figure / other for figure, other in zip(server.found[kind], first.found[kind])]


# --- the command

def parser() -> argparse.ArgumentParser:
    parser = Parser("python -m cancelmark.bench peer", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often (default: 5)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="for each rate (default: 4)")
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND",
                        help=f"measure this kind alone: {', '.join(KINDS)}")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1 or arguments.seconds <= 0:
        raise UsageError("--rounds and --seconds: give at least 1, and more than 0")
    servers = [_read_server(text) for text in arguments.servers]
    if len({server.name for server in servers}) < len(servers):
        raise UsageError("two servers have one name; give each its own")
    try:
        asyncio.run(compare(servers, arguments.rounds, arguments.seconds, arguments.only or tuple(KINDS)))
    except OSError as error:
        raise UsageError(f"a server cannot be reached: {error}; start it first") from error
    report = Report([tabulate(servers)], remarks=[f"Load {os.getloadavg()[0]:.1f}, {arguments.rounds} rounds."])
    told = json.dumps({server.name: server.found for server in servers}, indent=2)
    output().print(told if arguments.json else report.markdown, markup=False)
    return 0


def _read_server(text: str) -> Server:
    name, _, url = text.partition("=")
    try:
        find_address(url)
    except ValueError as error:
        raise UsageError(f"{text}: give NAME=URL, as in new=http://127.0.0.1:8002") from error
    return Server(name, url)


def llm_parser() -> argparse.ArgumentParser:
    parser = Parser("python -m cancelmark.bench llm", description="A model that answers at once, until Ctrl-C.")
    parser.add_argument("port", type=int, metavar="PORT")
    parser.set_defaults(run=run_llm)
    return parser


def run_llm(arguments: argparse.Namespace) -> int:
    output().print(f"http://127.0.0.1:{arguments.port}/v1", markup=False)
    asyncio.run(serve(arguments.port))
    return 0
