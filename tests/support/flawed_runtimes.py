"""Races of the original, seeded into a part of the runtime: what should be one step is two. Of each property the race
that the random tests find last.

Between the two halves anything may happen, and only in some schedules does it. The second half of a step is a task of
its own, as if the session had let go of its lock in the middle. A prompt without a run id stands for the original's
in-process prompts, which had a way in of their own.
"""

import asyncio
from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import ClassVar

from support.scheduled import Parts, World
from support.stores import Meddled

from cancelmark.impl.runtime.events import Broker, Subscription
from cancelmark.impl.runtime.session import LivePrompt, Session, TakenStep
from cancelmark.impl.store import TERMINAL, AppendEvent, CommitAnswer, CommitRequest, MovePrompt
from cancelmark.model.actions import FINISH, Variant, hand_off
from cancelmark.model.effects import Record
from cancelmark.model.lifecycle import Guard, Outcome, State, Trigger

_seq = attrgetter("seq")


class Racy(Session):
    """A session some of whose steps have a second half: a method named like an action is taken in its place."""

    watch: World

    def take(self, action: str, prompt: LivePrompt | None = None, variant: Variant = None, latest: int | None = None,
             ) -> TakenStep:
        own = getattr(self, action, None)
        if own is None:
            return super().take(action, prompt, variant, latest)
        effects: TakenStep = own(*(given for given in (prompt, variant) if given is not None))
        return effects

    @contextmanager
    def _step(self, action: str, prompt: LivePrompt | None = None, variant: Variant = None) -> Iterator[TakenStep]:
        """One step, to be filled in."""
        with self._lock:
            self.effects = TakenStep(action, prompt, variant)
            yield self.effects
            self.effects.mark = self.mark

    def _unindex(self, prompt: LivePrompt, state: State) -> None:
        """Whoever leaves leaves nobody active: the original has one place for that."""
        if state is State.ACTIVE:
            self.active = []
        else:
            super()._unindex(prompt, state)

    def later(self, half: str, *arguments: object) -> None:
        """Does the second half some time later."""
        async def work() -> None:
            effects: TakenStep = getattr(self, half)(*arguments)
            self.watch.carry(self, effects)

        asyncio.get_running_loop().create_task(work(), name=half)

    def publish(self, prompt: LivePrompt, outcome: Outcome) -> None:
        """Publishes an end without asking whether there was one."""
        payload = {"session_id": self.id, "outcome": outcome.value, "seq": prompt.seq}
        event = AppendEvent(self.id, TERMINAL, payload, prompt.run_id)
        asyncio.get_running_loop().create_task(self.watch.runtime.store.write([event]), name="publish")

    def _fire_out(self, prompt: LivePrompt, trigger: Trigger) -> None:
        """Moves a prompt that was taken out of the queue before."""
        queue, self.queue = self.queue, [prompt]
        self.fire(prompt, trigger)
        self.queue = queue

    def _put_back(self, prompt: LivePrompt) -> None:
        insort(self.queue, prompt, key=_seq)
        if not self.active:
            hand_off(self)

    def _cancel_on_entry(self, prompt: LivePrompt, effects: TakenStep) -> None:
        self.fire(prompt, Trigger.ENTER)
        effects.append(Record(prompt.seq))
        self.fire(prompt, Trigger.SETTLE)


# --- the handoff in two

class HandsOffLater(Racy):
    """The turn is over, and the queue is looked at later."""

    more: ClassVar = ("hand_off",)

    def finish(self, prompt: LivePrompt, outcome: Outcome) -> TakenStep:
        with self._step("finish", prompt, outcome) as effects:
            self.fire(prompt, FINISH[outcome])
            if self.queue:
                self.later("hand_off")
        return effects

    def hand_off(self) -> TakenStep:
        with self._step("hand_off") as effects:
            if not self.active:
                hand_off(self)
        return effects


class PopsThenRegisters(Racy):
    """The first is taken out of the queue, and becomes active later."""

    more: ClassVar = ("register",)

    def finish(self, prompt: LivePrompt, outcome: Outcome) -> TakenStep:
        with self._step("finish", prompt, outcome) as effects:
            self.fire(prompt, FINISH[outcome])
            if self.queue:
                self.later("register", self.queue.pop(0))
        return effects

    def register(self, prompt: LivePrompt) -> TakenStep:
        with self._step("register", prompt) as effects:
            if not self.active:
                self._fire_out(prompt, Trigger.START)
            else:
                self._put_back(prompt)
        return effects


