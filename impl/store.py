"""What survives a crash: sessions and their marks, messages, the journal of prompts, and the log of events.

A caller describes a change as a batch of operations and awaits `Store.write`. A batch is kept as a whole or not at all,
and is durable when `write` returns; a prompt's end and its terminal event are put into one batch, so nobody can ever
find one without the other. Two stores have this interface: `SqliteStore`, a file, and `MemoryStore`, which keeps the
same promises except for the crash.

**Group commit.** One thread owns the connection that writes. While it commits, batches gather, and all that have
gathered go into the next transaction together and share its one fsync. Each is in a savepoint of its own, so a batch
that is refused fails alone. A refusal is true only of what was committed before it: when the commit fails, the refused
batches of its group fail with it, or a caller could be told that a run id is in use by a prompt that was never kept.

**Event ids** are given out inside the transaction, by the only writer, so that the order of ids is the order of
commits: whoever has read the log up to an id has missed nothing below it.

**What the store does not judge** is whether the lifecycle has a row for a move: only the machine moves prompts. It
refuses what would break the journal itself, such as a second end. More would hurt: after a batch that was lost to a
full disk, a prompt must still be able to end.
"""

import asyncio
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from cancelmark.model.lifecycle import INITIAL, Outcome, State

TERMINAL = "run_complete"  # the type of a terminal event
Json: TypeAlias = Mapping[str, Any]  # a JSON object; it must not be changed once it was handed over


# --- What is read -----------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session."""

    id: str
    title: str
    mark: int
    created_at: int


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A prompt as the journal has it. `outcome` is there if and only if it is done."""

    seq: int
    session_id: str
    text: str
    run_id: str | None
    state: State
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a prompt's history in the journal: the state that it came to."""

    seq: int
    state: State
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a session, with the fields that it has on the wire."""

    id: str
    session_id: str
    role: str
    parts: tuple[Json, ...]
    model: str = ""
    provider: str = ""
    created_at: int = 0
    updated_at: int = 0

    @property
    def finish_reason(self) -> str | None:
        """The reason in its finish part, or None while it has none."""
        return next((part["data"]["reason"] for part in self.parts if part["type"] == "finish"), None)


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the log. Ids rise in the order of commits and are never given out twice."""

    id: int
    session_id: str
    run_id: str | None
    type: str
    payload: Json

    @property
    def terminal(self) -> bool:
        return self.type == TERMINAL


# --- What is written --------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class NewSession:
    """A session with mark 0."""

    needs: ClassVar[str] = "an id that no session has"
    id: str
    title: str = ""
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class RaiseMark:
    """The session's mark becomes `mark`, unless it is higher already."""

    needs: ClassVar[str] = "a session that exists"
    session_id: str
    mark: int


@dataclass(frozen=True, slots=True)
class AcceptPrompt:
    """A prompt is accepted."""

    needs: ClassVar[str] = "a session that exists, a seq above 0 that no prompt has, and a run id that no prompt has"
    seq: int
    session_id: str
    text: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class MovePrompt:
    """A prompt comes to another state."""

    needs: ClassVar[str] = "a prompt that exists and is not done, and an outcome if and only if the new state is done"
    seq: int
    state: State
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class PutMessage:
    """The message is added to its session, or takes the place of the one with its id."""

    needs: ClassVar[str] = "a session that exists, and an id that no other session's message has"
    message: Message


@dataclass(frozen=True, slots=True)
class AppendEvent:
    """An event is added to the log."""

    needs: ClassVar[str] = "a session that exists"
    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


Operation: TypeAlias = NewSession | RaiseMark | AcceptPrompt | MovePrompt | PutMessage | AppendEvent
Batch: TypeAlias = Sequence[Operation]


# --- What goes wrong --------------------------------------------------------------------------------------------

class StoreError(Exception):
    """The store cannot do what was asked: where, what the problem is and what to do about it."""

    def __init__(self, where: object, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}; {remedy}")
        self.where, self.problem, self.remedy = str(where), problem, remedy


class Refused(StoreError):
    """A batch contradicts what is stored. Nothing of it is kept, and trying again cannot help."""

    def __init__(self, where: object, operation: Operation) -> None:
        super().__init__(where, f"refused {operation!r:.200}", f"it needs {operation.needs}")
        self.operation = operation


