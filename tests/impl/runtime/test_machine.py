"""The machine: it understands the rows as the model does, and refuses what they do not allow."""

from dataclasses import dataclass, replace

import pytest

from cancelmark.impl.runtime.machine import Lifecycle, lifecycle_of
from cancelmark.model.lifecycle import (
    ROWS,
    Guard,
    IllegalTrigger,
    Outcome,
    Row,
    State,
    Symbol,
    Trigger,
    list_valuations,
    row_of,
)
from cancelmark.model.protocol import FAMILY, REFERENCE

TOLD = replace(FAMILY, guards={guard: lambda _, prompt, guard=guard: guard in prompt.holds for guard in FAMILY.guards})
LIFECYCLE = Lifecycle(TOLD)


@dataclass
class Prompt:
    """Something for the machine to move, with guards that answer as they are told."""

    state: State
    holds: frozenset[Symbol] = frozenset()
    outcome: Outcome | None = None
    session: None = None

    def __str__(self) -> str:
        return "P"


@pytest.mark.rule("R19c")
@pytest.mark.parametrize("trigger", Trigger, ids=lambda t: t.value)
@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
def test_machine_and_table_agree_on_every_guard_valuation(state: State, trigger: Trigger) -> None:
    for holds in list_valuations(TOLD.rows):
        prompt = Prompt(state, holds)
        row = row_of(TOLD.table.get((trigger, state), ()), holds.__contains__)
        if row is None:
            with pytest.raises(IllegalTrigger) as caught:
                LIFECYCLE.fire(prompt, trigger)
            assert (prompt.state, prompt.outcome) == (state, None), "an illegal trigger changes nothing"
            assert all(word in str(caught.value) for word in ("P", state.value, trigger.value))
        else:
            assert LIFECYCLE.fire(prompt, trigger) is row
            assert (prompt.state, prompt.outcome) == (row.dest, row.outcome)


def test_the_machine_knows_the_triggers_of_the_table_and_no_others() -> None:
    assert set(LIFECYCLE.machine.events) == {trigger.value for trigger in Trigger}


@pytest.mark.parametrize("trigger", Trigger, ids=lambda t: t.value)
def test_done_is_final(trigger: Trigger) -> None:
    with pytest.raises(IllegalTrigger):
        LIFECYCLE.fire(Prompt(State.DONE), trigger)


def test_a_trigger_without_a_row_is_refused() -> None:
    without = Lifecycle(replace(TOLD, rows=tuple(row for row in ROWS if row.trigger is not Trigger.FOLD)))
    with pytest.raises(IllegalTrigger, match="fold"):
        without.fire(Prompt(State.QUEUED), Trigger.FOLD)


def test_rows_that_the_machine_could_not_tell_apart_are_refused() -> None:
    another = Row(Trigger.SETTLE, State.CANCELED_ON_ENTRY, State.DONE, when=(Guard.BUSY,), outcome=Outcome.ERROR)
    rows = (another, *(replace(r, unless=(Guard.BUSY,)) if r.trigger is Trigger.SETTLE else r for r in ROWS))
    with pytest.raises(ValueError, match="two rows settle→done from canceled_on_entry have different outcomes"):
        Lifecycle(replace(REFERENCE, rows=rows))


def test_one_machine_serves_all_sessions_of_a_protocol() -> None:
    assert lifecycle_of(REFERENCE) is lifecycle_of(REFERENCE)
    assert lifecycle_of(REFERENCE) is not lifecycle_of(REFERENCE.changed("another"))