class RegistersOnADeadContext(PopsThenRegisters):
    """And if the server closes meanwhile it fails, and nobody is told."""

    def register(self, prompt: LivePrompt) -> TakenStep:
        effects = super().register(prompt)
        if self.watch.runtime.closing and prompt in self.active:
            with self._step("register", prompt) as failed:
                self.fire(prompt, Trigger.FINISH_ERROR)
            effects.moved += failed.moved
            effects.clear()
        return effects


class CleansUpLater(Racy):
    """Whoever was active is deleted later, whoever is active by then."""

    more: ClassVar = ("clean_up",)

    def finish(self, prompt: LivePrompt, outcome: Outcome) -> TakenStep:
        effects = Session.take(self, "finish", prompt, outcome)
        self.later("clean_up")
        return effects

    def clean_up(self) -> TakenStep:
        with self._step("clean_up") as effects:
            self.active = []
        return effects


# --- the rest

class QueuesLater(Racy):
    """The session is busy, and the prompt is queued later, whether it still is or not."""

    more: ClassVar = ("enqueue",)

    def enter(self, prompt: LivePrompt) -> TakenStep:
        if prompt.run_id or prompt.covered or not self.holds(prompt, Guard.BUSY):
            return Session.take(self, "enter", prompt)
        self.later("enqueue", prompt)
        return TakenStep("enter", prompt)

    def enqueue(self, prompt: LivePrompt) -> TakenStep:
        with self._step("enqueue", prompt) as effects:
            if prompt.covered:
                self._cancel_on_entry(prompt, effects)
            else:
                self.down = True  # which is busy
                self.fire(prompt, Trigger.ENTER)
                self.down = False
        return effects


class ClearsInTwo(Racy):
    """The queue is read, and what was read is dropped later; what has run by then is published as canceled."""

    more: ClassVar = ("clear",)

    def clear_queue(self) -> TakenStep:
        if self.queue:
            self.later("clear", list(self.queue))
        return TakenStep("clear_queue")

    def clear(self, read: list[LivePrompt]) -> TakenStep:
        with self._step("clear") as effects:
            for prompt in read:
                if prompt.state is State.QUEUED:
                    self.fire(prompt, Trigger.DROP)
                elif prompt.outcome is not Outcome.CANCELED:
                    self.publish(prompt, Outcome.CANCELED)
        return effects


class EndWithTheNeighboursError(Meddled):
    """The end of a prompt that hands off is kept until the next one ends, and takes its error along."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: list[AppendEvent] = []

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        hands_off = any(isinstance(op, MovePrompt) and op.state is State.ACTIVE for op in steps.operations)
        changed: list[AppendEvent] = []
        for op in (op for op in steps.operations if isinstance(op, AppendEvent)):
            error = {"outcome": "error", "error": op.payload["error"]} if op.payload.get("error") else {}
            changed += [AppendEvent(k.session_id, k.type, {**k.payload, **error}, k.run_id) for k in self.kept]
            self.kept = [op] if hands_off else []
            changed += [] if hands_off else [op]
        others = [op for op in steps.operations if not isinstance(op, AppendEvent)]
        return await super().commit(steps._replace(operations=[*others, *changed]))


class LossySubscription(Subscription):
    """It has room for one event."""

    __slots__ = ()

    async def _turn_page(self) -> None:
        await super()._turn_page()
        while len(self._page) > 1:
            self._page.pop()


class LossyBroker(Broker):
    def subscribe(self, after: int | None = None, session: str | None = None) -> Subscription:
        subscription = LossySubscription(self, self.latest if after is None else after, session)
        self._subscriptions.add(subscription)
        return subscription


FLAWED: Mapping[str, Parts] = {
    "handoff-window-cancel-lost": Parts(PopsThenRegisters),
    "shutdown-silences-handoff": Parts(RegistersOnADeadContext),
    "clear-races-handoff": Parts(ClearsInTwo),
    "enqueued-after-handoff": Parts(QueuesLater),
    "overtaken-in-the-window": Parts(HandsOffLater),
    "late-cleanup-wipes-successor": Parts(CleansUpLater),
    "neighbours-error": Parts(store=EndWithTheNeighboursError),
    "slow-subscriber-loses-end": Parts(broker=LossyBroker),
}
