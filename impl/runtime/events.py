"""Who sees what, and when: a broker between those who publish and those who watch.

There are two kinds of notices. An **update** (a piece of text, a message that has changed) is passed on through memory,
and a subscriber that is slow skips the oldest of those that wait for it. An **event** is in the store's log, and is
never lost: a subscriber reads the log from its own place, at its own pace, and if it goes away it comes back to its
place. An event is published by being committed; the broker hears of it from the store, so no publisher can forget to
tell, and no canceled one can fail to. Publishers never wait: nothing here that they call suspends.

**The seam.** Let L be the highest event id that the broker has heard of. An update published now belongs between L and
L + 1: it is kept together with L, its place. That puts all notices into one order: events by id, and each update after
the event of its place. A subscriber reads the log only up to the place of the first update that waits, or up to L if
none does, and takes that update only when it has read so far. Hence what it sees is that one order with some updates
left out:
- no event twice and none missing: ids rise with commits, and each read of the log goes on from where the last ended;
- no event out of order, and no update before an event that was published before it;
- no update of a prompt after its terminal event: the prompt's `Feed` is closed before that event is written, so the
  place of each of its updates is below the event's id. This also holds when the event is heard of late, and when a
  later event of the same commit is heard of first.

**The floor.** A log that is not kept for ever loses its oldest events. The broker raises its floor first, to the last
event that may go, and only then are events up to there deleted. The floor is never above the place of a subscription
that is open or rests, so that whoever watches misses nothing, and never at the latest event. Whoever comes back to a
place below the floor is told so first, by a gap, and goes on from the floor. Its place is the old one until it has
taken the gap: if it leaves before that, it is told again.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeAlias, TypeVar
from weakref import ref

from ..store import Event, Json, Store

BUFFER = 256  # updates that wait for one subscriber
PAGE = 64  # events that are read from the log at a time
GAP = "gap"  # the type of a notice that says how many events are missing before the next


@dataclass(frozen=True, slots=True)
class Update:
    """Something that a slow subscriber may miss."""

    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


Notice: TypeAlias = Event | Update
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What a broker has passed on since it was made."""

    subscriptions: int  # those that are open now
    published: int  # updates that somebody could have watched
    skipped: int  # updates that a subscriber was too slow for, over all subscribers


class Held(Generic[T]):
    """Things of which one that nobody holds any more is gone by itself. `WeakSet` takes several calls to say whether it
    is empty, which is asked for each piece of an answer."""

    def __init__(self) -> None:
        self.refs: dict[ref[T], None] = {}

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[T]:
        return iter([thing for held in tuple(self.refs) if (thing := held()) is not None])

    def add(self, thing: T) -> None:
        self.refs[ref(thing, self._forget)] = None

    def discard(self, thing: T) -> None:
        self.refs.pop(ref(thing), None)

    def _forget(self, gone: "ref[T]") -> None:
        self.refs.pop(gone, None)


