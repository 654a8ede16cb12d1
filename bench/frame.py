"""`python -m cancelmark.bench`: measures every published figure.

The machines that run this are shared and noisy. A goal is therefore a ratio of two measurements in one run, or a count;
seconds appear only in tables.

A report is also stored as JSON next to its file. Measuring one subject replaces only its part; the other parts keep the
commit and the machine that they were measured with.

The baseline is an earlier commit of this repository. It is checked out into `build/baseline` and installed there once,
with the dependencies that it was pinned to.
"""

import argparse
import json
import operator
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cancelmark.impl.cli.main import Parser
from cancelmark.impl.cli.terminal import output
from cancelmark.impl.files import UsageError, write

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "baseline"
EXTRAS = "openai,serve,wire,fast"  # extras to install with the baseline
RELATIONS = {"at most": operator.le, "at least": operator.ge}

# Each subject is a function `measure_SUBJECT(setting)` in a module that is imported on demand.
SUBJECTS: Mapping[str, str] = {
    "explorer": "The explorer: two engines and SPIN, states per second, bytes per state, and growth",
    "runtime": "The runtime: the cost of a prompt, by length of the history and number of sessions",
    "store": "The store: durable acceptances per second",
    "server": "The server: the cost of acceptance over HTTP, and the latency of a cancel",
    "cluster": "A cluster on one PostgreSQL: acceptance, cancels across nodes, and failover",
    "beside": "The server compared with an earlier version: prompts per second, and the latency of a cancel",
}
MODULES = {"store": "runtime", "beside": "server"}  # the other modules are named like their subject

DESCRIPTION = """\
Run the benchmarks and compare the results with the goals. A goal is a ratio of two measurements in one run, or a count,
because seconds depend on the machine and its load.
"""


# --- Reports

@dataclass(frozen=True)
class Goal:
    """A performance goal: `figure` must be at most, or at least, `limit`. `figure` is the median of the measurements;
    without figures the goal was not measured. `why` explains why it is missed or was not measured."""

    what: str
    figures: tuple[float, ...]
    relation: str
    limit: float
    unit: str = "×"
    why: str = ""

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS or not (self.figures or self.why):
            raise ValueError(f"goal {self.what!r}: the relation must be {' or '.join(RELATIONS)}, and there must be a "
                             "figure, or a reason why there is none")

    @property
    def figure(self) -> float | None:
        return median(self.figures) if self.figures else None

    @property
    def met(self) -> bool:
        return self.figure is not None and bool(RELATIONS[self.relation](self.figure, self.limit))

    @property
    def verdict(self) -> str:
        return "met" if self.met else "missed" if self.figures else "not measured"

    @property
    def shown(self) -> str:
        """The figure, with the range over the rounds."""
        if self.figure is None:
            return "–"
        spread = f" ({min(self.figures):.3g} to {max(self.figures):.3g})" if len(self.figures) > 1 else ""
        return f"{self.figure:.3g}{self.unit}{spread}"

    @property
    def wanted(self) -> str:
        return f"{self.relation} {self.limit:g}{self.unit}"

    @property
    def reason(self) -> str:
        """Why the goal is missed or was not measured; empty if it is met."""
        return "" if self.met else self.why

    @property
    def line(self) -> str:
        """The goal, the figure and the verdict, on one line."""
        return (f"goal {self.verdict}: {self.what}: {self.shown}, {self.wanted}"
                + (f". {self.reason}" if self.reason else ""))

    @property
    def json(self) -> dict[str, Any]:
        return {"what": self.what, "figure": self.figure, "all": list(self.figures), "relation": self.relation,
                "limit": self.limit, "unit": self.unit, "verdict": self.verdict, "why": self.why}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Goal":
        return cls(told["what"], tuple(told["all"]), told["relation"], told["limit"], told["unit"], told["why"])


