"""A PostgreSQL database: its connections, and what its errors mean to a caller.

A connection holds no state: no prepared statement, no setting, no lock. So the database may be reached through a pool
that gives each statement another connection, such as pgbouncer in transaction mode.
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
CONNECT = 3  # seconds to connect
KEEPALIVE = {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3", "tcp_user_timeout": "10000",
             "connect_timeout": str(CONNECT), "application_name": "cancelmark"}

AWAY = ("the database is unreachable", "retry; nothing is lost")
UNKNOWN = ("the database has not answered, and the outcome is unknown",
           "retry (a prompt under the same run id)")
# SQLSTATE classes and codes that are transient and have no effect: conflicts, locks, resources, a standby.
PASSING = ("40", "53", "55P03", "25006", "57014")
FULL = "53100"
# Those that leave the outcome unknown, unless the statement is idempotent under an id.
DOUBTFUL = ("08", "57P")


class Database:
    """The connections of one server to one database, under the id of its present life."""

    def __init__(self, address: str, connections: int = CONNECTIONS) -> None:
        try:
            given = conninfo_to_dict(address)
        except psycopg.ProgrammingError as error:
            raise Broken("the database", f"invalid address: {str(error).strip()}",
                         "expected postgresql://USER@HOST/NAME") from error
        self.address = make_conninfo("", **{**KEEPALIVE, **{k: v for k, v in given.items() if v is not None}})
        self.where = f"{given.get('host') or 'this machine'}/{given.get('dbname') or ''}"  # without the password
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
        """Connect, and bring the schema up to date. Raises `StoreError`."""
        try:
            async with self._connect() as connection:
                await migrate(self.where, connection)
        except psycopg.Error as error:
            raise self._explain_opening(error) from error
        await self._pool.open()

    def _explain_opening(self, error: psycopg.Error) -> StoreError:
        if error.sqlstate and error.sqlstate[:2] not in ("08", "57"):
            return StoreError(self.where, f"the database refuses the connection: {str(error).strip()}",
                              "check its name, the user and the user's permissions")
        return StoreError(self.where, f"the database cannot be reached: {str(error).strip()}",
                          "check its address, and that it is running")

    async def close(self) -> None:
        await self._pool.close(timeout=2)

    async def fetch(self, query: str, *values: Any, deadline: float = DEADLINE, once: bool = False,
                    afresh: bool = False) -> list[tuple[Any, ...]]:
        """The rows that one statement returns. Raises `StoreError`.

        With `once`, the statement is not idempotent, and an unknown outcome raises `Unconfirmed`. A `CancelledError`
        that this task did not receive as a cancel counts as a lost connection. With `afresh`, the statement uses a
        connection of its own: those of the pool may all be dead.
        """
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
        """Shut down a connection that does not answer, so its waiter fails at once. Canceling the task would first ask
        the database to cancel the statement, on another connection that may not answer either."""
        with suppress(OSError, psycopg.Error), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)

    async def listen(self, address: str, channel: str) -> AsyncGenerator[str, None]:
        """Listen on a connection of its own. Yields an empty text once it listens, then the payload of each
        notification. Raises `StoreError`."""
        try:
            async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                await connection.execute(f"LISTEN {channel}".encode())
                yield ""
                async for notice in connection.notifies():
                    yield notice.payload
        except (psycopg.Error, OSError) as error:
            raise self.explain(error, True) from error

    def explain(self, error: BaseException, sent: bool, once: bool = False) -> StoreError:
        """The store error for an error of the database."""
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, PoolClosed):
            return Broken(self.where, "the store is closed", "open it again")
        if isinstance(error, PoolTimeout) or not sent:
            return StoreError(self.where, *AWAY)
        if isinstance(error, UnicodeError | psycopg.DataError) or state.startswith("22"):
            return Unstorable(self.where, "the batch contains a value that cannot be stored", "nothing of it was kept",
                              error)
        if state == FULL:
            return NoRoom(self.where, "the database is full",
                          "free some space on its disk, then retry; nothing of the batch was kept", error)
        if state.startswith(PASSING):
            return StoreError(self.where, "the database is busy", "retry", error)
        if not state or state.startswith(DOUBTFUL):
            return Unconfirmed(self.where, *UNKNOWN) if once else StoreError(self.where, *AWAY)
        return Broken(self.where, "the database failed", "see the database's log; nothing of the batch was kept", error)
