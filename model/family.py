"""The family: optional calls that extend the reference protocol. `Protocol(name, features=…)` enables them.

The family modifies the reference as any other variant does: it overrides guards, replaces fields of rows and actions,
and adds actions of its own. With no feature enabled it is the reference, state for state.

Four of its calls are primitive: `revoke` (cancel one prompt), `hold` with `resume`, `replace` and `next`. The other two
build on them. A stop revokes the prompt in front. An interrupt accepts a prompt at the front of the queue and, when
that prompt enters, revokes the running one. The seventh feature, `ask`, is in `ask`.
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
from .ask import with_asks
from .effects import Effect, Start, Stop
from .lifecycle import GUARD_MEANING, ROWS, Guard, Row, State, Symbol, Trigger


class Feature(Symbol):
    """An optional feature. The reference has none of them, `FAMILY` those that the runtime serves."""

    REVOKE = "revoke"  # cancel one prompt
    STOP = "stop"  # cancel the prompt in front, and keep the queue
    HOLD = "hold"  # pause the queue, and resume it
    REPLACE = "replace"  # replace the text of a prompt that has not started
    NEXT = "next"  # move a prompt to the front of the queue
    REJECT = "reject"  # accept a prompt only if the session is idle
    INTERRUPT = "interrupt"  # accept a prompt at the front, and stop the running turn
    ASK = "ask"  # a turn asks before it runs a tool, and clients answer


QUEUE_FEATURES = tuple(feature for feature in Feature if feature is not Feature.ASK)  # calls on prompts and sessions


class FamilyGuard(Symbol):
    """A guard that only rows of the family use."""

    HELD = "held"


HELD = FamilyGuard.HELD


class FamilySubject(Subject, Interface):
    """A family action's view of a prompt."""

    @property
    def revoked(self) -> bool:
        """Whether a call that targets this one prompt has canceled it."""
    @property
    def front(self) -> int:
        """0, or a counter set when the prompt was moved to the front. The highest comes first; 0 orders by seq."""
    @property
    def version(self) -> int:
        """How often its text was replaced."""
    @property
    def begun(self) -> bool:
        """Whether it has ever been active. Tracked only if texts can be replaced."""
    @property
    def urgent(self) -> bool:
        """Whether it is an interrupt, which stops the running turn when it enters."""


class FamilyPort(Port, Interface):
    """A family action's view of a session during one step."""

    held: bool  # no waiting prompt may start or fold

    def change(self, prompt: Any, **fields: Any) -> None:
        """Set `revoked`, `front`, `version`, `begun` or `urgent` of the prompt."""


# --- Guards, and the rows that use them ---------------------------------------------------------------------------

def place(prompt: FamilySubject) -> tuple[int, int]:
    """The prompt's position in the queue, as a sort key: the lowest is next."""
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
    Guard.BUSY: "the session has an active prompt, is held, or is down (it is still down while `recover` runs)",
    Guard.FIRST: "no queued prompt of the session is ahead of it: moved to the front later, or else with a lower seq",
    HELD: "the session is held",
}

GOES_ON = Row(Trigger.REQUEUE, State.ACTIVE, State.ACTIVE, when=(HELD,), unless=(Guard.COVERED,), rule="R32c")


@cache
def rows_of(features: frozenset[Feature]) -> tuple[Row, ...]:
    """The rows of a protocol with these features. With hold, a turn that must resume stays active in a held session."""
    if Feature.HOLD not in features:
        return ROWS
    rows: list[Row] = []
    for row in ROWS:
        rows += ([dataclasses.replace(row, unless=(*row.unless, HELD)), GOES_ON] if row.trigger is Trigger.REQUEUE
                 else [row])
    return tuple(rows)


# --- Actions of the reference, overridden -------------------------------------------------------------------------

RUN_ID = ", run id"  # suffix of the variant of a reject or an interrupt that has a run id


def accept(step: FamilyPort, arg: Argument) -> None:
    """Accepts the prompt with the next seq, and acknowledges it once it is journaled."""
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
    """A session's state can only rule out a prompt sent with reject, which requires an idle session."""
    return not accepted_as(variant, Feature.REJECT) or not (step.held or step.live)


def enter(step: FamilyPort, arg: Argument) -> None:
    """Cancels the prompt on entry if the mark covers it, queues it if the session is busy, and starts it otherwise. An
    interrupt that is neither covered nor held first asks the running turn of an earlier prompt to stop."""
    prompt = arg.subject
    if prompt.urgent and not step.held and not step.holds(prompt, Guard.COVERED):
        for running in step.active:
            if running.seq < prompt.seq:
                cancel_one(step, running)
    actions.enter(step, arg)


def cancel_one(step: FamilyPort, prompt: Any) -> None:
    """Drop the prompt if it is queued, ask it to stop if it is active, and otherwise let it be canceled on entry."""
    if prompt.state is State.CANCELED_ON_ENTRY or step.holds(prompt, Guard.COVERED):
        return
    if prompt.state is State.QUEUED:
        step.fire(prompt, Trigger.DROP)
        return
    if prompt.state is State.ACTIVE:
        step.effects.append(Stop(prompt.seq))
    step.change(prompt, revoked=True)


def can_fold(port: FamilyPort, prompt: FamilySubject, variant: Variant) -> bool:
    """No folding while an interrupt is pending: the interrupt would stop the turn, and with it the folded prompt."""
    return (actions.can_fold(port, prompt, variant) and not port.held
            and not any(p.urgent and not port.holds(p, Guard.COVERED) for p in port.accepted))


