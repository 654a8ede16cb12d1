"""What is not kept for ever: a reader sees each end once, or is told of a gap that covers exactly what it missed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from time import time
from typing import Any

import pytest

from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import RunIdInUse, Runtime
from cancelmark.impl.runtime.events import GAP, PAGE, Broker, Subscription, Update
from cancelmark.impl.runtime.retention import PIECE, Keep, Retention, drop_events, forget_prompts, parse_keep
from cancelmark.impl.runtime.workspace import Watch, Workspaces
from cancelmark.impl.store import (
    TERMINAL,
    AppendEvent,
    Broken,
    ConstraintViolation,
    DropEvent,
    Event,
    MemoryStore,
    NewSession,
    NoRoom,
    SqliteStore,
    Store,
    StoreError,
    Unconfirmed,
    Unstorable,
)

DAY = 86_400


# --- readers that come and go while the log is shortened

class Reader:
    """Watches, rests, and goes away; comes back with the place that it was told last."""

    def __init__(self) -> None:
        self.offset = 0
        self.watch: Watch | None = None
        self.resting = False
        self.accounted: list[int] = []  # events that it has seen, or was told that it has missed
        self.gaps = 0
        self.gone = 0  # when it came: what was deleted while it is here, it has seen

    def arrive(self, broker: Broker) -> None:
        if self.watch is None:
            self.watch, self.gone = Watch(broker, self.offset), broker.floor

    def rest(self) -> None:
        if self.watch and not self.resting:
            self.watch.rest()
            self.resting = True

    def resume(self) -> None:
        if self.watch and self.resting:
            self.watch.resume()
            self.resting = False

    def leave(self) -> None:
        if self.watch:
            self.resume()
            self.watch.close()
            self.watch = None

    async def read(self, patience: float) -> bool:
        """Takes one notice if there is one. Before that it may be told its place alone, as at the head of a stream."""
        if self.watch is None or self.resting:
            return False
        self.offset = self.watch.offset
        try:
            async with asyncio.timeout(patience):
                while (notice := await self.watch.take()) is None:
                    if self.watch.over:
                        return False
                    await self.watch.wait()
        except TimeoutError:
            return False
        if isinstance(notice, Event):
            self.accounted.append(notice.id)
        else:
            assert notice.type == GAP
            self.gaps += 1
            missed = range(self.offset + 1, self.offset + notice.payload["missed"] + 1)
            self.accounted += [id if id <= self.gone else -id for id in missed]
        self.offset = self.watch.offset
        return True


async def live(store: Store, broker: Broker, random: Random, steps: int) -> tuple[list[Reader], int]:
    """Readers, ends and deletions in an order that a seed decides. All readers come back in the end."""
    readers = [Reader() for _ in range(4)]
    await store.write([NewSession("s")])
    await broker.start()
    shortening: set[asyncio.Task[None]] = set()
    for _ in range(steps):
        reader = random.choice(readers)
        match random.randrange(9):
            case 0 | 1:
                await store.write([AppendEvent("s", TERMINAL, {})] * random.randint(1, PAGE))
            case 2 if not shortening:
                keep = Keep(number=random.randint(1, 40)) if random.random() < 0.8 else Keep(age=-1)
                task = asyncio.ensure_future(drop_events(store, broker, keep, int(time())))
                shortening.add(task)
                task.add_done_callback(shortening.discard)
            case 3:
                reader.arrive(broker)
            case 4:
                reader.leave()
            case 5:
                reader.rest()
            case 6:
                reader.resume()
            case _:
                for _ in range(random.randint(1, 2 * PAGE)):
                    await reader.read(0.001)
                    if random.random() < 0.05:
                        break
    await asyncio.gather(*shortening)
    broker.close()
    for reader in readers:
        reader.resume()
        reader.arrive(broker)
        while await reader.read(5.0):
            pass
        reader.leave()
    return readers, broker.latest


def judge(readers: list[Reader], latest: int) -> None:
    for reader in readers:
        right = reader.accounted == list(range(1, latest + 1))  # apart: pytest would tell of each difference, slowly
        assert right, "each end once, or in a gap that covers just that, and that was gone when it came"


def play(seed: int, directory: Path | None, make: Callable[[Store], Broker] = Broker, steps: int = 120) -> int:
    """Returns how often a reader was told of a gap."""
    async def main() -> int:
        store = MemoryStore() if directory is None else SqliteStore(directory / f"{seed}.db")
        with closing(store):
            readers, latest = await live(store, make(store), Random(seed), steps)
            judge(readers, latest)
            assert await store.first_event() <= latest or latest == 0
            return sum(reader.gaps for reader in readers)

    return asyncio.run(main())


@pytest.mark.rule("R18a", "R18c", "R29e")
def test_a_reader_that_comes_and_goes_sees_each_end_once_or_is_told_of_the_gap(tmp_path: Path) -> None:
    gaps = sum(play(seed, None) for seed in range(25)) + sum(play(seed, tmp_path) for seed in range(4))
    assert gaps > 10, "there were gaps to tell of"


class HeldByNobody(Broker):
    """Deletes what a reader is still to see."""

    def raise_floor(self, wanted: int) -> int:
        self.floor = max(self.floor, min(wanted, self.latest - 1))
        return self.floor


class HeldByTheOpen(Broker):
    """Deletes what a reader that rests is still to see, and tells it of a gap though it was not away."""

    def pause(self, subscription: Subscription) -> None:
        self.unsubscribe(subscription)


class Silent(Broker):
    """Goes on from the oldest event that is kept, without a word."""

    def subscribe(self, after: int | None = None, session: str | None = None) -> Subscription:
        made = super().subscribe(after, session)
        made._gap = 0
        return made


class Forgetful(Broker):
    """Takes a reader for told that has not taken the gap."""

    def subscribe(self, after: int | None = None, session: str | None = None) -> Subscription:
        made = super().subscribe(after, session)
        made.offset = made._read
        return made


class Low(Broker):
    """Deletes first and raises the floor later."""

    def raise_floor(self, wanted: int) -> int:
        before = self.floor
        floor = super().raise_floor(wanted)
        self.floor = before
        return floor


@pytest.mark.parametrize("flawed", [HeldByNobody, HeldByTheOpen, Silent, Forgetful, Low])
def test_the_random_test_finds_a_broker_that_loses_ends(flawed: Callable[[Store], Broker]) -> None:
    def search() -> None:
        for seed in range(25):
            play(seed, None, flawed)

    with pytest.raises(AssertionError, match="each end once"):
        search()


# --- one by one

@asynccontextmanager
async def with_broker(events: int = 0) -> AsyncIterator[tuple[Store, Broker]]:
    store = MemoryStore()
    await store.write([NewSession("s"), *[AppendEvent("s", TERMINAL, {})] * events])
    broker = Broker(store)
    await broker.start()
    yield store, broker


@pytest.mark.rule("R18c")
async def test_the_floor_stays_below_the_latest_event_and_never_falls() -> None:
    async with with_broker(10) as (_, broker):
        assert broker.raise_floor(100) == 9
        assert broker.raise_floor(3) == 9


@pytest.mark.rule("R18c", "R29e")
async def test_a_gap_is_told_until_it_is_taken_and_is_not_held_against_the_floor() -> None:
    async with with_broker(10) as (store, broker):
        await drop_events(store, broker, Keep(number=5), 0)
        first = broker.subscribe(2)
        assert (first.offset, first.needed) == (2, 5)
        first.close()
        again = broker.subscribe(first.offset)
        assert await anext(again) == Update("", GAP, {"missed": 3})
        assert again.offset == 5
        event = await anext(again)
        assert isinstance(event, Event)
        assert event.id == 6
        fresh = broker.subscribe(5)
        assert isinstance(await anext(fresh), Event)


def test_a_floor_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        with closing(SqliteStore(tmp_path / "test.db")) as store:
            await store.write([NewSession("s"), *[AppendEvent("s", TERMINAL, {})] * 10, DropEvent(1), DropEvent(2)])

    async def second() -> None:
        with closing(SqliteStore(tmp_path / "test.db")) as store:
            broker = Broker(store)
            await broker.start()
            assert (broker.floor, broker.latest) == (2, 10)

    asyncio.run(first())
    asyncio.run(second())


async def test_events_go_by_age_and_in_small_commits() -> None:
    sizes: list[int] = []

    class Counting(MemoryStore):
        async def write(self, batch: Any) -> tuple[int, ...]:
            sizes.append(len(batch))
            return await super().write(batch)

    store = Counting()
    await store.write([NewSession("s"), *[AppendEvent("s", TERMINAL, {})] * 500])
    broker = Broker(store)
    await broker.start()
    sizes.clear()
    await drop_events(store, broker, Keep(age=30 * DAY), int(time()) + 29 * DAY)
    assert await store.first_event() == 1
    await drop_events(store, broker, Keep(age=30 * DAY), int(time()) + 31 * DAY)
    assert await store.first_event() == 500
    assert max(sizes) == PIECE


# --- prompts

@pytest.mark.rule("R22a", "R22b", "R22c", "R22d")
@pytest.mark.parametrize("keep", [Keep(number=2), Keep(age=DAY)])
async def test_prompts_that_are_done_are_forgotten_and_their_run_ids_are_not(tmp_path: Path, keep: Keep) -> None:
    workspaces = Workspaces(ScriptedModel(), tmp_path)
    await workspaces.start()
    workspace = await workspaces.open("/tmp")
    await workspaces.ready(workspace)
    session = (await workspace.create_session("")).id
    runtime, store = workspace.runtime, workspace.runtime.store
    for number in range(8):
        await workspace.accept(session, f"text {number}", f"run {number}" if number % 2 else None)
        while runtime.is_busy():
            await asyncio.sleep(0.01)
    said = await store.messages(session)
    await forget_prompts(store, keep, int(time()) + 2 * DAY)
    kept = [prompt.seq for prompt in await store.prompts(session, 100)]
    assert kept == ([7, 8] if keep.number else [8])
    assert await store.messages(session) == said
    assert (await workspace.accept(session, "text 1", "run 1")).seq == 2
    with pytest.raises(RunIdInUse):
        await workspace.accept(session, "text 3", "run 1")
    assert (await workspace.accept(session, "text 8", None)).seq > 8
    await workspaces.close()


@pytest.mark.rule("R18c")
async def test_a_handle_whose_end_is_gone_does_not_wait_for_it() -> None:
    store = MemoryStore()
    runtime = Runtime(ScriptedModel(), store)
    await runtime.start()
    await runtime.create_session("s")
    handles = [await runtime.accept("s", f"text {number}", f"run {number}") for number in range(4)]
    for handle in handles:
        await handle
    await drop_events(store, runtime.broker, Keep(number=1), 0)
    async with asyncio.timeout(30):
        assert [notice async for notice in handles[1].events() if isinstance(notice, Event)] == []
        assert len([notice async for notice in handles[3].events() if isinstance(notice, Event)]) == 1
    await runtime.close()


# --- the workspace does it by itself

@pytest.mark.parametrize("error", [
    StoreError("here", "it failed", "wait"), NoRoom("here", "it is full", "wait"), Unconfirmed("here", "?", "wait"),
    ConstraintViolation("here", DropEvent(1)), Unstorable("here", "a value", "change it"),
    Broken("here", "it failed", "look"),
    RuntimeError("a bug"), OSError("a disk"), TimeoutError(),
], ids=lambda error: type(error).__name__)
async def test_whatever_fails_in_one_round_the_next_one_happens(
    error: Exception, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cancelmark.impl.runtime.retention.PERIOD", 0.001)
    store, failures = MemoryStore(), [error] * 3

    async def fail(*_: object) -> int:
        if failures:
            raise failures.pop()
        return await MemoryStore.first_event(store)

    await store.write([NewSession("s"), *[AppendEvent("s", TERMINAL, {})] * 9])
    broker = Broker(store)
    await broker.start()
    store.first_event = fail  # type: ignore[method-assign]
    loop = asyncio.ensure_future(Retention(events=Keep(number=2)).apply_for_ever(store, broker))
    async with asyncio.timeout(60):
        while await MemoryStore.first_event(store) < 8:
            assert not loop.done()
            await asyncio.sleep(0.001)
    loop.cancel()


def test_a_workspace_lets_go_of_what_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cancelmark.impl.runtime.retention.PERIOD", 0.01)

    async def main() -> None:
        keep = Retention(events=Keep(number=2), prompts=Keep(number=3))
        workspaces = Workspaces(ScriptedModel(), tmp_path, retention=keep)
        await workspaces.start()
        workspace = await workspaces.open("/tmp")
        await workspaces.ready(workspace)
        session = (await workspace.create_session("")).id
        store = workspace.runtime.store
        with workspace.watch("client", None):
            for number in range(6):
                await workspace.accept(session, f"text {number}", f"run {number}")
            while await store.latest_event() < 6 or len(await store.prompts(session, 100)) > 3:
                await asyncio.sleep(0.01)
            assert await store.first_event() == 1, "somebody is still to see it"
        while await store.first_event() < 5:
            await asyncio.sleep(0.01)
        await workspaces.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(("text", "keep"), [("10000", Keep(number=10_000)), ("30d", Keep(age=30 * DAY)),
                                             ("12h", Keep(age=43_200)), ("1", Keep(number=1))])
def test_how_much_is_kept_is_a_number_or_an_age(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["", "0", "0d", "-1", "1.5", "30 d", "d", "1y", "٣", "9" * 13])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a count such as"):
        parse_keep(text)
