"""What known agent servers do with a queue and with a second prompt, as protocols.

Each policy is the reference with one call changed, and is judged by the reference's own words: so what the explorer
finds is what a policy gives up. Beside it stands how a client gets the same from the family, where nothing is given up
because the call says what it means.
"""

from dataclasses import dataclass
from typing import Any

from .. import family
from ..actions import Argument, Variant
from ..effects import Acknowledge, Fold
from ..family import FAMILY_GUARDS
from ..family import FamilyPort as Port
from ..lifecycle import ROWS, Guard, Outcome, Row, State, Trigger
from ..properties import Bounds
from ..protocol import REFERENCE, Protocol


@dataclass(frozen=True)
class Policy:
    """One answer to one question."""

    question: str
    answer: str
    protocol: Protocol
    bounds: Bounds
    in_family: str  # how to ask the family for it


CANCEL = "What does a cancel do to the queue?"
BUSY = "What happens to a prompt that comes while another runs?"


def cancel_keeps(step: Port, arg: Argument) -> None:
    """Only the active prompt is asked to stop; the rest goes on."""
    for prompt in list(step.active):
        family.cancel_one(step, prompt)


def cancel_holds(step: Port, arg: Argument) -> None:
    """The active prompt is asked to stop, and nothing starts before somebody says so."""
    cancel_keeps(step, arg)
    step.held = True


def take_in_all(step: Port, arg: Argument) -> None:
    """Whatever waits is merged into the running turn."""
    for prompt in list(step.queue):
        step.effects.append(Fold(prompt.seq, into=arg.subject.seq))
        step.fire(prompt, Trigger.FOLD)


def can_take_in_all(port: Port, prompt: Any, _: Variant) -> bool:
    return prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED) and bool(port.queue)


def accept_now(step: Port, arg: Argument) -> None:
    """Every prompt is accepted as an interrupt."""
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    step.change(prompt, urgent=True, front=family.in_front_of_all(step))
    step.effects.append(Acknowledge(prompt.seq))


_MERGED = (*(row for row in ROWS if row.trigger is not Trigger.FOLD),
           Row(Trigger.FOLD, State.QUEUED, State.DONE, outcome=Outcome.FOLDED))

POLICIES = (
    Policy(CANCEL, "drop: what was accepted before the cancel ends canceled", REFERENCE, Bounds(2, cancels=1),
           "`cancel`"),
    Policy(CANCEL, "keep: only the running turn is stopped",
           REFERENCE.changed("keep", None, FAMILY_GUARDS, cancel={"apply": cancel_keeps}), Bounds(2, cancels=1),
           "`stop`"),
    Policy(CANCEL, "hold: the running turn is stopped, and the queue waits",
           REFERENCE.changed("hold", None, FAMILY_GUARDS, cancel={"apply": cancel_holds},
                             step={"subject": family.can_take_in}), Bounds(2, cancels=1), "`stop` with hold"),
    Policy(CANCEL, "merge: what waits has been taken in by the running turn, whatever its run id",
           REFERENCE.changed("merge", _MERGED, step={"apply": take_in_all, "subject": can_take_in_all}),
           Bounds(2, cancels=1), "prompts without a run id"),
    Policy(BUSY, "enqueue: it waits", REFERENCE, Bounds(2), "`if_busy: queue`"),
    Policy(BUSY, "reject: it is refused",
           REFERENCE.changed("reject", accept={"allowed": lambda port, _: not port.live}), Bounds(2),
           "`if_busy: reject`"),
    Policy(BUSY, "interrupt: what runs is stopped for it",
           REFERENCE.changed("interrupt", None, FAMILY_GUARDS, accept={"apply": accept_now},
                             enter={"apply": family.enter}), Bounds(2), "`if_busy: interrupt`"),
)
