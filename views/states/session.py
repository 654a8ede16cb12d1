"""One session as a diagram that nobody drew: the model is run, and states that look alike become one node.

A node says whether a prompt is active, and if so whether it was asked to stop, and whether the queue is empty. An
edge is an action that led from a state of one node to a state of another somewhere in the reachable graph. What a
node hides (who is accepted, where the mark is) decides which of several edges an action takes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pydot

from cancelmark.model.actions import Action, Actor, Reach
from cancelmark.model.check.graph import Search, StateGraph, Way
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import AnySession

from ..drawing import graph
from ..drawing.paths import Path, mermaid_legend
from ..drawing.theme import STOPPING

TITLE = "One session"
PROMPTS = 3  # the active one, one in the queue and one that is about to enter: a fourth adds no node and no edge
CSS = {"idle": "idle", "running": State.ACTIVE.value, STOPPING: STOPPING, "down": "down"}  # by turn


class Node(NamedTuple):
    """What a session looks like from afar."""

    turn: str  # idle, running, stopping; or down
    waiting: bool = False  # whether a prompt is queued

    @property
    def name(self) -> str:
        return f"{self.turn}_waiting" if self.waiting else self.turn

    @property
    def title(self) -> str:
        return f"{self.turn}, others queued" if self.waiting else self.turn


IDLE, DOWN = Node("idle"), Node("down")


class Edge(NamedTuple):
    source: Node
    dest: Node
    path: Path


class Quotient(NamedTuple):
    """What the run showed, in a stable order."""

    stays: dict[Node, list[str]]  # the actions that can leave a session looking as it does, except `everywhere`
    edges: dict[Edge, list[str]]  # the actions that change how it looks, except those of `arrivals`
    everywhere: list[str]  # the actions that can leave a session as it looks, whenever it is up
    arrivals: dict[Node, list[str]]  # the actions that lead to a node from all others

    @property
    def paths(self) -> set[Path]:
        return {edge.path for edge in self.edges}

    def lines(self, node: Node) -> list[str]:
        """What is said inside a node, below its title."""
        parts = {"from anywhere": self.arrivals.get(node), "stays": self.stays[node]}
        return [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]

    @property
    def remark(self) -> str:
        """What is said once, below the diagram, instead of in every node."""
        but = f" but {DOWN.name}" if DOWN in self.stays else ""
        return f"{', '.join(self.everywhere)}: can leave any node{but} as it is" if self.everywhere else ""


def node_of(session: AnySession) -> Node:
    if session.down:
        return DOWN
    stopping = any(session.covered(p) for p in session.active)
    return Node(STOPPING if stopping else "running" if session.active else IDLE.turn, bool(session.queue))


def order(node: Node) -> int:
    """The order in which a reader meets the nodes, which is also what makes Graphviz lay them out so."""
    return 2 * list(CSS).index(node.turn) + node.waiting


def path_of(source: Node, dest: Node, action: Action) -> Path:
    if DOWN in (source, dest):
        return Path.FAULT
    if (action.reaches is not Reach.NOTHING and action.actor is not Actor.SERVER) or source.turn == STOPPING:
        return Path.CANCEL
    return Path.ORDINARY if source.waiting or dest.waiting else Path.HAPPY


def quotient(protocol: Protocol = REFERENCE, prompts: int = PROMPTS) -> Quotient:
    """Runs the protocol with up to `prompts` prompts and any number of cancels, requeues, crashes and closes."""
    stays: dict[Node, set[Action]] = {}
    edges: dict[Edge, set[Action]] = {}
    graph = StateGraph(protocol, whole=False)

    def onward(number: int) -> list[Way]:
        return [way for way in graph.ways(number) if graph.states[way.after].seq <= prompts]

    for number in Search([0], onward):
        source = node_of(graph.states[number].sessions[0])
        stays.setdefault(source, set())
        for change, after in onward(number):
            action, dest = change.call.action, node_of(graph.states[after].sessions[0])
            if source == dest:
                stays[source].add(action)
            else:
                edges.setdefault(Edge(source, dest, path_of(source, dest, action)), set()).add(action)

    up = [actions for node, actions in stays.items() if node != DOWN]
    everywhere = set.intersection(*up)
    arrivals = {node: _from_all(edges, set(stays) - {node}, node) for node in stays}

    def names(actions: set[Action]) -> list[str]:
        return [action.name for action in protocol.actions if action in actions]

    def place(edge: Edge) -> tuple[int, int, int]:
        return order(edge.source), order(edge.dest), list(Path).index(edge.path)

    return Quotient(
        {node: names(stays[node] - everywhere) for node in sorted(stays, key=order)},
        {edge: left for edge in sorted(edges, key=place) if (left := names(edges[edge] - arrivals[edge.dest]))},
        names(everywhere), {node: names(actions) for node, actions in arrivals.items()})


def _from_all(edges: Mapping[Edge, set[Action]], sources: set[Node], dest: Node) -> set[Action]:
    """The actions that lead to `dest` from every source, if those are so many that arrows for it would be clutter."""
    leading = [set().union(*(found for edge, found in edges.items() if (edge.source, edge.dest) == (source, dest)))
               for source in sources]
    return set.intersection(*leading) if len(leading) > 2 else set()


def session_graph(protocol: Protocol = REFERENCE) -> pydot.Dot:
    """The session as a Graphviz graph. The same protocol gives the same text, byte for byte."""
    found = quotient(protocol)
    dot = graph.digraph(TITLE, rankdir="TB", nodesep="0.45", ranksep="0.5",
                        label=f"{found.remark}\\l", labelloc="b", labeljust="l", fontsize="15")
    dot.set_node_defaults(fontsize="17", margin="0.16,0.1")
    dot.set_edge_defaults(fontsize="15")
    graph.add_start(dot, IDLE.name, "")
    for node in found.stays:
        dot.add_node(graph.node(node.name, [node.title, *map(graph.small, found.lines(node))], CSS[node.turn]))
    for edge, names in found.edges.items():
        dot.add_edge(graph.edge(edge.source.name, edge.dest.name, [", ".join(names)], edge.path))
    graph.add_legend(dot, found.paths)
    return dot


def session_mermaid(protocol: Protocol = REFERENCE) -> str:
    """The session as a Mermaid state diagram, with the same nodes and labels."""
    found = quotient(protocol)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {IDLE.name}"]
    lines += [f"    {node.name} : {'<br/>'.join([node.title, *found.lines(node)])}" for node in found.stays]
    lines += [f"    {edge.source.name} --> {edge.dest.name} : {edge.path.with_sign(', '.join(names))}"
              for edge, names in found.edges.items()]
    lines += mermaid_legend(found.paths, IDLE.name, found.remark)
    return "\n".join(lines) + "\n"
