"""Benchmarks report what they measured; the figures themselves depend on the machine, and no test asserts them."""

import json
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import pytest

from cancelmark.bench import command, explorer, spin
from cancelmark.bench.report import Goal, Report, Table
from cancelmark.impl.files import UsageError
from cancelmark.model.properties import Bounds


def bench(*arguments: str) -> int:
    parsed = command.parser().parse_args(arguments)
    return int(parsed.run(parsed))


def test_a_goal_is_judged_by_its_median() -> None:
    goal = Goal("a against b", (1.0, 9.0, 3.0), "at most", 3)
    assert goal.met
    assert goal.line == "goal met: a against b: 3× (1 to 9), at most 3×"
    missed = Goal("a against b", (1.0,), "at least", 2)
    assert not missed.met
    assert missed.line == "goal missed: a against b: 1×, at least 2×"


@pytest.mark.parametrize(("relation", "figures"), [("around", (1.0,)), ("at most", ())])
def test_a_goal_that_cannot_be_judged_is_refused(relation: str, figures: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at most or at least"):
        Goal("it", figures, relation, 1)


def test_a_table_puts_numbers_to_the_right_and_separates_thousands() -> None:
    table = Table("T", ("what", "n"), [("x", 12345), ("y", 0.51234)])
    assert table.markdown == "**T**\n\n| what | n |\n| --- | ---: |\n| x | 12,345 |\n| y | 0.512 |\n"


def test_every_subject_is_there() -> None:
    for name in command.SUBJECTS:
        assert callable(import_module(f"cancelmark.bench.{name}").measure)


def test_the_report_is_written_for_people_and_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(explorer, "SMALL", ())
    monkeypatch.setattr(explorer, "LARGE", (Bounds(1, cancels=1), Bounds(2, cancels=1)))
    monkeypatch.setattr(explorer, "HUGE", ())
    monkeypatch.setattr(spin, "missing", lambda: "spin is not wanted here")
    assert bench("explorer", "--rounds", "1", "-o", str(tmp_path / "R.md")) == 0
    assert (tmp_path / "R.md").read_text() == capsys.readouterr().out
    assert "| prompts=1 cancels=1 | 34 |" in (tmp_path / "R.md").read_text()
    kept = json.loads((tmp_path / "R.json").read_text())
    assert kept["subjects"]["explorer"]["tables"][0]["rows"][0][:2] == ["prompts=1 cancels=1", 34]
    assert "![Seconds against states](explorer.svg)" in (tmp_path / "R.md").read_text()
    drawn = ElementTree.parse(tmp_path / "explorer.svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4, "two engines, two bounds"


def test_bad_usage_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="nope: no such subject"):
        bench("nope")
    with pytest.raises(UsageError, match="--rounds 0"):
        bench("--rounds", "0")


def test_remarks_are_told() -> None:
    assert Report(remarks=["not measured: x"]).markdown == "- not measured: x\n"