_TROUBLES: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_NOTADB: ("the file is not a database", "choose another file, or move this one out of the way"),
    sqlite3.SQLITE_BUSY: ("the database is locked by another program", "end that program, or wait until it is done"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "make the file and its directory writable"),
    sqlite3.SQLITE_FULL: ("the disk is full", "make room and try again; nothing of the batch was kept"),
    sqlite3.SQLITE_IOERR: ("the disk could not be read or written",
                           "check its space, its limits and its health, and try again"),
    sqlite3.SQLITE_CORRUPT: ("the database is damaged",
                             "restore a backup, or save what is left: sqlite3 FILE .recover"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened",
                              "choose a file, in a directory that exists and may be written"),
}


def _explained(where: object, error: Exception) -> StoreError:
    """The error that a caller gets for one that SQLite, or the conversion to and from it, has raised."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
        problem, remedy = _TROUBLES.get(code, (f"the database failed: {error}", "nothing of the batch was kept"))
    else:
        problem, remedy = f"the batch has a value that cannot be stored: {error}", "nothing of it was kept"
    explained = StoreError(where, problem, remedy)
    explained.__cause__ = error
    return explained


def _closed(where: object) -> StoreError:
    return StoreError(where, "the store is closed", "open it again")


# --- The interface ----------------------------------------------------------------------------------------------

class Store(ABC):
    """What both stores promise. Reading sees every batch that was committed, and never a part of one."""

    @abstractmethod
    async def write(self, batch: Batch) -> tuple[int, ...]:
        """Keeps the batch, all of it or none of it, and returns the ids of the events it appended, in order.

        When this returns, the batch is durable and all listeners have been told of its events. Batches are applied in
        the order in which the calls were made. When it raises `StoreError` nothing of the batch is kept, and the store
        can be used on. When the awaiting task is canceled the batch may or may not be kept, but never a part of it.
        (A disk that fails while it confirms a commit can leave one that was reported as failed to be found after a
        crash that follows at once; it is then found as a whole.)
        """

    @abstractmethod
    def prompt(self, run_id: str) -> PromptRecord | None:
        """The prompt with that run id, done or not."""

    @abstractmethod
    def unfinished(self) -> list[PromptRecord]:
        """The prompts that are not done, by seq."""

    @abstractmethod
    def transitions(self, seq: int) -> list[Transition]:
        """Every state that the prompt has come to, in order, the first being that of its acceptance."""

    @abstractmethod
    def latest_seq(self) -> int:
        """The highest seq that was ever given out, or 0. Marks count: a seq that a cancel has covered was given out,
        even if its prompt was never journaled, and the prompt that got it next would be canceled by that cancel."""

    @abstractmethod
    def sessions(self) -> list[SessionRecord]:
        """All sessions, in the order in which they were made."""

    @abstractmethod
    def messages(self, session_id: str) -> list[Message]:
        """The session's messages, in the order in which they were first put."""

    @abstractmethod
    def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
               terminal: bool = False, limit: int | None = None) -> list[Event]:
        """The events above id `after` and up to `until`, by id: of one session, only terminal ones, at most `limit`."""

    @abstractmethod
    def latest_event(self) -> int:
        """The highest id in the log, or 0."""

    @abstractmethod
    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """From now on calls `listener` with the highest id in the log after each commit that appended events, in the
        running event loop and before the writers are told. Returns a function that ends this."""

    @abstractmethod
    def close(self) -> None:
        """Finishes the writes that have been asked for and lets go of everything. Closing twice is closing once."""


