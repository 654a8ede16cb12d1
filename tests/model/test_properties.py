"""Every property can fail: the explorer finds each seeded bug, by exactly the properties that the bug declares."""

import pytest

from cancelmark.model.check.explore import explore
from cancelmark.model.properties import LEAST, PROPERTIES, Bounds, Kind, goals
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol
from cancelmark.model.revisions.flaws import FLAWS_BY_NAME
from cancelmark.model.seeded import BUGS, Bug
from cancelmark.model.variants.flawed import FLAWED


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_the_explorer_finds_the_bug_by_the_properties_it_declares(bug: Bug) -> None:
    result = explore(bug.protocol, bug.bounds)
    assert set(result.violations) == bug.breaks
    assert set(result.unmet) == bug.unmet
    assert result.verdict == "violated"
    assert min(map(len, result.violations.values()), default=0) == bug.shortest


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_the_reference_holds_where_the_bug_was_found(bug: Bug) -> None:
    result = explore(REFERENCE, bug.bounds)
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])


@pytest.mark.parametrize(("name", "protocol"), FLAWED.items(), ids=FLAWED)
def test_a_flaw_of_one_step_breaks_what_it_breaks_in_the_original(name: str, protocol: Protocol) -> None:
    results = [explore(protocol, bounds) for bounds in (Bounds(2, cancels=1, requeues=1), Bounds(3))]
    assert any(FLAWS_BY_NAME[name].breaks in result.violations for result in results)
    assert not any(result.stopped for result in results)


def test_every_property_is_broken_by_some_bug() -> None:
    assert {p.id for p in PROPERTIES} == {id for bug in BUGS for id in bug.breaks}


def test_every_kind_of_goal_is_missed_by_some_bug() -> None:
    assert {goal.split()[0] for bug in BUGS for goal in bug.unmet} == {"row", "outcome", "action"}


def test_each_property_is_one_plain_sentence() -> None:
    for p in PROPERTIES:
        assert p.sentence.endswith(".")
        assert len(p.sentence) < 120
    assert {p.kind for p in PROPERTIES} == set(Kind)


SMALL = [Bounds(p, c, cl, r, cr, close) for p in (1, 2) for c in (0, 1) for cl in (0, 1) for r in (0, 1)
         for cr in (0, 1) for close in (0, 1)]


@pytest.mark.parametrize("bounds", SMALL, ids=str)
def test_goals_are_met_exactly_where_they_are_called_possible(bounds: Bounds) -> None:
    result = explore(REFERENCE, bounds)
    assert {g.id for g in goals(REFERENCE, bounds) if g.possible} == set(result.met)


def test_least_bounds_name_only_goals_that_exist() -> None:
    assert set(LEAST) <= {g.id for g in goals(FAMILY, Bounds())}