@dataclass(frozen=True)
class Table:
    """A table. Numbers are shown with thousands separators, everything else unchanged."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    @property
    def markdown(self) -> str:
        numeric = [bool(self.rows) and all(isinstance(row[i], int | float) for row in self.rows)
                   for i in range(len(self.columns))]
        lines = [self.columns, ["---:" if right else "---" for right in numeric],
                 *([_shown(cell) for cell in row] for row in self.rows)]
        return f"**{self.title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


@dataclass(frozen=True)
class Report:
    """The results of one subject."""

    tables: Sequence[Table] = ()
    goals: Sequence[Goal] = ()
    remarks: Sequence[str] = ()  # what was not measured, and why

    @property
    def markdown(self) -> str:
        parts = [table.markdown for table in self.tables]
        parts += ["".join(f"- {line}\n" for line in [*(goal.line for goal in self.goals), *self.remarks])]
        return "\n".join(part for part in parts if part)

    @property
    def json(self) -> Mapping[str, Any]:
        return {
            "tables": [{"title": t.title, "columns": list(t.columns), "rows": [list(row) for row in t.rows]}
                       for t in self.tables],
            "goals": [goal.json for goal in self.goals], "remarks": list(self.remarks)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Report":
        """The report from its JSON form."""
        return cls([Table(t["title"], tuple(t["columns"]), t["rows"]) for t in told["tables"]],
                   [Goal.of(goal) for goal in told["goals"]], told["remarks"])

    def __add__(self, other: "Report") -> "Report":
        return Report([*self.tables, *other.tables], [*self.goals, *other.goals], [*self.remarks, *other.remarks])


# --- Settings

@dataclass(frozen=True)
class Baseline:
    """An earlier version in its own environment."""

    commit: str
    version: str
    python: Path

    @property
    def name(self) -> str:
        return f"{self.version} ({self.commit})"

    def list_command(self, *arguments: str) -> list[str]:
        """The command line of its `cancelmark`."""
        return [str(self.python.with_name("cancelmark")), *arguments]


@dataclass(frozen=True)
class Setting:
    """How a subject is measured."""

    rounds: int = 3
    baseline: Baseline | None = None


def install_baseline(commit: str, build: Path = BUILD) -> Baseline:
    """Installs the version of that commit, unless it is already installed."""
    short = _git("rev-parse", "--short=7", f"{commit}^{{commit}}", wanted=commit).strip()
    place = build / short
    checkout, python = place / "checkout", place / "venv/bin/python"
    if not (place / "ready").exists():
        checkout.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", short], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x"], cwd=checkout, input=archive.stdout, check=True)
        venv.create(place / "venv", with_pip=True, clear=True)
        print(f"installing {short} into {place} (only the first time)", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                        checkout / "constraints.txt", f"{checkout}[{EXTRAS}]"], check=True, stdout=sys.stderr)
        (place / "ready").touch()
    version = subprocess.run([python, "-c", "from importlib.metadata import version; print(version('cancelmark'))"],
                             text=True, stdout=subprocess.PIPE, check=True, cwd=place,
                             env={**os.environ, "PYTHONPATH": ""})
    return Baseline(short, version.stdout.strip(), python)


def find_commit() -> str:
    """The commit of this checkout; a plus marks uncommitted changes."""
    try:
        return _git("describe", "--always", "--dirty=+", "--exclude=*").strip()
    except UsageError:
        return "no checkout"


def _git(*arguments: str, wanted: str = "") -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, text=True, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"BASELINE {wanted}: not a commit of this checkout; give one from git log") from error


# --- The command

def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m cancelmark.bench", description=DESCRIPTION,
        epilog="subjects:\n" + "".join(f"  {name:12}{about}\n" for name, about in SUBJECTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="what to measure (default: all subjects)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of measurements (default: 3)")
    parser.add_argument("--baseline", metavar="COMMIT", help="an earlier version to compare with; it is installed into "
                                                             "build/baseline")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="also write the report to FILE, and as JSON to FILE with the extension .json; the parts "
                             "of other subjects are kept")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    for name in arguments.subjects:
        if name not in SUBJECTS:
            raise UsageError(f"{name}: no such subject; choose from {', '.join(SUBJECTS)}")
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: must be at least 1")
    setting = Setting(arguments.rounds, install_baseline(arguments.baseline) if arguments.baseline else None)
    console = output()
    measured: dict[str, Any] = {}
    for name in arguments.subjects or SUBJECTS:
        part = measured[name] = measure(name, setting)
        if not arguments.json:
            console.print(_tell(name, part), markup=False)
        if arguments.output:
            keep(arguments.output, {name: part})
    if arguments.json:
        console.print(json.dumps(_plain(measured), indent=2), markup=False)
    return 0


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """Measures one subject, and records the commit and the machine."""
    subject = find_subject(name)
    before, began = load(), perf_counter()
    report = subject(setting)
    return {"report": report, "measured": {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": find_commit(), "machine": machine(),
        "rounds": setting.rounds, "seconds": round(perf_counter() - began), "load": [before, load()],
        "baseline": setting.baseline.name if setting.baseline else None}}


def find_subject(name: str) -> Callable[[Setting], Report]:
    module = import_module(f"{__package__}.{MODULES.get(name, name)}")
    found: Callable[[Setting], Report] = getattr(module, f"measure_{name}")
    return found


def keep(path: Path, measured: Mapping[str, Any]) -> None:
    """Writes the measurements to the file, replacing the parts of the same subjects."""
    file = path.with_suffix(".json")
    parts = json.loads(file.read_text(encoding="utf-8")).get("subjects", {}) if file.exists() else {}
    known = {name: {**part, "report": Report.of(part["report"])} for name, part in parts.items()
             if name in SUBJECTS and "measured" in part}
    merged = {name: {**known, **measured}[name] for name in SUBJECTS if name in {**known, **measured}}
    write(file, json.dumps({"subjects": _plain(merged)}, indent=2) + "\n")
    write(path, _page(merged))


def _plain(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**part, "report": part["report"].json} for name, part in measured.items()}


def _page(measured: Mapping[str, Any]) -> str:
    return "\n".join([
        "# Benchmarks\n\nMeasured with `make bench BASELINE=e117825`; `ONLY=server` measures only one subject. "
        "Goals are ratios of two figures measured alternately in one run, or counts. Load is the machine's load "
        "average over one minute, before and after.\n",
        _list_goals(measured), *(_tell(name, part) for name, part in measured.items())])


def _list_goals(measured: Mapping[str, Any]) -> str:
    """Every goal in one table, with the reasons for missed goals."""
    rows = [(name, goal.what, goal.shown, goal.wanted, goal.verdict, goal.reason)
            for name, part in measured.items() for goal in part["report"].goals]
    return Table("Goals", ("subject", "what", "figure", "goal", "verdict", "why"), rows).markdown


def _tell(name: str, part: Mapping[str, Any]) -> str:
    told, report = part["measured"], part["report"]
    beside = f", compared with {told['baseline']}" if told["baseline"] else ""
    return "\n".join([
        f"## {SUBJECTS[name]}\n",
        f"{told['at']} UTC, commit {told['commit']}, {told['machine']}, load {told['load'][0]:.1f} to "
        f"{told['load'][1]:.1f}, {told['rounds']} rounds in {told['seconds']} s{beside}.\n",
        report.markdown])


def machine() -> str:
    """The machine on one line."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} cores, {python}"


def load() -> float:
    """The load average of the last minute, which distorts figures."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
