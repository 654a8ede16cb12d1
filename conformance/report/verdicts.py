"""What the kit has to say about a server."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cancelmark.model.family import Feature

from ..judging.guarantees import GUARANTEES_BY_ID, NO_STEERING
from ..judging.history import History
from ..playing.script import Script
from .exchange import exchange_mermaid, exchange_svg, exchange_text

LEGEND = "In what was done, `;` waits until the server is quiet, `,` does not, and `+` is at the same time."


def counted(histories: int) -> str:
    """`1 history`, `1,203 histories`."""
    return "1 history" if histories == 1 else f"{histories:,} histories"


class Status(Enum):
    """What is said of a guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_TESTED = "not tested"
    """Too few histories could have broken it, or none."""
    NOT_OBSERVABLE = "not observable"
    """The server, or the adapter, cannot show it."""
    NOT_OFFERED = "not offered"
    """It is about a call that the server does not have: there is nothing to keep."""
    NOT_CLAIMED = "not claimed"


class Decision(Enum):
    """What is said of a server."""

    CONFORMS = "conforms"
    """All that a server of its kind must keep was tested, and is kept."""
    NOTHING_BROKEN = "nothing-broken"
    """Something is kept, and something else that a server of its kind must keep was not tested."""
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """Nothing was tested, or not what is required, or the judgement has stopped."""


@dataclass(frozen=True)
class Finding:
    """A history that breaks a guarantee, and how to play it again."""

    script: Script
    history: History
    reproduce: str = ""  # what to call or to type
    note: str = ""  # why it is not smaller, if it might be

    def says(self, guarantee: str) -> str:
        return next(c.says for c in self.history.complaints if c.guarantee == guarantee)

    @property
    def story(self) -> str:
        """What was done, what was seen, and how to see it again."""
        lines = [f"  what was done: {self.script.steps}", "", exchange_text(self.history.observations), ""]
        lines += [f"  {self.note}"] if self.note else []
        lines += [f"  reproduce with: {self.reproduce}"] if self.reproduce else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Replay:
    """A script that somebody wanted to have played, and how often it broke what."""

    script: Script
    times: int
    showed: dict[str, int]
    findings: dict[str, Finding]
    """By guarantee, the first play in which it showed."""
    ends: dict[str, int] = field(default_factory=dict)
    """How the prompts ended, and in how many plays."""

    def __str__(self) -> str:
        ends = "".join(f"; {ends}: {n}" for ends, n in self.ends.items())
        if not self.showed:
            return f"{self.script.steps}: nothing showed in {self.times} plays{ends}"
        showed = ", ".join(f"{guarantee} showed in {n}" for guarantee, n in self.showed.items())
        return f"{self.script.steps}: {showed} of {self.times} plays{ends}"


