"""A store in an SQLite file.

**Group commit.** One thread owns the connection that writes. While it commits, batches gather, and all that have
gathered go into the next transaction together and share its one fsync. If one of them fails, all are applied once more,
each in a savepoint of its own, and that one fails alone. A refusal is true only of what was committed before it: when
the commit fails, the refused batches of its group fail with it, or a caller could be told that a run id is in use by a
prompt that was never kept.
"""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, starmap
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cancelmark.model.lifecycle import INITIAL, Outcome, State

from .interface import Broken, Refused, Store, StoreError, Unstorable, closed, discard
from .operations import AcceptPrompt, AppendEvent, MovePrompt, NewSession, Operation, PutMessage, RaiseMark
from .records import TERMINAL, Event, Message, PromptRecord, SessionRecord, Transition
from .schema import check_identity, migrate
from .steps import Answer, Committed, Ledger, Snapshot, Steps, snapshots

V = TypeVar("V")

# What may pass: a batch that met it can be written again.
_TROUBLES: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("the database is locked by another program", "end that program, or wait until it is done"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "make the file and its directory writable"),
    sqlite3.SQLITE_FULL: ("the disk is full", "make room and try again; nothing of the batch was kept"),
    sqlite3.SQLITE_IOERR: ("the disk could not be read or written",
                           "check its space, its limits and its health, and try again"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened",
                              "choose a file, in a directory that exists and may be written"),
    sqlite3.SQLITE_NOMEM: ("there is not enough memory", "end other programs and try again"),
}
# What does not.
_NOT_A_DATABASE = ("the file is not a database", "choose another file, or move this one out of the way")
_DAMAGED = ("the database is damaged", "restore a backup, or save what is left: sqlite3 FILE .recover")


def _explained(where: object, error: Exception) -> StoreError:
    """The error that a caller gets for one that SQLite, or the conversion to and from it, has raised."""
    if isinstance(error, StoreError):
        return error
    explained = _explanation(where, error)
    explained.__cause__ = error
    return explained


def _explanation(where: object, error: Exception) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    if code in _TROUBLES:
        return StoreError(where, *_TROUBLES[code])
    if code == sqlite3.SQLITE_NOTADB:
        return Broken(where, *_NOT_A_DATABASE)
    if code == sqlite3.SQLITE_CORRUPT:
        return Broken(where, *_DAMAGED)
    if code == sqlite3.SQLITE_TOOBIG or not code:  # without a code it is not the database that failed
        return Unstorable(where, f"the batch has a value that cannot be stored: {error}", "nothing of it was kept")
    return Broken(where, f"the database failed: {error}", "nothing of the batch was kept")


_NEW_SESSION = "INSERT INTO sessions (id, title, mark, created_at) VALUES (?, ?, 0, ?)"
_RAISE_MARK = "UPDATE sessions SET mark = max(mark, ?) WHERE id = ?"
_ACCEPT_PROMPT = "INSERT INTO prompts (seq, session_id, text, run_id, state) VALUES (?, ?, ?, ?, ?)"
_MOVE_PROMPT = "UPDATE prompts SET state = ?, outcome = ? WHERE seq = ? AND state <> 'done'"
_PUT_MESSAGE = """
    INSERT INTO messages (id, session_id, role, parts, model, provider, created_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        role = excluded.role, parts = excluded.parts, model = excluded.model, provider = excluded.provider,
        created_at = excluded.created_at, updated_at = excluded.updated_at
        WHERE session_id = excluded.session_id
"""
_APPEND_EVENT = "INSERT INTO events (session_id, type, payload, run_id) VALUES (?, ?, ?, ?)"


class _Statement(NamedTuple):
    """An operation as SQL. It was allowed if and only if it changed one row."""

    operation: Operation
    sql: str
    values: tuple[Any, ...]


def _statement(op: Operation) -> _Statement:
    match op:
        case NewSession():
            return _Statement(op, _NEW_SESSION, (op.id, op.title, op.created_at))
        case RaiseMark():
            return _Statement(op, _RAISE_MARK, (op.mark, op.session_id))
        case AcceptPrompt():
            return _Statement(op, _ACCEPT_PROMPT, (op.seq, op.session_id, op.text, op.run_id, INITIAL.value))
        case MovePrompt():
            return _Statement(op, _MOVE_PROMPT, (op.state.value, op.outcome and op.outcome.value, op.seq))
        case PutMessage(m):
            return _Statement(op, _PUT_MESSAGE, (m.id, m.session_id, m.role, _dumps(m.parts), m.model, m.provider,
                                                 m.created_at, m.updated_at))
        case AppendEvent():
            return _Statement(op, _APPEND_EVENT, (op.session_id, op.type, _dumps(op.payload), op.run_id))


