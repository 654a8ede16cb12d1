"""What a store forgets when it is asked to: the oldest events and prompts that are done, and nothing that is needed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import time

import pytest

from cancelmark.impl.store import (
    MIGRATIONS,
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    ConstraintViolation,
    DropEvent,
    ForgetPrompt,
    MemoryStore,
    MovePrompt,
    NewSession,
    Operation,
    RaiseMark,
    SqliteStore,
    Store,
    make_digest,
)
from cancelmark.model.lifecycle import Outcome, State

Story = Callable[[Store], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
@asynccontextmanager
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with the prompts 1 to 3, of which 1 and 2 are done, and the events 1 to 3."""
    with closing(MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "test.db")) as store:
        await store.write([NewSession("s"), *prompt(1, "named"), *prompt(2), AcceptPrompt(3, "s", "text 3"),
                           AppendEvent("s", TERMINAL, {"seq": 0})])
        yield store


Told = Callable[[Story], None]


def prompt(seq: int, run_id: str | None = None) -> list[Operation]:
    return [AcceptPrompt(seq, "s", f"text {seq}", run_id), MovePrompt(seq, State.ACTIVE),
            MovePrompt(seq, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {"seq": seq}, run_id)]


async def refuses(store: Store, *operations: Operation) -> None:
    with pytest.raises(ConstraintViolation):
        await store.write(operations)


async def test_the_oldest_event_leaves_the_log_and_the_others_keep_their_ids(store: Store) -> None:
    assert await store.first_event() == 1
    await store.write([DropEvent(1), DropEvent(2)])
    assert await store.first_event() == await store.latest_event() == 3
    assert [event.id for event in await store.events()] == [3]
    assert [event.id for event in await store.events(1)] == [3]
    assert await store.write([AppendEvent("s", TERMINAL, {})]) == (4,)
    assert [event.id for event in await store.events(2, until=3)] == [3]


@pytest.mark.parametrize("wrong", [
    [DropEvent(2)], [DropEvent(4)], [DropEvent(0)], [DropEvent(1), DropEvent(1)],
    [DropEvent(1), DropEvent(2), DropEvent(3)]], ids=repr)
async def test_no_event_leaves_before_an_older_one_and_the_latest_stays(store: Store, wrong: list[Operation]) -> None:
    await refuses(store, *wrong)
    assert [event.id for event in await store.events()] == [1, 2, 3]
    assert await store.write([AppendEvent("s", TERMINAL, {})]) == (4,)


async def test_a_drop_that_is_taken_back_with_its_batch_leaves_the_log_as_it_was(store: Store) -> None:
    await refuses(store, AppendEvent("s", TERMINAL, {}), DropEvent(1), NewSession("s"))
    assert [event.id for event in await store.events()] == [1, 2, 3]
    assert await store.latest_event() == 3


async def test_an_event_is_found_by_its_time(store: Store) -> None:
    assert await store.first_event(int(time()) - 60) == 1
    assert await store.first_event(int(time()) + 60) == 4  # none is as young as that


@pytest.mark.rule("R22a", "R22d")
async def test_a_prompt_that_is_forgotten_keeps_its_run_id(store: Store) -> None:
    await store.write([ForgetPrompt(1, make_digest("text 1")), ForgetPrompt(2)])
    known = await store.prompt("named")
    assert known is not None
    assert (known.text, known.seq, known.outcome) == ("", 1, Outcome.END_TURN)
    assert [text for text in ("text 1", "text 2", "") if known.was(text)] == ["text 1"]
    assert await store.prompt(2) is None
    assert await store.transitions(1) == await store.transitions(2) == []
    assert [known.seq for known in await store.prompts("s", 10)] == [3]
    assert await store.prompts("s", 10, before=3) == await store.done_prompts(3, 10) == []
    await refuses(store, AcceptPrompt(4, "s", "text", "named"))


@pytest.mark.rule("R17e")
@pytest.mark.parametrize("wrong", [
    [ForgetPrompt(1)], [ForgetPrompt(2, "digest")], [ForgetPrompt(3)], [ForgetPrompt(4)],
    [ForgetPrompt(2), ForgetPrompt(2)], [ForgetPrompt(1, "digest"), ForgetPrompt(1, "digest")],
    [MovePrompt(3, State.DONE, Outcome.ERROR), ForgetPrompt(3)], [ForgetPrompt(2), NewSession("s")]], ids=repr)
async def test_no_prompt_is_forgotten_that_is_needed(store: Store, wrong: list[Operation]) -> None:
    """One that is not done, the one with the highest seq, a run id, or one that is forgotten already."""
    await refuses(store, *wrong)
    assert [(known.seq, known.text) for known in await store.prompts("s", 10)] == [
        (1, "text 1"), (2, "text 2"), (3, "text 3")]
    assert await store.latest_seq() == 3


async def test_the_oldest_prompts_that_are_done_are_found_by_seq_and_time(store: Store) -> None:
    async def found(until: int, limit: int = 9, before: int | None = None) -> list[int]:
        return [known.seq for known in await store.done_prompts(until, limit, before=before)]

    assert (await found(3), await found(1), await found(3, 1)) == ([1, 2], [1], [1])
    assert (await found(3, before=int(time()) - 60), await found(3, before=int(time()) + 60)) == ([], [1, 2])
    await store.write([MovePrompt(3, State.DONE, Outcome.ERROR), RaiseMark("s", 9)])
    assert await found(9) == [1, 2]  # the third has the highest seq, though not the highest that was given out


def test_what_is_forgotten_stays_so_after_a_restart_and_gives_its_space_back(tmp_path: Path) -> None:
    async def fill() -> None:
        with closing(SqliteStore(tmp_path / "test.db")) as store:
            await store.write([NewSession("s"), *(AppendEvent("s", TERMINAL, {"text": "x" * 8000}) for _ in range(200)),
                               AcceptPrompt(1, "s", "y" * 800_000, "named"), AcceptPrompt(2, "s", "z"),
                               MovePrompt(1, State.DONE, Outcome.ERROR)])

    async def forget() -> None:
        with closing(SqliteStore(tmp_path / "test.db")) as store:
            await store.write([DropEvent(id) for id in range(1, 200)])
            await store.write([ForgetPrompt(1, make_digest("y" * 800_000))])

    async def look() -> None:
        with closing(SqliteStore(tmp_path / "test.db")) as store:
            assert await store.first_event() == await store.latest_event() == 200
            known = await store.prompt("named")
            assert known is not None
            assert known.was("y" * 800_000)

    asyncio.run(fill())
    full = (tmp_path / "test.db").stat().st_size
    asyncio.run(forget())
    assert (tmp_path / "test.db").stat().st_size * 10 < full
    asyncio.run(look())


async def test_a_database_of_an_older_version_gives_its_space_back_too(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        for script in MIGRATIONS[:3]:
            db.executescript(script)
        db.execute("INSERT INTO sessions VALUES ('s', '', 0, 0)")
        db.executemany("INSERT INTO events (session_id, type, payload) VALUES ('s', 'run_complete', ?)",
                       [('{"text": "' + "x" * 8000 + '"}',)] * 200)
        db.execute("PRAGMA user_version = 3")
        db.commit()

    full = path.stat().st_size
    with closing(SqliteStore(path)) as store:
        assert await store.first_event(int(time()) - 60) == 1  # they count from now on
        await store.write([DropEvent(id) for id in range(1, 200)])
    assert path.stat().st_size * 5 < full
