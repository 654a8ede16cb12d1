"""The graph search that views, witnesses, comparisons and the trace check share.

Only the two engines have their own loops: they represent states as integers, and visit millions of them.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, NamedTuple, TypeVar

from ..properties import BOUND_NAMES, Bounds
from ..protocol import Behaviour
from ..server import Call, Change, Server, changes

Node = TypeVar("Node")
Edge = TypeVar("Edge")

NOTHING_SPENT = (0,) * len(BOUND_NAMES)


class Search(Generic[Node, Edge]):
    """The reachable nodes, nearest first, and a shortest path to each.

    `onward` returns a node's outgoing edges with their targets. It is called lazily, when the iteration continues after
    a node, so a caller that leaves the loop early triggers no further calls. `left` is a lower bound on the distance
    from a node to the caller's goal: nodes are visited in order of distance from the start plus `left` (A*).
    """

    def __init__(
        self, starts: Iterable[Node], onward: Callable[[Node], Iterable[tuple[Edge, Node]]],
        left: Callable[[Node], float] = lambda node: 0,
    ) -> None:
        self.onward, self.left = onward, left
        self.depths: dict[Node, int] = dict.fromkeys(starts, 0)
        self.came: dict[Node, tuple[Node, Edge]] = {}

    def __iter__(self) -> Iterator[Node]:
        order = count()  # ties are broken by order of discovery
        todo = [(self.left(node), next(order), node) for node in self.depths]
        heapify(todo)
        done: set[Node] = set()
        while todo:
            _, _, node = heappop(todo)
            if node in done:  # a shorter path to it was found meanwhile
                continue
            done.add(node)
            yield node
            depth = self.depths[node] + 1
            for edge, after in self.onward(node):
                if depth < self.depths.get(after, inf):
                    self.depths[after] = depth
                    self.came[after] = (node, edge)
                    heappush(todo, (depth + self.left(after), next(order), after))

    def path(self, node: Node) -> list[Edge]:
        """The edges of a shortest path to a discovered node."""
        path = []
        while node in self.came:
            node, edge = self.came[node]
            path.append(edge)
        return path[::-1]


class Successor(NamedTuple):
    """A possible next step, and the number of the state that it leads to."""

    change: Change
    after: int


class StateGraph:
    """The numbered states of a protocol, the start first, with the cached next steps of each.

    With `whole`, states keep their finished prompts. Without it, histories that differ only in finished prompts share a
    state, because no action reads a finished prompt.
    """

    def __init__(self, behaviour: Behaviour, sessions: int = 1, *, whole: bool) -> None:
        self.behaviour, self.whole = behaviour, whole
        self.states = [Server(sessions=(behaviour.start,) * sessions)]
        self._numbers = {self.states[0]: 0}
        self._ways: dict[int, list[Successor]] = {}

    def ways(self, number: int) -> list[Successor]:
        """Every possible next step of a state."""
        if number not in self._ways:
            self._ways[number] = [Successor(change, self._number(change.after if self.whole else live_after(change)))
                                  for change in changes(self.behaviour, self.states[number])]
        return self._ways[number]

    def _number(self, server: Server) -> int:
        number = self._numbers.setdefault(server, len(self.states))
        if number == len(self.states):
            self.states.append(server)
        return number


def live_after(change: Change) -> Server:
    """The state after a change, without its finished prompts."""
    sessions = list(change.after.sessions)
    for i, move in change.moves:
        sessions[i] = move.live
    return change.after._replace(sessions=tuple(sessions))


def spend(bounds: Bounds, spent: tuple[int, ...], call: Call) -> tuple[int, ...] | None:
    """How much of each bound is spent after a call, in the order of BOUND_NAMES; None if the bounds rule it out."""
    if call.action.bound is None:
        return spent
    i = BOUND_NAMES.index(call.action.bound)
    return (*spent[:i], spent[i] + 1, *spent[i + 1:]) if spent[i] < getattr(bounds, call.action.bound) else None
