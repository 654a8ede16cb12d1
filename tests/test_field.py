"""The field test, as far as it goes without npm: how opencode's events are read, what is reported, what is missing."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from cancelmark.conformance.adapter import GUARANTEES, Ended
from cancelmark.conformance.judging.history import History
from cancelmark.conformance.kit import judge
from cancelmark.conformance.playing.script import script
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.report import Finding, Replay, Report
from cancelmark.conformance.report.exchange import exchange_text
from cancelmark.conformance.samples.naive import NaiveAdapter
from examples.opencode.adapter import NOTES, PROMISES, Opencode
from examples.opencode.circumstances import InUse, JustStarted, Killed
from examples.opencode.process import NotRunning, OpencodeServer
from examples.opencode.report import markdown
from examples.opencode.trial import AT_ONCE, EARLIER, Shown, Trial, list_earlier, list_found, list_shown

ABORTED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}


def part(message: str, text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "message.part.updated", "properties": {"part": {"type": kind, "messageID": message, "text": text}}}


def answer(message: str, parent: str, **more: Any) -> dict[str, Any]:
    info = {"id": message, "role": "assistant", "parentID": parent, "time": {"created": 1, "completed": 2}, **more}
    return {"type": "message.updated", "properties": {"info": info}}


def heard(*events: dict[str, Any]) -> list[Ended]:
    """What the kit is told, if these prompts were sent: m1 is `one` and m2 is `two`."""
    async def scene() -> list[Ended]:
        adapter = Opencode("http://127.0.0.1:1")
        adapter.names = {"say one": "one", "say two": "two"}
        for event in (part("m1", "say one"), part("m2", "say two"), *events):
            adapter._hear(event)
        told: list[Ended] = []
        while not adapter._inbox.empty():
            event = adapter._inbox.get_nowait()
            assert isinstance(event, Ended)
            told.append(event)
        return told
    return asyncio.run(scene())


def test_the_first_complete_answer_is_the_end_of_its_prompt() -> None:
    running = answer("m3", "m2", time={"created": 1})
    done = answer("m3", "m2", finish="stop")
    told = heard(running, part("m3", "all about two"), done, done)
    assert told == [Ended("two", "end_turn", "all about two")]


@pytest.mark.parametrize(("error", "end"), [
    (ABORTED, Ended("one", "canceled")),
    ({"name": "APIError", "data": {"message": "no: one"}}, Ended("one", "error", None, "no: one")),
    ({"name": "UnknownError", "data": {}}, Ended("one", "error")),
])
def test_the_error_of_an_answer_says_how_it_ended(error: dict[str, Any], end: Ended) -> None:
    assert heard(answer("m3", "m1", error=error)) == [end]


def test_an_answer_that_says_something_else_later_is_a_second_end() -> None:
    told = heard(answer("m3", "m1", finish="stop"), answer("m3", "m1", finish="stop", error=ABORTED))
    assert [end.outcome for end in told] == ["end_turn", "canceled"]


def test_what_is_no_end_is_not_taken_for_one() -> None:
    assert not heard(
        answer("m3", "m1", finish="tool-calls"), answer("m3", "m9", finish="stop"), part("m3", "say one", "reasoning"),
        {"type": "session.idle", "properties": {"sessionID": "s"}}, {"type": "server.heartbeat", "properties": {}},
        {"type": "message.updated", "properties": {"info": {"id": "m1", "role": "user", "time": {"created": 1}}}})
    aborted = answer("m3", "m1", finish="tool-calls", error=ABORTED)
    assert [end.outcome for end in heard(aborted)] == ["canceled"]


@pytest.fixture(scope="module")
def judged() -> Report:
    """Some server's."""
    few = Profile("few", histories=0, schedules=10, inside=10, repeats=1, shrinks=0, seconds=0)
    return judge(NaiveAdapter, profile=few)


def written(report: Report, shown: Iterable[Shown]) -> str:
    quotes = {promise.operation: f"as {promise.operation} says" for promise in PROMISES.values()}
    return markdown(Trial(report, tuple(shown), quotes), "1.2.3", date(2026, 1, 2))


