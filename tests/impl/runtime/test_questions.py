"""Questions of turns at run time: who answers, what withdraws them, and what a tool may do then."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.runtimes import OpenStore, World, calls, until, world
from support.stores import at_once

from cancelmark.impl import wire
from cancelmark.impl.models import Tool
from cancelmark.impl.models.scripted import ScriptedModel, say
from cancelmark.impl.runtime import Refusal, Runtime
from cancelmark.impl.runtime.questions import AskUser, Reply
from cancelmark.impl.runtime.refusals import NoPrompt, NoQuestion, QuestionClosed
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.store import ASK, SqliteStore
from cancelmark.model.protocol import FAMILY, REFERENCE

ALLOW, DENY = Reply(True), Reply(False)


class Shell:
    """A tool that asks first, and notes what it ran on."""

    def __init__(self, question: AskUser | None = None) -> None:
        self.question, self.ran = question or AskUser("run it?"), list[str]()
        self.runner = ToolRunner(Tool("read", "a tool", {"type": "object"}), self.run, lambda given: self.question)

    async def run(self, given: str) -> str:
        self.ran.append(given)
        return "it ran"


@asynccontextmanager
async def asking(open_store: OpenStore, shell: Shell, *, n: int = 1) -> AsyncIterator[World]:
    """A world in which the prompt "A" calls the tool n times at once, and then answers."""
    async with world(open_store(), [shell.runner], protocol=FAMILY) as w:
        w.plays("A", calls(*"cdef"[:n]), say("done"))
        yield w


async def asked(w: World, n: int = 1) -> wire.Ask:
    """The open question with that number, once it is stored."""
    while True:
        for ask in await w.runtime.list_asks("s"):
            if ask.ask.endswith(f".{n}"):
                return ask
        await asyncio.sleep(0.001)


def told(w: World) -> list[tuple[str, ...]]:
    """What the log says of questions and ends, in order."""
    return [(e.payload["ask"], e.payload["status"], e.payload.get("why", "")) if e.type == ASK
            else ("end", e.payload["outcome"], "") for e in at_once(w.store.events())]


def results(w: World) -> list[tuple[str, bool]]:
    """What the model heard of its tool calls."""
    return [(part["data"]["content"], part["data"]["is_error"]) for message in at_once(w.store.messages("s"))
            for part in message.parts if part["type"] == "tool_result"]


async def test_an_allowed_tool_runs_once_and_its_question_is_told(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        ask = await asked(w)
        assert (ask.ask, ask.title, ask.tool, ask.kind, ask.run_id, ask.status) == (
            f"{handle.seq}.1", "run it?", "read", "permission", "r", "open")
        assert shell.ran == []
        answer = await w.runtime.answer("s", ask.ask, ALLOW, by="alice")
        assert (answer.status, answer.effect, answer.by) == ("allowed", "taken", "alice")
        result = await handle
        assert (result.outcome.value, shell.ran, results(w)) == ("end_turn", ['{"n": "c"}'], [("it ran", False)])
        assert told(w) == [("1.1", "open", ""), ("1.1", "allowed", ""), ("end", "end_turn", "")]
        assert w.end("r")["asks"] == [{"ask": "1.1", "status": "ran", "started": True}]
        again = await w.runtime.answer("s", ask.ask, ALLOW, by="bob")
        assert (again.effect, again.by, again.status, again.started) == ("none", "alice", "ran", True)
        with pytest.raises(QuestionClosed, match="was answered: allow"):
            await w.runtime.answer("s", ask.ask, DENY)


async def test_a_denied_tool_does_not_run_and_the_turn_goes_on(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        await w.runtime.answer("s", (await asked(w)).ask, Reply(False, text="too dangerous"))
        assert (await handle).outcome.value == "end_turn"
        assert shell.ran == []
        assert results(w) == [("the user denied permission: too dangerous", True)]


@pytest.mark.parametrize("call", ["cancel", "revoke", "stop", "close"])
async def test_whatever_cancels_the_prompt_withdraws_its_question_at_once(open_store: OpenStore, call: str) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        ask = await asked(w)
        calling: dict[str, Callable[[], Any]] = {
            "cancel": lambda: w.runtime.cancel("s"), "revoke": lambda: w.runtime.revoke("s", "r"),
            "stop": lambda: w.runtime.stop("s"), "close": w.runtime.close}
        await calling[call]()
        if call != "close":
            with pytest.raises(QuestionClosed, match=r"withdrawn \(canceled\)"):
                await w.runtime.answer("s", ask.ask, ALLOW)
            assert not await w.runtime.list_asks("s")
        assert (await handle).outcome.value == "canceled"
        assert shell.ran == []
        if call != "close":
            assert told(w) == [("1.1", "open", ""), ("1.1", "withdrawn", "canceled"), ("end", "canceled", "")]


async def test_a_cancel_between_the_answer_and_the_start_voids_the_permission(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        ask = await asked(w)
        answering = asyncio.ensure_future(w.runtime.answer("s", ask.ask, ALLOW))
        await asyncio.sleep(0)  # the answer is submitted
        await w.runtime.cancel("s")
        assert (await answering).effect == "taken"
        assert (await handle).outcome.value == "canceled"
        assert shell.ran == []
        with pytest.raises(QuestionClosed, match=r"withdrawn \(canceled\)"):
            await w.runtime.answer("s", ask.ask, ALLOW)
        assert w.end("r")["asks"] == [{"ask": "1.1", "status": "void", "started": False}]


async def test_of_two_answers_at_once_the_first_wins_and_the_other_is_told_who(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        ask = await asked(w)
        won, lost, same = await asyncio.gather(
            w.runtime.answer("s", ask.ask, ALLOW, by="alice"), w.runtime.answer("s", ask.ask, DENY, by="bob"),
            w.runtime.answer("s", ask.ask, ALLOW, by="carol"), return_exceptions=True)
        assert isinstance(won, wire.AskAnswered)
        assert isinstance(same, wire.AskAnswered)
        assert (won.effect, same.effect, same.by) == ("taken", "none", "alice")
        assert isinstance(lost, QuestionClosed)
        assert (lost.question.answer, lost.question.by) == ("allow", "alice")
        await handle
        assert len(shell.ran) == 1


async def test_nobody_answers_in_time(open_store: OpenStore) -> None:
    shell = Shell(AskUser("run it?", timeout=0.02))
    async with asking(open_store, shell) as w:
        handle = await w.accept("A", "r")
        assert (await handle).outcome.value == "end_turn"
        assert (shell.ran, results(w)) == ([], [("permission was not given: no answer in time", True)])
        assert told(w)[1] == ("1.1", "withdrawn", "timeout")
        (ask,) = await w.runtime.list_asks("s", closed=5)
        assert ask.expires_at > 0
        with pytest.raises(QuestionClosed, match=r"withdrawn \(timeout\)"):
            await w.runtime.answer("s", "1.1", ALLOW)


async def test_a_question_for_a_value_takes_one_that_fits_its_schema(open_store: OpenStore) -> None:
    shell = Shell(AskUser("which branch?", "input", schema={"type": "string", "minLength": 2}))
    async with asking(open_store, shell) as w:
        handle = await w.accept("A")
        ask = await asked(w)
        assert ask.json_schema == {"type": "string", "minLength": 2}
        for reply, wrong in ((Reply(True, value="x"), "value: 'x' is too short"), (ALLOW, "asks for a value")):
            with pytest.raises(Refusal, match=wrong):
                await w.runtime.answer("s", ask.ask, reply)
        await w.runtime.answer("s", ask.ask, Reply(True, value="main"))
        await handle
        assert shell.ran == ['"main"']


async def test_an_option_is_one_of_those_of_the_question(open_store: OpenStore) -> None:
    shell = Shell(AskUser("run it?", options=("once", "always")))
    async with asking(open_store, shell) as w:
        handle = await w.accept("A")
        ask = await asked(w)
        with pytest.raises(Refusal, match="choose one of once, always"):
            await w.runtime.answer("s", ask.ask, Reply(True, option="never"))
        await w.runtime.answer("s", ask.ask, Reply(True, option="once"))
        await handle
        (ended,) = await w.runtime.list_asks("s", closed=1)
        assert (ended.status, ended.option) == ("ran", "once")


async def test_tools_of_one_step_ask_one_after_the_other_under_new_numbers(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell, n=2) as w:
        handle = await w.accept("A", "r")
        await w.runtime.answer("s", (await asked(w)).ask, DENY)
        await w.runtime.answer("s", (await asked(w, 2)).ask, ALLOW)
        await handle
        assert [ask["status"] for ask in w.end("r")["asks"]] == ["denied", "ran"]
        assert shell.ran == ['{"n": "d"}']


@pytest.mark.parametrize("ask", ["1.2", "1.0", "1", "x.y", "1.1.1", f"1.{2**70}"])
async def test_a_question_that_was_never_asked_is_refused(open_store: OpenStore, ask: str) -> None:
    async with asking(open_store, Shell()) as w:
        await w.accept("A")
        await asked(w)
        with pytest.raises(NoQuestion):
            await w.runtime.answer("s", ask, ALLOW)
        with pytest.raises(NoPrompt):
            await w.runtime.answer("s", "7.1", ALLOW)
        await w.runtime.cancel("s")


async def test_a_held_session_takes_answers(open_store: OpenStore) -> None:
    shell = Shell()
    async with asking(open_store, shell) as w:
        handle = await w.accept("A")
        ask = await asked(w)
        await w.runtime.hold("s")
        await w.runtime.answer("s", ask.ask, ALLOW)
        await handle
        assert len(shell.ran) == 1


async def test_a_tool_that_asks_needs_a_protocol_with_questions() -> None:
    with pytest.raises(ValueError, match="has no questions, and these tools ask: read; use a protocol"):
        Runtime(ScriptedModel(), tools=[Shell().runner], protocol=REFERENCE)


@pytest.mark.parametrize(("make", "wrong"), [
    (lambda: AskUser("x", "question"), "use permission or input"),  # type: ignore[arg-type]
    (lambda: AskUser("x", timeout=0), "not positive"),
    (lambda: AskUser("x", "input", schema={"type": "strin"}), "give a valid JSON Schema")])
def test_a_malformed_question_is_refused_when_it_is_made(make: Callable[[], AskUser], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        make()


async def test_a_restart_withdraws_open_questions_and_reports_what_may_have_run(tmp_path: Path) -> None:
    """The process dies while the second tool runs, and while a question of another session is open."""
    file = tmp_path / "test.db"
    started = asyncio.Event()

    async def hang(given: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    shell = Shell()
    hanging = ToolRunner(shell.runner.tool, hang, shell.runner.ask)
    dying = World(SqliteStore(file), [hanging], protocol=FAMILY)
    dying.plays("A", calls("c"), say("done"))
    dying.plays("B", calls("c"), say("done"))
    await dying.runtime.start()
    for session in "st":
        await dying.runtime.create_session(session)
    await dying.accept("A", "a")
    await dying.runtime.answer("s", (await asked(dying)).ask, ALLOW)
    await started.wait()
    await dying.accept("B", "b", "t")
    await until(lambda: bool(at_once(dying.runtime.list_asks("t"))))
    dying.store.close()  # nothing more is written
    for task in [*dying.runtime.tasks]:
        task.cancel()
    await asyncio.sleep(0)

    async with world(SqliteStore(file), [shell.runner], protocol=FAMILY) as w:
        assert w.end("a")["asks"] == [{"ask": "1.1", "status": "ran", "started": True}]
        assert w.end("b")["asks"] == [{"ask": "2.1", "status": "withdrawn", "started": False}]
        log = told(w)
        assert log.index(("1.1", "ran", "")) < log.index(("end", "error", ""))
        assert ("2.1", "withdrawn", "crash") in log
        assert shell.ran == []
        with pytest.raises(QuestionClosed, match=r"withdrawn \(crash\)"):
            await w.runtime.answer("t", "2.1", ALLOW)