class Broker:
    """Passes the events of one store, and updates, to any number of subscriptions. For one event loop."""

    def __init__(self, store: Store, *, buffer: int = BUFFER) -> None:
        if buffer < 1:
            raise ValueError(f"a subscription needs room for at least one update, not {buffer}")
        self.store, self.buffer = store, buffer
        self.latest = 0  # the highest event id heard of
        self.floor = 0  # events up to this id are gone, or about to be
        self.closed = False
        self._subscriptions = Held[Subscription]()
        self._resting = Held[Subscription]()
        self._published = self._skipped = 0
        self._page: tuple[tuple[int, int, str | None], list[Event]] = (0, 0, None), []  # that was read last
        self._unwatch = store.watch(self._hear)

    async def start(self) -> None:
        """Hears of what is in the log already. Call it before anybody subscribes."""
        self._hear(await self.store.latest_event())
        self.floor = await self.store.first_event() - 1

    def raise_floor(self, wanted: int) -> int:
        """Raises the floor to that event, or as far as those who watch allow, and returns it. What is not above the
        floor may be deleted (R18c)."""
        held = (subscription.needed for held in (self._subscriptions, self._resting) for subscription in held)
        self.floor = max(self.floor, min(wanted, self.latest - 1, *held))
        return self.floor

    def subscribe(self, after: int | None = None, session: str | None = None) -> "Subscription":
        """All notices from now on; with `after`, also all events above that id. With `session`, only that session's.

        A place that the log has not reached yet cannot be from this log, and means from the beginning (R29c).
        """
        place = self.latest if after is None else after if 0 < after <= self.latest else 0
        subscription = Subscription(self, place, session)
        if not self.closed:
            self._subscriptions.add(subscription)
        return subscription

    async def read_page(self, after: int, until: int, session: str | None) -> list[Event]:
        """A page of the log. Who stands where another has just been gets the same."""
        asked = after, until, session
        if self._page[0] != asked:
            self._page = asked, await self.store.events(after, until=until, session=session, limit=PAGE)
        return self._page[1]

    def feed(self, session_id: str, run_id: str | None = None) -> "Feed":
        """Where the updates of one prompt are published."""
        return Feed(self, session_id, run_id)

    @property
    def watched(self) -> bool:
        """Whether anybody would see an update. If not, it need not be made."""
        return not self.closed and bool(self._subscriptions.refs)

    def publish(self, update: Update) -> None:
        """Passes on an update that belongs to no prompt. Never blocks (R18b)."""
        if not self.watched:
            return
        self._published += 1
        for subscription in self._subscriptions:
            if subscription.session is None or subscription.session == update.session_id:
                self._skipped += subscription.offer(update)

    def statistics(self) -> BrokerStatistics:
        """What was passed on so far."""
        return BrokerStatistics(len(self._subscriptions), self._published, self._skipped)

    def close(self) -> None:
        """Nothing is published any more, and each subscription ends when it has seen what was. Leave the store open
        until they have. Closing twice is closing once."""
        self.closed = True
        self._unwatch()
        for subscription in self._subscriptions:
            subscription.wake()

    def leave(self, subscription: "Subscription") -> None:
        """The subscription gets nothing any more."""
        self._subscriptions.discard(subscription)
        self._resting.discard(subscription)

    def let_rest(self, subscription: "Subscription") -> None:
        """The subscription gets nothing any more, but what it has not seen is kept."""
        self._subscriptions.discard(subscription)
        self._resting.add(subscription)

    def _hear(self, latest: int) -> None:
        """The log has events up to this id."""
        self.latest = max(self.latest, latest)
        if self._subscriptions.refs:
            for subscription in self._subscriptions:
                subscription.wake()


class Feed:
    """The updates of one prompt. Close it before the prompt's terminal event is written: nothing comes after
    that (R29d)."""

    __slots__ = ("_broker", "_open", "_run_id", "_session_id")

    def __init__(self, broker: Broker, session_id: str, run_id: str | None) -> None:
        self._broker, self._session_id, self._run_id = broker, session_id, run_id
        self._open = True

    @property
    def watched(self) -> bool:
        """Whether anybody would see an update."""
        return self._open and self._broker.watched

    def publish(self, type: str, payload: Json) -> None:
        """Passes on an update. Never blocks. When the feed is closed it does nothing: a straggler is no error."""
        if self.watched:
            self._broker.publish(Update(self._session_id, type, payload, self._run_id))

    def close(self) -> None:
        self._open = False


