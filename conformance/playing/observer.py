"""Writes down what is seen of a server: events, what the language model hears, and what is in the queue.

Whether the server has come to rest cannot be asked of it. But it owes something after every step, which follows from
the guarantees (`judgement.find_debts`). When nothing is owed, the next step comes. What is still owed after a time
without any news is what the server has broken.
"""

import asyncio
import re
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from math import inf
from typing import TypeVar

from cancelmark.model.oracle import Span

from ..adapter import Adapter, Declined, Ended, Event, Notice, ServerGone, Steering, Turns, is_gone
from ..adapter.fake_llm import Ending, FakeModel
from ..adapter.patience import CONFIRM, STEP
from ..judging.history import CLIENTS, KINDS, MODEL, SERVER, Complaint, History, Track, at_session
from ..judging.judgement import find_debts, judge_messages

POLL = 0.004  # seconds between two looks at a server outside
SOON = 0.25  # seconds in which prompts that are accepted get into the queue, if nothing is wrong
CALL = 10.0  # seconds for a call to be answered
UNSTEERED = 60.0  # seconds without news in which a turn that nobody steers has certainly ended
LATE = 3  # times as long as it should take may a look at the server take, to count in full
MAY_END = ("prompt-terminal", "no-lost-cancel", "cancel-stops", "queue-dropped", "revoke-exact", "stop-heard",
           "send-now", "held")  # what is late may still come
TEXT = re.compile(r"\(text (\d+)\)")  # in a text that has replaced another
PAUSE = 0.05  # seconds after which a turn that nobody sees may have begun, or ended

OUTCOMES = ("end_turn", "error", "canceled")

T = TypeVar("T")


class Hangs(Exception):
    """A call was not answered."""


async def call_adapter(adapter: Adapter, what: str, call: Awaitable[T]) -> T:
    """The answer to a call of the adapter. An answer that does not come in time is `Hangs`. If a task of the adapter
    fails meanwhile, nobody waits any more."""
    loop = asyncio.get_running_loop()
    begin, slow = loop.time(), adapter.call_limits.get(what)
    seconds = slow or max(CALL, 2 * adapter._waits.call)
    try:
        async with asyncio.timeout(seconds) as limit:
            adapter._calls.add(limit)
            try:
                if not isawaitable(call):
                    raise TypeError(f"{type(adapter).__name__}.{what} is not async: write `async def {what}(…)`")
                answer = await call
            finally:
                adapter._calls.discard(limit)
    except TimeoutError:
        adapter._check_tasks()
        if limit.expired():
            raise Hangs(f"a call of {what} was not answered within {seconds:g} s.") from None
        raise
    adapter._check_tasks()
    if not slow:
        adapter._waits.learn(loop.time() - begin)
    return answer


def _find_problem(event: object) -> str:
    """Why the event is none that an adapter can tell; empty if it is one."""
    if not isinstance(event, Event):
        return f"{event!r:.80}: tell Ended(name, outcome), Notice(name, error) or Declined(name, error)"
    if isinstance(event, Ended) and event.outcome not in OUTCOMES:
        return f"the outcome {event.outcome!r:.80}: translate it into one of {', '.join(OUTCOMES)}"
    return ""


async def _fail(why: str) -> None:
    raise TypeError(why)


