"""The store in PostgreSQL itself: its connections, a pool before it, and which database it takes. What it promises as
a store that several nodes share is in test_shared_store."""

import asyncio
from contextlib import suppress
from uuid import uuid4

import psycopg
import pytest
from support.postgres import Bouncer, open_stores, shared_database, shared_server
from support.stores import committed, steps

from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    CommitAnswer,
    CommitRequest,
    Conflict,
    NewSession,
    StoreError,
)
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.impl.store.postgres.schema import MIGRATIONS
from cancelmark.impl.store.postgres.sending import UNDER_WAY

pytestmark = pytest.mark.real


def databases(number: int = 1, address: str | None = None) -> list[Database]:
    return [Database(address or shared_database(), connections=3) for _ in range(number)]


@pytest.mark.smoke
async def test_a_connection_that_is_ended_by_others_costs_nothing() -> None:
    async with open_stores(databases()) as [a]:
        for n in range(5):
            shared_server().execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                    " WHERE application_name = 'cancelmark' AND pid <> pg_backend_pid()")
            committed(await a.commit(steps(str(n), n, AcceptPrompt(0, "s", "b"))))
        assert len((await a.load("s")).prompts) == 5


LOCK = "SELECT FROM cancelmark.sessions WHERE workspace_id = %s AND id IN ('s7', 's8', 's9') FOR UPDATE"


async def wait_for_lock(store: PostgresStore) -> None:
    """Waits for the lock of a session as a step that is sent alone does, and for no longer."""
    async with await psycopg.AsyncConnection.connect(store.database.address) as connection:
        await connection.execute("SET lock_timeout = '2s'")
        with suppress(psycopg.errors.LockNotAvailable):
            await connection.execute(LOCK, [store.workspace])


async def test_nobody_waits_for_a_session_that_others_have_locked_nor_for_a_statement_that_takes_long() -> None:
    async with open_stores(databases()) as [a]:
        names = [f"s{n}" for n in range(12)]
        await a.write([NewSession(name) for name in names])

        def write(name: str) -> asyncio.Task[CommitAnswer]:
            request = CommitRequest(f"of-{name}", name, None, [AppendEvent(name, TERMINAL, {})])
            return asyncio.ensure_future(a.commit(request))

        async with await psycopg.AsyncConnection.connect(a.database.address) as other:
            await other.execute(LOCK, [a.workspace])
            patient = asyncio.ensure_future(wait_for_lock(a))
            await asyncio.sleep(0.3)  # it waits before the others
            locked = [write(name) for name in ("s7", "s8")]  # as many as are under way at a time
            assert len(locked) == UNDER_WAY
            sent = {name: write(name) for name in names if name not in ("s7", "s8")}
            locked.append(sent.pop("s9"))
            await asyncio.gather(*sent.values())
            assert not patient.done(), "they have waited for as long as a statement waits for a lock"
            assert not any(task.done() for task in locked)
        for answer in await asyncio.gather(*locked):
            committed(answer)
        await patient
        assert await a.latest_event() == len(names)


async def test_nodes_that_write_to_many_workspaces_take_their_counters_in_one_order() -> None:
    async with open_stores(databases(2)) as (a, b):
        homes = [uuid4() for _ in range(24)]
        mine, theirs = ([PostgresStore(one.database, home) for home in homes] for one in (a, b))
        for store in mine:
            await store.make(str(store.workspace), "log")
            await store.write([NewSession("a"), NewSession("b")])

        async def write(stores: list[PostgresStore], name: str) -> None:
            for n in range(15):
                request = CommitRequest(f"{name}-{n}", name, None, [AppendEvent(name, TERMINAL, {})])
                await asyncio.gather(*(store.commit(request) for store in stores))

        count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        before = await a.database.fetch(count)
        await asyncio.gather(write(mine, "a"), write(theirs[::-1], "b"))
        await asyncio.sleep(1)  # until backends have reported
        assert await a.database.fetch(count) == before
        assert [await store.latest_event() for store in mine] == [30] * len(homes)


# --- the database

async def test_through_a_pool_that_gives_each_statement_another_connection() -> None:
    async def accept(store: PostgresStore, name: str) -> None:
        version: int | None = 0
        while version is not None:
            answer = await store.commit(steps(f"{name}-{version}", version, AcceptPrompt(0, "s", name)))
            version = answer.snapshot.version if isinstance(answer, Conflict) else None

    server = shared_server()
    bouncer = Bouncer(server)
    try:
        async with open_stores(databases(2, server.url(server.new_database(), bouncer.port))) as (a, b):
            await asyncio.gather(*(accept(store, f"{n}-{store.database.node}") for n in range(10) for store in (a, b)))
            assert len((await a.load("s")).prompts) == 20
            assert (await b.load("s")).version == 20
    finally:
        bouncer.stop()


async def test_many_may_open_a_new_database_at_once() -> None:
    server = shared_server()
    databases = [Database(server.address(name), 1) for name in [server.new_database()] * 5]
    await asyncio.gather(*(database.open() for database in databases))
    assert await databases[0].fetch("SELECT version FROM cancelmark.schema_version") == [(len(MIGRATIONS),)]
    await asyncio.gather(*(database.close() for database in databases))


async def test_a_database_of_a_later_version_is_refused() -> None:
    server = shared_server()
    database = Database(server.address(server.new_database()), 1)
    await database.open()
    await database.fetch("UPDATE cancelmark.schema_version SET version = version + 1")
    await database.close()
    with pytest.raises(StoreError, match="upgrade Cancelmark"):
        await Database(database.address, 1).open()


@pytest.mark.parametrize(("address", "told"), [
    ("postgresql://nobody@127.0.0.1:1/none", "cannot be reached"), ("nonsense", "invalid address"),
    (None, "refuses|cannot be reached")])
def test_a_database_that_is_not_there_is_named_and_its_password_is_not(address: str | None, told: str) -> None:
    server = shared_server()
    address = address or f"postgresql://{server.user}:secret@127.0.0.1:{server.port}/no-such-database"
    with pytest.raises(StoreError, match=told) as raised:
        asyncio.run(Database(address, 1).open())
    assert "secret" not in str(raised.value)
