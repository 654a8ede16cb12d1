"""The oracle on histories of the family: no complaint of a right protocol, and the mistakes that show outside."""

import pytest
from support.budget import effort
from support.family_walks import complaints

from cancelmark.model.oracle import Call, End, Prompt, Span, judge, may_end
from cancelmark.model.protocol import FAMILY
from cancelmark.model.variants.catalogue import VARIANTS


def at(time: float) -> Span:
    return Span(time, time)


def test_the_oracle_has_no_complaint_of_the_family() -> None:
    assert list(complaints(FAMILY, effort(500))) == []


@pytest.mark.parametrize("name", [
    "revoke looks at the queue and the turn only", "revoke is answered before it is journaled",
    "stop asks only what is active", "hold is not asked on entry", "hold is not asked when a turn ends",
    "recovery forgets the hold", "a held queue folds", "resume forgets the handoff", "cancel releases the hold",
    "an interrupt cancels all before it",
])
def test_the_oracle_complains_of_a_mistake_that_shows_outside(name: str) -> None:
    assert next(complaints(VARIANTS[name].protocol, 1500), None)


def test_a_revoke_is_a_cancel_of_its_prompt_alone() -> None:
    revoke = Call(2, 3, "revoke", "", "A")
    assert may_end(Prompt("A", Span(0, 1)), [revoke]) == {"canceled"}
    assert may_end(Prompt("B", Span(0, 1)), [revoke]) == {"error", "folded"}


def test_a_stop_is_a_cancel_of_whom_it_stopped() -> None:
    running = Prompt("A", at(0), starts=(at(1),))
    assert "canceled" in may_end(running, [Call(2, 3, "stop", "", "A")])
    assert "canceled" not in may_end(running, [Call(2, 3, "stop", "", "B")])


def test_an_interrupt_may_have_stopped_who_ran_and_nobody_else() -> None:
    interrupt = Call(2, 4, "interrupt", "", "B")
    assert "canceled" in may_end(Prompt("A", at(0), starts=(at(1),)), [interrupt])
    assert "canceled" not in may_end(Prompt("A", at(0)), [interrupt])
    assert "canceled" not in may_end(Prompt("B", at(2), starts=(at(4),)), [interrupt])


def test_nothing_starts_or_folds_while_held_and_what_waits_owes_no_end() -> None:
    waits, hold, resume = Prompt("A", at(0), enter=at(1)), Call(2, 3, "hold", ""), Call(5, 6, "resume", "")
    assert judge([waits], [hold]) == []
    assert judge([waits], [hold, resume]) != []
    started = Prompt("A", at(0), enter=at(1), starts=(at(4),), ends=(End(8, 8, "end_turn"),))
    assert len(judge([started], [hold])) == 1
    assert judge([started], [hold, Call(3.5, 6, "resume", "")]) == []
    folded = Prompt("A", at(0), enter=at(1), ends=(End(4, 4, "folded"),))
    assert len(judge([folded], [hold])) == 1
    assert judge([folded], [resume]) == []
