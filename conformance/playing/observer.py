"""Records what is observed of a server: events, requests to the language model, and queue lengths.

A server cannot be asked whether it is quiet. But the guarantees imply what it owes after every step
(`judgement.find_debts`). When it owes nothing, the next step follows. What it still owes after a timeout without any
new observation is what it has broken.
"""

import asyncio
import re
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from math import inf
from typing import TypeVar

from cancelmark.model.oracle import Span

from ..adapter import Adapter, Declined, Ended, Event, Notice, ServerGone, Turns, is_gone
from ..adapter.fake_llm import Ending, FakeModel
from ..adapter.patience import CONFIRM, STEP
from ..judging.history import CLIENTS, ENDING, MODEL, SERVER, Complaint, History, Track, at_session
from ..judging.judgement import find_debts, judge_messages

POLL = 0.004  # seconds between two polls of an external server
SOON = 0.25  # seconds in which a correct server queues the prompts that it has accepted
CALL = 10.0  # seconds for the response to a call
UNSTEERED = 60.0  # seconds without news after which a turn that the kit does not control has certainly ended
LATE = 3  # a poll counts as waiting time up to this multiple of its interval
MAY_END = ("prompt-terminal", "no-lost-cancel", "cancel-stops", "queue-dropped", "revoke-exact", "stop-heard",
           "send-now", "held")  # the prompt's terminal event may still come
TEXT = re.compile(r"\(text (\d+)\)")  # in the text of a replace
PAUSE = 0.05  # seconds after which an unobserved turn may have started or ended

OUTCOMES = ("end_turn", "error", "canceled")

T = TypeVar("T")
Steering = Turns | FakeModel  # controls turns by the name of their prompt: in this process, and of an external server


class Hangs(Exception):
    """A call got no response."""


async def call_adapter(adapter: Adapter, what: str, call: Awaitable[T]) -> T:
    """Await a call of the adapter. Raises `Hangs` if it does not return in time, and the error of any task of the
    adapter that fails meanwhile."""
    loop = asyncio.get_running_loop()
    begin, slow = loop.time(), adapter.call_limits.get(what)
    seconds = slow or max(CALL, 2 * adapter._waits.call)
    try:
        async with asyncio.timeout(seconds) as limit:
            adapter._calls.add(limit)
            try:
                if not isawaitable(call):
                    raise TypeError(f"{type(adapter).__name__}.{what} is not async; write `async def {what}(…)`")
                answer = await call
            finally:
                adapter._calls.discard(limit)
    except TimeoutError:
        adapter._check_tasks()
        if limit.expired():
            raise Hangs(f"a call of {what} got no response within {seconds:g} s.") from None
        raise
    adapter._check_tasks()
    if not slow:
        adapter._waits.learn(loop.time() - begin)
    return answer


def _find_problem(event: object) -> str:
    """Why an adapter must not report this event; empty if it may."""
    if not isinstance(event, Event):
        return f"{event!r:.80}; report Ended(name, outcome), Notice(name, error) or Declined(name, error)"
    if isinstance(event, Ended) and event.outcome not in OUTCOMES:
        return f"the outcome {event.outcome!r:.80}; translate it into one of {', '.join(OUTCOMES)}"
    return ""


async def _fail(why: str) -> None:
    raise TypeError(why)


