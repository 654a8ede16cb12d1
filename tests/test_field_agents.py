"""The field of agents, as far as it goes without npm: the list, a small agent judged by it, and the pages."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support import small_agent, small_server
from support.paths import ROOT

from cancelmark.conformance.adapter import GUARANTEES
from cancelmark.conformance.kit import judge
from cancelmark.conformance.playing.script import read_scripts
from examples.field.__main__ import main, tell, tell_again
from examples.field.agents import Listed, Skipped, install, read_list
from examples.field.crash import Crash
from examples.field.plays import MODES, PROGRAMS, SCRIPTS, Player, agent_words, busy
from examples.field.record import (
    AGAIN,
    FIRST,
    LOADED,
    list_candidates,
    list_findings,
    make_series,
    make_whole,
    put_series,
    read_record,
    watching_load,
)
from examples.field.report import page, table, write_pages


def small(flaw: str) -> Listed:
    return Listed("small", (sys.executable, small_agent.__file__, "{model_url}", flaw), "chat completions",
                  npm="small@1.0", env={"KEY": "{model_url}"}, config={"c/small.json": "{}"})


def seen(reports: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    return {"package": "small@1.0", "day": "2026-11-17", "cores": 2, "series": [
        make_series(FIRST, 0, 0.52, reports), make_series(LOADED, 4, 5.5, loaded)]}


def play(agent: Listed, place: Path, mode: str, times: int, *scripts: str) -> dict[str, Any]:
    return Player(agent, place, place, monotonic() + agent.limit).play(mode, times, scripts)


def test_every_agent_of_the_list_is_pinned_and_says_how_it_starts() -> None:
    for name, agent in read_list().items():
        assert re.search(r"@\d[\w.]*$|==\d[\w.]*$", agent.package), name
        assert bool(agent.npm) != bool(agent.pip), name
        assert agent.start[0].startswith("{bin}/"), name
        assert agent.wire in ("chat completions", "responses", "messages"), name
        assert bool(agent.url) == (agent.judge in ("langgraph", "a2a")), name
        assert agent.notes.keys() <= GUARANTEES, name
        assert {tuple(each.split()) for each in agent.first} <= {
            (mode, guarantee) for mode in SCRIPTS[agent.judge] for guarantee in GUARANTEES}, name
        assert set(SCRIPTS[agent.judge]) <= set(MODES), name
        assert all(re.search(r"==\d[\w.]*$", package) for package in agent.also), name


@pytest.mark.real
def test_an_agent_is_judged_in_a_process_of_its_own_and_gets_a_page(tmp_path: Path) -> None:
    agent, script = small("error-for-cancelled"), "accept A; cancel"
    reports = {mode: play(agent, tmp_path, mode, 2, script) for mode in SCRIPTS["acp"]}
    text = page(agent, seen(reports, reports))
    assert tell(seen(reports, reports)).startswith(
        "polite: accept A; cancel\n  outcomes: A error\n  broken: attribution 2/2, loaded 2/2\nfree: ")
    assert "| polite | `accept A; cancel` | A error | attribution 2/2, loaded 2/2 |" in text
    assert "## polite: attribution" in text
    assert "Agents MUST catch these errors" in text
    assert "| machine as it was | 0.5 | none |" in text
    assert "| broken scripts, on a loaded machine | 5.5 | 4 |" in text
    assert "sequenceDiagram" in text
    assert "python -m examples.field small --mode polite --script 'accept A; cancel'" in text
    rows = table({"small": (agent, seen(reports, reports))}, {"other": "npm is not on the PATH"},
                 {"package": "client@1", "told": {"in process": ["cancelled", "end_turn"]}})
    cell = "A error<br>**attribution 2/2, loaded 2/2**"
    assert f"| [small](small.md) 1.0 | {cell} | {cell} |" in rows
    assert "- **other**: npm is not on the PATH" in rows
    assert "in process: cancelled, end_turn." in " ".join(rows.split())


def report(n: int, times: int = 5) -> dict[str, Any]:
    """Of one script, in which attribution did not hold in so many plays."""
    each = {"script": "accept A", "times": times, "showed": {"attribution": n} if n else {},
            "ends": {"A error": 4, "A canceled": 1},
            "findings": {"attribution": {"complaint": "it is not", "mermaid": "sequenceDiagram"}} if n else {}}
    broken = {"id": "attribution", "status": "broken", "says": "It is so.", "promise": "the text"}
    return {"scripts": [each], "guarantees": [broken, {"id": "fifo", "status": "kept"}]}


def test_a_finding_is_shown_by_the_first_script_that_shows_it_often() -> None:
    rare, often = report(5), report(5)
    often["scripts"][0]["script"] = "accept A; cancel"
    both = {**rare, "scripts": rare["scripts"] + often["scripts"]}
    seldom = {**report(1), "scripts": report(1)["scripts"] + often["scripts"]}
    found, = list_findings(seen({"polite": both}, {"polite": seldom}))
    assert found.row.script == "accept A; cancel"


@pytest.mark.parametrize(("quiet", "loaded"), [(1, 5), (5, 1), (5, 0)])
def test_what_shows_seldom_or_on_one_machine_alone_is_no_finding(quiet: int, loaded: int) -> None:
    text = page(small(""), seen({"polite": report(quiet)}, {"polite": report(loaded)}))
    assert f"| A error (4/5)<br>A canceled (1/5) | (attribution {quiet}/5, loaded {loaded}/5) |" in text
    assert "## polite" not in text


@pytest.mark.parametrize(("loads", "is_finding"), [((0.1, 4.0), True), ((9.0, 3.9), True), ((0.1, 3.9), False),
                                                   ((4.0, 9.0), False)])
def test_what_was_not_played_on_a_quiet_and_on_a_loaded_machine_is_no_finding(
        loads: tuple[float, float], is_finding: bool) -> None:
    kept = seen({"polite": report(5)}, {})
    kept["series"] = [make_series(name, 0, load, {"polite": report(5)}) for name, load in zip((FIRST, LOADED), loads)]
    assert bool(list(list_findings(kept))) == is_finding
    assert len(list(list_candidates(kept))) == 1
    assert ("(attribution 5/5, loaded 5/5)" in page(small(""), kept)) != is_finding


def test_what_was_seen_on_a_busy_machine_alone_is_a_finding_when_it_shows_again_on_a_quiet_one(
        capsys: pytest.CaptureFixture[str]) -> None:
    kept = seen({"polite": report(5)}, {"polite": report(5)})
    kept["series"][0]["load"] = 20.0
    whole = {"id": "attribution", "says": "It is so.", "promise": "the text", "status": "broken", "histories": 9}
    kept["whole"] = make_whole({"histories": 9, "guarantees": [whole]})
    assert "| yes | broken, but not yet run both on a loaded machine and on one that is not: polite |" in page(
        small(""), kept)
    put_series(kept, make_series(AGAIN, 0, 0.3, {"polite": report(3, 3)}))
    assert tell_again(kept)
    assert "reproduces: polite attribution, 3 of 3" in capsys.readouterr().out
    assert len(list(list_findings(kept))) == 1
    assert "| yes | **broken**: polite |" in page(small(""), kept)


@pytest.mark.parametrize(("times", "stays"), [(3, True), (2, True), (1, False), (0, False)])
def test_a_finding_that_does_not_show_again_is_none(
        capsys: pytest.CaptureFixture[str], times: int, stays: bool) -> None:
    kept = seen({"polite": report(5)}, {"polite": report(4)})
    for n in (3 - times, times):  # the last time counts
        put_series(kept, make_series(AGAIN, 0, 0.1, {"polite": report(n, 3)}))
    assert bool(list(list_findings(kept))) == stays == tell_again(kept)
    assert f"{times} of 3 runs of 'accept A'" in capsys.readouterr().out
    assert len(list(list_candidates(kept))) == 1
    assert f"attribution 5/5, loaded 4/5, again {times}/3" in page(small(""), kept)
    assert "| findings, rerun | 0.1 | none |" in page(small(""), kept)


@pytest.mark.parametrize("often", [5, 1])
def test_what_is_to_be_reported_first_is_told_without_a_recipe(often: int) -> None:
    marked, kept = replace(small(""), first={"polite attribution": "it goes on."}), seen(
        {"polite": report(5)}, {"polite": report(often)})
    for text in (page(marked, kept), table({"small": (marked, kept)}, {}, {})):
        assert "accept A" not in text.partition("## Rerun")[0]
        assert often == 1 or "to be reported first" in text.lower()
    assert "accept A" in page(small(""), kept)


def test_the_pages_are_made_of_what_is_recorded(tmp_path: Path) -> None:
    field, agents = ROOT / "specs" / "field", read_list()
    record = read_record(field / "seen.json")
    write_pages(agents, record, tmp_path)
    made = [file for file in tmp_path.iterdir() if file.name != "README.md" or agents.keys() <= record.keys()]
    assert made
    for file in made:
        assert file.read_text() == (field / file.name).read_text(), file.name


def test_a_machine_is_loaded_for_as_long_as_it_has_to_be() -> None:
    def count() -> int:
        children = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True,
                                  check=True)
        return children.stdout.count("while True: pass")

    with busy(2), watching_load() as load:
        assert count() == 2
        load.look()
    assert count() == 0
    assert load.average >= 2


def test_a_judgement_that_stops_half_way_is_played_once_more_and_is_not_taken_for_a_whole_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    player = Player(small(""), tmp_path, tmp_path, monotonic() + 60)
    half = {"scripts": ["one"], "stopped": "the judgement stopped: it is gone"}
    for answers, right in (([half, {"scripts": ["one", "two"]}], True), ([half, half, half], False)):
        told = iter(answers)
        monkeypatch.setattr(Player, "_judge", lambda *_, told=told: next(told))
        if right:
            assert player.play("polite", 1, ("accept A", "accept A; cancel")) == answers[1]
        else:
            with pytest.raises(Skipped, match="it is gone"):
                player.play("polite", 1, ("accept A", "accept A; cancel"))


def run_field(monkeypatch: pytest.MonkeyPatch, place: Path, *words: str) -> tuple[int, list[tuple[str, str, int]]]:
    """What the command returns, and who was played in which phase beside how many processes: of those that can be
    played attribution never holds."""
    played: list[tuple[str, str, int]] = []

    def play_one(phase: str, n: int, agent: Listed, _: Any, kept: dict[str, Any]) -> dict[str, Any]:
        if agent.name == "cline":
            raise OSError("nobody has thought of this")
        if agent.name == "hermes":
            raise Skipped("it wants a login")
        played.append((phase, agent.name, n))
        if phase == FIRST:
            return {"package": agent.package, "day": "2026-11-17", "cores": 2, "series": [
                make_series(FIRST, n, 0.5, {"polite": report(5)})]}
        put_series(kept, make_series(phase, n, 4.5 if n else 0.5, {"polite": report(5)}))
        return kept

    monkeypatch.setattr("examples.field.__main__.play_one", play_one)
    monkeypatch.setattr("examples.field.__main__.install", lambda *_: None)
    monkeypatch.setattr("examples.field.__main__.busy", nullcontext)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["field", *words, "-o", str(place), "--cache", str(place)])
    return main(), played


def test_whatever_happens_to_one_of_them_the_others_are_played(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, played = run_field(monkeypatch, tmp_path, "cline", "hermes", "fast-agent")
    assert code == 1
    assert played == [(FIRST, "fast-agent", 0), (LOADED, "fast-agent", 4)]
    assert "cline: skipped: OSError('nobody has thought of this')" in capsys.readouterr().err
    assert "## polite: attribution" in (tmp_path / "fast-agent.md").read_text()
    table = (tmp_path / "README.md").read_text()
    assert "- **hermes**: it wants a login" in table
    assert "- **typescript-client**" not in table


def test_all_are_played_on_the_machine_as_it_is_before_it_is_loaded(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, played = run_field(monkeypatch, tmp_path, "qwen-code", "codex-acp", "fast-agent")
    assert code == 0
    assert [phase for phase, *_ in played] == [FIRST] * 3 + [LOADED] * 3
    assert {n for phase, _, n in played if phase == LOADED} == {4}
    assert run_field(monkeypatch, tmp_path, "--loaded", "codex-acp")[1] == [(LOADED, "codex-acp", 4)]
    assert set(run_field(monkeypatch, tmp_path, "--again")[1]) == {
        (AGAIN, name, 0) for name in ("qwen-code", "codex-acp", "fast-agent")}
    assert [each["name"] for each in read_record(tmp_path / "seen.json")["codex-acp"]["series"]] == [
        FIRST, LOADED, AGAIN]


@pytest.mark.real
def test_an_agent_that_cannot_be_judged_is_skipped_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="Authentication required"):
        play(small("wants-login"), tmp_path, "polite", 1, "accept A")
    with pytest.raises(Skipped, match=r"python0\.0 is not on the PATH"):
        install(Listed("none", ("x",), "", pip="none==1", python="0.0"), tmp_path)


def test_an_agent_that_needs_too_long_is_skipped_and_ended(tmp_path: Path) -> None:
    agent = replace(small(""), limit=3, env={"MARK": str(tmp_path)})
    with pytest.raises(Skipped, match="it took longer than 3 s"):
        play(agent, tmp_path, "polite", 10_000, "accept A; cancel")
    left = subprocess.run(["ps", "axe", "-o", "args="], capture_output=True, text=True, check=True)
    assert f"MARK={tmp_path}" not in left.stdout


def test_the_command_has_what_the_list_says(tmp_path: Path) -> None:
    words = agent_words(small("x"), tmp_path, tmp_path)
    assert words[:2] == ["--env", "KEY={model_url}"]
    assert words[2:4] == ["--config", f"c/small.json={tmp_path / 'small-small.json'}"]


@pytest.mark.real
@pytest.mark.parametrize(("kind", "mode", "flaw", "cell"), [
    ("langgraph", "stream", "hides-waiting", "A canceled, B without end<br>**some-terminal 1/1, loaded 1/1**"),
    ("a2a", "tasks", "says-completed",
     "A end_turn and canceled, B end_turn and canceled<br>**no-lost-cancel 1/1, loaded 1/1**<br>**one-terminal 1/1")])
def test_a_server_is_started_for_each_judgement_and_gets_a_line_for_each_mode(
        tmp_path: Path, kind: str, mode: str, flaw: str, cell: str) -> None:
    start = (sys.executable, small_server.__file__, "{port}", "{model_url}", flaw)
    server = Listed("small", start, "chat completions", judge=kind, url="http://127.0.0.1:{port}", pip="small==1.0",
                    also=("other==2",), env={"PYTHONPATH": str(ROOT / "tests")}, config={"read.me": "{model_url}"})
    reports = {mode: play(server, tmp_path, mode, 1, "accept A; accept B; cancel")}
    assert f"| [small](small.md) 1.0, {mode} | {cell}" in table({"small": (server, seen(reports, reports))}, {}, {})
    assert "small==1.0 with other==2 from PyPI" in page(server, seen(reports, reports))


@pytest.mark.real
@pytest.mark.parametrize(("script", "broken"), [("accept A; restart", ["no-loss"]), ("accept A; release; restart", [])])
def test_what_a_server_forgets_when_it_is_killed_is_lost(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, broken: list[str]) -> None:
    class Forgetful(Crash):
        """The small server stores nothing."""

        patience = 1.0
        listed = Listed("small", (sys.executable, small_server.__file__, "{port}", "{model_url}", ""), "",
                        env={"PYTHONPATH": str(ROOT / "tests")})

    monkeypatch.setenv(PROGRAMS, str(tmp_path))
    assert judge(Forgetful, scripts=[script], times=1).broken == broken


@pytest.mark.real
def test_a_server_that_does_not_start_is_skipped_with_the_reason(tmp_path: Path) -> None:
    server = Listed("small", ("{bin}/none",), "", judge="a2a", url="http://127.0.0.1:{port}", pip="small==1.0")
    with pytest.raises(Skipped, match="cannot start none: No such file"):
        play(server, tmp_path, "tasks", 1, "accept A")


def test_every_trace_on_the_page_of_texts_is_a_script_and_every_guarantee_is_one() -> None:
    text = (ROOT / "specs" / "field" / "protocols.md").read_text()
    traces = re.findall(r"^    (accept .*)$", text, re.MULTILINE)
    assert len(read_scripts(traces)) == len(traces) > 10
    cells = [line.split(" | ")[-1] for line in text.splitlines() if re.match(r"\| [A-Z]", line)]
    assert {name for cell in cells for name in re.findall(r"\*([a-z-]+)\*", cell)} <= GUARANTEES


def test_a_name_that_is_not_listed_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "examples.field", "nobody"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert "unknown agent nobody" in done.stderr
