"""The catalogue of variants: the explorer finds in each exactly what its record declares."""

import re

import pytest

from cancelmark.model.check.explore import explore
from cancelmark.model.family import Feature
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import Protocol
from cancelmark.model.revisions.flaws import FLAWS_BY_NAME
from cancelmark.model.server import changes
from cancelmark.model.variants.catalogue import (
    ASK_MISTAKES,
    BUGS,
    FLAWED,
    FLAWS_OF_ONE_STEP,
    IN_PLACE_OF_THE_MARK,
    MISTAKES,
    POLICIES,
    SILENT,
    SLUGS,
    VARIANTS,
    ProtocolVariant,
)
from cancelmark.views.traces.reasons import reason

AT_REST = ("all-done", "some-terminal", "progress")  # whose reason is told of a prompt
EVERY = pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.name)


@EVERY
def test_the_explorer_finds_exactly_what_the_record_declares(variant: ProtocolVariant) -> None:
    result = explore(variant.protocol, variant.bounds)
    assert {id: len(trace) for id, trace in result.violations.items()} == variant.breaks
    assert set(result.unmet) == variant.unmet
    assert not result.stopped
    assert result.verdict == ("holds" if variant in SILENT else "violated")


@pytest.mark.parametrize(("features", "bounds"), {(v.protocol.features, v.bounds): None for v in VARIANTS.values()})
def test_the_right_protocol_holds_where_a_variant_was_searched(features: frozenset[Feature], bounds: Bounds) -> None:
    result = explore(Protocol("right", features=features), bounds)
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])


@pytest.mark.parametrize("mistake", [*MISTAKES, *ASK_MISTAKES], ids=lambda m: m.name)
def test_what_a_mistake_breaks_has_a_reason(mistake: ProtocolVariant) -> None:
    for id, trace in explore(mistake.protocol, mistake.bounds).violations.items():
        last, before = trace.steps[-1], trace.states[-2]
        change = next(c for c in changes(mistake.protocol, before) if (c.call, c.effects) == (last.call, last.effects))
        assert id in AT_REST or re.fullmatch(r"([A-Z][^.]+\.( |$))+", reason(id, before, change))


@pytest.mark.parametrize("flaw", FLAWS_OF_ONE_STEP)
def test_a_flaw_of_one_step_breaks_what_it_breaks_in_the_original(flaw: str) -> None:
    assert FLAWS_BY_NAME[flaw].breaks in FLAWS_OF_ONE_STEP[flaw].breaks


def test_no_variant_is_there_twice() -> None:
    groups = (BUGS, SILENT, FLAWED, MISTAKES, ASK_MISTAKES, IN_PLACE_OF_THE_MARK, POLICIES)
    assert sum(map(len, groups)) == len(VARIANTS) == len({v.slug for v in VARIANTS.values()}) == 126
    assert {v.name for v in SLUGS.values()} == set(VARIANTS)
    assert len(FLAWS_OF_ONE_STEP) == 21
