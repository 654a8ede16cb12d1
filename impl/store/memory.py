"""A store in memory."""

import asyncio
import sqlite3
import weakref
from collections.abc import Callable
from functools import cache, partial

from .interface import closed, discard
from .records import Incarnation
from .schema import MIGRATIONS
from .statements import make_statement
from .steps import CommitAnswer, CommitRequest
from .tables import SqlStore
from .troubles import explain


class MemoryStore(SqlStore):
    """A store that ends with its process: an SQLite database in memory, for one thread. Keeps the whole history, as a
    file would.

    A commit is synchronous: its future is done when `begin_commit` returns.
    """

    def __init__(self) -> None:
        super().__init__("memory")
        self._reader = self._writer = _connect()
        weakref.finalize(self, self._writer.close)  # the data lives as long as the store
        _make_template().backup(self._writer)
        self._writer.execute("PRAGMA foreign_keys = ON")
        self._listeners: list[Callable[[int], None]] = []

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        answer: asyncio.Future[CommitAnswer] = asyncio.get_running_loop().create_future()
        try:
            answer.set_result(self._commit_now(steps))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        if not self._open:
            raise closed(self._where)
        if not self._ledger.fits(steps):
            return self._ledger.refuse(steps, partial(self._load, self._writer, steps.session_id))
        statements = [make_statement(operation) for operation in steps.operations]
        self._writer.execute("BEGIN")
        try:
            events = self._execute(self._writer, statements)
        except Exception as error:
            self._writer.execute("ROLLBACK")
            raise explain(self._where, error) from error
        self._writer.execute("COMMIT")
        answer = self._ledger.add(steps, events)
        self._ledger.settle()
        self._extend_tail(statements, events)
        if events:
            for listener in self._listeners:
                listener(events[-1])
        return answer

    async def incarnations(self) -> list[Incarnation]:
        if not self._open:
            raise closed(self._where)
        return [Incarnation(1, self._life)]

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: discard(self._listeners, listener)

    def close(self) -> None:
        self._open = False


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


@cache
def _make_template() -> sqlite3.Connection:
    """An empty database with the schema. Copying it takes a tenth of the time of creating it."""
    template = _connect()
    for script in MIGRATIONS:
        template.executescript(script)
    return template
