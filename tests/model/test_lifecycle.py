"""The table: closed, unambiguous, and understood alike by both engines."""

from dataclasses import dataclass, replace

import pytest

from cancelmark.impl.runtime.machine import Lifecycle
from cancelmark.model.lifecycle import (
    INITIAL,
    ROWS,
    VALUATIONS,
    Guard,
    IllegalTrigger,
    Outcome,
    Row,
    State,
    Trigger,
    compile_rows,
    row_of,
)

LIFECYCLE = Lifecycle()
TABLE = compile_rows()


@dataclass
class Prompt:
    """Something for the machine to move, with guards that answer as they are told."""

    state: State
    holds: frozenset[Guard] = frozenset()
    outcome: Outcome | None = None

    covered = property(lambda self: Guard.COVERED in self.holds)
    busy = property(lambda self: Guard.BUSY in self.holds)
    first = property(lambda self: Guard.FIRST in self.holds)
    has_run_id = property(lambda self: Guard.HAS_RUN_ID in self.holds)

    def __str__(self) -> str:
        return "P"


@pytest.mark.rule("R19c")
@pytest.mark.parametrize("trigger", Trigger, ids=lambda t: t.value)
@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
def test_both_engines_agree_on_every_guard_valuation(state: State, trigger: Trigger) -> None:
    for holds in VALUATIONS:
        prompt = Prompt(state, holds)
        row = row_of(TABLE.get((trigger, state), ()), holds.__contains__)
        if row is None:
            with pytest.raises(IllegalTrigger) as caught:
                LIFECYCLE.fire(prompt, trigger)
            assert (prompt.state, prompt.outcome) == (state, None), "an illegal trigger changes nothing"
            assert all(word in str(caught.value) for word in ("P", state.value, trigger.value))
        else:
            assert LIFECYCLE.fire(prompt, trigger) is row
            assert (prompt.state, prompt.outcome) == (row.dest, row.outcome)


def test_there_is_something_to_agree_on() -> None:
    assert len(VALUATIONS) == 2 ** len(Guard)
    assert {row for rows in TABLE.values() for row in rows} == set(ROWS)


def test_the_words_that_journals_and_events_carry() -> None:
    assert [state.value for state in State] == ["accepted", "canceled_on_entry", "queued", "active", "done"]
    assert [outcome.value for outcome in Outcome] == ["end_turn", "error", "canceled", "folded"]


def test_the_machine_knows_the_triggers_of_the_table_and_no_others() -> None:
    assert set(LIFECYCLE.machine.events) == {trigger.value for trigger in Trigger}


@pytest.mark.parametrize("trigger", Trigger, ids=lambda t: t.value)
def test_done_is_final(trigger: Trigger) -> None:
    with pytest.raises(IllegalTrigger):
        LIFECYCLE.fire(Prompt(State.DONE), trigger)


def test_every_state_is_reachable_and_leads_to_done() -> None:
    reached, backwards = {INITIAL}, {State.DONE}
    for _ in State:
        reached |= {row.dest for row in ROWS if row.source in reached}
        backwards |= {row.source for row in ROWS if row.dest in backwards}
    assert reached == backwards == set(State)


def test_every_row_has_a_rule() -> None:
    assert all(row.rule for row in ROWS)


def test_overlapping_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"enter→canceled_on_entry and enter→queued both apply"):
        compile_rows([replace(row, unless=()) for row in ROWS])


def test_an_outcome_belongs_to_done_alone() -> None:
    with pytest.raises(ValueError, match="outcome if and only if"):
        compile_rows([Row(Trigger.SETTLE, State.CANCELED_ON_ENTRY, State.DONE)])


def test_rows_that_the_machine_could_not_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="share trigger, source and destination"):
        Lifecycle((*ROWS, ROWS[0]))
