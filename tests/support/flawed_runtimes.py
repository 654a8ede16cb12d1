"""The flaws of the original that are races, each seeded into a part of the runtime: what should be one step is two.

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

from cancelmark.conformance.schedule import checkpoint
from cancelmark.impl.runtime.events import Broker, Subscription
from cancelmark.impl.runtime.session import Effects, Prompt, Session
from cancelmark.impl.store import TERMINAL, Answer, AppendEvent, MovePrompt, Steps
from cancelmark.model.actions import FINISH, Variant, hand_off
from cancelmark.model.effects import End, Fold, Record
from cancelmark.model.lifecycle import Guard, Outcome, State, Trigger

_seq = attrgetter("seq")


class Racy(Session):
    """A session some of whose steps have a second half: a method named like an action is taken in its place."""

    watch: World

    def take(self, action: str, prompt: Prompt | None = None, variant: Variant = None, latest: int | None = None,
             ) -> Effects:
        own = getattr(self, action, None)
        if own is None:
            return super().take(action, prompt, variant, latest)
        effects: Effects = own(*(given for given in (prompt, variant) if given is not None))
        return effects

    @contextmanager
    def _step(self, action: str, prompt: Prompt | None = None, variant: Variant = None) -> Iterator[Effects]:
        """One step, to be filled in."""
        with self._lock:
            self.effects = Effects(action, prompt, variant)
            yield self.effects
            self.effects.mark = self.mark

    @contextmanager
    def _marked(self, mark: int) -> Iterator[None]:
        """The step sees another mark."""
        kept, self.mark = self.mark, mark
        try:
            yield
        finally:
            self.mark = kept

    def _unindex(self, prompt: Prompt, state: State) -> None:
        """Whoever leaves leaves nobody active: the original has one place for that."""
        if state is State.ACTIVE:
            self.active = []
        else:
            super()._unindex(prompt, state)

    def later(self, half: str, *arguments: object) -> None:
        """Does the second half some time later."""
        async def work() -> None:
            effects: Effects = getattr(self, half)(*arguments)
            self.watch.carry(self, effects)

        asyncio.get_running_loop().create_task(work(), name=half)

    def publish(self, prompt: Prompt, outcome: Outcome) -> None:
        """Publishes an end without asking whether there was one."""
        payload = {"session_id": self.id, "outcome": outcome.value, "seq": prompt.seq}
        event = AppendEvent(self.id, TERMINAL, payload, prompt.run_id)
        asyncio.get_running_loop().create_task(self.watch.runtime.store.write([event]), name="publish")

    def _fire_out(self, prompt: Prompt, trigger: Trigger) -> None:
        """Moves a prompt that was taken out of the queue before."""
        queue, self.queue = self.queue, [prompt]
        self.fire(prompt, trigger)
        self.queue = queue

    def _put_back(self, prompt: Prompt) -> None:
        insort(self.queue, prompt, key=_seq)
        if not self.active:
            hand_off(self)

    def _cancel_on_entry(self, prompt: Prompt, effects: Effects) -> None:
        self.fire(prompt, Trigger.ENTER)
        effects.append(Record(prompt.seq))
        self.fire(prompt, Trigger.SETTLE)


# --- the handoff in two

class HandsOffLater(Racy):
    """The turn is over, and the queue is looked at later."""

    more: ClassVar = ("hand_off",)

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        with self._step("finish", prompt, outcome) as effects:
            self.fire(prompt, FINISH[outcome])
            if self.queue:
                self.later("hand_off")
        return effects

    def hand_off(self) -> Effects:
        with self._step("hand_off") as effects:
            if not self.active:
                hand_off(self)
        return effects


class PopsThenRegisters(Racy):
    """The first is taken out of the queue, and becomes active later."""

    more: ClassVar = ("register",)

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        with self._step("finish", prompt, outcome) as effects:
            self.fire(prompt, FINISH[outcome])
            if self.queue:
                self.later("register", self.queue.pop(0))
        return effects

    def register(self, prompt: Prompt) -> Effects:
        with self._step("register", prompt) as effects:
            if not self.active:
                self._fire_out(prompt, Trigger.START)
            else:
                self._put_back(prompt)
        return effects


class RegistersOnADeadContext(PopsThenRegisters):
    """And if the server closes meanwhile it fails, and nobody is told."""

    def register(self, prompt: Prompt) -> Effects:
        effects = super().register(prompt)
        if self.watch.runtime.closing and prompt in self.active:
            with self._step("register", prompt) as failed:
                self.fire(prompt, Trigger.FINISH_ERROR)
            effects.moved += failed.moved
            effects.clear()
        return effects


class UnregistersLater(Racy):
    """The end is published, and the session is still busy until later."""

    more: ClassVar = ("unregister",)

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = Session.take(self, "finish", prompt, outcome)
        if not self.active:
            self.active = [prompt]
            self.later("unregister")
        return effects

    def unregister(self) -> Effects:
        with self._step("unregister") as effects:
            self.active = []
        return effects


class CleansUpLater(Racy):
    """Whoever was active is deleted later, whoever is active by then."""

    more: ClassVar = ("clean_up",)

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = Session.take(self, "finish", prompt, outcome)
        self.later("clean_up")
        return effects

    def clean_up(self) -> Effects:
        with self._step("clean_up") as effects:
            self.active = []
        return effects


class FrameEndsWhatItQueued(Racy):
    """A turn that went back to the queue looks later whether it is still there, and takes itself for finished."""

    more: ClassVar = ("return_",)

    def requeue(self, prompt: Prompt) -> Effects:
        effects = Session.take(self, "requeue", prompt)
        self.later("return_", prompt)
        return effects

    def return_(self, prompt: Prompt) -> Effects:
        if prompt.state is State.DONE and prompt.outcome is Outcome.CANCELED:
            self.publish(prompt, Outcome.END_TURN)
        return Effects("return_", prompt)


# --- entry in two, for prompts without a run id

class LooksThenEnters(Racy):
    """The session is idle, and the prompt becomes active later, without another look at the mark."""

    more: ClassVar = ("register",)

    def enter(self, prompt: Prompt) -> Effects:
        if prompt.run_id or self.holds(prompt, Guard.BUSY):
            return Session.take(self, "enter", prompt)
        self.later("register", prompt)
        return Effects("enter", prompt)

    def register(self, prompt: Prompt) -> Effects:
        with self._step("register", prompt) as effects, self._marked(0):
            self.fire(prompt, Trigger.ENTER)
        return effects


class EntersBesideAnother(LooksThenEnters):
    """And without another look at who is active, if that is another of its kind."""

    tracked: ClassVar = False

    def register(self, prompt: Prompt) -> Effects:
        with self._step("register", prompt) as effects:
            if prompt.covered:
                self._cancel_on_entry(prompt, effects)
                return effects
            if any(bool(p.run_id) is self.tracked for p in self.active):
                self.active = []  # or no row would let it
            self.fire(prompt, Trigger.ENTER)
        return effects


class EntersBesideTracked(EntersBesideAnother):
    """Or if that has a run id."""

    tracked = True


class QueuesLater(Racy):
    """The session is busy, and the prompt is queued later, whether it still is or not."""

    more: ClassVar = ("enqueue",)

    def enter(self, prompt: Prompt) -> Effects:
        if prompt.run_id or prompt.covered or not self.holds(prompt, Guard.BUSY):
            return Session.take(self, "enter", prompt)
        self.later("enqueue", prompt, list(self.queue))
        return Effects("enter", prompt)

    def enqueue(self, prompt: Prompt, read: list[Prompt]) -> Effects:
        with self._step("enqueue", prompt) as effects:
            if prompt.covered:
                self._cancel_on_entry(prompt, effects)
            else:
                self.down = True  # which is busy
                self.fire(prompt, Trigger.ENTER)
                self.down = False
            self._write_back(prompt, read)
        return effects

    def _write_back(self, prompt: Prompt, read: list[Prompt]) -> None:
        """Nothing of the queue that was read is written back."""


class WritesBackWhatWasDropped(QueuesLater):
    def _write_back(self, prompt: Prompt, read: list[Prompt]) -> None:
        for queued in read:
            if queued.outcome is Outcome.CANCELED:
                queued.state, queued.outcome = State.QUEUED, None
                self._index(queued)
        if not self.active:
            hand_off(self)


class WritesOverWhatCame(QueuesLater):
    def _write_back(self, prompt: Prompt, read: list[Prompt]) -> None:
        self.queue = [q for q in self.queue if q in read or q is prompt]
        if not self.active:
            hand_off(self)


# --- the rest

class FoldsLater(Racy):
    """A step takes prompts out of the queue, and folds them later."""

    more: ClassVar = ("fold",)

    def step(self, prompt: Prompt) -> Effects:
        with self._step("step", prompt) as effects:
            taken = [q for q in self.queue if not q.run_id]
            if taken and prompt in self.active and not prompt.covered:
                self.queue = [q for q in self.queue if q.run_id]
                self.later("fold", prompt, taken)
        return effects

    def fold(self, prompt: Prompt, taken: list[Prompt]) -> Effects:
        with self._step("fold", prompt) as effects:
            for queued in taken:
                if prompt in self.active:
                    effects.append(Fold(queued.seq, into=prompt.seq))
                    self._fire_out(queued, Trigger.FOLD)
                else:
                    self._put_back(queued)
        return effects


class ClearsInTwo(Racy):
    """The queue is read, and what was read is dropped later; what has run by then is published as canceled."""

    more: ClassVar = ("clear",)
    dropped: ClassVar = False

    def clear_queue(self) -> Effects:
        if self.queue:
            self.later("clear", list(self.queue))
        return Effects("clear_queue")

    def clear(self, read: list[Prompt]) -> Effects:
        with self._step("clear") as effects:
            for prompt in read:
                if prompt.state is State.QUEUED:
                    self.fire(prompt, Trigger.DROP)
                elif (prompt.outcome is Outcome.CANCELED) is self.dropped:
                    self.publish(prompt, Outcome.CANCELED)
        return effects


class ClearsWhatIsCanceled(ClearsInTwo):
    """Or what a cancel has dropped meanwhile."""

    dropped = True


class EntersOnADeadContext(Racy):
    """A prompt that enters while the server closes fails, and nobody is told."""

    def enter(self, prompt: Prompt) -> Effects:
        if not self.watch.runtime.closing:
            return Session.take(self, "enter", prompt)
        with self._marked(0):
            effects = Session.take(self, "fail", prompt)
        effects[:] = [e for e in effects if not isinstance(e, End)]
        return effects


class EndWithTheNeighboursError(Meddled):
    """The end of a prompt that hands off is kept until the next one ends, and takes its error along."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: list[AppendEvent] = []

    async def commit(self, steps: Steps) -> Answer:
        hands_off = any(isinstance(op, MovePrompt) and op.state is State.ACTIVE for op in steps.operations)
        changed: list[AppendEvent] = []
        for op in (op for op in steps.operations if isinstance(op, AppendEvent)):
            error = {"outcome": "error", "error": op.payload["error"]} if op.payload.get("error") else {}
            changed += [AppendEvent(k.session_id, k.type, {**k.payload, **error}, k.run_id) for k in self.kept]
            self.kept = [op] if hands_off else []
            changed += [] if hands_off else [op]
        others = [op for op in steps.operations if not isinstance(op, AppendEvent)]
        return await super().commit(steps._replace(operations=[*others, *changed]))


