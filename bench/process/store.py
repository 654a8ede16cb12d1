"""How fast acceptances become durable when many callers accept at the same time, against SQLite alone.

**The bare writer** is what one would write without a store: a thread with a connection of its own, the same settings
(WAL, `synchronous=FULL`), one table with the fields of a prompt (seq as primary key, unique run id), and the same group
commit: the thread takes all rows that wait, inserts them with one `executemany`, commits, and answers the callers'
futures. It checks nothing, keeps no history of transitions, and one bad row fails the whole group.

Each caller accepts one prompt after the other and waits for each, on both sides and on the same disk. Both are measured
alternately, in files of their own.
"""

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cancelmark.impl.runtime import Runtime
from cancelmark.impl.store import AcceptPrompt, NewSession, SqliteStore

from ..report import Goal, Report, Table
from ..setting import Setting
from .models import Endless

CALLERS = (16, 128, 1024)  # at the same time
PROMPTS = 8192  # in all

Row = tuple[int, str, str, str, str]
Accept = Callable[[int, int], Awaitable[object]]  # of a caller's number and a seq


IN_PYTHON = ("By profile the store's thread has the interpreter lock for a seventh of the time, and the event loop "
             "for four fifths: a future and a callback for each caller, as with the bare writer, and besides its "
             "steps, their statement and their place in the ledger, nine objects where the bare writer makes two.")


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
    """Prompts a second, when so many callers share them."""
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


async def accepted(path: Path, callers: int, prompts: int) -> float:
    """The runtime's acceptance. What it has accepted enters the queue meanwhile: the machine moves it, and that is
    journaled too."""
    store = SqliteStore(path)
    async with Runtime(Endless(), store) as runtime:
        for caller in range(callers):
            await runtime.create_session(f"s{caller}")
            await runtime.accept(f"s{caller}", "first")
        return await load(callers, prompts, lambda caller, seq: runtime.accept(f"s{caller}", "hello", f"r{seq}"))


WRITERS: Mapping[str, Callable[[Path, int, int], Coroutine[Any, Any, float]]] = {
    "bare writer": bare, "store": stored, "runtime": accepted}


def measure(setting: Setting) -> Report:
    """Acceptances a second. The disk is that of the temporary directory."""
    rows = []
    ratios: dict[int, list[float]] = {}
    for callers in CALLERS:
        speeds: dict[str, list[float]] = {name: [] for name in WRITERS}
        for _ in range(setting.rounds):
            for name, write in WRITERS.items():
                with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
                    speeds[name].append(asyncio.run(write(Path(directory) / "bench.db", callers, PROMPTS)))
        ratios[callers] = [store / bare for store, bare in zip(speeds["store"], speeds["bare writer"])]
        rows.append((callers, *(median(speeds[name]) for name in WRITERS)))
    return Report(
        [Table("Durable acceptances a second, each caller waiting for each of its own",
               ("callers", *WRITERS), rows)],
        [Goal(f"durable acceptance by {callers} callers, store against bare writer", tuple(figures), "at least", 0.5,
              why=IN_PYTHON)
         for callers, figures in ratios.items()],
        ["The runtime's figure is no goal: each of its acceptances comes with an entry into the queue, that is one"
         " trigger of the machine and a second journaled transition."])
