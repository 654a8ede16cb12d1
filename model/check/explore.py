"""Exhaustive breadth-first exploration within bounds. The first counterexample found is a shortest one.

**Two engines.** The *plain* engine is the definition: short and slow. The *fast* engine needs a C compiler (the extra
`cancelmark[fast]` installs one). It visits the same states in the same order and produces the same result; tests
compare the two wherever both can run.

**What a verdict means.** Only a search that ran to completion reports "holds". A search that was stopped early reports
the violations it found, which are real, and is otherwise inconclusive.
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
    """A search engine: the plain explorer or the fast one."""

    def search(self, max_states: int | None = None, watch: Watch | None = None) -> Result: ...


ENGINES = ("plain", "fast")


def engine_for(
    protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
    reductions: Collection[Reduction] = (), engine: str | None = None,
) -> Engine:
    """The named engine or, by default, the one expected to finish sooner. Only the fast engine supports reductions."""
    if engine not in (*ENGINES, None):
        raise ValueError(f"unknown engine {engine}; choose one of {', '.join(ENGINES)}")
    properties = properties_for(protocol) if properties is None else properties
    insisted = bool(engine or reductions)
    if engine == "plain" or not (insisted or magnitude(protocol, bounds) >= WORTH_IT):
        if reductions:
            raise ValueError("the plain engine does not support reductions; use the fast engine, or no reductions")
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
        raise NoEngine(f"the fast engine does not support these bounds: {reason}") from reason


class NoEngine(Exception):
    """The requested engine cannot be compiled on this machine, or does not support this search."""


WORTH_IT = 3.5  # below about 3,000 states, the plain engine finishes before the fast one is loaded
A_LONG_WAIT = 6.3  # above 2·10^6 states, the plain engine takes more than ten seconds


def misses_fast_engine(protocol: Behaviour, bounds: Bounds) -> bool:
    """Whether the search will take long because the fast engine cannot be compiled."""
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
    """Explore all interleavings of `protocol` within `bounds`."""
    return engine_for(protocol, bounds, properties, reductions, engine).search(max_states, watch)


class StoppedError(Exception):
    """A search that had to run to completion was stopped early."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"the search of {result.protocol.name} was stopped: {result.stopped}")
        self.result = result


def explore_fully(
    protocol: Behaviour, bounds: Bounds, *, properties: Sequence[Property] | None = None, watch: Watch | None = None,
) -> Result:
    """Like `explore`, but raise `StoppedError` if the search does not run to completion."""
    result = explore(protocol, bounds, properties=properties, watch=watch)
    if result.stopped:
        raise StoppedError(result)
    return result
