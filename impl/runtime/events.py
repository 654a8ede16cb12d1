"""The broker between publishers and subscribers: which notices a subscriber sees, and in which order.

**Two kinds of notices.** An **update** (a piece of text, a message that has changed) is passed on in memory, and a slow
subscriber skips the oldest updates that wait for it. An **event** is in the store's log and is never lost. Each
subscriber reads the log from its own offset, at its own pace, and a subscriber that disconnects can resume at its
offset. Committing an event publishes it: the store notifies the broker, so no publisher can forget to, and canceling a
publisher cannot prevent it. Publishers never wait: nothing that they call here suspends.

**The seam.** Let L be the highest event id that the broker knows. An update published now belongs between L and L + 1,
so it is kept together with its offset, L. That puts all notices into one order: events by id, and each update after
the event at its offset. A subscriber reads the log only up to the offset of its first waiting update, or up to L if
none waits, and takes that update only when it has read that far. Hence a subscriber sees that one order, with some
updates left out:
- no event twice and none missing: ids rise with commits, and each read of the log continues where the last one ended;
- no event out of order, and no update before an event that was published before it;
- no update of a prompt after its terminal event: the prompt's `Feed` is closed before that event is written, so the
  offset of each of its updates is below the event's id. This holds even if the broker is notified late or out of
  order.

**The floor.** A log with a retention limit loses its oldest events. The broker first raises its floor to the last event
that may go; only then are events up to there deleted. The floor never rises above the offset of a subscription that is
open or resting, so no current subscriber misses anything, and it stays below the latest event. A subscriber that
resumes at an offset below the floor first receives a gap, and continues from the floor. It keeps its old offset until
it has taken the gap: if it disconnects before that, it receives the gap again.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeAlias, TypeVar
from weakref import ref

from ..store import Event, Json, Store

BUFFER = 256  # updates that may wait for one subscriber
PAGE = 64  # events that are read from the log at a time
GAP = "gap"  # the type of a notice of how many events before the next one were deleted


@dataclass(frozen=True, slots=True)
class Update:
    """A notice that a slow subscriber may miss."""

    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


Notice: TypeAlias = Event | Update
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What a broker has passed on since it was created."""

    subscriptions: int  # open now
    published: int  # updates published while there was a subscriber
    skipped: int  # updates dropped for slow subscribers, over all subscribers


class WeakBag(Generic[T]):
    """A set of weak references: an object that is referenced nowhere else disappears. The broker checks on every
    streamed piece of an answer whether it is empty, and `WeakSet` needs several calls for that."""

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
            raise ValueError(f"buffer is {buffer}; it must be at least 1")
        self.store, self.buffer = store, buffer
        self.latest = 0  # the highest event id known
        self.floor = 0  # events up to this id are deleted, or about to be
        self.closed = False
        self._subscriptions = WeakBag[Subscription]()
        self._paused = WeakBag[Subscription]()
        self._published = self._skipped = 0
        self._page: tuple[tuple[int, int, str | None], list[Event]] = (0, 0, None), []  # read last
        self._unwatch = store.watch(self._on_committed)

    async def start(self) -> None:
        """Learn the offsets of the existing log. Call it before the first `subscribe`."""
        self._on_committed(await self.store.latest_event())
        self.floor = await self.store.first_event() - 1

    def raise_floor(self, wanted: int) -> int:
        """Raise the floor to that event, or as far as subscribers allow, and return it. Events up to the floor may be
        deleted."""
        needed = (subscription.needed for group in (self._subscriptions, self._paused) for subscription in group)
        self.floor = max(self.floor, min(wanted, self.latest - 1, *needed))
        return self.floor

    def subscribe(self, after: int | None = None, session: str | None = None) -> "Subscription":
        """A subscription to all notices from now on; with `after`, also to all events above that id. With `session`,
        only to the notices of that session.

        An offset beyond the end of the log is not from this log, and means from the beginning.
        """
        offset = self.latest if after is None else after if 0 < after <= self.latest else 0
        subscription = Subscription(self, offset, session)
        if not self.closed:
            self._subscriptions.add(subscription)
        return subscription

    async def read_page(self, after: int, until: int, session: str | None) -> list[Event]:
        """A page of the log. Subscribers at the same offset share the page that was read last."""
        asked = after, until, session
        if self._page[0] != asked:
            self._page = asked, await self.store.events(after, until=until, session=session, limit=PAGE)
        return self._page[1]

    def feed(self, session_id: str, run_id: str | None = None) -> "Feed":
        """The feed that publishes the updates of one prompt."""
        return Feed(self, session_id, run_id)

    @property
    def watched(self) -> bool:
        """Whether there is a subscriber. If not, updates need not be made."""
        return not self.closed and bool(self._subscriptions.refs)

    def publish(self, update: Update) -> None:
        """Pass on an update. Those of a prompt go through its `Feed`, which stops at the prompt's end. Never blocks."""
        if not self.watched:
            return
        self._published += 1
        for subscription in self._subscriptions:
            if subscription.session is None or subscription.session == update.session_id:
                self._skipped += subscription.offer(update)

    def statistics(self) -> BrokerStatistics:
        """The counts so far."""
        return BrokerStatistics(len(self._subscriptions), self._published, self._skipped)

    def close(self) -> None:
        """Stop publishing. Each subscription ends when it has read what was published; leave the store open until then.
        Idempotent."""
        self.closed = True
        self._unwatch()
        for subscription in self._subscriptions:
            subscription.wake()

    def unsubscribe(self, subscription: "Subscription") -> None:
        """Remove the subscription."""
        self._subscriptions.discard(subscription)
        self._paused.discard(subscription)

    def pause(self, subscription: "Subscription") -> None:
        """Stop notifying the subscription, but keep the events that it has not read."""
        self._subscriptions.discard(subscription)
        self._paused.add(subscription)

    def _on_committed(self, latest: int) -> None:
        """Take note that the log has events up to this id, and notify the subscribers."""
        self.latest = max(self.latest, latest)
        if self._subscriptions.refs:
            for subscription in self._subscriptions:
                subscription.wake()


