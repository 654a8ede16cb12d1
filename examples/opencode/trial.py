"""What is played on opencode, in which circumstances, and what showed how often."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cancelmark.conformance.kit import Progress, judge
from cancelmark.conformance.playing.scenarios import SCENARIOS
from cancelmark.conformance.playing.script import Script, script
from cancelmark.conformance.report import Finding, Replay, Report
from examples.opencode.circumstances import InUse, JustStarted, Killed

TIMES = 3  # that something has to show, to be reported as not holding
PLAYS = 5  # that are made for this
AT_ONCE = tuple(dict.fromkeys(  # the first prompt is followed by something before anybody can know that it runs
    s.script for s in SCENARIOS if not s.script.batches[0].rest and s.needs <= {"messages"}))
KILLS = (script("accept A; restart"), script("accept A; accept B; restart"))
EARLIER = (  # what an earlier trial found, of 1.18.33: the guarantee, the circumstances, and what was done
    ("all-done", InUse, "accept A; accept B; fail"),
    ("no-absorption", InUse, "accept A, accept B"),
    ("some-terminal", InUse, "accept A, cancel"),
    ("some-terminal", InUse, "accept A; accept B; cancel"),
    ("no-lost-cancel", JustStarted, "accept A, cancel"),
    ("no-lost-cancel", JustStarted, "accept A, accept B, cancel"),
    ("no-lost-cancel", JustStarted, "accept A, cancel, accept B"),
    ("no-absorption", JustStarted, "accept A, cancel, accept B"),
    ("some-terminal", JustStarted, "accept A, accept B, cancel"),
    ("no-loss", Killed, "accept A; restart"),
    ("no-loss", Killed, "accept A; accept B; restart"),
)


@dataclass(frozen=True)
class Shown:
    """A guarantee that did not hold."""

    guarantee: str
    circumstances: str
    finding: Finding
    times: int
    of: int
    """It has shown in so many plays, of so many that were made for this."""


@dataclass(frozen=True)
class Trial:
    """All that was seen, and what the server says of itself."""

    report: Report
    """The kit's own, of a server in use."""
    all_shown: tuple[Shown, ...]
    description: dict[str, str]
    """By operation, as in `POST /session`."""
    earlier: tuple[tuple[str, str, int, int], ...] = ()
    """What an earlier trial found: the guarantee, the line that plays it again, how often it showed, and of how many
    plays."""

    @property
    def shown(self) -> list[Shown]:
        """What has shown often enough."""
        return [shown for shown in self.all_shown if shown.times >= TIMES]

    @property
    def seldom(self) -> list[Shown]:
        """What has not, of guarantees that otherwise hold."""
        broken = {shown.guarantee for shown in self.shown}
        return [shown for shown in self.all_shown if shown.guarantee not in broken]


def trial(progress: Progress) -> Trial:
    """Judges a server in use and plays again what showed, then tries one that has just started, then kills it."""
    report = judge(InUse, progress=progress)
    scripts = {InUse: [*list_found(report)], JustStarted: [*AT_ONCE], Killed: [*KILLS]}
    for _, kind, done in EARLIER:
        scripts[kind].append(script(done))
    replays = {kind: judge(kind, scripts=[*dict.fromkeys(each)], times=PLAYS, progress=progress,
                           reproduce=lambda s, kind=kind: reproduce(kind, s)).replays  # type: ignore[misc]
               for kind, each in scripts.items()}
    shown = [each for kind, played in replays.items() for each in list_shown(kind.circumstances, played)]
    return Trial(report, tuple(shown), InUse.description, tuple(list_earlier(replays)))


def reproduce(kind: type[InUse], script: Script) -> str:
    """The command that plays a script again in the same circumstances."""
    adapter = f"{kind.__module__}:{kind.__name__}"
    return f"cancelmark conform --adapter {adapter} --script {shlex.quote(str(script))} --times {PLAYS}"


def list_found(report: Report) -> Iterator[Script]:
    """What the kit has found: for each guarantee its shortest history, and those of known flaws."""
    for verdict in report.verdicts:
        if verdict.finding:
            yield verdict.finding.script
    for finding in report.scenarios.values():
        if isinstance(finding, Finding):
            yield finding.script


def list_shown(circumstances: str, replays: Iterable[Replay]) -> Iterator[Shown]:
    for replay in replays:
        for guarantee, finding in replay.findings.items():
            yield Shown(guarantee, circumstances, finding, replay.showed[guarantee], replay.times)


def list_earlier(replays: dict[type[InUse], tuple[Replay, ...]]) -> Iterator[tuple[str, str, int, int]]:
    for guarantee, kind, done in EARLIER:
        replay = next(each for each in replays[kind] if each.script == script(done))
        yield guarantee, reproduce(kind, replay.script), replay.showed.get(guarantee, 0), replay.times
