"""A runtime's trace: every line is as the schema says, and the model does the same when lines are replayed on it."""

import asyncio
import json
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from support.budget import effort
from support.paths import ROOT
from support.runtime_traces import do_everything, echo, write_trace
from support.runtimes import World, calls, tool, until, world
from support.stores import Meddled, at_once, unfinished

from cancelmark.conformance.trace.check import TraceCheck
from cancelmark.conformance.trace.records import parse_line
from cancelmark.impl.models import Tool
from cancelmark.impl.models.scripted import Beat, Request, ScriptedModel, Wait, say
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.questions import AskUser, Reply
from cancelmark.impl.runtime.refusals import Busy, NoPrompt, NoQuestion, QuestionClosed, TooLate
from cancelmark.impl.runtime.trace import SCHEMA, TraceWriter, schema
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.store import CommitAnswer, CommitRequest, MemoryStore, SqliteStore
from cancelmark.model.actions import ACTIONS
from cancelmark.model.effects import encode_effect
from cancelmark.model.family import FAMILY_ACTIONS, Feature
from cancelmark.model.lifecycle import ROWS, Guard, Outcome, State
from cancelmark.model.protocol import FAMILY, REFERENCE, Move
from cancelmark.model.session import Prompt, Session

Line = dict[str, Any]
BY_NAME = {action.name: action for action in ACTIONS}
DESTINATION = {row.name: row.dest for row in ROWS}
VALIDATOR = Draft202012Validator(SCHEMA)


def lines_of(path: Path) -> list[Line]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines, 1):
        VALIDATOR.validate(line)
        assert line["n"] == number
    return lines


