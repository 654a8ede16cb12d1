"""The store in PostgreSQL: who may write to a session, what comes of a lost answer, and which database it takes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.postgres import Bouncer, shared_database, shared_server

from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    Committed,
    Conflict,
    Lost,
    Message,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    Refused,
    Steps,
    StoreError,
    Unstorable,
)
from cancelmark.impl.store.postgres import ClosingSession, Database, PostgresStore
from cancelmark.impl.store.postgres.schema import MIGRATIONS
from cancelmark.model.lifecycle import Outcome, State

ACCEPT = AcceptPrompt(0, "s", "a", "run-a")


@asynccontextmanager
async def open_stores(number: int = 1, address: str | None = None) -> AsyncIterator[list[PostgresStore]]:
    """One workspace, as so many nodes see it."""
    workspace, databases = uuid4(), [Database(address or shared_database(), connections=3) for _ in range(number)]
    try:
        for database in databases:
            await database.open()
            await database.fetch(
                "INSERT INTO cancelmark.nodes VALUES (%s, '', now(), now() + interval '1 hour', false, false)",
                database.node)
        stores = [PostgresStore(database, workspace) for database in databases]
        await stores[0].make("/", "log")
        await stores[0].write([NewSession("s")])
        yield stores
    finally:
        for database in databases:
            await database.close()


def play(story: Callable[..., Awaitable[None]], number: int = 1, address: str | None = None) -> None:
    async def main() -> None:
        async with open_stores(number, address) as stores:
            await story(*stores)

    asyncio.run(main())


def steps(id: str, version: int | None, *operations: Operation, epoch: int | None = None, **more: Any) -> Steps:
    return Steps(id, "s", version, operations, epoch, **more)


async def kill_node(store: PostgresStore, node: UUID) -> None:
    await store.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", node)


def committed(answer: object) -> Committed:
    assert isinstance(answer, Committed), answer
    return answer


# --- who owns a session

def test_a_session_without_an_owner_is_claimed_in_the_step_that_gives_it_work() -> None:
    async def story(a: PostgresStore, b: PostgresStore) -> None:
        assert (await a.load("s")).free
        first = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt")))
        assert (first.version, first.epoch, len(first.seqs)) == (1, 1, 1)
        assert (await a.load("s"))[-2:] == (True, False)
        assert (await b.load("s"))[-2:] == (False, False)
        assert await b.commit(steps("2", 1, AcceptPrompt(0, "s", "b"), claim="adopt")) == Lost(), "it has an owner"
        second = committed(await b.commit(steps("2", 1, AcceptPrompt(0, "s", "b"))))
        assert second.epoch is None, "anybody may accept, and is no owner by that"
        assert second.seqs > first.seqs

    play(story, 2)


def test_only_a_dead_owner_is_replaced_and_nothing_of_it_is_written_after_that() -> None:
    async def story(a: PostgresStore, b: PostgresStore) -> None:
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt"))).seqs
        await a.commit(steps("2", 1, MovePrompt(seq, State.ACTIVE), epoch=1))
        end = (MovePrompt(seq, State.DONE, Outcome.ERROR), AppendEvent("s", TERMINAL, {}))
        assert await b.commit(steps("3", 2, *end, claim="recover")) == Lost(), "its owner lives"
        await kill_node(b, a.database.node)
        assert committed(await b.commit(steps("3", 2, *end, claim="recover"))).epoch == 2
        assert await b.commit(steps("4", 3, claim="recover")) == Lost(), "the new owner lives"
        for late in (end, [PutMessage(Message("m", "s", "user", ()))]):
            assert await a.commit(steps("late", None, *late, epoch=1)) == Lost()
        assert await a.begin_say("s", [Message("m", "s", "user", ())], 1) == Lost()
        assert await b.messages("s") == []
        assert [e.id for e in await b.events()] == [1]

    play(story, 2)


def test_a_dead_node_claims_nothing() -> None:
    async def story(a: PostgresStore) -> None:
        await kill_node(a, a.database.node)
        assert await a.commit(steps("1", 0, ACCEPT, claim="adopt")) == Lost()

    play(story)


def test_who_releases_a_session_is_its_owner_no_more() -> None:
    async def story(a: PostgresStore, b: PostgresStore) -> None:
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt"))).seqs
        end = (MovePrompt(seq, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {}))
        assert committed(await a.commit(steps("2", 1, *end, epoch=1, release="idle"))).epoch is None
        assert (await b.load("s")).free
        assert await a.begin_say("s", [Message("m", "s", "user", ())], 1) == Lost()
        assert committed(await b.commit(steps("3", 2, ACCEPT._replace(run_id="b"), claim="adopt"))).epoch == 2

    play(story, 2)


# --- seqs, places, ids

def test_a_seq_is_above_every_mark_and_a_sequence_that_was_set_back_is_noticed() -> None:
    async def story(a: PostgresStore) -> None:
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT))).seqs
        await a.commit(steps("2", 1, RaiseMark("s", seq + 1_000_000)))
        with pytest.raises(StoreError, match="behind what was given out"):
            await a.commit(steps("3", 2, AcceptPrompt(0, "s", "b")))
        assert len((await a.load("s")).prompts) == 1

    play(story)


def test_places_have_no_gap_whoever_writes_and_whatever_is_refused() -> None:
    async def story(a: PostgresStore, b: PostgresStore) -> None:
        await a.write([NewSession(name) for name in "tuvw"])

        async def write(store: PostgresStore, session: str) -> None:
            for n in range(20):
                event = AppendEvent(session, TERMINAL, {"n": n})
                if n % 3:
                    await store.commit(Steps("", session, None, [event]))
                else:
                    with pytest.raises(Refused):
                        await store.commit(Steps("", session, None, [event, NewSession("s")]))

        await asyncio.gather(*(write(store, session) for store in (a, b) for session in "tuvw"))
        places = [event.id for event in await a.events()]
        assert places == list(range(1, len(places) + 1))
        assert len(places) == 2 * 4 * 13

    play(story, 2)


def test_an_answer_that_was_lost_is_found_under_the_id_of_the_step() -> None:
    """Whoever commits hears of a connection that broke. The same steps come again, and are there once."""
    async def story(a: PostgresStore) -> None:
        fetch, lost = a.database.fetch, 0

        async def lose(query: str, *values: Any, **more: Any) -> Any:
            nonlocal lost
            rows = await fetch(query, *values, **more)
            if "step(" in query and lost < 2:
                lost += 1
                raise StoreError("here", "the answer is lost", "ask again")
            return rows

        a.database.fetch = lose  # type: ignore[method-assign]
        answer = committed(await a.commit(steps("1", 0, ACCEPT, AppendEvent("s", TERMINAL, {}), claim="adopt")))
        assert (answer.version, answer.repeated, answer.epoch, answer.events) == (1, True, 1, (1,))
        assert [p.seq for p in (await a.load("s")).prompts] == list(answer.seqs)

    play(story)


def test_a_connection_that_is_ended_by_others_costs_nothing() -> None:
    async def story(a: PostgresStore) -> None:
        for n in range(5):
            shared_server().execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                    " WHERE application_name = 'cancelmark' AND pid <> pg_backend_pid()")
            committed(await a.commit(steps(str(n), n, AcceptPrompt(0, "s", "b"))))
        assert len((await a.load("s")).prompts) == 5

    play(story)


def test_a_session_that_is_closing_accepts_nothing_and_neither_does_one_that_is_made_then() -> None:
    async def story(a: PostgresStore) -> None:
        await a.database.fetch("UPDATE cancelmark.sessions SET closing = true WHERE workspace_id = %s", a.workspace)
        with pytest.raises(ClosingSession):
            await a.commit(steps("1", 0, ACCEPT))
        await a.write([NewSession("new")])
        with pytest.raises(ClosingSession):
            await a.commit(Steps("2", "new", 0, [ACCEPT._replace(session_id="new")]))

    play(story)


# --- what can be stored

def test_nul_is_kept_in_what_was_said_and_refused_in_a_text() -> None:
    async def story(a: PostgresStore) -> None:
        message = Message("m", "s", "user", ({"type": "text", "data": {"text": "nul \0, half \ud800"}},))
        await a.commit(steps("1", 0, PutMessage(message), AppendEvent("s", TERMINAL, {"text": "\0"})))
        assert await a.messages("s") == [message]
        assert (await a.events())[0].payload == {"text": "\0"}
        for op in (AcceptPrompt(0, "s", "\0"), AcceptPrompt(0, "s", "\ud800"), NewSession("\0")):
            with pytest.raises(Unstorable):
                await a.commit(steps("2", 1, op))
        assert await a.prompt("\0") is None

    play(story)


# --- the database

def test_through_a_pool_that_gives_each_statement_another_connection() -> None:
    async def story(a: PostgresStore, b: PostgresStore) -> None:
        async def accept(store: PostgresStore, name: str) -> None:
            version: int | None = 0
            while version is not None:
                answer = await store.commit(steps(f"{name}-{version}", version, AcceptPrompt(0, "s", name)))
                version = answer.snapshot.version if isinstance(answer, Conflict) else None

        await asyncio.gather(*(accept(store, f"{n}-{store.database.node}") for n in range(10) for store in (a, b)))
        assert len((await a.load("s")).prompts) == 20
        assert (await b.load("s")).version == 20

    server = shared_server()
    bouncer = Bouncer(server)
    try:
        play(story, 2, server.url(server.new_database(), bouncer.port))
    finally:
        bouncer.stop()


def test_many_may_open_a_new_database_at_once() -> None:
    async def main() -> None:
        server = shared_server()
        databases = [Database(server.address(name), 1) for name in [server.new_database()] * 5]
        await asyncio.gather(*(database.open() for database in databases))
        assert await databases[0].fetch("SELECT version FROM cancelmark.schema_version") == [(len(MIGRATIONS),)]
        await asyncio.gather(*(database.close() for database in databases))

    asyncio.run(main())


def test_a_database_of_a_later_version_is_refused() -> None:
    async def main() -> None:
        server = shared_server()
        database = Database(server.address(server.new_database()), 1)
        await database.open()
        await database.fetch("UPDATE cancelmark.schema_version SET version = version + 1")
        await database.close()
        with pytest.raises(StoreError, match="use a newer Cancelmark"):
            await Database(database.address, 1).open()

    asyncio.run(main())


@pytest.mark.parametrize(("address", "told"), [
    ("postgresql://nobody@127.0.0.1:1/none", "cannot be reached"), ("nonsense", "cannot be read"),
    (None, "refuses|cannot be reached")])
def test_a_database_that_is_not_there_is_named_and_its_password_is_not(address: str | None, told: str) -> None:
    server = shared_server()
    address = address or f"postgresql://{server.user}:secret@127.0.0.1:{server.port}/no-such-database"
    with pytest.raises(StoreError, match=told) as raised:
        asyncio.run(Database(address, 1).open())
    assert "secret" not in str(raised.value)