class Observer:
    """Records the observations of one history."""

    def __init__(self, adapter: Adapter, steering: Steering | None) -> None:
        self.adapter, self.steering = adapter, steering
        self.history = History(steered=steering is not None, exact=isinstance(steering, Turns))
        self.history.capacity, self.history.fails_by_itself = adapter.capacity, adapter.fails_by_itself
        self.waits = adapter._waits
        self.waits.turn = 0.0 if steering else UNSTEERED
        self.sessions: list[str] = []
        self.deleted: set[int] = set()  # sessions
        self.shut = False  # the server is closing, and gets no more calls
        self.news = 0  # counts observations that show progress
        self._reading: asyncio.Task[None] | None = None
        self._keen = asyncio.Event()  # set while the subscriber reads
        self._keen.set()
        self._begun = False  # the adapter's `events` has taken its first step
        self._complained: list[tuple[Track, Complaint]] = []  # already reported, and not awaited again
        if isinstance(steering, Turns):
            steering.changed = self.look_at_turns
        elif isinstance(steering, FakeModel):
            steering.find_host, steering.is_over = self._find_host, self._is_over

    # --- events

    def start_reading(self) -> None:
        self._reading = self.adapter.spawn(self._read_events(), name="events")

    def _note_told(self) -> None:
        """Record the events that the adapter passed to `tell`, if its `events` does not read them."""
        inbox = self.adapter._inbox
        while self._begun and self._watched and not self.adapter._reads_inbox and not inbox.empty():
            self._note_event(inbox.get_nowait())

    async def stop_reading(self) -> None:
        if self._reading:
            reading, self._reading = self._reading, None
            reading.cancel()
            await asyncio.wait([reading])  # awaiting it could not tell its cancellation from our own
            self.adapter._check_tasks()
            self.adapter._tasks.remove(reading)

    @property
    def _watched(self) -> bool:
        return self._reading is not None and self._keen.is_set()

    async def leave_events(self, long: bool = False) -> None:
        """Unsubscribe. With `long`, return only after the server's grace period has passed."""
        if self._watched and not self.shut and not self.adapter.has_place:
            self.history.placeless = True
            self.history.note(CLIENTS, "", "the subscriber stays: it has no offset to resume from")
        elif self._watched and not self.shut:
            await self.stop_reading()
            self.look_at_turns()
            grace = self.adapter.grace if long else None
            away = f"no client is subscribed{'' if grace is None else f' for more than {grace:g} s'}"
            self.history.absences.append((self.history.note(CLIENTS, "", away), inf))
            await call_adapter(self.adapter, "leave", self.adapter.leave())
            if grace is not None:
                self.history.long.append(self.history.absences[-1])
                await asyncio.sleep(1.5 * grace + 2 * PAUSE)
                self.look_at_turns()

    async def read_slowly(self) -> None:
        """Stay subscribed, and stop reading."""
        if self._watched and not self.shut:
            self._keen.clear()
            self.look_at_turns()
            self.history.absences.append((self.history.note(CLIENTS, "", "the subscriber stops reading"), inf))
            await call_adapter(self.adapter, "slow", self.adapter.slow())

    async def watch_again(self) -> None:
        if self._watched or not self.history.absences:
            return
        gone = self._reading is None
        if gone:
            await call_adapter(self.adapter, "come_back", self.adapter.come_back())
        back = self.history.note(CLIENTS, "", f"the subscriber {'is back' if gone else 'reads again'}")
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
            raise ServerGone("its event stream ended")
        except Exception as error:
            if not self.shut or not is_gone(error):
                raise

    def _note_event(self, event: Event) -> None:
        if problem := _find_problem(event):
            self.adapter.spawn(_fail(f"{type(self.adapter).__name__} reported {problem}"))
            return
        self._look_at_model()
        self.news += 1
        p = self.history.find_prompt(event.name)
        if p is None:
            what = "ended" if isinstance(event, Ended) else "error"
            self.history.note(SERVER, CLIENTS, f"{event.name!r:.60} {what}")
            if event.name not in self.history.others:
                self.history.complain("attribution", f"an event names the prompt {event.name!r:.60}, which no client "
                                                     "sent.")
        elif isinstance(event, Declined) and not p.starts:
            self.history.note(SERVER, CLIENTS, f"{p.label} refused: {self.history.with_letters(event.error)}")
            p.refused, p.accepted = True, inf
        elif isinstance(event, Declined):
            self._note_end(p, Ended(event.name, "error", error=event.error))
        elif isinstance(event, Notice):
            at = self.history.note(SERVER, CLIENTS, f"{p.label} error: {self.history.with_letters(event.error)}")
            p.notices.append((at, event))
        else:
            self._note_end(p, event)

    def _note_end(self, p: Track, end: Ended) -> None:
        at = self.history.note(SERVER, CLIENTS, f"{p.label} ended: {end.outcome}")
        p.ends.append((at, end, p.floor))
        self._note_accepted(p, at)

    # --- the language model

    def look_at_turns(self) -> None:
        """Record the events told by the adapter, and the language model's observations since the last call."""
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
                self.history.note(SERVER, MODEL, f"summary for {p.label} requested")
                self.news += 1
        for _, started, p in sorted(news, key=lambda item: item[:1]):
            self.news += 1
            if started:
                self._note_start(p)
            else:
                what = "summary for" if p.paused else "turn of"
                at = self.history.note(SERVER, MODEL, f"{what} {p.label} aborted")
                if p.paused:
                    p.summarizing = False
                else:
                    p.over = p.over or at
                    p.broken_at = p.broken_at or at
        for p in self.history.prompts:
            p.open = self.steering.count_open(p.name)
            self._look_inside(p)

    def _time_of(self, p: Track, started: bool) -> float:
        """The timestamp of the observation; 0 for `Turns`, which is queried at every change instead."""
        if not isinstance(self.steering, FakeModel):
            return 0.0
        turns = self.steering.turns_of(p.name)
        if started:
            return turns[-1].begin
        turns += self.steering.summaries_of(p.name)
        return max(turn.end or turn.begin for turn in turns if turn.ending is Ending.CLOSED)

    def _find_host(self, last: Sequence[str], waiting: Sequence[str]) -> str | None:
        """The host of a prompt whose text comes last and has no run id, and which may therefore have folded: the prompt
        with a run id before it, which never folds, or else the first. A certainly canceled prompt is not a host."""
        if any(p.run_id for p in self.history.prompts if p.name in last):
            return None
        hosts = [p for p in self.history.prompts if p.name in waiting and not self.history.covered(p)]
        return next((p.name for p in sorted(hosts, key=lambda p: not p.run_id)), None)

    def _is_over(self, name: str, texts: Sequence[str]) -> bool:
        """Whether a turn that has called a tool is over: its end was observed; or it may have been canceled, and was
        aborted or one of the texts belongs to a prompt with a run id, which never folds."""
        p = self.history.find_prompt(name)
        if p is None or p.ends or not self.history.reachable(p, "cancel", "shut"):
            return bool(p and p.ends)
        assert isinstance(self.steering, FakeModel)
        return self.steering.turns_of(name)[-1].ending is Ending.CLOSED or any(
            q is not p and q.run_id and q.name in text for q in self.history.prompts for text in texts)

    def _look_inside(self, p: Track) -> None:
        """Note whether it has folded into another turn. The language model of an external server observes only its
        text, which may be there after a cancel too."""
        assert self.steering
        name = self.steering.taken_in.get(p.name)
        if not name or name == p.name or p.taken_in:
            return
        into = self.history.find_prompt(name)
        if self.history.exact or not self.history.reachable(p, *ENDING):
            at = self.history.note(SERVER, MODEL, f"turn of {into.label if into else '?'} includes {p.label}")
            p.taken_in = (at, name)
            self._note_text(p)
            self.news += 1
        elif into and into.starts and not p.run_id:
            began = max(into.begin, into.starts[0][1])
            p.maybe_taken_in = not any(p.accepted < c.begin and c.end < began
                                       for c in self.history.calls_on(p, *ENDING))

    def _note_start(self, p: Track) -> None:
        goes_on = p.running or p.paused or p.calling
        p.calling = False
        at = self.history.note(SERVER, MODEL, f"turn of {p.label} {'continues' if goes_on else 'starts'}")
        if goes_on:
            p.goes_on.append(at)
        if p.paused:
            p.go_on(at)
        elif not goes_on:
            self._note_text(p)
            p.starts.append((at, p.floor))
            p.over = at if p.let_go else None  # a turn that was released before it started is over at once
        if p.will_outgrow:
            p.outgrow(at)
        self._note_accepted(p, at)

    def _note_text(self, p: Track) -> None:
        """Note which version of its text the language model received."""
        assert self.steering
        if p.version is None:
            found = TEXT.findall(self.steering.heard(p.name))
            p.version = int(found[-1]) - 1 if found else 0

    def _note_accepted(self, p: Track, at: int) -> None:
        """Note that a prompt whose response was lost was accepted: something was observed of it."""
        if p.accepted == inf and not p.refused:
            p.accepted = at

    # --- rest

    async def rest(self) -> None:
        """Wait until the server owes nothing, or has been silent for too long; then report what it owes."""
        if not self._watched:  # there is no subscriber to observe it: give the server a moment
            if self.adapter.outside:
                await asyncio.sleep(PAUSE)
            self.look_at_turns()
            return
        if not self.adapter.outside:
            await asyncio.sleep(1)  # virtual time passes only when no task is ready
            self._begun = True
            self.look_at_turns()
        owed = await self._await_debts()
        waited = f"{self.waits.seconds:.3g} s"
        if owed:
            self.history.note(SERVER, "", f"no further activity within {waited}")
        for p, complaint in owed:
            p.left_open = p.left_open or bool(p.ends)
            if not complaint.guarantee:  # the cause is ambiguous
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
        """Give a server whose queue cannot be queried time to queue the prompts that wait behind a turn. When a finding
        is being confirmed, this is the longest time that anything has taken on this server."""
        begin = self.history.now
        if waiting := [p for p in self.history.prompts if p.waiting]:
            await asyncio.sleep(SOON if self.waits.times < CONFIRM else self.waits.seconds / self.waits.times)
            self.look_at_turns()
        for p in waiting:
            if p.waiting and any(q.running and q.live for q in self.history.prompts_of(p.session)):
                p.settled = p.settled or Span(begin, self.history.now)

    def _note_parked(self) -> None:
        """Note the prompts that wait in a held session without a running turn, and would start otherwise."""
        for p in self.history.prompts:
            if p.waiting and p.floor and not p.parked and not any(
                    (q.running or q.summarizing) and q.live for q in self.history.prompts_of(p.session)):
                p.parked = self.history.surely_held(p.session, p.floor, self.history.now)

    async def _await_debts(self) -> list[tuple[Track, Complaint]]:
        """Wait until the server owes nothing or the timeout has passed, and return what it owes. The timeout counts
        polls: on a machine where each poll is late, the server is late too."""
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
            self.adapter._check_tasks()  # a dead reader must not count as a silent server
            if self.news != news:
                if self.adapter.outside or self.waits.learning:
                    self.waits.learn(loop.time() - since)
                since, news, waited = loop.time(), self.news, 0.0
        return []

    async def _count_queues(self, late: bool) -> Sequence[int | None]:
        """The queue length of each session, queried only when the complaint depends on it."""
        if not late or not self.adapter.offers("queued") or self.shut:
            return [None] * len(self.sessions)
        return [None if n in self.deleted else await call_adapter(self.adapter, "queued", self.adapter.queued(session))
                for n, session in enumerate(self.sessions)]

    def _debts(self, counts: Sequence[int | None]) -> list[tuple[Track, Complaint]]:
        return [debt for debt in find_debts(self.history, counts) if debt not in self._complained]

    async def _ask_queues(self) -> None:
        """Query the queues, and note the prompts that are certainly queued: no later prompt may overtake them."""
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
        """Read the messages of each session, and check them."""
        if not self.adapter.offers("messages") or self.shut:
            return
        for n, session in enumerate(self.sessions):
            if n in self.deleted:
                continue
            messages = await call_adapter(self.adapter, "messages", self.adapter.messages(session))
            judge_messages(self.history, n, messages)
