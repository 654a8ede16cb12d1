"""The field of agents, as far as it goes without npm: the list, a small agent judged by it, and the pages."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import small_agent, small_server
from support.paths import ROOT

from cancelmark.conformance.adapter import GUARANTEES
from cancelmark.conformance.playing.script import read_scripts
from examples.field.__main__ import tell
from examples.field.agents import Listed, Skipped, install, read_list
from examples.field.plays import MODES, SCRIPTS, agent_words, busy, play
from examples.field.report import page, table


def small(flaw: str) -> Listed:
    return Listed("small", (sys.executable, small_agent.__file__, "{model_url}", flaw), "chat completions",
                  npm="small@1.0", env={"KEY": "{model_url}"}, config={"c/small.json": "{}"})


def seen(reports: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    return {"package": "small@1.0", "day": "2026-11-17", "machine": {"cores": 2, "load": 0.5, "busy": 4},
            "reports": reports, "loaded": loaded}


def test_every_agent_of_the_list_is_pinned_and_says_how_it_starts() -> None:
    for name, agent in read_list().items():
        assert re.search(r"@\d[\w.]*$|==\d[\w.]*$", agent.package), name
        assert bool(agent.npm) != bool(agent.pip), name
        assert agent.start[0].startswith("{bin}/"), name
        assert agent.wire in ("chat completions", "responses", "messages"), name
        assert bool(agent.url) == (agent.judge != "acp"), name
        assert set(SCRIPTS[agent.judge]) <= set(MODES), name
        assert all(re.search(r"==\d[\w.]*$", package) for package in agent.also), name


def test_an_agent_is_judged_in_a_process_of_its_own_and_gets_a_page(tmp_path: Path) -> None:
    agent, script = small("error-for-cancelled"), "accept A; cancel"
    reports = {mode: play(agent, tmp_path, mode, tmp_path, 2, (script,)) for mode in SCRIPTS["acp"]}
    text = page(agent, seen(reports, reports))
    assert tell(seen(reports, reports)).startswith(
        "polite: accept A; cancel\n  ends: A error\n  did not hold: attribution 2/2, loaded 2/2\nfree: ")
    assert tell({"skipped": "npm is not on the PATH"}) == "skipped: npm is not on the PATH"
    assert "| polite | `accept A; cancel` | A error | attribution 2/2, loaded 2/2 |" in text
    assert "## polite: attribution" in text
    assert "Agents MUST catch these errors" in text
    assert "a load of 0.5 when the agent was started. Loaded means: with 4 processes" in " ".join(text.split())
    assert "sequenceDiagram" in text
    assert "python -m examples.field small --mode polite --script 'accept A; cancel'" in text
    rows = table({"small": (agent, seen(reports, reports))}, {"other": "npm is not on the PATH"})
    cell = "A error<br>**attribution 2/2, loaded 2/2**"
    assert f"| [small](small.md) 1.0 | {cell} | {cell} |" in rows
    assert "- **other**: npm is not on the PATH" in rows


@pytest.mark.parametrize(("quiet", "loaded"), [(1, 5), (5, 1), (5, 0)])
def test_what_shows_seldom_or_on_one_machine_alone_is_no_finding(quiet: int, loaded: int) -> None:
    def report(n: int) -> dict[str, Any]:
        each = {"script": "accept A", "times": 5, "showed": {"attribution": n} if n else {},
                "ends": {"A error": 4, "A canceled": 1}}
        return {"scripts": [each], "guarantees": [{"id": "attribution", "status": "broken", "script": "accept A"}]}

    text = page(small(""), seen({"polite": report(quiet)}, {"polite": report(loaded)}))
    assert f"| A error (4/5)<br>A canceled (1/5) | (attribution {quiet}/5, loaded {loaded}/5) |" in text
    assert "## polite" not in text


def test_a_machine_is_loaded_for_as_long_as_it_has_to_be() -> None:
    def count() -> int:
        children = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True,
                                  check=True)
        return children.stdout.count("while True: pass")

    with busy(2):
        assert count() == 2
    assert count() == 0


def test_an_agent_that_cannot_be_judged_is_skipped_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="Authentication required"):
        play(small("wants-login"), tmp_path, "polite", tmp_path, 1, ("accept A",))
    with pytest.raises(Skipped, match=r"python0\.0 is not on the PATH"):
        install(Listed("none", ("x",), "", pip="none==1", python="0.0"), tmp_path)


def test_the_command_has_what_the_list_says(tmp_path: Path) -> None:
    words = agent_words(small("x"), tmp_path, tmp_path)
    assert words[:2] == ["--env", "KEY={model_url}"]
    assert words[2:4] == ["--config", f"c/small.json={tmp_path / 'small-small.json'}"]


@pytest.mark.parametrize(("judge", "mode", "flaw", "cell"), [
    ("langgraph", "stream", "hides-waiting", "A canceled, B without end<br>**some-terminal 1/1, loaded 1/1**"),
    ("a2a", "tasks", "says-completed",
     "A end_turn and canceled, B end_turn and canceled<br>**no-lost-cancel 1/1, loaded 1/1**<br>**one-terminal 1/1")])
def test_a_server_is_started_for_each_judgement_and_gets_a_line_for_each_mode(
        tmp_path: Path, judge: str, mode: str, flaw: str, cell: str) -> None:
    start = (sys.executable, small_server.__file__, "{port}", "{model_url}", flaw)
    server = Listed("small", start, "chat completions", judge=judge, url="http://127.0.0.1:{port}", pip="small==1.0",
                    also=("other==2",), env={"PYTHONPATH": str(ROOT / "tests")}, config={"read.me": "{model_url}"})
    reports = {mode: play(server, tmp_path, mode, tmp_path, 1, ("accept A; accept B; cancel",))}
    assert f"| [small](small.md) 1.0, {mode} | {cell}" in table({"small": (server, seen(reports, reports))}, {})
    assert "small==1.0 with other==2 from PyPI" in page(server, seen(reports, reports))


def test_a_server_that_does_not_start_is_skipped_with_the_reason(tmp_path: Path) -> None:
    server = Listed("small", ("{bin}/none",), "", judge="a2a", url="http://127.0.0.1:{port}", pip="small==1.0")
    with pytest.raises(Skipped, match="cannot start none: No such file"):
        play(server, tmp_path, "tasks", tmp_path, 1, ("accept A",))


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
    assert "there is no agent nobody in the list" in done.stderr
