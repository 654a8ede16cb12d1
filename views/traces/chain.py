"""A trace as a chain of states: one node per state, with the calls on the edges."""

import pydot

from cancelmark.model.trace import Trace

from ..drawing import graph
from ..drawing.paths import Path
from . import content


def trace_dot(trace: Trace) -> pydot.Dot:
    """The trace as a Graphviz graph from top to bottom. Steps that repeat forever form a cycle."""
    dot = graph.digraph("A trace, state by state", rankdir="TB", ranksep="0.35")
    # The last state of a loop is the state where the loop starts, so it is drawn once.
    last = len(trace) if trace.loop is None else len(trace) - 1
    for scene in content.scenes(trace):
        if scene.number <= last:
            kind = "down" if content.is_down(scene.after) else "idle"
            dot.add_node(graph.node(str(scene.number), _lines(scene), kind))
        if scene.number:
            dest = trace.loop if trace.loop is not None and scene.number > last else scene.number
            path = Path.FAULT if trace.loop is not None and scene.number > trace.loop else Path.ORDINARY
            words = [graph.small(", ".join(scene.happened))] if scene.happened else []
            dot.add_edge(graph.edge(str(scene.number - 1), str(dest), [scene.title, *words], path))
    return dot


def _lines(scene: content.Scene) -> list[str]:
    """The text of a state: the server, then each session's mark and prompts."""
    server = scene.after
    lines = ["down"] * content.is_down(server) + ["closing"] * server.closing
    for index, session in enumerate(server.sessions):
        at = f"session {index + 1}: " if len(server.sessions) > 1 else ""
        lines.append(f"{at}mark {content.mark_text(session)}")
        lines += [f"{p.label} {scene.cells[p.seq].text}" for p in session.prompts]
    return lines
