"""The field test, as far as it goes without npm: how opencode's events are read, what is reported, what is missing."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.servers import PATIENCE

from cancelmark.conformance.adapter import GUARANTEES, Ended
from cancelmark.conformance.exchange import exchange_text
from cancelmark.conformance.history import History
from cancelmark.conformance.kit import Profile, judge
from cancelmark.conformance.naive import NaiveAdapter
from cancelmark.conformance.report import Report
from examples.opencode.adapter import NOTES, PROMISES, Opencode
from examples.opencode.process import Process
from examples.opencode.report import markdown
from examples.opencode.trial import AT_ONCE, IN_USE, STARTED, Shown, Trial, _again, _tried

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
        await adapter.http.aclose()
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
    text = written(judged, [Shown(promised.guarantee, IN_USE, promised.finding, 3, 3),
                            Shown(promised.guarantee, STARTED, promised.finding, 4, 5),
                            Shown(free.guarantee, IN_USE, free.finding, 3, 9),
                            Shown(rare.guarantee, STARTED, rare.finding, 2, 5)])
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
    what = f"What was done: `{promised.finding.script}`."
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


def test_what_the_kit_has_found_is_played_until_it_has_shown_three_times(judged: Report) -> None:
    guarantee = judged.broken[0]
    report = replace(judged, verdicts=(judged.verdict(guarantee),), scenarios={})
    once = cycle([showing(), showing(guarantee)])
    shown, = _again(report, lambda script: next(once))
    assert (shown.guarantee, shown.circumstances, shown.times, shown.of) == (guarantee, IN_USE, 3, 6)
    never, = _again(report, lambda script: showing("some other"))
    assert (never.times, never.of) == (0, 10)
    trial = Trial(report, (shown, never), {})
    assert (trial.shown, trial.seldom) == ([shown], [])  # it does not hold, however seldom it shows elsewhere
    assert Trial(report, (never,), {}).seldom == [never]


def test_what_is_tried_counts_for_each_guarantee_by_itself() -> None:
    plays = iter([showing(), showing("fifo"), showing("fifo", "record"), showing("fifo"), showing()])
    fifo, record = _tried(STARTED, AT_ONCE[:1], lambda script: next(plays))
    assert [(each.guarantee, each.times, each.of) for each in (fifo, record)] == [("fifo", 3, 5), ("record", 1, 5)]
    assert fifo.finding.says("fifo") == "no fifo"


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


def test_a_server_that_does_not_start_is_ended_and_what_it_wrote_is_told(tmp_path: Path) -> None:
    program = tmp_path / "opencode"
    program.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    program.chmod(0o755)
    with Process(program, "http://127.0.0.1:1/v1") as server:
        with pytest.raises(Exception, match=r"did not start.*\n.*no such luck"):
            asyncio.run(server.start())
        assert server.running is None
        place = server.place
        assert (place / "work" / "opencode.json").exists()
    assert not place.exists()


def test_leaving_ends_the_process_and_what_it_has_started(tmp_path: Path) -> None:
    program = tmp_path / "opencode"
    program.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    program.chmod(0o755)
    reading, writing = os.pipe()  # which both hold open as long as they live
    with Process(program, "http://127.0.0.1:1/v1") as server:
        server.running = subprocess.Popen([program], start_new_session=True, stdout=writing)
        os.close(writing)
        assert not select.select([reading], [], [], 0.2)[0]
    assert select.select([reading], [], [], PATIENCE)[0]
    assert os.read(reading, 1) == b""
    os.close(reading)
