"""Benchmarks report what they measured; the figures themselves depend on the machine, and no test asserts them."""

import json
import sys
from pathlib import Path

import pytest

from cancelmark.bench import explorer, frame, runtime, spin
from cancelmark.bench.frame import Baseline, Goal, Report, Setting, Table
from cancelmark.impl.files import UsageError
from cancelmark.model.properties import Bounds


def bench(*arguments: str) -> int:
    parsed = frame.parser().parse_args(arguments)
    return int(parsed.run(parsed))


def test_a_goal_is_judged_by_its_median() -> None:
    goal = Goal("a against b", (1.0, 9.0, 3.0), "at most", 3)
    assert goal.met
    assert goal.line == "goal met: a against b: 3× (1 to 9), at most 3×"
    missed = Goal("a against b", (1.0,), "at least", 2)
    assert not missed.met
    assert missed.line == "goal missed: a against b: 1×, at least 2×"
    reasoned = Goal("a against b", (1.0,), "at least", 2, why="The disk is slow.")
    assert reasoned.line == "goal missed: a against b: 1×, at least 2×. The disk is slow."
    absent = Goal("a against b", (), "at least", 2, why="There is no b here.")
    assert (absent.verdict, absent.met) == ("not measured", False)
    assert absent.line == "goal not measured: a against b: –, at least 2×. There is no b here."


@pytest.mark.parametrize(("relation", "figures"), [("around", (1.0,)), ("at most", ())])
def test_a_goal_that_cannot_be_judged_is_refused(relation: str, figures: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at most or at least"):
        Goal("it", figures, relation, 1)


def test_a_table_puts_numbers_to_the_right_and_separates_thousands() -> None:
    table = Table("T", ("what", "n"), [("x", 12345), ("y", 0.51234)])
    assert table.markdown == "**T**\n\n| what | n |\n| --- | ---: |\n| x | 12,345 |\n| y | 0.512 |\n"


@pytest.mark.parametrize("name", frame.SUBJECTS)
def test_every_subject_is_there(name: str) -> None:
    assert callable(frame.find_subject(name))


def test_the_report_is_written_for_people_and_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(explorer, "SMALL", ())
    monkeypatch.setattr(explorer, "LARGE", (Bounds(1, cancels=1), Bounds(2, cancels=1)))
    monkeypatch.setattr(explorer, "HUGE", ())
    monkeypatch.setattr(spin, "missing", lambda: "spin is not wanted here")
    assert bench("explorer", "--rounds", "1", "-o", str(tmp_path / "R.md")) == 0
    assert capsys.readouterr().out.strip() in (tmp_path / "R.md").read_text()
    assert "| prompts=1 cancels=1 | 34 |" in (tmp_path / "R.md").read_text()
    kept = json.loads((tmp_path / "R.json").read_text())
    assert kept["subjects"]["explorer"]["report"]["tables"][0]["rows"][0][:2] == ["prompts=1 cancels=1", 34]


@pytest.mark.real
def test_a_subject_that_is_measured_alone_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """And a report that is read back is written the same."""
    figure = [1.0]
    report = lambda setting: Report([Table("T", ("n",), [(figure[0],)])],  # noqa: E731
                                    [Goal("g", (figure[0],), "at most", 2, why="It is slow.")], ["r"])
    monkeypatch.setattr(explorer, "measure_explorer", report)
    monkeypatch.setattr(runtime, "measure_store", report)
    path = tmp_path / "R.md"
    assert bench("explorer", "store", "-o", str(path)) == 0
    first = path.read_text()
    figure[0] = 3.0
    assert bench("store", "-o", str(path)) == 0
    before, _, after = path.read_text().partition("## The store")
    assert first.partition("## The store")[0].partition("## The explorer")[2] == before.partition("## The explorer")[2]
    assert "| store | g | 3× | at most 2× | missed | It is slow. |" in before
    assert "| explorer | g | 1× | at most 2× | met |  |" in before
    assert "goal missed" in after
    kept = json.loads(path.with_suffix(".json").read_text())["subjects"]["store"]["report"]
    assert Report.of(kept).json == kept


@pytest.mark.real
def test_an_earlier_version_must_be_a_commit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="BASELINE nope: not a commit of this checkout"):
        frame.install_baseline("nope", tmp_path)


def test_bad_usage_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="nope: no such subject"):
        bench("nope")
    with pytest.raises(UsageError, match="--rounds 0"):
        bench("--rounds", "0")


def test_remarks_are_told() -> None:
    assert Report(remarks=["not measured: x"]).markdown == "- not measured: x\n"


@pytest.mark.real
def test_an_earlier_version_is_measured_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """This version beside itself."""
    for name in ("DEFAULT", "LARGEST"):
        monkeypatch.setattr(explorer, name, Bounds(2, cancels=1))
    report = explorer.beside_baseline(Setting(1, Baseline("0000000", "0.0", Path(sys.executable))))
    assert {goal.verdict for goal in report.goals} <= {"met", "missed"}
    assert [len(table.rows) for table in report.tables] == [3]
    absent = explorer.beside_baseline(Setting(1))
    assert [goal.verdict for goal in absent.goals] == ["not measured"] * 3
    assert [goal.what for goal in absent.goals] == [goal.what for goal in report.goals]
