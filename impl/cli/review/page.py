"""The page: everything that was found, as one HTML file that needs nothing else."""

import json
import re
from base64 import b64encode
from importlib.metadata import version
from importlib.resources import files

from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.views import theme
from cancelmark.views.board import lifecycle_board
from cancelmark.views.lifecycle import lifecycle_graph
from cancelmark.views.render import inline, render_svg

from . import sections
from .findings import Findings, PackedGraph
from .payload import graphs, make_payload

SCRIPTS = ("graph.js", "draw.js", "stage.js", "explorer.js", "page.js")


def page(found: Findings) -> str:
    """The whole page."""
    parts = {
        "version": version("cancelmark"),
        "style": "\n".join([
            theme.stylesheet(), theme.variables(), _asset("style.css"),
            theme.prompt_rules(".pill.KIND, .swatch.KIND", theme.FILLED),
            theme.prompt_rules(".cancelmark .band.KIND rect", "fill: var(--KIND-border);")]),
        "verdict": sections.verdict(found),
        "lifecycle": inline(render_svg(lifecycle_graph())),
        "board": inline(lifecycle_board()),
        "properties": sections.properties(found),
        "guarantees": sections.guarantees(found),
        "matrix": sections.matrix(found),
        "ladder": sections.ladder(),
        "flaw_count": str(len(FLAWS)),
        "flaws": sections.flaws(found),
        "actions": sections.actions(),
        "figures": sections.figures(found),
        **sections.limits(found),
        "payload": _json(make_payload(found)),
        "graphs": "\n".join(_graph(name, graph) for name, graph in graphs(found).items()),
        "script": '"use strict";\n' + "\n".join(map(_asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _graph(name: str, graph: PackedGraph) -> str:
    return f'<script type="text/plain" id="graph-{name}">{b64encode(graph.packed).decode()}</script>'
