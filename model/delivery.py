"""A model of delivery, separate from publication: which terminal events one subscriber receives.

The protocol publishes each event once. A subscriber must receive each event once, however slow it is and however often
it disconnects and reconnects. The original puts an event into each subscriber's buffer, and drops it if that buffer
stays full. The reference appends the event to a log, which each subscriber reads at its own pace from its own offset.

In this model `Prompt.ends` counts how often the subscriber received the terminal event, not how often it was published.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from .actions import Action, Actor
from .effects import Acknowledge, Effect, End
from .lifecycle import Outcome, Row, State
from .properties import Property
from .protocol import REFERENCE, Move
from .session import AnySession, Prompt

BUFFER = 1  # capacity of a subscriber's buffer: the smallest that shows every behaviour


class _Fields(NamedTuple):
    prompts: tuple[Prompt, ...] = ()
    attached: bool = True
    buffer: tuple[int, ...] = ()  # the original: events on their way to the subscriber
    log: tuple[int, ...] = ()  # the reference: all events, in order
    place: int = 0  # the subscriber's offset in the log (Last-Event-ID)
    mark: int = 0
    down: bool = False


class Stream(_Fields, AnySession):
    """One session's terminal events and one subscriber."""

    __slots__ = ()

    def with_prompt(self, prompt: Prompt) -> "Stream":
        return self._replace(prompts=tuple(prompt if p.seq == prompt.seq else p for p in self.prompts))

    def seen(self, seq: int) -> "Stream":
        prompt = self.prompt(seq)
        return self.with_prompt(prompt._replace(ends=min(2, prompt.ends + 1)))


def _none(*_: object) -> None:
    """Does nothing: `Delivery.moves` applies the actions."""


ACCEPT = Action("accept", Actor.CLIENT, _none, "", "", bound="prompts")
FINISH = Action("finish", Actor.TURN, _none, "", "")
RECEIVE = Action("receive", Actor.SERVER, _none, "", "")
LEAVE = Action("disconnect", Actor.FAULT, _none, "", "R26", bound="crashes", clauses=("R26",))
RETURN = Action("reconnect", Actor.SERVER, _none, "", "")


@dataclass(frozen=True)
class Delivery:
    """A delivery mechanism: a log that subscribers read, or buffers that can overflow."""

    name: str
    logged: bool
    actions: tuple[Action, ...] = (ACCEPT, FINISH, RECEIVE, LEAVE, RETURN)
    rows: tuple[Row, ...] = ()
    start: ClassVar[Stream] = Stream()

    def limited(self, actions: tuple[Action, ...]) -> Self:
        return type(self)(self.name, self.logged, actions)

    def moves(self, stream: Stream, seq: int) -> Iterator[Move]:
        if ACCEPT in self.actions:
            prompt = Prompt(seq + 1, run_id=True)
            yield self.move(ACCEPT, None, stream._replace(prompts=(*stream.prompts, prompt)), Acknowledge(seq + 1))
        for p in stream.live:
            done = stream.with_prompt(p._replace(state=State.DONE, outcome=Outcome.END_TURN))
            yield self.move(FINISH, p.seq, self.published(done, p.seq))
        waiting = stream.log[stream.place:] if self.logged else stream.buffer
        if stream.attached and waiting:
            read = (stream._replace(place=stream.place + 1) if self.logged
                    else stream._replace(buffer=stream.buffer[1:]))
            first = waiting[0]
            yield self.move(RECEIVE, first, read.seen(first), End(first, Outcome.END_TURN, of=first))
        if stream.attached and LEAVE in self.actions:
            yield self.move(LEAVE, None, stream._replace(attached=False, buffer=()))
        if not stream.attached:
            yield self.move(RETURN, None, stream._replace(attached=True))

    def published(self, stream: Stream, seq: int) -> Stream:
        """The stream after publishing an event. Publishing never waits for the subscriber (R18b)."""
        if self.logged:
            return stream._replace(log=(*stream.log, seq))
        if stream.attached and len(stream.buffer) < BUFFER:
            return stream._replace(buffer=(*stream.buffer, seq))
        return stream  # this subscriber permanently misses the event

    def move(self, action: Action, seq: int | None, after: Stream, *effects: Effect) -> Move:
        return Move(action, seq, None, after, effects, (), after, ())


LOSSY = Delivery("buffers", logged=False)
LOGGED = Delivery("log", logged=True)


def delivery_of(protocol: str) -> Delivery:
    """The delivery mechanism of a protocol: a log for the reference, buffers for all revisions of the original."""
    return LOGGED if protocol == REFERENCE.name else LOSSY


DELIVERY = Property(
    "delivery",
    "A subscriber that stays connected, or resumes from its offset, receives each terminal event exactly once.",
    at_rest=lambda prompt: prompt.ends == 1, clauses=("R18a",))
