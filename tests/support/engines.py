"""Both engines on the same search, and the reductions of the fast one: what must be equal."""

from collections.abc import Collection, Sequence
from itertools import combinations

from cancelmark.model.check.explore import Reduction, Result, explore
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import Behaviour

REDUCED = [rs for n in (1, 2, 3) for rs in combinations(Reduction, n)]


def same(protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None) -> None:
    """Both engines, everything that they report."""
    plain = explore(protocol, bounds, properties=properties, engine="plain")
    result = explore(protocol, bounds, properties=properties, engine="fast")
    assert (plain.engine, result.engine) == ("plain", "fast")
    for told in ("states", "edges", "levels", "depth", "stopped", "verdict", "unmet"):
        assert getattr(result, told) == getattr(plain, told), told
    assert list(result.violations.items()) == list(plain.violations.items())
    assert result.met == plain.met


def lengths(result: Result) -> dict[str, int]:
    """Of every trace but circles, whose length counts for nothing."""
    return {id: len(trace) for id, trace in {**result.met, **result.violations}.items() if trace.loop is None}


def loses_nothing(
    protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
    refused: Collection[Reduction] = (),
) -> None:
    """Every reduction, and all together: the verdicts of the whole search. `refused`: what this protocol is searched
    without."""
    plain = explore(protocol, bounds, properties=properties, engine="plain")
    for reductions in REDUCED:
        result = explore(protocol, bounds, properties=properties, reductions=reductions)
        assert result.reductions == set(reductions).difference(refused)
        for told in ("verdict", "unmet", "stopped"):
            assert getattr(result, told) == getattr(plain, told), (told, reductions)
        assert (result.violations.keys(), result.met.keys()) == (plain.violations.keys(), plain.met.keys()), reductions
        assert result.states <= plain.states
        if Reduction.COMMUTING not in result.reductions:
            assert lengths(result) == lengths(plain), reductions
        else:
            assert all(n >= lengths(plain)[id] for id, n in lengths(result).items())