class Replay:
    """The model, doing what the lines say. It complains of the first that it would not have done, or not so."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.states: dict[int, State] = {}  # as the lines have it
        self.home: dict[int, str] = {}  # the session of a prompt
        self.latest: dict[str, int] = {}

    def play(self, lines: list[Line]) -> None:
        """The lines of a session are in the order of its steps."""
        for line in lines:
            self.take(line)
            for session in self.sessions.values():
                for prompt in session.prompts:
                    assert self.states[prompt.seq] is prompt.state, line

    def take(self, line: Line) -> None:
        if "found" in line:
            self.find(line["found"])
        names = [line["session"]] if line["session"] is not None else list(self.sessions)
        told = 0
        for name in names:  # which come in any order: sessions share nothing
            move = self.move(name, line)
            rows = [row["row"] for row in line["rows"] if self.home[row["seq"]] == name]
            effects = [effect for effect in line["effects"] if self.home[effect["seq"]] == name]
            assert rows == [row.name for row in move.rows], line
            assert effects == [encode_effect(effect) for effect in move.effects], line
            assert isinstance(move.live, Session)
            self.sessions[name] = move.live
            told += len(rows) + len(effects)
        assert told == len(line["rows"]) + len(line["effects"]), line
        for row in line["rows"]:
            self.states[row["seq"]] = DESTINATION[row["row"]]
        self.look(line)

    def look(self, line: Line) -> None:
        """The mark is that of the moment in which the line was written."""
        names = [line["session"]] if line["session"] is not None else list(self.sessions)
        assert line["mark"] == max((self.sessions[name].mark for name in names), default=0), line

    def move(self, name: str, line: Line) -> Move:
        session = self.sessions.setdefault(name, Session())
        action = BY_NAME[line["action"]]
        if action.name == "accept":
            assert line["seq"] > self.latest.get(name, 0), line
            self.latest[name] = line["seq"]
            self.states[line["seq"]], self.home[line["seq"]] = State.ACCEPTED, name
            return REFERENCE.apply(action, session, None, line["run_id"] is not None, line["seq"] - 1)
        prompt = session.prompt(line["seq"]) if "seq" in line else None
        variant = Outcome(line["outcome"]) if "outcome" in line else None
        if prompt and action.subject:
            assert REFERENCE.allows(action, session, prompt, variant), f"the model would not: {line}"
        assert line["mark"] >= self.latest.get(name, 0) or action.name not in ("cancel", "close"), line
        return REFERENCE.apply(action, session, prompt, variant, line["mark"])

    def find(self, found: dict[str, Any]) -> None:
        for name, session in found.items():
            prompts = tuple(Prompt(p["seq"], p["run_id"] is not None, State(p["state"])) for p in session["prompts"])
            self.sessions[name] = Session(session["mark"], True, prompts)
            self.states |= {prompt.seq: prompt.state for prompt in prompts}
            self.home |= {prompt.seq: name for prompt in prompts}
            self.latest[name] = max(session["mark"], *(prompt.seq for prompt in prompts), 0)


def replayed(path: Path) -> Replay:
    replay = Replay()
    replay.play(lines_of(path))
    return replay


def test_every_line_is_as_the_schema_says_and_the_model_does_the_same(tmp_path: Path) -> None:
    path = write_trace(tmp_path, SqliteStore(tmp_path / "test.db"), do_everything, tools=[tool("read", echo)])
    replay = replayed(path)
    assert {line["action"] for line in lines_of(path)} == set(BY_NAME) - {"crash", "recover"}
    assert set(replay.states.values()) == {State.DONE}
    with closing(SqliteStore(tmp_path / "test.db")) as store:
        assert at_once(unfinished(store)) == []
        assert all(at_once(store.transitions(seq))[-1].state is State.DONE for seq in replay.states)


def test_a_restart_begins_with_what_the_journal_has(tmp_path: Path) -> None:
    crashed = tmp_path / "crash.db"

    async def leave() -> None:
        async with world(SqliteStore(tmp_path / "test.db")) as w:
            await w.active("a", "run-a")
            await w.queued("b", "run-b")
            w.runtime.holding = True
            await w.accept("c", session="t")
            await w.runtime.cancel("t")
            with closing(sqlite3.connect(tmp_path / "test.db")) as now, closing(sqlite3.connect(crashed)) as copy:
                now.backup(copy)

    async def go_on() -> None:
        with TraceWriter(tmp_path / "trace.ndjson") as trace:
            async with Runtime(ScriptedModel(), SqliteStore(crashed), trace=trace) as runtime:
                await until(lambda: not runtime.is_busy())

    asyncio.run(leave())
    asyncio.run(go_on())
    first, *_ = lines_of(tmp_path / "trace.ndjson")
    assert first["action"] == "recover"
    assert first["found"]["s"] == {"mark": 0, "prompts": [
        {"seq": 1, "run_id": "run-a", "state": "active"}, {"seq": 2, "run_id": "run-b", "state": "queued"}]}
    assert first["found"]["t"] == {"mark": 3, "prompts": [{"seq": 3, "run_id": None, "state": "accepted"}]}
    assert set(replayed(tmp_path / "trace.ndjson").states.values()) == {State.DONE}


class Suspending(Meddled, MemoryStore):
    """A store in which anything can happen while something is written."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        return await super().commit(steps)


@pytest.mark.parametrize("seed", range(effort(20)))
def test_random_histories_replay(tmp_path: Path, seed: int) -> None:
    """Also with acceptances that a cancel overtakes while they are journaled."""
    random = Random(seed)

    async def story(w: World) -> None:
        w.runtime.grace = 0.05
        working = set()
        for number in range(30):
            session = random.choice("sst")
            call = random.choice(["accept"] * 6 + ["cancel", "clear_queue"])
            if call == "accept":
                w.plays(f"{number}", (*say("well"), Wait(f"{number}")) if random.random() < 0.3 else say("hello"))
                work: Awaitable[object] = w.accept(f"{number}", random.choice([f"r{number}", None]), session)
            else:
                work = getattr(w.runtime, call)(session)
            working.add(asyncio.ensure_future(work))
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
        await asyncio.gather(*working)

    path = write_trace(tmp_path, Suspending(random), story)
    assert set(replayed(path).states.values()) == {State.DONE}


