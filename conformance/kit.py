"""Judge a server: play histories on it, find those that break a guarantee, make each as small as it gets, and report.

    report = judge(NaiveAdapter)
    print(report)                       a table of the guarantees, and for each that is broken the shortest history
    assert report.broken == ["no-lost-cancel", …]

First scenarios are tried: known flaws, each as a directed test. Then random histories are drawn by Hypothesis. Every
history is judged by all guarantees at once. A server in this process runs under schedules that the kit chooses, and
each history can be played again exactly. One outside runs in real time, and a silence has to show twice to be believed.
"""

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TypeVar

from .adapter import GUARANTEES, OPTIONAL, MakeAdapter
from .fake_llm import FakeModel
from .guarantees import MISSING, NEEDS, NO_STEERING
from .history import History
from .judgement import tested_guarantees
from .report import ORDER, Finding, Report, Status, Verdict
from .scenarios import SCENARIOS, Scenario
from .script import TASKS, TURNS, Script, scripts
from .venue import AdapterError, Inside, MakeFake, Outside, Venue

HANGS = 3

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Profile:
    """How much is tried."""

    name: str
    histories: int  # drawn at random, outside
    schedules: int  # of each scenario, in this process
    inside: int  # histories drawn at random, in this process
    repeats: int  # of each scenario, outside
    shrinks: int  # histories played to make a failure smaller
    seconds: float  # for making a failure smaller, outside
    limit: float = inf  # seconds for random histories, outside


PROFILES = {
    "quick": Profile("quick", histories=200, schedules=60, inside=300, repeats=3, shrinks=300, seconds=10,
                     limit=30),
    "deep": Profile("deep", histories=3000, schedules=1000, inside=5000, repeats=20, shrinks=3000, seconds=60),
}


def judge(
    adapter: MakeAdapter, *, profile: str | Profile = "quick", only: Collection[str] | None = None,
    llm_port: int | None = None, fake: MakeFake | None = None, progress: Progress = lambda *_: None, seed: int = 0,
    scenarios: Collection[str] | None = None,
) -> Report:
    """Judges the server behind an adapter.

    A server outside is steered if it uses the fake language model that is served at `llm_port` while this runs, or the
    one that `fake` makes. `only` names guarantees, and `scenarios` what to try, if not all. Works in a notebook
    too.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise ValueError(f"profile {profile!r}: choose one of {', '.join(PROFILES)}")
        profile = PROFILES[profile]
    if unknown := set(only or ()) - GUARANTEES:
        raise ValueError(f"there is no guarantee {', '.join(sorted(unknown))}; choose from "
                         f"{', '.join(p.id for p in ORDER)}")
    if llm_port is not None and fake is None:
        def fake() -> FakeModel:
            return FakeModel(port=llm_port)

    chosen = profile
    return _without_a_loop(lambda: Judge(adapter, chosen, only, fake, progress, seed, scenarios).report())


def _without_a_loop(work: Callable[[], T]) -> T:
    """Does the work where no event loop runs: here, or in a thread if one runs here, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="judge")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


