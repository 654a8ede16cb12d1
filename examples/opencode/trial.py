"""What is played on opencode, in which circumstances, and what showed how often."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count

from cancelmark.conformance.adapter import GUARANTEES
from cancelmark.conformance.fake_llm import FakeModel
from cancelmark.conformance.history import History
from cancelmark.conformance.kit import Progress, judge
from cancelmark.conformance.report import Finding, Report
from cancelmark.conformance.scenarios import SCENARIOS
from cancelmark.conformance.script import Script, script
from cancelmark.conformance.venue import Outside
from examples.opencode.adapter import Opencode
from examples.opencode.process import Process

TIMES = 3  # that something has to show, to be reported as not holding
PLAYS = 10  # that are made until it has, of what the kit has found
TRIES = 5  # plays of what is tried in special circumstances
IN_USE, STARTED, KILLED = "in use", "just started", "killed and started again"
AT_ONCE = tuple(dict.fromkeys(  # the first prompt is followed by something before anybody can know that it runs
    s.script for s in SCENARIOS if not s.script.batches[0].rest and s.needs <= {"messages"}))
KILLS = (script("accept A; restart"), script("accept A; accept B; restart"))


class Everything(Opencode):
    """Judged by all guarantees, whether they are promised or not."""

    claims = GUARANTEES


class Slow(Everything):
    """A server that has just started takes its time."""

    patience = 20.0


class Killed(Slow):
    """Restarted by a kill, on the same data."""

    def __init__(self, server: Process) -> None:
        super().__init__(server.url)
        self.server = server

    async def restart(self) -> None:
        await self.unsubscribe()
        self.server.kill()
        await self.server.start()
        await self.open()


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

    @property
    def shown(self) -> list[Shown]:
        """What has shown often enough."""
        return [shown for shown in self.all_shown if shown.times >= TIMES]

    @property
    def seldom(self) -> list[Shown]:
        """What has not, of guarantees that otherwise hold."""
        broken = {shown.guarantee for shown in self.shown}
        return [shown for shown in self.all_shown if shown.guarantee not in broken]


def trial(server: Process, port: int, progress: Progress) -> Trial:
    """Judges a server in use and plays again what showed, then tries one that has just started, then kills it."""
    def used() -> Everything:
        return Everything(server.url)

    def slow() -> Slow:
        return Slow(server.url)

    asyncio.run(server.start())
    description = asyncio.run(server.description())
    _stage(slow, port).close()  # it has sent a prompt, to see whether the model is asked: now the server is in use
    report = judge(used, fake=lambda: FakeModel(port), progress=progress)
    with closing(_stage(used, port)) as stage:
        again = [*_again(report, _counted(stage.play, progress, IN_USE))]
    with closing(_stage(slow, port)) as stage:
        def started(script: Script) -> History:
            server.kill()
            asyncio.run(server.start())
            return stage.play(script)

        again += _tried(STARTED, AT_ONCE, _counted(started, progress, STARTED))
    with closing(_stage(lambda: Killed(server), port)) as stage:
        again += _tried(KILLED, KILLS, _counted(stage.play, progress, KILLED))
    return Trial(report, tuple(again), description)


Play = Callable[[Script], History]


def _stage(make: Callable[[], Opencode], port: int) -> Outside:
    return Outside(make, lambda: FakeModel(port))


def _counted(play: Play, progress: Progress, what: str) -> Play:
    numbers = count()

    def counted(script: Script) -> History:
        progress(f"a server {what}, history", next(numbers), 0)
        return play(script)

    return counted


def _again(report: Report, play: Play) -> Iterator[Shown]:
    """What the kit has found, played again: for each guarantee its shortest history, and those of known flaws."""
    guarantees = {scenario.name: scenario.guarantee for scenario in SCENARIOS}
    found = [(v.guarantee, v.finding) for v in report.verdicts if v.finding]
    found += [(guarantees[name], finding) for name, finding in report.scenarios.items() if isinstance(finding, Finding)]
    for guarantee, finding in {(guarantee, each.script): (guarantee, each) for guarantee, each in found}.values():
        times = of = 0
        while times < TIMES and of < PLAYS:
            times, of = times + (guarantee in play(finding.script).broken), of + 1
        yield Shown(guarantee, IN_USE, finding, times, of)


def _tried(circumstances: str, scripts: Iterable[Script], play: Play) -> Iterator[Shown]:
    for each in scripts:
        histories = [play(each) for _ in range(TRIES)]
        for guarantee in sorted(frozenset().union(*(history.broken for history in histories))):
            showing = [history for history in histories if guarantee in history.broken]
            yield Shown(guarantee, circumstances, Finding(each, showing[0]), len(showing), TRIES)
