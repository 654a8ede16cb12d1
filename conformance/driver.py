"""Plays a script on a server, and writes down what is seen.

Whether the server has come to rest cannot be asked of it. But it owes something after every step, which follows from
the guarantees: an end to whoever was canceled or whose turn is over, and a turn to the first of those who wait. When
nothing is owed, the next step comes. What is still owed after a time without any news is what the server has broken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import dropwhile, takewhile
from math import inf
from typing import TypeVar

from cancelmark.model.oracle import Span
from cancelmark.model.session import label

from .adapter import Adapter, Ended, Event, Notice, Refused, Sent, Spoken, Steering, Turns
from .fake_llm import FakeModel
from .history import CLIENTS, KINDS, MODEL, SERVER, Complaint, History, Made, Track
from .judgement import review
from .script import Do, Script, Step

POLL = 0.004  # seconds between two looks at a server outside
SOON = 0.25  # seconds in which prompts that are accepted get into the queue, if nothing is wrong
CALL = 10.0  # seconds for a call to be answered
UNSTEERED = 60.0  # seconds without news in which a turn that nobody steers has certainly ended
PAUSE = 0.05  # seconds after which a turn that nobody sees may have begun, or ended
LIMIT = 26  # prompts in a history: there are no more letters

T = TypeVar("T")


class _Hangs(Exception):
    """A call was not answered."""


class Player:
    """One history."""

    def __init__(self, adapter: Adapter, steering: Steering | None, name: str) -> None:
        self.adapter, self.steering, self.name = adapter, steering, name
        self.history = History(steered=steering is not None, exact=isinstance(steering, Turns))
        self.patience = adapter.patience if steering else max(adapter.patience, UNSTEERED)
        self.sessions: list[str] = []
        self.shut = False
        self._reading: asyncio.Task[None] | None = None
        self._news = 0
        self._owed: list[tuple[Track, Complaint]] = []  # what was complained about: it is not waited for again
        if isinstance(steering, Turns):
            steering.changed = self._look

    async def play(self, script: Script) -> History:
        """Plays it to its end: when the script is over, all turns are released, and every prompt has to end."""
        history, adapter = self.history, self.adapter
        try:
            await self._call("open", adapter.open())
            self._start_reading()
            sessions = 1 + max((do.session for do in script.everything), default=0)
            self.sessions = [await self._call("session", adapter.session()) for _ in range(sessions)]
            for step in script.steps:
                await self._step(step)
            await self._finale()
            await self._ask_messages()
        except _Hangs as hangs:
            history.complain("progress", str(hangs))
            history.silences.add("progress")
        finally:
            try:
                await self._stop_reading()
            finally:
                with suppress(_Hangs):
                    await self._call("close", adapter.close())
        review(history)
        return history

    # --- doing

    async def _step(self, step: Step) -> None:
        doing = [self._do(do) for do in step.together]
        results = await asyncio.gather(*doing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if step.rest and self.steering:
            await self._rest()
        elif step.rest:
            await asyncio.sleep(PAUSE)  # to wait for the end of every turn would leave nothing to cancel
        else:
            self._look()

    async def _do(self, do: Do) -> None:
        match do.what:
            case "accept":
                await self._accept(do)
            case "release" | "fail" | "again":
                self._let_go(do)
            case "cancel" | "clear" if not self.shut:
                call = self.adapter.cancel if do.what == "cancel" else self.adapter.clear
                await self._made(Made(do.what, do.session, 0), call, self.sessions[do.session])
            case "shut" if not self.shut:
                await self._return()
                self.shut = True
                await self._made(Made("shut", None, 0), self.adapter.shut)
            case "restart" if not self.shut:
                await self._restart()
            case "leave":
                await self._leave()
            case "return":
                await self._return()

    async def _accept(self, do: Do) -> None:
        history, n = self.history, len(self.history.prompts)
        if n == LIMIT:
            return
        name = f"cm-{self.name}-{n:03}"
        p = Track(label(n + 1), name, do.session, do.run_id, 0)
        history.prompts.append(p)
        if self.steering:
            self.steering.hold(name)
        p.begin = history.note(CLIENTS, SERVER, str(do).replace("accept", f"accept {p.label}"))
        sent = Sent(name, f"Say something about {name}", name if do.run_id else None)
        try:
            await self._call("accept", self.adapter.accept(self.sessions[do.session], sent))
        except Refused:
            p.refused = True
            history.note(SERVER, CLIENTS, f"{p.label} is refused")
        else:
            p.accepted = history.note(SERVER, CLIENTS, f"{p.label} is accepted")
        self._news += 1

    async def _made(self, made: Made, call: Callable[..., Awaitable[None]], *arguments: str) -> None:
        history = self.history
        where = "" if not made.session else " @2"
        known = history.of(made.session or 0)
        made.idle = made.what == "cancel" and all(p.ended or p.refused for p in known)
        made.begin = history.note(CLIENTS, SERVER, f"{made.what}{where}")
        history.calls.append(made)
        try:
            await self._call(made.what, call(*arguments))
        except Refused:
            history.note(SERVER, CLIENTS, f"{made.what}{where} is refused")
            return  # nobody knows whether it took effect
        made.end = history.note(SERVER, CLIENTS, f"{made.what}{where} is answered")
        made.idle = made.idle and len(history.of(made.session or 0)) == len(known)
        self._news += 1

    def _let_go(self, do: Do) -> None:
        """Of the turns that run in the session: the one that started first."""
        self._look()
        running = [p for p in self.history.of(do.session) if p.running and not p.let_go]
        if self.steering and running:
            p = min(running, key=lambda p: p.starts[-1])
            self._end_turn(p, do.what)

    def _end_turn(self, p: Track, how: str) -> None:
        assert self.steering
        words = {"release": "answers", "fail": "fails", "again": "wants a tool"}[how]
        at = self.history.note(MODEL, SERVER, f"turn of {p.label}: {words}")
        if how == "again":
            if isinstance(self.steering, Turns):
                self.steering.again(p.name)
            return
        p.let_go, p.over = (how, at), at
        (self.steering.release if how == "release" else self.steering.fail)(p.name)

    async def _call(self, what: str, call: Awaitable[T]) -> T:
        seconds = max(CALL, 2 * self.adapter.patience)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await call
        except TimeoutError:
            if limit.expired():
                raise _Hangs(f"a call of {what} was not answered within {seconds:g} s.") from None
            raise

    # --- seeing

    def _start_reading(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="events")

    async def _stop_reading(self) -> None:
        if self._reading:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
            self._reading = None

    async def _leave(self) -> None:
        if self._reading and not self.shut:
            await self._stop_reading()
            self._look()
            self.history.left.append((self.history.note(CLIENTS, "", "nobody watches events"), inf))
            await self._call("leave", self.adapter.leave())

    async def _return(self) -> None:
        if self._reading is None:
            await self._call("come_back", self.adapter.come_back())
            back = self.history.note(CLIENTS, "", "events are watched again")
            self.history.left[-1] = (self.history.left[-1][0], back)
            self._start_reading()

    async def _restart(self) -> None:
        await self._return()
        await self._stop_reading()
        for p in self.history.prompts:
            if p.running:
                p.over = self.history.now
        await self._made(Made("restart", None, 0), self.adapter.restart)
        self._start_reading()

    async def _read(self) -> None:
        async for event in self.adapter.events():
            self._hear(event)

    def _hear(self, event: Event) -> None:
        self._look()
        self._news += 1
        p = self.history.named(event.name)
        if p is None:
            what = "end" if isinstance(event, Ended) else "error"
            self.history.note(SERVER, CLIENTS, f"{what} of {event.name!r:.60}")
            self.history.complain("attribution", f"an event speaks of {event.name!r:.60}, which nobody has sent.")
        elif isinstance(event, Notice):
            at = self.history.note(SERVER, CLIENTS, f"error of {p.label}: {self.history.letters(event.error)}")
            p.notices.append((at, event))
        else:
            at = self.history.note(SERVER, CLIENTS, f"end of {p.label}: {event.outcome}")
            p.ends.append((at, event, p.floor))

    def _look(self) -> None:
        """Asks the language model what it has seen since the last look."""
        if not self.steering:
            return
        news: list[tuple[float, bool, Track]] = []
        for p in self.history.prompts:
            if (asked := self.steering.started(p.name)) > p.asked:
                p.asked = asked
                news.append((self._when(p, started=True), True, p))
            if (closed := self.steering.closed(p.name)) > p.broken_off:
                p.broken_off = closed
                news.append((self._when(p, started=False), False, p))
        for _, started, p in sorted(news, key=lambda item: item[:1]):
            self._news += 1
            if started:
                self._started(p)
            else:
                at = self.history.note(SERVER, MODEL, f"turn of {p.label} is broken off")
                p.over = p.over or at
        for p in self.history.prompts:
            self._look_inside(p)

    def _when(self, p: Track, started: bool) -> float:
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
            into = self.history.named(name)
            at = self.history.note(SERVER, MODEL, f"turn of {into.label if into else '?'} takes in {p.label}")
            p.taken_in = (at, name)
            self._news += 1

    def _started(self, p: Track) -> None:
        at = self.history.note(SERVER, MODEL, f"turn of {p.label} {'goes on' if p.running else 'starts'}")
        if not p.running:
            p.starts.append((at, p.floor))
            p.over = at if p.let_go else None  # one that was let go before is over at once

    # --- resting

    async def _rest(self) -> None:
        """Comes back when the server owes nothing, or has been silent for too long; then it says what is owed."""
        if self._reading is None:  # nobody would see it: the server gets a moment to do it
            if self.adapter.outside:
                await asyncio.sleep(PAUSE)
            self._look()
            return
        if not self.adapter.outside:
            await asyncio.sleep(1)  # time goes by only when nobody has anything to do
            self._look()
        owed = await self._until_paid()
        if owed:
            self.history.note(SERVER, "", f"nothing more within {self.patience:g} s")
        for p, complaint in owed:
            self.history.complain(*complaint)
            self.history.silences.add(complaint.guarantee)
            self._owed.append((p, complaint))
            p.blamed = p.blamed or complaint.guarantee not in ("prompt-terminal", "no-lost-cancel")
        if not self.adapter.outside:
            for p in self.history.prompts:
                if p.waiting and not self.history.reachable(p, "cancel", "clear", "shut"):
                    self._seen_queued(p, self.history.now, self.history.now)
        elif self.adapter.offers("queued") and not self.shut:
            await self._ask_queues()
        elif any(p.waiting for p in self.history.prompts):
            await asyncio.sleep(SOON)  # nobody can be asked whether they wait where they should

    async def _until_paid(self) -> list[tuple[Track, Complaint]]:
        loop = asyncio.get_running_loop()
        since, news = loop.time(), self._news
        while self._owes(await self._counts(late=False)):
            if loop.time() > since + self.patience:
                return self._owes(await self._counts(late=True))
            await asyncio.sleep(POLL if self.adapter.outside else self.patience)
            self._look()
            if self._reading and self._reading.done():
                self._reading.result()  # raises if it has failed: who cannot hear must not speak of silence
            if self._news != news:
                since, news = loop.time(), self._news
        return []

    async def _counts(self, late: bool) -> Sequence[int | None]:
        """How many are queued in each session, asked only when it makes a difference what to complain about."""
        if not late or not self.adapter.offers("queued") or self.shut:
            return [None] * len(self.sessions)
        return [await self._call("queued", self.adapter.queued(session)) for session in self.sessions]

    def _owes(self, counts: Sequence[int | None]) -> list[tuple[Track, Complaint]]:
        """What the server still has to do, as the complaint that it would be if it never did."""
        owed = []
        for n in range(len(self.sessions)):
            session = self.history.of(n)
            busy = any(p.running and p.live for p in session)
            for p in session:
                if p.live and not p.blamed and (complaint := self._owed_to(p, busy, counts[n])):
                    if complaint.guarantee in ("some-terminal", "prompt-terminal") and self.history.away(p):
                        complaint = Complaint("delivery", f"{p.label} has ended while nobody watched, and its end was "
                                                          "not told to who came back.")
                    if (p, complaint) not in self._owed:
                        owed.append((p, complaint))
        return owed

    def _owed_to(self, p: Track, busy: bool, queued: int | None) -> Complaint | None:
        if any(c.end < p.begin for c in self.history.called(p, "shut")):
            return None  # that it was accepted is what is wrong
        covered = self.history.covered(p)
        if covered and p.running:
            return Complaint("no-lost-cancel", f"{p.label} was accepted before a cancel that was answered, "
                                               "and its turn goes on.")
        if any(c.end > p.accepted for c in self.history.called(p, "restart")) and not p.running:
            return None if busy else Complaint("no-loss", f"{p.label} was accepted before a restart, and its end never "
                                                          "came.")
        if p.over is not None or (covered and p.starts):
            if busy:
                return Complaint("prompt-terminal", f"the turn of {p.label} is over and the next one has started, but "
                                                    f"the end of {p.label} was not published.")
            return Complaint("some-terminal", f"the turn of {p.label} is over, and its end was never published.")
        if covered:
            if queued:
                return Complaint("no-lost-cancel", f"{p.label} was accepted before a cancel that was answered, "
                                                   "and is still queued.")
            return Complaint("some-terminal", f"{p.label} was accepted before a cancel that was answered; it did not "
                                              "start, and its end was never published.")
        if not self.history.steered:
            return Complaint("some-terminal", f"{p.label} was accepted, and its end was never published.")
        if p.starts or busy:
            return None
        if not self.history.exact and self.history.reachable(p, "cancel", "clear"):
            return Complaint("some-terminal", f"{p.label} was accepted while a cancel was; it did not start, and its "
                                              "end was never published.")
        if queued == 0:
            return Complaint("some-terminal", f"{p.label} is not queued and not running, and its end was never "
                                              "published.")
        return Complaint("all-done", f"{p.label} is stranded: nothing is running, and it does not start.")

    async def _ask_queues(self) -> None:
        """Whether those who wait are in the queue, so that nobody may overtake them from now on."""
        loop = asyncio.get_running_loop()
        for n, session in enumerate(self.sessions):
            until = loop.time() + SOON
            while waiting := [p for p in self.history.of(n) if p.waiting]:
                begin = self.history.now
                count = await self._call("queued", self.adapter.queued(session))
                self._look()
                if count == len(waiting) and self.history.now == begin:
                    at = self.history.note(SERVER, CLIENTS, f"{count} queued{' @2' if n else ''}")
                    for p in waiting:
                        self._seen_queued(p, begin, at)
                    break
                if loop.time() > until:
                    break
                await asyncio.sleep(POLL)

    def _seen_queued(self, p: Track, begin: int, end: int) -> None:
        p.queued = p.queued or Span(begin, end)
        p.floor = max(p.floor, begin)

    # --- the end

    async def _finale(self) -> None:
        """Turns are let go, one after the other, until nothing runs: then everything has to be over."""
        await self._return()
        for _ in range(3 * len(self.history.prompts) + 1):
            await self._rest()
            running = [p for p in self.history.prompts if p.running and p.live and not p.let_go]
            if not running:
                break
            self._end_turn(min(running, key=lambda p: p.starts[-1]), "release")
        await self._rest()

    async def _ask_messages(self) -> None:
        """A prompt that was alone and canceled has left its text and a canceled answer; one that nothing could cancel
        has no such answer."""
        if not self.adapter.offers("messages") or self.shut:
            return
        for n, session in enumerate(self.sessions):
            messages = await self._call("messages", self.adapter.messages(session))
            canceled = {p.label for p in self.history.of(n) if _canceled_answer(p, messages)}
            for p in self.history.of(n):
                if self._alone(p):
                    self.history.records += 1
                    if p.label not in canceled:
                        self.history.complain("record", f"{p.label} was canceled, and the session has no user message "
                                                        "of it with a canceled answer behind it.")
                elif p.label in canceled and p.waiting and not self.history.reachable(p, "cancel", "clear", "shut"):
                    self.history.complain("no-poisoning", f"{p.label} has a canceled answer, and nothing was canceled "
                                                          "since its acceptance.")

    def _alone(self, p: Track) -> bool:
        """Canceled, and never in a queue: nobody else was there from its acceptance to its end."""
        if not p.ends or p.ends[0][1].outcome != "canceled":
            return False
        end = p.ends[0][0]
        return all(q is p or q.refused or q.begin > end or (q.ends and q.ends[0][0] < p.begin)
                   for q in self.history.of(p.session))


def _canceled_answer(p: Track, messages: Sequence[Spoken]) -> bool:
    """Whether one of the answers to the prompt, before somebody else speaks, was canceled."""
    since = list(dropwhile(lambda m: m.role != "user" or p.name not in m.text, messages))
    answers = takewhile(lambda m: m.role != "user", since[1:])
    return any(m.role == "assistant" and m.finish == "canceled" for m in answers)