@dataclass
class Judge:
    """One judgement in the making."""

    make: MakeAdapter
    profile: Profile
    only: Collection[str] | None
    fake: MakeFake | None
    progress: Progress
    seed: int
    tried: Collection[str] | None = None  # the scenarios; None: all
    played: int = 0
    found: dict[str, Finding] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    scenarios: dict[str, Finding | str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hangs: int = 0

    def __post_init__(self) -> None:
        self.adapter = self.make()
        self.outside = self.adapter.outside
        self.claims = frozenset(self.adapter.claims)
        if unknown := self.claims - GUARANTEES:
            raise ValueError(f"{type(self.adapter).__name__} claims {', '.join(sorted(unknown))}; there is no such "
                             "guarantee")
        self.steered = not self.outside or self.fake is not None
        offers = {what for what in OPTIONAL if self.adapter.offers(what)}
        self.offers = frozenset(offers | ({"steer"} if self.steered else set())
                                | ({"fold"} if self.adapter.folds and not self.outside else set())
                                | (set() if self.outside else {"schedule"}))
        self.random = random.Random(self.seed)
        self.wanted = self.claims & frozenset(GUARANTEES if self.only is None else self.only)

    def report(self) -> Report:
        begin = monotonic()
        self.venue: Venue = Outside(self.make, self.fake) if self.outside else Inside(self.make)
        try:
            self.try_scenarios()
            self.try_histories()
            for guarantee in sorted(self.found):
                if guarantee in self.wanted and not self.given_up:
                    self.shrink(guarantee)
        finally:
            self.venue.close()
        if self.given_up:
            self.notes.append(f"not all was tried, because in {self.hangs} histories the server did not answer or rest")
        name = getattr(self.adapter, "name", type(self.adapter).__name__)
        return Report(name, tuple(self.verdicts()), self.scenarios, self.played, monotonic() - begin, self.profile.name,
                      tuple(self.notes))

    # --- playing

    @property
    def given_up(self) -> bool:
        """A server that hangs again and again would take for ever."""
        return self.hangs >= HANGS

    def play(self, script: Script) -> History:
        self.played += 1
        history = self.venue.play(script)
        self.hangs += "progress" in history.broken
        for guarantee in tested_guarantees(history):
            self.shown[guarantee] = self.shown.get(guarantee, 0) + 1
        return history

    def try_script(self, script: Script) -> History:
        """Plays the script, and keeps what it breaks if it is the smallest so far that does."""
        history = self.play(script)
        for complaint in history.complaints:
            guarantee = complaint.guarantee
            if guarantee in self.found:
                if script.size < self.found[guarantee].script.size:
                    self.found[guarantee] = Finding(script, history)
            elif self.is_believed(guarantee, script, history):
                self.found[guarantee] = Finding(script, history)
            else:
                self.notes.append(f"not believed, because it did not show again: {guarantee}: {complaint.says}")
        return history

    def try_scenarios(self) -> None:
        chosen = [s for s in SCENARIOS if (self.tried is None or s.name in self.tried)
                  and (self.only is None or s.guarantee in self.only)]
        for n, scenario in enumerate(chosen):
            self.progress("scenarios", n, len(chosen))
            if why := self.why_untried(scenario):
                self.scenarios[scenario.name] = why
                continue
            self.scenarios[scenario.name] = None
            for script in self.variants(scenario):
                history = self.try_script(script)
                if scenario.guarantee in history.broken & self.found.keys():  # and believed
                    self.scenarios[scenario.name] = Finding(script, history)
                if self.given_up or self.scenarios[scenario.name]:
                    break

    def why_untried(self, scenario: Scenario) -> str:
        if self.given_up:
            return "it was not tried, because the server does not answer or rest"
        if scenario.guarantee not in self.claims:
            return f"{scenario.guarantee} is not claimed"
        steers = "steer" in NEEDS.get(scenario.guarantee, ()) or any(
            do.what in TURNS for do in scenario.script.everything)
        if steers and not self.steered:
            return NO_STEERING
        missing = sorted(scenario.needs - self.offers)
        return f"the server does not offer {', '.join(missing)}" if missing else ""

    def variants(self, scenario: Scenario) -> Iterator[Script]:
        yield scenario.script
        if self.outside:
            yield from [scenario.script] * (self.profile.repeats - 1 if self.steered else 0)
        else:
            yield from (self.reschedule(scenario.script) for _ in range(self.profile.schedules))

    def reschedule(self, script: Script) -> Script:
        """The script under some other schedule."""
        draw = self.random
        late = draw.sample(range(TASKS), draw.randint(0, TASKS // 2))
        return Script(script.batches, tuple(late), tuple(
            (draw.choice((0, 1, 2, 3, 5, 9, 16)), draw.randint(1, 4)) for _ in range(draw.randint(0, 5))))

    def try_histories(self) -> None:
        from hypothesis import HealthCheck, Phase, given, seed, settings

        total = self.profile.inside
        if self.outside:
            total = self.profile.histories if self.steered else self.profile.histories // 20
        if not total or self.wanted <= set(self.found):
            return
        done, errors = itertools.count(), list[AdapterError]()
        until = monotonic() + (self.profile.limit if self.outside else inf)

        @seed(self.seed)
        @settings(max_examples=total, phases=[Phase.generate], database=None, deadline=None,
                  suppress_health_check=list(HealthCheck))
        @given(scripts(self.offers))
        def each(script: Script) -> None:
            if errors or self.given_up or monotonic() > until:
                return
            self.progress("histories", next(done), total)
            try:
                self.try_script(script)
            except AdapterError as error:  # Hypothesis would look for another one
                errors.append(error)

        each()
        if errors:
            raise errors[0]

    def shrink(self, guarantee: str) -> None:
        """Makes what was found as small as it gets within the budget."""
        until = monotonic() + self.profile.seconds
        budget = self.profile.shrinks
        smaller = True
        while smaller:
            smaller = False
            best = self.found[guarantee]
            for candidate in best.script.smaller():
                if candidate.size >= best.script.size:
                    continue
                for attempt in self.retries(candidate):
                    budget -= 1
                    if budget < 0 or (self.outside and monotonic() > until):
                        return
                    self.progress(f"making {guarantee} smaller", self.profile.shrinks - budget, self.profile.shrinks)
                    history = self.play(attempt)
                    if guarantee in history.broken and self.is_believed(guarantee, attempt, history):
                        self.found[guarantee] = Finding(attempt, history)
                        smaller = True
                        break
                if smaller:
                    break

    def is_believed(self, guarantee: str, script: Script, history: History) -> bool:
        """A silence of a server outside may be a busy machine: it has to show again. A contradiction is one."""
        return not self.outside or guarantee not in history.silences or guarantee in self.play(script).broken

    def retries(self, script: Script) -> Iterable[Script]:
        """With fewer steps the schedule no longer fits: others are tried too."""
        yield script
        if not self.outside and (script.departures or script.late):
            yield from (s for s in (self.reschedule(script) for _ in range(4)) if s.size <= script.size)

    # --- the verdicts

    def verdicts(self) -> Iterator[Verdict]:
        for p in ORDER:
            shown = self.shown.get(p.id, 0)
            if self.only is not None and p.id not in self.only:
                continue
            if p.id not in self.claims:
                yield Verdict(p.id, Status.NOT_CLAIMED)
            elif p.id in self.found:
                yield Verdict(p.id, Status.BROKEN, shown=shown, finding=self.found[p.id])
            elif why := self.why_hidden(p.id):
                yield Verdict(p.id, Status.NOT_OBSERVABLE, why)
            elif not shown:
                yield Verdict(p.id, Status.NOT_OBSERVABLE, "no history came to the point where it matters")
            else:
                yield Verdict(p.id, Status.KEPT, shown=shown)

    def why_hidden(self, guarantee: str) -> str:
        """Why nobody outside can tell, or nothing."""
        missing = [what for what in NEEDS.get(guarantee, ()) if what not in self.offers]
        return MISSING[missing[0]] if missing else ""
