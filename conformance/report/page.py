"""A report as one self-contained HTML page: the verdicts, a diagram of each finding, and how to reproduce it."""

import re
from collections.abc import Iterable
from html import escape
from importlib.metadata import version
from importlib.resources import files

from cancelmark.views.drawing import theme
from cancelmark.views.drawing.render import inline

from ..playing.scenarios import SCENARIOS
from .exchange import exchange_svg, exchange_text
from .verdicts import LEGEND, Decision, Finding, Report, Status, Verdict

SENTENCES = {Decision.CONFORMS: "the server conforms",
             Decision.NOTHING_BROKEN: "nothing is broken, but not everything was tested",
             Decision.UNKNOWN: "the result is inconclusive"}
_CODE = re.compile(r"`(.+?)`")


def report_page(report: Report) -> str:
    """The report as a complete HTML document."""
    broken = [v for v in report.verdicts if v.finding]
    parts = [
        f'<h1><span class="eyebrow">Conformance report</span> {escape(report.name)}</h1>',
        _headline(report),
        _section("guarantees", "Guarantees", _table(
            ("guarantee", "verdict", "reason"), (_verdict_row(v) for v in report.rows)) + _unoffered(report)),
        *([_section("scripts", "Scripts", _list(map(str, report.replays)))] if report.replays else []),
        *(_finding(v) for v in broken),
        *([_section("scenarios", "Scenarios", _table(
            ("scenario", "tests", "script", "result"), _scenario_rows(report)))] if report.scenarios else []),
        *([_section("notes", "Notes", _list(report.notes))] if report.notes else []),
    ]
    style = "\n".join([theme.stylesheet(), theme.variables(), files(__package__).joinpath("page.css").read_text()])
    legend = _CODE.sub(r"<code>\1</code>", escape(LEGEND)) if broken or report.scenarios else ""
    return PAGE.format(title=escape(f"{report.name}: {_sentence(report)}"), version=version("cancelmark"), style=style,
                       legend=legend, body="\n".join(parts))


def _sentence(report: Report) -> str:
    broken = len(report.broken)
    if broken:
        return f"{broken} {'guarantee is' if broken == 1 else 'guarantees are'} broken"
    return SENTENCES[report.decision] if report.kept else "no guarantee was tested"


def _headline(report: Report) -> str:
    counts = [(f"{len(report.of(status))}", status.value) for status in Status if report.of(status)]
    counts += [(f"{report.histories:,}", "histories"), (f"{report.seconds:,.0f} s", f"profile {report.profile}")]
    facts = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(n)}</dd></div>" for n, what in counts)
    kind = "broken" if report.broken else "kept" if report.ok else "not-tested"
    says = f'<strong class="{kind}">{_sentence(report).capitalize()}.</strong>'
    return f'<div class="verdict">{says}<dl>{facts}</dl></div>'


def _verdict_row(v: Verdict) -> list[str]:
    name = f"<code>{escape(v.guarantee)}</code>"
    if v.finding:
        name = f'<a href="#{escape(v.guarantee)}">{name}</a>'
    return [name, f'<span class="{_css(v.status)}">{v.status.value}</span>',
            f'{escape(v.about)}<small>{escape(v.sentence)}{escape(f" ({v.rules})" if v.rules else "")}</small>']


def _unoffered(report: Report) -> str:
    return f'<p class="rule">{escape(report.unoffered.capitalize())}.</p>' if report.unoffered else ""


def _scenario_rows(report: Report) -> Iterable[list[str]]:
    for scenario in SCENARIOS:
        if scenario.name not in report.scenarios:
            continue
        shown = report.scenarios[scenario.name]
        if isinstance(shown, Finding):
            result = '<span class="broken">broken</span>'
        else:
            result = f'<span class="none">{escape(shown)}</span>' if shown else '<span class="kept">kept</span>'
        yield [f"<code>{escape(scenario.name)}</code>", f"<code>{escape(scenario.guarantee)}</code>",
               f"<code>{escape(scenario.script.steps)}</code>", result]


def _finding(v: Verdict) -> str:
    assert v.finding
    found = v.finding
    picture = inline(exchange_svg(found.history.observations, f"Observed exchange: {v.about}", heading=False))
    rules = f" ({escape(v.rules)})" if v.rules else ""
    return _section(v.guarantee, f"<code>{escape(v.guarantee)}</code> is broken", f"""\
<p class="lead">{escape(v.about)}</p>
<p class="rule">Rule{rules}: {escape(v.sentence)}</p>
<p>Script: <code>{escape(found.script.steps)}</code></p>
<figure class="picture" tabindex="0" role="group" aria-label="Observed exchange">{picture}</figure>
<details><summary>As text</summary><pre tabindex="0">{escape(exchange_text(found.history.observations))}</pre>
</details>
{f'<p class="rule">{escape(found.note)}</p>' if found.note else ''}
<p>Reproduce with:</p>
<pre class="command" tabindex="0"><code>{escape(found.reproduce)}</code></pre>""", "finding")


def _section(id: str, title: str, body: str, css: str = "") -> str:
    return f'<section id="{escape(id)}" class="{css}"><h2>{title}</h2>\n{body}\n</section>'


def _table(headings: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "\n".join(f'<tr><th scope="row">{first}</th>' + "".join(
        f'<td data-head="{heading}">{cell}</td>' for heading, cell in zip(headings[1:], rest)) + "</tr>"
        for first, *rest in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _css(status: Status) -> str:
    return status.value.replace(" ", "-")


PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="cancelmark {version}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
<footer>{legend} The diagrams show what clients and the language model observed; the server's internal steps are not
known. Generated by <code>cancelmark conform</code>, version {version}.</footer>
</body>
</html>
"""
