"""The benchmarks of the runtime and the store, with sizes that take no time: they run, and report what they promise."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest
from support.costs import count_calls

from cancelmark.bench import frame
from cancelmark.bench.process import runtime, store
from cancelmark.bench.process.models import Null
from cancelmark.bench.report import Report
from cancelmark.bench.setting import Baseline, Setting
from cancelmark.bench.wire import beside, growth, long, peer
from cancelmark.impl.files import UsageError
from cancelmark.impl.runtime import Runtime


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (runtime, "CHUNKS", 1), (runtime, "PROMPTS", {"memory": 4, "SQLite": 3}), (runtime, "HISTORIES", (1, 5, 90)),
        (runtime, "SESSIONS", (1, 2, 5)), (runtime, "WINDOW", 4), (runtime, "FINISHED", 20),
        (store, "CALLERS", (2, 5)), (store, "PROMPTS", 30),
    ):
        monkeypatch.setattr(module, name, value)


def figures(report: Report) -> list[float]:
    return [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, float)]


@pytest.mark.usefixtures("small")
def test_the_runtime_reports_its_costs() -> None:
    report = runtime.measure(Setting(rounds=1))
    assert [len(table.rows) for table in report.tables] == [3, 4, 2, 2]
    assert len(report.goals) == 1 + 4 + 2 + 2
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
    report = store.measure(Setting(rounds=2))
    assert [row[0] for row in report.tables[0].rows] == [2, 5]
    assert [len(goal.figures) for goal in report.goals] == [2, 2]
    assert min(figures(report)) > 0


@pytest.mark.usefixtures("small")
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime.measure(Setting(rounds=1))
    store.measure(Setting(rounds=1))
    assert list(tmp_path.iterdir()) == []


def test_a_long_session_is_measured_beside_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROMPTS", 30), ("BATCH", 20), ("SAMPLES", 3)):
        monkeypatch.setattr(long, name, value)
    report = long.measure(Setting(rounds=1))
    assert [len(table.rows) for table in report.tables] == [1, 3]
    assert min(figures(report)) > 0
    assert len(report.goals) == 1


def test_growth_is_measured_from_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("SIZES", (0, 60)), ("WRITTEN", 20), ("PROMPTS", 3), ("UNFINISHED", (20, 40)), ("SESSIONS", 3),
                        ("READERS", (1, 2, 3)), ("TOLD", 2), ("BATCH", 7)):
        monkeypatch.setattr(growth, name, value)
    report = growth.measure(Setting(rounds=1))
    assert [len(table.rows) for table in report.tables] == [2, 2, 3]
    assert len(report.goals) == 3
    assert [picture.name for picture in report.pictures] == ["start.svg", "subscribers.svg"]
    asyncio.run(growth.fill(tmp_path, 80))
    database = sqlite3.connect(next((tmp_path / "workspaces").glob("*.db")))
    counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table, _ in growth.KEYS]
    assert counts == [80, 160, 160, 80]
    database.close()


def test_servers_are_measured_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """This version beside itself."""
    for name, value in (("WORKSPACES", 2), ("CANCELS", 1), ("READERS", 2), ("SAMPLES", 1)):
        monkeypatch.setattr(peer, name, value)
    monkeypatch.setattr(beside, "SECONDS", 0.1)
    itself = Baseline("abc", "0.0.1", Path(sys.executable))
    report = beside.measure(Setting(rounds=1, baseline=itself))
    assert [goal.verdict in ("met", "missed") for goal in report.goals] == [True] * 3
    assert {row[1] for row in report.tables[0].rows} == {"0.0.1", "now"}
    assert min(figures(report)) > 0


def test_without_an_earlier_version_its_goals_are_not_measured() -> None:
    assert beside._judge([peer.Server("now", "http://127.0.0.1:1")], *beside.GOALS[0]).verdict == "not measured"


@pytest.mark.parametrize("servers", [["x"], ["x=ftp://a"], ["x=http://127.0.0.1"], ["a=http://h:1", "a=http://h:2"]])
def test_servers_that_cannot_be_measured_are_refused(servers: list[str]) -> None:
    arguments = peer.parser().parse_args(servers)
    with pytest.raises(UsageError, match=r"NAME=URL|one name"):
        arguments.run(arguments)


def test_all_are_subjects() -> None:
    assert {"runtime", "store", "long"} <= set(frame.SUBJECTS)
