"""Plausible mistakes in the family: each is a complete protocol, with every property that it violates.

Each property comes with the length of its shortest trace. The tests check both against the explorer. A mistake's name
is its id on the command line; `sentence` describes it better where the name is unclear.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .. import actions, family
from ..actions import Action, Actor, Argument, Subject, Variant
from ..effects import Acknowledge, Stop
from ..family import FamilyPort as Port
from ..family import Feature, accepted_as
from ..lifecycle import ROWS, Guard, Outcome, Row, State, Symbol, Trigger
from ..properties import Bounds
from ..protocol import Protocol
from .record import Apply, ProtocolVariant, after, is_row, rows_with

REVOKE, STOP, HOLD, REPLACE = Feature.REVOKE, Feature.STOP, Feature.HOLD, Feature.REPLACE
NEXT, REJECT, INTERRUPT = Feature.NEXT, Feature.REJECT, Feature.INTERRUPT


MISTAKES: list[ProtocolVariant] = []


def make_mistake(
    name: str, features: set[Feature], bounds: Bounds, breaks: Mapping[str, int], *,
    rows: tuple[Row, ...] = ROWS, guards: Mapping[Symbol, actions.Answer] | None = None,
    more: tuple[Action, ...] = (), unmet: tuple[str, ...] = (), sentence: str = "", **changes: Mapping[str, Any],
) -> ProtocolVariant:
    """A mistake: replaced rows, overridden guards and fields of actions, and additional actions."""
    right = Protocol(name, rows=rows, features=frozenset(features))
    wrong = right.changed(name, None, guards, **changes)
    return ProtocolVariant(
        replace(wrong, actions=(*wrong.actions, *more)), bounds, breaks, frozenset(unmet), sentence)


def mistake(
    name: str, features: set[Feature], bounds: Bounds, breaks: Mapping[str, int], **changes: Any,
) -> None:
    """Register a mistake."""
    MISTAKES.append(make_mistake(name, features, bounds, breaks, **changes))


def later(arrive: Apply) -> tuple[Action, ...]:
    """An additional action that carries out, in a step of its own, what a call only noted in the session's memory."""
    def apply(step: Port, arg: Argument) -> None:
        step.memory = None
        arrive(step, arg)

    return (Action("arrive", Actor.SERVER, apply, "noted", "", allowed=lambda step, _: step.memory is not None),)


def forget(**fields: Any) -> dict[str, Apply]:
    """A crash that resets these fields of waiting prompts."""
    def crash(step: Port, arg: Argument) -> None:
        for prompt in [*step.accepted, *step.queue]:
            step.change(prompt, **fields)
        actions.crash(step, arg)

    return {"apply": crash}


def ignoring_hold(apply: Apply) -> dict[str, Apply]:
    def applied(step: Port, arg: Argument) -> None:
        held, step.held = step.held, False
        apply(step, arg)
        step.held = held

    return {"apply": applied}


def note(step: Port, arg: Argument) -> None:
    step.memory = True


# --- revoke

def revoke_by_mark(step: Port, arg: Argument) -> None:
    if arg.subject.state is State.QUEUED:
        step.fire(arg.subject, Trigger.DROP)
    elif not step.holds(arg.subject, Guard.COVERED):
        if arg.subject.state is State.ACTIVE:
            step.effects.append(Stop(arg.subject.seq))
        step.mark = max(step.mark, arg.subject.seq)


mistake("revoke raises the mark", {REVOKE}, Bounds(2, revokes=1),
        {"revoke-exact": 3, "no-poisoning": 4}, revoke={"apply": revoke_by_mark})


def revoke_queue_and_turn(step: Port, arg: Argument) -> None:
    if arg.subject.state is not State.ACCEPTED:
        family.revoke(step, arg)


mistake("revoke looks at the queue and the turn only", {REVOKE}, Bounds(1, revokes=1),
        {"revoke-exact": 2, "no-lost-cancel": 3}, sentence="revoke ignores prompts that have not entered yet",
        revoke={"apply": revoke_queue_and_turn})
