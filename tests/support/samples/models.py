"""The models as servers: any protocol that the explorer can explore, behind an adapter.

Each step of the model is a step of an asyncio task, one task a prompt, so that a schedule is an interleaving of the
model. Callers and turns do what the kit says; the rest the model does by itself. What the kit cannot bring about from
outside does not happen: nobody sends prompts from inside the process. A prompt fails before it starts if the kit says
so, or where it can do nothing else.

What subscribers see is the model of delivery: a log, or a buffer that overflows (`model.delivery`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from cancelmark.conformance.adapter import (
    Adapter,
    ContextFull,
    Ended,
    Event,
    Notice,
    Refused,
    Sent,
    Spoken,
    TurnFailed,
    answer_to,
    failure_of,
)
from cancelmark.conformance.schedule import checkpoint, label
from cancelmark.model.actions import Actor, Variant
from cancelmark.model.delivery import BUFFER, delivery_of
from cancelmark.model.effects import End, Fold, Record, Report, Start
from cancelmark.model.lifecycle import Outcome
from cancelmark.model.protocol import REFERENCE, Behaviour, Move
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.agent import Agent
from cancelmark.model.session import ACTIVE, AnySession, Prompt

Model = TypeVar("Model", bound="ModelAdapter")
BEHAVIOURS: dict[str, Behaviour] = {**{r.name: r for r in REVISIONS}, REFERENCE.name: REFERENCE}
class ModelAdapter(Adapter):
    """A server that is nothing but a model."""

    folds = fails_early = True
    outgrows = "error"
    behaviour: ClassVar[Behaviour]
    name: ClassVar[str]
    moves_of: ClassVar[Callable[[AnySession, int], tuple[Move, ...]]]

    def __init__(self) -> None:
        self.states: dict[str, AnySession] = {}
        self.latest = 0
        self.sent: dict[int, Sent] = {}  # by seq
        self.tasks: set[asyncio.Task[Any]] = set()
        self.waiters: list[asyncio.Future[None]] = []  # until something has moved
        self.closing = False
        self.taken_in: dict[int, list[str]] = {}  # texts that a turn will hand to the language model, by its seq
        self.spoken: dict[str, list[Spoken]] = {}
        self.popped: set[int] = set()  # prompts that have been active
        self.delivery = delivery_of(self.name if self.name in BEHAVIOURS else REFERENCE.name)
        self.attached, self.reading = True, asyncio.Event()
        self.reading.set()

    async def session(self) -> str:
        id = await super().session()
        self.states[id], self.spoken[id] = self.behaviour.start, []
        return id

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # --- what clients call

    async def accept(self, session: str, prompt: Sent) -> None:
        await checkpoint()
        if self.closing:
            raise Refused("closing")
        seq = self.latest + 1
        self.sent[seq] = prompt
        self.admit(session, prompt)
        self.latest = seq
        self.live(session, seq)

    def admit(self, session: str, prompt: Sent) -> None:
        self.take(session, "accept", variant=prompt.run_id is not None)

    def live(self, session: str, seq: int) -> None:
        """What a prompt does by itself begins."""
        self.tasks.add(asyncio.create_task(self.live_out(session, seq), name=f"prompt {seq}"))

    async def cancel(self, session: str) -> None:
        await self.make_call(session, "cancel")

    async def clear(self, session: str) -> None:
        await self.make_call(session, "clear_queue")

    async def queued(self, session: str) -> int:
        entries = getattr(self.states[session], "queue_entries", self.states[session].queue)
        return len(entries)

    async def messages(self, session: str) -> Sequence[Spoken]:
        return self.spoken[session]

    # --- who watches

    def tell(self, event: Event) -> None:
        """Into the log; or into the subscriber's buffer, if there is one and it has room."""
        if self.delivery.logged or (self.attached and (self.reading.is_set() or self._inbox.qsize() < BUFFER)):
            super().tell(event)

    async def events(self) -> AsyncIterator[Event]:
        inbox = super().events()
        while True:
            await self.reading.wait()
            yield await anext(inbox)

    async def leave(self) -> None:
        self.attached = False
        while not (self.delivery.logged or self._inbox.empty()):
            self._inbox.get_nowait()

    async def come_back(self) -> None:
        self.attached = True

    async def slow(self) -> None:
        self.reading.clear()

    async def catch_up(self) -> None:
        self.reading.set()

    async def _close_server(self) -> None:
        self.closing = True
        await asyncio.gather(*(self.make_call(session, "close") for session in self.states))

    async def make_call(self, session: str, name: str) -> None:
        """A call, and what is left of it to do after a moment in which others may act."""
        await checkpoint()
        self.take(session, name)
        while (rest := self.find(session, f"{name}…")) is not None:
            await checkpoint()
            if (rest := self.find(session, f"{name}…")) is not None:
                self.apply(session, rest)

    # --- what happens by itself

    async def live_out(self, session: str, seq: int) -> None:
        """Everything that a prompt does, from its acceptance on."""
        while True:
            await checkpoint()
            if (move := self.find_own_move(session, seq)) is not None:
                self.apply(session, move)
            elif (move := self.find(session, "requeue", seq)) is not None and move.action.actor is Actor.SERVER:
                await self.make_summary(session, seq)
                self.take(session, "requeue", seq)
            elif any(p.seq == seq and p.state is ACTIVE for p in self.states[session].prompts):
                await self.take_turn(session, seq)
            elif not any(p.seq == seq for p in self.states[session].prompts):
                return
            else:
                await self.next_move()

    def find_own_move(self, session: str, seq: int) -> Move | None:
        """The next step that the server takes for this prompt. It fails if the kit says so: as soon as it can, but a
        prompt of a busy session gets into the queue first where it can still fail after that. Or else only if nothing
        else is left to do."""
        moves = [m for m in self.moves(session) if m.seq == seq and m.action.actor is Actor.SERVER
                 and m.action.name != "requeue"]
        fails = next((m for m in moves if m.action.name == "fail"), None)
        if fails and self.sent[seq].fails and not (self.is_busy(session) and seq not in self.popped):
            return fails
        return next((m for m in moves if m is not fails), None) or (
            fails if not self.can_finish(session, seq) else None)

    def is_busy(self, session: str) -> bool:
        """Whether a prompt that enters is queued, and can still fail when it has left the queue."""
        state = self.states[session]
        return isinstance(state, Agent) and state.registered is not None

    def can_finish(self, session: str, seq: int) -> bool:
        return self.find(session, "finish", seq, Outcome.END_TURN) is not None

    async def take_turn(self, session: str, seq: int) -> None:
        """The turn of the prompt that is active: the language model is asked until it has an answer."""
        taken = self.taken_in.pop(seq, [])
        try:
            text = self.text_of(self.states[session].prompt(seq))
            answer = await self.ask(self.turns.step(text, *taken), f"turn {seq}", session, seq)
        except asyncio.CancelledError:
            self.take(session, "finish", seq, Outcome.CANCELED)
        except TurnFailed:
            self.take(session, "finish", seq, Outcome.ERROR)
        except ContextFull:
            await self.outgrow(session, seq)
        else:
            if answer is not None:
                self.take(session, "finish", seq, Outcome.END_TURN)
            elif step := self.find(session, "step", seq):
                self.apply(session, step)

    async def ask(self, call: Coroutine[Any, Any, str | None], name: str, session: str, seq: int) -> str | None:
        """What the language model answers. Raises CancelledError if the turn is stopped before that."""
        asking = asyncio.create_task(call, name=name)
        self.tasks.add(asking)
        while not asking.done() and not self.is_stopped(session, seq):
            either: list[asyncio.Future[Any]] = [asking, self.next_move()]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
        return await asking

    async def outgrow(self, session: str, seq: int) -> None:
        """The turn goes on after a summary: a row of the reference, and several steps of a revision."""
        if (summarize := self.find(session, "summarize", seq)) is not None:
            self.apply(session, summarize)
            return
        await self.make_summary(session, seq)
        if (requeue := self.find(session, "requeue", seq)) is not None:
            self.apply(session, requeue)
        else:
            self.take(session, "finish", seq, Outcome.CANCELED)

    async def make_summary(self, session: str, seq: int) -> None:
        """Comes back when the summary is made, or was stopped."""
        with suppress(asyncio.CancelledError):
            await self.ask(self.turns.make_summary(self.sent[seq].text), f"summary {seq}", session, seq)

    def is_stopped(self, session: str, seq: int) -> bool:
        """Whether its turn, or its summary, was asked to stop."""
        return self.find(session, "finish", seq, Outcome.CANCELED) is not None or any(
            p.seq == seq and self.states[session].covered(p) for p in self.states[session].prompts)

    # --- the model

    def moves(self, session: str) -> tuple[Move, ...]:
        return type(self).moves_of(self.states[session], self.latest)

    def find(self, session: str, name: str, seq: int | None = None, variant: Variant = None) -> Move | None:
        return next((m for m in self.moves(session) if (m.action.name, m.seq) == (name, seq)
                     and (variant is None or m.variant == variant)), None)

    def take(self, session: str, name: str, seq: int | None = None, variant: Variant = None) -> None:
        move = self.find(session, name, seq, variant)
        assert move is not None, f"{self.behaviour.name} cannot {name} {seq} now"
        self.apply(session, move)

    def apply(self, session: str, move: Move) -> None:
        label(f"{move.action.name} {move.seq or ''}")
        texts = {p.seq: self.text_of(p) for p in self.states[session].prompts}
        self.states[session] = move.live
        if move.action.name == "finish":  # the models leave a turn's own messages out
            assert isinstance(move.variant, Outcome)
            self.spoken[session].append(Spoken("assistant", "", move.variant.value))
        for effect in move.effects:
            match effect:
                case End(seq, outcome, of) if outcome is not Outcome.FOLDED:
                    text = answer_to(self.sent[of].name) if outcome is Outcome.END_TURN else None
                    error = failure_of(self.sent[of].name) if outcome is Outcome.ERROR else None
                    self.tell(Ended(self.sent[seq].name, outcome.value, text, error))
                case Report(seq, of):
                    self.tell(Notice(self.sent[seq].name, failure_of(self.sent[of].name)))
                case Fold(seq, into):
                    self.taken_in.setdefault(into, []).append(texts[seq])
                case Record(seq):
                    self.spoken[session] += [Spoken("user", texts[seq]), Spoken("assistant", "", "canceled")]
                case Start(seq):
                    if seq not in self.popped:  # it goes on after a summary
                        self.spoken[session].append(Spoken("user", texts[seq]))
                    self.popped.add(seq)
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def text_of(self, prompt: Prompt) -> str:
        return self.sent[prompt.seq].text

    def next_move(self) -> asyncio.Future[None]:
        self.waiters.append(asyncio.get_running_loop().create_future())
        return self.waiters[-1]


class ClosingModelAdapter(ModelAdapter):
    """A model that has a close."""

    async def shut(self) -> None:
        await self._close_server()


def model_adapter(name: str) -> type[ModelAdapter]:
    """The adapter of a revision, `r0` to `r4`, or of the reference, `ref`."""
    behaviour = BEHAVIOURS[name]
    closes = any(action.name == "close" for action in behaviour.actions)
    return adapter_of(behaviour, name, ClosingModelAdapter if closes else ModelAdapter)


def adapter_of(behaviour: Behaviour, name: str, kind: type[Model]) -> type[Model]:
    """The adapter of that kind for a behaviour. What can happen in a state is computed once."""
    @lru_cache(100_000)
    def moves_of(state: AnySession, latest: int) -> tuple[Move, ...]:
        return tuple(behaviour.moves(state, latest))

    made: Any = type(f"{name.title().replace(' ', '')}Adapter", (kind,), {
        "behaviour": behaviour, "name": name, "moves_of": staticmethod(moves_of)})
    return cast("type[Model]", made)
