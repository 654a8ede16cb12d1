"""How the server grows: with what is in its database, with what a crash has left unfinished, and with those who watch.

What is compared is processor time, which other work on the machine disturbs least. What grows no faster than a line has
an exponent of one at most.
"""

import asyncio
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from math import log
from pathlib import Path
from statistics import linear_regression, median
from time import perf_counter, process_time

from cancelmark.impl.models.demo import demo_model
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.workspace import Workspaces
from cancelmark.impl.store import AcceptPrompt, MovePrompt, NewSession, SqliteStore
from cancelmark.model.lifecycle import State

from ..plot import plot
from ..process.models import Endless
from ..process.runtime import history
from ..report import Goal, Picture, Report, Table
from ..setting import Setting
from .client import Lane, Place, Watcher, run_together
from .peer import Server
from .server import server

SIZES = (0, 100_000, 1_000_000)  # prompts in the database
WRITTEN = 100_000  # of these are written by the store, and the others are copies
PROMPTS = 200  # that are measured in each
UNFINISHED = (1_000, 10_000, 100_000)
SESSIONS = 100  # that they are spread over
READERS = (1, 10, 100, 1_000, 2_000)
TOLD = 40  # prompts that they all hear of
BATCH = 2000
FILES = 8192

KEYS = (("prompts", "seq"), ("transitions", "position"), ("messages", "position"), ("events", "id"))
EACH = ("By count a subscriber gets about two writes a prompt, with 100 subscribers as with 1,000, and has no timer of "
        "its own.")
LINE = 1.1  # the exponent of what counts as a line


# --- with the database

async def fill(directory: Path, prompts: int) -> str:
    """A data directory with a workspace of so many prompts that are done; the workspace's path."""
    workspaces = Workspaces(demo_model(), directory)
    workspace = await workspaces.open("/growth")
    await workspaces.ready(workspace)
    session = (await workspace.create_session("old")).id
    written = min(prompts, WRITTEN)
    for first in range(1, written + 1, BATCH):
        await workspace.runtime.store.write(history(session, first, min(first + BATCH, written + 1)))
    await workspaces.close()
    if written:
        multiply(next((directory / "workspaces").glob("*.db")), written, prompts // written)
    return "/growth"


def multiply(path: Path, prompts: int, times: int) -> None:
    """Copies all that the database has of its prompts, until there are so many times as many."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    last = {(table, key): database.execute(f"SELECT max({key}) FROM {table}").fetchone()[0] for table, key in KEYS}
    for number in range(1, times):
        changed = {"seq": f"seq + {number * prompts}", "run_id": f"run_id || '-{number}'", "position": "NULL"}
        database.execute("BEGIN")
        for (table, key), limit in last.items():
            id = "NULL" if key == "id" else f"'copy-{number}-' || id"
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            copied = ", ".join({**changed, "id": id}.get(column, column) for column in columns)
            database.execute(f"INSERT INTO {table} SELECT {copied} FROM {table} WHERE {key} <= {limit}")
        database.execute("COMMIT")
    database.close()


async def run_prompts(url: str, pid: int, path: str) -> tuple[float, float]:
    """Prompts a second in a new session, and milliseconds of the server's processor time for each."""
    place = await Place.of(url, path)
    lane = await place.make_lane()
    began, spent = perf_counter(), Server("", url, pid).read_processor_time()
    await run_together([lane], lambda begun: begun < PROMPTS)
    seconds, spent = perf_counter() - began, Server("", url, pid).read_processor_time() - spent
    lane.close()
    place.close()
    return PROMPTS / seconds, spent / PROMPTS * 1000


def grow_database(rounds: int) -> Report:
    rates: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    with ExitStack() as stack:
        running = []
        for size in SIZES:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="cancelmark-bench-"))
            path = asyncio.run(fill(Path(directory), size))
            running.append((size, path, *stack.enter_context(server("--pace", "0", directory=directory))))
        for number in range(rounds):
            for size, path, port, pid in running[::1 if number % 2 == 0 else -1]:
                rates[size].append(asyncio.run(run_prompts(f"http://127.0.0.1:{port}", pid, path)))
    rows = [(size, *(median(column) for column in zip(*found))) for size, found in rates.items()]
    slower = tuple(last / first for (_, first), (_, last) in zip(rates[SIZES[0]], rates[SIZES[-1]]))
    return Report(
        [Table("Prompts as the database grows, built-in model, kept on disk, medians",
               ("prompts in the database", "prompts/s", "processor ms a prompt"), rows)],
        [Goal(f"processor time of a prompt with {SIZES[-1]:,} prompts in the database, beside an empty one", slower,
              "at most", 1.5)])


