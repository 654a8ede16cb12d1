"""The benchmarks of the runtime, the store and the server, with sizes that take no time: they run, and report what they
promise."""

import asyncio
import sys
from pathlib import Path

import pytest
from support.costs import count_calls

from cancelmark.bench import runtime, server
from cancelmark.bench.frame import Baseline, Report, Setting
from cancelmark.bench.runtime import Null
from cancelmark.impl.runtime import Runtime


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (runtime, "CHUNKS", 1), (runtime, "PROMPTS", {"memory": 4, "SQLite": 3}), (runtime, "HISTORIES", (1, 5, 90)),
        (runtime, "SESSIONS", (1, 2, 5)), (runtime, "FINISHED", 20),
        (runtime, "CALLERS", (2, 5)), (runtime, "ACCEPTED", 30),
        (server, "CONNECTIONS", 2), (server, "REQUESTS", 6), (server, "SLICE", 3), (server, "BUSY", 3),
        (server, "SAMPLES", 1), (server, "WORKSPACES", 2), (server, "CANCELS", 1), (server, "SECONDS", 0.1),
    ):
        monkeypatch.setattr(module, name, value)


def figures(report: Report) -> list[float]:
    return [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, float)]


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_the_runtime_reports_its_costs() -> None:
    report = runtime.measure_runtime(Setting(rounds=1))
    assert [len(table.rows) for table in report.tables] == [2, 2, 2, 2]
    assert len(report.goals) == 1 + 2 + 2 + 2
    assert min(figures(report)[:-1]) > 0  # the last is what a prompt that is done leaves, which may be nothing


def test_a_null_prompt_is_cheap_by_count() -> None:
    """Functions that are called for it, from its acceptance to its end: 783 when this was written, some 170 of
    them in the ordinary machine of `transitions`."""
    async def live(prompts: int) -> None:
        async with Runtime(Null()) as runtime:
            await runtime.create_session("s")
            for number in range(prompts):
                await (await runtime.accept("s", "hello", f"r{number}"))

    few, many = count_calls(lambda: asyncio.run(live(100))), count_calls(lambda: asyncio.run(live(300)))
    assert (many - few) / 200 < 800


@pytest.mark.usefixtures("small")
def test_the_store_reports_its_speed() -> None:
    report = runtime.measure_store(Setting(rounds=2))
    assert [row[0] for row in report.tables[0].rows] == [2, 5]
    assert [len(goal.figures) for goal in report.goals] == [2, 2]
    assert min(figures(report)) > 0


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime.measure_runtime(Setting(rounds=1))
    runtime.measure_store(Setting(rounds=1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.usefixtures("small")
def test_the_server_reports_acceptance_and_cancels() -> None:
    report = server.measure_server(Setting(rounds=1))
    assert [len(table.rows) for table in report.tables] == [1, 2]
    assert [len(goal.figures) for goal in report.goals] == [1, 1, 1, 1]
    assert min(figures(report)) > 0


@pytest.mark.real
@pytest.mark.usefixtures("small")
def test_servers_are_measured_side_by_side() -> None:
    """This version beside itself."""
    report = server.measure_beside(Setting(2, Baseline("abc", "0.0.1", Path(sys.executable))))
    assert [goal.verdict in ("met", "missed") for goal in report.goals] == [True] * 3
    assert {row[1] for row in report.tables[0].rows} == {"0.0.1", "now"}
    assert min(figures(report)) > 0


@pytest.mark.real
@pytest.mark.usefixtures("small")
def test_without_an_earlier_version_its_goals_are_not_measured() -> None:
    assert {goal.verdict for goal in server.measure_beside(Setting(rounds=1)).goals} == {"not measured"}
