"""The table: closed and unambiguous."""

from dataclasses import replace

import pytest

from cancelmark.model.lifecycle import (
    INITIAL,
    ROWS,
    Guard,
    Outcome,
    Row,
    State,
    Trigger,
    compile_rows,
    list_valuations,
)

TABLE = compile_rows()


def test_there_is_something_to_agree_on() -> None:
    assert len(list_valuations(ROWS)) == 2 ** len(Guard)
    assert {row for rows in TABLE.values() for row in rows} == set(ROWS)


def test_the_words_that_journals_and_events_carry() -> None:
    assert [state.value for state in State] == ["accepted", "canceled_on_entry", "queued", "active", "done"]
    assert [outcome.value for outcome in Outcome] == ["end_turn", "error", "canceled", "folded"]


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
    with pytest.raises(ValueError, match="must have an outcome if its dest is done, and only then"):
        compile_rows([Row(Trigger.SETTLE, State.CANCELED_ON_ENTRY, State.DONE)])
