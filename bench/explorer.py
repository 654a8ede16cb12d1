"""Compares the explorer's two engines with SPIN and with an earlier version; each search runs in its own process.

Figures are processor time, which load on a shared machine distorts less than wall-clock time.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from cancelmark.model.properties import Bounds

from . import spin
from .frame import Goal, Report, Setting, Table

SMALL = (
    Bounds(1, cancels=1),
    Bounds(3, cancels=2, clears=1),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
)
LARGE = (  # one to ten million states
    Bounds(4, cancels=2, clears=1, requeues=1),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, sessions=2),
    Bounds(4, cancels=2, clears=1, requeues=1, crashes=1),
)
HUGE = (  # only for the fast engine
    Bounds(4, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(5, cancels=2, clears=1),
)

DEFAULT, LARGEST = SMALL[-1], HUGE[-1]  # the bounds for the comparison with an earlier version

ROOMY = "-w25"  # SPIN's hash table has more slots than there are states

NO_BASELINE = "No baseline: give BASELINE=COMMIT."
TABLES = ("Two fifths of the remaining time go into tabulating the steps of sessions, in Python; the rest is the loop "
          "in C. Three fifths of the tabulation are the protocol's own actions and properties, run once for each order "
          "of a session's prompts.")

CHECK = ("check", "--json", "--max-states", "100000000")
OURS = (sys.executable, "-m", "cancelmark.impl.cli.main")

T = TypeVar("T")


FASTER_PLAIN = ("About half of the fast engine's time at these bounds goes into tabulating the steps of sessions, in "
                "Python. Three fifths of that are the protocol's own actions and properties; optimizing these speeds "
                "up the plain engine, too.")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of the work, and the processor time of its child processes."""
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    return work(), spent() - before


class Ours(NamedTuple):
    """One search of `cancelmark check`: its report, and the processor time of the whole command."""

    report: dict[str, Any]
    command: float

    @property
    def rate(self) -> float:
        return float(self.report["states"] / self.report["processor_seconds"])


class Spins(NamedTuple):
    """One search of SPIN."""

    found: spin.Search
    building: float
    searching: float

    @property
    def rate(self) -> float:
        return self.found.states / self.searching

    @property
    def command(self) -> float:
        return self.building + self.searching


def bound_options(bounds: Bounds) -> list[str]:
    return [text for name, n in vars(bounds).items() for text in (f"--{name}", str(n)) if n or name == "prompts"]


def check(command: Sequence[str], bounds: Bounds | None, engine: str | None = None) -> Ours:
    """Runs `cancelmark check` in a new process, within these bounds or its default ones."""
    whole = [*command, *CHECK, *(bound_options(bounds) if bounds else []), *(["--engine", engine] if engine else [])]
    environment = os.environ if command is OURS else {**os.environ, "PYTHONPATH": ""}
    done, spent = timed(lambda: subprocess.run(whole, stdout=subprocess.PIPE, check=True, env=environment))
    return Ours(json.loads(done.stdout), spent)


def ours(bounds: Bounds, engine: str | None = None) -> Ours:
    return check(OURS, bounds, engine)


def spins(bounds: Bounds, rounds: int) -> list[Spins]:
    """Runs `rounds` searches with a verifier that is compiled once."""
    if spin.missing():
        return []
    with TemporaryDirectory() as directory:
        verifier, building = timed(lambda: spin.build(Path(directory), bounds, spin.FAST))
        searches = [timed(lambda: spin.Search.of(verifier.run(ROOMY))) for _ in range(rounds)]
    return [Spins(found, building, searching) for found, searching in searches]


def beside_baseline(setting: Setting) -> Report:
    """Compares the command, the fast engine and the plain engine with an earlier version, alternately."""
    kinds = (  # the row, the goal, and the run
        ("`check`, processor seconds",
         "`check`: processor time from command to verdict against the baseline", "at most", 0.35, None, None),
        (f"{LARGEST}: processor seconds of the search",
         f"{LARGEST}: processor time of the search against the baseline", "at most", 0.4, LARGEST, None),
        (f"{DEFAULT}: processor seconds of the plain engine",
         f"{DEFAULT}: states per second of the plain engine against the baseline", "at least", 1.5, DEFAULT, "plain"),
    )
    baseline = setting.baseline
    if baseline is None:
        return Report(goals=[Goal(what, (), relation, limit, why=NO_BASELINE)
                             for _, what, relation, limit, _, _ in kinds])
    rows, goals = [], []
    for row, what, relation, limit, bounds, engine in kinds:
        check(baseline.list_command(), bounds, engine)  # the first run may compile the engine
        pairs = [(check(baseline.list_command(), bounds, engine), check(OURS, bounds, engine))
                 for _ in range(setting.rounds)]
        taken = [(a.command, b.command) if bounds is None else
                 (a.report["processor_seconds"], b.report["processor_seconds"]) for a, b in pairs]
        rows.append((row, *map(median, zip(*taken))))
        ratios = tuple(a / b if relation == "at least" else b / a for a, b in taken)
        goals.append(Goal(what, ratios, relation, limit, why=TABLES if bounds == LARGEST else ""))
    return Report([Table(f"Compared with {baseline.name}, medians", ("what", baseline.name, "now"), rows)], goals)