mistake("revoke is answered before it is journaled", {REVOKE}, Bounds(1, revokes=1, crashes=1), {"no-lost-cancel": 4},
        crash=forget(revoked=False))


# --- stop

def stop_what_is_active(step: Port, arg: Argument) -> None:
    for prompt in list(step.active):
        family.cancel_one(step, prompt)


mistake("stop asks only what is active", {STOP}, Bounds(1, stops=1), {"stop-heard": 2, "no-lost-cancel": 3},
        sentence="stop considers only the active prompt", stop={"apply": stop_what_is_active})


def stop_by_mark(step: Port, arg: Argument) -> None:
    actions.stop_active(step)
    step.mark = max([step.mark, *(p.seq for p in step.active or step.accepted[:1])])


mistake("stop raises the mark", {STOP}, Bounds(2, stops=1),
        {"keeps-queue": 4, "no-poisoning": 5}, stop={"apply": stop_by_mark})


def stop_next_one_too(step: Port, arg: Argument) -> None:
    """A turn that ends canceled consumes the flag; a turn with another outcome leaves it to the next turn."""
    if step.memory and arg.variant not in (None, Outcome.CANCELED):
        stop_what_is_active(step, arg)
    step.memory = None


mistake("stop is a flag of the session", {STOP}, Bounds(2, stops=1), {"cancel-stops": 6, "no-poisoning": 7},
        sentence="stop sets a flag on the session",
        stop=after(family.stop, note), finish=after(actions.finish, stop_next_one_too))
mistake("stop is done later, to whoever is active", {STOP}, Bounds(1, stops=1),
        {"stop-heard": 2, "cancel-stops": 3, "no-lost-cancel": 3, "no-poisoning": 5},
        sentence="stop takes effect in a later step, on the prompt that is active then",
        stop={"apply": note}, more=later(stop_what_is_active))


def stop_without_hold(step: Port, arg: Argument) -> None:
    stop_what_is_active(step, arg)
    if arg.variant == family.HOLD:
        note(step, arg)


mistake("stop and hold are two steps", {STOP, HOLD}, Bounds(2, stops=1), {"held": 3, "all-done": 5, "some-terminal": 5},
        stop={"apply": stop_without_hold, "variants": (family.HOLD,)}, more=later(family.hold))


# --- hold

mistake("hold is not asked on entry", {HOLD}, Bounds(1, holds=1), {"held": 3},
        sentence="entry does not check the hold", enter=ignoring_hold(actions.enter))
mistake("hold is not asked when a turn ends", {HOLD}, Bounds(2, holds=1), {"held": 6},
        sentence="the handoff after a turn does not check the hold", finish=ignoring_hold(actions.finish))
mistake("hold is not asked when a turn goes on", {HOLD}, Bounds(2, holds=1, requeues=1), {"held": 6},
        sentence="the handoff after a requeue does not check the hold",
        requeue=ignoring_hold(actions.requeue), unmet=("row requeue→active",))
mistake("hold parks a turn that goes on", {HOLD}, Bounds(1, holds=1, requeues=1), {"held": 4},
        sentence="hold queues a turn that resumes after compaction",
        rows=rows_with(Row(Trigger.REQUEUE, State.ACTIVE, State.QUEUED, unless=(Guard.COVERED,)),
                       without=is_row(Trigger.REQUEUE)))


def recover_released(step: Port, arg: Argument) -> None:
    step.held = False
    actions.recover(step, arg)


mistake("recovery forgets the hold", {HOLD}, Bounds(1, holds=1, crashes=1),
        {"held": 4}, sentence="recovery releases the hold", recover={"apply": recover_released})


def take_in_held(port: Port, prompt: Subject, _: Variant) -> bool:
    return (prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED) and bool(actions.foldable(port)))


mistake("a held queue folds", {HOLD}, Bounds(2, holds=1), {"held": 6},
        sentence="prompts of a held queue fold", step={"subject": take_in_held})


def resume_alone(step: Port, arg: Argument) -> None:
    step.held = False


