"""Benchmarks report what they measured; the figures themselves depend on the machine, and no test asserts them."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import pytest

from cancelmark.bench import frame, setting
from cancelmark.bench.report import Goal, Picture, Report, Table
from cancelmark.bench.search import explorer, spin, versions
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


def test_every_subject_is_there() -> None:
    assert frame.MODULES.keys() == frame.SUBJECTS.keys()
    for module in frame.MODULES.values():
        assert callable(import_module(module).measure)


def test_the_report_is_written_for_people_and_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(explorer, "SMALL", ())
    monkeypatch.setattr(explorer, "LARGE", (Bounds(1, cancels=1), Bounds(2, cancels=1)))
    monkeypatch.setattr(explorer, "HUGE", ())
    monkeypatch.setattr(versions, "LARGEST", Bounds(2, cancels=2))
    monkeypatch.setattr(spin, "missing", lambda: "spin is not wanted here")
    assert bench("explorer", "--rounds", "1", "-o", str(tmp_path / "R.md")) == 0
    assert capsys.readouterr().out.strip() in (tmp_path / "R.md").read_text()
    assert "| prompts=1 cancels=1 | 34 |" in (tmp_path / "R.md").read_text()
    kept = json.loads((tmp_path / "R.json").read_text())
    assert kept["subjects"]["explorer"]["report"]["tables"][0]["rows"][0][:2] == ["prompts=1 cancels=1", 34]
    assert "![Seconds against states](explorer.svg)" in (tmp_path / "R.md").read_text()
    drawn = ElementTree.parse(tmp_path / "explorer.svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4, "two engines, two bounds"


def test_a_subject_that_is_measured_alone_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """And a report that is read back is written the same."""
    figure = [1.0]
    picture = Picture("P", "p.svg", "<svg/>")
    report = lambda setting: Report([Table("T", ("n",), [(figure[0],)])],  # noqa: E731
                                    [Goal("g", (figure[0],), "at most", 2, why="It is slow.")], ["r"], [picture])
    for subject in (explorer, spin):
        monkeypatch.setattr(subject, "measure", report)
    path = tmp_path / "R.md"
    assert bench("explorer", "spin", "-o", str(path)) == 0
    first = path.read_text()
    figure[0] = 3.0
    assert bench("spin", "-o", str(path)) == 0
    before, _, after = path.read_text().partition("## SPIN")
    assert first.partition("## SPIN")[0].partition("## The explorer")[2] == before.partition("## The explorer")[2]
    assert "| spin | g | 3× | at most 2× | missed | It is slow. |" in before
    assert "| explorer | g | 1× | at most 2× | met |  |" in before
    assert "goal missed" in after
    assert (tmp_path / "p.svg").read_text() == "<svg/>"
    kept = json.loads(path.with_suffix(".json").read_text())["subjects"]["spin"]["report"]
    assert Report.of(kept).json == kept


def test_an_earlier_version_must_be_a_commit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="BASELINE nope: it is no commit here"):
        setting.install_baseline("nope", tmp_path)
    with pytest.raises(UsageError, match="it is no program"):
        setting.find_peer(str(tmp_path))


def test_bad_usage_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="nope: no such subject"):
        bench("nope")
    with pytest.raises(UsageError, match="--rounds 0"):
        bench("--rounds", "0")


def test_remarks_are_told() -> None:
    assert Report(remarks=["not measured: x"]).markdown == "- not measured: x\n"


def test_an_earlier_version_and_a_peer_are_measured_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = Bounds(2, cancels=1)
    for name, value in (("DEFAULT", bounds), ("LARGEST", bounds), ("BESIDE_PEER", (bounds,))):
        monkeypatch.setattr(versions, name, value)
    peer = tmp_path / "peer"
    peer.write_text("#!/bin/sh\necho '{\"states\": 562, \"edges\": 993, \"depth\": 7}'\n")
    peer.chmod(0o755)
    itself = setting.Baseline("0000000", "0.0", Path(sys.executable))
    report = versions.measure(setting.Setting(1, itself, peer))
    assert len(report.goals) == 9
    assert {goal.verdict for goal in report.goals} <= {"met", "missed"}
    assert [len(table.rows) for table in report.tables] == [7, 1]
    absent = versions.measure(setting.Setting(1))
    assert [goal.verdict for goal in absent.goals].count("not measured") == 8
    assert [goal.what for goal in absent.goals] == [goal.what for goal in report.goals]
    peer.write_text("#!/bin/sh\necho '{\"states\": 563, \"edges\": 993, \"depth\": 7}'\n")
    with pytest.raises(RuntimeError, match="we do not"):
        versions.beside_peer(setting.Setting(1, None, peer))
