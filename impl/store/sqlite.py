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
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice, takewhile
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from cancelmark.model.lifecycle import INITIAL

from .interface import Broken, Refused, Store, Unconfirmed, closed, discard, draw_name
from .opening import confirm, connect, hold, make_private, prepare
from .operations import AppendEvent
from .records import TERMINAL, Event, Life, Message, PromptRecord, SessionRecord, Transition
from .rows import (
    make_event,
    make_life,
    make_mark,
    make_message,
    make_prompt,
    make_records,
    make_session,
    make_transition,
)
from .schema import check_identity, migrate
from .statements import APPEND_EVENT, FREEING, Statement, insert_many, make_statement
from .steps import Answer, Committed, Ledger, Snapshot, Steps, snapshots
from .tail import Tail
from .troubles import DAMAGED, explain, leaves_doubt

log = logging.getLogger("cancelmark.store")

V = TypeVar("V")

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

    def list_events(self) -> Iterator[tuple[Event, int]]:
        """What it has added to the log, each with its size."""
        if events := self.events:
            appended = (statement for statement in self.statements if statement.sql is APPEND_EVENT)
            for id, (op, _, values) in zip(events, appended):
                assert isinstance(op, AppendEvent)
                yield Event(id, op.session_id, op.run_id, op.type, op.payload), len(values[2])


