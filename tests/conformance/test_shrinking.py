"""What was found is made smaller until nothing can be left out, or the budget runs out, which is said."""

import re
from collections.abc import Callable
from math import inf

import pytest

from cancelmark.conformance.judging.history import History
from cancelmark.conformance.playing.script import Script, script
from cancelmark.conformance.report import Finding
from cancelmark.conformance.shrinking import Budget, drop_steps, list_candidates, shrink


def made_smaller(text: str, does: Callable[[Script], bool], budget: Budget) -> Finding:
    """Starting from this, with a server that shows it for these scripts."""
    def shows(attempt: Script) -> Finding | None:
        return Finding(attempt, History(steered=True, exact=True)) if does(attempt) else None

    start = script(text)
    assert does(start)
    return shrink(Finding(start, History(steered=True, exact=True)), shows, lambda s: [s], budget)


def says(pattern: str) -> Callable[[Script], bool]:
    return lambda s: bool(re.search(pattern, s.steps))


def in_two_sessions(s: Script) -> bool:
    return len({do.session for do in s.everything}) > 1


def leaves_and_returns(s: Script) -> bool:
    return ("leave" in s.steps) == ("return" in s.steps) and "accept" in s.steps


@pytest.mark.parametrize(("start", "does", "smallest"), [
    ("accept A @2; release; cancel @2, accept B; fail", says("accept .*cancel"), "accept A; cancel"),
    ("accept A @3; accept B @9; cancel @3; accept C @3", in_two_sessions, "accept A; accept B @2"),
    ("accept A; accept B; release; accept C; resend A", says("resend A"), "accept A; resend A"),
    ("leave; accept A +20 cancel; release,50 accept B; return", says(r"accept .*\+.* cancel"), "accept A + cancel"),
    ("leave; accept A; return", leaves_and_returns, "accept A"),
])
def test_nothing_is_left_that_is_not_needed(start: str, does: Callable[[Script], bool], smallest: str) -> None:
    found = made_smaller(start, does, Budget(1000))
    assert str(found.script) == smallest
    assert found.note == ""
    assert not any(does(candidate) for candidate in list_candidates(found.script))


@pytest.mark.parametrize(("budget", "note"), [
    (Budget(1), "not shrunk further: the budget of 1 runs ran out"),
    (Budget(1000, -1.0), "not shrunk further: the budget of -1 s ran out"),
    (Budget(1000, inf), ""),
])
def test_a_budget_that_runs_out_is_told(budget: Budget, note: str) -> None:
    found = made_smaller("release; accept A; release; cancel, accept B; release; fail", says("accept .*cancel"), budget)
    assert found.note == note
    assert (str(found.script) == "accept A; cancel") == (not note)


def test_no_candidate_is_played_twice() -> None:
    played: list[Script] = []

    def does(attempt: Script) -> bool:
        played.append(attempt)
        return "cancel" in attempt.steps

    made_smaller("accept A; release; accept B @2; cancel, accept C", does, Budget(1000))
    assert len(played[1:]) == len(set(played[1:]))


def test_steps_are_dropped_with_their_gaps_and_what_they_speak_of() -> None:
    whole = script("accept A +10 accept B +20 cancel; resend A; reuse B @2, accept C")
    assert str(drop_steps(whole, [1])) == "None"
    assert str(drop_steps(whole, [1, 4])) == "accept A +20 cancel; resend A; accept B"
    assert str(drop_steps(whole, [0, 3])) == "accept A +20 cancel; reuse A @2, accept B"
    assert str(drop_steps(whole, [5])) == "accept A +10 accept B +20 cancel; resend A; reuse B @2"
