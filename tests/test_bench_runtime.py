"""The benchmarks of the runtime and the store, with sizes that take no time: they run, and report what they promise."""

from pathlib import Path

import pytest

from cancelmark.bench import frame, long, runtime, store
from cancelmark.bench.report import Report
from cancelmark.bench.setting import Setting


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


def test_all_are_subjects() -> None:
    assert {"runtime", "store", "long"} <= set(frame.SUBJECTS)
