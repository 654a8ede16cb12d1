"""What was seen in the field, as it is kept: who was played, when, at which load, and what showed how often.

The plays of an agent come in series. *first*: on the machine as it is. *loaded*: what showed there, beside processes
that do nothing but compute. *again*: what showed often in these two, as often as somebody has asked since, the last
time counts. A finding showed often in all of them, on a loaded machine and on one that was not.
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

OFTEN = 0.6  # the part of all plays in which something has to show
LOADED_FROM = 2  # processes that want to run, for each core
LOOK = 1.0  # seconds between two looks at how many want to run
RUNNING = Path("/proc/loadavg")
KEPT = ("id", "says", "promise")  # of a guarantee that did not hold
PLAYED = ("script", "times", "showed", "ends")  # of a script
JUDGED = ("id", "says", "promise", "status", "histories", "why")  # of any guarantee, in a whole judgement
FIRST, LOADED, AGAIN = "first", "loaded", "again"


@dataclass(frozen=True)
class Count:
    """How often a script was played in one series, and what showed in how many plays."""

    series: str
    times: int
    showed: Mapping[str, int]
    loaded: bool
    """On average at least two processes for each core wanted to run."""

    def is_often(self, guarantee: str) -> bool:
        return self.showed.get(guarantee, 0) >= OFTEN * self.times

    def tell(self, guarantee: str) -> str:
        name = "" if self.series == FIRST else f"{self.series} "
        return f"{name}{self.showed.get(guarantee, 0)}/{self.times}"


@dataclass(frozen=True)
class Row:
    """A script that was played in one mode."""

    mode: str
    script: str
    ends: Mapping[str, int]
    counts: tuple[Count, ...]

    def is_often(self, guarantee: str) -> bool:
        """It showed often in every series."""
        return all(count.is_often(guarantee) for count in self.counts)

    def is_finding(self, guarantee: str) -> bool:
        """It showed often in every series, and the machine was loaded in one of them, and not in another."""
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
        """How the prompts ended at first, with the number of plays if they did not always end so."""
        times = self.counts[0].times
        return [ends if n == times else f"{ends} ({n}/{times})" for ends, n in self.ends.items()]


@dataclass(frozen=True)
class Found:
    """A finding: what did not hold, and in which script."""

    row: Row
    guarantee: Mapping[str, Any]
    complaint: str
    mermaid: str


def list_rows(seen: Mapping[str, Any]) -> Iterator[Row]:
    """What was played, as the list of scripts has it."""
    for mode, report in seen["series"][0]["reports"].items():
        for each in report["scripts"]:
            yield Row(mode, each["script"], each["ends"], tuple(
                Count(series["name"], one["times"], one["showed"], series["load"] >= LOADED_FROM * seen["cores"])
                for series in seen["series"] for one in series["reports"].get(mode, {}).get("scripts", ())
                if one["script"] == each["script"]))


def list_findings(seen: Mapping[str, Any]) -> Iterator[Found]:
    """One for each guarantee of each mode, in the first script in which it is a finding."""
    return _list_found(seen, Row.is_finding)


def list_candidates(seen: Mapping[str, Any]) -> Iterator[Found]:
    """The same of what showed often before anybody played it again, whatever the load was."""
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
    """What the pages need of the reports. What was said and drawn is kept once, of the first series."""
    return {"name": name, "busy": busy, "load": round(load, 1), "reports": {
        mode: {"scripts": report["scripts"],
               "guarantees": [_pick(each, KEPT) for each in report["guarantees"] if each["status"] == "broken"]}
        if name == FIRST else {"scripts": [_pick(each, PLAYED) for each in report["scripts"]]}
        for mode, report in reports.items()}}


def make_whole(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the pages need of a whole judgement."""
    return {"histories": report["histories"], "guarantees": [_pick(each, JUDGED) for each in report["guarantees"]]}


def put_series(seen: dict[str, Any], series: dict[str, Any]) -> None:
    """In the place of the one that had its name."""
    seen["series"] = [each for each in seen["series"] if each["name"] != series["name"]] + [series]


def _pick(each: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: each[name] for name in names if name in each}


class Load:
    """How many processes wanted to run, besides whoever looks."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    @property
    def average(self) -> float:
        return mean(self.seen)

    def look(self) -> None:
        """At this moment; where the system does not tell that, in the last minute."""
        self.seen.append(int(RUNNING.read_text().split()[3].partition("/")[0]) - 1 if RUNNING.exists()
                         else os.getloadavg()[0])


@contextmanager
def watching_load() -> Iterator[Load]:
    """The load for as long as this lasts."""
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
    """By name."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
