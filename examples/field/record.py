"""The stored results of `make field`: which agents ran, when, under which load, and how often each guarantee broke.

The runs of an agent come in series. *first*: on the machine as it is. *loaded*: the scripts that broke a guarantee,
with busy processes beside them. *again*: the frequent breaks of these two, from the last `make field-again`. A finding
is a break that is frequent in every series, both on a loaded machine and on one that is not.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from threading import Event, Thread
from typing import Any

OFTEN = 0.6  # the fraction of runs that makes a break frequent
LOADED_FROM = 2  # runnable processes per core that make a machine loaded
LOOK = 1.0  # seconds between two samples of the load
RUNNING = Path("/proc/loadavg")
KEPT = ("id", "says", "promise")  # of a broken guarantee
PLAYED = ("script", "times", "showed", "ends")  # of a script
JUDGED = ("id", "says", "promise", "status", "histories", "why")  # of any guarantee, in a whole judgement
FIRST, LOADED, AGAIN = "first", "loaded", "again"


@dataclass(frozen=True)
class Count:
    """The runs of a script in one series, and the number of runs that broke each guarantee."""

    series: str
    times: int
    showed: Mapping[str, int]
    loaded: bool
    """On average at least two processes per core were runnable."""

    def is_often(self, guarantee: str) -> bool:
        return self.showed.get(guarantee, 0) >= OFTEN * self.times

    def tell(self, guarantee: str) -> str:
        name = "" if self.series == FIRST else f"{self.series} "
        return f"{name}{self.showed.get(guarantee, 0)}/{self.times}"


@dataclass(frozen=True)
class Row:
    """The results of a script in one mode."""

    mode: str
    script: str
    ends: Mapping[str, int]
    counts: tuple[Count, ...]

    def is_often(self, guarantee: str) -> bool:
        """Whether the break is frequent in every series."""
        return all(count.is_often(guarantee) for count in self.counts)

    def is_finding(self, guarantee: str) -> bool:
        """Whether the break is frequent in every series, with the machine loaded in one and not in another."""
        return self.is_often(guarantee) and {count.loaded for count in self.counts} == {False, True}

    def tell(self, guarantee: str) -> str:
        text = f"{guarantee} {', '.join(count.tell(guarantee) for count in self.counts)}"
        return text if self.is_finding(guarantee) else f"({text})"

    @property
    def showed(self) -> list[str]:
        return list(dict.fromkeys(guarantee for count in self.counts for guarantee in count.showed))

    @property
    def broken(self) -> list[str]:
        return [self.tell(guarantee) for guarantee in self.showed]

    @property
    def ended(self) -> list[str]:
        """The outcomes in the first series, with the number of runs unless they are the same in all."""
        times = self.counts[0].times
        return [ends if n == times else f"{ends} ({n}/{times})" for ends, n in self.ends.items()]


@dataclass(frozen=True)
class Found:
    """A finding: the broken guarantee, and the script that broke it."""

    row: Row
    guarantee: Mapping[str, Any]
    complaint: str
    mermaid: str


def list_rows(seen: Mapping[str, Any]) -> Iterator[Row]:
    """The results by script, in the order of the list of scripts."""
    for mode, report in seen["series"][0]["reports"].items():
        for each in report["scripts"]:
            yield Row(mode, each["script"], each["ends"], tuple(
                Count(series["name"], one["times"], one["showed"], series["load"] >= LOADED_FROM * seen["cores"])
                for series in seen["series"] for one in series["reports"].get(mode, {}).get("scripts", ())
                if one["script"] == each["script"]))


def list_findings(seen: Mapping[str, Any]) -> Iterator[Found]:
    """The findings: one for each guarantee of each mode, with the first script that shows it."""
    return _list_found(seen, Row.is_finding)


def list_candidates(seen: Mapping[str, Any]) -> Iterator[Found]:
    """The frequent breaks before any `make field-again`, whatever the load was: one for each guarantee of each mode."""
    series = [each for each in seen.get("series", ()) if each["name"] != AGAIN]
    return _list_found({**seen, "series": series}, Row.is_often) if series else iter(())


def _list_found(seen: Mapping[str, Any], counts: Callable[[Row, str], bool]) -> Iterator[Found]:
    rows = list(list_rows(seen))
    for mode, report in seen["series"][0]["reports"].items():
        found = {each["script"]: each["findings"] for each in report["scripts"]}
        for guarantee in report["guarantees"]:
            name = guarantee["id"]
            often = [row for row in rows if row.mode == mode and name in found[row.script] and counts(row, name)]
            for row in often[:1]:
                yield Found(row, guarantee, **found[row.script][name])


def make_series(name: str, busy: int, load: float, reports: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the reports that the pages need. Complaints and diagrams are kept only from the first series."""
    return {"name": name, "busy": busy, "load": round(load, 1), "reports": {
        mode: {"scripts": report["scripts"],
               "guarantees": [_pick(each, KEPT) for each in report["guarantees"] if each["status"] == "broken"]}
        if name == FIRST else {"scripts": [_pick(each, PLAYED) for each in report["scripts"]]}
        for mode, report in reports.items()}}


def make_whole(report: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a full judgement that the pages need."""
    return {"histories": report["histories"], "guarantees": [_pick(each, JUDGED) for each in report["guarantees"]]}


def put_series(seen: dict[str, Any], series: dict[str, Any]) -> None:
    """Store the series, replacing the one of the same name."""
    seen["series"] = [each for each in seen["series"] if each["name"] != series["name"]] + [series]


def _pick(each: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: each[name] for name in names if name in each}


class Load:
    """Samples of the number of runnable processes, besides this one."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    @property
    def average(self) -> float:
        return mean(self.seen)

    def look(self) -> None:
        """Take a sample; where the system does not report the current number, of the last minute's average."""
        self.seen.append(int(RUNNING.read_text().split()[3].partition("/")[0]) - 1 if RUNNING.exists()
                         else os.getloadavg()[0])


@contextmanager
def watching_load() -> Iterator[Load]:
    """Sample the load inside the `with` block."""
    load, over = Load(), Event()

    def watch() -> None:
        load.look()
        while not over.wait(LOOK):
            load.look()

    watcher = Thread(target=watch, name="load")
    watcher.start()
    try:
        yield load
    finally:
        over.set()
        watcher.join()


def read_record(file: Path) -> dict[str, Any]:
    """The stored results, by the name of the agent."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
