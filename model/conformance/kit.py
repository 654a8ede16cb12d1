"""Judge a server: play histories on it, find those that break a guarantee, make each as small as it gets, and report.

    >>> from cancelmark.model.conformance import judge
    >>> from cancelmark.model.conformance.naive import NaiveAdapter
    >>> report = judge(NaiveAdapter)                                                            # doctest: +SKIP
    >>> report.broken                                                                           # doctest: +SKIP
    ['some-terminal', …]

First the scenarios of known flaws are tried, then random histories are drawn by Hypothesis. Every history is judged by
all guarantees at once. A server in this process runs under schedules that the kit chooses, and each history can be
played again exactly; one outside is played in real time, and a failure has to show twice to be believed unless it is a
contradiction in what was seen rather than a silence.
"""

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ..delivery import DELIVERY
from ..properties import PROPERTIES
from .adapter import GUARANTEES, OPTIONAL, Adapter, MakeAdapter, Steering, Turns
from .history import History
from .loop import Livelock
from .player import Player
from .scenarios import SCENARIOS, Scenario
from .schedule import Unhandled, record
from .script import TASKS, Script, scripts

if TYPE_CHECKING:
    from .fake import FakeModel

T = TypeVar("T")

ORDER = (*PROPERTIES, DELIVERY)
SENTENCES = {p.id: p.sentence for p in ORDER}
MAX_STEPS = 100_000


@dataclass(frozen=True)
class Profile:
    """How much is tried."""

    name: str
    histories: int  # drawn at random, outside
    schedules: int  # of each scenario, in this process
    inside: int  # histories drawn at random, in this process
    repeats: int  # of each scenario, outside
    shrinks: int  # histories played to make a failure smaller, in this process
    seconds: float  # for making a failure smaller, outside


PROFILES = {
    "quick": Profile("quick", 60, 60, 300, 2, 300, 10),
    "deep": Profile("deep", 3000, 2000, 20_000, 40, 3000, 120),
}