mistake("resume forgets the handoff", {HOLD}, Bounds(1, holds=1), {"all-done": 4, "some-terminal": 4},
        sentence="resume does not hand off", resume={"apply": resume_alone})
mistake("cancel releases the hold", {HOLD}, Bounds(1, holds=1, cancels=1),
        {"idle-cancel-noop": 2, "held": 4}, cancel=after(actions.cancel, resume_alone))


# --- replace

def uncovered(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state is not State.CANCELED_ON_ENTRY and not port.holds(prompt, Guard.COVERED)


def waiting(port: Port, prompt: Subject, variant: Variant) -> bool:
    return prompt.state in (State.ACCEPTED, State.QUEUED)


def waiting_uncovered(port: Port, prompt: Subject, variant: Variant) -> bool:
    return waiting(port, prompt, variant) and uncovered(port, prompt, variant)


mistake("replace is taken after the start", {REPLACE}, Bounds(1, replaces=1), {"edited": 3},
        sentence="replace is accepted after the prompt has started", replace={"subject": uncovered})
mistake("replace is taken by a prompt that was requeued", {REPLACE}, Bounds(2, requeues=1, replaces=1), {"edited": 6},
        sentence="replace is accepted for a requeued prompt", replace={"subject": waiting_uncovered})


def replace_anew(step: Port, arg: Argument) -> None:
    step.change(arg.subject, version=arg.subject.version + 1, revoked=False)


mistake("replace deletes and inserts", {REVOKE, REPLACE}, Bounds(1, revokes=1, replaces=1),
        {"edited": 3, "no-lost-cancel": 4}, sentence="replace deletes the prompt and inserts a new one",
        replace={"apply": replace_anew, "subject": waiting})
mistake("replace is not journaled", {REPLACE}, Bounds(1, replaces=1, crashes=1), {"edited": 4}, crash=forget(version=0))


# --- next

mistake("next is not journaled", {NEXT}, Bounds(2, nexts=1, crashes=1), {"fifo": 5}, crash=forget(front=0))


def queue_first(step: Port, arg: Argument) -> None:
    if arg.subject.state is State.ACCEPTED and step.active:
        step.fire(arg.subject, Trigger.REQUEUE)
    family.move_to_front(step, arg)


mistake("next queues what is accepted, covered or not", {NEXT}, Bounds(2, cancels=1, nexts=1), {"no-lost-cancel": 6},
        sentence="next queues an accepted prompt without checking the mark",
        rows=rows_with(Row(Trigger.REQUEUE, State.ACCEPTED, State.QUEUED)),
        next={"apply": queue_first, "subject": waiting})


def requeue_in_front(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, Trigger.REQUEUE)
    step.change(arg.subject, front=family.in_front_of_all(step))
    actions.hand_off(step)


mistake("a turn that goes on goes to the front", {NEXT}, Bounds(2, requeues=1, nexts=1), {"fifo": 5},
        sentence="a turn that resumes after compaction moves to the front",
        requeue={"apply": requeue_in_front})


def hand_off_by_seq(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    if step.queue:
        step.fire(min(step.queue, key=lambda p: p.seq), Trigger.START)


mistake("the handoff goes by seq", {NEXT}, Bounds(3, nexts=1), {"fifo": 8},
        sentence="the handoff orders by seq only",
        rows=rows_with(Row(Trigger.START, State.QUEUED, State.ACTIVE, unless=(Guard.BUSY,)),
                       without=is_row(Trigger.START)),
        finish={"apply": hand_off_by_seq})


# --- interrupt

def accept_and_stop(step: Port, arg: Argument) -> None:
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    if accepted_as(arg.variant, INTERRUPT):
        step.change(prompt, front=family.in_front_of_all(step))
        stop_what_is_active(step, arg)
    step.effects.append(Acknowledge(prompt.seq))


mistake("an interrupt decides where it is accepted", {INTERRUPT}, Bounds(2),
        {"cancel-stops": 3, "no-poisoning": 4, "send-now": 4, "no-late-fold": 5},
        sentence="an interrupt takes effect on acceptance instead of on entry", accept={"apply": accept_and_stop})


def enter_with(stops: Callable[[Port, Any], list[Any]]) -> dict[str, Apply]:
    """An entry that cancels the wrong prompts."""
    def enter(step: Port, arg: Argument) -> None:
        for prompt in stops(step, arg.subject) if arg.subject.urgent else ():
            family.cancel_one(step, prompt)
        step.fire(arg.subject, Trigger.ENTER)

    return {"apply": enter}


def earlier(step: Port, prompt: Any) -> list[Any]:
    return [p for p in step.active if p.seq < prompt.seq]


mistake("an interrupt stops whoever is active", {INTERRUPT}, Bounds(2), {"cancel-stops": 4, "no-poisoning": 5},
        sentence="an interrupt also stops a prompt that was accepted after it",
        enter=enter_with(lambda step, p: [] if step.holds(p, Guard.COVERED) else list(step.active)))
mistake("a covered interrupt interrupts", {REVOKE, INTERRUPT}, Bounds(2, revokes=1),
        {"cancel-stops": 5, "no-poisoning": 6}, sentence="a canceled interrupt still stops the running turn",
        enter=enter_with(earlier))
mistake("an interrupt interrupts while held", {HOLD, INTERRUPT}, Bounds(2, holds=1),
        {"cancel-stops": 5, "no-poisoning": 6}, sentence="an interrupt stops the running turn of a held session",
        enter=enter_with(lambda step, p: [] if step.holds(p, Guard.COVERED) else earlier(step, p)))


def take_in_past_interrupt(port: Port, prompt: Subject, variant: Variant) -> bool:
    return take_in_held(port, prompt, variant) and not port.held


mistake("folding goes on while an interrupt is to enter", {INTERRUPT}, Bounds(3), {"no-late-fold": 6},
        sentence="prompts fold while an interrupt is pending",
        step={"subject": take_in_past_interrupt})


def accept_at_its_seq(step: Port, arg: Argument) -> None:
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    if accepted_as(arg.variant, INTERRUPT):
        step.change(prompt, urgent=True)
    step.effects.append(Acknowledge(prompt.seq))


def enter_at_front(step: Port, arg: Argument) -> None:
    family.enter(step, arg)
    for prompt in step.queue:
        if prompt.seq == arg.subject.seq and prompt.urgent:
            step.change(prompt, front=family.in_front_of_all(step))


mistake("the place of an interrupt is given on entry", {INTERRUPT}, Bounds(3), {"fifo": 7},
        sentence="an interrupt gets its queue position on entry instead of on acceptance",
        accept={"apply": accept_at_its_seq}, enter={"apply": enter_at_front})
mistake("an interrupt cancels all before it", {INTERRUPT}, Bounds(3), {"no-poisoning": 4},
        sentence="an interrupt cancels all earlier prompts",
        enter=enter_with(lambda step, p: [q for q in step.live if q.seq < p.seq]))
mistake("an interrupt starts beside the stopping turn", {INTERRUPT}, Bounds(2), {"single-active": 4},
        sentence="an interrupt starts while the turn that it stops is still running",
        guards={Guard.BUSY: lambda port, prompt: not prompt.urgent and family.busy(port, prompt)})


# --- reject

mistake("reject asks whether the session is busy", {REJECT}, Bounds(2), {"reject": 2},
        sentence="reject checks only for an active prompt",
        accept={"allowed": lambda port, variant: not accepted_as(variant, REJECT) or not port.active})
mistake("reject looks first", {REJECT}, Bounds(2), {"reject": 3},
        sentence="reject checks for an idle session in a separate step",
        accept={"allowed": lambda port, variant: not accepted_as(variant, REJECT) or port.memory is not None},
        more=(Action("look", Actor.CLIENT, note, "idle", "", allowed=lambda port, _: not port.live),))
mistake("reject forgets the hold", {REJECT, HOLD}, Bounds(1, holds=1), {"reject": 2},
        sentence="reject does not check the hold",
        accept={"allowed": lambda port, variant: not accepted_as(variant, REJECT) or not port.live})
