"""Judge a server: play histories on it, find those that break a guarantee, make each as small as it gets, and report.

    report = judge(NaiveAdapter)
    print(report)                       a table of the guarantees, and for each that is broken the shortest history
    assert report.broken == ["no-lost-cancel", …]

First scenarios are tried: known flaws, each as a directed test. Then random histories are drawn by Hypothesis. Every
history is judged by all guarantees at once. A guarantee is called kept only if enough histories could have shown that
it is broken (`decisive`). A server in this process runs under schedules that the kit chooses, and each history can be
played again exactly. One outside runs in real time: a silence has to show twice to be believed, and what there was no
time for is said.
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
from .adapter.patience import CONFIRM, FIRST
from .adapter.patience import PLAIN as PLAIN_PROMPTS
from .judging.guarantees import GUARANTEES_BY_ID, NEEDS, NO_PLACE, NO_STEERING, find_tested
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

HANGS = 3  # histories in which the server did not answer or rest, until it is given up
DEATHS = 10  # histories in which it has stopped
RACES = 3  # plays of a race, before it is said that it does not show
TIMES = 5  # that a script is played which was asked for
UNTIL = 60  # seconds for a race of a server outside, which shows now and then
PLAIN = parse("accept A")

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


class JudgementStopped(AdapterError):
    """The adapter raised something in the middle of a judgement. `report` has what was found until then."""

    def __init__(self, why: str, report: Report) -> None:
        super().__init__(why)
        self.report = report


class JudgementInterrupted(KeyboardInterrupt):
    """Ctrl-C, or SIGTERM, came in the middle of a judgement. `report` has what was found until then."""

    def __init__(self, report: Report) -> None:
        super().__init__("the judgement was interrupted")
        self.report = report


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, so that the judged server is stopped and its files are removed."""
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
    """Judges the server behind an adapter.

    A server outside is steered if it uses the fake language model that is served at `llm_port` while this runs, or the
    one that `fake` makes. `only` names guarantees. `scenarios` names those to try, and `scripts` are played so many
    `times`, or, of a server outside, `until` so many seconds are over: then nothing else is. With `until`, races are
    played with other gaps and in other orders, as the search does. `reproduce` says how a script is played again, if
    not by this function. A server conforms only if it is known to keep each guarantee that `require` names. Works in a
    notebook too.
    """
    if not callable(adapter):
        kind = type(adapter).__name__
        raise TypeError(f"judge({kind}()): give the class itself, judge({kind}); the kit makes one for each history")
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise ValueError(f"profile {profile!r}: choose one of {', '.join(PROFILES)}")
        profile = PROFILES[profile]
    if unknown := {*(only or ()), *require} - GUARANTEES:
        raise ValueError(f"there is no guarantee {', '.join(sorted(unknown))}; choose from "
                         f"{', '.join(GUARANTEES_BY_ID)}")
    check_names(scenarios or ())
    played = None if scripts is None else read_scripts(scripts)
    if played is not None and scenarios is not None:
        raise ValueError("give scripts or scenarios, not both")
    if until is not None and (scripts is None or not 0 < until < inf):
        raise ValueError(f"until={until}: give the seconds for which each of `scripts` is played")
    if times < 1:
        raise ValueError(f"times={times}: play a script at least once")
    if llm_port is not None and fake is None:
        def fake() -> FakeModel:
            return FakeModel(port=llm_port)

    chosen = profile
    if only is not None and (unasked := set(require) - set(only)):
        raise ValueError(f"{', '.join(sorted(unasked))}: required, and not among the guarantees that are judged")
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