def measure_explorer(setting: Setting) -> Report:
    rates, commands, memory, goals = [], [], [], []
    curve: list[tuple[float, float]] = []  # the fast engine's seconds by states
    for bounds in (*SMALL, *LARGE):
        plain = [ours(bounds, "plain")]  # once: it is the slowest, and the default bounds measure it more often
        chosen = [ours(bounds) for _ in range(setting.rounds)]
        spun = spins(bounds, setting.rounds)
        engine = chosen[0].report["engine"]
        states = chosen[0].report["states"]
        commands.append((str(bounds), states, engine, median(o.command for o in chosen),
                         median(s.command for s in spun) if spun else "–",
                         median(s.building for s in spun) if spun else "–"))
        if spun:
            goals.append(Goal(f"{bounds}: check from command to verdict, against SPIN", tuple(
                o.command / s.command for o, s in zip(chosen, spun)), "at most", 1))
        if bounds not in LARGE:
            continue
        rates.append((str(bounds), states, median(o.rate for o in plain), median(o.rate for o in chosen),
                      median(s.rate for s in spun) if spun else "–"))
        memory.append((str(bounds), states, median(o.report["bytes_per_state"] for o in plain),
                       median(o.report["bytes_per_state"] for o in chosen),
                       median(s.found.mebibytes * 2**20 / s.found.states for s in spun) if spun else "–"))
        goals.append(Goal(f"{bounds}: states per second, fast against plain", tuple(
            o.rate / plain[0].rate for o in chosen), "at least", 20, why=FASTER_PLAIN))
        if spun:
            goals.append(Goal(f"{bounds}: states per second, fast against SPIN", tuple(
                o.rate / s.rate for o, s in zip(chosen, spun)), "at least", 3))
        goals.append(Goal(f"{bounds}: bytes per state, fast", tuple(
            float(o.report["bytes_per_state"]) for o in chosen), "at most", 48, ""))
        curve.append((states, median(o.report["processor_seconds"] for o in chosen)))
    for bounds in HUGE:
        taken_alone = [ours(bounds, "fast") for _ in range(setting.rounds)]
        states = taken_alone[0].report["states"]
        curve.append((states, median(o.report["processor_seconds"] for o in taken_alone)))
        memory.append((str(bounds), states, "–", median(o.report["bytes_per_state"] for o in taken_alone), "–"))
        if bounds == LARGEST:
            goals.append(Goal(f"{bounds}: bytes per state", tuple(
                float(o.report["bytes_per_state"]) for o in taken_alone), "at most", 28, ""))
    fit = linear_regression(*zip(*((log(x), log(y)) for x, y in curve)))
    goals.append(Goal("exponent of the fast engine's seconds against its states (1: linear)", (fit.slope,), "at most",
                      1.1, ""))
    return Report([
        Table("States per second of processor time, medians", ("bounds", "states", "plain", "fast", "SPIN"),
              rates),
        Table("From the command to the verdict, in seconds of processor time, medians",
              ("bounds", "states", "engine", "check", "SPIN", "of which compiling"), commands),
        Table("Bytes per state, medians", ("bounds", "states", "plain", "fast", "SPIN"), memory),
        Table("The fast engine's growth, medians", ("states", "seconds"), sorted(curve)),
    ], goals, [
        "*check* is the command without `--engine`: it chooses the engine, which was compiled before.",
        "Bytes per state: the growth of the process's peak memory after the engine was loaded, divided by the number "
        "of states. SPIN's figure is its own count.",
        *([f"SPIN was not measured: {reason}"] if (reason := spin.missing()) else []),
    ]) + beside_baseline(setting)
