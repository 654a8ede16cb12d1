"""The conformance kit as a test class for pytest. With an adapter in mine.py, this is a whole test file:

    from cancelmark.conformance.suite import ConformanceSuite
    class TestMine(ConformanceSuite): adapter = "mine:MyAdapter"

It has a test for each guarantee, one for each scenario, and one for each script in `histories`. A guarantee that is
broken fails, with the shortest history that was found; one of which nobody can tell whether it is kept is skipped, with
the reason. All but `histories` is played once for the class, when the first of its tests begins. What that costs is
reported with the guarantees: each carries its share, because one history tests several. It needs pytest, 8 or newer,
which Cancelmark does not bring along.
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
    """Inherit from it under a name that pytest collects, and say which adapter."""

    adapter: ClassVar[MakeAdapter | Callable[..., Any] | str]
    """The adapter's class, a function that makes one, or the name of either: `module:Class` or `file.py:Class`."""
    histories: ClassVar[Sequence[str]] = ()
    """Scripts to play besides, each as a test of its own: what a finding says after `reproduce with`."""
    times: ClassVar[int] = TIMES
    """How often each of `histories` is played."""
    until: ClassVar[float] = 10.0
    """For a server outside: the seconds for which each of `histories` in which it matters who comes first is played,
    with other gaps and in other orders."""
    profile: ClassVar[str | Profile] = "quick"
    """Or `deep`."""
    llm_port: ClassVar[int | None] = None
    """For a server outside: where it expects the kit's language model."""
    fake: ClassVar[MakeFake | None] = None
    """Or what makes that language model."""
    require: ClassVar[Collection[str]] = ()
    """Guarantees whose tests fail, where others are skipped, if it is not known whether the server keeps them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if unknown := set(cls.require) - GUARANTEES:
            raise ValueError(f"{cls.__name__}.require: there is no guarantee {', '.join(sorted(unknown))}")
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
            report = stopped.report  # what was found is no less true
        times.shared += monotonic() - begin
        return report

    @classmethod
    def play(cls, **options: Any) -> Report:
        """The adapter judged, as this class says."""
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
            pytest.fail(f"{guarantee} is required, and {verdict.status.value}: {verdict.why}", pytrace=False)
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
    """Reports the time of the histories with the guarantees that they tested, and not with whoever came first."""

    def __init__(self) -> None:
        self.shared = 0.0  # seconds of the histories that were played in the setup that goes on now

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
