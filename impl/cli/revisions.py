"""`cancelmark revisions`: the verdict of every property on every revision of the original."""

import argparse
from textwrap import fill
from typing import Any

from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import JUDGED, PROFILES, Column, PackedColumn, column, ladder
from cancelmark.views.pages.tables import matrix_table

from ..files import UsageError
from .protocols import known_protocols
from .review.workers import open_workers, processors
from .terminal import output, plain_table
from .text import print_json

DESCRIPTION = """\
Check every property on each revision of the original protocol (r0 … r4) and on the reference.

A number is the length of the shortest counterexample. `cancelmark explain` explains each flaw;
`cancelmark check --protocol NAME` shows the counterexamples of one revision.
"""



def add_options(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--markdown", action="store_true", help="print a Markdown table")
    forms.add_argument("--json", action="store_true",
                       help="report as JSON, with the counterexamples and the flaws per revision")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N",
                        help="number of worker processes (default: one per processor)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: must be at least 1")
    with open_workers(arguments.jobs) as workers:
        judged = [known_protocols()[name] for name in (*(r.name for r in REVISIONS), REFERENCE.name)]
        searches = [(protocol, workers.begin(search_protocol, protocol.name)) for protocol in judged]
        columns = [found().unpack(protocol) for protocol, found in searches]
    if arguments.json:
        print_json(report(columns))
    elif arguments.markdown:
        print(matrix_table(columns), end="")
    else:
        show(columns)
    return 1 if columns[-1].violations else 0


def search_protocol(name: str) -> PackedColumn:
    """Checks one protocol; may run in a worker process."""
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


STYLE = {"holds": "green", "–": "dim"}


def show(columns: list[Column]) -> None:
    console = output()
    names = [one.name for one in columns]
    grid = plain_table("property", *names, right=names)
    for p in JUDGED:
        grid.add_row(p.id, *(f"[{STYLE.get(c.cell(p.id), 'red')}]{c.cell(p.id)}[/]" for c in columns))
    console.print(grid, soft_wrap=False)
    console.print("\nfails n: the shortest counterexample has n steps; –: the property does not apply\n")
    for one in columns:
        console.print(f"{one.name:4} {one.title} ({one.states:,} states)")
    for rung in ladder(columns):
        repaired, new = rung.flaws(before=True, after=False), rung.flaws(before=False, after=True)
        console.print(f"\n[bold]{rung.before.name} → {rung.after.name}[/]  flaws fixed: {len(repaired)}, introduced: "
                      f"{len(new)}, remaining: {len(rung.flaws(before=True, after=True))}")
        for sign, names in (("- ", repaired), ("+ ", new)):
            if names:
                console.print(fill(", ".join(names), 100, initial_indent=f"  {sign}", subsequent_indent="    ",
                                   break_on_hyphens=False))
    console.print("\nFor details of a flaw: cancelmark explain NAME")
