"""How fast and how large the explorer is, each bound in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from cancelmark.model.properties import Bounds

from .report import Report, Table

BOUNDS = (
    Bounds(3, cancels=2, clears=1),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(4, cancels=2, clears=1),
    Bounds(4, cancels=2, clears=1, requeues=1),
)


def check(bounds: Bounds) -> dict[str, Any]:
    """What `cancelmark check` reports at these bounds, from a fresh process."""
    options = [text for name, n in vars(bounds).items() for text in (f"--{name}", str(n))]
    done = subprocess.run([sys.executable, "-m", "cancelmark.impl.cli", "check", "--json", *options],
                          stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure(rounds: int) -> Report:
    """Bytes a state is the growth of the process at its peak, divided by the states; everything is included."""
    rows = []
    for bounds in BOUNDS:
        best = min((check(bounds) for _ in range(rounds)), key=lambda report: float(report["seconds"]))
        rows.append((str(bounds), best["states"], best["seconds"], best["states_per_second"],
                     best["bytes_per_state"]))
    return Report([Table("Explorer, one core, fastest of the rounds",
                         ("bounds", "states", "seconds", "states/s", "bytes/state"), rows)])