class _Enough(BaseException):
    """No more histories: no `Exception`, which Hypothesis would take for a failure, and look for another one."""


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
    scripts: list[Script] | None = None  # to play, and nothing else
    times: int = TIMES
    reproduce: Callable[[Script], str] = str
    required: frozenset[str] = frozenset()
    until: float | None = None  # seconds for each of the scripts, in place of `times`
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
    placeless: bool = False  # a subscriber could not leave, because there was no place to come back to
    stopped: str = ""  # why nothing more is played

    def __post_init__(self) -> None:
        self.adapter = self.make()
        self.outside = self.adapter.outside
        self.claims = frozenset(self.adapter.claims)
        if unknown := self.claims - GUARANTEES:
            raise ValueError(f"{type(self.adapter).__name__} claims {', '.join(sorted(unknown))}; there is no such "
                             "guarantee")
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
            report = self.make_report(monotonic() - begin, f"the judgement has stopped: {error}")
            raise JudgementStopped(str(error), report) from error.__cause__
        except KeyboardInterrupt as interrupt:
            report = self.make_report(monotonic() - begin, "the judgement has stopped: it was interrupted")
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
            except AdapterError as error:  # what was seen is no less true
                self.notes.append(f"after the judgement: {error}")

    def learn_patience(self) -> None:
        """How long the server takes for a few plain prompts, which are not judged: if it cannot do even those, what
        follows will show it."""
        for n in range(PLAIN_PROMPTS):
            self.progress("plain prompts", n, PLAIN_PROMPTS)
            history = self.venue.play(PLAIN, FIRST)
            if n == 0 and history.gone and not any(p.accepted < inf for p in history.prompts):
                raise AdapterError(f"{type(self.adapter).__name__}: no prompt was accepted: {history.gone}")
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
        """Tries all that there is, and makes what is found as small as it gets."""
        self.try_scenarios()
        if self.tried is None:
            self.try_histories()
        self.test_more()
        for guarantee in sorted(self.found):
            if self.given_up:
                note = "not made smaller: the server does not answer or rest"
                self.found[guarantee] = replace(self.found[guarantee], note=note)
            elif guarantee in self.wanted:
                self.shrink(guarantee)

    def play_scripts(self, scripts: list[Script]) -> None:
        """Plays what was asked for, and counts what shows."""
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
        """There is no server any more, or it hangs again and again and would take for ever."""
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
                self.stopped = f"the judgement has stopped: in {HANGS} histories the server did not answer or rest"
        tested = find_tested(history)
        for guarantee in tested:
            self.shown[guarantee] = self.shown.get(guarantee, 0) + 1
        self.share_time(monotonic() - begin, tested)
        return history

    def look_for_server(self) -> None:
        """A server that is gone may be back: in this process each history has one of its own, outside the adapter, or
        somebody else, may have brought it back."""
        self.deaths += 1
        if not self.outside:
            return
        if self.deaths == DEATHS:
            self.stopped = f"the judgement has stopped: in {DEATHS} histories the server was gone"
        elif self.venue.play(PLAIN).gone:
            self.stopped = "the judgement has stopped: the server is gone, and nobody brings it back (`revive`)"

    def share_time(self, seconds: float, tested: Collection[str]) -> None:
        """What a history has cost is shared by the guarantees that it has tested, of those that are judged."""
        judged = [g for g in tested if g in self.wanted] or self.wanted
        for guarantee in judged:
            self.spent[guarantee] = self.spent.get(guarantee, 0) + seconds / len(judged)

    def try_script(self, script: Script) -> History:
        """Plays the script, and keeps what it breaks if it is the smallest so far that does."""
        history = self.play(script)
        for complaint in history.complaints:
            guarantee = complaint.guarantee
            if guarantee in self.found:
                if script.size < self.found[guarantee].script.size:
                    self.found[guarantee] = Finding(script, history)
            elif confirmed := self.confirm(guarantee, script, history):
                self.found[guarantee] = Finding(script, confirmed)
            else:
                self.notes.append(f"not believed, because it did not show again: {guarantee}: {complaint.says}")
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
                    self.scenarios[name] = f"it was not tried: {self.stopped}"
                continue
            script = self.vary(scenario.script) if times[name] else scenario.script
            times[name] += 1
            history = self.try_script(script)
            if scenario.guarantee in history.broken & self.found.keys():  # and believed
                self.scenarios[name] = Finding(script, history)
        self.unplayed += left_out
        if late:
            least = min(times.values())
            self.notes.append(f"{left_out:,} of {len(plan):,} plays of scenarios were left out, because the "
                              f"{self.profile.again:g} s for them were over; each was played at least "
                              f"{'once' if least == 1 else f'{least:,} times'}")

    def plan_plays(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Each scenario as often as it is to be tried. Outside in rounds: if the time runs out, none was left out."""
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
        """The script in another order, with other gaps; in this process under another schedule."""
        return script.vary(self.random) if self.outside else self.reschedule(script)

    def count_plays(self, scenario: Scenario) -> int:
        """How often a scenario is tried. Outside, those of the family half as often: who offers all has twice as many.
        """
        if not self.outside:
            return 1 + self.profile.schedules
        repeats = max(self.profile.repeats, self.profile.races if scenario.script.is_race else 0)
        return 1 if not self.steered else (repeats + 1) // 2 if scenario in FAMILY_SCENARIOS else repeats

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
            why = self.stopped or f"the {self.profile.limit:g} s for them were over"
            self.notes.append(f"{total - done:,} of {total:,} random histories were not played: {why}")

    def test_more(self) -> None:
        """Plays the scenarios of guarantees that were put to the test too seldom, or else a plain prompt, until it was
        often enough or the time is over. In rounds, so that no guarantee takes the time of the others."""
        until = monotonic() + (self.profile.limit if self.outside else inf)
        scripts = {g: self.list_scripts(g) for g in sorted(self.wanted) if not self.why_hidden(g)}
        for n in range(2 * self.decisive):
            for guarantee in (wanting := [g for g in scripts if scripts[g] and self.wants_more(g)]):
                if self.given_up:
                    return
                if monotonic() > until:
                    self.notes.append(f"the {self.profile.limit:g} s to test more often what was tested too seldom "
                                      f"were over: {', '.join(g for g in wanting if self.wants_more(g))}")
                    return
                if self.wants_more(guarantee):
                    self.progress(f"testing {guarantee}", self.shown.get(guarantee, 0), self.decisive)
                    self.try_script(self.vary(scripts[guarantee][n % len(scripts[guarantee])]))

    def wants_more(self, guarantee: str) -> bool:
        """Whether too few histories have put it to the test, and none has broken it."""
        return self.shown.get(guarantee, 0) < self.decisive and guarantee not in self.found

    def list_scripts(self, guarantee: str) -> list[Script]:
        """What puts a guarantee to the test."""
        scripts = [s.script for s in SCENARIOS if s.guarantee == guarantee and not self.why_untried(s)
                   and (self.tried is None or s.name in self.tried)]
        return scripts or ([PLAIN] if self.tried is None else [])

    def shrink(self, guarantee: str) -> None:
        """Makes what was found as small as it gets within the budget."""
        budget = Budget(self.profile.shrinks, self.profile.seconds if self.outside else inf)

        def shows(attempt: Script) -> Finding | None:
            self.progress(f"making {guarantee} smaller", budget.used, budget.plays)
            confirmed = self.confirm(guarantee, attempt, self.play(attempt))
            return Finding(attempt, confirmed) if confirmed else None

        self.found[guarantee] = shrink(self.found[guarantee], shows, self.retries, budget)

    def confirm(self, guarantee: str, script: Script, history: History) -> History | None:
        """The history that shows that the guarantee is broken. A silence of a server outside may be a busy machine: it
        has to show again, when the kit waits longer, and longer still if a plain prompt takes long now. A contradiction
        is one."""
        if guarantee in history.broken and guarantee in history.silences and self.outside and not self.given_up:
            self.play(PLAIN)
            history = self.play(script, CONFIRM)
        return history if guarantee in history.broken else None

    def retries(self, script: Script) -> Iterable[Script]:
        """What is tried of a script that is smaller. Outside, a race may go either way. In this process, the schedule
        does not fit any more when there are fewer steps: others are tried too."""
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
                yield Verdict(p.id, Status.KEPT, f"{counted(shown)} could have broken it; what the end says after the "
                              "language model has failed was not judged", shown)
            else:
                yield Verdict(p.id, Status.KEPT, shown=shown)

    @property
    def decisive(self) -> int:
        """How many histories must have been able to break a guarantee before it is called kept."""
        if self.scripts is not None:
            return 1  # a count was asked for, and is given
        return self.profile.decisive if self.steered else self.profile.unsteered

    def why_untested(self, guarantee: str, shown: int) -> str:
        few = "no history" if not shown else "only one history" if shown == 1 else f"only {shown:,} histories"
        unplayed = f", and {self.unplayed:,} histories were not played" if self.unplayed else ""
        blind = guarantee in ("fifo", "queue-dropped") and self.outside and "queued" not in self.offers
        offer = ". The adapter does not offer `queued`, which shows who waits" if blind else ""
        return f"{few} could have broken it; {self.decisive:,} are wanted{unplayed}{offer}"

    def why_hidden(self, guarantee: str) -> str:
        """Why nobody outside can tell, or nothing."""
        needs = GUARANTEES_BY_ID[guarantee].needs
        missing = [what for what in needs if what not in self.offers]
        if not missing and "leave" in needs and self.placeless and not self.shown.get(guarantee):
            return NO_PLACE
        return NEEDS[missing[0]].missing if missing else ""
