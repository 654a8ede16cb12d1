"""The chaos in short, what its judge notices, and the try-out of a cluster."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.budget import DEEP
from support.chaos_node import FLAWS
from support.journals import Step, replay
from support.paths import ROOT
from support.postgres import need_tool
from tools.chaos import run_chaos

ACCEPT = Step(1, "adopt", [["accept", None, ["", True], 0, False]], [1])
ENTER = Step(2, "", [["enter", 1, None, 0, False]], [])
END = Step(3, "", [["finish", 1, "end_turn", 0, False]], [])


def test_a_short_chaos_loses_nothing(tmp_path: Path) -> None:
    need_tool("postgres")
    problems, done = asyncio.run(run_chaos(8, seed=3, gap=0.3, log=tmp_path / "log"))
    assert not problems, (problems, done)
    assert done["acknowledged"] > 10
    assert sum(done["faults"].values()) >= 2


@pytest.mark.skipif(not DEEP, reason="a minute for each error: make test-deep")
@pytest.mark.parametrize("flaw", FLAWS)
def test_each_error_is_found(flaw: str, tmp_path: Path) -> None:
    for seed in range(5):
        problems, _ = asyncio.run(run_chaos(40, seed=seed, gap=0.5, flaw=flaw, log=tmp_path / "log"))
        if problems:
            return
    pytest.fail(f"{flaw} was not found")


def test_a_journal_that_keeps_to_the_protocol_has_no_problem() -> None:
    told = replay("s", [ACCEPT, ENTER, END])
    assert not told.problems
    assert (told.ends, told.left) == ([(1, "end_turn")], {})
    assert told.moves == {1: [("active", None), ("done", "end_turn")]}


@pytest.mark.parametrize(("steps", "problem"), [
    ([ACCEPT, END], "version 3 follows 1"),
    ([ACCEPT, ENTER, END, Step(4, "", END.actions, [])], "does not allow"),
    ([ACCEPT, ENTER, Step(3, "", [["finish", 1, "canceled", 0, False]], [])], "does not allow"),
    ([ACCEPT, Step(2, "", [["cancel", None, None, 1, False]], []), Step(3, "", [["enter", 1, None, 0, False]], [])],
     "the journal says mark 0"),
    ([ACCEPT, ENTER, Step(3, "recover", [], [])], "not by recovering it"),
], ids=["gap", "two ends", "no cancel", "mark", "no recover"])
def test_a_journal_that_does_not_is_noticed(steps: list[Step], problem: str) -> None:
    assert any(problem in told for told in replay("s", steps).problems)


def test_the_try_out_shows_a_failover_and_stops_everything() -> None:
    need_tool("postgres")
    done = subprocess.run([sys.executable, "tests/tools/cluster.py", "--once"], cwd=ROOT, capture_output=True,
                          text=True, timeout=120, env={**os.environ, "PYTHONPATH": "tests"})
    assert done.returncode == 0, done.stderr
    for told in ("node 1 is killed", "the story ended: error", "the question ended: end_turn", "are stopped"):
        assert told in done.stdout
