"""Writes down what is seen of a server: events, what the language model hears, and what is in the queue.

Whether the server has come to rest cannot be asked of it. But it owes something after every step, which follows from
the guarantees (`judgement.find_debts`). When nothing is owed, the next step comes. What is still owed after a time
without any news is what the server has broken.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from math import inf
from typing import TypeVar

from cancelmark.model.oracle import Span

from .adapter import Adapter, Ended, Event, Notice, Steering, Turns
from .fake_llm import FakeModel
from .history import CLIENTS, KINDS, MODEL, SERVER, Complaint, History, Track
from .judgement import find_debts, judge_messages

POLL = 0.004  # seconds between two looks at a server outside
SOON = 0.25  # seconds in which prompts that are accepted get into the queue, if nothing is wrong
CALL = 10.0  # seconds for a call to be answered
UNSTEERED = 60.0  # seconds without news in which a turn that nobody steers has certainly ended
PAUSE = 0.05  # seconds after which a turn that nobody sees may have begun, or ended

T = TypeVar("T")


class Hangs(Exception):
    """A call was not answered."""


async def call_adapter(adapter: Adapter, what: str, call: Awaitable[T]) -> T:
    """The answer to a call of the adapter. An answer that does not come in time is `Hangs`."""
    seconds = max(CALL, 2 * adapter.patience)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError:
        if limit.expired():
            raise Hangs(f"a call of {what} was not answered within {seconds:g} s.") from None
        raise


class Observer:
    """What is seen in one history."""

    def __init__(self, adapter: Adapter, steering: Steering | None) -> None:
        self.adapter, self.steering = adapter, steering
        self.history = History(steered=steering is not None, exact=isinstance(steering, Turns))
        self.patience = adapter.patience if steering else max(adapter.patience, UNSTEERED)
        self.sessions: list[str] = []
        self.shut = False  # the server is closing, and is asked nothing any more
        self.news = 0  # counts what was seen
        self._reading: asyncio.Task[None] | None = None
        self._complained: list[tuple[Track, Complaint]] = []  # it is not waited for again
        if isinstance(steering, Turns):
            steering.changed = self.look_at_turns

    # --- events

    def start_reading(self) -> None:
        self._reading = asyncio.create_task(self._read_events(), name="events")

    async def stop_reading(self) -> None:
        if self._reading:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
            self._reading = None

    async def leave_events(self) -> None:
        if self._reading and not self.shut:
            await self.stop_reading()
            self.look_at_turns()
            self.history.absences.append((self.history.note(CLIENTS, "", "nobody watches events"), inf))
            await call_adapter(self.adapter, "leave", self.adapter.leave())

    async def watch_again(self) -> None:
        if self._reading is None:
            await call_adapter(self.adapter, "come_back", self.adapter.come_back())
            back = self.history.note(CLIENTS, "", "events are watched again")
            self.history.absences[-1] = (self.history.absences[-1][0], back)
            self.start_reading()

    async def _read_events(self) -> None:
        async for event in self.adapter.events():
            self._note_event(event)

    def _note_event(self, event: Event) -> None:
        self.look_at_turns()
        self.news += 1
        p = self.history.find_prompt(event.name)
        if p is None:
            what = "end" if isinstance(event, Ended) else "error"
            self.history.note(SERVER, CLIENTS, f"{what} of {event.name!r:.60}")
            self.history.complain("attribution", f"an event speaks of {event.name!r:.60}, which nobody has sent.")
        elif isinstance(event, Notice):
            at = self.history.note(SERVER, CLIENTS, f"error of {p.label}: {self.history.with_letters(event.error)}")
            p.notices.append((at, event))
        else:
            at = self.history.note(SERVER, CLIENTS, f"end of {p.label}: {event.outcome}")
            p.ends.append((at, event, p.floor))

    # --- the language model

    def look_at_turns(self) -> None:
        """Asks the language model what it has seen since the last look."""
        if not self.steering:
            return
        news: list[tuple[float, bool, Track]] = []
        for p in self.history.prompts:
            if (asked := self.steering.count_starts(p.name)) > p.asked:
                p.asked = asked
                news.append((self._time_of(p, started=True), True, p))
            if (closed := self.steering.count_broken_off(p.name)) > p.broken_off:
                p.broken_off = closed
                news.append((self._time_of(p, started=False), False, p))
        for _, started, p in sorted(news, key=lambda item: item[:1]):
            self.news += 1
            if started:
                self._note_start(p)
            else:
                at = self.history.note(SERVER, MODEL, f"turn of {p.label} is broken off")
                p.over = p.over or at
        for p in self.history.prompts:
            self._look_inside(p)

    def _time_of(self, p: Track, started: bool) -> float:
        """When it was, for a language model that has a clock; `Turns` is asked at every change instead."""
        if not isinstance(self.steering, FakeModel):
            return 0.0
        turn = self.steering.turns_of(p.name)[-1]
        return turn.begin if started else turn.end or turn.begin

    def _look_inside(self, p: Track) -> None:
        """Whether another's turn has taken it in. A language model outside hears only that its text is there, which it
        may be after a cancel too."""
        assert self.steering
        name = self.steering.taken_in.get(p.name)
        if name and p.taken_in is None and (self.history.exact or not self.history.reachable(p, *KINDS)):
            into = self.history.find_prompt(name)
            at = self.history.note(SERVER, MODEL, f"turn of {into.label if into else '?'} takes in {p.label}")
            p.taken_in = (at, name)
            self.news += 1

    def _note_start(self, p: Track) -> None:
        at = self.history.note(SERVER, MODEL, f"turn of {p.label} {'goes on' if p.running else 'starts'}")
        if not p.running:
            p.starts.append((at, p.floor))
            p.over = at if p.let_go else None  # one that was let go before is over at once

    # --- rest

    async def rest(self) -> None:
        """Comes back when the server owes nothing, or has been silent for too long; then it says what is owed."""
        if self._reading is None:  # nobody would see it: the server gets a moment to do it
            if self.adapter.outside:
                await asyncio.sleep(PAUSE)
            self.look_at_turns()
            return
        if not self.adapter.outside:
            await asyncio.sleep(1)  # time goes by only when nobody has anything to do
            self.look_at_turns()
        owed = await self._await_debts()
        if owed:
            self.history.note(SERVER, "", f"nothing more within {self.patience:g} s")
        for p, complaint in owed:
            self.history.complain(*complaint)
            self.history.silences.add(complaint.guarantee)
            self._complained.append((p, complaint))
            p.blamed = p.blamed or complaint.guarantee not in ("prompt-terminal", "no-lost-cancel")
        if not self.adapter.outside:
            for p in self.history.prompts:
                if p.waiting and not self.history.reachable(p, "cancel", "clear", "shut"):
                    self._note_queued(p, self.history.now, self.history.now)
        elif self.adapter.offers("queued") and not self.shut:
            await self._ask_queues()
        elif any(p.waiting for p in self.history.prompts):
            await asyncio.sleep(SOON)  # nobody can be asked whether they wait where they should

    async def _await_debts(self) -> list[tuple[Track, Complaint]]:
        loop = asyncio.get_running_loop()
        since, news = loop.time(), self.news
        while self._debts(await self._count_queues(late=False)):
            if loop.time() > since + self.patience:
                return self._debts(await self._count_queues(late=True))
            await asyncio.sleep(POLL if self.adapter.outside else self.patience)
            self.look_at_turns()
            if self._reading and self._reading.done():
                self._reading.result()  # raises if it has failed: who cannot hear must not speak of silence
            if self.news != news:
                since, news = loop.time(), self.news
        return []

    async def _count_queues(self, late: bool) -> Sequence[int | None]:
        """How many are queued in each session, asked only when it makes a difference what to complain about."""
        if not late or not self.adapter.offers("queued") or self.shut:
            return [None] * len(self.sessions)
        return [await call_adapter(self.adapter, "queued", self.adapter.queued(session)) for session in self.sessions]

    def _debts(self, counts: Sequence[int | None]) -> list[tuple[Track, Complaint]]:
        return [debt for debt in find_debts(self.history, counts) if debt not in self._complained]

    async def _ask_queues(self) -> None:
        """Whether those who wait are in the queue, so that nobody may overtake them from now on."""
        loop = asyncio.get_running_loop()
        for n, session in enumerate(self.sessions):
            until = loop.time() + SOON
            while waiting := [p for p in self.history.prompts_of(n) if p.waiting]:
                begin = self.history.now
                count = await call_adapter(self.adapter, "queued", self.adapter.queued(session))
                self.look_at_turns()
                if count == len(waiting) and self.history.now == begin:
                    at = self.history.note(SERVER, CLIENTS, f"{count} queued{' @2' if n else ''}")
                    for p in waiting:
                        self._note_queued(p, begin, at)
                    break
                if loop.time() > until:
                    break
                await asyncio.sleep(POLL)

    def _note_queued(self, p: Track, begin: int, end: int) -> None:
        p.queued = p.queued or Span(begin, end)
        p.floor = max(p.floor, begin)

    async def ask_messages(self) -> None:
        """What was said in each session, for the judge."""
        if not self.adapter.offers("messages") or self.shut:
            return
        for n, session in enumerate(self.sessions):
            messages = await call_adapter(self.adapter, "messages", self.adapter.messages(session))
            judge_messages(self.history, n, messages)
