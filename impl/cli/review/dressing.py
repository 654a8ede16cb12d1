"""The frame of a self-contained page: style, tables, scripts, and the state graphs that the scripts walk."""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files

from cancelmark.model.lifecycle import Row
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.trace import Trace
from cancelmark.views.drawing import theme
from cancelmark.views.drawing.render import inline
from cancelmark.views.states.board import lifecycle_board
from cancelmark.views.states.export import document, graph_of

SCRIPTS = ("graph.js", "draw.js", "stage.js", "explorer.js", "page.js")


# --- graphs

@dataclass(frozen=True)
class PackedGraph:
    """A state graph, compressed for the page."""

    packed: bytes
    states: int
    steps: int


def pack_graph(
    behaviour: Behaviour, profiles: Sequence[Profile], traces: Sequence[Trace] = (), sessions: int = 1,
) -> tuple[PackedGraph, list[list[int]]]:
    """The compressed graph, and the traces as walks in it."""
    graph = graph_of(behaviour, profiles, traces, sessions)
    text = json.dumps(document(graph), separators=(",", ":"), ensure_ascii=False)
    data = gzip.compress(text.encode(), mtime=0)
    return PackedGraph(data, len(graph.states), sum(map(len, graph.edges))), [graph.path(trace) for trace in traces]


# --- the page

def dress_page(
    title: str, body: str, payload: object, graphs: Mapping[str, PackedGraph], nav: Mapping[str, str],
    rows: Sequence[Row] = REFERENCE.rows,
) -> str:
    """The body in its frame, with the slots of the body filled too, such as the explorer."""
    links = "".join(f'<a href="#{id}">{name}</a>' for id, name in nav.items())
    parts = {
        "title": title, "version": version("cancelmark"), "nav": f'<nav aria-label="Sections">{links}</nav>',
        "style": "\n".join([
            theme.stylesheet(), theme.variables(), asset("style.css"),
            theme.prompt_rules(".pill.KIND, .swatch.KIND", theme.FILLED),
            theme.prompt_rules(".cancelmark .band.KIND rect", "fill: var(--KIND-border);")]),
        "board": inline(lifecycle_board(rows)),
        "explorer": asset("explorer.html"), "dialog": asset("dialog.html"),
        "payload": _json(payload),
        "graphs": "\n".join(_graph(name, graph) for name, graph in graphs.items()),
        "script": '"use strict";\n' + "\n".join(map(asset, SCRIPTS)),
    }
    frame = asset("frame.html").replace("{{body}}", body)
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], frame)


def asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that cannot close its enclosing element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _graph(name: str, graph: PackedGraph) -> str:
    return f'<script type="text/plain" id="graph-{name}">{b64encode(graph.packed).decode()}</script>'


# --- tables

def draw_table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], css: str = "", right: Iterable[int] = (),
) -> str:
    """A table of HTML cells, the first of each row its heading."""
    numbers = set(right)

    def css_of(i: int) -> str:
        return ' class="number"' if i in numbers else ""

    head = "".join(f'<th scope="col"{css_of(i)}>{heading}</th>' for i, heading in enumerate(headings))
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f'<td{css_of(i)} data-head="{escape(headings[i])}">{cell}</td>' for i, cell in enumerate(rest, 1))
        + "</tr>" for first, *rest in rows)
    return (f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table class="{css}">'
            f'<caption class="unseen">{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
            "</table></div>")
