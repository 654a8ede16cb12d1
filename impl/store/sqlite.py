"""A store in an SQLite file.

**Group commit.** One thread owns the connection that writes. While it commits, batches gather, and all that have
gathered go into the next transaction together and share its one fsync. If one of them fails, all are applied once more,
each in a savepoint of its own, and that one fails alone. A refusal is true only of what was committed before it: when
the commit fails, the refused batches of its group fail with it, or a caller could be told that a run id is in use by a
prompt that was never kept.

**A commit that fails is not over.** SQLite writes a commit to its log, then has the disk confirm it. If the disk fails
to confirm, the commit is still in the log, where a restart finds it: on the disk or in the page cache, nobody knows. So
a refusal is told only when something else is durable in its place: an empty commit, which is written over the one that
failed, and whose checksums make the rest of that one unreadable. If the disk does not confirm the empty one either, the
callers are told that nobody knows (`Unconfirmed`). Whoever comes after them is refused before anything of theirs is
written, until the disk confirms again.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

from .interface import Unconfirmed, closed, discard
from .opening import confirm, connect, hold, make_private, prepare
from .schema import check_identity, migrate
from .statements import APPEND_EVENT, FREEING, Statement, insert_many, make_statement
from .steps import Answer, Committed, Steps
from .tables import SqlStore
from .troubles import explain, leaves_doubt

log = logging.getLogger("cancelmark.store")

DOUBT = 1.0  # seconds between attempts to end a doubt that nobody else ends

GIVEN_BACK = 4096  # pages that one commit gives back to the disk, at most

ROWS = 16  # that one statement inserts, if so many wait

_get_sql = attrgetter("sql")


@dataclass(slots=True, eq=False)
class _Job:
    """Steps that a caller waits for, and then what came of them."""

    steps: Steps
    statements: list[Statement]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Answer]
    answer: Answer | None = None
    error: Exception | None = None

    @property
    def events(self) -> tuple[int, ...]:
        """The ids of what it adds to the log."""
        return self.answer.events if self.error is None and isinstance(self.answer, Committed) else ()


class _TransactionLost(Exception):
    """SQLite has rolled back the whole transaction because of one batch."""

    def __init__(self, culprit: _Job) -> None:
        self.culprit = culprit


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What the writing thread has done since the store was opened."""

    batches: int  # those that were answered, whatever the answer
    commits: int  # transactions that were committed, each with one fsync


