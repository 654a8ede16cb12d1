"""The conformance kit as a test class for pytest. This is a whole test file:

    from cancelmark.conformance.suite import ConformanceSuite
    from mine import MyAdapter

    class TestMine(ConformanceSuite):
        adapter = MyAdapter

It has a test for each guarantee and one for each scenario. A guarantee that is broken fails, with the shortest history
that was found; one that is not claimed or not observable is skipped, with the reason. The histories are played once for
the class, by the first of its tests. It needs pytest, 8 or newer, which Cancelmark does not bring along.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from .adapter import MakeAdapter
from .exchange import exchange_text
from .kit import judge
from .report import ORDER, Finding, Report, Status
from .scenarios import SCENARIOS
from .venue import MakeFake


class ConformanceSuite:
    """Inherit from it under a name that pytest collects, and say which adapter."""

    adapter: ClassVar[MakeAdapter | Callable[..., Any]]
    """The adapter's class, or a function that makes one."""
    profile: ClassVar[str] = "quick"
    """Or `deep`."""
    llm_port: ClassVar[int | None] = None
    """For a server outside: where it expects the kit's language model."""
    fake: ClassVar[MakeFake | None] = None
    """Or what makes that language model."""

    @pytest.fixture(scope="class")
    @classmethod
    def report(cls) -> Report:
        return judge(cls.adapter, profile=cls.profile, llm_port=cls.llm_port, fake=cls.fake)

    @pytest.mark.parametrize("guarantee", [p.id for p in ORDER])
    def test_guarantee(self, report: Report, guarantee: str) -> None:
        verdict = report.verdict(guarantee)
        if verdict.status is Status.BROKEN:
            pytest.fail(verdict.story, pytrace=False)
        if verdict.status is not Status.KEPT:
            pytest.skip(verdict.why or verdict.status.value)

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name.replace(" ", "-") for s in SCENARIOS])
    def test_scenario(self, report: Report, scenario: Any) -> None:
        shown = report.scenarios[scenario.name]
        if isinstance(shown, Finding):
            pytest.fail(f"{scenario.guarantee} is broken: {shown.says(scenario.guarantee)}\n"
                        f"  what was done: {shown.script}\n\n{exchange_text(shown.history.observations)}\n",
                        pytrace=False)
        if isinstance(shown, str):
            pytest.skip(shown)
