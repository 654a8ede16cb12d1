"""Judge a server: run scripts on it, find the histories that break a guarantee, shrink them, and report.

    report = judge(NaiveAdapter)
    print(report)                       a table of the guarantees, and the shortest history for each broken one
    assert report.broken == ["no-lost-cancel", …]

The kit first runs scenarios, which are directed tests for known flaws, then random scripts drawn by Hypothesis. It
checks every history against all guarantees. It reports a guarantee as kept only if enough histories could have broken
it (`decisive`). A server in this process runs under schedules that the kit chooses, so each history can be replayed
exactly. An external server runs in real time: a timeout counts only if it shows twice, and the report says what was
left out for lack of time.
"""

import asyncio
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import TypeVar

from cancelmark.model.family import Feature

from .adapter import GUARANTEES, OPTIONAL, MakeAdapter
from .adapter.fake_llm import FakeModel
from .adapter.patience import CONFIRM, FIRST, PLAIN_PROMPTS
from .judging.guarantees import GUARANTEES_BY_ID, NEEDS, NO_OFFSET, NO_STEERING, find_tested
from .judging.history import History
from .playing.family import FAMILY_SCENARIOS, Scenario
from .playing.scenarios import SCENARIOS, check_names
from .playing.script import IF_BUSY, TASKS, TURNS, Script, read_scripts
from .playing.script import script as parse
from .playing.script import scripts as draw_scripts
from .playing.venue import AdapterError, Inside, MakeFake, NotSteered, Outside, Venue
from .profile import PROFILES, Profile
from .report import Finding, Replay, Report, Status, Verdict, counted
from .shrinking import Budget, shrink

HANGS = 3  # histories in which the server did not respond or become quiet, before the judgement stops
DEATHS = 10  # histories in which the server was gone, before the judgement stops
RACES = 3  # runs of a race, before it counts as not reproduced
TIMES = 5  # runs of each script that the caller asks for
UNTIL = 60  # seconds for which a race on an external server is repeated, since it shows only sometimes
PLAIN_SCRIPT = parse("accept A")

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


class JudgementStopped(AdapterError):
    """The adapter raised an error during a judgement. `report` has the findings up to then."""

    def __init__(self, why: str, report: Report) -> None:
        super().__init__(why)
        self.report = report


class JudgementInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM interrupted a judgement. `report` has the findings up to then."""

    def __init__(self, report: Report) -> None:
        super().__init__("the judgement was interrupted")
        self.report = report


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """Let SIGTERM interrupt as Ctrl-C does, so that the kit stops the server and removes its files."""
    if threading.current_thread() is not threading.main_thread() or (
            signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL):
        yield
        return

    def interrupt(*_: object) -> None:
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def judge(
    adapter: MakeAdapter, *, profile: str | Profile = "quick", only: Collection[str] | None = None,
    llm_port: int | None = None, fake: MakeFake | None = None, progress: Progress = lambda *_: None, seed: int = 0,
    scenarios: Collection[str] | None = None, scripts: Sequence[str | Script] | None = None, times: int = TIMES,
    reproduce: Callable[[Script], str] | None = None, require: Collection[str] = (), until: float | None = None,
) -> Report:
    """Judge the server behind an adapter, and return the report.

    - `profile`: `quick` or `deep`, or a `Profile`.
    - `only`: judge only these guarantees. `require`: the verdict is `unknown` unless each of these is tested.
    - `scenarios`: run only these scenarios.
    - `scripts`: run only these scripts, `times` times each. On an external server, `until` repeats each script for that
      many seconds instead, and varies the order and the gaps of its races.
    - `llm_port`: the port where the kit serves its fake language model while this runs. `fake` makes another one. The
      kit can control the turns of an external server only if the server uses it.
    - `reproduce`: returns the text that tells how to replay a script, instead of a call of this function.

    Works in a notebook too.
    """
    if not callable(adapter):
        kind = type(adapter).__name__
        raise TypeError(f"judge({kind}()): pass the class itself, judge({kind}); the kit makes an instance for each "
                        "history")
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise ValueError(f"unknown profile {profile!r}; choose one of {', '.join(PROFILES)}")
        profile = PROFILES[profile]
    if unknown := {*(only or ()), *require} - GUARANTEES:
        raise ValueError(f"unknown guarantee {', '.join(sorted(unknown))}; choose from "
                         f"{', '.join(GUARANTEES_BY_ID)}")
    check_names(scenarios or ())
    played = None if scripts is None else read_scripts(scripts)
    if played is not None and scenarios is not None:
        raise ValueError("scripts and scenarios are mutually exclusive")
    if until is not None and (scripts is None or not 0 < until < inf):
        raise ValueError(f"until={until}: give `scripts` and the number of seconds for which to run each of them")
    if times < 1:
        raise ValueError(f"times={times}: must be at least 1")
    if llm_port is not None and fake is None:
        def fake() -> FakeModel:
            return FakeModel(port=llm_port)

    chosen = profile
    if only is not None and (unasked := set(require) - set(only)):
        raise ValueError(f"require={', '.join(sorted(unasked))}: not in `only`; add it there, or drop the requirement")
    port = "" if llm_port is None else f", llm_port={llm_port}"
    races = getattr(adapter, "outside", False)
    again = reproduce or (lambda script: (
        f"judge({getattr(adapter, '__name__', 'adapter')}, scripts=[{str(script)!r}], "
        f"{f'until={UNTIL}' if races and script.is_race else f'times={TIMES}'}{port})"))
    with _term_as_interrupt():
        return _without_a_loop(lambda: Judge(
            adapter, chosen, only, fake, progress, seed, scenarios, played, times, again, frozenset(require),
            until).report())


def _without_a_loop(work: Callable[[], T]) -> T:
    """Call `work` in this thread, or in another one if this thread has a running event loop, as in a notebook."""
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


class _Enough(BaseException):
    """Ends the random search. Not an `Exception`, which Hypothesis would treat as a failure and try to shrink."""


@dataclass
class Judge:
    """The state of one judgement."""

    make: MakeAdapter
    profile: Profile
    only: Collection[str] | None
    fake: MakeFake | None
    progress: Progress
    seed: int
    tried: Collection[str] | None = None  # the scenarios to run; None: all
    scripts: list[Script] | None = None  # the only scripts to run; None: search
    times: int = TIMES
    reproduce: Callable[[Script], str] = str
    required: frozenset[str] = frozenset()
    until: float | None = None  # seconds for each of the scripts, instead of `times`
    played: int = 0
    unplayed: int = 0
    found: dict[str, Finding] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # seconds
    scenarios: dict[str, Finding | str | None] = field(default_factory=dict)
    replays: list[Replay] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hangs: int = 0
    deaths: int = 0
    placeless: bool = False  # a subscriber could not leave, because it had no offset to resume from
    stopped: str = ""  # why the judgement stopped early

    def __post_init__(self) -> None:
        self.adapter = self.make()
        self.outside = self.adapter.outside
        self.claims = frozenset(self.adapter.claims)
        if unknown := self.claims - GUARANTEES:
            raise ValueError(f"{type(self.adapter).__name__}.claims: unknown guarantee {', '.join(sorted(unknown))}; "
                             f"choose from {', '.join(GUARANTEES_BY_ID)}")
        if self.outside and self.fake is None and (port := self.adapter.llm_port) is not None:
            self.fake = lambda: FakeModel(port=port)
        self.steered = not self.outside or self.fake is not None
        offers = {what for what in OPTIONAL if self.adapter.offers(what)}
        told = {"steer": self.steered, "fold": self.adapter.folds and self.steered, "schedule": not self.outside,
                "outgrow": bool(self.adapter.outgrows) and self.steered, "run_ids": self.adapter.run_ids,
                "grace": self.adapter.grace is not None, "fail_early": self.adapter.fails_early,
                "fail": self.adapter.model_fails, **{word: word in self.adapter.if_busy for word in IF_BUSY}}
        self.offers = frozenset(offers | {what for what, is_so in told.items() if is_so})
        self.random = random.Random(self.seed)
        self.wanted = self.claims & frozenset(GUARANTEES if self.only is None else self.only)

    def report(self) -> Report:
        begin = monotonic()
        try:
            self.judge_all()
        except NotSteered:
            raise
        except AdapterError as error:
            report = self.make_report(monotonic() - begin, f"the judgement stopped: {error}")
            raise JudgementStopped(str(error), report) from error.__cause__
        except KeyboardInterrupt as interrupt:
            report = self.make_report(monotonic() - begin, "the judgement stopped: it was interrupted")
            raise JudgementInterrupted(report) from interrupt
        return self.make_report(monotonic() - begin, self.stopped)

    def judge_all(self) -> None:
        self.venue: Venue = Outside(self.make, self.fake) if self.outside else Inside(self.make)
        try:
            self.learn_patience()
            if self.scripts is None:
                self.search()
            else:
                self.play_scripts(self.scripts)
        finally:
            try:
                self.venue.close()
            except AdapterError as error:  # the findings remain valid
                self.notes.append(f"after the judgement: {error}")

    def learn_patience(self) -> None:
        """Measure how long the server takes for a few plain prompts. These are not judged: if the server cannot handle
        even them, the histories that follow will show it."""
        for n in range(PLAIN_PROMPTS):
            self.progress("plain prompts", n, PLAIN_PROMPTS)
            history = self.venue.play(PLAIN_SCRIPT, FIRST)
            if n == 0 and history.gone and not any(p.accepted < inf for p in history.prompts):
                raise AdapterError(f"{type(self.adapter).__name__}: the server accepted no prompt: {history.gone}")
            if history.broken:
                break

    def make_report(self, seconds: float, stopped: str) -> Report:
        name = getattr(self.adapter, "name", type(self.adapter).__name__)
        scenarios = {name: self.with_reproduce(shown) if isinstance(shown, Finding) else shown
                     for name, shown in self.scenarios.items()}
        features = frozenset(feature for feature in Feature if feature.value in self.offers)
        verdicts = tuple(replace(v, seconds=self.spent.get(v.guarantee, 0), features=features,
                                 promise=self.adapter.promises.get(v.guarantee, "")) for v in self.verdicts(stopped))
        return Report(name, verdicts, scenarios, self.played, seconds, self.profile.name,
                      tuple(self.notes), tuple(self.replays), self.unplayed, stopped, self.required)

    def search(self) -> None:
        """Run scenarios and random scripts, and shrink the findings."""
        self.try_scenarios()
        if self.tried is None:
            self.try_histories()
        self.test_more()
        for guarantee in sorted(self.found):
            if self.given_up:
                note = "not shrunk: the server does not respond or become quiet"
                self.found[guarantee] = replace(self.found[guarantee], note=note)
            elif guarantee in self.wanted:
                self.shrink(guarantee)

    def play_scripts(self, scripts: list[Script]) -> None:
        """Run the scripts that the caller asked for, and count what they break."""
        for n, each in enumerate(scripts):
            showed, ends, found = Counter[str](), Counter[str](), dict[str, Finding]()
            until, time = self.until if self.outside else None, 0
            over = monotonic() + (until or inf)
            while time < self.times if until is None else not time or monotonic() < over:
                self.progress("scripts", n * self.times + time, len(scripts) * self.times)
                script = self.vary(each) if until and time and each.is_race else each
                history = self.play(script)
                broken = [id for id in GUARANTEES_BY_ID if id in history.broken & self.wanted]
                showed.update(broken)
                ends.update([history.tell_ends()])
                found = {g: self.with_reproduce(Finding(script, history)) for g in broken} | found
                time += 1
            self.found = found | self.found
            self.replays.append(Replay(each, time, dict(showed), found, dict(ends)))

    def with_reproduce(self, finding: Finding) -> Finding:
        return replace(finding, reproduce=self.reproduce(finding.script))

    # --- playing

    @property
    def given_up(self) -> bool:
        """Whether the server is gone, or hangs so often that the judgement would take forever."""
        return bool(self.stopped)

    def play(self, script: Script, times: float = 1.0) -> History:
        self.played += 1
        begin = monotonic()
        history = self.venue.play(script, times)
        self.placeless = self.placeless or history.placeless
        if history.gone:
            self.look_for_server()
        elif "progress" in history.broken:
            self.hangs += 1
            if self.hangs == HANGS:
                self.stopped = (f"the judgement stopped: in {HANGS} histories the server did not respond or become "
                                "quiet")
        tested = find_tested(history)
        for guarantee in tested:
            self.shown[guarantee] = self.shown.get(guarantee, 0) + 1
        self.share_time(monotonic() - begin, tested)
        return history

    def look_for_server(self) -> None:
        """Stop the judgement unless the server is back. In this process each history has its own server. An external
        server may have been restarted by the adapter, or by a supervisor."""
        self.deaths += 1
        if not self.outside:
            return
        if self.deaths == DEATHS:
            self.stopped = f"the judgement stopped: in {DEATHS} histories the server was gone"
        elif self.venue.play(PLAIN_SCRIPT).gone:
            self.stopped = ("the judgement stopped: the server is gone; give the adapter a `revive` method that "
                            "restarts it")

    def share_time(self, seconds: float, tested: Collection[str]) -> None:
        """Divide the time of a history among the judged guarantees that it tested."""
        judged = [g for g in tested if g in self.wanted] or self.wanted
        for guarantee in judged:
            self.spent[guarantee] = self.spent.get(guarantee, 0) + seconds / len(judged)

    def try_script(self, script: Script) -> History:
        """Run the script, and keep each break for which it is the smallest script so far."""
        history = self.play(script)
        for complaint in history.complaints:
            guarantee = complaint.guarantee
            if guarantee in self.found:
                if script.size < self.found[guarantee].script.size:
                    self.found[guarantee] = Finding(script, history)
            elif confirmed := self.confirm(guarantee, script, history):
                self.found[guarantee] = Finding(script, confirmed)
            else:
                self.notes.append(f"ignored, because it did not show again: {guarantee}: {complaint.says}")
        return history

    def try_scenarios(self) -> None:
        chosen = [s for s in SCENARIOS if (self.tried is None or s.name in self.tried)
                  and (self.only is None or s.guarantee in self.only)]
        self.scenarios = {s.name: self.why_untried(s) or None for s in chosen}
        plan = self.plan_plays([s for s in chosen if self.scenarios[s.name] is None])
        until = monotonic() + (self.profile.again if self.outside else inf)
        late, left_out, times = False, 0, Counter[str]()
        for n, scenario in enumerate(plan):
            self.progress("scenarios", n, len(plan))
            name = scenario.name
            if isinstance(self.scenarios[name], Finding):
                continue
            late = late or (times[name] > 0 and monotonic() > until)
            if self.given_up or late:
                left_out += 1
                if not times[name]:
                    self.scenarios[name] = f"not run: {self.stopped}"
                continue
            script = self.vary(scenario.script) if times[name] else scenario.script
            times[name] += 1
            history = self.try_script(script)
            if scenario.guarantee in history.broken & self.found.keys():  # and confirmed
                self.scenarios[name] = Finding(script, history)
        self.unplayed += left_out
        if late:
            least = min(times.values())
            self.notes.append(f"{left_out:,} of {len(plan):,} scenario runs were left out, because their time limit of "
                              f"{self.profile.again:g} s was reached; each scenario ran at least "
                              f"{'once' if least == 1 else f'{least:,} times'}")

    def plan_plays(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Each scenario as often as it is to run. On an external server in rounds, so that a time limit skips none."""
        if not self.outside:
            return [s for s in scenarios for _ in range(self.count_plays(s))]
        rounds = max(map(self.count_plays, scenarios), default=0)
        return [s for n in range(rounds) for s in scenarios if n < self.count_plays(s)]

    def why_untried(self, scenario: Scenario) -> str:
        if scenario.guarantee not in self.claims:
            return f"{scenario.guarantee} is not claimed"
        steers = "steer" in GUARANTEES_BY_ID[scenario.guarantee].needs or any(
            do.what in TURNS for do in scenario.script.everything)
        if steers and not self.steered:
            return NO_STEERING
        fails = {"fail"} if any(do.what == "fail" for do in scenario.script.everything) else set[str]()
        missing = sorted((scenario.needs | fails) - self.offers)
        return f"the server does not offer {', '.join(missing)}" if missing else ""

    def vary(self, script: Script) -> Script:
        """The script with another order and other gaps; in this process, with another schedule."""
        return script.vary(self.random) if self.outside else self.reschedule(script)

    def count_plays(self, scenario: Scenario) -> int:
        """How often a scenario runs. On an external server, those of optional calls run half as often: a server that
        offers all of them has twice as many scenarios."""
        if not self.outside:
            return 1 + self.profile.schedules
        repeats = max(self.profile.repeats, self.profile.races if scenario.script.is_race else 0)
        return 1 if not self.steered else (repeats + 1) // 2 if scenario in FAMILY_SCENARIOS else repeats

    def reschedule(self, script: Script) -> Script:
        """The script with another random schedule."""
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
        done, until = 0, monotonic() + (self.profile.limit if self.outside else inf)

        @seed(self.seed)
        @settings(max_examples=total, phases=[Phase.generate], database=None, deadline=None,
                  suppress_health_check=list(HealthCheck))
        @given(draw_scripts(self.offers))
        def each(script: Script) -> None:
            nonlocal done
            if self.given_up or monotonic() > until:
                raise _Enough
            self.progress("histories", done, total)
            try:
                self.try_script(script)
            except AdapterError as error:
                raise _Enough from error
            done += 1

        try:
            each()
        except _Enough as enough:
            if isinstance(enough.__cause__, AdapterError):
                raise enough.__cause__ from enough.__cause__.__cause__
            self.unplayed += total - done
            why = self.stopped or f"their time limit of {self.profile.limit:g} s was reached"
            self.notes.append(f"{total - done:,} of {total:,} random histories did not run: {why}")

    def test_more(self) -> None:
        """Run more scenarios for the guarantees that were tested too rarely, or a plain prompt if a guarantee has none,
        until each was tested often enough or the time limit is reached. In rounds, so that no guarantee takes the
        time of the others."""
        until = monotonic() + (self.profile.limit if self.outside else inf)
        scripts = {g: self.list_scripts(g) for g in sorted(self.wanted) if not self.why_hidden(g)}
        for n in range(2 * self.decisive):
            for guarantee in (wanting := [g for g in scripts if scripts[g] and self.wants_more(g)]):
                if self.given_up:
                    return
                if monotonic() > until:
                    self.notes.append(f"the time limit of {self.profile.limit:g} s for guarantees that were tested too "
                                      f"rarely was reached: {', '.join(g for g in wanting if self.wants_more(g))}")
                    return
                if self.wants_more(guarantee):
                    self.progress(f"testing {guarantee}", self.shown.get(guarantee, 0), self.decisive)
                    self.try_script(self.vary(scripts[guarantee][n % len(scripts[guarantee])]))

    def wants_more(self, guarantee: str) -> bool:
        """Whether too few histories have tested it, and none has broken it."""
        return self.shown.get(guarantee, 0) < self.decisive and guarantee not in self.found

    def list_scripts(self, guarantee: str) -> list[Script]:
        """The scripts that test a guarantee."""
        scripts = [s.script for s in SCENARIOS if s.guarantee == guarantee and not self.why_untried(s)
                   and (self.tried is None or s.name in self.tried)]
        return scripts or ([PLAIN_SCRIPT] if self.tried is None else [])

    def shrink(self, guarantee: str) -> None:
        """Shrink the finding as far as the budget allows."""
        budget = Budget(self.profile.shrinks, self.profile.seconds if self.outside else inf)

        def shows(attempt: Script) -> Finding | None:
            self.progress(f"shrinking {guarantee}", budget.used, budget.plays)
            confirmed = self.confirm(guarantee, attempt, self.play(attempt))
            return Finding(attempt, confirmed) if confirmed else None

        self.found[guarantee] = shrink(self.found[guarantee], shows, self.retries, budget)

    def confirm(self, guarantee: str, script: Script, history: History) -> History | None:
        """The history that shows the break, if it is confirmed. A contradiction needs no confirmation. A timeout on an
        external server may be due to a busy machine: it must show again with a longer timeout, which is longer still if
        a plain prompt is slow now."""
        if guarantee in history.broken and guarantee in history.silences and self.outside and not self.given_up:
            self.play(PLAIN_SCRIPT)
            history = self.play(script, CONFIRM)
        return history if guarantee in history.broken else None

    def retries(self, script: Script) -> Iterable[Script]:
        """The attempts for a smaller script. On an external server a race may go either way, so it runs several times.
        In this process the schedule no longer fits a script with fewer steps, so other schedules are tried too."""
        if self.outside:
            return [script] * (RACES if script.is_race else 1)
        others = [self.reschedule(script) for _ in range(4)] if script.departures or script.late else []
        return [script, *(s for s in others if s.size <= script.size)]

    # --- the verdicts

    def verdicts(self, stopped: str) -> Iterator[Verdict]:
        for p in GUARANTEES_BY_ID.values():
            shown = self.shown.get(p.id, 0)
            if self.only is not None and p.id not in self.only:
                continue
            if p.id not in self.claims:
                yield Verdict(p.id, Status.NOT_CLAIMED)
            elif p.id in self.found:
                yield Verdict(p.id, Status.BROKEN, shown=shown, finding=self.with_reproduce(self.found[p.id]))
            elif p.call not in ("", *self.offers):
                yield Verdict(p.id, Status.NOT_OFFERED, NEEDS[p.call].missing)
            elif why := self.why_hidden(p.id):
                yield Verdict(p.id, Status.NOT_OBSERVABLE, why)
            elif shown < self.decisive:
                yield Verdict(p.id, Status.NOT_TESTED, self.why_untested(p.id, shown), shown)
            elif p.id == "progress" and stopped:
                yield Verdict(p.id, Status.NOT_TESTED, stopped, shown)
            elif p.id == "attribution" and "fail" not in self.offers:
                yield Verdict(p.id, Status.KEPT, f"{counted(shown)} could have broken it; outcomes after a failure of "
                              "the language model were not checked", shown)
            else:
                yield Verdict(p.id, Status.KEPT, shown=shown)

    @property
    def decisive(self) -> int:
        """The number of decisive histories that a guarantee needs to be reported as kept."""
        if self.scripts is not None:
            return 1  # the caller chose the histories
        return self.profile.decisive if self.steered else self.profile.unsteered

    def why_untested(self, guarantee: str, shown: int) -> str:
        few = "no history" if not shown else "only one history" if shown == 1 else f"only {shown:,} histories"
        unplayed = f", and {self.unplayed:,} histories did not run" if self.unplayed else ""
        blind = guarantee in ("fifo", "queue-dropped") and self.outside and "queued" not in self.offers
        offer = ". The adapter does not offer `queued`, which shows the waiting prompts" if blind else ""
        return f"{few} could have broken it; {self.decisive:,} are needed{unplayed}{offer}"

    def why_hidden(self, guarantee: str) -> str:
        """Why the guarantee is not observable; empty if it is."""
        needs = GUARANTEES_BY_ID[guarantee].needs
        missing = [what for what in needs if what not in self.offers]
        if not missing and "leave" in needs and self.placeless and not self.shown.get(guarantee):
            return NO_OFFSET
        return NEEDS[missing[0]].missing if missing else ""
