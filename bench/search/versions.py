"""The explorer beside an earlier version of itself, and beside a peer: a model of the same protocol on Stateright.

What is compared alternates in one run, each command in a process of its own. Processor time is compared where the load
of the machine would spoil the clock; where the clock is compared, the machine must have two processors to spare.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cancelmark.model.properties import Bounds

from ..report import Goal, Report, Table
from ..setting import Setting
from .ours import bound_options

DEFAULT = Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1)
LARGEST = Bounds(5, cancels=2, clears=1)
BESIDE_PEER = (  # one session, which is what the peer's model has
    DEFAULT,
    Bounds(4, cancels=2, clears=1, requeues=1),
    Bounds(4, cancels=2, clears=1, requeues=1, crashes=1),
    Bounds(4, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    LARGEST,
)
SHORT = {"--help": 0.6, "run hello": 0.6, "cancel": 0.6}  # commands that load and end, there being no server
NO_BASELINE = "There was no earlier version: give BASELINE=COMMIT."
NO_PEER = "There was no peer: give PEER=FILE, a Stateright binary."


TABLES = ("Two fifths of what is left table what sessions can do, in Python, the loop in C is the rest. Three fifths "
          "of that are the protocol's own actions and properties, run once for each order of a session's prompts.")


class Run(NamedTuple):
    """One command: what it printed, and what it took of the clock and of the processor."""

    printed: str
    seconds: float
    processor: float

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.printed)
        return found


def run(command: Sequence[str], home: Path | None = None) -> Run:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    nowhere = {name: str(home) for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME")} if home else {}
    before, started = spent(), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
                          env={**os.environ, **nowhere, "PYTHONPATH": ""})
    return Run(done.stdout, time.perf_counter() - started, spent() - before)


def ours(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("cancelmark")), *arguments]


def check_at(bounds: Bounds, *more: str) -> list[str]:
    return ["check", "--json", "--max-states", "100000000", *bound_options(bounds), *more]


def measure(setting: Setting) -> Report:
    versions, peers = beside_baseline(setting), beside_peer(setting)
    return Report([*versions.tables, *peers.tables], [*versions.goals, *peers.goals])


def beside_baseline(setting: Setting) -> Report:
    baseline = setting.baseline
    promised = [
        *((f"`{command}`: processor time against the baseline", "at most", limit) for command, limit in SHORT.items()),
        ("`check`: processor time from command to verdict against the baseline", "at most", 0.35),
        (f"{LARGEST}: processor time of the search against the baseline", "at most", 0.4),
        (f"{LARGEST}: seconds from command to verdict against the baseline", "at most", 0.3),
        (f"{DEFAULT}: states a second of the plain engine against the baseline", "at least", 1.5),
    ]
    largest = [run(ours(*check_at(LARGEST))) for _ in range(setting.rounds)]
    bytes_a_state = Goal(f"{LARGEST}: bytes a state", tuple(
        float(each.report["bytes_per_state"]) for each in largest), "at most", 28, "")
    if baseline is None:
        return Report(goals=[*(Goal(what, (), relation, limit, why=NO_BASELINE) for what, relation, limit in promised),
                             bytes_a_state])
    rows, figures = [], []
    with TemporaryDirectory() as home:
        for arguments in (*(command.split() for command in SHORT), ["check"]):
            pairs = [(run(baseline.list_command(*arguments), Path(home)), run(ours(*arguments), Path(home)))
                     for _ in range(1 + setting.rounds)][1:]  # the first of all may compile
            rows.append((f"`{' '.join(arguments)}`, processor seconds",
                         median(a.processor for a, _ in pairs), median(b.processor for _, b in pairs)))
            figures.append(tuple(b.processor / a.processor for a, b in pairs))
    pairs = [(run(baseline.list_command(*check_at(LARGEST))), run(ours(*check_at(LARGEST))))
             for _ in range(setting.rounds)]
    searched = [(a.report["processor_seconds"], b.report["processor_seconds"]) for a, b in pairs]
    rows.append((f"{LARGEST}: processor seconds of the search", *map(median, zip(*searched))))
    rows.append((f"{LARGEST}: seconds from command to verdict",
                 median(a.seconds for a, _ in pairs), median(b.seconds for _, b in pairs)))
    figures += [tuple(b / a for a, b in searched), tuple(b.seconds / a.seconds for a, b in pairs)]
    plain = check_at(DEFAULT, "--engine", "plain")
    taken = [(run(baseline.list_command(*plain)).report["processor_seconds"],
              run(ours(*plain)).report["processor_seconds"]) for _ in range(setting.rounds)]
    rows.append((f"{DEFAULT}: processor seconds of the plain engine", *map(median, zip(*taken))))
    figures.append(tuple(a / b for a, b in taken))
    return Report(
        [Table(f"Beside {baseline.name}, medians", ("what", baseline.name, "now"), rows)],
        [*(Goal(what, figure, relation, limit, why=TABLES if "of the search" in what else "")
           for (what, relation, limit), figure in zip(promised, figures)),
         bytes_a_state])


def beside_peer(setting: Setting) -> Report:
    goals, rows = [], []
    for bounds in BESIDE_PEER:
        what, limit = f"{bounds}: seconds from command to verdict against Stateright", 1.5 if bounds == DEFAULT else 1
        if setting.peer is None:
            goals.append(Goal(what, (), "at most", limit, why=NO_PEER))
            continue
        theirs = [str(setting.peer), "packed", "bfs", "1", *(str(getattr(bounds, name)) for name in (
            "prompts", "cancels", "clears", "requeues", "crashes", "closes"))]
        pairs = [(run(theirs), run(ours(*check_at(bounds)))) for _ in range(setting.rounds)]
        for peer, own in pairs:
            if any(peer.report[count] != own.report[count] for count in ("states", "edges", "depth")):
                raise RuntimeError(f"{bounds}: Stateright counts {peer.printed}, we do not")
        goals.append(Goal(what, tuple(b.seconds / a.seconds for a, b in pairs), "at most", limit))
        rows.append((str(bounds), pairs[0][1].report["states"], median(a.seconds for a, _ in pairs),
                     median(b.seconds for _, b in pairs), median(a.processor for a, _ in pairs),
                     median(b.processor for _, b in pairs)))
    columns = ("bounds", "states", "seconds: Stateright", "check", "processor seconds: Stateright", "check")
    return Report([Table("Beside Stateright, one thread, from command to verdict, medians", columns, rows)]
                  if rows else [], goals)