# --- Memory -----------------------------------------------------------------------------------------------------

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore(Store):
    """A store that ends with its process. It keeps the whole history, as a file would, and is for one thread.

    `write` never suspends: it applies the batch and returns within the same step of the event loop.
    """

    WHERE = "memory"

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._prompts: dict[int, PromptRecord] = {}
        self._by_run_id: dict[str, int] = {}
        self._transitions: dict[int, tuple[Transition, ...]] = {}
        self._messages: dict[str, dict[str, Message]] = {}  # by session and id
        self._session_of: dict[str, str] = {}  # of a message
        self._events: list[Event] = []  # the event with id n is at n - 1
        self._listeners: list[Callable[[int], None]] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._open = True
        self._apply: dict[type[Operation], Callable[[Any], bool]] = {
            NewSession: self._new_session, RaiseMark: self._raise_mark, AcceptPrompt: self._accept_prompt,
            MovePrompt: self._move_prompt, PutMessage: self._put_message, AppendEvent: self._append_event,
        }

    async def write(self, batch: Batch) -> tuple[int, ...]:
        self._check_open()
        before = len(self._events)
        self._undo.clear()
        for operation in batch:
            if not self._apply[type(operation)](operation):
                self._take_back(before)
                raise Refused(self.WHERE, operation)
        latest = len(self._events)
        if latest > before:
            for listener in self._listeners:
                listener(latest)
        return tuple(range(before + 1, latest + 1))

    def prompt(self, run_id: str) -> PromptRecord | None:
        self._check_open()
        seq = self._by_run_id.get(run_id)
        return None if seq is None else self._prompts[seq]

    def unfinished(self) -> list[PromptRecord]:
        self._check_open()
        return sorted((p for p in self._prompts.values() if p.state is not State.DONE), key=lambda p: p.seq)

    def transitions(self, seq: int) -> list[Transition]:
        self._check_open()
        return list(self._transitions.get(seq, ()))

    def latest_seq(self) -> int:
        self._check_open()
        return max(max(self._prompts, default=0), max((s.mark for s in self._sessions.values()), default=0))

    def sessions(self) -> list[SessionRecord]:
        self._check_open()
        return list(self._sessions.values())

    def messages(self, session_id: str) -> list[Message]:
        self._check_open()
        return list(self._messages.get(session_id, {}).values())

    def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
               terminal: bool = False, limit: int | None = None) -> list[Event]:
        self._check_open()
        found: list[Event] = []
        end = len(self._events) if until is None else min(until, len(self._events))
        for index in range(max(after, 0), end):  # a slice would copy the whole rest for each page of a long log
            if len(found) == limit:
                break
            event = self._events[index]
            if (session is None or event.session_id == session) and (event.terminal or not terminal):
                found.append(event)
        return found

    def latest_event(self) -> int:
        self._check_open()
        return len(self._events)

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: _discard(self._listeners, listener)

    def close(self) -> None:
        self._open = False

    # --- one method for each operation: it says whether the operation is allowed, and changes nothing if not

    def _new_session(self, op: NewSession) -> bool:
        if op.id in self._sessions:
            return False
        self._put(self._sessions, op.id, SessionRecord(op.id, op.title, 0, op.created_at))
        self._put(self._messages, op.id, {})
        return True

    def _raise_mark(self, op: RaiseMark) -> bool:
        session = self._sessions.get(op.session_id)
        if session is None:
            return False
        if op.mark > session.mark:
            self._put(self._sessions, session.id, replace(session, mark=op.mark))
        return True

    def _accept_prompt(self, op: AcceptPrompt) -> bool:
        if op.session_id not in self._sessions or op.seq < 1 or op.seq in self._prompts or op.run_id in self._by_run_id:
            return False
        self._put(self._prompts, op.seq, PromptRecord(op.seq, op.session_id, op.text, op.run_id, INITIAL, None))
        self._put(self._transitions, op.seq, (Transition(op.seq, INITIAL, None),))
        if op.run_id is not None:
            self._put(self._by_run_id, op.run_id, op.seq)
        return True

    def _move_prompt(self, op: MovePrompt) -> bool:
        prompt = self._prompts.get(op.seq)
        if prompt is None or prompt.state is State.DONE or (op.state is State.DONE) != (op.outcome is not None):
            return False
        moved = PromptRecord(prompt.seq, prompt.session_id, prompt.text, prompt.run_id, op.state, op.outcome)
        self._put(self._prompts, op.seq, moved)
        self._put(self._transitions, op.seq,
                  (*self._transitions[op.seq], Transition(op.seq, op.state, op.outcome)))
        return True

    def _put_message(self, op: PutMessage) -> bool:
        message = op.message
        session_id = message.session_id
        if session_id not in self._sessions or self._session_of.get(message.id, session_id) != session_id:
            return False
        self._put(self._session_of, message.id, session_id)
        self._put(self._messages[session_id], message.id, message)
        return True

    def _append_event(self, op: AppendEvent) -> bool:
        if op.session_id not in self._sessions:
            return False
        self._events.append(Event(len(self._events) + 1, op.session_id, op.run_id, op.type, op.payload))
        return True

    def _put(self, table: dict[K, V], key: K, value: V) -> None:
        """Sets the key, and notes how to take that back."""
        self._undo.append((table, key, table.get(key)))
        table[key] = value

    def _take_back(self, events: int) -> None:
        """Makes everything as it was before the batch, when there were so many events."""
        del self._events[events:]
        for table, key, value in reversed(self._undo):
            if value is None:
                del table[key]
            else:
                table[key] = value

    def _check_open(self) -> None:
        if not self._open:
            raise _closed(self.WHERE)