_dumps = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True, eq=False)
class _Job:
    """Steps that a caller waits for, and then what came of them."""

    steps: Steps
    statements: list[_Statement]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Answer]
    answer: Answer | None = None
    error: Exception | None = None


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
                self._writer = connections.enter_context(closing(_connect(self.path, timeout)))
                check_identity(self.path, self._writer)
                lock = connections.enter_context(closing(_connect(Path(f"{self.path}-lock"), timeout=0)))
                _hold(self.path, lock)
                _prepare(self._writer)
                migrate(self.path, self._writer)
                self._reader = connections.enter_context(closing(_connect(self.path, timeout)))
                self._reader.execute("PRAGMA query_only = ON")
                self._connections = connections.pop_all()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error
        self._ledger = Ledger()  # the writing thread's, except for what is settled
        self._reading = threading.Lock()
        self._changed = threading.Condition()  # guards the three below
        self._waiting: list[_Job] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        self._open = True
        self._batches = self._commits = 0
        # A daemon, so that a program which ends without closing ends all the same: for the file that is a crash.
        self._thread = threading.Thread(target=self._write_all, name=f"store {self.path.name}", daemon=True)
        self._thread.start()

    def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        job = _Job(steps, [_statement(operation) for operation in steps.operations], loop, loop.create_future())
        with self._changed:
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
            return _load(reader, session_id, versions)

    async def load_all(self) -> list[Snapshot]:
        versions = self._ledger.settled()
        with self._borrow_reader() as reader:
            return _load_all(reader, versions)

    async def prompt(self, key: str | int) -> PromptRecord | None:
        column = "seq" if isinstance(key, int) else "run_id"
        found = self._read(_prompt, f"SELECT {_PROMPT} FROM prompts WHERE {column} = ?", key)
        return found[0] if found else None

    async def prompts(self, session_id: str, finished: int) -> list[PromptRecord]:
        return self._read(
            _prompt, f"SELECT {_PROMPT} FROM prompts WHERE session_id = ? AND (state <> 'done' OR seq IN"
                     " (SELECT seq FROM prompts WHERE session_id = ? AND state = 'done' ORDER BY seq DESC LIMIT ?))"
                     " ORDER BY seq", session_id, session_id, finished)

    async def transitions(self, seq: int) -> list[Transition]:
        return self._read(
            _transition, "SELECT seq, ? AS state, NULL AS outcome, 0 AS position FROM prompts WHERE seq = ? UNION ALL"
                         " SELECT seq, state, outcome, position FROM transitions WHERE seq = ? ORDER BY position",
            INITIAL.value, seq, seq)

    async def latest_seq(self) -> int:
        return max(self._read(int, "SELECT coalesce(max(seq), 0) FROM prompts"
                                   " UNION ALL SELECT coalesce(max(mark), 0) FROM sessions"))

    async def sessions(self) -> list[SessionRecord]:
        return self._read(SessionRecord, "SELECT id, title, mark, created_at FROM sessions ORDER BY rowid")

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[Message]:
        where, values = ["session_id = ?"], [session_id]
        for relation, id in ((">=", since), ("<", before)):
            if id is not None:
                where.append(f"position {relation} (SELECT position FROM messages WHERE id = ? AND session_id = ?)")
                values += [id, session_id]
        found = self._read(
            _message, "SELECT id, session_id, role, parts, model, provider, created_at, updated_at"
                      f" FROM messages WHERE {' AND '.join(where)} ORDER BY position DESC LIMIT ?",
            *values, -1 if last is None else last)
        return found[::-1]

    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        where: list[str] = ["id > ?"]
        values: list[int | str] = [after]
        for condition, value in (("id <= ?", until), ("session_id = ?", session), ("type = ?", terminal and TERMINAL)):
            if value is not None and value is not False:  # until = 0 is a condition
                where.append(condition)
                values.append(value)
        return self._read(
            _event, f"SELECT id, session_id, run_id, type, payload FROM events WHERE {' AND '.join(where)}"
                    " ORDER BY id LIMIT ?", *values, -1 if limit is None else limit)

    async def latest_event(self) -> int:
        return self._read(int, "SELECT coalesce(max(id), 0) FROM events")[0]

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        entry = (asyncio.get_running_loop(), listener)
        with self._changed:
            self._listeners.append(entry)

        def unwatch() -> None:
            with self._changed:
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
            return [make(*row) for row in reader.execute(sql, values).fetchall()]

    @contextmanager
    def _borrow_reader(self) -> Iterator[sqlite3.Connection]:
        """The connection that reads, for one at a time."""
        with self._reading:
            if not self._open:
                raise closed(self.path)
            try:
                yield self._reader
            except ValueError as error:  # a row that no store has written
                raise Broken(self.path, *_DAMAGED) from error
            except sqlite3.Error as error:
                raise _explained(self.path, error) from error

    # --- the writing thread

    def _write_all(self) -> None:
        while self._wait():
            try:
                self._writer.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                group = self._take()
                self._fail(group, error)
            else:
                group = self._take()  # only now: what came while another program held the lock is in it
                self._commit(group)
            self._tell(group)

    def _wait(self) -> bool:
        """Waits for a batch. False if there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            return bool(self._waiting)

    def _take(self) -> list[_Job]:
        with self._changed:
            group, self._waiting = self._waiting, []
        return group

    def _commit(self, group: Iterable[_Job]) -> None:
        """Commits the open transaction with all batches of the group in it, except for those that fail on their own."""
        jobs = list(group)
        error = None if self._apply_together(jobs) else self._apply_each(jobs)
        error = error or self._attempt("COMMIT")
        if error is None:
            self._ledger.settle()
            self._commits += 1
        else:
            self._fail(jobs, error)

    def _apply_together(self, jobs: Sequence[_Job]) -> bool:
        """Executes all steps, in their order. False, and nothing is done, if some do not fit or fail."""
        ids: list[int] = []
        try:
            for job in jobs:
                if not self._ledger.fits(job.steps):
                    raise sqlite3.IntegrityError
                self._ledger.add(job.steps)
            self._ledger.take_back()
            for sql, run in groupby((s for job in jobs for s in job.statements), key=lambda s: s.sql):
                if sql is _APPEND_EVENT:
                    ids += self._execute(run)
                else:
                    rows = [statement.values for statement in run]
                    if self._writer.executemany(sql, rows).rowcount != len(rows):
                        raise sqlite3.IntegrityError
        except Exception:
            self._ledger.take_back()
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            return False
        given = iter(ids)
        for job in jobs:
            number = sum(statement.sql is _APPEND_EVENT for statement in job.statements)
            job.answer = self._ledger.add(job.steps, tuple(islice(given, number)))
        return True

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
                job.answer = self._ledger.refuse(job.steps, partial(_load, self._writer, job.steps.session_id))
        except Exception as error:
            job.error = _explained(self.path, error)
            if not self._writer.in_transaction:
                raise _TransactionLost(job) from error
            self._writer.execute("ROLLBACK TO batch")
        self._writer.execute("RELEASE batch")

    def _execute(self, statements: Iterable[_Statement]) -> tuple[int, ...]:
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
            job.error = _explained(self.path, error)
        if self._writer.in_transaction:
            self._attempt("ROLLBACK")

    def _attempt(self, sql: str) -> sqlite3.Error | None:
        try:
            self._writer.execute(sql)
        except sqlite3.Error as error:
            return error
        return None

    def _tell(self, group: Sequence[_Job]) -> None:
        """Tells the listeners, and after them the callers."""
        self._batches += len(group)
        answers = [job.answer for job in group if job.error is None]
        latest = max((id for answer in answers if isinstance(answer, Committed) for id in answer.events[-1:]),
                     default=None)
        if latest is not None:
            with self._changed:
                listeners = list(self._listeners)
            for loop, listener in listeners:
                _call(loop, listener, latest)
        for loop, jobs in groupby(group, key=lambda job: job.loop):
            _call(loop, _answer, list(jobs))


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[V], None], argument: V) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(function, argument)


def _answer(jobs: Iterable[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # canceled
            continue
        if job.error is None:
            assert job.answer is not None
            job.future.set_result(job.answer)
        else:
            job.future.set_exception(job.error)


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def _hold(path: Path, lock: sqlite3.Connection) -> None:
    """Makes the database this store's own, until the connection is closed or the process is gone."""
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise StoreError(path, "another store has the database open, in this process or another",
                         "close that one, or choose another file") from error


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")


