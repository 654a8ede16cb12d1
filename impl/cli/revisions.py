"""`cancelmark revisions` and `cancelmark explain`: what the original got wrong, and how."""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from rich.table import Table

from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.flaws import FLAWS, FLAWS_BY_NAME, Flaw
from cancelmark.model.revisions.matrix import JUDGED, PROFILES, Column, PackedColumn, column, ladder
from cancelmark.model.trace import Trace
from cancelmark.views.pages.tables import matrix_table
from cancelmark.views.traces.itf import trace_itf
from cancelmark.views.traces.sequence import trace_mermaid
from cancelmark.views.traces.text import trace_text
from cancelmark.views.traces.timeline import trace_svg

from ..files import UsageError, write
from . import cluster
from .protocols import known_protocols
from .review.workers import open_workers, processors
from .terminal import output
from .width import Help, columns

MATRIX_HELP = """\
Search every revision of the original protocol, and the reference, and show which property each keeps or breaks.

A number is the length of the shortest counterexample. `cancelmark explain` tells the stories behind them;
`cancelmark check --protocol NAME` shows the counterexamples of one revision.
"""

EXPLAIN_HELP = """\
Tell one flaw of the original protocol: its story, the shortest interleaving that shows it, and what rules it out. Or
one of a cluster of servers, where a precaution is left out. With the name of a property, list what breaks the property;
without a name, list all. The interleaving is searched for each time; none is stored.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "revisions",
        description=MATRIX_HELP, formatter_class=Help)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--markdown", action="store_true", help="as a Markdown table")
    forms.add_argument("--json", action="store_true", help="as JSON, with the counterexamples and the repair ladder")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N",
                        help="processes to work in (default: one for each processor)")
    parser.set_defaults(run=run_revisions)

    parser = commands.add_parser(
        "explain", description=EXPLAIN_HELP,
        epilog="examples:\n  cancelmark explain\n  cancelmark explain sibling-survives-cancel\n"
               "  cancelmark explain overtaken-in-the-window --revision r0 --format svg -o window.svg",
        formatter_class=Help)
    parser.add_argument("flaw", nargs="?", metavar="NAME")
    parser.add_argument("--revision", metavar="NAME", help="in which revision (default: the latest that has it)")
    parser.add_argument("--format", default="text", metavar="FORMAT", help="text (default), mermaid, svg or json")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.set_defaults(run=run_explain)


# --- revisions

def run_revisions(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give at least 1")
    with open_workers(arguments.jobs) as workers:
        judged = [known_protocols()[name] for name in (*(r.name for r in REVISIONS), REFERENCE.name)]
        searches = [(protocol, workers.begin(search_protocol, protocol.name)) for protocol in judged]
        columns = [found().unpack(protocol) for protocol, found in searches]
    if arguments.json:
        print(json.dumps(report(columns), indent=2, ensure_ascii=False))
    elif arguments.markdown:
        print(matrix_table(columns), end="")
    else:
        show(columns)
    return 1 if columns[-1].violations else 0


def search_protocol(name: str) -> PackedColumn:
    """Searches one protocol, maybe in another process."""
    return column(known_protocols()[name]).pack(known_protocols()[name])


def report(columns: list[Column]) -> dict[str, Any]:
    return {
        "profiles": [{"bounds": vars(p.bounds), "why": p.why} for p in PROFILES],
        "revisions": [
            {"name": c.name, "title": c.title, "states": c.states,
             "properties": {p.id: None if p.id not in c.violations else
                            {"length": len(c.violations[p.id]),
                             "calls": [str(s.call) for s in c.violations[p.id].steps]} for p in JUDGED},
             "cannot_fail": [p.id for p in JUDGED if c.cell(p.id) == "–"]}
            for c in columns],
        "ladder": [
            {"from": r.before.name, "to": r.after.name,
             "properties": {"fixed": r.properties(before=True, after=False),
                            "broken": r.properties(before=False, after=True),
                            "left": r.properties(before=True, after=True)},
             "flaws": {"repaired": r.flaws(before=True, after=False), "new": r.flaws(before=False, after=True),
                       "left": r.flaws(before=True, after=True)}}
            for r in ladder(columns)],
    }


SENTENCES = {p.id: p.sentence for p in JUDGED}
STYLE = {"holds": "green", "–": "dim"}


def show(columns: list[Column]) -> None:
    console = output()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("property")
    for one in columns:
        grid.add_column(one.name, justify="right")
    for p in JUDGED:
        grid.add_row(p.id, *(f"[{STYLE.get(c.cell(p.id), 'red')}]{c.cell(p.id)}[/]" for c in columns))
    console.print(grid, soft_wrap=False)
    console.print("\nfails n: the shortest counterexample has n steps; –: what the property speaks of is not there\n")
    for one in columns:
        console.print(f"{one.name:4} {one.title} ({one.states:,} states)")
    for rung in ladder(columns):
        repaired, new = rung.flaws(before=True, after=False), rung.flaws(before=False, after=True)
        console.print(f"\n[bold]{rung.before.name} → {rung.after.name}[/]  flaws repaired: {len(repaired)}, new: "
                      f"{len(new)}, left: {len(rung.flaws(before=True, after=True))}")
        for sign, names in (("- ", repaired), ("+ ", new)):
            if names:
                console.print(fill(", ".join(names), 100, initial_indent=f"  {sign}", subsequent_indent="    ",
                                   break_on_hyphens=False))
    console.print("\nThe story of each: cancelmark explain NAME")


# --- explain

def run_explain(arguments: argparse.Namespace) -> int:
    forms: Mapping[str, Callable[[Flaw, str, Trace], str]] = {
        "text": tell,
        "mermaid": lambda flaw, name, trace: trace_mermaid(trace),
        "svg": lambda flaw, name, trace: trace_svg(trace),
        "json": lambda flaw, name, trace: json.dumps(as_json(flaw, name, trace), indent=2, ensure_ascii=False) + "\n",
    }
    if arguments.format not in forms:
        raise UsageError(f"--format {arguments.format}: choose one of {', '.join(forms)}")
    if arguments.flaw is None:
        content = catalogue(arguments.format)
    elif arguments.flaw in SENTENCES and arguments.format == "text":
        content = list_flaws(arguments.flaw)
    elif arguments.flaw in cluster.FLAWS_BY_NAME:
        if arguments.revision:
            raise UsageError(f"--revision {arguments.revision}: {arguments.flaw} is a flaw of a cluster")
        content = cluster.explain_flaw(cluster.FLAWS_BY_NAME[arguments.flaw], arguments.format)
    else:
        flaw = flaw_named(arguments.flaw)
        name = arguments.revision or flaw.latest
        content = forms[arguments.format](flaw, name, trace_in(flaw, name))
    if arguments.output:
        write(arguments.output, content)
    else:
        sys.stdout.write(content)
    return 0


def flaw_named(name: str) -> Flaw:
    if name not in FLAWS_BY_NAME:
        near = difflib.get_close_matches(name, [*FLAWS_BY_NAME, *cluster.FLAWS_BY_NAME], 1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"explain {name}: no such flaw; {hint}`cancelmark explain` lists them")
    return FLAWS_BY_NAME[name]


def trace_in(flaw: Flaw, revision: str) -> Trace:
    if revision not in flaw.revisions:
        where = "the reference does not have it" if revision == REFERENCE.name else "not there"
        raise UsageError(f"--revision {revision}: {where}; {flaw.name} is in {flaw.where}")
    trace = flaw.trace(revision)
    assert trace is not None, f"{flaw.name} is declared for {revision} and was not found there"
    return trace


def catalogue(form: str) -> str:
    if form == "json":
        return json.dumps([{"name": f.name, "breaks": f.breaks, "revisions": f.revisions, "repaired": f.repaired,
                            "says": f.says, "tale": f.tale} for f in FLAWS]
                          + [cluster.flaw_as_data(f) for f in ALL_FLAWS], indent=2, ensure_ascii=False) + "\n"
    if form != "text":
        raise UsageError(f"explain --format {form}: name a flaw; `cancelmark explain` lists them")
    broken = {flaw.breaks for flaw in FLAWS}
    lines = [list_flaws(id) for id in SENTENCES if id in broken]
    lines += ["Of a cluster, where a precaution is left out (specs/cluster.md):",
              *(fill(f"{f.name} ({f.clause}, {f.property}): {f.says}", columns(), initial_indent="  ",
                     subsequent_indent="      ") for f in ALL_FLAWS), ""]
    return "\n".join(lines) + "\ncancelmark explain NAME tells one\n"


def list_flaws(property: str) -> str:
    """What a property says, and the flaws that show best how it is broken."""
    flaws = [flaw for flaw in FLAWS if flaw.breaks == property]
    told = [*map(_listed, flaws)] or ["  no flaw is listed under it; `cancelmark revisions` has where it breaks"]
    return "\n".join((fill(f"{property}: {SENTENCES[property]}", columns()), *told, ""))


def _listed(flaw: Flaw) -> str:
    """The name, where it is, and its sentence: beside each other where there is room."""
    name, says = f"  {flaw.name:{max(map(len, FLAWS_BY_NAME))}}  {flaw.where:6}", fill(flaw.says, columns() - 6)
    beside = f"{name}  {flaw.says}"
    return beside if len(beside) <= columns() else f"{name}\n{indent(says, ' ' * 6)}"


def tell(flaw: Flaw, revision: str, trace: Trace) -> str:
    repaired = f"repaired in {flaw.repaired}" if flaw.repaired else "never repaired"
    wide = min(columns(), 100)
    return "\n".join((
        f"{flaw.name}: breaks {flaw.breaks}; in {flaw.where}; {repaired}", "",
        fill(f"{flaw.says} {flaw.tale}", wide), "",
        f"The shortest interleaving in {revision}, {len(trace)} steps:", "",
        trace_text(trace, columns()), fill(f"Ruled out in the reference: {flaw.ruled_out}", wide), ""))


def as_json(flaw: Flaw, revision: str, trace: Trace) -> dict[str, Any]:
    return {"name": flaw.name, "breaks": flaw.breaks, "revisions": flaw.revisions, "repaired": flaw.repaired,
            "says": flaw.says, "tale": flaw.tale, "ruled_out": flaw.ruled_out, "key_steps": flaw.keys,
            "revision": revision, "calls": [str(s.call) for s in trace.steps], "trace": trace_itf(trace)}