def _discard(listeners: list[V], listener: V) -> None:
    with suppress(ValueError):
        listeners.remove(listener)


# --- SQLite -----------------------------------------------------------------------------------------------------

APPLICATION_ID = 0x434D_524B  # says in the file's header whose database it is: CMRK

# The script at index n takes a database from version n to n + 1. A script that was released is never changed.
MIGRATIONS: tuple[str, ...] = (
    f"""
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE sessions (
        id TEXT NOT NULL PRIMARY KEY,
        title TEXT NOT NULL,
        mark INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE messages (
        position INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES sessions,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        model TEXT NOT NULL,
        provider TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX messages_of_session ON messages (session_id, position);
    CREATE TABLE prompts (
        seq INTEGER PRIMARY KEY CHECK (seq > 0),
        session_id TEXT NOT NULL REFERENCES sessions,
        run_id TEXT UNIQUE,
        text TEXT NOT NULL,
        state TEXT NOT NULL,
        outcome TEXT,
        CHECK ((state = 'done') = (outcome IS NOT NULL))
    );
    CREATE INDEX unfinished ON prompts (seq) WHERE state <> 'done';
    CREATE TABLE transitions (
        position INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL REFERENCES prompts,
        state TEXT NOT NULL,
        outcome TEXT
    );
    CREATE INDEX transitions_of_prompt ON transitions (seq, position);
    CREATE TRIGGER journal_acceptance AFTER INSERT ON prompts BEGIN
        INSERT INTO transitions (seq, state, outcome) VALUES (new.seq, new.state, new.outcome);
    END;
    CREATE TRIGGER journal_move AFTER UPDATE OF state ON prompts BEGIN
        INSERT INTO transitions (seq, state, outcome) VALUES (new.seq, new.state, new.outcome);
    END;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions,
        run_id TEXT,
        type TEXT NOT NULL,
        payload TEXT NOT NULL
    );
    CREATE INDEX events_of_session ON events (session_id, id);
    """,
)

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


