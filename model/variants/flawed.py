"""The flaws of the original that one step can show, each as a change of the reference.

The original's races need several steps and are not here. Five more flaws are also common bugs, and stand in `bugs`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import actions
from ..actions import Argument, Port, Subject, Variant
from ..effects import End
from ..lifecycle import ROWS, Guard, Outcome, Row, State, Trigger
from ..properties import Bounds
from ..protocol import REFERENCE
from .record import Apply, ProtocolVariant, is_row, rows_with, without

FLAWED: list[ProtocolVariant] = []


TWO = Bounds(2, cancels=1, requeues=1)


def flawed(
    name: str, breaks: Mapping[str, int], bounds: Bounds = TWO, *, rows: tuple[Row, ...] = ROWS,
    **changes: dict[str, Any],
) -> None:
    FLAWED.append(ProtocolVariant(REFERENCE.changed(name, rows, None, **changes), bounds, breaks, flaw=name))


def seeing(apply: Apply, mark: Callable[[Port, Argument], int] = lambda step, arg: 0) -> dict[str, Any]:
    """The action, applied with a different mark. An active prompt continues as if it had not been asked to stop."""
    def applied(step: Port, arg: Argument) -> None:
        kept, step.mark = step.mark, mark(step, arg)
        apply(step, arg)
        step.mark = kept

    return {"apply": applied}


def is_covered(step: Port, arg: Argument) -> bool:
    return step.holds(arg.subject, Guard.COVERED)


def silence(step: Port, seqs: Iterable[int]) -> None:
    """Remove the terminal events of these prompts."""
    step.effects[:] = [e for e in step.effects if not (isinstance(e, End) and e.seq in seqs)]


# --- Lost cancels

def cancel_with_flag(step: Port, arg: Argument) -> None:
    step.memory = True
    actions.cancel(step, arg)


def mark_if_flagged(step: Port, arg: Argument) -> int:
    """The first covered prompt consumes the flag."""
    asked, step.memory = step.memory, step.memory and not is_covered(step, arg)
    return step.mark if asked else 0


flawed("sibling-survives-cancel", {"no-lost-cancel": 5}, cancel={"apply": cancel_with_flag},
       enter=seeing(actions.enter, mark_if_flagged))


def finish_clears_mark(step: Port, arg: Argument) -> None:
    actions.finish(step, arg)
    step.mark = 0


def while_active(port: Port, prompt: Subject, variant: Variant) -> bool:
    return prompt.state is State.ACTIVE


flawed("handoff-eats-cancel", {"no-lost-cancel": 6}, finish={"apply": finish_clears_mark})
flawed("cancel-during-summary", {"no-lost-cancel": 4},
       requeue={**seeing(actions.requeue), "subject": while_active})


# --- Cancels that reach too far

def cancel_counts(step: Port, arg: Argument) -> None:
    """Counts the prompts to cancel, and then cancels that many, whichever come first."""
    uncovered = [p for p in step.accepted if not step.holds(p, Guard.COVERED)]
    step.memory = (step.memory or 0) + len(uncovered)
    actions.cancel(step, arg)


def mark_if_due(step: Port, arg: Argument) -> int:
    due = step.memory or 0
    step.memory = max(0, due - 1)
    return int(arg.subject.seq) if due else 0


def fail_counts(step: Port, arg: Argument) -> None:
    step.memory = (step.memory or 0) - is_covered(step, arg)
    actions.fail(step, arg)


flawed("later-prompt-eats-cancel", {"no-poisoning": 4, "no-lost-cancel": 5}, cancel={"apply": cancel_counts},
       enter=seeing(actions.enter, mark_if_due), fail={"apply": fail_counts})


def fail_leaves_flag(step: Port, arg: Argument) -> None:
    step.memory = is_covered(step, arg)
    actions.fail(step, arg)


def mark_by_stale_flag(step: Port, arg: Argument) -> int:
    """The flag of a prompt that failed before it entered is still set."""
    stale = step.memory and not is_covered(step, arg)
    step.memory = step.memory and is_covered(step, arg)
    return arg.subject.seq if stale else step.mark


flawed("stale-flag-poisons-next", {"no-poisoning": 5}, fail={"apply": fail_leaves_flag},
       enter=seeing(actions.enter, mark_by_stale_flag))


def hand_off_without_seq(step: Port) -> None:
    """Treats a queued prompt without a run id as seq 0, which any mark covers."""
    for prompt in [q for q in step.queue if not q.run_id and step.mark]:
        step.fire(prompt, Trigger.DROP)
    actions.hand_off(step)


def finish_without_seq(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    hand_off_without_seq(step)


def requeue_without_seq(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, Trigger.REQUEUE)
    hand_off_without_seq(step)


flawed("in-process-prompt-poisoned", {"no-poisoning": 5}, finish={"apply": finish_without_seq},
       requeue={"apply": requeue_without_seq})


def requeue_drops(step: Port, arg: Argument) -> None:
    """Treats a requeued prompt as seq 0, which any mark covers."""
    step.fire(arg.subject, Trigger.REQUEUE)
    for prompt in [q for q in step.queue if q.seq == arg.subject.seq and step.mark]:
        step.fire(prompt, Trigger.DROP)
    actions.hand_off(step)


flawed("continuation-poisoned", {"no-poisoning": 5}, requeue={"apply": requeue_drops})


# --- Missing terminal events

flawed("silent-cancel-on-entry", {"some-terminal": 4}, settle=without(actions.settle, End))


def drop_in_silence(run_id: bool) -> dict[str, Any]:
    def cancel(step: Port, arg: Argument) -> None:
        dropped = [q.seq for q in step.queue if bool(q.run_id) is run_id]
        actions.cancel(step, arg)
        silence(step, dropped)

    return {"apply": cancel}


flawed("run-id-dropped-silently", {"some-terminal": 6}, cancel=drop_in_silence(run_id=True))
flawed("anonymous-drop-in-silence", {"some-terminal": 6}, cancel=drop_in_silence(run_id=False))


def end_given_up(run_id: bool) -> dict[str, Any]:
    """A prompt that hands off does not publish its own terminal event."""
    def finish(step: Port, arg: Argument) -> None:
        actions.finish(step, arg)
        if step.active and bool(arg.subject.run_id) is run_id:
            silence(step, [arg.subject.seq])

    return {"apply": finish}


flawed("outer-event-suppressed", {"prompt-terminal": 5, "some-terminal": 6}, finish=end_given_up(run_id=True))
flawed("anonymous-end-suppressed", {"prompt-terminal": 5, "some-terminal": 6}, finish=end_given_up(run_id=False))


def fail_in_silence(step: Port, arg: Argument) -> None:
    """A prompt that fails right after a handoff started it publishes no terminal event."""
    actions.finish(step, arg)
    if arg.variant is Outcome.ERROR and step.memory == arg.subject.seq:
        silence(step, [arg.subject.seq])
    step.memory = next((p.seq for p in step.active), None)


flawed("popped-prompt-fails-early", {"some-terminal": 6}, finish={"apply": fail_in_silence})


# --- Stranded prompts, wrong order, late events

def cancel_strands(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    if arg.variant is not Outcome.CANCELED:
        actions.hand_off(step)


flawed("queue-stranded-by-cancel", {"all-done": 6, "some-terminal": 6}, finish={"apply": cancel_strands})


def enter_in_order(step: Port, arg: Argument) -> None:
    step.memory = (*(step.memory or ()), arg.subject.seq)
    actions.enter(step, arg)


def finish_in_order_of_entry(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    entered = step.memory or ()
    if step.queue:
        step.fire(min(step.queue, key=lambda q: entered.index(q.seq) if q.seq in entered else -1), Trigger.START)


flawed("queue-in-entry-order", {"fifo": 7}, Bounds(3),
       rows=rows_with(Row(Trigger.START, State.QUEUED, State.ACTIVE, unless=(Guard.BUSY,)),
                      without=is_row(Trigger.START)),
       enter={"apply": enter_in_order}, finish={"apply": finish_in_order_of_entry})


def finish_later(step: Port, arg: Argument) -> None:
    """Terminal events are held back until the queue is empty."""
    actions.finish(step, arg)
    kept = (*(step.memory or ()), *(e for e in step.effects if isinstance(e, End)))
    silence(step, [arg.subject.seq])
    if not step.active:
        step.effects[:0], kept = kept, ()
    step.memory = kept


flawed("event-waits-for-chain", {"prompt-terminal": 5, "attribution": 6, "some-terminal": 6},
       finish={"apply": finish_later})