def test_random_histories_of_the_family_are_accepted(tmp_path: Path) -> None:
    """Also with calls that come while an acceptance is journaled."""
    lines = [line for seed in range(effort(6)) for line in random_family_history(tmp_path / f"{seed}", Random(seed))]
    assert {line["action"] for line in lines} > {action.name for action in FAMILY_ACTIONS}
    assert {line.get("if_busy") for line in lines} == {None, "reject", "interrupt"}
    assert any(line.get("after", line["n"] - 1) < line["n"] - 1 for line in lines), "an acceptance that was overtaken"


@pytest.mark.rule("R36a", "R36b", "R36c", "R36d", "R36e", "R36f", "R36g", "R36h", "R36j")
def test_random_histories_with_questions_are_accepted(tmp_path: Path) -> None:
    """Turns ask, clients answer, and cancel, stop, revoke and interrupt meanwhile."""
    lines = [line for seed in range(max(5, effort(8)))
             for line in random_family_history(tmp_path / f"{seed}", Random(seed), 0.6)]
    effects = {effect["effect"] for line in lines for effect in line["effects"]}
    assert effects >= {"ask", "answered", "withdraw", "run"}
    assert {line["action"] for line in lines} >= {"ask", "answer", "run", "withdraw"}
    assert any(line["action"] == "cancel" and {"stop", "withdraw"} <= {e["effect"] for e in line["effects"]}
               for line in lines)


def random_family_history(path: Path, random: Random, asking: float = 0) -> list[Line]:
    """The lines of a history, which the check has accepted. So many of the model's steps call a tool that asks."""

    async def run(given: str) -> str:
        return given

    def ask(given: str) -> AskUser:
        return AskUser("run it?", timeout=random.choice([None, None, 0.0001]))

    def play(request: Request) -> Iterable[Beat] | None:
        return calls("c") if random.random() < asking else None

    async def main() -> None:
        tools = [ToolRunner(Tool("read", "a tool", {"type": "object"}), run, ask)]
        with TraceWriter(path) as trace:
            runtime = Runtime(ScriptedModel(play), Suspending(random), tools=tools, grace=0.05, trace=trace,
                              protocol=FAMILY)
            async with runtime:
                for session in "st":
                    await runtime.create_session(session)
                working = {asyncio.ensure_future(call_at_random(runtime, random, number)) for number in range(40)}
                working |= {asyncio.ensure_future(answer_at_random(runtime, random))
                            for _ in range(20 if asking else 0)}
                await asyncio.gather(*working)
                for session in "st":
                    await runtime.resume(session)

    asyncio.run(main())
    check, lines = TraceCheck(), lines_of(path)
    for number, line in enumerate(lines, 1):
        check.take(parse_line(number, line))
    assert check.complete
    assert not check.unfinished
    return lines


async def call_at_random(runtime: Runtime, random: Random, number: int) -> None:
    session = random.choice("sst")
    for _ in range(random.randrange(60)):
        await asyncio.sleep(0)
    call = random.choice(["accept"] * 8 + ["cancel", "stop", "hold", "resume", *["revoke", "next", "replace"] * 3])
    with suppress(Busy, TooLate, NoPrompt):
        if call == "accept":
            mode = random.choice([None, None, Feature.INTERRUPT, Feature.REJECT])
            await runtime.accept(session, f"{number}", random.choice([f"r{number}", None]), (), mode)
        elif call == "stop":
            await runtime.stop(session, hold=random.random() < 0.5)
        elif call in ("cancel", "hold", "resume"):
            await getattr(runtime, call)(session)
        else:
            await getattr(runtime, call)(session, random.randint(1, 12), *(["other"] if call == "replace" else []))


