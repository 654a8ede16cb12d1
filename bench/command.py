"""`python -m cancelmark.bench`: every figure that is published, measured again."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cancelmark.impl.cli.main import Parser
from cancelmark.impl.cli.terminal import output
from cancelmark.impl.files import UsageError, write

from .report import Report

# Each is a module here with a function `measure(rounds)`, imported when it is asked for.
SUBJECTS: Mapping[str, str] = {
    "explorer": "The explorer: two engines and SPIN, states a second, bytes a state, and how they grow",
    "runtime": "The runtime: what a prompt costs, however long the history and however many sessions",
    "store": "The store: durable acceptances a second",
    "server": "The server: what acceptance costs over HTTP, and how soon a cancel is seen",
    "long": "A long session over HTTP: what a prompt takes after many others, and how long anybody else waits",
    "power": "The random tests: how many examples they need to find each known flaw",
    "spin": "SPIN and the explorer: two models of one protocol, counted side by side",
}

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
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="also write the report to FILE, its pictures beside it, and as JSON to FILE with the "
                             "ending .json")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    for name in arguments.subjects:
        if name not in SUBJECTS:
            raise UsageError(f"{name}: no such subject; choose from {', '.join(SUBJECTS)}")
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: give at least 1")
    console = output()
    said: list[str] = []
    reports: dict[str, Mapping[str, Any]] = {}

    def say(text: str) -> None:
        said.append(text)
        if not arguments.json:
            console.print(text, markup=False)

    say(f"# Benchmarks\n\nMeasured with `make bench` on {machine()}, {arguments.rounds} rounds.\n")
    for name in arguments.subjects or SUBJECTS:
        measure: Callable[[int], Report] = import_module(f"{__package__}.{name}").measure
        report = measure(arguments.rounds)
        reports[name] = report.json
        say(f"## {SUBJECTS[name]}\n\n{report.markdown}")
        for picture in report.pictures if arguments.output else ():
            say(picture.markdown)
            write(arguments.output.with_name(picture.name), picture.svg)
    told = json.dumps({"machine": machine(), "rounds": arguments.rounds, "subjects": reports}, indent=2)
    if arguments.json:
        console.print(told, markup=False)
    if arguments.output:
        write(arguments.output, "".join(f"{text}\n" for text in said))
        write(arguments.output.with_suffix(".json"), told + "\n")
    return 0


def machine() -> str:
    """The machine in one line. Its load is told because it is what spoils figures."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (f"{platform.machine()}, {os.cpu_count()} cores{load}, "
            f"{platform.python_implementation()} {platform.python_version()}")
