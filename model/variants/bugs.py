"""Seeded bugs: small, plausible mistakes in the protocol, each with the properties that it must violate.

A bug whose violations differ from those listed fails the suite. The tests seed these bugs into the model, the runtime's
session, the proof and the Promela model. Readers of the course look for some of them too.

A bug's name is its id on the command line; `sentence` describes it better where the name is unclear.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import actions
from ..actions import Argument, Port
from ..effects import End, Fold, Record, Start, Stop
from ..lifecycle import ROWS, Guard, Outcome, Row, State, Trigger
from ..properties import Bounds
from ..protocol import REFERENCE
from ..session import Step
from .record import ProtocolVariant, after, is_row, rows_with, without

BUGS: list[ProtocolVariant] = []


def bug(
    name: str,
    bounds: Bounds,
    breaks: Mapping[str, int],
    *,
    rows: tuple[Row, ...] = ROWS,
    unmet: tuple[str, ...] = (),
    sentence: str = "",
    flaw: str = "",
    only_in_model: str = "",
    **changes: dict[str, Any],
) -> None:
    """Register a bug: replaced rows, and for each keyword argument the overridden fields of the action of that name."""
    BUGS.append(ProtocolVariant(REFERENCE.changed(name, rows, None, **changes), bounds, breaks, frozenset(unmet),
                                sentence, flaw, only_in_model))


# --- Entry

bug("the mark is not asked on entry", Bounds(2, cancels=1), {"no-lost-cancel": 3},
    sentence="entry does not check the mark",
    rows=rows_with(
        Row(Trigger.ENTER, State.ACCEPTED, State.QUEUED, when=(Guard.BUSY,)),
        Row(Trigger.ENTER, State.ACCEPTED, State.ACTIVE, unless=(Guard.BUSY,)),
        without=is_row(Trigger.ENTER)),
    flaw="cancel-before-entry-lost")

bug("busy is asked before the mark", Bounds(2, cancels=1), {"no-lost-cancel": 6},
    sentence="entry checks busy before the mark",
    rows=rows_with(
        Row(Trigger.ENTER, State.ACCEPTED, State.CANCELED_ON_ENTRY, when=(Guard.COVERED,), unless=(Guard.BUSY,)),
        Row(Trigger.ENTER, State.ACCEPTED, State.QUEUED, when=(Guard.BUSY,)),
        Row(Trigger.ENTER, State.ACCEPTED, State.ACTIVE, unless=(Guard.BUSY, Guard.COVERED)),
        without=is_row(Trigger.ENTER)))

bug("a prompt without a run id does not wait", Bounds(2), {"single-active": 4},
    rows=rows_with(
        Row(Trigger.ENTER, State.ACCEPTED, State.QUEUED, when=(Guard.BUSY, Guard.HAS_RUN_ID), unless=(Guard.COVERED,)),
        Row(Trigger.ENTER, State.ACCEPTED, State.ACTIVE, when=(Guard.BUSY,), unless=(Guard.COVERED, Guard.HAS_RUN_ID)),
        Row(Trigger.ENTER, State.ACCEPTED, State.ACTIVE, unless=(Guard.BUSY, Guard.COVERED)),
        without=is_row(Trigger.ENTER)),
    unmet=("row fold→done", "outcome folded", "action step"))

bug("a prompt that cannot start ignores the mark", Bounds(2, cancels=1), {"no-lost-cancel": 3},
    rows=rows_with(Row(Trigger.FAIL, State.ACCEPTED, State.DONE, outcome=Outcome.ERROR), without=is_row(Trigger.FAIL)),
    flaw="failure-beats-cancel")


bug("nothing is written for a prompt canceled on entry", Bounds(1, cancels=1), {"record": 4},
    settle=without(actions.settle, Record))

bug("a canceled prompt is tried again", Bounds(1, cancels=1), {"progress": 4},
    sentence="a prompt canceled on entry is retried",
    rows=rows_with(Row(Trigger.SETTLE, State.CANCELED_ON_ENTRY, State.ACCEPTED), without=is_row(Trigger.SETTLE)))


# --- cancel, clear_queue and close

def cancel_one_too_many(step: Port, arg: Argument) -> None:
    actions.cancel(step, arg._replace(seq=arg.seq + 1))


bug("the mark is one too high", Bounds(2, cancels=1), {"no-poisoning": 3}, cancel={"apply": cancel_one_too_many})


def cancel_one_too_few(step: Port, arg: Argument) -> None:
    actions.cancel(step, arg._replace(seq=max(0, arg.seq - 1)))


bug("the mark is one too low", Bounds(2, cancels=1), {"no-lost-cancel": 3, "no-late-fold": 6},
    cancel={"apply": cancel_one_too_few})


bug("a cancel does not ask the running turn to stop", Bounds(1, cancels=1), {"cancel-stops": 3},
    cancel=without(actions.cancel, Stop))


def cancel_keeps_queue(step: Port, arg: Argument) -> None:
    actions.stop_active(step)
    step.mark = arg.seq


bug("a cancel leaves the queue", Bounds(2, cancels=1), {"queue-dropped": 5, "no-lost-cancel": 6},
    sentence="a cancel does not drop the queue",
    cancel={"apply": cancel_keeps_queue}, unmet=("row drop→done",))


def finish_drops(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    for prompt in [q for q in step.queue if step.holds(q, Guard.COVERED)]:
        step.fire(prompt, Trigger.DROP)
    actions.hand_off(step)


bug("a cancel leaves the queue to the next handoff", Bounds(2, cancels=1), {"queue-dropped": 5},
    sentence="a cancel defers dropping the queue to the next handoff",
    cancel={"apply": cancel_keeps_queue}, finish={"apply": finish_drops})


bug("a cancel drops the queue in silence", Bounds(2, cancels=1), {"some-terminal": 6},
    sentence="a cancel drops the queue without publishing terminal events",
    cancel=without(actions.cancel, End))


def cancel_answers_at_once(step: Port, arg: Argument) -> None:
    actions.cancel(step, arg)
    step.effects += [End(p.seq, Outcome.CANCELED, of=p.seq) for p in step.active]


bug("a cancel publishes the end of a turn that still runs", Bounds(1, cancels=1), {"attribution": 3, "one-terminal": 4},
    sentence="a cancel publishes the terminal event of a turn that is still running",
    cancel={"apply": cancel_answers_at_once})


bug("a cancel ends what is queued with an error", Bounds(2, cancels=1), {"no-lost-cancel": 5, "queue-dropped": 5},
    sentence="a cancel ends queued prompts with an error",
    rows=rows_with(Row(Trigger.DROP, State.QUEUED, State.DONE, outcome=Outcome.ERROR), without=is_row(Trigger.DROP)))


def cancel_hands_off(step: Port, arg: Argument) -> None:
    cancel_keeps_queue(step, arg)
    for prompt in list(step.active):
        step.fire(prompt, Trigger.FINISH_CANCELED)
    actions.hand_off(step)


bug("a cancel ends the active prompt and starts the next", Bounds(2, cancels=1),
    {"no-lost-cancel": 5, "queue-dropped": 5}, cancel={"apply": cancel_hands_off}, unmet=("row drop→done",))


def cancel_records_when_idle(step: Port, arg: Argument) -> None:
    actions.cancel(step, arg)
    if not step.live and arg.seq:
        step.effects.append(Record(arg.seq))


bug("an idle cancel asks for something", Bounds(1, cancels=1), {"idle-cancel-noop": 3},
    sentence="canceling an idle session has an effect", cancel={"apply": cancel_records_when_idle})

bug("a cancel reaches every session", Bounds(2, cancels=1, sessions=2), {"isolation": 2},
    cancel={"everywhere": True})


def raise_mark(step: Port, arg: Argument) -> None:
    step.mark = arg.seq


bug("clear_queue raises the mark", Bounds(2, clears=1), {"no-poisoning": 3},
    clear_queue=after(actions.clear_queue, raise_mark))


bug("clear_queue asks the running turn to stop", Bounds(1, clears=1), {"cancel-stops": 3},
    clear_queue=after(actions.clear_queue, lambda step, _: actions.stop_active(step)))


def clear_queue_keeps_run_ids(step: Port, arg: Argument) -> None:
    for prompt in [q for q in step.queue if not q.run_id]:
        step.fire(prompt, Trigger.DROP)


bug("clear_queue leaves prompts with a run id", Bounds(2, clears=1), {"queue-dropped": 5},
    sentence="clear_queue does not drop prompts that have a run id",
    clear_queue={"apply": clear_queue_keeps_run_ids})

bug("a closing server accepts", Bounds(1, closes=1), {"closed": 2},
    sentence="a server that is closing still accepts prompts", accept={"while_closing": True})

bug("a close is forgotten", Bounds(1, closes=1), {"closed": 1},
    sentence="a close does not set the closing flag", close={"sets_closing": None})


# --- Turn, queue and handoff

def fold_everything(step: Port, arg: Argument) -> None:
    for prompt in list(step.queue):
        step.effects.append(Fold(prompt.seq, into=arg.subject.seq))
        step.fire(prompt, Trigger.FOLD)


bug("a step folds prompts with a run id", Bounds(3), {"no-absorption": 7},
    rows=rows_with(Row(Trigger.FOLD, State.QUEUED, State.DONE, outcome=Outcome.FOLDED), without=is_row(Trigger.FOLD)),
    step={"apply": fold_everything}, flaw="run-id-folded")

bug("a stopping turn folds", Bounds(2, cancels=1), {"no-late-fold": 6},
    sentence="a turn that was asked to stop still folds prompts",
    step={"subject": lambda port, prompt, _: prompt.state is State.ACTIVE and bool(actions.foldable(port))},
    flaw="fold-into-stopping-turn")


def hand_off_to_the_last(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    if step.queue:
        step.fire(step.queue[-1], Trigger.START)


bug("the last in the queue goes first", Bounds(3), {"fifo": 7},
    sentence="the handoff starts the last queued prompt",
    rows=rows_with(Row(Trigger.START, State.QUEUED, State.ACTIVE, unless=(Guard.BUSY,)), without=is_row(Trigger.START)),
    finish={"apply": hand_off_to_the_last})


def error_strands(step: Port, arg: Argument) -> None:
    step.fire(arg.subject, actions.FINISH[arg.variant])
    if arg.variant is not Outcome.ERROR:
        actions.hand_off(step)


bug("an error does not hand off", Bounds(3), {"all-done": 5, "some-terminal": 5, "fifo": 7},
    sentence="a turn that fails does not hand off",
    finish={"apply": error_strands}, flaw="queue-stranded-by-error")


def start_before_end(step: Port, arg: Argument) -> None:
    actions.finish(step, arg)
    step.effects.sort(key=lambda e: not isinstance(e, Start))


bug("the next turn starts before the end is published", Bounds(2), {"prompt-terminal": 5},
    sentence="the next turn starts before the terminal event is published",
    finish={"apply": start_before_end})


def error_of_the_next(step: Port, arg: Argument) -> None:
    actions.finish(step, arg)
    for prompt in step.active:
        step.effects[:] = [replace(e, of=prompt.seq) if isinstance(e, End) else e for e in step.effects]


bug("an end carries its neighbour's text", Bounds(2), {"attribution": 5},
    sentence="a terminal event carries another prompt's text", finish={"apply": error_of_the_next})


def no_error_end(step: Port, arg: Argument) -> None:
    variant = Outcome.END_TURN if arg.variant is Outcome.ERROR else arg.variant
    actions.finish(step, arg._replace(variant=variant))


bug("turns never end in an error", Bounds(1), {}, finish={"apply": no_error_end},
    unmet=("row finish_error→done",))


# --- Crash and recovery

LOSES = "no action can remove a prompt from a port; at run time only the journal could lose one"

def recover_forgets_queue(step: Step, arg: Argument) -> None:
    step.session = step.session._replace(
        prompts=tuple(p for p in step.session.prompts if p.state is not State.QUEUED))
    actions.recover(step, arg)


bug("recovery forgets the queue", Bounds(2, crashes=1), {"no-loss": 6},
    sentence="recovery loses the queued prompts", recover={"apply": recover_forgets_queue},
    only_in_model=LOSES)


def crash_forgets_accepted(step: Step, arg: Argument) -> None:
    step.session = step.session._replace(
        prompts=tuple(p for p in step.session.prompts if p.state is not State.ACCEPTED))
    actions.crash(step, arg)


bug("a crash forgets what was accepted", Bounds(2, cancels=1, crashes=1), {"no-loss": 2},
    sentence="a crash loses accepted prompts",
    crash={"apply": crash_forgets_accepted}, only_in_model=LOSES)


def recover_forgets_mark(step: Port, arg: Argument) -> None:
    step.mark = 0
    actions.recover(step, arg)


bug("recovery forgets the mark", Bounds(1, cancels=1, crashes=1), {"no-lost-cancel": 4},
    sentence="recovery resets the mark",
    recover={"apply": recover_forgets_mark})


def recover_resumes(step: Port, arg: Argument) -> None:
    step.down = False
    step.effects += [Start(p.seq) for p in step.active]


bug("recovery runs a stopped turn again", Bounds(1, cancels=1, crashes=1), {"no-lost-cancel": 5},
    sentence="recovery restarts a canceled turn",
    recover={"apply": recover_resumes}, unmet=("row enter→queued", "row start→active", "row interrupt→done"))


# --- A bug that violates no property (comparing every edge of the model with the steps of the proof finds it)

SILENT = (ProtocolVariant(
    REFERENCE.changed("the text of a folded prompt is handed to nobody", step=without(actions.fold_queue, Fold)),
    Bounds(2, cancels=1), {}, sentence="the text of a folded prompt is lost"),)
