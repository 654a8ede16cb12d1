"""Servers that show whether the kit judges right: a `Sound` server, which keeps what it claims, with one thing changed.

They come in pairs: one breaks something, and one looks guilty and is not, because it is slow, has one worker, or
refuses while it is busy. `table` has what the kit must say of each.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from cancelmark.conformance.adapter import GUARANTEES, Adapter, Ended, Event, Refused, Sent, TurnFailed


@dataclass
class Lane:
    """A session: what waits, and what runs."""

    queue: list[Sent] = field(default_factory=list)
    turn: asyncio.Task[Ended] | None = None


class Sound(Adapter):
    """A server in this process with nothing wrong: one turn a session at a time, and a queue behind it."""

    claims = GUARANTEES - {"record", "no-loss", "no-absorption", "no-late-fold", "run-ids", "outlives-watcher"}

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.closing = False

    async def close(self) -> None:
        await self.shut()
        await asyncio.gather(*(lane.turn for lane in self.lanes.values() if lane.turn), return_exceptions=True)

    # --- calls

    async def accept(self, session: str, prompt: Sent) -> None:
        if self.closing:
            raise Refused("closing")
        self.lane(session).queue.append(prompt)
        self.start_next(session)

    async def cancel(self, session: str) -> None:
        await self.clear(session)
        if turn := self.lane(session).turn:
            turn.cancel()

    async def clear(self, session: str) -> None:
        queue, self.lane(session).queue = self.lane(session).queue, []
        for prompt in queue:
            self.publish(Ended(prompt.name, "canceled"))

    async def queued(self, session: str) -> int:
        return len(self.lane(session).queue)

    async def shut(self) -> None:
        self.closing = True
        for session in self.lanes:
            await self.cancel(session)

    async def leave(self) -> None:
        """What is published meanwhile waits in the inbox."""

    async def come_back(self) -> None:
        """The inbox is read on."""

    # --- turns

    def lane(self, session: str) -> Lane:
        return self.lanes.setdefault(session, Lane())

    def start_next(self, session: str) -> None:
        lane = self.lane(session)
        if lane.queue and self.may_start(session):
            prompt = lane.queue.pop(0)
            lane.turn = asyncio.create_task(self.run(prompt), name=f"turn {prompt.name[-3:]}")
            lane.turn.add_done_callback(lambda turn: self.end(session, prompt, turn))

    def may_start(self, session: str) -> bool:
        return self.lane(session).turn is None

    async def run(self, prompt: Sent) -> Ended:
        try:
            return Ended(prompt.name, "end_turn", await self.turns(prompt.text))
        except TurnFailed as failure:
            return Ended(prompt.name, "error", error=str(failure))

    def end(self, session: str, prompt: Sent, turn: asyncio.Task[Ended]) -> None:
        """A turn that is canceled before its first step comes here too."""
        self.publish(Ended(prompt.name, "canceled") if turn.cancelled() else turn.result())
        self.lane(session).turn = None
        self.start_next(session)

    def publish(self, end: Ended) -> None:
        self.tell(end)


# --- nothing to judge

class RefusesEverything(Sound):
    async def accept(self, session: str, prompt: Sent) -> None:
        raise Refused("full")


class RefusesWhileBusy(Sound):
    async def accept(self, session: str, prompt: Sent) -> None:
        if not self.may_start(session):
            raise Refused("busy")
        await super().accept(session, prompt)


# --- canceled while the kit holds the turn

class CancelsWithAnError(Sound):
    async def run(self, prompt: Sent) -> Ended:
        try:
            return await super().run(prompt)
        except asyncio.CancelledError:
            return Ended(prompt.name, "error", error="the request was aborted")


class CancelsWithAnAnswer(Sound):
    async def run(self, prompt: Sent) -> Ended:
        try:
            return await super().run(prompt)
        except asyncio.CancelledError:
            return Ended(prompt.name, "end_turn")


class LeavesTheRequestOpen(Sound):
    """What runs the turn is told to stop, and not who asks the language model."""

    async def run(self, prompt: Sent) -> Ended:
        return await asyncio.shield(asyncio.create_task(super().run(prompt)))


class FailsByItself(CancelsWithAnError):
    fails_by_itself = True


# --- gone

class DiesOfAnIdleCancel(Sound):
    async def cancel(self, session: str) -> None:
        if self.lane(session).turn is None and not self.closing:
            raise ConnectionResetError("reset by peer")
        await super().cancel(session)


class ExitsWhenShut(Sound):
    async def accept(self, session: str, prompt: Sent) -> None:
        if self.closing:
            raise ConnectionRefusedError("nobody listens")
        await super().accept(session, prompt)

    async def events(self) -> AsyncIterator[Event]:
        async for event in super().events():
            yield event
            if self.closing and not any(lane.turn for lane in self.lanes.values()) and self._inbox.empty():
                return


# --- slow

class Slow(Sound):
    SECONDS = 5.0

    async def run(self, prompt: Sent) -> Ended:
        await asyncio.sleep(self.SECONDS)
        end = await super().run(prompt)
        await asyncio.sleep(self.SECONDS)
        return end


class SlowAndSilent(Slow):
    claims = Sound.claims - {"delivery"}  # nobody can tell an end that was not published from one that was missed

    async def clear(self, session: str) -> None:
        self.lane(session).queue.clear()


# --- one worker for all sessions

class OneWorker(Sound):
    capacity = 1

    def may_start(self, session: str) -> bool:
        return not any(lane.turn for lane in self.lanes.values())

    def end(self, session: str, prompt: Sent, turn: asyncio.Task[Ended]) -> None:
        super().end(session, prompt, turn)
        for other in self.lanes:
            self.start_next(other)


class OneWorkerOfOneSession(OneWorker):
    def end(self, session: str, prompt: Sent, turn: asyncio.Task[Ended]) -> None:
        Sound.end(self, session, prompt, turn)


# --- no place to come back to

class HasNoIds(Sound):
    has_place = False


class ForgetsThePlace(Sound):
    async def come_back(self) -> None:
        self._inbox = asyncio.Queue()
