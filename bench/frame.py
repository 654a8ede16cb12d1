"""`python -m cancelmark.bench`: every figure that is published, measured again.

A report that is written to a file is kept as JSON beside it. Whoever measures one subject alone replaces that one
there, and the others stay, each with the commit and the machine that it was measured with.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from cancelmark.impl.cli.main import Parser
from cancelmark.impl.cli.terminal import output
from cancelmark.impl.files import UsageError, write

from .report import Report, Table
from .setting import Setting, find_commit, find_peer, install_baseline

# Each is a module with a function `measure(setting)`, imported when it is asked for.
SUBJECTS: Mapping[str, str] = {
    "explorer": "The explorer: two engines and SPIN, states a second, bytes a state, and how they grow",
    "runtime": "The runtime: what a prompt costs, however long the history and however many sessions",
    "store": "The store: durable acceptances a second",
    "server": "The server: what acceptance costs over HTTP, and how soon a cancel is seen",
    "cluster": "Several servers on one PostgreSQL: acceptance, cancels across nodes, and failover",
    "beside": "The server beside an earlier version of it: prompts a second, and from a cancel to the end",
    "growth": "Growth: with the database, with what a crash has left, and with those who watch",
    "long": "A long session over HTTP: what a prompt takes after many others, and how long anybody else waits",
    "power": "The random tests: how many examples they need to find each known flaw",
    "spin": "SPIN and the explorer: two models of one protocol, counted side by side",
}

ROOMS = {"search": ("explorer", "spin"), "process": ("runtime", "store", "power"),
         "wire": ("server", "beside", "growth", "long"), "nodes": ("cluster",)}
MODULES = {name: f"{__package__}.{room}.{name}" for room, names in ROOMS.items() for name in names}

DESCRIPTION = """\
Measure, and compare with what was promised. Goals are ratios of two things measured in one run, or counts: seconds
depend on the machine and on what else it does.
"""


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m cancelmark.bench", description=DESCRIPTION,
        epilog="subjects:\n" + "".join(f"  {name:12}{about}\n" for name, about in SUBJECTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="what to measure (default: everything)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often (default: 3)")
    parser.add_argument("--baseline", metavar="COMMIT", help="an earlier version to measure beside this one; it is "
                                                             "installed into build/baseline")
    parser.add_argument("--peer", metavar="FILE", help="another explorer to measure beside ours: the program built "
                                                       "from a model on Stateright")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="also write the report to FILE, its pictures beside it, and as JSON to FILE with the "
                             "ending .json; what FILE has of other subjects stays")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    for name in arguments.subjects:
        if name not in SUBJECTS:
            raise UsageError(f"{name}: no such subject; choose from {', '.join(SUBJECTS)}")
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: give at least 1")
    setting = Setting(arguments.rounds, install_baseline(arguments.baseline) if arguments.baseline else None,
                      find_peer(arguments.peer) if arguments.peer else None)
    console = output()
    measured: dict[str, Any] = {}
    for name in arguments.subjects or SUBJECTS:
        part = measured[name] = measure(name, setting)
        if not arguments.json:
            console.print(_tell(name, part), markup=False)
        if arguments.output:
            keep(arguments.output, {name: part})
    if arguments.json:
        console.print(json.dumps(_plain(measured), indent=2), markup=False)
    return 0


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """One subject, with what it was measured on."""
    subject: Callable[[Setting], Report] = import_module(MODULES[name]).measure
    before, began = load(), perf_counter()
    report = subject(setting)
    return {"report": report, "measured": {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": find_commit(), "machine": machine(),
        "rounds": setting.rounds, "seconds": round(perf_counter() - began), "load": [before, load()],
        "baseline": setting.baseline.name if setting.baseline else None,
        "peer": setting.peer.name if setting.peer else None}}


def keep(path: Path, measured: Mapping[str, Any]) -> None:
    """Puts what was measured into the file, in place of what it has of the same subjects."""
    file = path.with_suffix(".json")
    parts = json.loads(file.read_text(encoding="utf-8")).get("subjects", {}) if file.exists() else {}
    known = {name: {**part, "report": Report.of(part["report"])} for name, part in parts.items()
             if name in SUBJECTS and "measured" in part}
    merged = {name: {**known, **measured}[name] for name in SUBJECTS if name in {**known, **measured}}
    for part in measured.values():
        for picture in part["report"].pictures:
            write(path.with_name(picture.name), picture.svg)
    write(file, json.dumps({"subjects": _plain(merged)}, indent=2) + "\n")
    write(path, _page(merged))


def _plain(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**part, "report": part["report"].json} for name, part in measured.items()}


def _page(measured: Mapping[str, Any]) -> str:
    return "\n".join([
        "# Benchmarks\n\nMeasured with `make bench BASELINE=e117825 PEER=FILE`; `ONLY=server` measures one subject "
        "alone. Goals are ratios of two things that were measured by turns in one run, or counts. Load is the "
        "machine's, over one minute, before and after.\n",
        _list_goals(measured), *(_tell(name, part) for name, part in measured.items())])


def _list_goals(measured: Mapping[str, Any]) -> str:
    """Every goal on one table, with what holds back what is missed."""
    rows = [(name, goal.what, goal.shown, goal.wanted, goal.verdict, goal.reason)
            for name, part in measured.items() for goal in part["report"].goals]
    return Table("Goals", ("subject", "what", "figure", "goal", "verdict", "why"), rows).markdown


def _tell(name: str, part: Mapping[str, Any]) -> str:
    told, report = part["measured"], part["report"]
    beside = "".join(f", beside {told[other]}" for other in ("baseline", "peer") if told[other])
    return "\n".join([
        f"## {SUBJECTS[name]}\n",
        f"{told['at']} UTC, commit {told['commit']}, {told['machine']}, load {told['load'][0]:.1f} to "
        f"{told['load'][1]:.1f}, {told['rounds']} rounds in {told['seconds']} s{beside}.\n",
        report.markdown, *(picture.markdown for picture in report.pictures)])


def machine() -> str:
    """The machine in one line."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} cores, {python}"


def load() -> float:
    """How many processes want a core: what spoils figures."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
