"""A store in an SQLite file.

**Group commit.** One thread owns the writing connection. While it commits, batches gather; all that have gathered go
into the next transaction together and share its one fsync. If one of them fails, all are applied once more, each in a
savepoint of its own, and that one fails alone. A refusal depends on what was committed before it. So when the commit
fails, the refused batches of its group fail with it: otherwise a caller could learn that a run id is in use by a prompt
that was never kept.

**A failed commit is not over.** SQLite writes a commit to its log and then has the disk confirm it. If the disk fails
to confirm, the commit is still in the log, where a restart may find it: it is unknown whether it is on the disk or only
in the page cache. So the store answers with the failure only when something else is durable in its place: an empty
commit, written over the failed one, whose checksums make the rest of the failed one unreadable. If the disk does not
confirm the empty commit either, the callers learn that the outcome is unknown (`Unconfirmed`). Later callers are
refused before anything of theirs is written, until the disk confirms again.
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
from .steps import CommitAnswer, CommitRequest, Committed
from .tables import SqlStore
from .troubles import explain, leaves_doubt

log = logging.getLogger("cancelmark.store")

DOUBT = 1.0  # seconds between attempts to resolve an unconfirmed commit while no batch comes

GIVEN_BACK = 4096  # at most this many pages are released per commit

ROWS = 16  # rows inserted by one statement, if so many wait

_get_sql = attrgetter("sql")


@dataclass(slots=True, eq=False)
class _Job:
    """A commit request that a caller waits for, and its outcome."""

    steps: CommitRequest
    statements: list[Statement]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[CommitAnswer]
    answer: CommitAnswer | None = None
    error: Exception | None = None

    @property
    def events(self) -> tuple[int, ...]:
        """The ids of the events that it appended."""
        return self.answer.events if self.error is None and isinstance(self.answer, Committed) else ()


class _TransactionLost(Exception):
    """SQLite has rolled back the whole transaction because of one batch."""

    def __init__(self, culprit: _Job) -> None:
        self.culprit = culprit


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What the writing thread has done since the store was opened."""

    batches: int  # answered, whatever the answer
    commits: int  # committed transactions, each with one fsync


class SqliteStore(SqlStore):
    """A store in one SQLite file, which belongs to one store at a time. Thread-safe.

    Beside the file are SQLite's own `-wal` and `-shm`, and an empty `-lock` that is locked while the store is open.
    Other programs may read the file meanwhile. If another program writes to it, the store waits up to `timeout`
    seconds.
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
        self._lock = threading.Lock()  # guards `_open`, `_waiting` and `_listeners`
        self._changed = threading.Condition(self._lock)
        self._waiting: list[_Job] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        self._named = False  # whether this life is in the file; used only by the writing thread
        self._doubtful = False  # whether a restart may find a failed commit; used only by the writing thread
        self._batches = self._commits = 0
        # A daemon thread, so a program can exit without closing the store: for the file that is a crash.
        self._thread = threading.Thread(target=self._write_all, name=f"store {self.path.name}", daemon=True)
        self._thread.start()

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
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
        """The counts so far."""
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
            group = self._take()  # only now, to include what came while another program held the lock
            if error is None:
                self._commit(group)
            else:
                self._fail(group, error)
            self._tell(group)

    def _wait(self) -> bool:
        """Wait for a batch, and resolve an unconfirmed commit meanwhile. Returns False if the store is closed and none
        is left."""
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
        """Commit the open transaction with all batches of the group, except those that fail on their own."""
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
        """Release free pages to the disk, as a part of the open transaction."""
        try:
            free = self._writer.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free, GIVEN_BACK)):
                self._writer.execute("PRAGMA incremental_vacuum(1)")  # from Python, each call releases one page
        except sqlite3.Error as error:
            return error
        return None

    def _confirm_commit(self) -> Exception | None:
        """Commit the open transaction. A failure is reported only once a restart cannot find the transaction, or as
        `Unconfirmed`."""
        error = self._attempt("COMMIT")
        if error is None or not leaves_doubt(error):
            return error
        self._doubtful = True
        if self._end_doubt() is None:
            return error
        unconfirmed = Unconfirmed(self.path, "the disk failed during the commit, and its outcome is unknown",
                                  "check the disk, then retry (a prompt under the same run id)")
        unconfirmed.__cause__ = error
        log.error("commit not confirmed, a restart may find it: %s", explain(self.path, error))
        return unconfirmed

    def _end_doubt(self) -> sqlite3.Error | None:
        """Make an empty commit durable in place of an unconfirmed one. Returns the error if that is not possible."""
        if not self._doubtful:
            return None
        self._roll_back()
        error = (self._attempt("BEGIN IMMEDIATE") or self._attempt(f"PRAGMA user_version = {self._version}")
                 or self._attempt("COMMIT"))
        if error is None:
            self._doubtful = False
            log.warning("%s: an unconfirmed commit is now known to be rolled back", self.path)
        else:
            self._roll_back()
        return error

    def _apply_together(self, jobs: Sequence[_Job]) -> bool:
        """Execute all steps in order. Returns False, and has no effect, if some conflict or fail."""
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
        """Execute a statement for each of the rows. Many rows are inserted by one statement: each statement releases
        the interpreter lock, and a computing thread may then keep it for a while."""
        done = changed = 0
        while len(rows) - done >= ROWS and (many := insert_many(sql, ROWS)):
            changed += self._writer.execute(many, list(chain.from_iterable(rows[done:done + ROWS]))).rowcount
            done += ROWS
        if done < len(rows):
            changed += self._writer.executemany(sql, rows[done:]).rowcount
        if changed != len(rows):
            raise sqlite3.IntegrityError

    def _apply_each(self, jobs: list[_Job]) -> sqlite3.Error | None:
        """Execute the steps one by one, so that each can fail alone. Requests that abort the whole
        transaction are removed from the list, and the rest starts again. Returns the error if no transaction can be
        opened."""
        while True:
            error = self._attempt("BEGIN IMMEDIATE")
            if error is not None:
                return error
            try:
                for job in jobs:
                    self._apply(job)
                return None
            except _TransactionLost as lost:  # by a full disk, for example; the others may still fit
                self._ledger.take_back()
                jobs.remove(lost.culprit)

    def _apply(self, job: _Job) -> None:
        """Execute the steps in a savepoint. If they fail, the transaction is as it was before."""
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
        """Roll the transaction back, and fail all of these with the error."""
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
        """Notify the listeners, then answer the callers. Each event loop is woken once."""
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
            with suppress(RuntimeError):  # the loop is closed, with its waiters
                loop.call_soon_threadsafe(_tell, heard, latest, [job for job in group if job.loop is loop])


def _make_room(jobs: Iterable[_Job]) -> bool:
    """Whether a batch among them deletes something."""
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
