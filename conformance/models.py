"""The models as servers: any protocol that the explorer can explore, behind an adapter.

Each step of the model is a step of an asyncio task, one task a prompt, so that a schedule is an interleaving of the
model. Callers and turns do what the kit says; the rest the model does by itself. What the kit cannot bring about from
outside does not happen: nobody sends prompts from inside the process, no turn needs a summary, and a prompt fails
before it starts only where it can do nothing else.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from cancelmark.model.actions import Actor, Variant
from cancelmark.model.effects import End, Fold, Record, Report, Start
from cancelmark.model.lifecycle import Outcome
from cancelmark.model.protocol import REFERENCE, Behaviour, Move
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.session import ACTIVE, AnySession

from .adapter import Adapter, Ended, Notice, Refused, Sent, Spoken, TurnFailed, answer_to, failure_of
from .schedule import checkpoint, label

BEHAVIOURS: dict[str, Behaviour] = {**{r.name: r for r in REVISIONS}, REFERENCE.name: REFERENCE}
NEVER = ("crash", "recover", "requeue", "summarize")


@lru_cache(100_000)
def moves_of(name: str, state: AnySession, latest: int) -> tuple[Move, ...]:
    return tuple(move for move in BEHAVIOURS[name].moves(state, latest) if move.action.name not in NEVER)


class ModelAdapter(Adapter):
    """A server that is nothing but a model."""

    folds = True
    behaviour: ClassVar[Behaviour]
    name: ClassVar[str]

    def __init__(self) -> None:
        self.states: dict[str, AnySession] = {}
        self.latest = 0
        self.sent: dict[int, Sent] = {}  # by seq
        self.tasks: set[asyncio.Task[Any]] = set()
        self.waiters: list[asyncio.Future[None]] = []  # until something has moved
        self.closing = False
        self.taken_in: dict[int, list[str]] = {}  # texts that a turn will hand to the language model, by its seq
        self.spoken: dict[str, list[Spoken]] = {}

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
        self.take(session, "accept", variant=prompt.run_id is not None)
        self.latest = seq
        task = asyncio.create_task(self.live_out(session, seq), name=f"prompt {seq}")
        self.tasks.add(task)

    async def cancel(self, session: str) -> None:
        await self.make_call(session, "cancel")

    async def clear(self, session: str) -> None:
        await self.make_call(session, "clear_queue")

    async def queued(self, session: str) -> int:
        entries = getattr(self.states[session], "queue_entries", self.states[session].queue)
        return len(entries)

    async def messages(self, session: str) -> Sequence[Spoken]:
        return self.spoken[session]

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
            elif any(p.seq == seq and p.state is ACTIVE for p in self.states[session].prompts):
                await self.take_turn(session, seq)
            elif not any(p.seq == seq for p in self.states[session].prompts):
                return
            else:
                await self.next_move()

    def find_own_move(self, session: str, seq: int) -> Move | None:
        """The next step that the server takes for this prompt. It fails only if nothing else is left to do."""
        moves = [m for m in self.moves(session) if m.seq == seq and m.action.actor is Actor.SERVER]
        return next((m for m in moves if m.action.name != "fail"), None) or next(
            (m for m in moves if not self.can_finish(session, seq)), None)

    def can_finish(self, session: str, seq: int) -> bool:
        return self.find(session, "finish", seq, Outcome.END_TURN) is not None

    async def take_turn(self, session: str, seq: int) -> None:
        """The turn of the prompt that is active: the language model is asked until it has an answer."""
        taken = self.taken_in.pop(seq, [])
        asking = asyncio.create_task(self.turns.step(self.sent[seq].text, *taken), name=f"turn {seq}")
        self.tasks.add(asking)
        while not asking.done() and not self.is_stopped(session, seq):
            either: list[asyncio.Future[Any]] = [asking, self.next_move()]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
        try:
            answer = await asking
        except asyncio.CancelledError:
            self.take(session, "finish", seq, Outcome.CANCELED)
        except TurnFailed:
            self.take(session, "finish", seq, Outcome.ERROR)
        else:
            if answer is not None:
                self.take(session, "finish", seq, Outcome.END_TURN)
            elif step := self.find(session, "step", seq):
                self.apply(session, step)

    def is_stopped(self, session: str, seq: int) -> bool:
        return self.find(session, "finish", seq, Outcome.CANCELED) is not None

    # --- the model

    def moves(self, session: str) -> tuple[Move, ...]:
        return moves_of(self.name, self.states[session], self.latest)

    def find(self, session: str, name: str, seq: int | None = None, variant: Variant = None) -> Move | None:
        return next((m for m in self.moves(session) if (m.action.name, m.seq) == (name, seq)
                     and (variant is None or m.variant is variant)), None)

    def take(self, session: str, name: str, seq: int | None = None, variant: Variant = None) -> None:
        move = self.find(session, name, seq, variant)
        assert move is not None, f"{self.behaviour.name} cannot {name} {seq} now"
        self.apply(session, move)

    def apply(self, session: str, move: Move) -> None:
        label(f"{move.action.name} {move.seq or ''}")
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
                    self.taken_in.setdefault(into, []).append(self.sent[seq].text)
                case Record(seq):
                    self.spoken[session] += [Spoken("user", self.sent[seq].text), Spoken("assistant", "", "canceled")]
                case Start(seq):
                    self.spoken[session].append(Spoken("user", self.sent[seq].text))
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

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
    kind: Any = ClosingModelAdapter if closes else ModelAdapter
    return type(f"{name.capitalize()}Adapter", (kind,), {"behaviour": behaviour, "name": name})
