"""Reads the tables of an SQLite store, in a file or in memory, and executes the statements of a batch."""

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from cancelmark.model.lifecycle import INITIAL

from .interface import Broken, ConstraintViolation, Store, UnknownSession, closed, draw_name
from .operations import AppendEvent, Operation
from .records import TERMINAL, Event, Incarnation, MessageRecord, PromptRecord, SessionRecord, Transition
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
from .statements import APPEND_EVENT, FREEING, Statement
from .steps import Ledger, Snapshot, snapshots
from .tail import Tail
from .troubles import DAMAGED, explain

V = TypeVar("V")


class SqlStore(Store):
    """The reading half of a store, and the execution of a batch. Subclasses open the database and commit."""

    _reader: sqlite3.Connection

    def __init__(self, where: Path | str) -> None:
        self._where = where
        self._ledger = Ledger()  # changed by the writer; others read what is settled
        self._tail = Tail()  # replaced by the writer
        self._life = draw_name()
        self._reading = threading.Lock()
        self._open = True

    async def load(self, session_id: str) -> Snapshot:
        versions = self._ledger.settled()
        with self._borrow_reader() as reader:
            return self._load(reader, session_id, versions)

    async def load_all(self) -> list[Snapshot]:
        versions = self._ledger.settled()
        with self._borrow_reader() as reader, _one_moment(reader):
            marks = reader.execute("SELECT id, mark, held FROM sessions ORDER BY rowid").fetchall()
            prompts = reader.execute(f"{_UNFINISHED} ORDER BY seq").fetchall()
        return self._make_snapshots(versions, marks, prompts)

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
        return make_records(self._where, make_prompt, (row[:-1] for row in old))

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
                       last: int | None = None) -> list[MessageRecord]:
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

    async def incarnations(self) -> list[Incarnation]:
        with self._borrow_reader() as reader, _one_moment(reader):
            latest = reader.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
            rows = reader.execute("SELECT first, name FROM lives ORDER BY first").fetchall()
        lives = make_records(self._where, make_life, rows)
        if not lives or lives[-1].name != self._life:  # this life has not written an event yet
            lives.append(Incarnation(latest + 1, self._life))
        return lives

    def _load(self, db: sqlite3.Connection, session_id: str, versions: Mapping[str, int]) -> Snapshot:
        with _one_moment(db):
            marks = db.execute("SELECT id, mark, held FROM sessions WHERE id = ?", (session_id,)).fetchall()
            prompts = db.execute(f"{_UNFINISHED_OF_SESSION} ORDER BY seq", (session_id,)).fetchall()
        if not marks:
            raise UnknownSession(session_id)
        return self._make_snapshots(versions, marks, prompts)[0]

    def _make_snapshots(self, versions: Mapping[str, int], marks: Iterable[Sequence[Any]],
                        prompts: Iterable[Sequence[Any]]) -> list[Snapshot]:
        return snapshots(versions, make_records(self._where, make_mark, marks),
                         make_records(self._where, make_prompt, prompts))

    def _execute(self, db: sqlite3.Connection, statements: Iterable[Statement]) -> tuple[int, ...]:
        """Execute a batch, and return the ids of its events."""
        ids: list[int] = []
        for statement in statements:
            try:
                cursor = db.execute(statement.sql, statement.values)
            except sqlite3.IntegrityError as error:
                raise ConstraintViolation(self._where, statement.operation) from error
            if cursor.rowcount != 1:
                raise ConstraintViolation(self._where, statement.operation)
            if statement.sql is APPEND_EVENT:
                assert cursor.lastrowid is not None
                ids.append(cursor.lastrowid)
        return tuple(ids)

    def _extend_tail(self, statements: Sequence[Statement], events: Sequence[int]) -> None:
        """Add the events of a committed batch to the tail. A batch that deletes something starts a new tail."""
        if not FREEING.isdisjoint([statement.sql for statement in statements]):
            self._tail = Tail()
        if events:
            appended = [statement for statement in statements if statement.sql is APPEND_EVENT]
            self._tail = self._tail.grow((_make_event(id, statement.operation), len(statement.values[2]))
                                         for id, statement in zip(events, appended))

    def _read(self, make: Callable[..., V], sql: str, *values: Any) -> list[V]:
        with self._borrow_reader() as reader:
            return make_records(self._where, make, reader.execute(sql, values).fetchall())

    @contextmanager
    def _borrow_reader(self) -> Iterator[sqlite3.Connection]:
        """The reading connection, for one caller at a time."""
        with self._reading:
            if not self._open:
                raise closed(self._where)
            try:
                yield self._reader
            except sqlite3.Error as error:
                if hasattr(error, "sqlite_errorcode"):
                    raise explain(self._where, error) from error
                problem, remedy = DAMAGED  # a text is not UTF-8
                raise Broken(self._where, f"{problem}: {error}", remedy) from error


def _make_event(id: int, op: Operation) -> Event:
    assert isinstance(op, AppendEvent)
    return Event(id, op.session_id, op.run_id, op.type, op.payload)


_PROMPT = ("seq, session_id, text, run_id, state, outcome, digest, attachments, revoked, front, version, begun, urgent,"
           " first, taken_in_by, questions")
_REMEMBERED = "state = 'done' AND digest IS NULL"
_UNFINISHED = f"SELECT {_PROMPT} FROM prompts WHERE state <> 'done'"
_UNFINISHED_OF_SESSION = f"{_UNFINISHED} AND +session_id = ?"  # the plus selects the index of unfinished prompts
_HIGHEST = 2**63 - 1


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """Make all reads in the block see one consistent state."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