class Subscription:
    """The notices for one subscriber, as an async iterator for one reader; a context manager that closes it.

    It ends after `close`, at once, and after the broker's, when it has seen everything. Canceling the reader loses
    nothing: who goes on reading gets the next notice. It holds at most the broker's `buffer` of updates, and a page of
    events while it is being read (R18a).
    """

    __slots__ = ("__weakref__", "_awake", "_broker", "_closed", "_gap", "_page", "_pause", "_read", "_updates", "place",
                 "session", "skipped")

    def __init__(self, broker: Broker, place: int, session: str | None) -> None:
        self.session = session
        self.place = place  # what to come back with: every event up to this id has been seen
        self.skipped = 0  # updates that were published too fast for this subscriber
        self._broker = broker
        self._read = max(place, broker.floor)  # how far the log has been read
        self._gap = self._read - place  # events that are gone, and not yet told of
        self._page: deque[Event] = deque()  # what was read and not yet seen
        self._updates: deque[tuple[int, Update]] = deque()  # each with its place
        self._awake = asyncio.Event()
        self._pause: asyncio.Future[None] | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        while not self._closed:
            if self._must_read():
                await self._turn_page()
                if len(self._page) == PAGE:
                    await asyncio.sleep(0)  # who has a long way to catch up must not keep everybody else waiting
            elif (notice := self._next()) is not None:
                return notice
            elif self.over:
                break
            else:
                await self.wait()
        raise StopAsyncIteration

    @property
    def over(self) -> bool:
        """Whether nothing can come any more, if there is nothing to take."""
        return self._closed or self._broker.closed

    async def wait(self) -> None:
        """Waits for a notice, for the end, or to be nudged. Call it when there is nothing to take."""
        self._awake.clear()
        await self._awake.wait()

    def nudge(self) -> None:
        """Ends a wait."""
        self._awake.set()

    async def take(self) -> Notice | None:
        """The next notice, if there is one already."""
        if self._must_read():
            await self._turn_page()
        return self._next()

    async def settle(self, seconds: float) -> None:
        """Waits for so long, so that updates gather, or until there is an event, which nobody waits with."""
        if self._closed or self._broker.closed or self._read < self._broker.latest:
            return
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(seconds, _end_pause, self._pause)
        try:
            await self._pause
        finally:
            timer.cancel()
            self._pause = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription, also for a reader that waits. Closing twice is closing once."""
        self._end()
        self._broker.leave(self)

    def rest(self) -> None:
        """Ends the subscription like `close`; but until that is called, what it has not seen stays in the log."""
        if not self._closed:
            self._end()
            self._broker.let_rest(self)

    def _end(self) -> None:
        self._closed = True
        self._updates.clear()
        self._page.clear()
        self.wake()

    @property
    def needed(self) -> int:
        """Every event above this id has to be kept for it."""
        return self._read if self._gap else self.place

    @property
    def held(self) -> int:
        """How many notices it holds in memory."""
        return bool(self._gap) + len(self._updates) + len(self._page)

    def offer(self, update: Update) -> bool:
        """Adds the update to those that wait. True if the oldest of them had to go."""
        full = len(self._updates) == self._broker.buffer
        if full:
            self._updates.popleft()
            self.skipped += 1
        self._updates.append((self._broker.latest, update))
        self._awake.set()
        return full

    def wake(self) -> None:
        """There is an event, or an end."""
        self._awake.set()
        if self._pause:
            _end_pause(self._pause)

    def _must_read(self) -> bool:
        """Whether the next notice is in the log."""
        return not (self._gap or self._page or self._closed) and self._read < self._readable()

    def _readable(self) -> int:
        """How far the log may be read: what lies beyond was published after the first update that waits."""
        return self._updates[0][0] if self._updates else self._broker.latest

    async def _turn_page(self) -> None:
        until = self._readable()
        page = await self._broker.read_page(self._read, until, self.session)
        self._page.extend(page)
        self._read = page[-1].id if len(page) == PAGE else until

    def _next(self) -> Notice | None:
        """The next notice, if it is here. Taking it and returning it is one step that no cancel can come between."""
        if self._gap:
            gap, self._gap, self.place = Update("", GAP, {"missed": self._gap}), 0, self._read
            return gap
        if self._page:
            event = self._page.popleft()
            self.place = event.id
            return event
        self.place = self._read
        return self._updates.popleft()[1] if self._updates else None


def _end_pause(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
