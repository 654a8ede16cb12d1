"""Seeded servers for what several clients do: sixteen sessions, one more client, a watcher that leaves or reads slowly,
a prompt that is sent again, a session that is deleted, a turn that outgrows its context, a prompt that cannot start.

Each breaks exactly that, and has an innocent one beside it.
"""

import asyncio
from collections.abc import AsyncIterator

from cancelmark.conformance.adapter import ContextFull, Ended, Event, Refused, Sent, TurnFailed

from .seeded import Sound


class MixesUpSessions(Sound):
    async def cancel(self, session: str) -> None:
        for other in list(self.lanes):
            if int(other.split("-")[1]) % 9 == int(session.split("-")[1]) % 9:
                await super().cancel(other)


class StartsSlowly(Sound):
    async def run(self, prompt: Sent) -> Ended:
        await asyncio.sleep(0.5)
        return await super().run(prompt)


class ForgetsWhenOneAttaches(Sound):
    async def attach(self) -> None:
        for lane in self.lanes.values():
            lane.queue = []


class Attaches(Sound):
    async def attach(self) -> None:
        await asyncio.sleep(0.5)


class DeletesInSilence(Sound):
    async def delete(self, session: str) -> None:
        self.lane(session).queue.clear()
        await self.cancel(session)


class Deletes(Sound):
    async def delete(self, session: str) -> None:
        await asyncio.sleep(0.5)
        await self.cancel(session)


class DropsForTheSlow(Sound):
    room = 0  # for what is not read at once

    async def open(self) -> None:
        self.reading = asyncio.Event()
        self.reading.set()

    def publish(self, end: Ended) -> None:
        if self.reading.is_set() or self._inbox.qsize() < self.room:
            super().publish(end)

    async def events(self) -> AsyncIterator[Event]:
        inbox = super().events()
        while True:
            await self.reading.wait()
            yield await anext(inbox)

    async def slow(self) -> None:
        self.reading.clear()

    async def catch_up(self) -> None:
        self.reading.set()


class KeepsForTheSlow(DropsForTheSlow):
    room = 1000


class KnowsRunIds(Sound):
    claims = Sound.claims | {"run-ids"}
    run_ids = True

    async def open(self) -> None:
        self.known: dict[str | None, tuple[str, str]] = {}

    async def accept(self, session: str, prompt: Sent) -> None:
        if prompt.run_id not in self.known:
            await super().accept(session, prompt)
            self.known[prompt.run_id] = session, prompt.text
        elif self.known[prompt.run_id] != (session, prompt.text):
            raise Refused("this run id is another's")

    async def lose(self, session: str, prompt: Sent) -> None:
        await self.accept(session, prompt)


class RunsTwice(KnowsRunIds):
    async def accept(self, session: str, prompt: Sent) -> None:
        await Sound.accept(self, session, prompt)


class OutlivesWatchers(Sound):
    claims = Sound.claims | {"outlives-watcher"}
    grace = 60.0


class CancelsWhenNobodyWatches(OutlivesWatchers):
    async def leave(self) -> None:
        self.alarm = asyncio.get_running_loop().call_later(60, self.give_up)

    async def come_back(self) -> None:
        self.alarm.cancel()

    def give_up(self) -> None:
        for session in self.lanes:
            asyncio.ensure_future(self.cancel(session))  # noqa: RUF006


class Summarizes(Sound):
    outgrows = "error"

    async def run(self, prompt: Sent) -> Ended:
        try:
            return await super().run(prompt)
        except ContextFull:
            await self.turns.make_summary(prompt.text)
            return await self.run(prompt)


class ForgetsCancelInSummary(Summarizes):
    async def run(self, prompt: Sent) -> Ended:
        try:
            return await Sound.run(self, prompt)
        except ContextFull:
            try:
                await self.turns.make_summary(prompt.text)
            except asyncio.CancelledError:
                """The summary is stopped, and the turn goes on."""
            return await self.run(prompt)


class FailsAloud(Sound):
    fails_early = True

    async def run(self, prompt: Sent) -> Ended:
        if prompt.fails:
            return Ended(prompt.name, "error", error=f"{prompt.name} cannot start")
        return await super().run(prompt)


class FailsInSilence(FailsAloud):
    def end(self, session: str, prompt: Sent, turn: "asyncio.Task[Ended]") -> None:
        if prompt.fails:
            self.lane(session).turn = None
            self.start_next(session)
        else:
            super().end(session, prompt, turn)


class Folds(Sound):
    """A turn that calls again takes in what waits without a run id."""

    claims = Sound.claims | {"no-absorption"}
    folds = True

    async def run(self, prompt: Sent) -> Ended:
        try:
            answer, taken = await self.turns.step(prompt.text), list[Sent]()
            while answer is None:
                taken = [q for lane in self.lanes.values() if lane.turn is asyncio.current_task() for q in lane.queue
                         if self.may_fold(q)]
                for lane in self.lanes.values():
                    lane.queue = [q for q in lane.queue if q not in taken]
                answer = await self.turns.step(prompt.text, *(q.text for q in taken))
            return Ended(prompt.name, "end_turn", answer)
        except TurnFailed as failure:
            return Ended(prompt.name, "error", error=str(failure))

    def may_fold(self, prompt: Sent) -> bool:
        return prompt.run_id is None


class FoldsEverybody(Folds):
    def may_fold(self, prompt: Sent) -> bool:
        return True
