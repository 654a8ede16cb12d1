"""`cancelmark diff`: compares two protocols or two traces."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cancelmark.model.check.comparison import BOUNDS, Comparison, Difference, compare, first_difference, pair_steps
from cancelmark.model.check.walk import Walk
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.revisions.matrix import JUDGED, Column, column
from cancelmark.model.trace import Trace, TraceStep, call_text
from cancelmark.views.pages.tables import KINDS
from cancelmark.views.traces.content import Scene, scenes

from ..files import UsageError
from .check import watching
from .itf import load
from .protocols import NAMES, WHICH, errors_as_usage, protocol_named
from .terminal import output, plain_table
from .text import print_json

DESCRIPTION = """\
Compare two protocols or two traces.

Two protocols (ref, r0 … r4, a seeded bug, or your own): the actions that only one of them has; the actions that behave
differently, each with the shortest trace that shows it; the properties whose verdict changes; the flaws fixed and
introduced; and the first step that differs.
Two traces (files saved by `cancelmark play`, or ITF): each step side by side, the first difference, and the properties
that each trace violates.

The exit status is 0 whether or not they differ, and 2 for a usage error.
"""

EPILOG = """\
examples:
  cancelmark diff r3 r4
  cancelmark diff r4 ref --json
  cancelmark diff --protocol mine.py:KEEP
  cancelmark diff mine.itf.json theirs.itf.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", nargs="?", help=f"a protocol ({WHICH}), or a trace file")
    parser.add_argument("b", metavar="B", nargs="?", help="the protocol or trace file to compare with A")
    parser.add_argument("--protocol", metavar="NAME", help="the second protocol; compared with A, or the reference")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def run(arguments: argparse.Namespace) -> int:
    names = [name for name in (arguments.a, arguments.b, arguments.protocol) if name is not None]
    if arguments.protocol and len(names) == 1:
        names = [REFERENCE.name, *names]
    if len(names) != 2:
        raise UsageError("diff: give two protocols or two trace files")
    files = [name not in NAMES and Path(name).exists() for name in names]
    report: Protocols | Traces
    if not any(files):
        for name in names:
            if ":" not in name and name not in NAMES:
                raise UsageError(f"diff {name}: neither a protocol ({WHICH}) nor a file")
        report = Protocols(*(protocol_named(name) for name in names))
    elif all(files):
        report = Traces(names, [load(Path(name)) for name in names])
    else:
        raise UsageError(f"diff {' '.join(names)}: give two protocols ({', '.join(NAMES)}) or two files")
    if arguments.json:
        print_json(report.data())
    else:
        report.show(output())
    return 0


def tell_step(history: Trace, step: TraceStep | None) -> str:
    """The observable effect of a step after a history, in words."""
    if step is None:
        return "not possible"
    *_, last = scenes(Trace(history.start, (*history.steps, step)))
    return "; ".join(_words(last)) or "no visible effect"


def _words(scene: Scene) -> list[str]:
    became = [f"{label} {cell.text}" for label, cell in ((chr(64 + seq), cell) for seq, cell in scene.cells.items())
              if cell.changed]
    return [*became, *scene.happened]


def calls(trace: Trace) -> list[str]:
    return [call_text(step.call, len(trace.start.sessions)) for step in trace.steps]


# --- protocols