class EndAsTheContextHasIt(Meddled):
    """Ends are published a moment later, and if the server closes meanwhile as canceled."""

    async def commit(self, steps: Steps) -> Answer:
        await checkpoint()
        return await super().commit(steps._replace(operations=[
            AppendEvent(op.session_id, op.type, {**op.payload, "outcome": "canceled"}, op.run_id)
            if isinstance(op, AppendEvent) and self.world.runtime.closing else op for op in steps.operations]))


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
    "in-process-cancel-lost": Parts(LooksThenEnters),
    "handoff-window-cancel-lost": Parts(PopsThenRegisters),
    "check-after-unlock": Parts(FoldsLater),
    "resurrected-by-enqueue": Parts(WritesBackWhatWasDropped),
    "shutdown-in-silence": Parts(EntersOnADeadContext, ready=True),
    "shutdown-silences-handoff": Parts(RegistersOnADeadContext),
    "clear-races-handoff": Parts(ClearsInTwo),
    "canceled-twice": Parts(ClearsWhatIsCanceled),
    "continuation-ends-twice": Parts(FrameEndsWhatItQueued),
    "stranded-after-the-end": Parts(UnregistersLater),
    "enqueued-after-handoff": Parts(QueuesLater),
    "overwritten-in-the-queue": Parts(WritesOverWhatCame),
    "overtaken-in-the-window": Parts(HandsOffLater),
    "two-in-process-actives": Parts(EntersBesideAnother),
    "in-process-beside-tracked": Parts(EntersBesideTracked),
    "late-cleanup-wipes-successor": Parts(CleansUpLater),
    "neighbours-error": Parts(store=EndWithTheNeighboursError),
    "ended-well-reported-canceled": Parts(store=EndAsTheContextHasIt),
    "slow-subscriber-loses-end": Parts(broker=LossyBroker),
}
