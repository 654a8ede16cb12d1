"""The broker: events exactly once and in order, updates when there is room, and nothing that a publisher waits for."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.budget import long
from support.stores import at_once

from cancelmark.impl.runtime.events import BUFFER, PAGE, Broker, BrokerStatistics, Feed, Notice, Subscription, Update
from cancelmark.impl.store import TERMINAL, AppendEvent, Event, MemoryStore, NewSession, SqliteStore, Store, StoreError

SESSIONS = ("s", "t")


@contextmanager
def open_store(kind: str, directory: Path) -> Iterator[Store]:
    with closing(MemoryStore() if kind == "memory" else SqliteStore(directory / "test.db")) as store:
        asyncio.run(store.write([NewSession(id) for id in SESSIONS]))
        yield store


@pytest.fixture
@asynccontextmanager
async def store() -> AsyncIterator[Store]:
    with closing(MemoryStore()) as store:
        await store.write([NewSession(id) for id in SESSIONS])
        yield store


def terminal(session: str = "s", **payload: Any) -> AppendEvent:
    return AppendEvent(session, TERMINAL, payload)


def numbered(number: int, session: str = "s") -> Update:
    return Update(session, "message", {"number": number})


async def everything(subscription: Subscription) -> list[Notice]:
    """All notices up to the end, which must be near."""
    return [notice async for notice in subscription]


# --- any interleaving -----------------------------------------------------------------------------------------------

@dataclass
class Watcher:
    """A subscriber that reads when it likes, and that goes away and comes back with the last id that it has seen."""

    session: str | None
    offset: int = 0
    subscription: Subscription | None = None
    reader: asyncio.Task[Notice] | None = None
    seen: list[Notice] = field(default_factory=list)
    offered: int = 0  # updates published while it was there
    missed: int = 0  # those that it was too slow for, or that it left behind

    def arrive(self, broker: Broker) -> None:
        if self.subscription is None:
            self.subscription = broker.subscribe(self.offset, self.session)

    async def leave(self) -> None:
        if self.subscription is not None:
            await self.stop_reading()
            self.missed += self.subscription.skipped + len(self.subscription._updates)
            self.subscription.close()
            self.subscription = None

    async def read(self, patience: int) -> None:
        """Waits for a notice, but not for ever: a read that is canceled must lose nothing."""
        if self.subscription is None:
            return
        self.reader = asyncio.ensure_future(self.subscription.__anext__())
        for _ in range(patience):
            await asyncio.sleep(0)
        await self.stop_reading()

    async def stop_reading(self) -> None:
        if self.reader is not None:
            self.reader.cancel()
            (result,) = await asyncio.gather(self.reader, return_exceptions=True)
            self.reader = None
            if isinstance(result, Event | Update):
                self.note(result)

    def note(self, notice: Notice) -> None:
        assert self.subscription is not None
        self.seen.append(notice)
        self.offset = self.subscription.offset

    async def finish(self, broker: Broker) -> None:
        """Comes back if it was away, and sees the rest."""
        self.arrive(broker)
        assert self.subscription is not None
        async for notice in self.subscription:
            self.note(notice)
        await self.leave()


class World:
    """Prompts that publish updates and end, watchers that come and go, all in an order that a seed decides."""

    def __init__(self, store: Store, broker: Broker, random: Random) -> None:
        self.store, self.broker, self.random = store, broker, random
        self.feeds: dict[int, tuple[str, Feed]] = {}
        self.prompts = self.updates = 0
        self.writes: list[asyncio.Task[tuple[int, ...]]] = []
        self.watchers = [Watcher(session) for session in (None, None, *SESSIONS)]

    async def run(self, steps: int) -> None:
        actions = [self.begin, self.update, self.update, self.update, self.end, self.end, self.arrive, self.leave,
                   self.read, self.read, self.read, self.pause]
        for _ in range(steps):
            await self.random.choice(actions)()
        while self.feeds:
            await self.end()
        await asyncio.gather(*self.writes)
        self.broker.close()
        for watcher in self.watchers:
            await watcher.finish(self.broker)

    async def begin(self) -> None:
        self.prompts += 1
        session = self.random.choice(SESSIONS)
        self.feeds[self.prompts] = session, self.broker.feed(session, f"r{self.prompts}")

    async def update(self) -> None:
        if not self.feeds:
            return
        prompt = self.random.choice(list(self.feeds))
        session, feed = self.feeds[prompt]
        self.updates += 1
        feed.publish("message", {"prompt": prompt, "number": self.updates})
        for watcher in self.watchers:
            watcher.offered += watcher.subscription is not None and watcher.session in (None, session)

    async def end(self) -> None:
        """The end is on its way when this returns, and not yet written; a straggler comes after it."""
        if not self.feeds:
            return
        prompt = self.random.choice(list(self.feeds))
        session, feed = self.feeds.pop(prompt)
        feed.close()
        write = self.store.write([AppendEvent(session, TERMINAL, {"prompt": prompt}, f"r{prompt}")])
        self.writes.append(asyncio.ensure_future(write))
        if self.random.random() < 0.5:
            await asyncio.sleep(0)
        feed.publish("message", {"prompt": prompt, "number": -1})

    async def arrive(self) -> None:
        self.random.choice(self.watchers).arrive(self.broker)

    async def leave(self) -> None:
        await self.random.choice(self.watchers).leave()

    async def read(self) -> None:
        await self.random.choice(self.watchers).read(self.random.randint(0, 4))

    async def pause(self) -> None:
        await asyncio.sleep(0)


def check(world: World) -> None:
    """What every watcher must have seen."""
    for watcher in world.watchers:
        seen_events = [notice.id for notice in watcher.seen if isinstance(notice, Event)]
        events = at_once(world.store.events(session=watcher.session))
        assert seen_events == [event.id for event in events], "each event once"
        updates = [notice for notice in watcher.seen if isinstance(notice, Update)]
        numbers = [update.payload["number"] for update in updates]
        assert numbers == sorted(set(numbers)), "updates in order, none twice"
        assert -1 not in numbers, "stragglers are not passed on"
        assert len(updates) + watcher.missed == watcher.offered, "every update is seen or counted"
        ended: set[int] = set()
        for notice in watcher.seen:
            assert notice.payload["prompt"] not in ended, "nothing of a prompt after its end"
            if isinstance(notice, Event):
                ended.add(notice.payload["prompt"])
    assert world.broker.statistics().subscriptions == 0


def play(store: Store, seed: int, make: Callable[..., Broker] = Broker, steps: int = 300) -> World:
    async def run() -> World:
        random = Random(seed)
        world = World(store, make(store, buffer=random.choice([1, 2, 5])), random)
        await world.run(steps)
        return world

    return asyncio.run(run())


@pytest.mark.rule("R18a", "R29d")
@pytest.mark.parametrize(("kind", "seeds"), [
    ("memory", range(30)), long("memory", range(30, 200)), ("sqlite", range(10)), long("sqlite", range(10, 50))])
def test_whatever_happens_each_event_is_seen_once_and_in_order(kind: str, seeds: range, tmp_path: Path) -> None:
    seen = missed = 0
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        with open_store(kind, tmp_path / str(seed)) as store:
            world = play(store, seed)
            check(world)
        seen += sum(len(watcher.seen) for watcher in world.watchers)
        missed += sum(watcher.missed for watcher in world.watchers)
    assert seen > 50 * len(seeds), "the interleavings must have something to see"
    assert missed > 5 * len(seeds), "and something to miss"


# --- seeded bugs: what the test above must catch --------------------------------------------------------------------

class DropsWhenFull(Broker):
    """Delivers as the original does: an event goes into the buffer like an update, and is gone if that is full."""

    def _on_committed(self, latest: int) -> None:
        for subscription in self._subscriptions:
            for event in at_once(self.store.events(subscription._read, until=latest, session=subscription.session)):
                if len(subscription._updates) < self.buffer:
                    subscription._updates.append((0, event))  # type: ignore[arg-type]
            subscription._read = latest
        super()._on_committed(latest)


class ReadsTheLogFirst(Broker):
    """Reads as much of the log as there is, and takes updates when there is no more."""

    def subscribe(self, after: int | None = None, session: str | None = None) -> Subscription:
        subscription = Eager(self, self.latest if after is None else after, session)
        self._subscriptions.add(subscription)
        return subscription


class Eager(Subscription):
    def _readable(self) -> int:
        return self._broker.latest


class ForgetsItsPlace(Broker):
    """Starts a little before the place that a subscriber comes back to, to be on the safe side."""

    def subscribe(self, after: int | None = None, session: str | None = None) -> Subscription:
        return super().subscribe(None if after is None else after - 1, session)


class LeavesFeedsOpen(Broker):
    """Passes on what comes from a prompt that has ended."""

    def feed(self, session_id: str, run_id: str | None = None) -> Feed:
        return NeverClosed(self, session_id, run_id)


class NeverClosed(Feed):
    def close(self) -> None:
        pass


@pytest.mark.parametrize(("bug", "caught"), [
    (DropsWhenFull, "each event once"),
    (ForgetsItsPlace, "each event once"),
    (ReadsTheLogFirst, "nothing of a prompt after its end"),
    (LeavesFeedsOpen, "stragglers are not passed on"),
])
def test_a_broker_with_a_bug_is_caught(bug: type[Broker], caught: str) -> None:
    def complain(seed: int) -> str:
        with open_store("memory", Path()) as store:
            world = play(store, seed, bug)
            try:
                check(world)
            except AssertionError as error:
                return str(error)
            return ""

    assert any(caught in complain(seed) for seed in range(25))


# --- one thing at a time --------------------------------------------------------------------------------------------

async def test_notices_come_in_the_order_of_their_publication(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe()
    broker.publish(numbered(1))
    await store.write([terminal()])
    broker.publish(numbered(2))
    await store.write([terminal(), terminal()])
    broker.publish(numbered(3))
    broker.close()
    seen = await everything(subscription)
    assert [n.id if isinstance(n, Event) else f"u{n.payload['number']}" for n in seen] == [
        "u1", 1, "u2", 2, 3, "u3"]


@pytest.mark.rule("R18b")
async def test_a_subscriber_that_never_reads_holds_a_buffer_and_no_more(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe()
    for number in range(10_000):
        broker.publish(numbered(number))
        if number % 100 == 0:
            await store.write([terminal()])
        assert subscription.held <= BUFFER
    assert subscription.skipped == 10_000 - BUFFER
    assert broker.statistics() == BrokerStatistics(subscriptions=1, published=10_000, skipped=10_000 - BUFFER)
    broker.close()
    held = []
    notices = []
    async for notice in subscription:
        notices.append(notice)
        held.append(subscription.held)
    assert max(held) < BUFFER + PAGE
    assert [n.id for n in notices if isinstance(n, Event)] == list(range(1, 101))
    assert [n.payload["number"] for n in notices if isinstance(n, Update)] == list(range(10_000 - BUFFER, 10_000))


@pytest.mark.rule("R18a")
async def test_a_long_log_is_read_page_by_page_and_others_run_in_between(store: Store) -> None:
    await store.write([terminal() for _ in range(5 * PAGE)])
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe(after=0)
    seen: list[int] = []
    turns = 0

    async def watch() -> None:
        async for notice in subscription:
            assert isinstance(notice, Event)
            assert subscription.held < PAGE
            seen.append(notice.id)

    reader = asyncio.ensure_future(watch())
    while len(seen) < 5 * PAGE and turns < 1000:
        await asyncio.sleep(0)
        turns += 1
    assert 5 <= turns < 1000
    subscription.close()
    await reader
    assert seen == list(range(1, 5 * PAGE + 1))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_broker_goes_on_from_the_log_that_it_finds(kind: str, tmp_path: Path) -> None:
    async def run(store: Store) -> None:
        await store.write([terminal(), terminal("t"), AppendEvent("s", "agent_event", {}), terminal()])
        broker = Broker(store)
        await broker.start()
        everyone = broker.subscribe()
        returning = broker.subscribe(after=1, session="s")
        other = broker.subscribe(after=0, session="t")
        await store.write([terminal()])
        broker.close()
        assert [[n.id for n in await everything(s) if isinstance(n, Event)] for s in (everyone, returning, other)] == [
            [5], [3, 4, 5], [2]]
        assert (everyone.offset, returning.offset, other.offset) == (5, 5, 5)

    with open_store(kind, tmp_path) as store:
        asyncio.run(run(store))


@pytest.mark.parametrize(("after", "expected"), [
    (-3, [1, 2, 3]), (0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [1, 2, 3]), (900, [1, 2, 3])])
async def test_a_place_outside_the_log_means_from_the_beginning(store: Store, after: int, expected: list[int]) -> None:
    await store.write([terminal(), terminal()])
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe(after)
    await store.write([terminal()])
    broker.close()
    assert [n.id for n in await everything(subscription) if isinstance(n, Event)] == expected


async def test_a_session_filter_holds_for_updates_and_events(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe(session="s")
    for session in SESSIONS:
        broker.publish(numbered(1, session))
        await store.write([terminal(session)])
    broker.close()
    assert [n.session_id for n in await everything(subscription)] == ["s", "s"]


def test_an_event_committed_by_a_writer_that_was_canceled_is_seen_all_the_same(tmp_path: Path) -> None:
    """Who waits for the write is gone, so the store itself must tell."""
    async def run(store: Store) -> None:
        broker = Broker(store)
        await broker.start()
        with broker.subscribe() as subscription:
            writing = asyncio.ensure_future(store.write([terminal()]))
            await asyncio.sleep(0)
            writing.cancel()
            notice = await anext(subscription)
            assert isinstance(notice, Event)
            assert notice.id == 1
        broker.close()

    with open_store("sqlite", tmp_path) as store:
        asyncio.run(run(store))


async def test_closing_a_subscription_ends_a_reader_that_waits(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe()
    reader = asyncio.ensure_future(everything(subscription))
    await asyncio.sleep(0)
    broker.publish(numbered(1))
    subscription.close()
    subscription.close()
    assert await reader == []
    assert broker.statistics().subscriptions == 0
    assert subscription.held == 0


async def test_closing_the_broker_ends_all_readers_after_what_was_published(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    readers = [asyncio.ensure_future(everything(broker.subscribe())) for _ in range(3)]
    await asyncio.sleep(0)
    broker.publish(numbered(1))
    await store.write([terminal()])
    broker.close()
    broker.close()
    broker.publish(numbered(2))
    await store.write([terminal()])
    for reader in readers:
        assert [type(notice) for notice in await reader] == [Update, Event]
    assert await everything(broker.subscribe()) == []
    assert broker.statistics().published == 1


async def test_canceling_a_reader_loses_nothing_and_leaks_nothing(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    seen: list[Notice | BaseException] = []
    with broker.subscribe() as subscription:
        for number in range(20):
            reader = asyncio.ensure_future(anext(subscription))
            await asyncio.sleep(0)
            reader.cancel()
            seen += await asyncio.gather(reader, return_exceptions=True)
            assert not subscription._awake._waiters
            await store.write([terminal(number=number)])
        broker.close()
        seen += await everything(subscription)
    canceled = [n for n in seen if isinstance(n, asyncio.CancelledError)]
    assert canceled
    assert [n.payload["number"] for n in seen if isinstance(n, Event)] == list(range(20))
    assert len(seen) == 20 + len(canceled)
    assert broker.statistics().subscriptions == 0


async def test_a_subscription_that_nobody_holds_any_more_is_gone(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    broker.publish(numbered(0))
    await store.write([terminal()])
    async for _ in broker.subscribe(after=0):
        break
    gc.collect()
    assert broker.statistics().subscriptions == 0


async def test_a_log_that_cannot_be_read_is_an_error_for_the_subscriber_and_not_for_the_publisher(store: Store) -> None:
    broker = Broker(store)
    await broker.start()
    subscription = broker.subscribe()
    await store.write([terminal()])
    store.close()
    broker.publish(numbered(1))
    with pytest.raises(StoreError, match="closed"):
        await anext(subscription)
    assert subscription.offset == 0


def test_a_broker_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer is 0; it must be at least 1"):
        Broker(MemoryStore(), buffer=0)
