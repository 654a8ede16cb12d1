"""A PostgreSQL database: its connections, and what its errors mean to a caller.

Nothing is kept in a connection: no prepared statement, no setting, no lock. So it may be reached through a pool that
gives each statement another connection, such as pgbouncer in transaction mode.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from socket import SHUT_RDWR, socket
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from ..interface import Broken, NoRoom, StoreError, Unconfirmed, Unstorable
from .schema import migrate
from .sending import Sender

log = logging.getLogger("cancelmark.store")

CONNECTIONS = 16
DEADLINE = 5.0  # seconds for one statement
CONNECT = 3  # seconds until a connection is there
KEEPALIVE = {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3", "tcp_user_timeout": "10000",
             "connect_timeout": str(CONNECT), "application_name": "cancelmark"}

AWAY = ("the database is away", "try again; nothing is lost")
UNKNOWN = ("the database has not answered, and it is not known whether this is kept",
           "repeat it (a prompt under the same run id)")
# SQLSTATE classes and codes that pass, and leave nothing behind: conflicts, locks, resources, a standby.
PASSING = ("40", "53", "55P03", "25006", "57014")
FULL = "53100"
# Those after which nobody knows, unless the step has an id to repeat it under.
DOUBTFUL = ("08", "57P")


class Database:
    """The connections of one server to one database, under the name of its present life."""

    def __init__(self, address: str, connections: int = CONNECTIONS) -> None:
        try:
            given = conninfo_to_dict(address)
        except psycopg.ProgrammingError as error:
            raise Broken("the database", f"its address cannot be read: {str(error).strip()}",
                         "give postgresql://USER@HOST/NAME") from error
        self.address = make_conninfo("", **{**KEEPALIVE, **{k: v for k, v in given.items() if v is not None}})
        self.where = f"{given.get('host') or 'this machine'}/{given.get('dbname') or ''}"  # no password in any message
        self.node = uuid4()
        self.sender = Sender(self)
        self._pool = self._make_pool(connections)

    def _make_pool(self, connections: int) -> Any:
        return AsyncConnectionPool(
            self.address, min_size=1, max_size=connections, open=False, timeout=CONNECT, max_idle=60,
            reconnect_timeout=0, kwargs={"autocommit": True, "prepare_threshold": None})

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(
                self.address, autocommit=True, prepare_threshold=None) as connection:
            yield connection

    async def open(self) -> None:
        """Connects, and brings the schema up to date. Raises `StoreError`."""
        try:
            async with self._connect() as connection:
                await migrate(self.where, connection)
        except psycopg.Error as error:
            raise self._explain_opening(error) from error
        await self._pool.open()

    def _explain_opening(self, error: psycopg.Error) -> StoreError:
        if error.sqlstate and error.sqlstate[:2] not in ("08", "57"):
            return StoreError(self.where, f"the database refuses: {str(error).strip()}",
                              "check its name, the user and the user's rights")
        return StoreError(self.where, f"the database cannot be reached: {str(error).strip()}",
                          "check its address, and that it runs")

    async def close(self) -> None:
        await self._pool.close(timeout=2)

    async def fetch(self, query: str, *values: Any, deadline: float = DEADLINE, once: bool = False,
                    afresh: bool = False) -> list[tuple[Any, ...]]:
        """The rows that one statement answers with. Raises `StoreError`. Of a statement that must be done once, it is
        `Unconfirmed` if it may have been done, and so is one that ends as if this task were canceled. `afresh`, it is
        sent on a connection of its own: those that are there may all be dead."""
        sent = False
        try:
            async with self._connect() if afresh else self._pool.connection(min(CONNECT, deadline)) as connection:
                sent = True
                cut = asyncio.get_running_loop().call_later(deadline, self._cut, connection)
                try:
                    cursor = await connection.execute(query.encode(), values)
                    return await cursor.fetchall() if cursor.description else []
                finally:
                    cut.cancel()
        except (psycopg.Error, OSError, UnicodeError) as error:
            raise self.explain(error, sent, once) from error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise self.explain(error, sent, once) from error

    def _cut(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Ends a connection that does not answer, so that whoever waits is told at once. A task that is canceled would
        first ask the database to cancel the statement, on another connection that may not answer either."""
        with suppress(OSError, psycopg.Error), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)

    async def listen(self, address: str, channel: str) -> AsyncGenerator[str, None]:
        """Yields nothing when it listens on a connection of its own, and then what each notice says. Raises
        `StoreError`."""
        try:
            async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                await connection.execute(f"LISTEN {channel}".encode())
                yield ""
                async for notice in connection.notifies():
                    yield notice.payload
        except (psycopg.Error, OSError) as error:
            raise self.explain(error, True) from error

    def explain(self, error: BaseException, sent: bool, once: bool = False) -> StoreError:
        """What a caller is told."""
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, PoolClosed):
            return Broken(self.where, "the store is closed", "open it again")
        if isinstance(error, PoolTimeout) or not sent:
            return StoreError(self.where, *AWAY)
        if isinstance(error, UnicodeError | psycopg.DataError) or state.startswith("22"):
            return Unstorable(self.where, "the batch has a value that cannot be stored", "nothing of it was kept",
                              error)
        if state == FULL:
            return NoRoom(self.where, "the database is full",
                          "make room on its disk and try again; nothing of the batch was kept", error)
        if state.startswith(PASSING):
            return StoreError(self.where, "the database is busy", "try again", error)
        if not state or state.startswith(DOUBTFUL):
            return Unconfirmed(self.where, *UNKNOWN) if once else StoreError(self.where, *AWAY)
        return Broken(self.where, "the database failed", "nothing of the batch was kept; its log says more", error)
