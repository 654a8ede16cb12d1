"""What every store promises of steps: the contract that a store of several nodes has to keep too. To hold another store
to it, add a function that opens it to `STORES`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import stores
from support.budget import effort
from support.postgres import POSTGRES, shared_database
from support.simulation.database import SimulatedDatabase, SimulatedServer
from support.stores import committed

from cancelmark.impl.store import (
    EPOCH,
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    CommitRequest,
    Committed,
    Conflict,
    ConstraintViolation,
    Lost,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PromptRecord,
    RaiseMark,
    Snapshot,
    SqliteStore,
    Store,
)
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.impl.store.steps import REMEMBERED
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import Traits


@asynccontextmanager
async def open_memory(directory: Path) -> AsyncIterator[Store]:
    yield MemoryStore()


@asynccontextmanager
async def open_sqlite(directory: Path) -> AsyncIterator[Store]:
    store = SqliteStore(directory / "contract.db")
    try:
        yield store
    finally:
        store.close()


@asynccontextmanager
async def open_postgres(directory: Path) -> AsyncIterator[Store]:
    database = Database(shared_database(), connections=4)
    await database.open()
    store = PostgresStore(database, uuid4())
    await store.make("/", "log")
    try:
        yield store
    finally:
        store.close()
        await database.close()


@asynccontextmanager
async def open_simulated(directory: Path) -> AsyncIterator[Store]:
    store = PostgresStore(SimulatedDatabase(SimulatedServer()), uuid4())
    await store.make("/", "log")
    try:
        yield store
    finally:
        store.close()


STORES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Store]]] = {
    "memory": open_memory, "sqlite": open_sqlite, "simulated": open_simulated, "postgres": open_postgres}
Story = Callable[[Store], Awaitable[None]]
A = AcceptPrompt(1, "s", "a", "run-a")
ENTER = MovePrompt(1, State.ACTIVE)
END = (MovePrompt(1, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {"seq": 1}, "run-a"))


steps = partial(stores.steps, epoch=EPOCH)


async def make_sessions(store: Store) -> None:
    """Sessions s and t, which this process owns."""
    await store.write([NewSession("s"), NewSession("t")])
    for session in "st" if store.shared else "":
        answer = await store.commit(CommitRequest(f"claim {session}", session, None, (), claim="adopt"))
        assert committed(answer).epoch == EPOCH


@pytest.fixture(params=[POSTGRES if name == "postgres" else name for name in STORES])
@asynccontextmanager
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store, in which session s has the prompt A."""
    async with STORES[request.param](tmp_path) as store:
        await make_sessions(store)
        committed(await store.commit(steps(repr(A), None, A)))
        yield store


Told = Callable[[Story], None]


async def test_steps_on_the_version_that_is_there_are_kept_and_make_the_next(store: Store) -> None:
    assert committed(await store.commit(steps("1", 0, ENTER)))[:2] == (1, ())
    assert committed(await store.commit(steps("2", 1, *END)))[:2] == (2, (1,))
    assert (await store.load("s")).version == 2
    assert (await store.load("t")).version == 0, "each session has a version of its own"


@pytest.mark.parametrize("version", [0, 1, 3, 7])
async def test_steps_on_another_version_are_refused_with_the_session_as_it_is(store: Store, version: int) -> None:
    await store.commit(steps("1", 0, ENTER))
    await store.commit(steps("2", 1, RaiseMark("s", 1)))
    answer = await store.commit(steps("late", version, *END))
    assert answer == Conflict(Snapshot("s", 1, 2, EPOCH, (
        PromptRecord(1, "s", "a", "run-a", State.ACTIVE, None, traits=Traits(begun=True)),)))
    assert answer == Conflict(await store.load("s"))
    assert await store.events() == [], "and nothing of them is kept"
    assert committed(await store.commit(steps("late", 2, *END))).events == (1,), "they can be computed again"


@pytest.mark.parametrize("operations", [[A], [ENTER], [*END]], ids=["accept", "enter", "end"])
async def test_what_holds_on_any_version_neither_compares_nor_changes_it(
    store: Store, operations: list[Operation],
) -> None:
    other = AcceptPrompt(2, "s", "b") if operations == [A] else operations[0]
    assert committed(await store.commit(steps("any", None, other))).version == 0
    assert committed(await store.commit(steps("1", 0, RaiseMark("s", 1)))).version == 1


@pytest.mark.parametrize("version", [None, 0])
async def test_steps_that_come_again_under_their_id_are_kept_once_and_get_the_first_answer(
    store: Store, version: int | None,
) -> None:
    event = AppendEvent("s", TERMINAL, {})
    first = committed(await store.commit(steps("x", version, event)))
    await store.commit(steps("y", 1 if version == 0 else None, event))
    assert await store.commit(steps("x", version, event)) == first._replace(repeated=True)
    assert [e.id for e in await store.events()] == [1, 2]


async def test_an_acceptance_that_comes_again_under_its_id_is_no_second_prompt(store: Store) -> None:
    assert committed(await store.commit(steps(repr(A), None, A))).repeated
    with pytest.raises(ConstraintViolation):
        await store.commit(steps("another", None, A))


async def test_steps_that_were_refused_are_not_known_when_they_come_again(store: Store) -> None:
    with pytest.raises(ConstraintViolation):
        await store.commit(steps("x", 0, *END, *END))
    assert committed(await store.commit(steps("x", 0, *END)))[:3] == (1, (1,), False)


