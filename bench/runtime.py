"""The cost of a prompt, the memory that it leaves, and the rate of durable acceptances.

**The runtime.** Times are the process's CPU time. Waiting for a disk does not count: files are in memory (`/dev/shm`),
if the machine has it.

**A null prompt** is one whose model ends its step at once. Its whole life is measured as a caller sees it, `await` for
the acceptance and `await` for the outcome, one prompt at a time. **The bare worker** does nothing with the same calls:
a coroutine puts a text and a future into an `asyncio.Queue` and returns the future, one task gets both and sets the
text as the result, and the caller awaits it.

**Flat** means that the cost of a prompt does not depend on earlier prompts. Sessions with short and long histories are
measured alternately, and so are runtimes with few and many sessions.

**The store** is measured with many concurrent callers, each accepting one prompt at a time, and compared with plain
SQLite. **The bare writer** is what one would write without a store: a thread with its own connection, the same settings
(WAL, `synchronous=FULL`), one table with the fields of a prompt, and the same group commit. It validates nothing, keeps
no history of transitions, and one bad row fails the whole group. Both write to the same disk, alternately.
"""

import asyncio
import gc
import sqlite3
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from cancelmark.impl.models import ChatMessage, Delta, Finish, FinishReason, Tool
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.messages import finished, user_message
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    SqliteStore,
    Store,
)
from cancelmark.model.lifecycle import Outcome, State

from .frame import Goal, Report, Setting, Table

CHUNKS = 10  # timed chunks per round
PROMPTS = {"memory": 200, "SQLite": 50}  # per chunk
HISTORIES = (1, 1_000, 100_000)  # prompts in one session
SESSIONS = (1, 100, 10_000)
FINISHED = 10_000  # finished prompts, for the measurement of memory
SHARED_MEMORY = Path("/dev/shm")
FLAT = ("Three commits to the in-memory store, which is an SQLite database, take a third of the time. No other "
        "function takes a twentieth: the rest is three steps of the session, the turn with its messages, its task, the "
        "event loop, publishing and the garbage collector.")

CALLERS = (16, 128, 1024)  # concurrent callers of the store
ACCEPTED = 8192  # prompts in total
IN_PYTHON = ("According to a profile, the store's thread holds the interpreter lock for a seventh of the time, and the "
             "event loop for four fifths: a future and a callback for each caller, as with the bare writer, and also "
             "its steps, their statement and their entry in the ledger: nine objects where the bare writer creates "
             "two.")

Row = tuple[int, str, str, str, str]
Accept = Callable[[int, int], Awaitable[object]]  # takes a caller's number and a seq

STORES: Mapping[str, Callable[[Path], Store]] = {"memory": lambda path: MemoryStore(), "SQLite": SqliteStore}