class _TransactionLost(Exception):
    """SQLite has rolled back the whole transaction because of one batch."""

    def __init__(self, culprit: _Job) -> None:
        self.culprit = culprit


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What the writing thread has done since the store was opened."""

    batches: int  # those that were answered, whatever the answer
    commits: int  # transactions that were committed, each with one fsync


class SqliteStore(Store):
    """A store in one SQLite file, which belongs to one store at a time. It may be used from any thread.

    Beside the file are SQLite's own `-wal` and `-shm`, and an empty `-lock` that is held while the store is open. Other
    programs may read the file meanwhile. One that writes to it is waited for, for `timeout` seconds.
    """

    def __init__(self, path: str | PathLike[str], *, timeout: float = 5.0) -> None:
        self.path = Path(path).resolve()
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
        self._ledger = Ledger()  # the writing thread's, except for what is settled
        self._reading = threading.Lock()
        self._lock = threading.Lock()  # guards the three below
        self._changed = threading.Condition(self._lock)
        self._waiting: list[_Job] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        self._open = True
        self._tail = Tail()  # the writing thread makes it, and everybody reads it
        self._life = draw_name()
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

    async def load(self, session_id: str) -> Snapshot:
        versions = self._ledger.settled()
        with self._borrow_reader() as reader:
            return _load(self.path, reader, session_id, versions)

    async def load_all(self) -> list[Snapshot]:
        versions = self._ledger.settled()
        with self._borrow_reader() as reader:
            return _load_all(self.path, reader, versions)

    async def prompt(self, key: str | int) -> PromptRecord | None:
        column = "seq" if isinstance(key, int) else "run_id"
        found = self._read(make_prompt, f"SELECT {_PROMPT} FROM prompts WHERE {column} = ?", key)
        return found[0] if found else None

    async def prompts(self, session_id: str, finished: int, *, before: int | None = None) -> list[PromptRecord]:
        done = (f"SELECT {_PROMPT} FROM prompts WHERE session_id = ? AND {_REMEMBERED} AND seq < ?"
                " ORDER BY seq DESC LIMIT ?")
        if before is not None:
            return self._read(make_prompt, done, session_id, before, finished)[::-1]
        return self._read(make_prompt, f"SELECT * FROM ({_UNFINISHED_OF_SESSION}) UNION ALL SELECT * FROM ({done})"
                                   " ORDER BY seq", session_id, session_id, _HIGHEST, finished)

    async def done_prompts(self, until: int, limit: int, *, before: int | None = None) -> list[PromptRecord]:
        found = (f"SELECT {_PROMPT}, done_at FROM prompts WHERE {_REMEMBERED} AND seq <= ?"
                 " AND seq < (SELECT max(seq) FROM prompts) ORDER BY seq LIMIT ?")
        with self._borrow_reader() as reader:
            rows = reader.execute(found, (until, limit)).fetchall()
        old = takewhile(lambda row: before is None or row[-1] < before, rows)
        return make_records(self.path, make_prompt, (row[:-1] for row in old))

    async def transitions(self, seq: int) -> list[Transition]:
        return self._read(
            make_transition,
            "SELECT seq, ? AS state, NULL AS outcome, 0 AS position FROM prompts WHERE seq = ? AND digest IS NULL"
            " UNION ALL"
            " SELECT seq, state, outcome, position FROM transitions WHERE seq = ? ORDER BY position",
            INITIAL.value, seq, seq)

    async def latest_seq(self) -> int:
        return max(self._read(int, "SELECT coalesce(max(seq), 0) FROM prompts"
                                   " UNION ALL SELECT coalesce(max(mark), 0) FROM sessions"))

    async def sessions(self) -> list[SessionRecord]:
        return self._read(make_session, "SELECT id, title, mark, created_at FROM sessions ORDER BY rowid")

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[Message]:
        where, values = ["session_id = ?"], [session_id]
        for relation, id in ((">=", since), ("<", before)):
            if id is not None:
                where.append(f"position {relation} (SELECT position FROM messages WHERE id = ? AND session_id = ?)")
                values += [id, session_id]
        found = self._read(
            make_message, "SELECT id, session_id, role, parts, model, provider, created_at, updated_at"
                      f" FROM messages WHERE {' AND '.join(where)} ORDER BY position DESC LIMIT ?",
            *values, -1 if last is None else last)
        return found[::-1]

    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        if self._open and (found := self._tail.find(after, until, session, terminal, limit)) is not None:
            return found
        where: list[str] = ["id > ?"]
        values: list[int | str] = [after]
        for condition, value in (("id <= ?", until), ("session_id = ?", session), ("type = ?", terminal and TERMINAL)):
            if value is not None and value is not False:  # until = 0 is a condition
                where.append(condition)
                values.append(value)
        return self._read(
            make_event, f"SELECT id, session_id, run_id, type, payload FROM events WHERE {' AND '.join(where)}"
                    " ORDER BY id LIMIT ?", *values, -1 if limit is None else limit)

    async def latest_event(self) -> int:
        return self._read(int, "SELECT coalesce(max(id), 0) FROM events")[0]

    async def first_event(self, since: int = 0) -> int:
        first, latest = self._read(int, "SELECT coalesce(min(id), 1) FROM events"
                                        " UNION ALL SELECT coalesce(max(id), 0) FROM events")
        made_at = partial(self._read, int, "SELECT made_at FROM events WHERE id = ?")
        ids = range(first, latest + 1)
        return first + bisect_left(ids, [since], key=made_at)

    async def lives(self) -> list[Life]:
        with self._borrow_reader() as reader:
            return _list_lives(self.path, reader, self._life)

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

    def _read(self, make: Callable[..., V], sql: str, *values: Any) -> list[V]:
        with self._borrow_reader() as reader:
            return make_records(self.path, make, reader.execute(sql, values).fetchall())

    @contextmanager
    def _borrow_reader(self) -> Iterator[sqlite3.Connection]:
        """The connection that reads, for one at a time."""
        with self._reading:
            if not self._open:
                raise closed(self.path)
            try:
                yield self._reader
            except sqlite3.Error as error:
                if hasattr(error, "sqlite_errorcode"):
                    raise explain(self.path, error) from error
                problem, remedy = DAMAGED  # a text that is not UTF-8
                raise Broken(self.path, f"{problem}: {error}", remedy) from error

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
                    ids += self._execute(run)
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
                job.answer = self._ledger.add(job.steps, self._execute(job.statements))
            else:
                load = partial(_load, self.path, self._writer, job.steps.session_id)
                job.answer = self._ledger.refuse(job.steps, load)
        except Exception as error:
            job.error = explain(self.path, error)
            if not self._writer.in_transaction:
                raise _TransactionLost(job) from error
            self._writer.execute("ROLLBACK TO batch")
        self._writer.execute("RELEASE batch")

    def _execute(self, statements: Iterable[Statement]) -> tuple[int, ...]:
        """Executes a batch and returns the ids of its events."""
        ids: list[int] = []
        for statement in statements:
            try:
                cursor = self._writer.execute(statement.sql, statement.values)
            except sqlite3.IntegrityError as error:
                raise Refused(self.path, statement.operation) from error
            if cursor.rowcount != 1:
                raise Refused(self.path, statement.operation)
            if isinstance(statement.operation, AppendEvent):
                assert cursor.lastrowid is not None
                ids.append(cursor.lastrowid)
        return tuple(ids)

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
        if _make_room(group):
            self._tail = Tail()
        appending = [job for job in group if job.events]
        latest = max((job.events[-1] for job in appending), default=0)
        listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        if appending:
            self._tail = self._tail.grow(event for job in appending for event in job.list_events())
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


_PROMPT = ("seq, session_id, text, run_id, state, outcome, digest, attachments, revoked, front, version, begun, urgent,"
           " first, taken_in_by")
_REMEMBERED = "state = 'done' AND digest IS NULL"
_UNFINISHED = f"SELECT {_PROMPT} FROM prompts WHERE state <> 'done'"
_UNFINISHED_OF_SESSION = f"{_UNFINISHED} AND +session_id = ?"  # with the plus the index of those is used, not of all
_HIGHEST = 2**63 - 1


def _load(path: Path, db: sqlite3.Connection, session_id: str, versions: Mapping[str, int]) -> Snapshot:
    with _one_moment(db):
        marks = db.execute("SELECT id, mark, held FROM sessions WHERE id = ?", (session_id,)).fetchall()
        prompts = db.execute(f"{_UNFINISHED_OF_SESSION} ORDER BY seq", (session_id,)).fetchall()
    if not marks:
        raise LookupError(f"there is no session {session_id}")
    return _make_snapshots(path, versions, marks, prompts)[0]


def _load_all(path: Path, db: sqlite3.Connection, versions: Mapping[str, int]) -> list[Snapshot]:
    with _one_moment(db):
        marks = db.execute("SELECT id, mark, held FROM sessions ORDER BY rowid").fetchall()
        prompts = db.execute(f"{_UNFINISHED} ORDER BY seq").fetchall()
    return _make_snapshots(path, versions, marks, prompts)


def _make_snapshots(path: Path, versions: Mapping[str, int], marks: Iterable[Sequence[Any]],
                    prompts: Iterable[Sequence[Any]]) -> list[Snapshot]:
    return snapshots(versions, make_records(path, make_mark, marks), make_records(path, make_prompt, prompts))


def _list_lives(path: Path, db: sqlite3.Connection, this: str) -> list[Life]:
    """The lives that have written the log, and this one, which may be still to write its first event."""
    with _one_moment(db):
        latest = db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
        lives = make_records(path, make_life, db.execute("SELECT first, name FROM lives ORDER BY first").fetchall())
    if not lives or lives[-1].name != this:
        lives.append(Life(latest + 1, this))
    return lives


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read here is of one moment."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
