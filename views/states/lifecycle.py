"""The lifecycle diagram of a prompt, generated from the given rows only."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import pydot

from cancelmark.model.lifecycle import INITIAL, Outcome, Row, State
from cancelmark.model.protocol import REFERENCE

from ..drawing import graph
from ..drawing.paths import Path, mermaid_legend

TITLE = "The lifecycle of a prompt"


def path_of(row: Row) -> Path:
    """The path of a row, determined by its outcome or by the state that it leads to."""
    if row.outcome is Outcome.CANCELED or row.dest is State.CANCELED_ON_ENTRY:
        return Path.CANCEL
    if row.outcome is Outcome.ERROR:
        return Path.FAULT
    if row.outcome is Outcome.END_TURN or (row.source is INITIAL and row.dest is State.ACTIVE):
        return Path.HAPPY
    return Path.ORDINARY


def label_of(row: Row) -> str:
    """A trigger with its guards, and the outcome of a row into done: `enter [covered]`, `settle / canceled`."""
    guards = f" [{row.condition}]" if row.condition else ""
    outcome = f" / {row.outcome.value}" if row.outcome else ""
    return f"{row.trigger.value}{guards}{outcome}"


def brief_label(row: Row) -> str:
    """A short label: `enter if covered`, `finish: end_turn`. The table of rows has the details."""
    name, _, outcome = row.trigger.value.partition("_")
    when = f" if {' and '.join(guard.value.replace('_', ' ') for guard in row.when)}" if row.when else ""
    return f"{name}: {outcome}" if outcome else f"{name}{when}"


class Edge(NamedTuple):
    """The rows between the same two states on the same path."""

    source: State
    dest: State
    path: Path
    rows: list[Row]


def _edges(rows: Iterable[Row]) -> list[Edge]:
    """The edges in the order of the states; the rows of one edge in the given order."""
    states, paths = list(State), list(Path)

    def place(row: Row) -> tuple[int, int, int]:
        return states.index(row.source), states.index(row.dest), paths.index(path_of(row))

    return [Edge(states[s], states[d], paths[p], list(group))
            for (s, d, p), group in groupby(sorted(rows, key=place), key=place)]


def lifecycle_graph(rows: Sequence[Row] = REFERENCE.rows) -> pydot.Dot:
    """The rows as a Graphviz graph. The same rows give the same text, byte for byte."""
    dot = graph.digraph(TITLE, rankdir="LR", nodesep="0.35", ranksep="0.6")
    graph.add_start(dot, INITIAL.value, "accept")
    for state in State:
        room = {"height": "1.6"} if state is State.DONE else {}  # most edges end there
        dot.add_node(graph.node(state.value, [state.value], state.value, **room))
    edges = _edges(rows)
    for source, dest, path, group in edges:
        lines = [f"{label_of(row)} {graph.small(row.rule)}".strip() for row in group]
        straight = {"tailport": "e", "headport": "w"} if path is Path.HAPPY else {}
        dot.add_edge(graph.edge(source.value, dest.value, lines, path, **straight))
    graph.add_legend(dot, {edge.path for edge in edges})
    return dot


def brief_lifecycle_graph(rows: Sequence[Row] = REFERENCE.rows) -> pydot.Dot:
    """The same graph with short labels in large type, for a page that also has the table of rows."""
    dot = graph.digraph(TITLE, rankdir="LR", nodesep="0.3", ranksep="0.45")
    dot.set_node_defaults(fontsize="17")
    dot.set_edge_defaults(fontsize="15")
    graph.add_start(dot, INITIAL.value, "")
    for state in State:
        dot.add_node(graph.node(state.value, [state.value.replace("_", " ")], state.value))
    for source, dest, path, group in _edges(rows):
        lines = list(dict.fromkeys(map(brief_label, group)))
        straight = {"tailport": "e", "headport": "w"} if path is Path.HAPPY else {}
        dot.add_edge(graph.edge(source.value, dest.value, lines, path, **straight))
    return dot


def lifecycle_mermaid(rows: Sequence[Row] = REFERENCE.rows) -> str:
    """The rows as a Mermaid state diagram, with the same labels, and signs instead of line styles."""
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {INITIAL.value} : accept"]
    edges = _edges(rows)
    for source, dest, path, group in edges:
        label = "<br/>".join(path.with_sign(label_of(row)) for row in group)
        lines.append(f"    {source.value} --> {dest.value} : {label}")
    lines += [f"    {State.DONE.value} --> [*]", *mermaid_legend({edge.path for edge in edges}, beside=INITIAL.value)]
    return "\n".join(lines) + "\n"
