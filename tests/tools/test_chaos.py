"""The chaos in short, what its judge notices, and the try-out of a cluster."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from support.budget import DEEP
from support.chaos_node import FLAWS
from support.journals import AUDIT, LOOKS, Problem, Step, judge, replay
from support.paths import ROOT
from support.postgres import need_tool, shared_server
from tools.chaos import run_chaos

from cancelmark.impl.store import AcceptPrompt, MovePrompt, NewSession, PutMessage
from cancelmark.impl.store import MessageRecord as StoredMessage
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.model.lifecycle import State

ACCEPT = Step(1, "adopt", [["accept", None, ["", True], 0, False]], [1])
ENTER = Step(2, "", [["enter", 1, None, 0, False]], [])
END = Step(3, "", [["finish", 1, "end_turn", 0, False]], [])

# Of each error: the faults that bring it out, and what is wrong then.
SHOWN_BY = {
    "no fence on messages": (["freeze"], {"message after an end"}),
    "blind retry": (["lose_answers"], {"taken twice"}),
    "place from a sequence": (["crash_database", "end_connections"], {"places", "not seen"}),
    "cancel by notice only": (["cut", "end_connections"], {"cancel lost", "unfinished"}),
    "claim without recover": (["kill"], {"against the protocol", "unfinished"}),
}

KIT = ("--script", "accept A; accept B; cancel", "--script", "accept A; release; leave; return", "--times", "2")


def test_a_short_chaos_loses_nothing(tmp_path: Path) -> None:
    need_tool("postgres")
    problems, done = asyncio.run(run_chaos(8, seed=3, gap=0.3, log=tmp_path / "log", kit=KIT))
    assert not problems, (problems, done)
    assert len(done["kit"]) == 1
    assert done["acknowledged"] > 10
    assert sum(done["faults"].values()) >= 2


@pytest.mark.skipif(not DEEP, reason="a minute for each error: make test-deep")
@pytest.mark.parametrize("flaw", FLAWS)
def test_each_error_is_found(flaw: str, tmp_path: Path) -> None:
    """By the faults that bring it out, and by what it does to users."""
    mix, kinds = SHOWN_BY[flaw]
    for seed in range(5):
        problems, _ = asyncio.run(run_chaos(30, seed=seed, gap=0.5, flaw=flaw, log=tmp_path / "log", mix=mix))
        if any(problem.kind in kinds for problem in problems):
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


def test_a_prompt_that_is_accepted_below_a_mark_is_poisoned() -> None:
    cancel = Step(1, "", [["cancel", None, None, 5, False]], [])
    assert replay("s", [cancel, Step(2, "adopt", [["accept", None, ["", True], 5, False]], [4])]).poisoned == [4]
    assert not replay("s", [cancel, Step(2, "adopt", [["accept", None, ["", True], 5, False]], [6])]).poisoned


@pytest.mark.real
def test_rows_without_columns_are_counted() -> None:
    need_tool("postgres")
    assert len(shared_server().execute("SELECT FROM generate_series(1, 3)")) == 3


@pytest.mark.real
def test_a_turn_that_goes_on_after_its_owner_has_looked_is_noticed() -> None:
    """What counts is not how much it writes, but that its owner has looked."""
    need_tool("postgres")
    server = shared_server()
    name = server.new_database()

    async def make() -> list[Problem]:
        database = Database(server.address(name))
        await database.open()
        store = PostgresStore(database, uuid4())
        await store.make("/tmp/cancelmark-judged", "log")
        server.execute(AUDIT, name)
        await store.write([NewSession("s")])
        accepted = AcceptPrompt(1, "s", "text", "r1")
        await store.write([accepted, MovePrompt(1, State.ACTIVE)])
        await database.fetch("UPDATE cancelmark.sessions SET owner = %s, mark = 1", database.node)
        found = []
        for _ in range(2):
            for n in range(9):
                await store.write([PutMessage(StoredMessage(f"p1-{n}", "s", "assistant", ()))])
            for _ in range(LOOKS):
                await database.fetch("INSERT INTO cancelmark.looks VALUES (%s, clock_timestamp())", database.node)
            with psycopg.connect(server.address(name), autocommit=True) as connection:
                found += [one for one in judge(connection) if one.kind == "cancel lost"]
        await database.close()
        return found

    assert [one.says for one in asyncio.run(make())] == [
        f"prompt 1 has written 9 times after it was canceled and its owner has looked {LOOKS} times"]


def test_the_try_out_shows_a_failover_and_stops_everything() -> None:
    need_tool("postgres")
    done = subprocess.run([sys.executable, "tests/tools/cluster.py", "--once"], cwd=ROOT, capture_output=True,
                          text=True, timeout=120, env={**os.environ, "PYTHONPATH": "tests"})
    assert done.returncode == 0, done.stderr
    for told in ("node 1 is killed", "the story ended: error", "the question ended: end_turn", "are stopped"):
        assert told in done.stdout
