"""The explorer's two engines and SPIN side by side, and an earlier version; each search in a process of its own.

Compared is processor time, which the load of a shared machine disturbs less than it disturbs the clock.
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
HUGE = (  # for the fast engine alone
    Bounds(4, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(5, cancels=2, clears=1),
)

DEFAULT, LARGEST = SMALL[-1], HUGE[-1]  # what an earlier version is measured at

ROOMY = "-w25"  # SPIN's hash table has a slot for each state, and more

NO_BASELINE = "There was no earlier version: give BASELINE=COMMIT."
TABLES = ("Two fifths of what is left table what sessions can do, in Python, the loop in C is the rest. Three fifths "
          "of that are the protocol's own actions and properties, run once for each order of a session's prompts.")

CHECK = ("check", "--json", "--max-states", "100000000")
OURS = (sys.executable, "-m", "cancelmark.impl.cli.main")

T = TypeVar("T")


FASTER_PLAIN = ("About half of the fast engine's time at these bounds tables what sessions can do, in Python. Three "
                "fifths of that are the protocol's own actions and properties, and what makes these faster makes the "
                "plain engine faster, too.")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work gives, and the processor time of the processes that it has run."""
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    return work(), spent() - before


class Ours(NamedTuple):
    """One search of ours: what it reports, and what the whole command cost."""

    report: dict[str, Any]
    command: float

    @property
    def rate(self) -> float:
        return float(self.report["states"] / self.report["processor_seconds"])


class Spins(NamedTuple):
    """One search of SPIN's."""

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
    """What `cancelmark check` reports at these bounds or its own, from a fresh process."""
    whole = [*command, *CHECK, *(bound_options(bounds) if bounds else []), *(["--engine", engine] if engine else [])]
    environment = os.environ if command is OURS else {**os.environ, "PYTHONPATH": ""}
    done, spent = timed(lambda: subprocess.run(whole, stdout=subprocess.PIPE, check=True, env=environment))
    return Ours(json.loads(done.stdout), spent)


def ours(bounds: Bounds, engine: str | None = None) -> Ours:
    return check(OURS, bounds, engine)


def spins(bounds: Bounds, rounds: int) -> list[Spins]:
    """As many searches, with a verifier that is compiled once."""
    if spin.missing():
        return []
    with TemporaryDirectory() as directory:
        verifier, building = timed(lambda: spin.build(Path(directory), bounds, spin.FAST))
        searches = [timed(lambda: spin.Search.of(verifier.run(ROOMY))) for _ in range(rounds)]
    return [Spins(found, building, searching) for found, searching in searches]


def beside_baseline(setting: Setting) -> Report:
    """What the command, the fast engine and the plain one take beside an earlier version, by turns."""
    kinds = (  # the row, what is promised, and what is run
        ("`check`, processor seconds",
         "`check`: processor time from command to verdict against the baseline", "at most", 0.35, None, None),
        (f"{LARGEST}: processor seconds of the search",
         f"{LARGEST}: processor time of the search against the baseline", "at most", 0.4, LARGEST, None),
        (f"{DEFAULT}: processor seconds of the plain engine",
         f"{DEFAULT}: states a second of the plain engine against the baseline", "at least", 1.5, DEFAULT, "plain"),
    )
    baseline = setting.baseline
    if baseline is None:
        return Report(goals=[Goal(what, (), relation, limit, why=NO_BASELINE)
                             for _, what, relation, limit, _, _ in kinds])
    rows, goals = [], []
    for row, what, relation, limit, bounds, engine in kinds:
        check(baseline.list_command(), bounds, engine)  # the first of all may compile
        pairs = [(check(baseline.list_command(), bounds, engine), check(OURS, bounds, engine))
                 for _ in range(setting.rounds)]
        taken = [(a.command, b.command) if bounds is None else
                 (a.report["processor_seconds"], b.report["processor_seconds"]) for a, b in pairs]
        rows.append((row, *map(median, zip(*taken))))
        ratios = tuple(a / b if relation == "at least" else b / a for a, b in taken)
        goals.append(Goal(what, ratios, relation, limit, why=TABLES if bounds == LARGEST else ""))
    return Report([Table(f"Beside {baseline.name}, medians", ("what", baseline.name, "now"), rows)], goals)


def measure_explorer(setting: Setting) -> Report:
    rates, commands, memory, goals = [], [], [], []
    curve: list[tuple[float, float]] = []  # the fast engine's seconds by states
    for bounds in (*SMALL, *LARGE):
        plain = [ours(bounds, "plain")]  # once: it takes longest, and is measured more often at the default bounds
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
        goals.append(Goal(f"{bounds}: states a second, fast against plain", tuple(
            o.rate / plain[0].rate for o in chosen), "at least", 20, why=FASTER_PLAIN))
        if spun:
            goals.append(Goal(f"{bounds}: states a second, fast against SPIN", tuple(
                o.rate / s.rate for o, s in zip(chosen, spun)), "at least", 3))
        goals.append(Goal(f"{bounds}: bytes a state, fast", tuple(
            float(o.report["bytes_per_state"]) for o in chosen), "at most", 48, ""))
        curve.append((states, median(o.report["processor_seconds"] for o in chosen)))
    for bounds in HUGE:
        taken_alone = [ours(bounds, "fast") for _ in range(setting.rounds)]
        states = taken_alone[0].report["states"]
        curve.append((states, median(o.report["processor_seconds"] for o in taken_alone)))
        memory.append((str(bounds), states, "–", median(o.report["bytes_per_state"] for o in taken_alone), "–"))
        if bounds == LARGEST:
            goals.append(Goal(f"{bounds}: bytes a state", tuple(
                float(o.report["bytes_per_state"]) for o in taken_alone), "at most", 28, ""))
    fit = linear_regression(*zip(*((log(x), log(y)) for x, y in curve)))
    goals.append(Goal("exponent of the fast engine's seconds against its states (1: linear)", (fit.slope,), "at most",
                      1.1, ""))
    return Report([
        Table("States a second of processor time, medians", ("bounds", "states", "plain", "fast", "SPIN"),
              rates),
        Table("From the command to the verdict, in seconds of processor time, medians",
              ("bounds", "states", "engine", "check", "SPIN", "of it, to compile"), commands),
        Table("Bytes a state, medians", ("bounds", "states", "plain", "fast", "SPIN"), memory),
        Table("The fast engine's growth, medians", ("states", "seconds"), sorted(curve)),
    ], goals, [
        "*check* is the command as people give it, which chooses its engine; the engine was compiled before.",
        "Bytes a state: the growth of the process at its peak over what it had when the engine was loaded, divided by "
        "the states. SPIN's are its own count.",
        *([f"SPIN was not measured: {reason}"] if (reason := spin.missing()) else []),
    ]) + beside_baseline(setting)
