"""Every property and every goal can fail, and is said plainly."""

import pytest

from cancelmark.model.check.explore import explore
from cancelmark.model.family import Feature
from cancelmark.model.properties import LEAST, PROPERTIES, Bounds, Kind, goals
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.variants.catalogue import BUGS


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
    every = Protocol("every feature", features=frozenset(Feature))
    assert set(LEAST) <= {g.id for g in goals(every, Bounds())}
