"""Alternative designs: ways to remember a cancel without the mark, and the queue policies of known servers."""

from typing import Any, NamedTuple

from .. import actions, family
from ..actions import Argument, Port, Subject, Variant
from ..effects import Acknowledge
from ..family import FAMILY_GUARDS, FamilyPort
from ..lifecycle import Guard, Outcome, Row, State, Trigger
from ..properties import Bounds
from ..protocol import REFERENCE
from .bugs import fold_everything
from .record import ProtocolVariant, is_row, rows_with

# --- A flag, a counter or a list in place of the mark -------------------------------------------------------------
#
# A server without a mark needs another way to remember a cancel. These three protocols are as careful as possible: they
# remember a cancel only if there is an accepted prompt for it. The explorer shows what is wrong with each.


class Memory(NamedTuple):
    """The remembered cancels, until the next crash."""

    waiting: int = 0  # how many prompts to cancel on entry; a flag counts at most one
    asked: frozenset[int] = frozenset()  # the seqs of the turns that were asked to stop


def _memory(port: Port) -> Memory:
    return port.memory or Memory()


def _covered(port: Port, prompt: Subject) -> bool:
    memory = _memory(port)
    return prompt.seq in memory.asked if prompt.state is State.ACTIVE else bool(memory.waiting)


def _enter_and_consume(step: Port, arg: Argument) -> None:
    """Enters as in the reference, and consumes one remembered cancel."""
    memory = _memory(step)
    actions.enter(step, arg)
    step.memory = memory._replace(waiting=max(0, memory.waiting - 1))


def _fail_and_consume(step: Port, arg: Argument) -> None:
    """Fails as in the reference, and consumes one remembered cancel."""
    memory = _memory(step)
    actions.fail(step, arg)
    step.memory = memory._replace(waiting=max(0, memory.waiting - 1))


def _remember(step: Port, waiting: int) -> None:
    actions.stop_active(step)
    asked = _memory(step).asked | {p.seq for p in step.active}
    step.memory = Memory(waiting, asked)
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


def cancel_by_flag(step: Port, arg: Argument) -> None:
    """Asks the active prompt to stop, drops the queue, and sets a flag if some prompt has not entered yet."""
    _remember(step, int(bool(step.accepted)))


def cancel_by_counter(step: Port, arg: Argument) -> None:
    """Asks the active prompt to stop, drops the queue, and counts the prompts that have not entered yet."""
    _remember(step, len(step.accepted))


def cancel_by_list(step: Port, arg: Argument) -> None:
    """Asks the active prompt to stop, drops the queue, and lists every unfinished prompt."""
    actions.stop_active(step)
    step.memory = (step.memory or frozenset()) | {p.seq for p in step.live}
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


def _listed(port: Port, prompt: Subject) -> bool:
    return prompt.seq in (port.memory or ())


FLAG = REFERENCE.changed(
    "flag", guards={Guard.COVERED: _covered}, cancel={"apply": cancel_by_flag},
    enter={"apply": _enter_and_consume}, fail={"apply": _fail_and_consume})
COUNTER = FLAG.changed("counter", cancel={"apply": cancel_by_counter})
LIST = REFERENCE.changed("list", guards={Guard.COVERED: _listed}, cancel={"apply": cancel_by_list})

IN_PLACE_OF_THE_MARK = (
    ProtocolVariant(FLAG, Bounds(2, cancels=1), {"no-poisoning": 4, "no-lost-cancel": 5},
                    sentence="a flag instead of the mark"),
    ProtocolVariant(COUNTER, Bounds(2, cancels=1), {"no-poisoning": 4, "no-lost-cancel": 5},
                    sentence="a counter instead of the mark"),
    ProtocolVariant(LIST, Bounds(2, cancels=1, crashes=1), {"no-lost-cancel": 4, "no-late-fold": 6},
                    sentence="a list in memory instead of the mark"),
)


# --- What known agent servers do with a queue, and with a second prompt -------------------------------------------
#
# Each policy is the reference with one call changed, checked against the reference's properties. The violations that
# the explorer finds are what the policy gives up. specs/family.md also shows how a client gets the same behaviour from
# the family, which gives up nothing because it has a separate call for it.


def cancel_keeps(step: FamilyPort, arg: Argument) -> None:
    """Asks only the active prompt to stop, and keeps the queue."""
    for prompt in list(step.active):
        family.cancel_one(step, prompt)


def cancel_holds(step: FamilyPort, arg: Argument) -> None:
    """Asks the active prompt to stop, and holds the queue until a client resumes it."""
    cancel_keeps(step, arg)
    step.held = True


def can_take_in_all(port: FamilyPort, prompt: Any, _: Variant) -> bool:
    return prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED) and bool(port.queue)


def accept_now(step: FamilyPort, arg: Argument) -> None:
    """Accepts every prompt as an interrupt."""
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    step.change(prompt, urgent=True, front=family.in_front_of_all(step))
    step.effects.append(Acknowledge(prompt.seq))


_UNREACHED = frozenset({
    "row enter→canceled_on_entry", "row fail→canceled_on_entry", "row settle→done", "row drop→done", "action settle"})

POLICIES = (
    ProtocolVariant(
        REFERENCE.changed("keep", None, FAMILY_GUARDS, cancel={"apply": cancel_keeps}),
        Bounds(2, cancels=1), {"no-lost-cancel": 3, "queue-dropped": 5, "no-late-fold": 6}, _UNREACHED,
        sentence="keep: a cancel stops only the running turn"),
    ProtocolVariant(
        REFERENCE.changed("hold", None, FAMILY_GUARDS, cancel={"apply": cancel_holds},
                          step={"subject": family.can_fold}),
        Bounds(2, cancels=1), {"no-lost-cancel": 3, "all-done": 3, "some-terminal": 3, "queue-dropped": 5}, _UNREACHED,
        sentence="hold: a cancel stops the running turn and holds the queue"),
    ProtocolVariant(
        REFERENCE.changed("merge", rows_with(Row(Trigger.FOLD, State.QUEUED, State.DONE, outcome=Outcome.FOLDED),
                                             without=is_row(Trigger.FOLD)),
                          step={"apply": fold_everything, "subject": can_take_in_all}),
        Bounds(2, cancels=1), {"no-absorption": 5},
        sentence="merge: queued prompts fold into the running turn, even those with a run id"),
    ProtocolVariant(
        REFERENCE.changed("reject", accept={"allowed": lambda port, _: not port.live}),
        Bounds(2), {},
        frozenset({"row enter→queued", "row start→active", "row fold→done", "outcome folded", "action step"}),
        sentence="reject: a busy session refuses the new prompt"),
    ProtocolVariant(
        REFERENCE.changed("interrupt", None, FAMILY_GUARDS, accept={"apply": accept_now},
                          enter={"apply": family.enter}),
        Bounds(2), {"cancel-stops": 4, "no-poisoning": 5},
        sentence="interrupt: the new prompt stops the running turn"),
)
