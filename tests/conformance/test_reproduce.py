"""Every finding says how to play it again, and a script says everything that this takes."""

from dataclasses import replace

import pytest
from support.budget import effort
from support.samples.models import model_adapter
from support.samples.naive import NaiveAdapter
from support.samples.seeded_outside import StrandsInTheWindow

from cancelmark.conformance import judge
from cancelmark.conformance.playing.scenarios import SCENARIOS
from cancelmark.conformance.playing.script import script
from cancelmark.conformance.profile import PROFILES, Profile
from cancelmark.conformance.report import Finding, Status

NONE = Profile("none", histories=0, schedules=0, inside=0, repeats=1, shrinks=0, seconds=0)


def test_the_text_of_a_script_has_its_schedule() -> None:
    plain = script("accept A, cancel; accept B @2")
    scheduled = replace(plain, late=(5, 2), departures=((3, 1), (0, 12)))
    assert str(scheduled) == "accept A, cancel; accept B @2 | late 5 2 | depart 3:1 0:12"
    assert script(str(scheduled)) == scheduled
    assert scheduled.steps == str(plain) == plain.steps
    assert script("cancel | depart 0:1") == replace(script("cancel"), departures=((0, 1),))


@pytest.mark.parametrize(("text", "complaint"), [
    ("cancel | later 3", "'later 3' is not a schedule"),
    ("cancel | late 9", "'late 9' is not a schedule"),
    ("cancel | depart 3", "'depart 3' is not a schedule"),
    ("cancel | depart 3:0", "'depart 3:0' is not a schedule"),
    ("cancel |", "'' is not a schedule"),
])
def test_a_schedule_that_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        script(text)


def test_every_finding_ends_with_a_line_that_plays_it_again() -> None:
    r4 = model_adapter("r4")
    report = judge(r4, profile=replace(
        PROFILES["quick"], schedules=effort(5, 20), inside=effort(20, 60), shrinks=effort(20, 60)))
    assert len(report.broken) >= 6
    assert any(v.finding and v.finding.script.steps != str(v.finding.script) for v in report.verdicts)  # a schedule
    for verdict in report.verdicts:
        if verdict.finding is None:
            continue
        line = verdict.story.rstrip().splitlines()[-1]
        assert line.startswith("  reproduce with: judge("), line
        assert f"script: {verdict.finding.script.steps}\n" in verdict.story
        again = eval(line.partition(": ")[2], {"judge": judge, r4.__name__: r4})
        (replay,) = again.replays
        assert replay.times == 5
        assert replay.showed[verdict.guarantee] == 5, line
        assert verdict.guarantee in again.broken


def test_a_script_is_played_so_many_times_and_nothing_else_is() -> None:
    report = judge(NaiveAdapter, scripts=["accept A; accept B; fail", script("accept A")], times=3)
    assert report.histories == 6
    stranded, plain = report.replays
    assert (str(stranded.script), stranded.times, stranded.showed) == ("accept A; accept B; fail", 3, {"all-done": 3})
    assert (str(plain.script), plain.times, plain.showed) == ("accept A", 3, {})
    assert report.broken == ["all-done"]
    assert "accept A; accept B; fail: all-done broken in 3 of 3 runs" in str(report)
    assert "accept A: nothing broken in 3 runs" in str(report)
    scripts = report.json()["scripts"]
    findings = [each.pop("findings") for each in scripts]
    assert findings[0]["all-done"]["complaint"] == report.verdict("all-done").about
    assert findings[0]["all-done"]["mermaid"].startswith("sequenceDiagram")
    assert findings[1] == {}
    assert scripts == [
        {"script": "accept A; accept B; fail", "times": 3, "showed": {"all-done": 3},
         "ends": {"A error, B without end": 3}},
        {"script": "accept A", "times": 3, "showed": {}, "ends": {"A end_turn": 3}}]


def test_a_race_is_played_with_other_gaps_until_the_time_is_over() -> None:
    """The window of this server is over ten milliseconds after its answer: the gap that is written misses it."""
    missed = "accept A; cancel,50000 accept B"
    report = judge(StrandsInTheWindow, scripts=[missed], times=3)
    assert report.replays[0].showed == {}
    report = judge(StrandsInTheWindow, scripts=[missed], until=5)
    (replay,) = report.replays
    assert 1 <= replay.showed["all-done"] < replay.times
    assert f"all-done broken in {replay.showed['all-done']} of {replay.times} runs" in str(replay)
    found = replay.findings["all-done"]
    assert found.script.steps != missed
    assert found.reproduce == f"judge(StrandsInTheWindow, scripts=[{str(found.script)!r}], until=60)"
    inside = judge(NaiveAdapter, scripts=["accept A, cancel"], times=2, until=5)  # plays are all the same there
    assert inside.replays[0].times == 2


def test_a_finding_is_reproduced_from_the_json() -> None:
    report = judge(NaiveAdapter, scripts=["accept A; accept B; fail"], times=1)
    told = next(g for g in report.json()["guarantees"] if g["id"] == "all-done")
    assert told["script"] == "accept A; accept B; fail"
    assert told["reproduce"] == "judge(NaiveAdapter, scripts=['accept A; accept B; fail'], times=5)"


def test_who_asks_says_how_it_is_reproduced() -> None:
    report = judge(NaiveAdapter, scripts=["accept A; accept B; fail"], times=1, reproduce=lambda s: f"play {s.steps}")
    assert report.verdict("all-done").story.rstrip().endswith("reproduce with: play accept A; accept B; fail")


def test_scenarios_that_are_named_are_all_that_is_tried() -> None:
    report = judge(NaiveAdapter, profile=replace(NONE, inside=50), scenarios=["queue-stranded-by-error"])
    assert report.histories == 1
    assert list(report.scenarios) == ["queue-stranded-by-error"]
    found = report.scenarios["queue-stranded-by-error"]
    assert isinstance(found, Finding)
    assert found.reproduce == "judge(NaiveAdapter, scripts=['accept A; accept B; fail'], times=5)"
    assert report.verdict("all-done").status is Status.BROKEN


@pytest.mark.parametrize(("options", "complaint"), [
    ({"scenarios": ["queue-stranded"]}, "there is no scenario 'queue-stranded'; did you mean queue-stranded-by-"),
    ({"scenarios": ["xyzzy"]}, f"there is no scenario 'xyzzy'; choose from {SCENARIOS[0].name}, "),
    ({"scripts": ["accept A; explode"]}, "script 'accept A; explode': unknown action 'explode'"),
    ({"scripts": []}, "scripts is empty"),
    ({"scripts": ["cancel"], "times": 0}, "times=0: must be at least 1"),
    ({"until": 5}, "until=5: give `scripts` and the number of seconds"),
    ({"scripts": ["cancel"], "until": 0}, "until=0: give `scripts` and the number of seconds"),
    ({"scripts": "accept A; cancel"}, r"scripts='accept A; cancel' is a string; give a list"),
    ({"scripts": ["cancel"], "scenarios": ["a restart"]}, "scripts and scenarios are mutually exclusive"),
])
def test_what_cannot_be_played_is_named(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        judge(NaiveAdapter, **options)  # type: ignore[arg-type]
