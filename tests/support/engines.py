"""Both engines on the same search, and the reductions of the fast one: what must be equal."""

import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import pytest

from cancelmark.model.check.explore import Reduction, Result, explore
from cancelmark.model.check.fast import kernel, library
from cancelmark.model.check.fast.engine import FastExplorer
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import Behaviour

REDUCED = [rs for n in (1, 2, 3) for rs in combinations(Reduction, n)]


def need_fast_engine() -> None:
    """Skips the tests of a module where the fast engine cannot be compiled."""
    if os.environ.get("CI") != "true" and not library.can_load():
        pytest.skip("there is no C compiler: pip install 'cancelmark[fast]'", allow_module_level=True)


def hide_compilers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes this a machine on which nothing was ever compiled, nor can be."""
    monkeypatch.setattr(library, "folders", lambda: iter([folder / "nothing"]))
    monkeypatch.setattr(library, "compiler", lambda: None)
    kernel.library.cache_clear()


@lru_cache(maxsize=4)
def plainly(protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None) -> Result:
    """What the plain engine finds, for several comparisons in a row."""
    return explore(protocol, bounds, properties=properties, engine="plain")


def same(
    protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
) -> tuple[FastExplorer, FastExplorer]:
    """Both engines, the fast one with one thread and with several, which are returned: everything that they report."""
    plain = plainly(protocol, bounds, properties)
    assert plain.engine == "plain"
    alone = FastExplorer(protocol, bounds, properties, threads=1)
    shared = FastExplorer(protocol, bounds, properties, threads=4)
    for explorer in (alone, shared):
        result = explorer.search()
        assert result.engine == "fast"
        for told in ("states", "edges", "levels", "depth", "stopped", "verdict", "unmet"):
            assert getattr(result, told) == getattr(plain, told), (told, explorer.threads)
        assert list(result.violations.items()) == list(plain.violations.items())
        assert result.met == plain.met
    return alone, shared


def lengths(result: Result) -> dict[str, int]:
    """Of every trace but circles, whose length counts for nothing."""
    return {id: len(trace) for id, trace in {**result.met, **result.violations}.items() if trace.loop is None}


def loses_nothing(
    protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
    refused: Collection[Reduction] = (),
) -> None:
    """Every reduction, and all together: the verdicts of the whole search. `refused`: what this protocol is searched
    without."""
    plain = plainly(protocol, bounds, properties)
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