_PROMPT = "seq, session_id, text, run_id, state, outcome"
_UNFINISHED = f"SELECT {_PROMPT} FROM prompts WHERE state <> 'done'"


def _load(db: sqlite3.Connection, session_id: str, versions: Mapping[str, int]) -> Snapshot:
    with _one_moment(db):
        marks = db.execute("SELECT id, mark FROM sessions WHERE id = ?", (session_id,)).fetchall()
        prompts = db.execute(f"{_UNFINISHED} AND session_id = ? ORDER BY seq", (session_id,)).fetchall()
    if not marks:
        raise LookupError(f"there is no session {session_id}")
    return snapshots(versions, marks, starmap(_prompt, prompts))[0]


def _load_all(db: sqlite3.Connection, versions: Mapping[str, int]) -> list[Snapshot]:
    with _one_moment(db):
        marks = db.execute("SELECT id, mark FROM sessions ORDER BY rowid").fetchall()
        prompts = db.execute(f"{_UNFINISHED} ORDER BY seq").fetchall()
    return snapshots(versions, marks, starmap(_prompt, prompts))


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


def _prompt(seq: int, session_id: str, text: str, run_id: str | None, state: str, outcome: str | None) -> PromptRecord:
    return PromptRecord(seq, session_id, text, run_id, State(state), None if outcome is None else Outcome(outcome))


def _transition(seq: int, state: str, outcome: str | None, position: int) -> Transition:
    return Transition(seq, State(state), None if outcome is None else Outcome(outcome))


def _message(id: str, session_id: str, role: str, parts: str, *rest: Any) -> Message:
    return Message(id, session_id, role, tuple(json.loads(parts)), *rest)


def _event(id: int, session_id: str, run_id: str | None, type: str, payload: str) -> Event:
    return Event(id, session_id, run_id, type, json.loads(payload))