class Protocols:
    """Two protocols."""

    def __init__(self, a: Behaviour, b: Behaviour) -> None:
        self.names = (a.name, b.name)
        with errors_as_usage(a), errors_as_usage(b):
            self.compared: Comparison = compare(a, b)
        with errors_as_usage(a), errors_as_usage(b), watching(f"searching {a.name} and {b.name}") as watch:
            self.columns: tuple[Column, Column] = (column(a, watch), column(b, watch))
        here, there = ({flaw.name for flaw in FLAWS if name in flaw.revisions} for name in self.names)
        self.repaired = [flaw.name for flaw in FLAWS if flaw.name in here - there]
        self.new = [flaw.name for flaw in FLAWS if flaw.name in there - here]

    @property
    def cells(self) -> dict[str, tuple[str, str]]:
        return {p.id: (self.columns[0].cell(p.id), self.columns[1].cell(p.id)) for p in JUDGED}

    def data(self) -> dict[str, Any]:
        a, b = self.names
        first = self.compared.first
        return {
            "a": a, "b": b,
            "actions": {f"only_{a}": self.compared.only[0], f"only_{b}": self.compared.only[1],
                        "different": {name: self.difference(d) for name, d in self.compared.differences.items()}},
            "kinds": {f"only_{name}": [KINDS[k] for k in kinds]
                      for name, kinds in zip(self.names, self.compared.kinds)},
            "compared": {"bounds": vars(BOUNDS), "pairs": self.compared.looked, "complete": self.compared.complete},
            "properties": {id: {a: here, b: there, "changed": _verdict(here) != _verdict(there)}
                           for id, (here, there) in self.cells.items()},
            "flaws": {"repaired": self.repaired, "new": self.new},
            "first_difference": first and self.difference(first),
        }

    def difference(self, d: Difference) -> dict[str, Any]:
        return {"step": d.number, "call": d.call, "after": calls(d.histories[0]),
                **{name: tell_step(history, step) for name, history, step in zip(self.names, d.histories, d.steps)}}

    def show(self, console: Console) -> None:
        a, b = self.names
        console.print(f"[bold]{a} → {b}[/]  {self.columns[0].title} → {self.columns[1].title}\n")
        for name, only, kinds in zip(self.names, self.compared.only, self.compared.kinds):
            console.print(f"actions only in {name}: {', '.join(only) or 'none'}")
            if kinds:
                console.print(f"prompts only in {name}: {', '.join(KINDS[k] for k in kinds)}")
        self.show_differences(console)
        self.show_properties(console)
        console.print(f"\nflaws fixed ({len(self.repaired)}): {', '.join(self.repaired) or 'none'}")
        console.print(f"flaws introduced ({len(self.new)}): {', '.join(self.new) or 'none'}")
        if first := self.compared.first:
            console.print(f"\n[bold]the first step that differs is step {first.number}, {first.call}[/]")
            for line in calls(first.histories[0]):
                console.print(f"    {line}", markup=False)
            console.print(f"  → {first.call}", markup=False)
            for name, history, step in zip(self.names, first.histories, first.steps):
                console.print(f"    {name}: {tell_step(history, step)}", markup=False)

    def show_differences(self, console: Console) -> None:
        how = "all" if self.compared.complete else "the first"
        console.print(f"\nactions that behave differently, each after the shortest trace that shows it (compared in "
                      f"{how} {self.compared.looked:,} states that both reach by the same calls, within {BOUNDS}):")
        if not self.compared.differences:
            console.print("  none")
            return
        table = plain_table("call", "after", *self.names)
        for d in self.compared.differences.values():
            table.add_row(d.call, " ".join(calls(d.histories[0])) or "the start",
                          *(tell_step(history, step) for history, step in zip(d.histories, d.steps)))
        console.print(table, soft_wrap=False)

    def show_properties(self, console: Console) -> None:
        console.print("\nproperties whose verdict changes:")
        changed = [(id, here, there) for id, (here, there) in self.cells.items() if _verdict(here) != _verdict(there)]
        for id, here, there in changed:
            style = "green" if _verdict(there) == "holds" else "red"
            console.print(f"  {id}: {here} → [{style}]{there}[/]")
        if not changed:
            console.print("  none")


def _verdict(cell: str) -> str:
    return cell.split()[0]


# --- traces

class Traces:
    """Two traces."""

    def __init__(self, names: Sequence[str], loaded: Sequence[tuple[Behaviour, Trace]]) -> None:
        self.names = names
        self.protocols = [protocol for protocol, _ in loaded]
        self.traces = [trace for _, trace in loaded]
        self.broken = [Walk.along(protocol, trace).broken for protocol, trace in loaded]
        self.first = first_difference(*self.traces)

    def words(self, index: int, number: int) -> str:
        """Step `number` of one of the traces, in words."""
        trace = self.traces[index]
        if number > len(trace):
            return "–"
        head = Trace(trace.start, trace.steps[:number])
        return f"{calls(head)[-1]}: {tell_step(Trace(trace.start, trace.steps[:number - 1]), trace.steps[number - 1])}"

    def data(self) -> dict[str, Any]:
        return {
            "a": self.names[0], "b": self.names[1], "protocols": [p.name for p in self.protocols],
            "steps": [{"step": pair.number, "same": pair.same, "a": self.words(0, pair.number),
                       "b": self.words(1, pair.number)} for pair in pair_steps(*self.traces)],
            "first_difference": self.first and self.first.number,
            "actions": {"only_a": self.only(0, 1), "only_b": self.only(1, 0)},
            "broken": {"a": self.broken[0], "b": self.broken[1]},
        }

    def only(self, mine: int, other: int) -> list[str]:
        """The calls that only one of the traces has."""
        theirs = calls(self.traces[other])
        return [call for call in dict.fromkeys(calls(self.traces[mine])) if call not in theirs]

    def show(self, console: Console) -> None:
        table = plain_table("", *(f"{name} ({protocol.name})" for name, protocol in zip(self.names, self.protocols)))
        for pair in pair_steps(*self.traces):
            sign = "" if pair.same else ">" if self.first and pair.number == self.first.number else "~"
            table.add_row(f"{sign}{pair.number:>3}", self.words(0, pair.number), self.words(1, pair.number),
                          style="dim" if pair.same else None)
        console.print(table, soft_wrap=False)
        console.print()
        console.print("the traces do not differ" if self.first is None else
                      f"[bold]the first step that differs is step {self.first.number}[/]")
        for name, mine, other, broken in zip(self.names, (0, 1), (1, 0), self.broken):
            console.print(f"calls only in {name}: {', '.join(self.only(mine, other)) or 'none'}", markup=False)
            console.print(f"{name} breaks: {', '.join(f'{id} (step {n})' for id, n in broken.items()) or 'nothing'}")