async def test_the_latest_ids_are_remembered_and_not_all(store: Store) -> None:
    for number in range(3 * REMEMBERED):
        await store.commit(steps(str(number), None, RaiseMark("s", 1)))
    assert committed(await store.commit(steps(str(2 * REMEMBERED), None, RaiseMark("s", 1)))).repeated
    assert committed(await store.commit(steps("0", None, RaiseMark("s", 1)))).repeated is store.shared


@pytest.mark.parametrize("version", [None, 0, 5])
async def test_the_steps_of_another_epoch_are_lost(store: Store, version: int | None) -> None:
    assert await store.commit(steps("x", version, ENTER, epoch=EPOCH + 1)) == Lost()
    assert await store.begin_append_messages("s", [MessageRecord("m", "s", "user", ())], EPOCH + 1) == Lost()
    assert (await store.load("s")).prompts[0].state is State.ACCEPTED
    assert await store.messages("s") == []


async def test_what_is_said_needs_no_version_and_changes_none(store: Store) -> None:
    message = MessageRecord("m", "s", "user", ({"type": "text", "data": {"text": "hello"}},))
    for _ in range(2):
        assert committed(await store.begin_append_messages("s", [message], EPOCH))[:2] == (0, ())
    assert await store.messages("s") == [message]


async def test_a_message_of_a_turn_is_refused_once_its_prompt_is_done(store: Store) -> None:
    """A connection that is cut may still deliver what was sent on it, after the end was committed on another."""
    first, late = (MessageRecord("m", "s", "assistant", ({"type": "text", "data": {"text": text}},))
                   for text in ("first", "late"))
    committed(await store.begin_append_messages("s", [first], EPOCH, during=A.seq))
    committed(await store.commit(steps("1", 0, *END)))
    with pytest.raises(ConstraintViolation):
        await store.begin_append_messages("s", [late], EPOCH, during=A.seq)
    assert await store.messages("s") == [first]


async def test_a_session_is_loaded_with_its_mark_and_the_prompts_that_are_not_done(store: Store) -> None:
    await store.commit(steps("1", 0, *END))
    for seq in (4, 2, 3):
        await store.commit(steps(f"accept {seq}", None, AcceptPrompt(seq, "t" if seq == 3 else "s", "")))
    await store.commit(steps("2", 1, RaiseMark("s", 3), MovePrompt(4, State.QUEUED)))
    loaded = await store.load("s")
    assert loaded == Snapshot("s", 3, 2, EPOCH, (
        PromptRecord(2, "s", "", None, State.ACCEPTED, None), PromptRecord(4, "s", "", None, State.QUEUED, None)))
    assert await store.load_all() == [loaded, await store.load("t")]
    with pytest.raises(LookupError):
        await store.load("u")


async def test_steps_that_wait_at_the_same_time_are_judged_one_after_the_other(store: Store) -> None:
    """Whatever shares a transaction: of two on one version the first is kept, and of two under one id one."""
    events = [AppendEvent("s", TERMINAL, {"n": n}) for n in range(4)]
    answers = await asyncio.gather(*(store.begin_commit(s) for s in (
        steps("a", 0, events[0]), steps("b", 0, events[1]), steps("a", 0, events[2]), steps("c", 1, events[3]),
        steps("t", 0, AppendEvent("t", TERMINAL, {}), session="t"))))
    assert [type(answer) for answer in answers] == [Committed, Conflict, Committed, Committed, Committed]
    assert [e.payload.get("n") for e in await store.events(session="s")] == [0, 3]
    assert [e.id for e in await store.events()] == [1, 2, 3]
    conflict = answers[1]
    assert isinstance(conflict, Conflict)
    assert conflict.snapshot.version == 1
    assert (await store.load("s")).version == 2


@pytest.mark.parametrize("text", ["whole", "\ud800", "nul \0"])
async def test_the_store_says_which_text_it_can_keep(store: Store, text: str) -> None:
    assert store.is_storable(text) is (text == "whole" or (text != "\ud800" and not store.shared))
    if store.is_storable(text):
        await store.commit(steps("x", None, AcceptPrompt(7, "s", text)))
        assert (record := await store.prompt(7)) is not None
        assert record.text == text


@pytest.mark.real
def test_all_stores_answer_alike() -> None:
    async def answers(store: Store, asked: list[tuple[str, int | None, str]], together: bool) -> list[object]:
        await make_sessions(store)
        commits = [steps(id, version, AppendEvent(session, TERMINAL, {}), session=session)
                   for session, version, id in asked]
        if together and not store.shared:  # a shared one keeps the order of each session, and not of all
            found = [*await asyncio.gather(*map(store.begin_commit, commits))]
        else:
            found = [await store.commit(commit) for commit in commits]
        return [*(answer._replace(epoch=None) if isinstance(answer, Committed) else answer for answer in found),
                await store.load_all()]

    async def ask_all(database: Database, asked: list[tuple[str, int | None, str]], together: bool) -> None:
        with TemporaryDirectory() as directory:
            async with open_sqlite(Path(directory)) as file:
                shared = PostgresStore(database, uuid4())
                await shared.make()
                first, *others = [await answers(store, asked, together) for store in (MemoryStore(), file, shared)]
                assert others == [first, first]

    with asyncio.Runner() as runner:
        database = Database(shared_database(), connections=2)
        runner.run(database.open())

        @given(st.lists(st.tuples(st.sampled_from("st"), st.sampled_from([None, 0, 1, 2, 3]), st.sampled_from("abcd")),
                        min_size=1, max_size=12), st.booleans())
        @settings(max_examples=effort(40), deadline=None)
        def check(asked: list[tuple[str, int | None, str]], together: bool) -> None:
            runner.run(ask_all(database, asked, together))

        try:
            check()
        finally:
            runner.run(database.close())
