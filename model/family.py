"""The family: the calls that a protocol may have besides the reference's. `Protocol(name, features=…)` has them.

The family stands beside the reference and changes it as any other protocol does: it gives guards other answers, rows
and actions other fields, and adds actions of its own. With no feature at all it is the reference, state for state.

Four of its calls are primitive: `revoke` (cancel one prompt), `hold` with `resume`, `replace`, `next`. A stop is the
revoke of the prompt in front. An interrupt is an acceptance at the front that revokes what it finds running when it
enters.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any
from typing import Protocol as Interface

from . import actions, observer
from .actions import (
    ACTIONS,
    GUARDS,
    Action,
    Actor,
    Answer,
    Argument,
    Port,
    Reach,
    Subject,
    Variant,
    hand_off,
)
from .effects import Effect, Start, Stop
from .lifecycle import GUARD_MEANING, ROWS, Guard, Row, State, Symbol, Trigger


class Feature(Symbol):
    """A call that a protocol of the family may have. `FAMILY` has all, the reference none."""

    REVOKE = "revoke"  # cancel one prompt
    STOP = "stop"  # stop what is in front, and keep the queue
    HOLD = "hold"  # park the queue, and resume
    REPLACE = "replace"  # another text for a prompt that has not begun
    NEXT = "next"  # to the front of the queue
    REJECT = "reject"  # accept only if the session is idle
    INTERRUPT = "interrupt"  # accept, and stop what runs


class FamilyGuard(Symbol):
    """A question that rows of the family ask besides."""

    HELD = "held"


HELD = FamilyGuard.HELD


class FamilySubject(Subject, Interface):
    """A prompt as an action of the family sees it."""

    @property
    def revoked(self) -> bool:
        """A call that names the prompt has canceled it."""
    @property
    def front(self) -> int:
        """How far it was moved to the front of the queue; 0: its position is given by its seq."""
    @property
    def version(self) -> int:
        """How often its text was replaced."""
    @property
    def begun(self) -> bool:
        """It has been active: noted where texts can be replaced."""
    @property
    def urgent(self) -> bool:
        """On entry it stops what runs."""


class FamilyPort(Port, Interface):
    """A session in the middle of one step, as an action of the family sees it."""

    held: bool  # nothing that waits starts or folds

    def change(self, prompt: Any, **fields: Any) -> None:
        """Gives the prompt other values of `revoked`, `front`, `version`, `begun` or `urgent`."""


# --- Guards, and the rows that ask them ---------------------------------------------------------------------------

def place(prompt: FamilySubject) -> tuple[int, int]:
    """Where the prompt stands among others: the lower is ahead."""
    return -prompt.front, prompt.seq


def covered(port: FamilyPort, prompt: FamilySubject) -> bool:
    return prompt.revoked or actions.covered(port, prompt)


def busy(port: FamilyPort, prompt: FamilySubject) -> bool:
    return port.held or actions.busy(port, prompt)


def first(port: FamilyPort, prompt: FamilySubject) -> bool:
    return not (queue := port.queue) or place(prompt) <= place(queue[0])


def held(port: FamilyPort, prompt: FamilySubject) -> bool:
    return port.held


FAMILY_GUARDS: Mapping[Symbol, Answer] = {
    **GUARDS, Guard.COVERED: covered, Guard.BUSY: busy, Guard.FIRST: first, HELD: held}

FAMILY_GUARD_MEANING: Mapping[Symbol, str] = {
    **GUARD_MEANING,
    Guard.COVERED: f"{GUARD_MEANING[Guard.COVERED]}, or the prompt is revoked",
    Guard.BUSY: "the session has an active prompt, or is held, or is down (as it still is inside `recover`)",
    Guard.FIRST: "no queued prompt of the session is ahead: a higher front, or the same and a lower seq",
    HELD: "the session is held",
}

GOES_ON = Row(Trigger.REQUEUE, State.ACTIVE, State.ACTIVE, when=(HELD,), unless=(Guard.COVERED,), rule="R32c")


@cache
def rows_of(features: frozenset[Feature]) -> tuple[Row, ...]:
    """The rows of the protocol with these features. Where sessions can be held, a turn that must go on stays active in
    one that is."""
    if Feature.HOLD not in features:
        return ROWS
    rows: list[Row] = []
    for row in ROWS:
        rows += ([dataclasses.replace(row, unless=(*row.unless, HELD)), GOES_ON] if row.trigger is Trigger.REQUEUE
                 else [row])
    return tuple(rows)


# --- Actions of the reference, as the family has them -------------------------------------------------------------

RUN_ID = ", run id"  # in the variant of an acceptance that has a run id and is not the plain one


def accept(step: FamilyPort, arg: Argument) -> None:
    """The prompt is accepted with the next seq, and journaled before the caller is told."""
    named = arg.variant is True or str(arg.variant).endswith(RUN_ID)
    actions.accept(step, arg._replace(variant=named))
    if accepted_as(arg.variant, Feature.INTERRUPT):
        prompt = next(p for p in step.accepted if p.seq == arg.seq + 1)
        step.change(prompt, urgent=True, front=in_front_of_all(step))


def accepted_as(variant: Variant, mode: Feature) -> bool:
    return isinstance(variant, str) and variant.removesuffix(RUN_ID) == mode.value


def in_front_of_all(step: FamilyPort) -> int:
    return 1 + max((p.front for p in step.live), default=0)


def may_accept(step: FamilyPort, variant: Variant) -> bool:
    """Only an acceptance that wants an idle session is ever refused for what the session does."""
    return not accepted_as(variant, Feature.REJECT) or not (step.held or step.live)


def enter(step: FamilyPort, arg: Argument) -> None:
    """Canceled on entry if the mark covers it, queued if the session is busy, active otherwise. An interrupt stops the
    running turn of an earlier prompt first, if it can follow."""
    prompt = arg.subject
    if prompt.urgent and not step.held and not step.holds(prompt, Guard.COVERED):
        for running in step.active:
            if running.seq < prompt.seq:
                cancel_one(step, running)
    actions.enter(step, arg)


def cancel_one(step: FamilyPort, prompt: Any) -> None:
    """What waits in the queue is dropped, what runs is asked to stop, what is still to enter will end there."""
    if prompt.state is State.CANCELED_ON_ENTRY or step.holds(prompt, Guard.COVERED):
        return
    if prompt.state is State.QUEUED:
        step.fire(prompt, Trigger.DROP)
        return
    if prompt.state is State.ACTIVE:
        step.effects.append(Stop(prompt.seq))
    step.change(prompt, revoked=True)


def can_take_in(port: FamilyPort, prompt: FamilySubject, variant: Variant) -> bool:
    """Nothing folds past an interrupt: a prompt that was accepted after it would be stopped with the turn."""
    return (actions.can_take_in(port, prompt, variant) and not port.held
            and not any(p.urgent and not port.holds(p, Guard.COVERED) for p in port.accepted))


CHANGED: Mapping[str, Mapping[str, Any]] = {  # fields of these actions
    "accept": {"apply": accept, "allowed": may_accept,
               "variants": (False, True, Feature.REJECT.value, Feature.INTERRUPT.value)},
    "enter": {"apply": enter, "reaches": Reach.CANCEL, "whom": observer.interrupted},
    "step": {"subject": can_take_in, "clauses": ("R9a", "R9c", "R35c")},
}


# --- Actions of its own -------------------------------------------------------------------------------------------

def revoke(step: FamilyPort, arg: Argument) -> None:
    """The prompt is canceled, and nobody else: dropped from the queue, asked to stop, or canceled on entry."""
    cancel_one(step, arg.subject)


HOLD = "hold"  # the variant of a stop that holds too


def stop(step: FamilyPort, arg: Argument) -> None:
    """The prompt in front is canceled: the active one or, in a session that is not held, the first that is still to
    enter. The queue stays. With `hold` the session is held too, and only the active prompt is canceled."""
    if arg.variant == HOLD:
        step.held = True
    for prompt in list(step.active) or ([] if step.held else sorted(step.accepted, key=place)[:1]):
        cancel_one(step, prompt)


def hold(step: FamilyPort, arg: Argument) -> None:
    """Nothing that waits starts or folds any more; a running turn goes on to its end."""
    step.held = True


def resume(step: FamilyPort, arg: Argument) -> None:
    """The hold is over: if nothing is active, the first in the queue becomes active."""
    step.held = False
    hand_off(step)


def replace(step: FamilyPort, arg: Argument) -> None:
    """The prompt has another text, and keeps its place."""
    step.change(arg.subject, version=arg.subject.version + 1)


def move_to_front(step: FamilyPort, arg: Argument) -> None:
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
           bound="revokes", clauses=("R30a", "R30b")),
    Action("stop", Actor.CLIENT, stop, "any", "R31", variants=(None, HOLD), reaches=Reach.CANCEL,
           whom=observer.in_front, bound="stops", clauses=("R31a", "R31b", "R31c")),
    Action("hold", Actor.CLIENT, hold, "any", "R32", bound="holds", clauses=("R32a", "R32b")),
    Action("resume", Actor.CLIENT, resume, "any", "R32", clauses=("R32d",)),
    Action("replace", Actor.CLIENT, replace, "p accepted or queued, not covered, not begun", "R33",
           lambda port, prompt, how: _waits(port, prompt, how) and not prompt.begun, bound="replaces",
           clauses=("R33a", "R33b")),
    Action("next", Actor.CLIENT, move_to_front, "p accepted or queued, not covered", "R34", _waits, bound="nexts",
           clauses=("R34a", "R34b")),
)

FEATURE_OF: Mapping[str, Feature] = {  # without which a protocol does not have the action
    "revoke": Feature.REVOKE, "stop": Feature.STOP, "hold": Feature.HOLD, "resume": Feature.HOLD,
    "replace": Feature.REPLACE, "next": Feature.NEXT}
_VARIANT_OF: Mapping[Any, Feature] = {
    Feature.REJECT.value: Feature.REJECT, Feature.INTERRUPT.value: Feature.INTERRUPT, HOLD: Feature.HOLD}


@cache
def actions_of(features: frozenset[Feature]) -> tuple[Action, ...]:
    """The actions of the protocol with these features, each with the variants that it has there."""
    if not features:
        return ACTIONS
    changed = (dataclasses.replace(a, **CHANGED.get(a.name, {})) for a in ACTIONS)
    return tuple(
        dataclasses.replace(a, variants=tuple(v for v in a.variants if _VARIANT_OF.get(v) in (None, *features)))
        for a in (*changed, *FAMILY_ACTIONS) if FEATURE_OF.get(a.name) in (None, *features))


ALL_ACTIONS = actions_of(frozenset(Feature))


# --- What its observer notes --------------------------------------------------------------------------------------

WISHES: Mapping[str, observer.Note] = {
    "accept": observer.accept, "stop": observer.stop, "hold": observer.hold, "resume": observer.resume,
    "replace": observer.replace, "next": observer.to_front}


def observe(features: frozenset[Feature], session: Any, action: str, prompt: Any, variant: Variant,
            effects: list[Effect]) -> Any:
    """The session after the action, with what its caller wanted, and which turns were seen to begin."""
    if Feature.REPLACE in features:
        session = observer.note_starts(session, [e.seq for e in effects if isinstance(e, Start)])
    return WISHES[action](session, prompt, variant) if action in WISHES else session
