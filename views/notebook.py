"""Rich displays of the model's objects in a notebook, after `%load_ext cancelmark.views.notebook`.

A notebook can be light on a machine that prefers dark mode, and vice versa. Everything shown here therefore has its own
background, which changes together with its text.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from cancelmark.model.check.explore import Result
from cancelmark.model.lifecycle import INITIAL
from cancelmark.model.properties import Property
from cancelmark.model.protocol import Protocol
from cancelmark.model.revisions.matrix import JUDGED, Column
from cancelmark.model.server import Server
from cancelmark.model.session import AnySession
from cancelmark.model.trace import Trace

from .course.exercises import JudgedPrediction, ShownBug
from .course.lanes import recording_svg
from .course.recording import Recording
from .drawing import theme
from .drawing.plots import columns, growth
from .drawing.render import render_svg
from .states.export import ExportedGraph
from .states.lifecycle import lifecycle_graph
from .states.space import space_graph
from .traces import content
from .traces.lifelines import trace_svg
from .traces.text import trace_text

PAPER_LIGHT, PAPER_DARK = "#ffffff", "#0d1117"
LINES = ("cancel", "happy", "ordinary", "fault")  # the theme's colours for the lines of a plot


@dataclass(frozen=True)
class Picture:
    """An SVG that a notebook shows."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class Sheet:
    """A piece of HTML that a notebook shows."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


# --- pictures

def on_paper(svg: str, says: str) -> str:
    """The SVG with its own background, at most as wide as the page, and with `says` as a text alternative."""
    described = f"</title>\n<desc>{escape(says, quote=False)}</desc>"
    root = f'class="{theme.ROOT_CLASS}"'
    return (svg.replace(root, f'class="{theme.ROOT_CLASS} paper"', 1)
            .replace("</title>", described, 1)
            .replace("\n</style>", f"\n{_paper()}\n</style>", 1))


def _paper() -> str:
    root = f".{theme.ROOT_CLASS}.paper"

    def rules(palette: theme.Palette, paper: str) -> str:
        plots = "".join(f"{root} .line{i} polyline {{ stroke: {palette.lines[name]}; }}\n"
                        f"{root} .line{i} circle {{ fill: {palette.lines[name]}; }}\n" for i, name in enumerate(LINES))
        bar, border = palette.fills[INITIAL.value]
        return (f"{root} {{ background: {paper}; }}\n{plots}"
                f"{root} .bar rect {{ fill: {bar}; stroke: {border}; }}\n"
                f"{root} .cross path {{ stroke: {palette.lines['cancel']}; }}\n"
                f"{root} .complaint {{ fill: {palette.lines['fault']}; }}")

    return "\n".join([
        f"{root} {{ max-width: 100%; height: auto; border-radius: 6px; }}",
        f"{root} .line polyline {{ stroke-width: 2.2; }}",
        f"{root} .cross path {{ stroke-width: 3; }}",
        rules(theme.LIGHT, PAPER_LIGHT),
        f"@media (prefers-color-scheme: dark) {{ {rules(theme.DARK, PAPER_DARK)} }}",
        f"@media print {{ {rules(theme.PAPER, '#fff')} }}",
    ])


def trace_picture(trace: Trace) -> str:
    """A trace as a sequence diagram."""
    title = f"A trace of {len(trace)} step{'s' * (len(trace) != 1)}"
    return on_paper(trace_svg(trace, title), trace_text(trace))


def recording_picture(history: Recording) -> str:
    """A history as a timeline."""
    ends = [f"{name} ends {outcome}" for name, outcome in history.ends.items()]
    return on_paper(recording_svg(history), ". ".join([*ends, *history.complaints()]) or "No prompt has ended.")


def protocol_picture(protocol: Protocol) -> str:
    """A protocol as its lifecycle diagram."""
    rows = (f"{r.trigger.value} takes {r.source.value} to {r.dest.value}" for r in protocol.rows)
    return on_paper(render_svg(lifecycle_graph(protocol.rows)), ". ".join(rows))


def space_picture(space: ExportedGraph) -> str:
    """A complete state graph."""
    steps = sum(edge.target != number for number, edges in enumerate(space.edges) for edge in edges)
    return on_paper(render_svg(space_graph(space)), f"{len(space.states)} states and {steps} steps between them")


def growth_picture(series: Mapping[str, Sequence[int]], across: str = "prompts", up: str = "states") -> Picture:
    """A line per series over 1, 2, 3, …, on a logarithmic scale."""
    says = ". ".join(f"{name}: {', '.join(f'{n:,}' for n in values)}" for name, values in series.items())
    return Picture(on_paper(growth(f"{up} by {across}", series, across, up), says))


def columns_picture(values: Sequence[int], across: str, up: str) -> Picture:
    """A column for each value, over 0, 1, 2, …"""
    return Picture(on_paper(columns(f"{up} by {across}", values, across, up), ", ".join(f"{n:,}" for n in values)))


# --- sheets

def sheet(html: str) -> str:
    """The HTML with its own stylesheet, scoped so that it affects nothing else on the page."""
    colours = theme.variables(".cancelmark-sheet", (PAPER_LIGHT, PAPER_DARK, "#fff"))
    return f'<style>{colours}\n{SHEET}</style>\n<div class="cancelmark-sheet">{html}</div>'


_SCOPE = ".cancelmark-sheet" * 3  # higher specificity than JupyterLab's rules for tables
SHEET = f"""
{_SCOPE} {{ background: var(--paper); color: var(--text); font: 13px/1.5 {theme.FONT_STACK};
  padding: 10px 12px; border-radius: 6px; display: inline-block; max-width: 100%; overflow-x: auto; }}
{_SCOPE} table {{ border-collapse: collapse; border: 0; margin: 0; min-width: 18rem; }}
{_SCOPE} :is(table, tr, td, th) {{ background: none; color: inherit; font-size: 13px; text-align: left; }}
{_SCOPE} caption {{ text-align: left; color: var(--faint); padding: 0 10px 6px; caption-side: top; }}
{_SCOPE} tr :is(td, th) {{ padding: 3px 10px; vertical-align: top; max-width: none;
  border-bottom: 1px solid color-mix(in srgb, var(--faint) 35%, transparent); }}
{_SCOPE} thead th {{ color: var(--faint); font-weight: normal; }}
{_SCOPE} tr .number {{ text-align: right; font-variant-numeric: tabular-nums; }}
{_SCOPE} :is(td:first-child, span) {{ white-space: nowrap; }}
{_SCOPE} .bad {{ color: var(--fault); font-weight: bold; }}
{_SCOPE} .good {{ color: var(--happy); }}
{_SCOPE} .state {{ display: inline-block; padding: 0 8px; border: 1px solid; border-radius: 5px; }}
""" + "\n".join(
    f"{_SCOPE} .state.{state} {{ background: var(--{state}); border-color: var(--{state}-border); }}"
    for state in theme.LIGHT.fills)


@dataclass(frozen=True)
class Word:
    """A table cell with a CSS class."""

    css: str
    words: str

    @property
    def html(self) -> str:
        return f'<span class="{self.css}">{escape(self.words)}</span>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Sheet:
    """A table with a caption. Numbers are aligned to the right."""
    def cell(value: object, tag: str) -> str:
        if isinstance(value, Word):
            return f"<{tag}>{value.html}</{tag}>"
        number = ' class="number"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
        words = f"{value:,}" if number else str(value)
        return f"<{tag}{number}>{escape(words)}</{tag}>"

    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "\n".join(f"<tr>{''.join(cell(value, 'td') for value in row)}</tr>" for row in rows)
    return Sheet(sheet(f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>\n"
                       f"<tbody>{body}</tbody></table>"))


def session_sheet(session: AnySession) -> str:
    """A session as a card: its mark, and the state of each prompt."""
    return _card("a session", [session])


def server_sheet(server: Server) -> str:
    """A server as a card: each of its sessions, and the latest seq."""
    closing = ", closing" * server.closing
    return _card(f"a server: latest seq {server.seq}{closing}", server.sessions)


def _card(caption: str, sessions: Sequence[AnySession]) -> str:
    rows: list[Sequence[object]] = []
    for number, session in enumerate(sessions, 1):
        where = [number] if len(sessions) > 1 else []
        mark = content.mark_text(session) + ", down" * session.down
        for i, p in enumerate(session.prompts or [None]):
            here = [mark if i == 0 else ""]
            if p is None:
                rows.append([*where, *here, "", "", "", ""])
                continue
            words, kind = content.prompt_text(session, p)
            rows.append([*where, *here, p.label, p.seq, "yes" if p.run_id else "no",
                         Word(f"state {kind}", words.replace("_", " "))])
    heads = [*(["session"] if len(sessions) > 1 else []), "mark", "prompt", "seq", "run id", "state"]
    return table(caption, heads, rows).html


def result_sheet(result: Result) -> str:
    """The result of a search: the counts, and each violated property with the length of the shortest trace."""
    verdict = Word("good" if result.verdict == "holds" else "bad", result.verdict)
    rows: list[Sequence[object]] = [
        ("states", result.states), ("edges", result.edges), ("depth", result.depth), ("verdict", verdict)]
    rows += [(f"violates {id}", f"after {len(trace)} step{'s' * (len(trace) != 1)}")
             for id, trace in result.violations.items()]
    rows += [("unreachable", goal) for goal in result.unmet]
    rows += [("stopped", result.stopped)] if result.stopped else []
    return table(f"{result.protocol.name}: every interleaving within {result.bounds}", ("what", "found"), rows).html


def prediction_sheet(judged: JudgedPrediction) -> str:
    """A prediction compared with what happened."""
    rows = []
    for name, said in judged.said.items():
        was = judged.was.get(name, "no end")
        right = Word("good", "right") if said == was else Word("", "–") if said is ... else Word("bad", "wrong")
        rows.append((name, "no prediction" if said is ... else said, was, right))
    was_so = escape(json.dumps({name: judged.was.get(name, "no end") for name in judged.said}))
    sheet = table("Your prediction", ("prompt", "your prediction", "actual outcome", "result"), rows).html
    return f'<div class="prediction" data-ends="{was_so}">{sheet}</div>'


def shown_bug_sheet(found: ShownBug) -> str:
    """A bug that was found."""
    rows = [("first difference", f"step {found.step}, {found.call}"), ("what was changed", Word("good", found.bug))]
    return table(f"Exercise {found.number}: you found the bug", ("about", "the bug"), rows).html


def matrix_sheet(judged: Sequence[Column], properties: Sequence[Property] = JUDGED) -> Sheet:
    """The verdict matrix, with a row per property and a column per protocol."""
    def verdict(column: Column, id: str) -> Word:
        says = column.cell(id)
        return Word({"h": "good", "f": "bad"}.get(says[0], ""), says)

    return table("Property by protocol. A number is the length of the shortest counterexample.",
                 ("property", "what it says", *(c.name for c in judged)),
                 ((p.id, p.sentence, *(verdict(c, p.id) for c in judged)) for p in properties))


# --- registration

PICTURES: Mapping[type, Callable[[Any], str]] = {
    Trace: trace_picture, Recording: recording_picture, Protocol: protocol_picture, ExportedGraph: space_picture}
SHEETS: Mapping[type, Callable[[Any], str]] = {
    AnySession: session_sheet, Server: server_sheet, Result: result_sheet, JudgedPrediction: prediction_sheet,
    ShownBug: shown_bug_sheet}


def register(
    shell: Any, pictures: Mapping[type, Callable[[Any], str | None]], sheets: Mapping[type, Callable[[Any], str]],
) -> None:
    """Register these functions with IPython as the SVG and HTML displays of these types."""
    for mime, shows in (("image/svg+xml", pictures), ("text/html", sheets)):
        for shown, function in shows.items():
            shell.display_formatter.formatters[mime].for_type(shown, function)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext cancelmark.views.notebook`."""
    register(shell, PICTURES, SHEETS)
