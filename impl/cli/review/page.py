"""The review page: all findings in one self-contained HTML file."""

import re

from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.model.cluster.log import LOG_PROPERTIES
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.views.drawing.render import inline, render_svg
from cancelmark.views.states.session import session_graph

from . import reading, sections
from .dressing import asset, dress_page
from .family import cluster, family, searched_bounds, searched_sets, searched_states
from .findings import Findings
from .payload import graphs, make_payload

NAV = {
    "why": "Why it works",
    "holds": "Verdicts",
    "play": "Explorer",
    "guarantees": "Examples",
    "history": "History",
    "flaws": "Flaws",
    "whatif": "What if …",
    "family": "Optional calls",
    "cluster": "Clustering",
    "unpromised": "Not guaranteed",
    "unchecked": "Not checked",
    "words": "Glossary",
    "rules": "Rules",
}


def page(found: Findings) -> str:
    """The whole page."""
    parts = {
        "verdict": sections.verdict(found),
        "lifecycle": reading.draw_lifecycle(REFERENCE.rows),
        "arrows": reading.arrow_words(),
        "rows": sections.rows_table(REFERENCE.rows),
        "session": inline(render_svg(session_graph())),
        "why": reading.why(found),
        "properties": sections.properties(found),
        "others": reading.others(),
        "guarantees": sections.guarantees(found),
        "matrix": sections.matrix(found),
        "story": sections.story(),
        "ladder": sections.ladder(),
        "flaw_count": str(len(FLAWS)),
        "flaws": sections.flaws(found),
        "whatif": sections.whatif(found),
        "family": family(), **searched_sets(),
        "cluster": cluster(), "cluster_states": searched_states(), "cluster_flaws": str(len(ALL_FLAWS)),
        "cluster_properties": str(len((*CLUSTER_PROPERTIES, *LOG_PROPERTIES))), "cluster_bounds": searched_bounds(),
        "figures": sections.figures(found),
        "unpromised": reading.unpromised(),
        "glossary": reading.glossary(),
        **sections.limits(found),
    }
    template = re.sub(r"\[(R\d+[a-z]?)\]", lambda rule: reading.cite(rule[1]), reading.explain(asset("page.html")))
    body = reading.fill(template, parts)
    return dress_page("Cancelmark: the review", body, make_payload(found), graphs(found), NAV)
