"""A page as one HTML file that needs nothing else: the frame, the style, the program, and the graphs that it walks."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files

from cancelmark.model.lifecycle import Row
from cancelmark.model.protocol import REFERENCE
from cancelmark.views.drawing import theme
from cancelmark.views.drawing.render import inline
from cancelmark.views.states.board import lifecycle_board

from .graphs import PackedGraph

SCRIPTS = ("graph.js", "draw.js", "stage.js", "explorer.js", "page.js")


def dress_page(
    title: str, body: str, payload: object, graphs: Mapping[str, PackedGraph], nav: Mapping[str, str],
    rows: Sequence[Row] = REFERENCE.rows,
) -> str:
    """The body in its frame. Slots in the body, such as the explorer, are filled too."""
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
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _graph(name: str, graph: PackedGraph) -> str:
    return f'<script type="text/plain" id="graph-{name}">{b64encode(graph.packed).decode()}</script>'
