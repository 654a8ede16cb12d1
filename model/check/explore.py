"""Every reachable state within bounds, breadth first, so that the first counterexample found is a shortest one.

**Two engines.** The *plain* one is the definition, short and slow. The *fast* one, an extra (`cancelmark[fast]`), meets
the same states in the same order and comes to the same result; tests compare the two wherever both can go.

**What a verdict means.** Only a search that ran to its end says "holds". A search that was stopped reports the
violations it found (they are real) and otherwise that it does not know.
"""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Protocol

from ..properties import Bounds, Property, properties_for
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
    insisted = bool(engine or reductions)
    properties = properties_for(protocol) if properties is None else properties
    if engine is None:
        worth_it = magnitude(protocol, bounds) >= WORTH_IT
        engine = "fast" if reductions or (worth_it and find_spec("numba")) else "plain"
    if engine == "plain":
        if reductions:
            raise ValueError("the plain engine has no reductions")
        return Explorer(protocol, bounds, properties)
    try:
        from .fast.engine import FastExplorer
    except ModuleNotFoundError as missing:
        raise NoEngine(f"the fast engine needs {missing.name}: pip install 'cancelmark[fast]'") from missing
    try:
        return FastExplorer(protocol, bounds, properties, reductions)
    except TooWide as reason:
        if not insisted:
            return Explorer(protocol, bounds, properties)
        raise NoEngine(f"the fast engine cannot search this: {reason}") from reason


class NoEngine(Exception):
    """The engine that was asked for is not installed, or not up to it."""


WORTH_IT = 5.0  # below 10^5 states, the plain engine has answered before the fast one is loaded
A_LONG_WAIT = 6.3  # above 2·10^6 states, the plain engine takes more than ten seconds


def misses_fast_engine(protocol: Behaviour, bounds: Bounds) -> bool:
    """Whether somebody will wait long for a search because the fast engine is not installed."""
    return magnitude(protocol, bounds) >= A_LONG_WAIT and not find_spec("numba")


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
