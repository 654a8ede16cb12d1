"""The review of a user-defined protocol against the reference: verdicts, counterexamples, diagrams and the explorer."""

from dataclasses import dataclass
from html import escape
from typing import Any

from cancelmark.model.check.comparison import BOUNDS, Comparison, compare
from cancelmark.model.check.explore import Result, explore_fully
from cancelmark.model.properties import PROPERTIES, Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.revisions.matrix import ANY, Profile
from cancelmark.model.trace import Trace
from cancelmark.views.drawing.render import inline, render_svg
from cancelmark.views.states.session import session_graph
from cancelmark.views.traces.text import trace_text

from ..check import verdict_of, watching
from ..diff import calls, tell_step
from . import reading
from .dressing import PackedGraph, asset, draw_table, dress_page, pack_graph
from .findings import CHECKED, REF
from .payload import SENTENCES, ShownTrace
from .sections import rows_table
from .whatif import walks_in

PLAYED = Bounds(2, cancels=1, clears=1, requeues=1, crashes=1, closes=1)
OWN = "own"
NAV = {"holds": "Verdicts", "counterexamples": "Counterexamples", "differences": "Differences", "play": "Explorer",
       "words": "Glossary", "rules": "Rules"}


@dataclass(frozen=True)
class Reviewed:
    """The findings on a protocol."""

    protocol: Protocol
    results: dict[Bounds, Result]
    reference: dict[Bounds, Result]
    compared: Comparison

    @property
    def problems(self) -> list[str]:
        """The violated properties and unreached goals, in words."""
        return [
            *(f"{id} is violated within {bounds}" for bounds, found in self.results.items() for id in found.violations),
            *(f"{goal} is never reached within {bounds}" for bounds, found in self.results.items()
              for goal in found.unmet)]

    @property
    def shortest(self) -> dict[str, Trace]:
        """The shortest counterexample of each violated property."""
        found: dict[str, Trace] = {}
        for id, trace in (item for result in self.results.values() for item in result.violations.items()):
            found[id] = min(found.get(id, trace), trace, key=len)
        return {p.id: found[p.id] for p in PROPERTIES if p.id in found}


def search(protocol: Protocol) -> Reviewed:
    """Explores the protocol and the reference within the same bounds, and compares them."""
    with watching(f"searching {protocol.name}") as watch:
        own = {bounds: explore_fully(protocol, bounds, watch=watch) for bounds in CHECKED}
        reference = {bounds: explore_fully(REFERENCE, bounds, watch=watch) for bounds in CHECKED}
        return Reviewed(protocol, own, reference, compare(REFERENCE, protocol))


def verdicts(found: dict[Bounds, Result]) -> dict[str, str]:
    """The verdict on each property: `violated` if any search violates it."""
    said = {p.id: [verdict_of(result, p) for result in found.values()] for p in PROPERTIES}
    return {id: "violated" if "violated" in each else "holds" for id, each in said.items()}


def report(found: Reviewed, path: str) -> dict[str, Any]:
    """The findings as data for `--json`."""
    return {"page": path, "protocol": found.protocol.name, "verdict": "violated" if found.problems else "holds",
            "wrong": found.problems, "states": sum(result.states for result in found.results.values()),
            "properties": verdicts(found.results),
            "counterexamples": {id: calls(trace) for id, trace in found.shortest.items()}}


# --- the page

def page(found: Reviewed) -> str:
    protocol = found.protocol
    walked = {id: trace for id, trace in found.shortest.items()
              if trace.loop is None and len(trace.start.sessions) == 1 and walks_in(protocol, trace)}
    played = Profile(PLAYED, protocol.action("accept").variants, "the explorer")
    graph, walks = pack_graph(protocol, [played], list(walked.values()))
    reference, _ = pack_graph(REFERENCE, [Profile(PLAYED, ANY, "the explorer")])
    shown = [_shown(protocol, id, walk) for id, walk in zip(walked, walks)]
    parts = {
        "name": escape(protocol.name), "verdict": _verdict(found),
        "matrix": _matrix(found, {trace.id for trace in shown}),
        "traces": _traces(found, set(walked)), "differences": _differences(found),
        "lifecycle": reading.draw_lifecycle(protocol.rows),
        "session": inline(render_svg(session_graph(protocol))), "rows": rows_table(protocol.rows),
        "arrows": reading.arrow_words(), "glossary": reading.glossary(),
    }
    payload = {
        "protocols": [{"id": OWN, "title": protocol.name, "group": "Reviewed", "play": None},
                      {"id": REF, "title": "the reference", "group": "The reference", "play": REF}],
        "properties": SENTENCES, "traces": [trace._asdict() for trace in shown],
    }
    graphs: dict[str, PackedGraph] = {OWN: graph, REF: reference}
    body = reading.fill(asset("own.html"), parts)
    return dress_page(f"Review of {escape(protocol.name)}", body, payload, graphs, NAV, rows=protocol.rows)


