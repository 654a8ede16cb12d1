"""What was seen in the field, as it is kept: who was played, when, at which load, and what showed how often.

The plays of an agent come in series. *first*: on the machine as it is. *loaded*: what showed there, beside processes
that do nothing but compute. *again*: what is a finding by these two, as often as somebody has asked since, the last
time counts.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFTEN = 0.6  # the part of all plays in which something has to show
LOADED_FROM = 2  # processes that want to run, for each core
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
    """At least two processes for each core wanted to run."""

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

    def is_finding(self, guarantee: str) -> bool:
        """It showed often in every series, and the machine was loaded in one of them."""
        return any(count.loaded for count in self.counts) and all(count.is_often(guarantee) for count in self.counts)

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
                Count(series["name"], one["times"], one["showed"],
                      series["busy"] > 0 or min(series["loads"]) >= LOADED_FROM * seen["cores"])
                for series in seen["series"] for one in series["reports"].get(mode, {}).get("scripts", ())
                if one["script"] == each["script"]))


def list_findings(seen: Mapping[str, Any]) -> Iterator[Found]:
    """One for each guarantee of each mode, in the first script in which it is a finding."""
    rows = list(list_rows(seen))
    for mode, report in seen["series"][0]["reports"].items():
        found = {each["script"]: each["findings"] for each in report["scripts"]}
        for guarantee in report["guarantees"]:
            name = guarantee["id"]
            often = [row for row in rows if row.mode == mode and row.is_finding(name) and name in found[row.script]]
            for row in often[:1]:
                yield Found(row, guarantee, **found[row.script][name])


def make_series(name: str, busy: int, loads: tuple[float, float], reports: Mapping[str, Any]) -> dict[str, Any]:
    """What the pages need of the reports. What was said and drawn is kept once, of the first series."""
    return {"name": name, "busy": busy, "loads": [round(load, 1) for load in loads], "reports": {
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


def get_load() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def read_record(file: Path) -> dict[str, Any]:
    """By name."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
