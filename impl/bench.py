"""`cancelmark bench`: how fast and how large the explorer is, each bound in a process of its own."""

import argparse
import json
import platform
import subprocess
import sys
from typing import Any

from cancelmark.model.properties import Bounds

BOUNDS = (
    Bounds(3, cancels=2, clears=1),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(4, cancels=2, clears=1),
    Bounds(4, cancels=2, clears=1, requeues=1),
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure the explorer: states a second and bytes a state",
        description="Runs `cancelmark check` at several bounds, each in a process of its own, and reports states a "
                    "second and bytes a state (growth of the process at its peak, divided by the states).")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.set_defaults(run=run)


def measure(bounds: Bounds) -> dict[str, Any]:
    """What `cancelmark check` reports at these bounds, from a fresh process."""
    options = [text for name, n in vars(bounds).items() for text in (f"--{name}", str(n))]
    done = subprocess.run([sys.executable, "-m", "cancelmark.impl.cli", "check", "--json", *options],
                          stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def run(arguments: argparse.Namespace) -> int:
    machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    reports = []
    if not arguments.json:
        print(f"explorer, one core, {machine}\n")
        print("| bounds | states | seconds | states/s | bytes/state |\n|---|---:|---:|---:|---:|")
    for bounds in BOUNDS:
        reports.append(r := measure(bounds))
        if not arguments.json:
            print(f"| {bounds} | {r['states']:,} | {r['seconds']:.1f} | {r['states_per_second']:,} "
                  f"| {r['bytes_per_state']} |", flush=True)
    if arguments.json:
        keep = ("bounds", "states", "edges", "seconds", "states_per_second", "bytes_per_state")
        print(json.dumps({"machine": machine, "explorer": [{k: r[k] for k in keep} for r in reports]}, indent=2))
    return 0
