"""The conformance kit as a test class for pytest. With an adapter in mine.py, this is a complete test file:

    from cancelmark.conformance.suite import ConformanceSuite
    class TestMine(ConformanceSuite): adapter = "mine:MyAdapter"

The class has a test for each guarantee, for each scenario, and for each script in `histories`. The test of a broken
guarantee fails with the shortest history found. The test of a guarantee that could not be tested is skipped, with the
reason.

The judgement runs once for the class, when its first test starts. Each guarantee's test reports its share of that time,
because one history tests several guarantees. The scripts in `histories` run in their own tests.

Needs pytest 8 or newer, which is not a dependency of Cancelmark.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from time import monotonic
from typing import Any, ClassVar

import pytest

from .adapter import GUARANTEES, MakeAdapter
from .adapter.guarantees import ORDER
from .adapter.loading import load_adapter
from .kit import TIMES, JudgementStopped, judge
from .playing.scenarios import SCENARIOS
from .playing.script import Script, read_scripts
from .playing.venue import MakeFake
from .profile import Profile
from .report import LEGEND, Finding, Report, Status


class ConformanceSuite:
    """Base class: inherit from it under a name that pytest collects, and set `adapter`."""

    adapter: ClassVar[MakeAdapter | Callable[..., Any] | str]
    """The adapter's class, a function that makes one, or the name of either: `module:Class` or `file.py:Class`."""
    histories: ClassVar[Sequence[str]] = ()
    """Additional scripts, each run in a test of its own: copy them from the `reproduce with` line of a finding."""
    times: ClassVar[int] = TIMES
    """How often each of `histories` runs."""
    until: ClassVar[float] = 10.0
    """For an external server: the seconds for which each race in `histories` is repeated, with varying gaps and orders.
    """
    profile: ClassVar[str | Profile] = "quick"
    """`quick` or `deep`, or a `Profile`."""
    llm_port: ClassVar[int | None] = None
    """For an external server: the port where it expects the kit's language model."""
    fake: ClassVar[MakeFake | None] = None
    """Makes the language model, instead of `llm_port`."""
    require: ClassVar[Collection[str]] = ()
    """Guarantees whose tests fail instead of being skipped if they could not be tested."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if unknown := set(cls.require) - GUARANTEES:
            raise ValueError(f"{cls.__name__}.require: unknown guarantee {', '.join(sorted(unknown))}; choose from "
                             f"{', '.join(p.id for p in ORDER)}")
        if cls.histories:
            read_scripts(cls.histories)
            cls.test_history = pytest.mark.parametrize("script", cls.histories)(_test_history)  # type: ignore[attr-defined]

    @pytest.fixture(scope="class")
    @classmethod
    def report(cls, request: pytest.FixtureRequest) -> Report:
        times = _Times.of(request.config)
        begin = monotonic()
        try:
            report = cls.play()
        except JudgementStopped as stopped:
            if not stopped.report.broken:
                raise
            report = stopped.report  # the findings remain valid
        times.shared += monotonic() - begin
        return report

    @classmethod
    def play(cls, **options: Any) -> Report:
        """Judge the adapter with the settings of this class."""
        make = load_adapter(cls.adapter) if isinstance(cls.adapter, str) else cls.adapter
        return judge(make, profile=cls.profile, llm_port=cls.llm_port, fake=cls.fake, reproduce=cls._reproduce,
                     **options)

    @classmethod
    def _reproduce(cls, script: Script) -> str:
        return f"{cls.__name__}.histories = [{str(script)!r}]"

    @pytest.mark.parametrize("guarantee", [p.id for p in ORDER])
    def test_guarantee(self, request: pytest.FixtureRequest, report: Report, guarantee: str) -> None:
        verdict = report.verdict(guarantee)
        request.node.stash[SECONDS] = verdict.seconds
        if verdict.status is Status.BROKEN:
            pytest.fail(f"{verdict.story}\n{LEGEND}", pytrace=False)
        if verdict.status is not Status.KEPT and guarantee in self.require:
            pytest.fail(f"{guarantee} is required, but {verdict.status.value}: {verdict.why}", pytrace=False)
        if verdict.status is not Status.KEPT:
            pytest.skip(verdict.why or verdict.status.value)

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name.replace(" ", "-") for s in SCENARIOS])
    def test_scenario(self, report: Report, scenario: Any) -> None:
        shown = report.scenarios[scenario.name]
        if isinstance(shown, Finding):
            pytest.fail(f"{scenario.guarantee} is broken: {shown.says(scenario.guarantee)}\n{shown.story}\n{LEGEND}",
                        pytrace=False)
        if isinstance(shown, str):
            pytest.skip(shown)


def _test_history(self: ConformanceSuite, script: str) -> None:
    race = read_scripts([script])[0].is_race
    report = self.play(scripts=[script], times=self.times, until=self.until if race else None)
    if report.broken:
        stories = "\n".join(v.story for v in report.verdicts if v.finding)
        pytest.fail(f"{report.replays[0]}\n\n{stories}\n{LEGEND}", pytrace=False)


SECONDS = pytest.StashKey[float]()


class _Times:
    """Moves the time of the judgement from the setup of the first test to the guarantees that it tested."""

    def __init__(self) -> None:
        self.shared = 0.0  # seconds that the judgement took in the current setup

    @classmethod
    def of(cls, config: pytest.Config) -> "_Times":
        plugins = config.pluginmanager
        if not plugins.has_plugin(cls.__qualname__):
            plugins.register(cls(), cls.__qualname__)
        found = plugins.get_plugin(cls.__qualname__)
        assert isinstance(found, cls)
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "setup":
            report.duration, self.shared = max(0.0, report.duration - self.shared), 0.0
        elif call.when == "call":
            report.duration += item.stash.get(SECONDS, 0.0)
        return report