class SqliteStore(SqlStore):
    """A store in one SQLite file, which belongs to one store at a time. It may be used from any thread.

    Beside the file are SQLite's own `-wal` and `-shm`, and an empty `-lock` that is held while the store is open. Other
    programs may read the file meanwhile. One that writes to it is waited for, for `timeout` seconds.
    """

    def __init__(self, path: str | PathLike[str], *, timeout: float = 5.0) -> None:
        self.path = Path(path).resolve()
        super().__init__(self.path)
        try:
            with ExitStack() as connections:
                make_private(self.path)
                self._writer = connections.enter_context(closing(connect(self.path, timeout)))
                check_identity(self.path, self._writer)
                make_private(Path(f"{self.path}-lock"))
                lock = connections.enter_context(closing(connect(Path(f"{self.path}-lock"), timeout=0)))
                hold(self.path, lock)
                prepare(self._writer)
                confirm(self.path, self._writer)
                migrate(self.path, self._writer)
                self._version: int = self._writer.execute("PRAGMA user_version").fetchone()[0]
                self._reader = connections.enter_context(closing(connect(self.path, timeout)))
                self._reader.execute("PRAGMA query_only = ON")
                self._connections = connections.pop_all()
        except sqlite3.Error as error:
            raise explain(self.path, error) from error
        self._lock = threading.Lock()  # guards `_open` and the two below
        self._changed = threading.Condition(self._lock)
        self._waiting: list[_Job] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        self._named = False  # the writing thread's: this life is in the file
        self._doubtful = False  # the writing thread's: a restart may find a commit that failed
        self._batches = self._commits = 0
        # A daemon, so that a program which ends without closing ends all the same: for the file that is a crash.
        self._thread = threading.Thread(target=self._write_all, name=f"store {self.path.name}", daemon=True)
        self._thread.start()

    def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        job = _Job(steps, [make_statement(operation) for operation in steps.operations], loop, loop.create_future())
        with self._lock:
            if not self._open:
                job.future.set_exception(closed(self.path))
                return job.future
            if not self._waiting:
                self._changed.notify()
            self._waiting.append(job)
        return job.future

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        entry = (asyncio.get_running_loop(), listener)
        with self._lock:
            self._listeners.append(entry)

        def unwatch() -> None:
            with self._lock:
                discard(self._listeners, entry)

        return unwatch

    def statistics(self) -> StoreStatistics:
        """What was written so far."""
        return StoreStatistics(self._batches, self._commits)

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()
        with self._reading:
            self._connections.close()

    # --- the writing thread

    def _write_all(self) -> None:
        while self._wait():
            error = self._end_doubt() or self._attempt("BEGIN IMMEDIATE")
            group = self._take()  # only now: what came while another program held the lock is in it
            if error is None:
                self._commit(group)
            else:
                self._fail(group, error)
            self._tell(group)

    def _wait(self) -> bool:
        """Waits for a batch, and ends a doubt meanwhile. False if there will be none any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open, DOUBT if self._doubtful else None)
                if self._waiting or not self._open:
                    return bool(self._waiting)
            self._end_doubt()

    def _take(self) -> list[_Job]:
        with self._lock:
            group, self._waiting = self._waiting, []
        return group

    def _commit(self, group: Iterable[_Job]) -> None:
        """Commits the open transaction with all batches of the group in it, except for those that fail on their own."""
        jobs = list(group)
        error: Exception | None = None if self._apply_together(jobs) else self._apply_each(jobs)
        appended = [] if self._named else [id for job in jobs for id in job.events]
        if error is None and appended:
            error = self._attempt("INSERT INTO lives (first, name) VALUES (?, ?)", min(appended), self._life)
        if error is None and _make_room(jobs):
            error = self._give_back()
        if error is None:
            error = self._confirm_commit()
        if error is None:
            self._named = self._named or bool(appended)
            self._ledger.settle()
            self._commits += 1
        else:
            self._fail(jobs, error)

    def _give_back(self) -> sqlite3.Error | None:
        """Gives pages that nothing is in any more back to the disk, as a part of the open transaction."""
        try:
            free = self._writer.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free, GIVEN_BACK)):
                self._writer.execute("PRAGMA incremental_vacuum(1)")  # from Python, one page a call
        except sqlite3.Error as error:
            return error
        return None

    def _confirm_commit(self) -> Exception | None:
        """Commits the open transaction. If that fails, it is told only once a restart cannot find the transaction."""
        error = self._attempt("COMMIT")
        if error is None or not leaves_doubt(error):
            return error
        self._doubtful = True
        if self._end_doubt() is None:
            return error
        unconfirmed = Unconfirmed(self.path, "the disk failed while it confirmed, and it is not known whether this is "
                                             "kept", "repeat it (a prompt under the same run id), and check the disk")
        unconfirmed.__cause__ = error
        log.error("a commit is not confirmed, and a restart may find it: %s", explain(self.path, error))
        return unconfirmed

    def _end_doubt(self) -> sqlite3.Error | None:
        """Makes something else durable where a restart may find a commit that failed. Returns why that is not
        possible."""
        if not self._doubtful:
            return None
        self._roll_back()
        error = (self._attempt("BEGIN IMMEDIATE") or self._attempt(f"PRAGMA user_version = {self._version}")
                 or self._attempt("COMMIT"))
        if error is None:
            self._doubtful = False
            log.warning("%s: a commit that failed is known not to be kept", self.path)
        else:
            self._roll_back()
        return error

    def _apply_together(self, jobs: Sequence[_Job]) -> bool:
        """Executes all steps, in their order. False, and nothing is done, if some do not fit or fail."""
        ledger = self._ledger
        ids: list[int] = []
        try:
            for job in jobs:
                if not ledger.fits(job.steps):
                    raise sqlite3.IntegrityError
                job.answer = ledger.add(job.steps)
            for sql, run in groupby([statement for job in jobs for statement in job.statements], key=_get_sql):
                if sql is APPEND_EVENT:
                    ids += self._execute(self._writer, run)
                else:
                    self._execute_all(sql, [values for _, _, values in run])
        except Exception:
            ledger.take_back()
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            return False
        if ids:
            given = iter(ids)
            for job in jobs:
                if number := sum(statement.sql is APPEND_EVENT for statement in job.statements):
                    assert isinstance(job.answer, Committed)
                    job.answer = ledger.add_events(job.steps, job.answer, tuple(islice(given, number)))
        return True

    def _execute_all(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Executes a statement for each of the rows. Many rows are inserted by one statement: the interpreter lock is
        let go for each statement, and whoever computes then may keep it for a while."""
        done = changed = 0
        while len(rows) - done >= ROWS and (many := insert_many(sql, ROWS)):
            changed += self._writer.execute(many, list(chain.from_iterable(rows[done:done + ROWS]))).rowcount
            done += ROWS
        if done < len(rows):
            changed += self._writer.executemany(sql, rows[done:]).rowcount
        if changed != len(rows):
            raise sqlite3.IntegrityError

    def _apply_each(self, jobs: list[_Job]) -> sqlite3.Error | None:
        """Executes the steps one by one, so that each can fail alone. One that costs the whole transaction is taken
        out of the list, and the rest begins anew. Returns the error if there is no transaction to be had."""
        while True:
            error = self._attempt("BEGIN IMMEDIATE")
            if error is not None:
                return error
            try:
                for job in jobs:
                    self._apply(job)
                return None
            except _TransactionLost as lost:  # a full disk does this; the others may still fit
                self._ledger.take_back()
                jobs.remove(lost.culprit)

    def _apply(self, job: _Job) -> None:
        """Executes the steps within a savepoint; if they fail, the transaction is as it was before."""
        job.error = None
        self._writer.execute("SAVEPOINT batch")
        try:
            if self._ledger.fits(job.steps):
                job.answer = self._ledger.add(job.steps, self._execute(self._writer, job.statements))
            else:
                load = partial(self._load, self._writer, job.steps.session_id)
                job.answer = self._ledger.refuse(job.steps, load)
        except Exception as error:
            job.error = explain(self.path, error)
            if not self._writer.in_transaction:
                raise _TransactionLost(job) from error
            self._writer.execute("ROLLBACK TO batch")
        self._writer.execute("RELEASE batch")

    def _fail(self, jobs: Iterable[_Job], error: Exception) -> None:
        """Gives up the transaction: all of these fail with the error."""
        self._ledger.take_back()
        for job in jobs:
            job.error = explain(self.path, error)
        self._roll_back()

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._attempt("ROLLBACK")

    def _attempt(self, sql: str, *values: Any) -> sqlite3.Error | None:
        try:
            self._writer.execute(sql, values)
        except sqlite3.Error as error:
            return error
        return None

    def _tell(self, group: Sequence[_Job]) -> None:
        """Tells the listeners, and after them the callers: each event loop is woken once."""
        self._batches += len(group)
        for job in group:
            self._extend_tail(job.statements, job.events)
        latest = max((job.events[-1] for job in group if job.events), default=0)
        listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        if latest:
            with self._lock:
                listeners = list(self._listeners)
        for loop in dict.fromkeys([loop for loop, _ in listeners] + [job.loop for job in group]):
            heard = [listener for where, listener in listeners if where is loop]
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_tell, heard, latest, [job for job in group if job.loop is loop])


def _make_room(jobs: Iterable[_Job]) -> bool:
    """Whether some of them do."""
    return not FREEING.isdisjoint([statement.sql for job in jobs for statement in job.statements])


def _tell(listeners: Iterable[Callable[[int], None]], latest: int, jobs: Iterable[_Job]) -> None:
    try:
        for listener in listeners:
            listener(latest)
    finally:
        _answer(jobs)


def _answer(jobs: Iterable[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # canceled
            continue
        if job.error is None:
            assert job.answer is not None
            job.future.set_result(job.answer)
        else:
            job.future.set_exception(job.error)