def files() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(
        prefix="cancelmark-bench-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)


class Null:
    """A model whose step ends at once without output."""

    name, provider = "null", "bench"
    hears: int | None = 0

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Does nothing: there are no resources."""


# --- One prompt -----------------------------------------------------------------------------------------------------

class BareWorker:
    """A queue, and one task that returns each item unchanged."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._work())

    async def accept(self, text: str) -> "asyncio.Future[str]":
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._queue.put((text, future))
        return future

    async def _work(self) -> None:
        while True:
            text, future = await self._queue.get()
            future.set_result(text)


async def spent(work: Callable[[int], Awaitable[object]], times: int) -> float:
    """CPU seconds per call, averaged over `times` calls."""
    start = process_time()
    for number in range(times):
        await work(number)
    return (process_time() - start) / times


async def null_prompts(chunks: int) -> list[tuple[float, float]]:
    """For each chunk: CPU seconds of a job of the bare worker and of a null prompt."""
    worker, numbers, figures = BareWorker(), count(), []

    async def job(_: int) -> None:
        await (await worker.accept("hello"))

    async with Runtime(Null()) as runtime:
        await runtime.create_session("s")

        async def life(_: int) -> None:
            await (await runtime.accept("s", "hello", f"r{next(numbers)}"))

        for work in (job, life):
            await spent(work, PROMPTS["memory"])  # warm
        for _ in range(chunks):
            figures.append((await spent(job, 5 * PROMPTS["memory"]), await spent(life, PROMPTS["memory"])))
    worker.task.cancel()
    return figures


def one_prompt(rounds: int) -> Report:
    figures = asyncio.run(null_prompts(rounds * CHUNKS))
    bare, life = (median(column) for column in zip(*figures))
    rows = [("job of the bare worker", bare * 1e6, 1.0),
            ("null prompt, store in memory", life * 1e6, life / bare)]
    return Report(
        [Table("A null prompt's whole life", ("what", "µs", "× bare"), rows)],
        [Goal("a null prompt's whole life against a job of the bare worker",
              tuple(life / bare for bare, life in figures), "at most", 8, why=FLAT)])


# --- Many prompts, many sessions ------------------------------------------------------------------------------------

def history(session: str, first: int, last: int) -> list[Operation]:
    """The journal of finished prompts, as the runtime writes it."""
    operations: list[Operation] = []
    for seq in range(first, last):
        answer = finished(MessageRecord(f"p{seq}-2", session, "assistant", ()), FinishReason.END_TURN)
        operations += [
            AcceptPrompt(seq, session, "hello", f"r{seq}"), MovePrompt(seq, State.ACTIVE),
            PutMessage(user_message(session, seq, "hello")), PutMessage(answer),
            MovePrompt(seq, State.DONE, Outcome.END_TURN),
            AppendEvent(session, TERMINAL, {"session_id": session, "outcome": "end_turn", "seq": seq}, f"r{seq}")]
    return operations


class Subject:
    """A runtime with a history, whose next prompts are measured."""

    def __init__(self, runtime: Runtime, sessions: int) -> None:
        self.runtime, self.sessions = runtime, sessions
        self.figures: list[float] = []
        self._numbers = count()

    async def measure(self, prompts: int) -> None:
        self.figures.append(await spent(self._life, prompts))

    async def _life(self, _: int) -> None:
        number = next(self._numbers)
        await (await self.runtime.accept(f"s{number % self.sessions}", "hello", f"new{number}"))


@asynccontextmanager
async def subject(store: Store, sessions: int, prompts: int) -> AsyncIterator[Subject]:
    for first in range(0, sessions, 1000):
        await store.write([NewSession(f"s{number}") for number in range(first, min(first + 1000, sessions))])
    for first in range(1, prompts + 1, 1000):
        await store.write(history("s0", first, min(first + 1000, prompts + 1)))
    async with Runtime(Null(), store) as runtime:
        yield Subject(runtime, sessions)


async def compared(place: str, pasts: Sequence[tuple[int, int]], chunks: int) -> list[list[float]]:
    """CPU seconds of a prompt for each (sessions, prompts in the first of them), measured alternately."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(files()))
        subjects = [await stack.enter_async_context(subject(
            STORES[place](directory / f"{number}.db"), *past)) for number, past in enumerate(pasts)]
        gc.collect()
        for each in subjects:
            await each.measure(PROMPTS[place])  # warm
            each.figures.clear()
        for _ in range(chunks):
            for each in subjects:
                await each.measure(PROMPTS[place])
        return [each.figures for each in subjects]


def flat(title: str, what: str, sizes: Sequence[int], pasts: Sequence[tuple[int, int]], rounds: int) -> Report:
    """The cost of a prompt for each size, and the ratio of the largest size to the smallest."""
    rows, goals = [], []
    for place in STORES:
        figures = asyncio.run(compared(place, pasts, rounds * CHUNKS))
        rows.append((f"null model, {place}", *(median(column) * 1e6 for column in figures)))
        goals.append(Goal(f"{title}, null model, {place}: {sizes[-1]:,} {what} against {sizes[0]}",
                          tuple(last / first for first, last in zip(figures[0], figures[-1])), "at most", 1.5))
    columns = tuple(f"{size:,}" for size in sizes)
    return Report([Table(f"{title}: µs per prompt by {what}", ("what", *columns), rows)], goals)


# --- Memory ---------------------------------------------------------------------------------------------------------

async def held(path: Path, sessions: int, prompts: int) -> tuple[float, float]:
    """Bytes of memory per idle session and per finished prompt. The store is a file."""
    async with Runtime(Null(), SqliteStore(path)) as runtime:
        await runtime.create_session("s")

        async def run(first: int, number: int) -> None:
            for seq in range(first, first + number):
                await (await runtime.accept("s", "hello", f"r{seq}"))

        tracemalloc.start()
        try:
            await run(0, prompts)  # fills the caches
            start = traced()
            await run(prompts, prompts)
            done = traced()
            for number in range(sessions):
                await runtime.create_session(f"s{number}")
            return (traced() - done) / sessions, (done - start) / prompts
        finally:
            tracemalloc.stop()


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def memory() -> Report:
    with files() as directory:
        session, prompt = asyncio.run(held(Path(directory) / "bench.db", SESSIONS[-1], FINISHED))
    return Report(
        [Table("Memory of a runtime on SQLite", ("what", "bytes"),
               [("an idle session", session), ("a finished prompt", prompt)])],
        [Goal("memory of an idle session", (session,), "at most", 1024, " bytes"),
         Goal("memory of a finished prompt", (prompt,), "at most", 16, " bytes")])


def measure_runtime(setting: Setting) -> Report:
    """The cost of a prompt, and the memory that it leaves."""
    rounds = setting.rounds
    return (one_prompt(rounds)
            + flat("Long history", "prompts in the session", HISTORIES, [(1, n) for n in HISTORIES], rounds)
            + flat("Many sessions", "sessions", SESSIONS, [(n, 0) for n in SESSIONS], rounds) + memory())


# --- The store ------------------------------------------------------------------------------------------------------

class BareWriter:
    """SQLite with group commit and nothing else."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.executescript("""
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = FULL;
            CREATE TABLE prompts (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, run_id TEXT UNIQUE,
                                  text TEXT NOT NULL, state TEXT NOT NULL);
        """)
        self._changed = threading.Condition()
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._open = True
        self._thread = threading.Thread(target=self._write_all)
        self._thread.start()

    def insert(self, row: Row) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        with self._changed:
            if not self._waiting:
                self._changed.notify()
            self._waiting.append((row, future))
        return future

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()
        self._database.close()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                group, self._waiting = self._waiting, []
            if not group:
                return
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO prompts VALUES (?, ?, ?, ?, ?)", [row for row, _ in group])
            self._database.execute("COMMIT")
            self._loop.call_soon_threadsafe(_answer, [future for _, future in group])


def _answer(futures: Iterable["asyncio.Future[None]"]) -> None:
    for future in futures:
        future.set_result(None)


async def load(callers: int, prompts: int, accept: Accept) -> float:
    """Prompts per second, distributed over concurrent callers."""
    seqs = iter(range(1, prompts + 1))

    async def call(caller: int) -> None:
        for seq in seqs:
            await accept(caller, seq)

    start = perf_counter()
    await asyncio.gather(*(call(caller) for caller in range(callers)))
    return prompts / (perf_counter() - start)


async def bare(path: Path, callers: int, prompts: int) -> float:
    writer = BareWriter(path)
    try:
        return await load(callers, prompts, lambda caller, seq: writer.insert(
            (seq, f"s{caller}", f"r{seq}", "hello", "accepted")))
    finally:
        writer.close()


async def stored(path: Path, callers: int, prompts: int) -> float:
    """The store's journal."""
    store = SqliteStore(path)
    try:
        await store.write([NewSession(f"s{caller}") for caller in range(callers)])
        return await load(callers, prompts, lambda caller, seq: store.write(
            [AcceptPrompt(seq, f"s{caller}", "hello", f"r{seq}")]))
    finally:
        store.close()


WRITERS: Mapping[str, Callable[[Path, int, int], Coroutine[Any, Any, float]]] = {
    "bare writer": bare, "store": stored}


def measure_store(setting: Setting) -> Report:
    """Acceptances per second, on the disk of the temporary directory."""
    rows = []
    ratios: dict[int, list[float]] = {}
    for callers in CALLERS:
        speeds: dict[str, list[float]] = {name: [] for name in WRITERS}
        for _ in range(setting.rounds):
            for name, write in WRITERS.items():
                with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
                    speeds[name].append(asyncio.run(write(Path(directory) / "bench.db", callers, ACCEPTED)))
        ratios[callers] = [store / bare for store, bare in zip(speeds["store"], speeds["bare writer"])]
        rows.append((callers, *(median(speeds[name]) for name in WRITERS)))
    return Report(
        [Table("Durable acceptances per second; each caller waits for each of its prompts",
               ("callers", *WRITERS), rows)],
        [Goal(f"durable acceptance by {callers} callers, store against bare writer", tuple(figures), "at least", 0.5,
              why=IN_PYTHON)
         for callers, figures in ratios.items()])