def test_the_report_sets_what_was_seen_beside_what_is_promised(judged: Report) -> None:
    promised, free = (next(v for v in judged.verdicts if v.finding and (v.guarantee in PROMISES) is wanted)
                      for wanted in (True, False))
    assert promised.finding
    assert free.finding
    rare = next(v for v in judged.verdicts if v.finding and v not in (promised, free))
    assert rare.finding
    text = written(judged, [Shown(promised.guarantee, InUse.circumstances, promised.finding, 3, 3),
                            Shown(promised.guarantee, JustStarted.circumstances, promised.finding, 4, 5),
                            Shown(free.guarantee, InUse.circumstances, free.finding, 3, 9),
                            Shown(rare.guarantee, JustStarted.circumstances, rare.finding, 2, 5)])
    assert "opencode 1.2.3" in text
    assert "2 January 2026" in text
    rows = {line.split("**")[1]: line for line in text.splitlines() if line.startswith("| **")}
    assert rows.keys() == {v.guarantee for v in judged.verdicts}
    assert rows[promised.guarantee].endswith("| yes | **broken**: in use, just started |")
    assert rows[free.guarantee].endswith("| no | does not hold: in use |")
    kept = judged.verdict(judged.kept[0])
    assert rows[kept.guarantee].endswith(f"kept, in {kept.shown} histories |")
    assert rows[rare.guarantee].endswith("held, in nearly all histories; see below: just started |")
    before, after = text.split("## What is not promised and does not hold")
    after, seldom = after.split("## What was seen too seldom")
    assert f"### {promised.guarantee}\n" in before
    assert f"### {free.guarantee}\n" in after
    assert f"### {rare.guarantee}, perhaps\n" in seldom
    flat = " ".join(text.split())
    what = f"What was done: `{promised.finding.script.steps}`."
    assert f"A server just started. {what} What was seen, in 4 of 5 plays: " in flat
    assert exchange_text(free.finding.history.observations) in text
    assert all(f"“as {promise.operation} says”" in flat for promise in PROMISES.values())
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", " "))) <= 130


def test_the_report_says_so_when_everything_promised_was_kept(judged: Report) -> None:
    before, after = written(judged, []).split("## What is not promised")
    assert "Nothing that was seen." in before
    assert "Nothing that was seen." in after


def test_promises_and_notes_are_about_guarantees_that_there_are() -> None:
    assert Opencode.claims == PROMISES.keys()
    assert PROMISES.keys() <= GUARANTEES
    assert NOTES.keys() <= GUARANTEES


def showing(*guarantees: str) -> History:
    history = History(steered=True, exact=False)
    for guarantee in guarantees:
        history.complain(guarantee, f"no {guarantee}")
    return history


def replay(text: str, guarantee: str, times: int) -> Replay:
    found = {guarantee: Finding(script(text), showing(guarantee), "again")} if times else {}
    return Replay(script(text), 5, {guarantee: times} if times else {}, found)


def test_what_showed_too_seldom_is_told_apart(judged: Report) -> None:
    fifo, record = list_shown("in use", [replay("accept A", "fifo", 3), replay("cancel", "record", 2)])
    assert [(each.guarantee, each.times, each.of) for each in (fifo, record)] == [("fifo", 3, 5), ("record", 2, 5)]
    trial = Trial(judged, (fifo, record), {})
    assert (trial.shown, trial.seldom) == ([fifo], [record])
    seldom = replace(fifo, times=1)
    assert Trial(judged, (fifo, seldom), {}).seldom == []  # it does not hold, however seldom it shows elsewhere


def test_what_an_earlier_trial_found_shows_again_or_is_withdrawn(judged: Report) -> None:
    every = {kind: tuple(replay(text, g, 0 if g == "no-loss" else 4) for g, k, text in EARLIER if k is kind)
             for kind in (InUse, JustStarted, Killed)}
    earlier = tuple(list_earlier(every))
    assert len(earlier) == len(EARLIER)
    text = markdown(Trial(judged, (), {p.operation: "" for p in PROMISES.values()}, earlier), "1.2.3", date(2026, 1, 2))
    assert "- **all-done** shows again, in 4 of 5 plays:" in text
    assert "- **no-loss** is withdrawn, as it did not show, in 0 of 5 plays:" in text
    assert "`cancelmark conform --adapter examples.opencode.circumstances:Killed --script 'accept A; restart'" in text


def test_what_the_kit_has_found_is_played_again(judged: Report) -> None:
    scripts = {str(each) for each in list_found(judged)}
    assert {str(v.finding.script) for v in judged.verdicts if v.finding} <= scripts
    assert len(scripts) > len(judged.broken)  # and the scenarios


def test_a_server_that_has_just_started_is_tried_at_once() -> None:
    assert "accept A, cancel" in {str(script) for script in AT_ONCE}
    assert len(AT_ONCE) == len(set(AT_ONCE)) > 1


def test_the_committed_report_is_of_the_wording_that_is_committed() -> None:
    text = " ".join((ROOT / "specs" / "field" / "opencode.md").read_text().split())
    for promise in PROMISES.values():
        assert promise.reading in text
    for guarantee, note in NOTES.items():
        assert (f"### {guarantee} " in text) == (note in text)


def test_without_npm_it_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.opencode", "--install", str(tmp_path), "-o", str(tmp_path / "report.md")],
        cwd=ROOT, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "npm is needed and is not on the PATH; install Node.js" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_opencode_is_told_which_model_to_use_and_to_stay_at_home(tmp_path: Path) -> None:
    server = OpencodeServer(tmp_path / "opencode", "http://127.0.0.1:1/v1")
    try:
        told = json.loads((server.work / "opencode.json").read_text())
        assert told["provider"]["fake"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"
        assert server.environment["OPENCODE_DISABLE_AUTOUPDATE"] == "1"
        assert str(server.port) in server.command
        with pytest.raises(NotRunning, match=r"cannot start .*opencode: No such file"):
            asyncio.run(server.start())
    finally:
        asyncio.run(server.close())