def _shown(protocol: Protocol, id: str, walk: list[int]) -> ShownTrace:
    return ShownTrace(f"{OWN}/{id}", OWN, "Shortest counterexamples", f"{id}, {len(walk)} steps",
                      f"{protocol.name} violates {id}", f"{SENTENCES[id]} Violated after {len(walk)} steps.", walk)


def _verdict(found: Reviewed) -> str:
    states = sum(result.states for result in found.results.values())
    searched = "; ".join(f"{reading.bounds_text(bounds)}: {result.states:,} states"
                         for bounds, result in found.results.items())
    if not found.problems:
        return (f'<div class="verdict holds"><p><strong>All properties hold.</strong></p><p>Every property held in '
                f"{states:,} states. Bounds: {searched}.</p></div>")
    broken, unmet = len(found.shortest), {goal for result in found.results.values() for goal in result.unmet}
    says = [f"{broken} of {len(PROPERTIES)} properties are violated." if broken else "No property is violated.",
            *(f"{goal} is never reached." for goal in sorted(unmet))]
    return (f'<div class="verdict violated"><p><strong>The check failed.</strong></p><div>'
            f'<ul>{"".join(f"<li>{escape(what)}</li>" for what in says)}</ul><p>Bounds: {searched}.</p></div></div>')


def _matrix(found: Reviewed, shown: set[str]) -> str:
    own, reference = verdicts(found.results), verdicts(found.reference)

    def cell(id: str) -> str:
        if own[id] == "holds":
            return '<span class="says good">✓ holds</span>'
        steps = len(found.shortest[id])
        if f"{OWN}/{id}" not in shown:
            return f'<a class="says bad" href="#trace-{id}">✗ {steps}</a>'
        return (f'<button type="button" class="fails" data-show="{OWN}/{id}"><span aria-hidden="true">✗</span> {steps}'
                f'<span class="unseen"> steps: how {found.protocol.name} violates {id}</span></button>')

    return draw_table("The verdicts", ("property", "statement", "reference", escape(found.protocol.name)), (
        (f"<code>{p.id}</code>", escape(p.sentence), "✓ holds" if reference[p.id] == "holds" else "✗ violated",
         cell(p.id)) for p in PROPERTIES), "matrix own-matrix")


def _traces(found: Reviewed, drawn: set[str]) -> str:
    def article(id: str, trace: Trace) -> str:
        how = (f'<div class="sequence still" data-draw="{OWN}/{id}" tabindex="0" role="group" '
               f'aria-label="How {found.protocol.name} violates {id}"></div>' if id in drawn else
               f'<pre tabindex="0">{escape(trace_text(trace))}</pre>')
        return (f'<article id="trace-{id}"><h3>{id}: {len(trace)} steps</h3><p>{escape(SENTENCES[id])}</p>{how}'
                "</article>")

    if not found.shortest:
        return "<p>None.</p>"
    return f'<div class="stories-grid">{"".join(article(id, t) for id, t in found.shortest.items())}</div>'


def _differences(found: Reviewed) -> str:
    compared = found.compared
    only = "".join(f"<p>Only {name} has {escape(', '.join(actions))}.</p>" for name, actions in
                   zip(("the reference", found.protocol.name), compared.only) if actions)
    if not compared.differences:
        return only + f"<p>Every action behaves as in the reference within {reading.bounds_text(BOUNDS)}.</p>"
    return only + draw_table("Differences", ("call", "after", "reference", escape(found.protocol.name)), (
        (f"<code>{escape(d.call)}</code>", escape(" · ".join(calls(d.histories[0])) or "the start"),
         *(escape(tell_step(history, step)) for history, step in zip(d.histories, d.steps)))
        for d in compared.differences.values()), "actions-table")