class Feed:
    """The updates of one prompt. Close it before the prompt's terminal event is written: no update may follow that
    event."""

    __slots__ = ("_broker", "_open", "_run_id", "_session_id")

    def __init__(self, broker: Broker, session_id: str, run_id: str | None) -> None:
        self._broker, self._session_id, self._run_id = broker, session_id, run_id
        self._open = True

    @property
    def watched(self) -> bool:
        """Whether an update would reach a subscriber."""
        return self._open and self._broker.watched

    def publish(self, type: str, payload: Json) -> None:
        """Pass on an update. Never blocks. Has no effect once the feed is closed: a late update is not an error."""
        if self.watched:
            self._broker.publish(Update(self._session_id, type, payload, self._run_id))

    def close(self) -> None:
        self._open = False


class Subscription:
    """The notices for one subscriber: an async iterator for one reader, and a context manager that closes it.

    It ends at once after its own `close`, and after the broker's `close` when it has returned everything. Canceling the
    reader loses nothing: the next read returns the next notice. It holds at most the broker's `buffer` of updates, and
    one page of events while it is being read.
    """

    __slots__ = ("__weakref__", "_awake", "_broker", "_closed", "_gap", "_page", "_pause", "_read", "_updates",
                 "offset", "session", "skipped")

    def __init__(self, broker: Broker, offset: int, session: str | None) -> None:
        self.session = session
        self.offset = offset  # to resume with: every event up to this id was returned
        self.skipped = 0  # updates dropped because this subscriber was too slow
        self._broker = broker
        self._read = max(offset, broker.floor)  # the log was read up to this id
        self._gap = self._read - offset  # deleted events that the subscriber does not know of yet
        self._page: deque[Event] = deque()  # read and not returned yet
        self._updates: deque[tuple[int, Update]] = deque()  # each with its offset
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
                    await asyncio.sleep(0)  # a subscriber far behind must not block the event loop
            elif (notice := self._next()) is not None:
                return notice
            elif self.exhausted:
                break
            else:
                await self.wait()
        raise StopAsyncIteration

    @property
    def exhausted(self) -> bool:
        """Whether the subscription ends once its buffer is empty."""
        return self._closed or self._broker.closed

    async def wait(self) -> None:
        """Wait for a notice, for the end, or for `nudge`. Call it when there is nothing to take."""
        self._awake.clear()
        await self._awake.wait()

    def nudge(self) -> None:
        """End a wait."""
        self._awake.set()

    async def take(self) -> Notice | None:
        """The next notice, if there is one already."""
        if self._must_read():
            await self._turn_page()
        return self._next()

    async def settle(self, seconds: float) -> None:
        """Wait `seconds` so that updates can gather, but no longer than until there is an event."""
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
        """End the subscription, also for a reader that waits. Idempotent."""
        self._end()
        self._broker.unsubscribe(self)

    def pause(self) -> None:
        """End the subscription like `close`, but keep the events that it has not returned in the log until `close` is
        called."""
        if not self._closed:
            self._end()
            self._broker.pause(self)

    def _end(self) -> None:
        self._closed = True
        self._updates.clear()
        self._page.clear()
        self.wake()

    @property
    def needed(self) -> int:
        """The log must keep every event above this id for this subscription."""
        return self._read if self._gap else self.offset

    @property
    def held(self) -> int:
        """How many notices it holds in memory."""
        return bool(self._gap) + len(self._updates) + len(self._page)

    def offer(self, update: Update) -> bool:
        """Add the update to the waiting ones. Returns whether the oldest of them was dropped."""
        full = len(self._updates) == self._broker.buffer
        if full:
            self._updates.popleft()
            self.skipped += 1
        self._updates.append((self._broker.latest, update))
        self._awake.set()
        return full

    def wake(self) -> None:
        """Notify the reader of an event or of the end."""
        self._awake.set()
        if self._pause:
            _end_pause(self._pause)

    def _must_read(self) -> bool:
        """Whether the next notice is in the log."""
        return not (self._gap or self._page or self._closed) and self._read < self._readable()

    def _readable(self) -> int:
        """How far the log may be read: later events were published after the first waiting update."""
        return self._updates[0][0] if self._updates else self._broker.latest

    async def _turn_page(self) -> None:
        until = self._readable()
        page = await self._broker.read_page(self._read, until, self.session)
        self._page.extend(page)
        self._read = page[-1].id if len(page) == PAGE else until

    def _next(self) -> Notice | None:
        """The next notice, if it is in memory. It is taken and returned without suspending, so a cancel cannot lose
        it."""
        if self._gap:
            gap, self._gap, self.offset = Update("", GAP, {"missed": self._gap}), 0, self._read
            return gap
        if self._page:
            event = self._page.popleft()
            self.offset = event.id
            return event
        self.offset = self._read
        return self._updates.popleft()[1] if self._updates else None


def _end_pause(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
