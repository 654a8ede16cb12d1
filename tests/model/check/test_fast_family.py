"""The fast engine on protocols of the family: the plain one's result, and reductions that lose no verdict."""


import pytest
from support.budget import one_for_each
from support.engines import loses_nothing, need_fast_engine, same

from cancelmark.model.check.explore import Reduction, explore
from cancelmark.model.family import Feature
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.variants.catalogue import ASK_MISTAKES, MISTAKES, ProtocolVariant

need_fast_engine()

ONCE = Bounds(2, cancels=1, crashes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1, asks=1)
REFUSED = {feature: {Reduction.COMMUTING} for feature in (Feature.NEXT, Feature.REPLACE, Feature.ASK)}


def alone(feature: Feature) -> Protocol:
    return Protocol(feature.value, features=frozenset({feature}))


@pytest.mark.parametrize("feature", Feature, ids=lambda f: f.value)
def test_both_engines_agree_on_each_feature(feature: Feature) -> None:
    same(alone(feature), ONCE)


@pytest.mark.parametrize("bounds", [
    Bounds(2, revokes=1, stops=1, holds=1), Bounds(2, requeues=1, replaces=1, nexts=1), Bounds(3),
    Bounds(2, crashes=1, closes=1, holds=1), Bounds(2, revokes=1, holds=1, sessions=2),
], ids=str)
def test_both_engines_agree_on_the_family(bounds: Bounds) -> None:
    same(FAMILY, bounds)


# A changed count is a changed protocol: say in the commit what changed and why.
PINNED = {
    Bounds(2, cancels=1, requeues=1, revokes=1, stops=1, holds=1): (51_954, 250_832, 12),
    Bounds(2, cancels=1, revokes=1, holds=1, replaces=1, nexts=1): (65_319, 286_627, 12),
    Bounds(2, stops=1, holds=1, nexts=1, sessions=2): (31_413, 180_454, 10),
}


@pytest.mark.parametrize("bounds", PINNED, ids=str)
def test_the_family_has_its_counts(bounds: Bounds) -> None:
    result = explore(FAMILY, bounds, engine="fast")
    assert (result.states, result.edges, result.depth) == PINNED[bounds]
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])


@pytest.mark.parametrize("mistake", one_for_each(lambda m: m.breaks, [*MISTAKES, *ASK_MISTAKES]), ids=lambda m: m.name)
def test_both_engines_agree_on_mistakes(mistake: ProtocolVariant) -> None:
    same(mistake.protocol, mistake.bounds)


# --- reductions

@pytest.mark.parametrize("feature", Feature, ids=lambda f: f.value)
def test_no_reduction_loses_a_verdict_on_a_feature(feature: Feature) -> None:
    loses_nothing(alone(feature), Bounds(2, revokes=1, stops=1, holds=1, replaces=1, nexts=1, asks=1, sessions=2),
                  refused=REFUSED.get(feature, ()))


@pytest.mark.parametrize("mistake", one_for_each(lambda m: m.breaks, [*MISTAKES, *ASK_MISTAKES]), ids=lambda m: m.name)
def test_no_reduction_loses_a_mistake(mistake: ProtocolVariant) -> None:
    loses_nothing(mistake.protocol, mistake.bounds,
                  refused=set().union(*(REFUSED.get(feature, ()) for feature in mistake.protocol.features)))


def test_what_a_hold_excuses_at_rest_is_tabled() -> None:
    """A prompt that waits in a held session is not stranded; the same prompt without the hold would be."""
    forgetful = alone(Feature.HOLD).changed("resume without a handoff", resume={
        "apply": lambda step, arg: setattr(step, "held", False)})
    bounds = Bounds(1, holds=1)
    same(forgetful, bounds)
    assert "all-done" in explore(forgetful, bounds, engine="fast").violations
    assert explore(alone(Feature.HOLD), bounds, engine="fast").verdict == "holds"
