"""What a search finds: counts, verdicts, and the traces that show them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..properties import Bounds, Goal
from ..protocol import Behaviour
from ..trace import Trace


class Reduction(Enum):
    """A way to search fewer states; `reductions` says why no verdict is lost."""

    FINISHED = "finished"
    SYMMETRY = "symmetry"
    COMMUTING = "commuting"


class Progress(NamedTuple):
    """How far a search is."""

    states: int
    frontier: int
    depth: int
    estimate: int | None = None  # of the states there will be, once it can be told


# Called now and then during a search; a reason that it returns stops the search.
Watch = Callable[[Progress], str | None]


@dataclass
class Result:
    """What a search found."""

    protocol: Behaviour
    bounds: Bounds
    goals: list[Goal]
    engine: str = "plain"
    reductions: frozenset[Reduction] = frozenset()
    states: int = 0
    edges: int = 0
    levels: list[int] = field(default_factory=list)  # states by depth
    stopped: str | None = None  # why the search did not run to its end
    interrupted: bool = False
    broken: bool = False  # an action did what its rows do not allow
    violations: dict[str, Trace] = field(default_factory=dict)  # by property id, each a shortest trace
    met: dict[str, Trace] = field(default_factory=dict)  # by goal id, each a shortest trace

    @property
    def depth(self) -> int:
        return len(self.levels) - 1

    @property
    def unmet(self) -> list[str]:
        """Goals that the bounds leave room for and that nothing met. Only a search that ran to its end can tell."""
        return [] if self.stopped else [g.id for g in self.goals if g.possible and g.id not in self.met]

    @property
    def verdict(self) -> str:
        if self.violations or self.unmet:
            return "violated"
        if self.stopped:
            return "interrupted" if self.interrupted else "incomplete"
        return "holds"
