"""Every reachable state within bounds, breadth first, so that the first counterexample found is a shortest one.

**Two engines.** The *plain* one is the definition, short and slow. The *fast* one, for which a C compiler is needed
(the extra `cancelmark[fast]` brings one), meets the same states in the same order and comes to the same result; tests
compare the two wherever both can go.

**What a verdict means.** Only a search that ran to its end says "holds". A search that was stopped reports the
violations it found (they are real) and otherwise that it does not know.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from ..family_properties import properties_for
from ..properties import Bounds, Property
from ..protocol import Behaviour
from .estimate import magnitude
from .fast.layout import TooWide
from .plain import Explorer
from .result import Progress, Reduction, Result, Watch

__all__ = ["ENGINES", "Engine", "Explorer", "NoEngine", "Progress", "Reduction", "Result", "StoppedError", "Watch",
           "engine_for", "explore", "explore_fully"]


class Engine(Protocol):
    """What can search: the plain explorer, or the fast one."""

    def search(self, max_states: int | None = None, watch: Watch | None = None) -> Result: ...


ENGINES = ("plain", "fast")


def engine_for(
    protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
    reductions: Collection[Reduction] = (), engine: str | None = None,
) -> Engine:
    """The engine of that name; if none is named, whichever answers sooner. Reductions are for the fast one."""
    if engine not in (*ENGINES, None):
        raise ValueError(f"engine {engine}: no such engine; choose one of {', '.join(ENGINES)}")
    properties = properties_for(protocol) if properties is None else properties
    insisted = bool(engine or reductions)
    if engine == "plain" or not (insisted or magnitude(protocol, bounds) >= WORTH_IT):
        if reductions:
            raise ValueError("the plain engine has no reductions")
        return Explorer(protocol, bounds, properties)
    from .fast.engine import FastExplorer
    from .fast.library import NoLibrary

    try:
        return FastExplorer(protocol, bounds, properties, reductions)
    except (TooWide, NoLibrary) as reason:
        if not insisted:
            return Explorer(protocol, bounds, properties)
        if isinstance(reason, NoLibrary):
            raise NoEngine(f"{reason}: pip install 'cancelmark[fast]'") from reason
        raise NoEngine(f"the fast engine cannot search this: {reason}") from reason


class NoEngine(Exception):
    """The engine that was asked for cannot be compiled here, or is not up to it."""


WORTH_IT = 3.5  # below some 3,000 states, the plain engine has answered before the fast one is loaded
A_LONG_WAIT = 6.3  # above 2·10^6 states, the plain engine takes more than ten seconds


def misses_fast_engine(protocol: Behaviour, bounds: Bounds) -> bool:
    """Whether somebody will wait long for a search because the fast engine cannot be compiled."""
    if magnitude(protocol, bounds) < A_LONG_WAIT:
        return False
    from .fast.library import can_load

    return not can_load()


def explore(
    protocol: Behaviour,
    bounds: Bounds,
    *,
    properties: Sequence[Property] | None = None,
    max_states: int | None = None,
    watch: Watch | None = None,
    engine: str | None = None,
    reductions: Collection[Reduction] = (),
) -> Result:
    """Searches all interleavings of `protocol` within `bounds`."""
    return engine_for(protocol, bounds, properties, reductions, engine).search(max_states, watch)


class StoppedError(Exception):
    """A search was stopped before its end where only a complete one will do."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"the search of {result.protocol.name} was stopped: {result.stopped}")
        self.result = result


def explore_fully(
    protocol: Behaviour, bounds: Bounds, *, properties: Sequence[Property] | None = None, watch: Watch | None = None,
) -> Result:
    """The same for whoever needs the whole answer: raises `StoppedError` if the search does not run to its end."""
    result = explore(protocol, bounds, properties=properties, watch=watch)
    if result.stopped:
        raise StoppedError(result)
    return result
