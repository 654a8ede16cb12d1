"""The result of a search: counts, verdicts, and the traces that prove them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..properties import Bounds, Goal
from ..protocol import Behaviour
from ..trace import Trace


class Reduction(Enum):
    """A way to explore fewer states. The module `reductions` argues why each preserves all verdicts."""

    FINISHED = "finished"
    SYMMETRY = "symmetry"
    COMMUTING = "commuting"


class Progress(NamedTuple):
    """The progress of a search."""

    states: int
    frontier: int
    depth: int
    estimate: int | None = None  # estimated total number of states, once available


# Called periodically during a search. If it returns a reason, the search stops.
Watch = Callable[[Progress], str | None]


@dataclass
class Result:
    """The result of a search."""

    protocol: Behaviour
    bounds: Bounds
    goals: list[Goal]
    engine: str = "plain"
    reductions: frozenset[Reduction] = frozenset()
    states: int = 0
    edges: int = 0
    levels: list[int] = field(default_factory=list)  # states by depth
    stopped: str | None = None  # why the search did not run to completion
    interrupted: bool = False
    broken: bool = False  # an action attempted a transition that no row allows
    violations: dict[str, Trace] = field(default_factory=dict)  # by property id, each a shortest trace
    met: dict[str, Trace] = field(default_factory=dict)  # by goal id, each a shortest trace

    @property
    def depth(self) -> int:
        return len(self.levels) - 1

    @property
    def unmet(self) -> list[str]:
        """Goals that are possible within the bounds but were not reached. Empty unless the search completed."""
        return [] if self.stopped else [g.id for g in self.goals if g.possible and g.id not in self.met]

    @property
    def verdict(self) -> str:
        if self.violations or self.unmet:
            return "violated"
        if self.stopped:
            return "interrupted" if self.interrupted else "incomplete"
        return "holds"
