"""The family: the calls that a protocol may have besides the reference's, each an action with its feature.

`Protocol(name, features=…)` has those of its features. What they need in the reference's own actions and guards is
there (`model.actions`), and reads fields that keep their defaults in a protocol without the feature: with no feature at
all the family is the reference, state for state.

Four of them are primitive: `revoke` (cancel one prompt), `hold` with `resume`, `replace`, `next`. A stop is the revoke
of whoever is in front. An interrupt is an acceptance at the front that revokes what it finds running when it enters.
"""

import dataclasses
from functools import cache
from typing import Any

from . import observer
from .actions import (
    ACTIONS,
    Action,
    Actor,
    Argument,
    Port,
    Reach,
    Subject,
    Variant,
    cancel_one,
    hand_off,
    in_front_of_all,
    place,
)
from .lifecycle import Feature, Guard, State


def revoke(step: Port, arg: Argument) -> None:
    """The prompt is canceled, and nobody else: dropped from the queue, asked to stop, or canceled on entry."""
    cancel_one(step, arg.subject)


HOLD = "hold"  # the variant of a stop that holds too


def stop(step: Port, arg: Argument) -> None:
    """The prompt in front is canceled: the active one or, in a session that is not held, the first that is still to
    enter. The queue stays. With `hold` the session is held too, and only the active prompt is canceled."""
    if arg.variant == HOLD:
        step.held = True
    for prompt in list(step.active) or ([] if step.held else sorted(step.accepted, key=place)[:1]):
        cancel_one(step, prompt)


def hold(step: Port, arg: Argument) -> None:
    """Nothing that waits starts or folds any more; a running turn goes on to its end."""
    step.held = True


def resume(step: Port, arg: Argument) -> None:
    """The hold is over: if nothing is active, the first in the queue becomes active."""
    step.held = False
    if not step.active:
        hand_off(step)


def replace(step: Port, arg: Argument) -> None:
    """The prompt has another text, and keeps its place."""
    step.change(arg.subject, version=arg.subject.version + 1)


def move_to_front(step: Port, arg: Argument) -> None:
    """The prompt goes ahead of all that are not done, unless it is there already."""
    prompt = arg.subject
    if any(place(other) < place(prompt) for other in step.live):
        step.change(prompt, front=in_front_of_all(step))


def _waits(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state in (State.ACCEPTED, State.QUEUED) and not port.holds(prompt, Guard.COVERED)


def _is_live(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state is not State.DONE


FAMILY_ACTIONS: tuple[Action, ...] = (
    Action("revoke", Actor.CLIENT, revoke, "p not done", "R30", _is_live, reaches=Reach.CANCEL, whom=observer.named,
           bound="revokes", feature=Feature.REVOKE, clauses=("R30a", "R30b")),
    Action("stop", Actor.CLIENT, stop, "any", "R31", variants=(None, HOLD), reaches=Reach.CANCEL,
           whom=observer.in_front, wishes=observer.stop, bound="stops", feature=Feature.STOP,
           clauses=("R31a", "R31b", "R31c")),
    Action("hold", Actor.CLIENT, hold, "any", "R32", wishes=observer.hold, bound="holds", feature=Feature.HOLD,
           clauses=("R32a", "R32b")),
    Action("resume", Actor.CLIENT, resume, "any", "R32", wishes=observer.resume,
           feature=Feature.HOLD, clauses=("R32d",)),
    Action("replace", Actor.CLIENT, replace, "p accepted or queued, not covered, not begun", "R33",
           lambda port, prompt, how: _waits(port, prompt, how) and not prompt.begun,
           wishes=observer.replace, bound="replaces", feature=Feature.REPLACE, clauses=("R33a", "R33b")),
    Action("next", Actor.CLIENT, move_to_front, "p accepted or queued, not covered", "R34", _waits,
           wishes=observer.to_front, bound="nexts", feature=Feature.NEXT, clauses=("R34a", "R34b")),
)

ALL_ACTIONS = (*ACTIONS, *FAMILY_ACTIONS)


@cache
def actions_of(features: frozenset[Feature]) -> tuple[Action, ...]:
    """The actions of the protocol with these features, each with the variants that it has there."""
    return tuple(_limited(a, features) for a in ALL_ACTIONS if a.feature is None or a.feature in features)


_ABSENT_WITHOUT: dict[Any, Feature] = {
    Feature.REJECT.value: Feature.REJECT, Feature.INTERRUPT.value: Feature.INTERRUPT, HOLD: Feature.HOLD}


def _limited(action: Action, features: frozenset[Feature]) -> Action:
    variants = tuple(v for v in action.variants if _ABSENT_WITHOUT.get(v) in (None, *features))
    return action if variants == action.variants else dataclasses.replace(action, variants=variants)