@dataclass(frozen=True)
class Verdict:
    """One guarantee, judged."""

    guarantee: str
    status: Status
    why: str = ""  # it was not tested, or is not observable
    shown: int = 0  # decisive histories: those that could have broken it
    finding: Finding | None = None  # the shortest history that breaks it
    seconds: float = 0  # its share of the time: that of a history is shared by the guarantees that it tested
    promise: str = ""  # where the text that the server follows promises it, if that is not ours

    features: frozenset[Feature] = frozenset()  # the calls of the family that the server has

    @property
    def sentence(self) -> str:
        """What is guaranteed, in the words that the server's calls need."""
        return GUARANTEES_BY_ID[self.guarantee].sentence(self.features)

    @property
    def rules(self) -> str:
        return ", ".join(GUARANTEES_BY_ID[self.guarantee].claim.clauses)

    @property
    def about(self) -> str:
        """In a few words, why it is what it is."""
        if self.finding:
            return self.finding.says(self.guarantee)
        return self.why or (f"{counted(self.shown)} could have broken it" if self.status is Status.KEPT else "")

    @property
    def story(self) -> str:
        """What broke it, for people."""
        if self.finding is None:
            return ""
        rules = f" ({self.rules})" if self.rules else ""
        promise = f"  its own text: {self.promise}\n" if self.promise else ""
        return (f"{self.guarantee} is broken: {self.finding.says(self.guarantee)}\n"
                f"  the rule{rules}: {self.sentence}\n{promise}{self.finding.story}")

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
    replays: tuple[Replay, ...] = ()
    """The scripts that were asked for, if any were: then nothing else was played."""
    unplayed: int = 0
    """Histories that were planned and not played; the notes say why."""
    stopped: str = ""
    """Why the judgement ended before its time, if it did."""
    required: frozenset[str] = frozenset()
    interrupted: bool = False
    """By Ctrl-C, or SIGTERM."""

    def of(self, status: Status) -> list[str]:
        return [v.guarantee for v in self.verdicts if v.status is status]

    @property
    def broken(self) -> list[str]:
        return self.of(Status.BROKEN)

    @property
    def kept(self) -> list[str]:
        return self.of(Status.KEPT)

    @property
    def decision(self) -> Decision:
        if self.broken:
            return Decision.BROKEN
        if not self.kept or self.missing or self.stopped:
            return Decision.UNKNOWN
        return Decision.NOTHING_BROKEN if self.untested else Decision.CONFORMS

    @property
    def ok(self) -> bool:
        """Whether something is kept, nothing is broken, and nothing that is required is missing."""
        return self.decision in (Decision.CONFORMS, Decision.NOTHING_BROKEN)

    @property
    def untested(self) -> list[str]:
        """What a server of its kind must keep, and was not tested: what is claimed, and needs nothing that the server
        or the adapter does not offer, apart from turns that the kit steers."""
        return [v.guarantee for v in self.verdicts
                if v.status is Status.NOT_TESTED or (v.status is Status.NOT_OBSERVABLE and v.why == NO_STEERING)]

    @property
    def missing(self) -> list[str]:
        """The guarantees that are required and of which nobody knows whether they are kept."""
        return [id for id in GUARANTEES_BY_ID if id in self.required - set(self.kept) - set(self.broken)]

    def verdict(self, guarantee: str) -> Verdict:
        return next(v for v in self.verdicts if v.guarantee == guarantee)

    @property
    def rows(self) -> list[Verdict]:
        """What a table shows: all but what is about calls that the server does not have."""
        return [v for v in self.verdicts if v.status is not Status.NOT_OFFERED]

    @property
    def unoffered(self) -> str:
        """The rest, in a line."""
        names = ", ".join(self.of(Status.NOT_OFFERED))
        return f"not offered, and so there is nothing to keep: {names}" if names else ""

    def __str__(self) -> str:
        wide = max((len(v.guarantee) for v in self.rows), default=0)
        lines = [f"{v.guarantee:{wide}}  {v.status.value:14}  {v.about}".rstrip() for v in self.rows]
        lines += filter(None, [self.unoffered, *map(str, self.replays), *self.notes, self.stopped])
        lines += ["", *(v.story for v in self.verdicts if v.finding), *([LEGEND] if self.broken else [])]
        return "\n".join([*lines, self.summary])

    __repr__ = __str__

    @property
    def summary(self) -> str:
        counts = " ".join(f"{status.name.lower().replace('_', '-')}={len(self.of(status))}" for status in Status
                          if status is not Status.KEPT)
        missing = f" missing={','.join(self.missing)}" if self.missing else ""
        return (f"histories={self.histories} unplayed={self.unplayed} {counts}{missing} seconds={self.seconds:.1f} "
                f"verdict={self.decision.value} kept={len(self.kept)}/{len(self.verdicts)}")

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "server": self.name, "profile": self.profile, "histories": self.histories,
            "seconds": round(self.seconds, 3), "verdict": self.decision.value,
            "unplayed": self.unplayed, "missing": self.missing, "untested": self.untested, "stopped": self.stopped,
            "guarantees": [{
                "id": v.guarantee, "status": v.status.value, "says": v.sentence, "rules": v.rules, "histories": v.shown,
                "seconds": round(v.seconds, 3),
                **({"why": v.why} if v.why else {}), **({"promise": v.promise} if v.promise else {}),
                **({"complaint": v.finding.says(v.guarantee), "script": str(v.finding.script),
                    "reproduce": v.finding.reproduce, **({"note": v.finding.note} if v.finding.note else {}),
                    "history": [line._asdict() for line in v.finding.history.observations],
                    "mermaid": exchange_mermaid(v.finding.history.observations)} if v.finding else {}),
            } for v in self.verdicts],
            "scenarios": {name: "broken" if isinstance(shown, Finding) else shown or "kept"
                          for name, shown in self.scenarios.items()},
            "scripts": [{"script": str(r.script), "times": r.times, "showed": r.showed, "ends": r.ends, "findings": {
                guarantee: {"complaint": each.says(guarantee), "mermaid": exchange_mermaid(each.history.observations)}
                for guarantee, each in r.findings.items()}} for r in self.replays],
            "notes": list(self.notes),
        }
