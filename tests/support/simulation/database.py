"""A PostgreSQL that is none: the tables of the store in memory, by the clock of the event loop.

A node has all of its production code above it: the store with its repeats, the database with its deadlines, its SQL.
What is simulated is what lies behind a connection. A statement is done in one moment, and nothing comes in between;
when that is, and whether its answer comes, is the business of whoever carries it (`Carry`).
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID
from weakref import finalize, proxy

import psycopg
from psycopg_pool import PoolClosed

from cancelmark.impl.store.postgres import Database
from cancelmark.impl.store.postgres.schema import TABLES

from .dialect import connect, fit, translate, translate_tables
from .step import Answer, Asked, Raised, Step

ALONE: Answer = ("alone", 0, None, None, [], [])


def has_steps(query: str) -> bool:
    return "cancelmark.step(" in query or "cancelmark.step_all(" in query


def list_asked(query: str, values: Sequence[Any]) -> list[Asked]:
    """The steps of a statement."""
    if "step_all" not in query:
        return [Asked(*values)]
    return [Asked(UUID(node), UUID(home), *rest, json.dumps(actions), json.dumps(operations))
            for node, home, *rest, actions, operations in json.loads(values[0])]


class Answered(NamedTuple):
    """What a statement has answered: as much of a cursor as is used."""

    rows: list[tuple[Any, ...]]
    description: bool = True

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows


class SimulatedServer:
    """The database that all nodes share. `steps` is what its function `step` does."""

    def __init__(self, steps: type[Step] = Step) -> None:
        self.steps = steps
        self.drawn: dict[str, Any] = {}  # what steps have taken when they were sent: see `Step.begin`
        self.seq = 0  # the latest that its sequence has given out
        self.listeners: list[asyncio.Queue[str]] = []
        self.hears: Callable[[], bool] = lambda: True  # whether a wake-up arrives
        me = proxy(self)  # a cycle through SQLite is hidden from the garbage collector
        self.db = connect(lambda: me.clock(), lambda payload: me.notify(payload))
        finalize(self, self.db.close)  # an open one that goes is warned of from Python 3.13 on
        self.db.executescript(translate_tables(TABLES))
        self.db.execute("ALTER TABLE prompts ADD COLUMN questions TEXT")  # as the later migrations do

    def clock(self) -> float:
        """Its own clock: that of the loop."""
        return asyncio.get_running_loop().time()

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def notify(self, said: str) -> None:
        for listener in self.listeners:
            if self.hears():
                listener.put_nowait(said)

    def do(self, query: str, values: Sequence[Any]) -> Answered:
        """Does the statement, wholly or not at all. Raises what psycopg does."""
        if any(isinstance(value, str) and "\0" in value for value in values):
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        self.db.execute("BEGIN")
        try:
            answer = self._do(query, values)
        except BaseException as error:
            self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.IntegrityError):
                constraint = "one_active" if str(error).endswith("prompts.session_id") else ""
                raise Raised("23505", str(error), constraint) from error
            if isinstance(error, OverflowError):
                raise Raised("22003", str(error)) from error
            raise
        self.db.execute("COMMIT")
        return answer

    def _do_with_others(self, asked: Asked) -> Answer:
        """Does one step of several, or leaves nothing of it."""
        self.db.execute("SAVEPOINT one")
        try:
            step = self.steps(self, asked)
            row = step.run() if step.has_session else ALONE
        except (psycopg.Error, sqlite3.IntegrityError, OverflowError, UnicodeError):
            self.db.execute("ROLLBACK TO one")
            row = ALONE
        self.db.execute("RELEASE one")
        return row

    def _do(self, query: str, values: Sequence[Any]) -> Answered:
        if has_steps(query):
            do = self._do_with_others if "step_all" in query else lambda asked: self.steps(self, asked).run()
            return Answered([*map(do, list_asked(query, values))])
        left = [fit(value) for value in values]
        for name, statement in translate(query):
            number = statement.count("?")
            cursor = self.db.execute(statement, left[:number])
            rows, left = cursor.fetchall(), left[number:]
            if name and cursor.description:  # what the rest of the statement reads
                self.db.execute(f"DROP TABLE IF EXISTS temp.{name}")
                self.db.execute(f"CREATE TEMP TABLE {name} (id)")
                self.db.executemany(f"INSERT INTO temp.{name} VALUES (?)", [(fit(row[0]),) for row in rows])
        return Answered(rows, cursor.description is not None)

    def execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """A statement of those who judge."""
        ((_, statement),) = translate(query)
        return self.db.execute(statement, [fit(value) for value in values])


Carry = Callable[[str, Sequence[Any]], Awaitable[Answered]]


class SimulatedDatabase(Database):
    """The connections of one node. `carry` takes a statement to the server, and its answer back."""

    def __init__(self, server: SimulatedServer, carry: Carry | None = None) -> None:
        super().__init__("postgresql://simulated/cancelmark")
        self._server, self._carry = server, carry or self._carry_at_once

    def _make_pool(self, connections: int) -> "_Pool":
        return _Pool(self)

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[SimulatedDatabase]":
        yield self

    async def _carry_at_once(self, query: str, values: Sequence[Any]) -> Answered:
        await asyncio.sleep(0)
        return self._server.do(query, values)

    async def execute(self, query: bytes, values: Sequence[Any]) -> Answered:
        for value in values:
            if isinstance(value, str):
                value.encode()
        return await self._carry(query.decode(), values)

    async def open(self) -> None:
        """There it is."""

    def _cut(self, connection: Any) -> None:
        """Each statement is answered within its deadline."""

    async def listen(self, address: str, channel: str) -> AsyncGenerator[str, None]:
        heard: asyncio.Queue[str] = asyncio.Queue()
        self._server.listeners.append(heard)
        try:
            yield ""
            while True:
                yield await heard.get()
        finally:
            self._server.listeners.remove(heard)


class _Pool:
    def __init__(self, database: SimulatedDatabase) -> None:
        self._database, self._closed = database, False

    @asynccontextmanager
    async def connection(self, timeout: float) -> AsyncIterator[SimulatedDatabase]:
        if self._closed:
            raise PoolClosed("the pool is closed")
        yield self._database

    async def close(self, timeout: float) -> None:
        self._closed = True