CHANGED: Mapping[str, Mapping[str, Any]] = {  # the overridden fields, by action
    "accept": {"apply": accept, "allowed": may_accept,
               "variants": (False, True, Feature.REJECT.value, Feature.INTERRUPT.value)},
    "enter": {"apply": enter, "reaches": Reach.CANCEL, "targets": observer.interrupted},
    "step": {"subject": can_fold, "clauses": ("R9a", "R9c", "R35c")},
}


# --- Actions of the family ----------------------------------------------------------------------------------------

def revoke(step: FamilyPort, arg: Argument) -> None:
    """Cancels this prompt and no other: drops it from the queue, asks it to stop, or lets it be canceled on entry."""
    cancel_one(step, arg.subject)


HOLD = "hold"  # the variant of a stop that also holds the session


def stop(step: FamilyPort, arg: Argument) -> None:
    """Cancels the prompt in front: the active one or, if none is active and the session is not held, the first one that
    has not entered yet. Keeps the queue. With `hold`, also holds the session and cancels only the active prompt."""
    if arg.variant == HOLD:
        step.held = True
    for prompt in list(step.active) or ([] if step.held else sorted(step.accepted, key=place)[:1]):
        cancel_one(step, prompt)


def hold(step: FamilyPort, arg: Argument) -> None:
    """Keeps waiting prompts from starting or folding. A running turn continues."""
    step.held = True


def resume(step: FamilyPort, arg: Argument) -> None:
    """Ends the hold and, if no prompt is active, starts the first queued prompt."""
    step.held = False
    hand_off(step)


def replace(step: FamilyPort, arg: Argument) -> None:
    """Replaces the prompt's text. The prompt keeps its position."""
    step.change(arg.subject, version=arg.subject.version + 1)


def move_to_front(step: FamilyPort, arg: Argument) -> None:
    """Moves the prompt ahead of all unfinished prompts. Does nothing if it is already there."""
    prompt = arg.subject
    if any(place(other) < place(prompt) for other in step.live):
        step.change(prompt, front=in_front_of_all(step))


def _waits(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state in (State.ACCEPTED, State.QUEUED) and not port.holds(prompt, Guard.COVERED)


def _is_live(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state is not State.DONE


FAMILY_ACTIONS: tuple[Action, ...] = (
    Action("revoke", Actor.CLIENT, revoke, "p not done", "R30", _is_live, reaches=Reach.CANCEL, targets=observer.named,
           bound="revokes", clauses=("R30a", "R30b")),
    Action("stop", Actor.CLIENT, stop, "any", "R31", variants=(None, HOLD), reaches=Reach.CANCEL,
           targets=observer.in_front, bound="stops", clauses=("R31a", "R31b", "R31c")),
    Action("hold", Actor.CLIENT, hold, "any", "R32", bound="holds", clauses=("R32a", "R32b")),
    Action("resume", Actor.CLIENT, resume, "any", "R32", clauses=("R32d",)),
    Action("replace", Actor.CLIENT, replace, "p accepted or queued, not covered, never started", "R33",
           lambda port, prompt, how: _waits(port, prompt, how) and not prompt.begun, bound="replaces",
           clauses=("R33a", "R33b")),
    Action("next", Actor.CLIENT, move_to_front, "p accepted or queued, not covered", "R34", _waits, bound="nexts",
           clauses=("R34a", "R34b")),
)

FEATURE_OF: Mapping[str, Feature] = {  # the feature that enables each action
    "revoke": Feature.REVOKE, "stop": Feature.STOP, "hold": Feature.HOLD, "resume": Feature.HOLD,
    "replace": Feature.REPLACE, "next": Feature.NEXT,
    "ask": Feature.ASK, "answer": Feature.ASK, "run": Feature.ASK, "withdraw": Feature.ASK}
_VARIANT_OF: Mapping[Any, Feature] = {
    Feature.REJECT.value: Feature.REJECT, Feature.INTERRUPT.value: Feature.INTERRUPT, HOLD: Feature.HOLD}


@cache
def actions_of(features: frozenset[Feature]) -> tuple[Action, ...]:
    """The actions of a protocol with these features, each with the variants that the features enable."""
    if not features:
        return ACTIONS
    changed = (dataclasses.replace(a, **CHANGED.get(a.name, {})) for a in ACTIONS)
    enabled = tuple(
        dataclasses.replace(a, variants=tuple(v for v in a.variants if _VARIANT_OF.get(v) in (None, *features)))
        for a in (*changed, *FAMILY_ACTIONS) if FEATURE_OF.get(a.name) in (None, *features))
    return with_asks(enabled) if Feature.ASK in features else enabled


ALL_ACTIONS = actions_of(frozenset(Feature))


# --- History kept for the properties ------------------------------------------------------------------------------

WISHES: Mapping[str, observer.Note] = {
    "accept": observer.accept, "stop": observer.stop, "hold": observer.hold, "resume": observer.resume,
    "replace": observer.replace, "next": observer.to_front}


def observe(features: frozenset[Feature], session: Any, action: str, prompt: Any, variant: Variant,
            effects: list[Effect]) -> Any:
    """Add to the session's history what the caller requested, which turns started, and what happened to questions."""
    if Feature.REPLACE in features:
        session = observer.note_starts(session, [e.seq for e in effects if isinstance(e, Start)])
    if action in WISHES:
        session = WISHES[action](session, prompt, variant)
    return observer.note_asks(session, action, prompt, variant, effects) if Feature.ASK in features else session