async def answer_at_random(runtime: Runtime, random: Random) -> None:
    for _ in range(random.randrange(200)):
        await asyncio.sleep(0)
    session = random.choice("sst")
    asks = [ask.ask for ask in await runtime.list_asks(session)] or [f"{random.randint(1, 12)}.1"]
    with suppress(QuestionClosed, NoPrompt, NoQuestion):
        await runtime.answer(session, random.choice(asks), Reply(random.random() < 0.7))


def test_a_cancel_that_comes_while_a_prompt_is_being_accepted_is_told_after_it(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    class Slow(Meddled, MemoryStore):
        async def commit(self, steps: CommitRequest) -> CommitAnswer:
            answer = await super().commit(steps)
            if getattr(steps.operations[0], "run_id", None) == "run-a":
                await go_on.wait()
            return answer

    async def story(w: World) -> None:
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await asyncio.sleep(0)
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await asyncio.sleep(0)
        go_on.set()
        await canceling
        assert (await (await accepting)).outcome is Outcome.CANCELED

    path = write_trace(tmp_path, Slow(), story)
    actions = [(line["action"], line.get("after")) for line in lines_of(path)]
    assert actions[:3] == [("accept", 0), ("enter", None), ("cancel", 0)]
    replayed(path)


# --- It can fail ------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Line], object]] = {
    "another row": lambda line: line["rows"][0].update(row="enter→queued"),
    "an effect less": lambda line: line["effects"].pop(),
    "another mark": lambda line: line.update(mark=line["mark"] + 1),
    "another prompt": lambda line: line.update(seq=line["seq"] + 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_replay_complains_of_a_changed_line(tmp_path: Path, change: str) -> None:
    async def story(w: World) -> None:
        await (await w.accept("a", "run-a"))

    lines = lines_of(write_trace(tmp_path, MemoryStore(), story))
    CHANGES[change](next(line for line in lines if line["action"] == "enter"))
    with pytest.raises((AssertionError, LookupError)):
        Replay().play(lines)


async def test_the_replay_complains_of_a_runtime_that_does_not_ask_the_mark(tmp_path: Path) -> None:
    """It asks for the busy session before the mark."""
    deaf = REFERENCE.changed("deaf", guards={Guard.COVERED: lambda port, prompt: False})
    with TraceWriter(tmp_path / "trace.ndjson") as trace:
        async with Runtime(ScriptedModel(), protocol=deaf, trace=trace) as runtime:
            await runtime.create_session("s")
            runtime.counter.next()
            await runtime.cancel("s")
            runtime.counter.latest = 0  # so that the next prompt is covered by it
            await (await runtime.accept("s", "a"))
    with pytest.raises(AssertionError):
        replayed(tmp_path / "trace.ndjson")


@pytest.mark.parametrize("line", [
    {}, {"action": "crash"}, {"seq": 0}, {"extra": 1}, {"effects": [{"effect": "start"}]}])
def test_the_schema_refuses_what_is_no_line(tmp_path: Path, line: Line) -> None:
    async def story(w: World) -> None:
        await (await w.accept("a", "run-a"))

    good = lines_of(write_trace(tmp_path, MemoryStore(), story))[0]
    with pytest.raises(ValidationError):
        VALIDATOR.validate({**good, **line} if line else {})


def test_the_schema_is_a_schema_and_is_published() -> None:
    Draft202012Validator.check_schema(json.loads(schema()))
    assert (ROOT / "specs" / "trace.schema.json").read_text() == schema()


async def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists() and os.environ.get("CI") != "true":
        pytest.skip("this system has no device that is always full")
    with TraceWriter("/dev/full") as trace:
        async with Runtime(ScriptedModel(), trace=trace) as runtime:
            await runtime.create_session("s")
            assert (await (await runtime.accept("s", "a"))).outcome is Outcome.END_TURN
    assert [r.getMessage().split(":")[1] for r in caplog.records if r.levelno >= logging.ERROR] == [
        " trace write failed, tracing stopped"]