class Observer:
    """What is seen in one history."""

    def __init__(self, adapter: Adapter, steering: Steering | None) -> None:
        self.adapter, self.steering = adapter, steering
        self.history = History(steered=steering is not None, exact=isinstance(steering, Turns))
        self.history.capacity, self.history.fails_by_itself = adapter.capacity, adapter.fails_by_itself
        self.waits = adapter._waits
        self.waits.turn = 0.0 if steering else UNSTEERED
        self.sessions: list[str] = []
        self.deleted: set[int] = set()  # sessions that are gone
        self.shut = False  # the server is closing, and is asked nothing any more
        self.news = 0  # counts what was seen
        self._reading: asyncio.Task[None] | None = None
        self._keen = asyncio.Event()  # the subscriber reads what comes
        self._keen.set()
        self._begun = False  # the adapter's `events` has taken its first step
        self._complained: list[tuple[Track, Complaint]] = []  # it is not waited for again
        if isinstance(steering, Turns):
            steering.changed = self.look_at_turns
        elif isinstance(steering, FakeModel):
            steering.find_host, steering.is_over = self._find_host, self._is_over

    # --- events

    def start_reading(self) -> None:
        self._reading = self.adapter.spawn(self._read_events(), name="events")

    def _note_told(self) -> None:
        """What the adapter tells besides its events, if these do not read it."""
        inbox = self.adapter._inbox
        while self._begun and self._watched and not self.adapter._reads_inbox and not inbox.empty():
            self._note_event(inbox.get_nowait())

    async def stop_reading(self) -> None:
        if self._reading:
            reading, self._reading = self._reading, None
            reading.cancel()
            await asyncio.wait([reading])  # unlike awaiting it, this tells its cancellation from one's own
            self.adapter._check_tasks()
            self.adapter._tasks.remove(reading)

    @property
    def _watched(self) -> bool:
        return self._reading is not None and self._keen.is_set()

    async def leave_events(self, long: bool = False) -> None:
        """The subscriber goes away; if that is for long, this takes longer than the server waits for another."""
        if self._watched and not self.shut and not self.adapter.has_place:
            self.history.placeless = True
            self.history.note(CLIENTS, "", "events are watched on: nobody has said where to come back to")
        elif self._watched and not self.shut:
            await self.stop_reading()
            self.look_at_turns()
            grace = self.adapter.grace if long else None
            away = f"nobody watches events{'' if grace is None else f' for more than {grace:g} s'}"
            self.history.absences.append((self.history.note(CLIENTS, "", away), inf))
            await call_adapter(self.adapter, "leave", self.adapter.leave())
            if grace is not None:
                self.history.long.append(self.history.absences[-1])
                await asyncio.sleep(1.5 * grace + 2 * PAUSE)
                self.look_at_turns()

    async def read_slowly(self) -> None:
        """The subscriber stays, and reads nothing."""
        if self._watched and not self.shut:
            self._keen.clear()
            self.look_at_turns()
            self.history.absences.append((self.history.note(CLIENTS, "", "events are not read"), inf))
            await call_adapter(self.adapter, "slow", self.adapter.slow())

    async def watch_again(self) -> None:
        if self._watched or not self.history.absences:
            return
        gone = self._reading is None
        if gone:
            await call_adapter(self.adapter, "come_back", self.adapter.come_back())
        back = self.history.note(CLIENTS, "", f"events are {'watched' if gone else 'read'} again")
        self.history.absences[-1] = (self.history.absences[-1][0], back)
        if gone:
            self.start_reading()
        else:
            self._keen.set()
            await call_adapter(self.adapter, "catch_up", self.adapter.catch_up())

    async def _read_events(self) -> None:
        try:
            async for event in self.adapter.events():
                await self._keen.wait()
                self._note_event(event)
            raise ServerGone("its stream of events has ended")
        except Exception as error:
            if not self.shut or not is_gone(error):
                raise

    def _note_event(self, event: Event) -> None:
        if problem := _find_problem(event):
            self.adapter.spawn(_fail(f"{type(self.adapter).__name__} tells {problem}"))
            return
        self._look_at_model()
        self.news += 1
        p = self.history.find_prompt(event.name)
        if p is None:
            what = "end" if isinstance(event, Ended) else "error"
            self.history.note(SERVER, CLIENTS, f"{what} of {event.name!r:.60}")
            if event.name not in self.history.others:
                self.history.complain("attribution", f"an event speaks of {event.name!r:.60}, which nobody has sent.")
        elif isinstance(event, Declined) and not p.starts:
            self.history.note(SERVER, CLIENTS, f"{p.label} is refused: {self.history.with_letters(event.error)}")
            p.refused, p.accepted = True, inf
        elif isinstance(event, Declined):
            self._note_end(p, Ended(event.name, "error", error=event.error))
        elif isinstance(event, Notice):
            at = self.history.note(SERVER, CLIENTS, f"error of {p.label}: {self.history.with_letters(event.error)}")
            p.notices.append((at, event))
        else:
            self._note_end(p, event)

    def _note_end(self, p: Track, end: Ended) -> None:
        at = self.history.note(SERVER, CLIENTS, f"end of {p.label}: {end.outcome}")
        p.ends.append((at, end, p.floor))
        self._note_accepted(p, at)

    # --- the language model

    def look_at_turns(self) -> None:
        """Looks at what was told, and asks the language model what it has seen since the last look."""
        self._note_told()
        self._look_at_model()

    def _look_at_model(self) -> None:
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
            if (asked := self.steering.count_summaries(p.name)) > p.summaries:
                p.summaries, p.summarizing, p.will_summarize = asked, not p.will_summarize, False
                self.history.note(SERVER, MODEL, f"summary for {p.label} is asked for")
                self.news += 1
        for _, started, p in sorted(news, key=lambda item: item[:1]):
            self.news += 1
            if started:
                self._note_start(p)
            else:
                what = "summary for" if p.paused else "turn of"
                at = self.history.note(SERVER, MODEL, f"{what} {p.label} is broken off")
                if p.paused:
                    p.summarizing = False
                else:
                    p.over = p.over or at
                    p.broken_at = p.broken_at or at
        for p in self.history.prompts:
            p.open = self.steering.count_open(p.name)
            self._look_inside(p)

    def _time_of(self, p: Track, started: bool) -> float:
        """When it was, for a language model that has a clock; `Turns` is asked at every change instead."""
        if not isinstance(self.steering, FakeModel):
            return 0.0
        turns = self.steering.turns_of(p.name)
        if started:
            return turns[-1].begin
        turns += self.steering.summaries_of(p.name)
        return max(turn.end or turn.begin for turn in turns if turn.ending is Ending.CLOSED)

    def _find_host(self, last: Sequence[str], waiting: Sequence[str]) -> str | None:
        """Who speaks last and has no run id may be a guest: of the one with a run id before it, who is never a guest,
        or else of the first. Who was canceled for certain is no host."""
        if any(p.run_id for p in self.history.prompts if p.name in last):
            return None
        hosts = [p for p in self.history.prompts if p.name in waiting and not self.history.covered(p)]
        return next((p.name for p in sorted(hosts, key=lambda p: not p.run_id)), None)

    def _is_over(self, name: str, texts: Sequence[str]) -> bool:
        """Whether a turn that has called a tool is over: its end was seen, or it may have been canceled, and was broken
        off, or one of the texts is that of a prompt with a run id, which no turn takes in."""
        p = self.history.find_prompt(name)
        if p is None or p.ends or not self.history.reachable(p, "cancel", "shut"):
            return bool(p and p.ends)
        assert isinstance(self.steering, FakeModel)
        return self.steering.turns_of(name)[-1].ending is Ending.CLOSED or any(
            q is not p and q.run_id and q.name in text for q in self.history.prompts for text in texts)

    def _look_inside(self, p: Track) -> None:
        """Whether another's turn has taken it in. A language model outside hears only that its text is there, which it
        may be after a cancel too."""
        assert self.steering
        name = self.steering.taken_in.get(p.name)
        if not name or name == p.name or p.taken_in:
            return
        into = self.history.find_prompt(name)
        if self.history.exact or not self.history.reachable(p, *KINDS):
            at = self.history.note(SERVER, MODEL, f"turn of {into.label if into else '?'} has {p.label} in it")
            p.taken_in = (at, name)
            self._note_text(p)
            self.news += 1
        elif into and into.starts and not p.run_id:
            began = max(into.begin, into.starts[0][1])
            p.maybe_taken_in = not any(p.accepted < c.begin and c.end < began for c in self.history.calls_on(p, *KINDS))

    def _note_start(self, p: Track) -> None:
        goes_on = p.running or p.paused or p.calling
        p.calling = False
        at = self.history.note(SERVER, MODEL, f"turn of {p.label} {'goes on' if goes_on else 'starts'}")
        if goes_on:
            p.goes_on.append(at)
        if p.paused:
            p.go_on(at)
        elif not goes_on:
            self._note_text(p)
            p.starts.append((at, p.floor))
            p.over = at if p.let_go else None  # one that was let go before is over at once
        if p.will_outgrow:
            p.outgrow(at)
        self._note_accepted(p, at)

    def _note_text(self, p: Track) -> None:
        """Which of its texts the language model has heard."""
        assert self.steering
        if p.version is None:
            found = TEXT.findall(self.steering.heard(p.name))
            p.version = int(found[-1]) - 1 if found else 0

    def _note_accepted(self, p: Track, at: int) -> None:
        """A prompt whose answer was lost was accepted if anything is seen of it."""
        if p.accepted == inf and not p.refused:
            p.accepted = at

    # --- rest

    async def rest(self) -> None:
        """Comes back when the server owes nothing, or has been silent for too long; then it says what is owed."""
        if not self._watched:  # nobody would see it: the server gets a moment to do it
            if self.adapter.outside:
                await asyncio.sleep(PAUSE)
            self.look_at_turns()
            return
        if not self.adapter.outside:
            await asyncio.sleep(1)  # time goes by only when nobody has anything to do
            self._begun = True
            self.look_at_turns()
        owed = await self._await_debts()
        waited = f"{self.waits.seconds:.3g} s"
        if owed:
            self.history.note(SERVER, "", f"nothing more within {waited}")
        for p, complaint in owed:
            p.left_open = p.left_open or bool(p.ends)
            if not complaint.guarantee:  # nobody can say whose fault it is
                p.blamed = True
                continue
            self.history.complain(complaint.guarantee, f"{complaint.says.removesuffix('.')} (waited {waited}).")
            self.history.silences.add(complaint.guarantee)
            self._complained.append((p, complaint))
            p.blamed = p.blamed or complaint.guarantee not in MAY_END
        if not self.adapter.outside:
            for p in self.history.prompts:
                if p.waiting and not self.history.reachable(p, "cancel", "clear", "shut"):
                    self._note_queued(p, self.history.now, self.history.now)
        elif self.adapter.offers("queued") and not self.shut:
            await self._ask_queues()
        else:
            await self._settle()
        self._note_parked()

    async def _settle(self) -> None:
        """A server that cannot be asked for its queue gets time to put into it what waits behind a turn. When a finding
        is confirmed, that is as long as anything of this server takes."""
        begin = self.history.now
        if waiting := [p for p in self.history.prompts if p.waiting]:
            await asyncio.sleep(SOON if self.waits.times < CONFIRM else self.waits.seconds / self.waits.times)
            self.look_at_turns()
        for p in waiting:
            if p.waiting and any(q.running and q.live for q in self.history.prompts_of(p.session)):
                p.settled = p.settled or Span(begin, self.history.now)

    def _note_parked(self) -> None:
        """Who waits in a session that is held and has nothing running, and would start otherwise."""
        for p in self.history.prompts:
            if p.waiting and p.floor and not p.parked and not any(
                    (q.running or q.summarizing) and q.live for q in self.history.prompts_of(p.session)):
                p.parked = self.history.surely_held(p.session, p.floor, self.history.now)

    async def _await_debts(self) -> list[tuple[Track, Complaint]]:
        """Time is counted in looks: where the machine is late with each of them, it is late with the server too."""
        loop = asyncio.get_running_loop()
        since, news, waited = loop.time(), self.news, 0.0
        while self._debts(await self._count_queues(late=False)):
            if waited > self.waits.seconds:
                return self._debts(await self._count_queues(late=True))
            pause = POLL if self.adapter.outside else STEP if self.waits.learning else self.waits.seconds
            before = loop.time()
            await asyncio.sleep(pause)
            waited += min(loop.time() - before, LATE * pause)
            self._begun = True
            self.look_at_turns()
            self.adapter._check_tasks()  # who cannot hear must not speak of silence
            if self.news != news:
                if self.adapter.outside or self.waits.learning:
                    self.waits.learn(loop.time() - since)
                since, news, waited = loop.time(), self.news, 0.0
        return []

    async def _count_queues(self, late: bool) -> Sequence[int | None]:
        """How many are queued in each session, asked only when it makes a difference what to complain about."""
        if not late or not self.adapter.offers("queued") or self.shut:
            return [None] * len(self.sessions)
        return [None if n in self.deleted else await call_adapter(self.adapter, "queued", self.adapter.queued(session))
                for n, session in enumerate(self.sessions)]

    def _debts(self, counts: Sequence[int | None]) -> list[tuple[Track, Complaint]]:
        return [debt for debt in find_debts(self.history, counts) if debt not in self._complained]

    async def _ask_queues(self) -> None:
        """Whether those who wait are in the queue, so that nobody may overtake them from now on."""
        loop = asyncio.get_running_loop()
        for n, session in enumerate(self.sessions):
            until = loop.time() + SOON
            while waiting := [p for p in self.history.prompts_of(n) if p.waiting and n not in self.deleted]:
                begin = self.history.now
                count = await call_adapter(self.adapter, "queued", self.adapter.queued(session))
                self.look_at_turns()
                if count == len(waiting) and self.history.now == begin:
                    at = self.history.note(SERVER, CLIENTS, f"{count} queued{at_session(n)}")
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
            if n in self.deleted:
                continue
            messages = await call_adapter(self.adapter, "messages", self.adapter.messages(session))
            judge_messages(self.history, n, messages)
