"""A diagram of a complete state graph: a node per state, and an arrow per step to a different state.

If there are few states, they are labelled. If there are many, they are dots, and the diagram only shows their number
and structure.
"""

import pydot

from cancelmark.model.trace import call_text

from ..drawing import graph
from ..drawing.paths import Path
from ..traces import content
from .export import ExportedGraph
from .session import CSS, node_of

MOST_IN_WORDS = 16


def space_graph(space: ExportedGraph) -> pydot.Dot:
    """Every state of the graph and the steps between them, except steps that change nothing."""
    words = len(space.states) <= MOST_IN_WORDS
    dot = graph.digraph(f"{len(space.states)} states of {space.behaviour.name}", rankdir="TB",
                        ranksep="0.5" if words else "0.3", nodesep="0.4" if words else "0.08")
    for number, server in enumerate(space.states):
        kind = CSS[node_of(server.sessions[0]).turn]
        dot.add_node(graph.node(str(number), _lines(space, number), kind) if words else graph.node(
            str(number), [""], kind, shape="circle", style="filled", width="0.14", fixedsize="true"))
    for number, edges in enumerate(space.edges):
        calls: dict[int, list[str]] = {}
        for edge in edges:
            if edge.target != number:
                calls.setdefault(edge.target, []).append(call_text(edge.change.call, space.sessions))
        for target, names in calls.items():
            lines = list(dict.fromkeys(names)) if words else []
            more = {} if words else {"arrowhead": "none", "penwidth": "0.5"}
            dot.add_edge(graph.edge(str(number), str(target), lines, Path.ORDINARY, **more))
    return dot


def _lines(space: ExportedGraph, number: int) -> list[str]:
    lines = []
    for session in space.states[number].sessions:
        lines.append(f"mark {content.mark_text(session)}")
        lines += [f"{p.label} {content.prompt_text(session, p)[0]}" for p in session.prompts]
        lines += [] if session.prompts else ["idle"]
    return lines
