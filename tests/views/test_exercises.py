"""The hidden bugs of the course: each can be found, and nothing else passes for it."""

import pytest
from support.notebook_shell import html_of

from cancelmark.model.check.comparison import compare
from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.trace import Trace, replay
from cancelmark.model.variants.catalogue import SILENT, ProtocolVariant
from cancelmark.views.course.exercises import FOUND, HIDDEN, exercise, predict, show_bug

BOUNDS = Bounds(3, cancels=1, crashes=1)


def shown(number: int) -> Trace:
    """A trace that shows the bug: a counterexample, or if no property is broken, a difference."""
    violations = explore(exercise(number), BOUNDS).violations
    if violations:
        return min(violations.values(), key=len)
    difference = compare(exercise(number), REFERENCE, Bounds(2)).first
    assert difference is not None
    assert difference.steps[0] is not None
    history = difference.histories[0]
    return Trace(history.start, (*history.steps, difference.steps[0]))


@pytest.mark.parametrize("number", HIDDEN)
def test_each_can_be_found_and_is_told_only_then(number: int) -> None:
    protocol = exercise(number)
    assert protocol.name == f"exercise {number}"
    FOUND.clear()
    solved = show_bug(number, shown(number))
    assert solved.bug == HIDDEN[number].name
    assert 1 <= solved.step <= len(shown(number))
    assert solved.bug in html_of(solved)
    assert {number} == FOUND


@pytest.mark.parametrize("number", HIDDEN)
def test_what_the_reference_does_too_shows_nothing(number: int) -> None:
    FOUND.clear()
    harmless = replay(exercise(number), ["accept A", "enter A", "finish A end_turn"])
    with pytest.raises(ValueError, match=f"the reference behaves in the same way.* exercise {number}"):
        show_bug(number, harmless)
    assert not FOUND


def test_a_trace_of_another_exercise_shows_nothing() -> None:
    with pytest.raises(ValueError, match="this is not a trace of exercise 2"):
        show_bug(2, shown(1))


def test_a_bug_that_shows_only_in_what_is_asked_of_the_world_counts() -> None:
    HIDDEN[99] = next(p for p in [*HIDDEN.values()] if p.name == "an error does not hand off")
    try:
        trace = replay(exercise(99), ["accept A", "enter A", "accept B", "enter B", "finish A error", "cancel"])
        assert show_bug(99, trace).step == 5
    finally:
        del HIDDEN[99]


def test_what_is_no_trace_and_what_is_no_end_is_said_so() -> None:
    with pytest.raises(TypeError, match="show_bug expects a trace"):
        show_bug(1, explore(exercise(1), BOUNDS))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="A cannot end 'cancelled'; choose one of end_turn, error, canceled, folded"):
        predict(A="cancelled")


def test_there_are_so_many_and_no_more() -> None:
    with pytest.raises(LookupError, match="there is no exercise 0; choose one from 1 to 6"):
        exercise(0)


@pytest.mark.parametrize("silent", SILENT, ids=lambda v: v.name)
def test_no_property_notices_the_silent_ones(silent: ProtocolVariant) -> None:
    everything = Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1)
    for bounds in (everything, Bounds(3, cancels=1, clears=1), Bounds(2, cancels=1, sessions=2)):
        assert explore(silent.protocol, bounds).verdict == "holds"