@dataclass(frozen=True, slots=True)
class _Statement:
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
    """A batch that a caller waits for, and then what came of it."""

    statements: list[_Statement]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[tuple[int, ...]]
    ids: tuple[int, ...] = ()
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
                _check_identity(self.path, self._writer)
                lock = connections.enter_context(closing(_connect(Path(f"{self.path}-lock"), timeout=0)))
                _hold(self.path, lock)
                _prepare(self._writer)
                _migrate(self._writer)
                self._reader = connections.enter_context(closing(_connect(self.path, timeout)))
                self._reader.execute("PRAGMA query_only = ON")
                self._connections = connections.pop_all()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error
        self._reading = threading.Lock()
        self._changed = threading.Condition()  # guards the three below
        self._waiting: list[_Job] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[int], None]]] = []
        self._open = True
        self._batches = self._commits = 0
        # A daemon, so that a program which ends without closing ends all the same: for the file that is a crash.
        self._thread = threading.Thread(target=self._write_all, name=f"store {self.path.name}", daemon=True)
        self._thread.start()

    async def write(self, batch: Batch) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        job = _Job([_statement(operation) for operation in batch], loop, loop.create_future())
        with self._changed:
            if not self._open:
                raise _closed(self.path)
            self._waiting.append(job)
            self._changed.notify()
        return await job.future

    def prompt(self, run_id: str) -> PromptRecord | None:
        found = self._read(_prompt, f"SELECT {_PROMPT} FROM prompts WHERE run_id = ?", run_id)
        return found[0] if found else None

    def unfinished(self) -> list[PromptRecord]:
        return self._read(_prompt, f"SELECT {_PROMPT} FROM prompts WHERE state <> 'done' ORDER BY seq")

    def transitions(self, seq: int) -> list[Transition]:
        return self._read(
            _transition, "SELECT seq, state, outcome FROM transitions WHERE seq = ? ORDER BY position", seq)

    def latest_seq(self) -> int:
        return max(self._read(int, "SELECT coalesce(max(seq), 0) FROM prompts"
                                   " UNION ALL SELECT coalesce(max(mark), 0) FROM sessions"))

    def sessions(self) -> list[SessionRecord]:
        return self._read(SessionRecord, "SELECT id, title, mark, created_at FROM sessions ORDER BY rowid")

    def messages(self, session_id: str) -> list[Message]:
        return self._read(
            _message, "SELECT id, session_id, role, parts, model, provider, created_at, updated_at"
                      " FROM messages WHERE session_id = ? ORDER BY position", session_id)

    def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
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

    def latest_event(self) -> int:
        return self._read(int, "SELECT coalesce(max(id), 0) FROM events")[0]

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        entry = (asyncio.get_running_loop(), listener)
        with self._changed:
            self._listeners.append(entry)

        def unwatch() -> None:
            with self._changed:
                _discard(self._listeners, entry)

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
        with self._reading:
            if not self._open:
                raise _closed(self.path)
            try:
                return [make(*row) for row in self._reader.execute(sql, values).fetchall()]
            except ValueError as error:  # a row that no store has written
                raise StoreError(self.path, *_TROUBLES[sqlite3.SQLITE_CORRUPT]) from error
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
        error: Exception | None
        while True:
            try:
                for job in jobs:
                    self._apply(job)
                self._writer.execute("COMMIT")
                self._commits += 1
                return
            except _TransactionLost as lost:  # a full disk does this; the others may still fit
                jobs.remove(lost.culprit)
                error = self._attempt("BEGIN IMMEDIATE")
            except Exception as failure:
                error = failure
            if error is not None:
                self._fail(jobs, error)
                return

    def _apply(self, job: _Job) -> None:
        """Executes the batch within a savepoint; if it fails, the transaction is as it was before."""
        job.error = None
        self._writer.execute("SAVEPOINT batch")
        try:
            job.ids = self._execute(job.statements)
        except Exception as error:
            job.error = _explained(self.path, error)
            if not self._writer.in_transaction:
                raise _TransactionLost(job) from error
            self._writer.execute("ROLLBACK TO batch")
        self._writer.execute("RELEASE batch")

    def _execute(self, statements: Iterable[_Statement]) -> tuple[int, ...]:
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
        latest = max((job.ids[-1] for job in group if job.error is None and job.ids), default=None)
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
            job.future.set_result(job.ids)
        else:
            job.future.set_exception(job.error)


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def _check_identity(path: Path, db: sqlite3.Connection) -> None:
    """Refuses a database that is another program's or a later version's, before anything in it is changed."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not (ours or (empty and version == 0)):
        raise StoreError(path, "the database belongs to another program", "choose another file")
    if version > len(MIGRATIONS):
        raise StoreError(path, f"the database has schema version {version} and this program knows {len(MIGRATIONS)}",
                         "use a newer Cancelmark, or choose another file")


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


def _migrate(db: sqlite3.Connection) -> None:
    """Brings the schema up to date, one version at a time; a step that fails or is interrupted leaves no trace."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"PRAGMA user_version = {version}")  # finds out now whether the file can be written
    db.execute("ROLLBACK")
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")


_PROMPT = "seq, session_id, text, run_id, state, outcome"


def _prompt(seq: int, session_id: str, text: str, run_id: str | None, state: str, outcome: str | None) -> PromptRecord:
    return PromptRecord(seq, session_id, text, run_id, State(state), None if outcome is None else Outcome(outcome))


def _transition(seq: int, state: str, outcome: str | None) -> Transition:
    return Transition(seq, State(state), None if outcome is None else Outcome(outcome))


def _message(id: str, session_id: str, role: str, parts: str, *rest: Any) -> Message:
    return Message(id, session_id, role, tuple(json.loads(parts)), *rest)


def _event(id: int, session_id: str, run_id: str | None, type: str, payload: str) -> Event:
    return Event(id, session_id, run_id, type, json.loads(payload))