# --- with what is unfinished

async def leave_unfinished(path: Path, prompts: int) -> None:
    """What a crash leaves: sessions with queues."""
    store = SqliteStore(path)
    await store.write([NewSession(f"s{number}") for number in range(SESSIONS)])
    for first in range(1, prompts + 1, BATCH):
        seqs = range(first, min(first + BATCH, prompts + 1))
        await store.write([AcceptPrompt(seq, f"s{seq % SESSIONS}", "hello", f"r{seq}") for seq in seqs])
        await store.write([MovePrompt(seq, State.QUEUED) for seq in seqs])
    store.close()


async def start(path: Path) -> float:
    """Seconds of processor time until a runtime has taken up what is there."""
    runtime = Runtime(Endless(), SqliteStore(path))
    began = process_time()
    await runtime.start()
    spent = process_time() - began
    runtime.store.close()
    return spent


def start_after_crash(rounds: int) -> Report:
    times: dict[int, list[float]] = {size: [] for size in UNFINISHED}
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
        for size in UNFINISHED:
            asyncio.run(leave_unfinished(Path(directory) / f"{size}.db", size))
        for _ in range(rounds):
            for size in UNFINISHED:
                copy = Path(directory) / "copy.db"
                shutil.copy(Path(directory) / f"{size}.db", copy)
                times[size].append(asyncio.run(start(copy)))
                for file in Path(directory).glob("copy.db*"):
                    file.unlink()
    curve = [(float(size), median(found)) for size, found in times.items()]
    return Report(
        [Table(f"Start after a crash, {SESSIONS} sessions, medians", ("prompts unfinished", "processor seconds"),
               [(int(size), seconds) for size, seconds in curve])],
        [Goal("exponent of the start's processor time against what is unfinished (1: a line)", (find_exponent(curve),),
              "at most", LINE, "")],
        pictures=[Picture("Start after a crash", "start.svg", plot(
            {"start": curve}, "prompts unfinished", "seconds of processor time"))])


# --- with those who watch

async def tell(port: int, pid: int, numbers: Sequence[int]) -> dict[int, float]:
    """Milliseconds of the server's processor time for a prompt, by how many watch."""
    url, spent = f"http://127.0.0.1:{port}", {}
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as path:
        place = await Place.of(url, path)
        lane = await place.make_lane()
        readers: list[Watcher] = []
        for number in numbers:
            readers += [await Watcher.of(url, place.id) for _ in range(number - len(readers))]
            before = Server("", url, pid).read_processor_time()
            for told in range(TOLD):
                await tell_all(lane, readers, f"{number}-{told}")
            spent[number] = (Server("", url, pid).read_processor_time() - before) / TOLD * 1000
        for reader in readers:
            reader.close()
        lane.close()
        place.close()
    return spent


async def tell_all(lane: Lane, readers: Sequence[Watcher], run_id: str) -> None:
    """Runs a prompt, and waits until every reader has heard of its end."""
    heard = [reader.hear(run_id) for reader in readers]
    await lane.send("hello", run_id)
    await asyncio.gather(*heard)


def grow_readers(rounds: int) -> Report:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, FILES), hard), hard))
    numbers = [number for number in READERS if number < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100]
    found: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(rounds):
        with server("--pace", "0", "--max-connections", str(FILES)) as (port, pid):
            for number, spent in asyncio.run(tell(port, pid, numbers)).items():
                found[number].append(spent)
    curve = [(float(number), median(spent)) for number, spent in found.items()]
    return Report(
        [Table("Subscribers to one workspace, medians", ("subscribers", "processor ms a prompt"),
               [(int(number), spent) for number, spent in curve])],
        [Goal("exponent of a prompt's processor time against subscribers, from 100 on (1: a line)",
              (find_exponent(curve[-3:]),), "at most", LINE, "", why=EACH)],
        pictures=[Picture("A prompt's cost by subscribers", "subscribers.svg", plot(
            {"a prompt": curve}, "subscribers", "milliseconds of processor time"))])


def find_exponent(curve: Sequence[tuple[float, float]]) -> float:
    """Of the power of the size with which the cost grows."""
    return linear_regression(*zip(*((log(x), log(y)) for x, y in curve))).slope


def measure(setting: Setting) -> Report:
    reports = [grow_database(setting.rounds), start_after_crash(setting.rounds), grow_readers(setting.rounds)]
    return Report(*([each for report in reports for each in getattr(report, name)]
                    for name in ("tables", "goals", "remarks", "pictures")))
