"""What the kit has to say about a server."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from cancelmark.model.delivery import DELIVERY
from cancelmark.model.properties import PROPERTIES

from .exchange import exchange_mermaid, exchange_svg, exchange_text
from .history import History
from .script import Script

ORDER = (*PROPERTIES, DELIVERY)
LEGEND = "In what was done, `;` waits until the server is quiet, `,` does not, and `+` is at the same time."


class Status(Enum):
    """What is said of a guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_OBSERVABLE = "not observable"
    NOT_CLAIMED = "not claimed"


@dataclass(frozen=True)
class Finding:
    """A history that breaks a guarantee, and how to play it again."""

    script: Script
    history: History

    def says(self, guarantee: str) -> str:
        return next(c.says for c in self.history.complaints if c.guarantee == guarantee)


@dataclass(frozen=True)
class Verdict:
    """One guarantee, judged."""

    guarantee: str
    status: Status
    why: str = ""  # it is not observable
    shown: int = 0  # histories in which it was put to the test
    finding: Finding | None = None  # the shortest history that breaks it

    @property
    def sentence(self) -> str:
        return next(p.sentence for p in ORDER if p.id == self.guarantee)

    @property
    def rules(self) -> str:
        return ", ".join(next(p.clauses for p in ORDER if p.id == self.guarantee))

    @property
    def about(self) -> str:
        """In a few words, why it is what it is."""
        if self.finding:
            return self.finding.says(self.guarantee)
        return self.why or (f"tested in {self.shown:,} histories" if self.status is Status.KEPT else "")

    @property
    def story(self) -> str:
        """What broke it, for people."""
        if self.finding is None:
            return ""
        rules = f" ({self.rules})" if self.rules else ""
        return (f"{self.guarantee} is broken: {self.finding.says(self.guarantee)}\n"
                f"  the rule{rules}: {self.sentence}\n"
                f"  what was done: {self.finding.script}\n\n{exchange_text(self.finding.history.observations)}\n")


    @property
    def svg(self) -> str:
        """The same as a picture."""
        if self.finding is None:
            return ""
        return exchange_svg(self.finding.history.observations, f"{self.guarantee} is broken", self.about)


@dataclass(frozen=True)
class Report:
    """What the kit has to say about a server. Printed, it is a table and the shortest history for each break."""

    name: str
    verdicts: tuple[Verdict, ...]
    scenarios: dict[str, Finding | str | None]
    """By name: the history in which its guarantee was broken, why it could not be tried, or None if it was kept."""
    histories: int
    seconds: float
    profile: str
    notes: tuple[str, ...] = ()

    def of(self, status: Status) -> list[str]:
        return [v.guarantee for v in self.verdicts if v.status is status]

    @property
    def broken(self) -> list[str]:
        return self.of(Status.BROKEN)

    @property
    def kept(self) -> list[str]:
        return self.of(Status.KEPT)

    @property
    def ok(self) -> bool:
        return not self.broken

    def verdict(self, guarantee: str) -> Verdict:
        return next(v for v in self.verdicts if v.guarantee == guarantee)

    def __str__(self) -> str:
        wide = max(len(v.guarantee) for v in self.verdicts)
        lines = [f"{v.guarantee:{wide}}  {v.status.value:14}  {v.about}".rstrip() for v in self.verdicts]
        lines += self.notes
        lines += ["", *(v.story for v in self.verdicts if v.finding), *([LEGEND] if self.broken else [])]
        return "\n".join([*lines, self.summary])

    __repr__ = __str__

    @property
    def summary(self) -> str:
        counts = " ".join(f"{status.name.lower().replace('_', '-')}={len(self.of(status))}" for status in Status)
        return (f"histories={self.histories} {counts} seconds={self.seconds:.1f} "
                f"verdict={'conforms' if self.ok else 'broken'}")

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "server": self.name, "profile": self.profile, "histories": self.histories,
            "seconds": round(self.seconds, 3), "verdict": "conforms" if self.ok else "broken",
            "guarantees": [{
                "id": v.guarantee, "status": v.status.value, "says": v.sentence, "rules": v.rules, "histories": v.shown,
                **({"why": v.why} if v.why else {}),
                **({"complaint": v.finding.says(v.guarantee), "script": str(v.finding.script),
                    "history": [line._asdict() for line in v.finding.history.observations],
                    "mermaid": exchange_mermaid(v.finding.history.observations)} if v.finding else {}),
            } for v in self.verdicts],
            "scenarios": {name: "broken" if isinstance(shown, Finding) else shown or "kept"
                          for name, shown in self.scenarios.items()},
            "notes": list(self.notes),
        }
