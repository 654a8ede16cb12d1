"""The model checker for clusters: explores every state within a budget, and checks every edge and all liveness."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from typing import Protocol as Interface

from ..check.graph import Search
from ..check.result import Progress, Watch
from ..properties import Property, SessionStep
from ..protocol import REFERENCE, Move, Protocol
from ..session import Session
from .behaviour import ClusterBehaviour
from .budget import Budget
from .log import LOG_DESIGN, LOG_PROPERTIES, LogBehaviour, LogBudget, LogRules
from .properties import CLUSTER_PROPERTIES, ClusterProperty, ClusterStep, session_properties
from .rules import DESIGN, Rules
from .sending import Edge

PAUSE = 1023  # a search checks its limits every 1,024 states


class Graph(Interface):
    """A state space to search: a cluster's or a log's."""

    @property
    def start(self) -> Any: ...
    @property
    def endless(self) -> bool:
        """Whether turns end only if they are stopped."""
    def onward(self, state: Any) -> Iterable[tuple[Edge, Any]]: ...
    def normalize(self, state: Any) -> Any: ...


class Path(NamedTuple):
    """A shortest history: its edges, and the state after each edge."""

    start: Any
    steps: tuple[tuple[Edge, Any], ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def calls(self) -> list[str]:
        return [str(edge) for edge, _ in self.steps]


@dataclass
class ClusterResult:
    """The result of a search."""

    budget: Budget | LogBudget
    states: int = 0
    edges: int = 0
    depth: int = 0
    stopped: str | None = None
    interrupted: bool = False
    violations: dict[str, Path] = field(default_factory=dict)  # by property id, each a shortest history

    @property
    def verdict(self) -> str:
        if self.violations:
            return "violated"
        if self.stopped:
            return "interrupted" if self.interrupted else "incomplete"
        return "holds"


class ClusterSearch:
    """One search. States are numbered; an edge is identified by its index among the edges of its state."""

    def __init__(
        self, graph: Graph, budget: Budget | LogBudget, properties: Sequence[ClusterProperty],
        of_session: Sequence[Property] = (), until: str | None = None,
    ) -> None:
        self.behaviour, self.of_session = graph, of_session
        self.safety = [p for p in properties if p.on_step]
        self.liveness = [p for p in properties if p.reached]
        self.until = until  # the search stops as soon as this property is violated
        self.states: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.before: list[list[int]] = []  # by state: its predecessors by fair edges
        self.result = ClusterResult(budget)
        self.graph: Search[int, int] = Search([self.number(self.behaviour.start)], self.onward)
        self.broken_moves = lru_cache(maxsize=None)(self._broken_moves)

    def search(self, max_states: int | None = None, watch: Watch | None = None) -> ClusterResult:
        result = self.result
        try:
            for count, number in enumerate(self.graph):
                result.depth = self.graph.depths[number]
                if not count & PAUSE:
                    result.stopped = self.pause(count, max_states, watch)
                if result.stopped or self.until in result.violations:
                    break
            else:
                self.judge_liveness()
        except KeyboardInterrupt:
            result.stopped, result.interrupted = "interrupted", True
        result.states = len(self.states)
        return result

    def pause(self, seen: int, max_states: int | None, watch: Watch | None) -> str | None:
        states = len(self.states)
        if max_states is not None and states > max_states:
            return f"more than {max_states:,} states"
        return watch(Progress(states, states - seen, self.result.depth)) if watch else None

    def number(self, cluster: Any) -> int:
        number = self.numbers.setdefault(cluster, len(self.states))
        if number == len(self.states):
            self.states.append(cluster)
            self.before.append([])
        return number

    def onward(self, number: int) -> list[tuple[int, int]]:
        """The edges of a state, checked as they are discovered."""
        here = self.states[number]
        ways = []
        for position, (edge, after) in enumerate(self.behaviour.onward(here)):
            self.result.edges += 1
            for id in self.broken(ClusterStep(here, edge, after)):
                if id not in self.result.violations:
                    self.result.violations[id] = self.path(number, position)
            target = self.number(self.behaviour.normalize(after))
            if edge.fair:
                self.before[target].append(number)
            ways.append((position, target))
        return ways

    # --- checking properties

    def broken(self, step: ClusterStep) -> list[str]:
        found = [p.id for p in self.safety if p.on_step and not p.on_step(step)]
        for session, move in step.edge.moves:
            found += self.broken_moves(session, move)
        return found

    def _broken_moves(self, session: Session, move: Move) -> list[str]:
        step = SessionStep.of(session, move)
        return [p.id for p in self.of_session if p.on_session and not p.on_session(step)]

    def judge_liveness(self) -> None:
        """Check that from every state, fair edges can reach a state in which each liveness property holds."""
        endless = self.behaviour.endless
        for p in self.liveness:
            if p.id not in self.result.violations and p.reached:
                stuck = self.find_stuck(p.reached, endless)
                if stuck is not None:
                    self.result.violations[p.id] = self.path(stuck)

    def find_stuck(self, reached: Callable[[Any, bool], bool], endless: bool) -> int | None:
        goals = [n for n, cluster in enumerate(self.states) if reached(cluster, endless)]
        back: Search[int, None] = Search(goals, lambda n: [(None, before) for before in self.before[n]])
        able = set(back)
        return min((n for n in range(len(self.states)) if n not in able),
                   key=lambda n: (self.graph.depths[n], n), default=None)

    def path(self, number: int, last: int | None = None) -> Path:
        """A shortest history to a state, plus the edge `last` if given."""
        positions = [*self.graph.path(number), *([] if last is None else [last])]
        cluster, steps = self.behaviour.start, []
        for position in positions:
            edge, after = list(self.behaviour.onward(cluster))[position]
            cluster = self.behaviour.normalize(after)
            steps.append((edge, after))
        return Path(self.behaviour.start, tuple(steps))


def search_cluster(
    budget: Budget, rules: Rules = DESIGN, protocol: Protocol = REFERENCE, until: str | None = None,
    max_states: int | None = None, watch: Watch | None = None,
    properties: Sequence[ClusterProperty] = CLUSTER_PROPERTIES,
) -> ClusterResult:
    """Search a cluster. With `until`, stop at the first history that violates that property."""
    graph = ClusterBehaviour(budget, rules, protocol)
    return ClusterSearch(graph, budget, properties, session_properties(protocol), until).search(max_states, watch)


def search_log(budget: LogBudget, rules: LogRules = LOG_DESIGN, until: str | None = None) -> ClusterResult:
    """Search a log."""
    return ClusterSearch(LogBehaviour(budget, rules), budget, LOG_PROPERTIES, until=until).search()
