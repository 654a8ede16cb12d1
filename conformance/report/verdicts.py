"""The kit's report on a server: verdicts, findings and replays."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cancelmark.model.family import Feature

from ..judging.guarantees import GUARANTEES_BY_ID, NO_STEERING
from ..judging.history import History
from ..playing.script import Script
from .exchange import exchange_mermaid, exchange_svg, exchange_text

LEGEND = ("In a script, `;` waits until the server is quiet, `,` waits only for the response, and `+` starts the next "
          "step at the same time.")


def counted(histories: int) -> str:
    """`1 history`, `1,203 histories`."""
    return "1 history" if histories == 1 else f"{histories:,} histories"


class Status(Enum):
    """The verdict on a guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_TESTED = "not tested"
    """Too few histories, or none, could have broken it."""
    NOT_OBSERVABLE = "not observable"
    """The server or the adapter does not expose what is needed to check it."""
    NOT_OFFERED = "not offered"
    """It is about a call that the server does not have."""
    NOT_CLAIMED = "not claimed"


class Decision(Enum):
    """The verdict on a server."""

    CONFORMS = "conforms"
    """Every guarantee that a server of its kind must keep was tested and is kept."""
    NOTHING_BROKEN = "nothing-broken"
    """No guarantee is broken, but at least one that a server of its kind must keep was not tested."""
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """No guarantee was tested, a required one was not, or the judgement stopped early."""


@dataclass(frozen=True)
class Finding:
    """A history that breaks a guarantee, and how to replay it."""

    script: Script
    history: History
    reproduce: str = ""  # the call or command that replays it
    note: str = ""  # why it was not shrunk further, if it might be possible

    def says(self, guarantee: str) -> str:
        return next(c.says for c in self.history.complaints if c.guarantee == guarantee)

    @property
    def story(self) -> str:
        """The script, the observed exchange, and how to reproduce it."""
        lines = [f"  script: {self.script.steps}", "", exchange_text(self.history.observations), ""]
        lines += [f"  {self.note}"] if self.note else []
        lines += [f"  reproduce with: {self.reproduce}"] if self.reproduce else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Replay:
    """A script that the caller asked to run, and how often it broke which guarantee."""

    script: Script
    times: int
    showed: dict[str, int]
    findings: dict[str, Finding]
    """By guarantee, the first run that broke it."""
    ends: dict[str, int] = field(default_factory=dict)
    """The outcomes of the prompts, and the number of runs with these outcomes."""

    def __str__(self) -> str:
        ends = "".join(f"; {ends}: {n}" for ends, n in self.ends.items())
        runs = "1 run" if self.times == 1 else f"{self.times} runs"
        if not self.showed:
            return f"{self.script.steps}: nothing broken in {runs}{ends}"
        broken = ", ".join(f"{guarantee} broken in {n}" for guarantee, n in self.showed.items())
        return f"{self.script.steps}: {broken} of {runs}{ends}"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one guarantee, with its reason."""

    guarantee: str
    status: Status
    why: str = ""  # why it was not tested, or is not observable
    shown: int = 0  # decisive histories: those that could have broken it
    finding: Finding | None = None  # the shortest history that breaks it
    seconds: float = 0  # its share of the time: the guarantees that a history tests share its cost
    promise: str = ""  # where the specification that the server follows promises it, if that is not ours

    features: frozenset[Feature] = frozenset()  # the optional calls that the server has

    @property
    def sentence(self) -> str:
        """The guarantee's sentence, as worded for a server with these optional calls."""
        return GUARANTEES_BY_ID[self.guarantee].sentence(self.features)

    @property
    def rules(self) -> str:
        return ", ".join(GUARANTEES_BY_ID[self.guarantee].claim.clauses)

    @property
    def about(self) -> str:
        """The reason for the status, in one sentence."""
        if self.finding:
            return self.finding.says(self.guarantee)
        return self.why or (f"{counted(self.shown)} could have broken it" if self.status is Status.KEPT else "")

    @property
    def story(self) -> str:
        """The finding as text; empty if the guarantee is not broken."""
        if self.finding is None:
            return ""
        rules = f" ({self.rules})" if self.rules else ""
        promise = f"  protocol text: {self.promise}\n" if self.promise else ""
        return (f"{self.guarantee} is broken: {self.finding.says(self.guarantee)}\n"
                f"  rule{rules}: {self.sentence}\n{promise}{self.finding.story}")

    @property
    def svg(self) -> str:
        """The finding as a sequence diagram; empty if the guarantee is not broken."""
        if self.finding is None:
            return ""
        return exchange_svg(self.finding.history.observations, f"{self.guarantee} is broken", self.about)


@dataclass(frozen=True)
class Report:
    """The result of a judgement. Prints as a table of verdicts and the shortest history for each broken guarantee."""

    name: str
    verdicts: tuple[Verdict, ...]
    scenarios: dict[str, Finding | str | None]
    """By scenario name: the history that broke its guarantee, why the scenario did not run, or None if it was kept."""
    histories: int
    seconds: float
    profile: str
    notes: tuple[str, ...] = ()
    replays: tuple[Replay, ...] = ()
    """The scripts that the caller asked for. If there are any, the kit ran nothing else."""
    unplayed: int = 0
    """Histories that were planned and did not run; the notes say why."""
    stopped: str = ""
    """Why the judgement stopped early, if it did."""
    required: frozenset[str] = frozenset()
    interrupted: bool = False
    """By Ctrl-C or SIGTERM."""

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
        """Whether at least one guarantee is kept, none is broken, and every required one was tested."""
        return self.decision in (Decision.CONFORMS, Decision.NOTHING_BROKEN)

    @property
    def untested(self) -> list[str]:
        """The guarantees that a server of its kind must keep and that were not tested. These are the claimed ones that
        need nothing that the server or the adapter lacks, except turns that the kit controls."""
        return [v.guarantee for v in self.verdicts
                if v.status is Status.NOT_TESTED or (v.status is Status.NOT_OBSERVABLE and v.why == NO_STEERING)]

    @property
    def missing(self) -> list[str]:
        """The required guarantees for which the judgement is inconclusive."""
        return [id for id in GUARANTEES_BY_ID if id in self.required - set(self.kept) - set(self.broken)]

    def verdict(self, guarantee: str) -> Verdict:
        return next(v for v in self.verdicts if v.guarantee == guarantee)

    @property
    def rows(self) -> list[Verdict]:
        """The verdicts that a table shows: all except those about calls that the server does not have."""
        return [v for v in self.verdicts if v.status is not Status.NOT_OFFERED]

    @property
    def unoffered(self) -> str:
        """The remaining verdicts, in one line."""
        names = ", ".join(self.of(Status.NOT_OFFERED))
        return f"not offered (the server does not have the call): {names}" if names else ""

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
        """The report as JSON-compatible data."""
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
