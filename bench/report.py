"""What a benchmark reports: tables of figures, and the goals that were set for some of them.

The machines that run these are shared and noisy. A goal is therefore a ratio of two things measured in one run, or a
count; seconds are for the tables only.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

RELATIONS = {"at most": operator.le, "at least": operator.ge}


@dataclass(frozen=True)
class Goal:
    """A figure that was promised: `figure` must be at most, or at least, `limit`. Where it was measured more than once
    the figure is the median, and `all` has each. Without figures it was not measured. `why` says what holds it back
    where it is missed, or why it was not measured."""

    what: str
    figures: tuple[float, ...]
    relation: str
    limit: float
    unit: str = "×"
    why: str = ""

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS or not (self.figures or self.why):
            raise ValueError(f"goal {self.what!r}: say {' or '.join(RELATIONS)}, and give at least one figure, or why "
                             "there is none")

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
        """The figure, and how far the rounds are apart."""
        if self.figure is None:
            return "–"
        spread = f" ({min(self.figures):.3g} to {max(self.figures):.3g})" if len(self.figures) > 1 else ""
        return f"{self.figure:.3g}{self.unit}{spread}"

    @property
    def wanted(self) -> str:
        return f"{self.relation} {self.limit:g}{self.unit}"

    @property
    def reason(self) -> str:
        """What holds it back, or why it was not measured."""
        return "" if self.met else self.why

    @property
    def line(self) -> str:
        """For people: what was promised, what was measured, and whether that is enough."""
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
    """Figures side by side. Numbers are shown with thousands separated, everything else as it is."""

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
class Picture:
    """A drawing that belongs to a report."""

    title: str
    name: str  # of its file
    svg: str

    @property
    def markdown(self) -> str:
        return f"![{self.title}]({self.name})\n"


@dataclass(frozen=True)
class Report:
    """What one subject has to say."""

    tables: Sequence[Table] = ()
    goals: Sequence[Goal] = ()
    remarks: Sequence[str] = ()  # what was not measured, and why
    pictures: Sequence[Picture] = ()  # drawn where the report is written to a file

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
            "goals": [goal.json for goal in self.goals], "remarks": list(self.remarks),
            "pictures": [{"title": picture.title, "name": picture.name} for picture in self.pictures]}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Report":
        """The report that was kept so; its pictures are in their files."""
        return cls([Table(t["title"], tuple(t["columns"]), t["rows"]) for t in told["tables"]],
                   [Goal.of(goal) for goal in told["goals"]], told["remarks"],
                   [Picture(picture["title"], picture["name"], "") for picture in told["pictures"]])
