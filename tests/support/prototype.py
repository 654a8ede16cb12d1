"""Two choices that a prototype of the family made otherwise, put back one at a time, and what the prototype counted.

A hold **parked** a turn that goes on after a summary; here the turn stays active. And the prototype's observer
**remembered** of a turn that it had taken others in, and judged when an interrupt stops the turn. Here folding past an
interrupt is judged where the fold happens, so that nothing has to be remembered.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cancelmark.model.actions import Action, Variant
from cancelmark.model.effects import Fold
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import ROWS, Guard, Row, State, Trigger
from cancelmark.model.observer import wish_of
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import Move, Protocol
from cancelmark.model.session import Prompt, Session

ALL = frozenset(Feature)


class HostWish(NamedTuple):
    """The observer's notes of a prompt whose turn has taken others in."""

    place: int
    version: int
    now: bool
    ran: bool
    host: bool = True

    def write(self) -> "HostWish":
        return self


class Remembering(Protocol):
    """A protocol whose observer remembers which turns have taken others in."""

    def apply(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant, seq: int) -> Move:
        move = super().apply(action, session, prompt, variant, seq)
        hosts = {effect.into for effect in move.effects if isinstance(effect, Fold)}
        if not hosts:
            return move
        seen: Any = move.after
        after = seen.holding(p._replace(wish=HostWish(*wish_of(p)[:4])) if p.seq in hosts else p for p in seen.prompts)
        live, ended = after.retire()
        return move._replace(after=after, live=live, ended=ended)


def remembering(features: frozenset[Feature]) -> Protocol:
    return Remembering("remembering", features=features)


def parking(features: frozenset[Feature]) -> Protocol:
    rows = [row for row in ROWS if row.trigger is not Trigger.REQUEUE]
    parks = Row(Trigger.REQUEUE, State.ACTIVE, State.QUEUED, unless=(Guard.COVERED,))
    return Protocol("parking", rows=(*rows, parks), features=features)


class Counted(NamedTuple):
    """A search of the prototype, and the choice that explains its counts."""

    choice: Callable[[frozenset[Feature]], Protocol]
    features: frozenset[Feature]
    bounds: Bounds
    states: int
    edges: int


PROTOTYPE = (
    Counted(remembering, frozenset({Feature.INTERRUPT}), Bounds(3, cancels=1, crashes=1), 58_500, 148_718),
    Counted(remembering, ALL, Bounds(3, crashes=1, revokes=1, holds=1), 114_993, 413_180),
    Counted(parking, frozenset({Feature.STOP, Feature.HOLD}),
            Bounds(2, cancels=1, requeues=1, crashes=1, closes=1, stops=1, holds=1), 87_494, 322_187),
    Counted(parking, ALL, Bounds(2, requeues=1, crashes=1, revokes=1, stops=2, holds=2, nexts=2), 492_048, 2_236_945),
    Counted(parking, ALL, Bounds(2, cancels=1, requeues=1, closes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
            640_487, 3_811_452),
    Counted(remembering, ALL, Bounds(3, cancels=1, revokes=1, stops=1, holds=1, nexts=1), 2_758_059, 16_395_234),
)
