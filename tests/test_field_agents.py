"""The field of agents, as far as it goes without npm: the list, a small agent judged by it, and the pages."""

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from support import small_agent
from support.paths import ROOT

from examples.field.agents import SCRIPTS, Listed, Skipped, command_of, install, play, read_list
from examples.field.report import page, table

DAY = date(2026, 11, 17)


def small(flaw: str) -> Listed:
    return Listed("small", (sys.executable, small_agent.__file__, "{model_url}", flaw), "chat completions",
                  npm="small@1.0", env={"KEY": "{model_url}"}, config={"c/small.json": "{}"})


def test_every_agent_of_the_list_is_pinned_and_says_how_it_starts() -> None:
    for name, agent in read_list().items():
        assert re.search(r"@\d[\w.]*$|==\d[\w.]*$", agent.package), name
        assert bool(agent.npm) != bool(agent.pip), name
        assert agent.start[0].startswith("{bin}/"), name
        assert agent.wire in ("chat completions", "responses", "messages"), name


def test_an_agent_is_judged_in_a_process_of_its_own_and_gets_a_page(tmp_path: Path) -> None:
    agent, script = small("error-for-cancelled"), "accept A; cancel"
    reports = {mode: play(agent, tmp_path, mode, tmp_path, 2, (script,)) for mode in SCRIPTS}
    text = page(agent, reports, DAY)
    assert "| polite | `accept A; cancel` | attribution 2/2 |" in text
    assert "## polite: attribution" in text
    assert "Agents MUST catch these errors" in text
    assert "sequenceDiagram" in text
    assert "python -m examples.field small --mode polite --script 'accept A; cancel'" in text
    rows = table({"small": (agent, reports)}, {"other": "npm is not on the PATH"}, 2)
    assert "| [small](small.md) 1.0 | attribution 2/2 | attribution 2/2 |" in rows
    assert "- **other**: npm is not on the PATH" in rows


def test_what_shows_seldom_is_no_finding() -> None:
    report = {"scripts": [{"script": "accept A", "times": 5, "showed": {"attribution": 1}}], "guarantees": [
        {"id": "attribution", "status": "broken", "script": "accept A"}]}
    text = page(small(""), {"polite": report}, DAY)
    assert "(attribution 1/5)" in text
    assert "## polite" not in text


def test_an_agent_that_cannot_be_judged_is_skipped_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="Authentication required"):
        play(small("wants-login"), tmp_path, "polite", tmp_path, 1, ("accept A",))
    with pytest.raises(Skipped, match=r"python0\.0 is not on the PATH"):
        install(Listed("none", ("x",), "", pip="none==1", python="0.0"), tmp_path)


def test_the_command_has_what_the_list_says(tmp_path: Path) -> None:
    words = command_of(small("x"), tmp_path, "free", tmp_path)
    assert words[:5] == ["acp", "--mode", "free", "--env", "KEY={model_url}"]
    assert words[5:7] == ["--config", f"c/small.json={tmp_path / 'small-small.json'}"]


def test_a_name_that_is_not_listed_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "examples.field", "nobody"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert "there is no agent nobody in the list" in done.stderr
