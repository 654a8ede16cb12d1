"""The explorer's two engines and SPIN side by side, each search in a process of its own; then `versions`.

Compared is processor time, which the load of a shared machine disturbs less than it disturbs the clock.
"""

import resource
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from cancelmark.model.properties import Bounds

from ..plot import plot
from ..report import Goal, Picture, Report, Table
from ..setting import Setting
from . import spin, versions
from .ours import check

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

ROOMY = "-w25"  # SPIN's hash table has a slot for each state, and more

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


def ours(bounds: Bounds, engine: str | None = None) -> Ours:
    return Ours(*timed(lambda: check(bounds, engine)))


def spins(bounds: Bounds, rounds: int) -> list[Spins]:
    """As many searches, with a verifier that is compiled once."""
    if spin.missing():
        return []
    with TemporaryDirectory() as directory:
        verifier, building = timed(lambda: spin.build(Path(directory), bounds, spin.FAST))
        searches = [timed(lambda: spin.Search.of(verifier.run(ROOMY))) for _ in range(rounds)]
    return [Spins(found, building, searching) for found, searching in searches]


def first_ever(bounds: Bounds) -> float:
    """The cost of the command on a machine that has never compiled the engine."""
    return timed(lambda: check(bounds, anew=True))[1]


def measure(setting: Setting) -> Report:
    rates, commands, memory, goals = [], [], [], []
    curves: dict[str, list[tuple[float, float]]] = {"plain": [], "fast": [], "SPIN": []}
    for bounds in (*SMALL, *LARGE):
        plain = [ours(bounds, "plain")]  # once: it takes longest, and is measured more often at the default bounds
        chosen = [ours(bounds) for _ in range(setting.rounds)]
        spun = spins(bounds, setting.rounds)
        engine = chosen[0].report["engine"]
        states = chosen[0].report["states"]
        commands.append((str(bounds), states, engine, median(o.command for o in chosen),
                         first_ever(bounds),
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
        curves["plain"].append((states, median(o.report["processor_seconds"] for o in plain)))
        curves["fast"].append((states, median(o.report["processor_seconds"] for o in chosen)))
        if spun:
            curves["SPIN"].append((states, median(s.searching for s in spun)))
    for bounds in HUGE:
        taken_alone = [ours(bounds, "fast") for _ in range(setting.rounds)]
        states = taken_alone[0].report["states"]
        curves["fast"].append((states, median(o.report["processor_seconds"] for o in taken_alone)))
        memory.append((str(bounds), states, "–", median(o.report["bytes_per_state"] for o in taken_alone), "–"))
    fit = linear_regression(*zip(*((log(x), log(y)) for x, y in curves["fast"])))
    goals.append(Goal("exponent of the fast engine's seconds against its states (1: linear)", (fit.slope,), "at most",
                      1.1, ""))
    versions_apart = versions.measure(setting)
    return Report([
        Table("States a second of processor time, medians", ("bounds", "states", "plain", "fast", "SPIN"),
              rates),
        Table("From the command to the verdict, in seconds of processor time, medians",
              ("bounds", "states", "engine", "check", "check, first ever", "SPIN", "of it, to compile"), commands),
        Table("Bytes a state, medians", ("bounds", "states", "plain", "fast", "SPIN"), memory),
        Table("The fast engine's growth, medians", ("states", "seconds"), sorted(curves["fast"])),
        *versions_apart.tables,
    ], [*goals, *versions_apart.goals], remarks=[
        "*check* is the command as people give it, which chooses its engine; *first ever* compiles the engine, later "
        "runs load it.",
        "Bytes a state: the growth of the process at its peak over what it had when the engine was loaded, divided by "
        "the states. SPIN's are its own count.",
        *([f"SPIN was not measured: {reason}"] if (reason := spin.missing()) else []),
    ], pictures=[Picture("Seconds against states", "explorer.svg", plot(
        {name: curve for name, curve in curves.items() if curve}, "states", "seconds of processor time"))])
