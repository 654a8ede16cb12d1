"""What could stand in place of the mark: a flag, a counter, a list. Each remembers cancels in another way.

A server that has no mark must remember otherwise that a cancel came. These three protocols do, as carefully as one can:
a cancel is remembered only if an accepted prompt is there for it. The explorer shows what is wrong with each.
"""

from typing import NamedTuple

from . import actions
from .actions import Argument, Port, Subject
from .lifecycle import Guard, State, Trigger
from .protocol import REFERENCE


class Memory(NamedTuple):
    """What is remembered of cancels until the next crash."""

    waiting: int = 0  # how many prompts that have not entered are still to be canceled; of a flag: one
    asked: frozenset[int] = frozenset()  # the seqs of the turns that were asked to stop


def _memory(port: Port) -> Memory:
    return port.memory or Memory()


def _covered(port: Port, prompt: Subject) -> bool:
    memory = _memory(port)
    return prompt.seq in memory.asked if prompt.state is State.ACTIVE else bool(memory.waiting)


def _enter_and_consume(step: Port, arg: Argument) -> None:
    """As the reference; whoever finds that a cancel is remembered uses it up."""
    memory = _memory(step)
    actions.enter(step, arg)
    step.memory = memory._replace(waiting=max(0, memory.waiting - 1))


def _fail_and_consume(step: Port, arg: Argument) -> None:
    """As the reference; whoever finds that a cancel is remembered uses it up."""
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
    """The active prompt is asked to stop, the queue is dropped, and a flag is set if a prompt has still to enter."""
    _remember(step, int(bool(step.accepted)))


def cancel_by_counter(step: Port, arg: Argument) -> None:
    """The active prompt is asked to stop, the queue is dropped, and the prompts still to enter are counted."""
    _remember(step, len(step.accepted))


def cancel_by_list(step: Port, arg: Argument) -> None:
    """The active prompt is asked to stop, the queue is dropped, and every prompt that is not done is listed."""
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
