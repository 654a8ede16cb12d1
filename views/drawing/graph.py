"""Graphviz graphs in the common style: plain labels; line styles and CSS classes carry the meaning."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pydot

from .paths import Path

FONT = "Helvetica"  # a single name: Graphviz measures a list of fonts as if it were Times, and text overflows

_WEIGHT = {path: "30" if path is Path.HAPPY else "2" for path in Path}  # heavier edges are straighter


def digraph(title: str, **attributes: Any) -> pydot.Dot:
    """An empty graph. Its name becomes the title of the rendered SVG."""
    graph = pydot.Dot(title, graph_type="digraph", bgcolor="transparent", fontname=FONT, **attributes)
    graph.set_node_defaults(shape="box", style="rounded", fontname=FONT, fontsize="13", margin="0.22,0.1")
    graph.set_edge_defaults(fontname=FONT, fontsize="11", arrowsize="0.8")
    return graph


def small(text: str) -> str:
    """Mark `text` to be rendered small. Graphviz itself supports only one font size per label."""
    return f"‹{text}›" if text else ""


def node(name: str, lines: Sequence[str], css: str, **attributes: Any) -> pydot.Node:
    made = pydot.Node(name, label="\n".join(lines), **attributes)
    made.set("class", css)
    return made


def edge(source: str, dest: str, lines: Sequence[str], path: Path, **attributes: Any) -> pydot.Edge:
    """An edge with one label line for each of its transitions."""
    label = "".join(f" {line} \\l" for line in lines)
    made = pydot.Edge(source, dest, label=label, style=path.line, weight=_WEIGHT[path], **attributes)
    made.set("class", path.css)
    return made


def add_start(dot: pydot.Dot, name: str, label: str) -> None:
    """Add the initial dot, and the edge from it to the node `name`."""
    dot.add_node(node("start", [], "start", shape="circle", style="filled", width="0.16", fillcolor="black"))
    dot.add_edge(edge("start", name, [label] if label else [], Path.HAPPY))


def add_legend(dot: pydot.Dot, paths: Iterable[Path]) -> None:
    """Add one sample arrow per path, from left to right and one below the other, whatever the graph's direction."""
    across = dot.get("rankdir") == "LR"
    shown = sorted(paths, key=list(Path).index, reverse=across)  # separate components then stack from the bottom up
    box = pydot.Subgraph("cluster_legend", label="", style="invis")
    for path in shown:
        line = pydot.Subgraph(f"legend {path.css}")
        if not across:
            line.set("rank", "same")
        line.add_node(node(_tail(path), [], "legend", shape="point", width="0.02"))
        line.add_node(node(f"{path.css} head", [f"{path.legend}\\l"], "legend", shape="plaintext", fontsize="11",
                           margin="0.06,0", width="1", height="0.2"))
        line.add_edge(edge(_tail(path), f"{path.css} head", [], path))
        box.add_subgraph(line)
    if not across:
        for above, below in pairwise(shown):
            box.add_edge(pydot.Edge(_tail(above), _tail(below), style="invis"))
    dot.add_subgraph(box)


def _tail(path: Path) -> str:
    return f"{path.css} tail"
