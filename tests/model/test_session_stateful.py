"""Random histories of two sessions: the oracle has no complaint about the model, and complains about seeded bugs."""

from collections.abc import Mapping

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.budget import effort
from support.two_sessions import TwoSessions

from cancelmark.model.actions import Argument, hand_off
from cancelmark.model.lifecycle import Outcome, Row, State, Trigger
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import Step
from cancelmark.model.variants.catalogue import BUGS
from cancelmark.model.variants.record import is_row, rows_with

TestTwoSessions = TwoSessions.TestCase
TestTwoSessions.settings = settings(max_examples=effort(40, 200), stateful_step_count=25, deadline=None)


# --- The oracle can fail ----------------------------------------------------------------------------------------

def clear_nothing(step: Step, arg: Argument) -> None:
    """The queue stays as it is."""


def recover_without_interrupting(step: Step, arg: Argument) -> None:
    """What was active goes on."""
    for prompt in step.accepted:
        step.fire(prompt, Trigger.ENTER)
    step.down = False
    if not step.active:
        hand_off(step)


CAUGHT: Mapping[str, str] = {
    "the mark is not asked on entry": "starts, but",
    "busy is asked before the mark": "(starts|ends folded without a start), but",
    "a prompt that cannot start ignores the mark": "ends error without a start, but could only end canceled",
    "a canceled prompt is tried again": "has 0 terminal events",
    "the mark is one too high": "ends canceled without a start, but",
    "the mark is one too low": "(starts|ends error without a start), but could only end canceled",
    "a cancel leaves the queue": "(starts|ends folded without a start), but",
    "a cancel drops the queue in silence": "has 0 terminal events",
    "a cancel ends what is queued with an error": "ends error( without a start)?, but",
    "a crash forgets what was accepted": "has 0 terminal events",
    "a cancel publishes the end of a turn that still runs": r"has \d terminal events?|was observed out of order",
    "a cancel reaches every session": "ends canceled( without a start)?, but",
    "clear_queue raises the mark": "ends canceled( without a start)?, but",
    "clear_queue leaves prompts with a run id": "starts, but nothing more",
    "a closing server accepts": "was accepted after a close",
    "a close is forgotten": "was accepted after a close",
    "a step folds prompts with a run id": "ends folded( without a start)?, but",
    "an error does not hand off": "has 0 terminal events",
    "recovery forgets the queue": "has 0 terminal events",
    "recovery forgets the mark": "starts, but",
    "recovery runs a stopped turn again": "starts( again)?, but",
}

OUT_OF_SIGHT: Mapping[str, str] = {
    "a prompt without a run id does not wait": "each prompt is judged by itself, so two may run at once",
    "nothing is written for a prompt canceled on entry": "messages are not part of a history",
    "a cancel ends the active prompt and starts the next": "in one step, so the start may have come before the cancel",
    "a cancel does not ask the running turn to stop": "requests to stop are not part of a history",
    "clear_queue asks the running turn to stop": "requests to stop are not part of a history",
    "a cancel leaves the queue to the next handoff": "what was queued ends canceled all the same, only later",
    "an idle cancel asks for something": "messages are not part of a history",
    "a stopping turn folds": "a history does not say which turn took a prompt in",
    "the last in the queue goes first": "each prompt is judged by itself, so the order is not",
    "the next turn starts before the end is published": "both take effect in the same step",
    "an end carries its neighbour's text": "texts are not part of a history",
    "turns never end in an error": "no end is wrong, one is only missing",
}

MORE_BUGS = {
    REFERENCE.changed("clear_queue drops nothing", clear_queue={"apply": clear_nothing}):
        "but nothing more",
    REFERENCE.changed("a turn ends canceled unasked", rows_with(
        Row(Trigger.FINISH_CANCELED, State.ACTIVE, State.DONE, outcome=Outcome.CANCELED),
        without=is_row(Trigger.FINISH_CANCELED))): "ends canceled, but could only (start or )?end end_turn",
    REFERENCE.changed("a stopping turn goes on after a summary", rows_with(
        Row(Trigger.REQUEUE, State.ACTIVE, State.QUEUED),
        without=is_row(Trigger.REQUEUE))): "starts( again)?, but",
    REFERENCE.changed("a turn goes on after a crash", recover={"apply": recover_without_interrupting}):
        "ends end_turn, but",
}


def oracle_alone(bug: Protocol, complaint: str) -> type[TwoSessions]:
    """The machine with the bug seeded, and with the oracle as the only judge."""
    return type("Buggy", (TwoSessions,), {"protocol": bug, "properties": (), "expected": complaint})


@pytest.mark.parametrize(("bug", "complaint"), [
    *(pytest.param(bug.protocol, CAUGHT[bug.name], id=bug.name) for bug in BUGS if bug.name in CAUGHT),
    *(pytest.param(bug, complaint, id=bug.name) for bug, complaint in MORE_BUGS.items()),
])
def test_the_oracle_complains_about(bug: Protocol, complaint: str) -> None:
    budget = settings(max_examples=2000, stateful_step_count=30, deadline=None, derandomize=True,
                      phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError, match=complaint):
        run_state_machine_as_test(oracle_alone(bug, complaint), settings=budget)


def test_every_seeded_bug_is_caught_or_out_of_sight() -> None:
    assert sorted({**CAUGHT, **OUT_OF_SIGHT}) == sorted(bug.name for bug in BUGS)