class Status(Enum):
    """What is said of a guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_OBSERVABLE = "not observable"
    NOT_CLAIMED = "not claimed"


class AdapterError(Exception):
    """The adapter, or the server behind it, raised something that it should not. Nothing is claimed about the server."""


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
        return SENTENCES[self.guarantee]

    @property
    def rules(self) -> str:
        return ", ".join(next(p.clauses for p in ORDER if p.id == self.guarantee))

    @property
    def story(self) -> str:
        """What broke it, for people."""
        if self.finding is None:
            return ""
        rules = f" ({self.rules})" if self.rules else ""
        return (f"{self.guarantee} is broken: {self.finding.says(self.guarantee)}\n"
                f"  the rule{rules}: {self.sentence}\n"
                f"  what was done: {self.finding.script}\n\n{self.finding.history.diagram()}\n")


@dataclass(frozen=True)
class Report:
    """What the kit has to say about a server. Printed, it is a table and the shortest history for each break."""

    name: str
    verdicts: tuple[Verdict, ...]
    scenarios: dict[str, Finding | str | None]
    """By flaw: the history in which it showed, why it could not be tried, or None if it did not show."""
    histories: int
    seconds: float
    profile: str
    unconfirmed: tuple[str, ...] = ()

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
        lines = [f"{v.guarantee:{wide}}  {v.status.value:14}  {_about(v)}".rstrip() for v in self.verdicts]
        lines += [f"not believed, because it did not show again: {says}" for says in self.unconfirmed]
        lines += ["", *(v.story for v in self.verdicts if v.finding)]
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
                    "history": [line._asdict() for line in v.finding.history.lines],
                    "mermaid": v.finding.history.mermaid()} if v.finding else {}),
            } for v in self.verdicts],
            "unconfirmed": list(self.unconfirmed),
        }


def _about(v: Verdict) -> str:
    if v.finding:
        return v.finding.says(v.guarantee)
    return v.why or (f"tested in {v.shown:,} histories" if v.status is Status.KEPT else "")


# --- where histories are played

class Inside:
    """Servers in this process: on the deterministic event loop, each history by itself."""

    def __init__(self, make: MakeAdapter) -> None:
        self.make = make
        self.names = itertools.count(1)

    def play(self, script: Script) -> History:
        adapter = self.make()
        adapter.turns = Turns()
        player = Player(adapter, adapter.turns, f"{next(self.names):06}")
        done = record(player.play(script), script.chooser(), max_steps=MAX_STEPS)
        if isinstance(done.error, Livelock):
            player.history.complain("progress", "the server did not come to rest: it goes on and on.")
        elif isinstance(done.error, Unhandled):
            player.history.note("server", "", f"an exception that nobody handled: {done.error.__cause__!r:.120}")
        elif done.error is not None:
            raise AdapterError(_blame(adapter, script, done.error)) from done.error
        return player.history

    def close(self) -> None:
        """Nothing is left."""


class Outside:
    """Servers outside: in real time, with a fake language model if they can be steered by one."""

    def __init__(self, make: MakeAdapter, fake: "Callable[[], FakeModel] | None") -> None:
        self.make = make
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.steering: Steering | None = None
        self.names = (f"{random.getrandbits(32):08x}" for _ in itertools.count())
        try:
            if fake:
                self.steering = self.runner.run(self._enter(fake))
        except BaseException:
            self.close()
            raise

    async def _enter(self, fake: "Callable[[], FakeModel]") -> Steering:
        return await self.stack.enter_async_context(fake())

    def play(self, script: Script) -> History:
        adapter = self.make()
        player = Player(adapter, self.steering, next(self.names))
        try:
            return self.runner.run(player.play(script))
        except (OSError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise AdapterError(_blame(adapter, script, error)) from error

    def close(self) -> None:
        try:
            self.runner.run(self.stack.aclose())
        finally:
            self.runner.close()


def _blame(adapter: Adapter, script: Script, error: BaseException) -> str:
    name = type(adapter).__name__
    hint = "; say `outside = True` if it uses sockets, threads or the clock" if "no schedule can repeat" in str(error) else ""
    return f"{name}: {type(error).__name__}: {error} (while playing: {script}){hint}"


# --- judging

def judge(
    adapter: MakeAdapter, *, profile: str = "quick", only: Collection[str] | None = None, llm_port: int | None = None,
    fake: "Callable[[], FakeModel] | None" = None, progress: Callable[[str, int, int], None] = lambda *_: None,
    seed: int = 0,
) -> Report:
    """Judges the server behind an adapter.

    A server outside is steered if it uses the fake language model that is served at `llm_port` while this runs, or the
    one that `fake` makes. Works in a notebook too. Needs Hypothesis: pip install 'cancelmark[conform]'.
    """
    try:
        import hypothesis  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the conformance kit draws histories with Hypothesis, which is not installed; "
                                  "pip install 'cancelmark[conform]'") from None
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r}: choose one of {', '.join(PROFILES)}")
    if unknown := set(only or ()) - GUARANTEES:
        raise ValueError(f"there is no guarantee {', '.join(sorted(unknown))}; these are: {', '.join(p.id for p in ORDER)}")
    if llm_port is not None and fake is None:
        from .fake import FakeModel

        def fake() -> FakeModel:
            return FakeModel(port=llm_port)

    return _without_a_loop(lambda: Judge(adapter, PROFILES[profile], only, fake, progress, seed).report())


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
    fake: "Callable[[], FakeModel] | None"
    progress: Callable[[str, int, int], None]
    seed: int
    played: int = 0
    found: dict[str, Finding] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    scenarios: dict[str, Finding | str | None] = field(default_factory=dict)
    unconfirmed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adapter = self.make()
        self.outside = self.adapter.outside
        self.claims = frozenset(self.adapter.claims)
        if unknown := self.claims - GUARANTEES:
            raise ValueError(f"{type(self.adapter).__name__} claims {', '.join(sorted(unknown))}; there is no such guarantee")
        self.steered = not self.outside or self.fake is not None
        offers = {what for what in OPTIONAL if self.adapter.offers(what)}
        self.offers = frozenset(offers | ({"steer"} if self.steered else set())
                                | ({"fold"} if self.adapter.folds and not self.outside else set())
                                | (set() if self.outside else {"schedule"}))
        self.random = random.Random(self.seed)
        self.wanted = self.claims & frozenset(GUARANTEES if self.only is None else self.only)

    def report(self) -> Report:
        begin = monotonic()
        self.stage = Outside(self.make, self.fake) if self.outside else Inside(self.make)
        try:
            self.try_scenarios()
            self.try_histories()
            for guarantee in sorted(self.found):
                if guarantee in self.wanted:
                    self.shrink(guarantee)
        finally:
            self.stage.close()
        name = getattr(self.adapter, "name", type(self.adapter).__name__)
        return Report(name, tuple(self.verdicts()), self.scenarios, self.played, monotonic() - begin, self.profile.name,
                      tuple(self.unconfirmed))

    # --- playing

    def play(self, script: Script) -> History:
        self.played += 1
        history = self.stage.play(script)
        for guarantee in put_to_the_test(history):
            self.shown[guarantee] = self.shown.get(guarantee, 0) + 1
        return history

    def note(self, script: Script) -> History:
        """Plays the script, and keeps what it breaks if it is the smallest so far that does."""
        history = self.play(script)
        fresh = [g for g in history.broken if g not in self.found or script.size < self.found[g].script.size]
        if self.outside and any(g not in self.found and g in history.silences for g in fresh):
            again = self.play(script)
            for g in [g for g in fresh if g in history.silences and g not in again.broken and g not in self.found]:
                self.unconfirmed.append(f"{g}: {next(c.says for c in history.complaints if c.guarantee == g)}")
                fresh.remove(g)
        for guarantee in fresh:
            self.found[guarantee] = Finding(script, history)
        return history

    def try_scenarios(self) -> None:
        for n, scenario in enumerate(SCENARIOS):
            self.progress("scenarios", n, len(SCENARIOS))
            if why := self.untried(scenario):
                self.scenarios[scenario.flaw] = why
                continue
            self.scenarios[scenario.flaw] = None
            for script in self.ways(scenario):
                history = self.note(script)
                if scenario.guarantee in history.broken:
                    self.scenarios[scenario.flaw] = Finding(script, history)
                    break

    def untried(self, scenario: Scenario) -> str:
        if scenario.guarantee not in self.claims:
            return f"{scenario.guarantee} is not claimed"
        if not self.steered:
            return NO_STEERING
        missing = sorted(scenario.needs - self.offers)
        return f"the server does not offer {', '.join(missing)}" if missing else ""

    def ways(self, scenario: Scenario) -> Iterator[Script]:
        yield scenario.script
        if self.outside:
            yield from [scenario.script] * (self.profile.repeats - 1)
        else:
            yield from (self.scheduled(scenario.script) for _ in range(self.profile.schedules))

    def scheduled(self, script: Script) -> Script:
        """The script under some other schedule."""
        draw = self.random
        late = draw.sample(range(TASKS), draw.randint(0, TASKS // 2))
        return Script(script.steps, tuple(late), tuple(
            (draw.choice((0, 1, 2, 3, 5, 9, 16)), draw.randint(1, 4)) for _ in range(draw.randint(0, 5))))

    def try_histories(self) -> None:
        from hypothesis import HealthCheck, Phase, given, seed, settings

        total = self.profile.histories if self.outside else self.profile.inside
        done = itertools.count()
        until = monotonic() + self.profile.seconds * 3

        @seed(self.seed)
        @settings(max_examples=total, phases=[Phase.generate], database=None, deadline=None,
                  suppress_health_check=list(HealthCheck))
        @given(scripts(self.offers))
        def each(script: Script) -> None:
            if self.profile.name == "quick" and self.outside and monotonic() > until:
                return
            self.progress("histories", next(done), total)
            self.note(script)

        each()

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
                for attempt in self.attempts(candidate):
                    budget -= 1
                    if budget < 0 or (self.outside and monotonic() > until):
                        return
                    self.progress(f"making {guarantee} smaller", self.profile.shrinks - budget, self.profile.shrinks)
                    history = self.play(attempt)
                    if guarantee in history.broken:
                        self.found[guarantee] = Finding(attempt, history)
                        smaller = True
                        break
                if smaller:
                    break

    def attempts(self, script: Script) -> Iterable[Script]:
        """With fewer steps the schedule no longer fits: others are tried too."""
        yield script
        if not self.outside and (script.departures or script.late):
            yield from (s for s in (self.scheduled(script) for _ in range(4)) if s.size <= script.size)

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
            elif why := self.hidden(p.id):
                yield Verdict(p.id, Status.NOT_OBSERVABLE, why)
            elif not shown:
                yield Verdict(p.id, Status.NOT_OBSERVABLE, "no history came to the point where it matters")
            else:
                yield Verdict(p.id, Status.KEPT, shown=shown)

    def hidden(self, guarantee: str) -> str:
        """Why nobody outside can tell, or nothing."""
        needs = NEEDS.get(guarantee, ())
        if "steer" in needs and not self.steered:
            return NO_STEERING
        missing = [what for what in needs if what not in self.offers]
        return MISSING[missing[0]] if missing else ""


NO_STEERING = "its turns cannot be steered: it does not use the kit's language model"
NEEDS: dict[str, tuple[str, ...]] = {
    "no-lost-cancel": ("steer",),
    "single-active": ("steer",),
    "fifo": ("steer",),
    "prompt-terminal": ("steer",),
    "all-done": ("steer",),
    "no-absorption": ("steer", "fold"),
    "closed": ("shut",),
    "record": ("messages",),
    "no-loss": ("restart",),
    "delivery": ("leave",),
}
MISSING = {
    "fold": "none of its turns can be made to take another prompt in",
    "shut": "the adapter cannot close the server",
    "messages": "the adapter cannot read messages",
    "restart": "the adapter cannot restart the server",
    "leave": "the adapter cannot go away and come back to where it was",
}


def put_to_the_test(history: History) -> set[str]:
    """The guarantees that the history could have broken."""
    accepted = [p for p in history.prompts if not p.refused]
    tested = {"progress"}
    if accepted:
        tested |= {"one-terminal", "some-terminal"}
    if sum(p.ended for p in accepted) > 1:
        tested.add("attribution")
    for p in accepted:
        others = [q for q in history.of(p.session) if q is not p and not q.refused]
        waited = any(q.starts and q.starts[0][0] < p.accepted and (q.over or history.now) > p.accepted for q in others)
        if waited:
            tested |= {"all-done", "single-active"}
            if any(q.queued and q.accepted < p.begin for q in others):
                tested.add("fifo")
            if any(line.text.endswith("goes on") for line in history.lines):
                tested.add("no-absorption")
        if any(q.over and p.starts and q.over < p.starts[0][0] for q in others):
            tested.add("prompt-terminal")
        if history.covered(p):
            tested.add("no-lost-cancel")
        for c in history.calls:
            mine = c.session in (None, p.session)
            if mine and c.what == "cancel" and c.end < p.begin:
                tested |= {"no-poisoning", *(["idle-cancel-noop"] if c.idle else [])}
            if not mine and p.accepted < c.begin and not (p.ends and p.ends[0][0] < c.begin):
                tested.add("isolation")
            if c.what == "restart" and p.accepted < c.begin and not (p.ends and p.ends[0][0] < c.begin):
                tested.add("no-loss")
    if any(c.what == "shut" and c.end < p.begin for c in history.calls for p in history.prompts):
        tested.add("closed")
    if any(history.away(p) and p.ends and p.ends[0][0] > min(history.left) for p in accepted):
        tested.add("delivery")
    if history.records:
        tested.add("record")
    return tested
