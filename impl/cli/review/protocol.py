"""A review of somebody's own protocol: verdicts, shortest counterexamples and diagrams on one page."""

from html import escape
from typing import Any

from cancelmark.model.check.explore import Result, explore_fully
from cancelmark.model.properties import PROPERTIES, Bounds
from cancelmark.model.protocol import Protocol
from cancelmark.model.trace import Trace
from cancelmark.views.lifecycle import lifecycle_graph
from cancelmark.views.render import inline, render_svg
from cancelmark.views.session import session_graph
from cancelmark.views.trace import trace_text

from ..check import verdict_of, watching
from .findings import CHECKED


def search(protocol: Protocol) -> dict[Bounds, Result]:
    """The protocol, searched as the reference is."""
    with watching(f"searching {protocol.name}") as watch:
        return {bounds: explore_fully(protocol, bounds, watch=watch) for bounds in CHECKED}


def verdicts(found: dict[Bounds, Result]) -> dict[str, str]:
    """By property: `violated` if any search says so."""
    said = {p.id: [verdict_of(result, p) for result in found.values()] for p in PROPERTIES}
    return {id: "violated" if "violated" in each else "holds" for id, each in said.items()}


def problems(found: dict[Bounds, Result]) -> list[str]:
    """What does not hold, in words."""
    return [*(f"{id} is violated within {bounds}" for bounds, result in found.items() for id in result.violations),
            *(f"{goal} never happens within {bounds}" for bounds, result in found.items() for goal in result.unmet)]


def page(protocol: Protocol, found: dict[Bounds, Result]) -> str:
    rows = "".join(f"<tr><th>{id}</th><td>{verdict}</td><td>{escape(p.sentence)}</td></tr>\n"
                   for p, (id, verdict) in zip(PROPERTIES, verdicts(found).items()))
    traces: dict[str, Trace] = {}
    for id, trace in (item for result in found.values() for item in result.violations.items()):
        traces[id] = min(traces.get(id, trace), trace, key=len)
    shown = "".join(f"<h3>{id}: {len(trace)} steps</h3>\n<pre>{escape(trace_text(trace))}</pre>\n"
                    for id, trace in traces.items())
    searched = "".join(f"<li>{bounds}: {result.states:,} states, {result.verdict}</li>\n"
                       for bounds, result in found.items())
    wrong = "".join(f"<li>{escape(what)}</li>\n" for what in problems(found))
    return PAGE.format(
        name=escape(protocol.name), verdict="violated" if wrong else "holds", rows=rows, searched=searched,
        wrong=f"<ul>{wrong}</ul>" if wrong else "", traces=shown or "<p>There are none.</p>",
        lifecycle=inline(render_svg(lifecycle_graph(protocol.rows))),
        session=inline(render_svg(session_graph(protocol))))


def report(protocol: Protocol, found: dict[Bounds, Result], path: str) -> dict[str, Any]:
    """The same for programs."""
    return {"page": path, "protocol": protocol.name, "verdict": "violated" if problems(found) else "holds",
            "wrong": problems(found), "states": sum(result.states for result in found.values()),
            "properties": verdicts(found)}


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Review of {name}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; }}
pre, .picture {{ overflow-x: auto; }}
</style>
<h1>Review of {name}: {verdict}</h1>
{wrong}
<ul>
{searched}</ul>
<h2>Properties</h2>
<table>
{rows}</table>
<h2>Shortest counterexamples</h2>
{traces}
<h2>The life of one prompt</h2>
<div class="picture">{lifecycle}</div>
<h2>One session</h2>
<div class="picture">{session}</div>
</html>
"""
