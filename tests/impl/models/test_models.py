"""The models: the scripted one by itself, the OpenAI one over real sockets, answered by a server that can break."""

import asyncio
import gc
import gzip
import importlib.util
import logging
import os
import re
import socket
import sys
import traceback
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import support.openai_server as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.openai_server import Act, Framing, Reply, Server

from cancelmark.impl import http
from cancelmark.impl.files import UsageError
from cancelmark.impl.models import (
    ChatMessage,
    Delta,
    Draft,
    Failure,
    Finish,
    FinishReason,
    Model,
    ModelError,
    Part,
    Reasoning,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from cancelmark.impl.models.openai import OpenAIModel
from cancelmark.impl.models.scripted import (
    ECHO_CHUNKS,
    Beat,
    Delay,
    Fail,
    Request,
    ScriptedModel,
    Stubborn,
    Wait,
    call,
    echo,
    say,
)
from cancelmark.impl.models.secrets import LOOKED_AT, Secrets

T = TypeVar("T")

KEY = "sk-test-4b1dSECRET7f"
needs_openai = pytest.mark.skipif(
    importlib.util.find_spec("h11") is None and os.environ.get("CI") != "true",
    reason="needs the h11 package: pip install 'cancelmark[openai]'",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but the tests' own; and no certificates, which take long to read and are for nobody here."""
    for name in list(os.environ):
        if name.startswith("OPENAI_") or name.lower().endswith("_proxy") or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_not_garbage() -> None:
    """Each test collects its own garbage, and need not look at everything that was imported before."""
    with suppress(UsageError):
        OpenAIModel("m", api_key=KEY)
    gc.collect()
    gc.freeze()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs it, and then asks that nothing is left: no task, no complaint to the event loop, no open file."""
    async def checked() -> T:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        result = await asyncio.wait_for(main, 30)
        gc.collect()
        for _ in range(20):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not complaints
        return result

    before = len(os.listdir("/dev/fd"))
    result = asyncio.run(checked())
    gc.collect()
    assert len(os.listdir("/dev/fd")) == before
    return result


run_test = run


def user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, (Text(text),))


async def deltas(model: Model, *messages: ChatMessage | str, tools: Sequence[Tool] = ()) -> list[Delta]:
    """All deltas of one step. A string is what a user says."""
    sent = [user(m) if isinstance(m, str) else m for m in messages or ("hello",)]
    async with aclosing(model.step(sent, tools)) as step:
        return [delta async for delta in step]


def drafted(stream: Sequence[Delta]) -> Draft:
    draft = Draft()
    for delta in stream:
        assert draft.finish is None, "a delta after the finish"
        draft.add(delta)
    return draft


async def ask(model: Model, *messages: ChatMessage | str, tools: Sequence[Tool] = ()) -> Draft:
    """The answer of one whole step."""
    draft = drafted(await deltas(model, *messages, tools=tools))
    assert draft.finish is not None
    return draft


async def until_left(received: wire.Received) -> None:
    await asyncio.wait_for(received.left_early.wait(), 10)


# --- the draft


def test_a_draft_is_right_after_every_delta() -> None:
    stream: list[tuple[Delta, tuple[Part, ...]]] = [
        (ReasoningDelta("hm"), (Reasoning("hm"),)),
        (TextDelta("a"), (Reasoning("hm"), Text("a"))),
        (TextDelta("b"), (Reasoning("hm"), Text("ab"))),
        (ToolCallStart("x", "read"), (Reasoning("hm"), Text("ab"), ToolCall("x", "read", "", finished=False))),
    ]
    draft = Draft()
    for delta, parts in stream:
        draft.add(delta)
        assert draft.parts == parts
    for delta in (ToolCallStart("y", "list"), ToolCallArguments("x", '{"p"'), ToolCallArguments("y", "{}"),
                  ToolCallArguments("x", ":1}"), ToolCallEnd("x"), TextDelta("c"), Finish(FinishReason.UNKNOWN)):
        draft.add(delta)
    assert draft.parts[2:] == (ToolCall("x", "read", '{"p":1}'), ToolCall("y", "list", "{}", finished=False), Text("c"))
    assert draft.message.text == "abc"
    assert draft.finish == Finish(FinishReason.UNKNOWN)


# --- the scripted model


async def test_without_a_script_it_echoes() -> None:
    model = ScriptedModel()
    first = await deltas(model, "tell me a story about a queue")
    assert 3 <= len(first) <= ECHO_CHUNKS + 1
    assert "tell me a story about a queue" in drafted(first).message.text
    assert first[-1] == Finish(FinishReason.END_TURN, Usage(7, 20))
    assert await deltas(model, "tell me a story about a queue") == first
    assert await deltas(ScriptedModel(), ChatMessage(Role.SYSTEM, (Text("be brief"),)))
    assert model.calls == 2
    assert model.running == 0


@settings(deadline=None)
@given(st.text())
def test_the_echo_says_the_prompt_in_few_chunks(prompt: str) -> None:
    chunks = echo(prompt)
    assert 2 <= len(chunks) <= ECHO_CHUNKS
    assert prompt.strip() in "".join(chunk.text for chunk in chunks)


@settings(deadline=None)
@given(st.text(), st.integers(1, 20))
def test_say_only_cuts(text: str, chunks: int) -> None:
    said = say(text, chunks)
    assert "".join(delta.text for delta in said) == text
    assert len(said) <= chunks
    assert all(delta.text for delta in said)


def test_a_call_is_counted_even_if_nobody_listens() -> None:
    model = ScriptedModel(say("hello"))
    assert model.calls == 0
    model.step([user("hello")])
    assert model.calls == 1
    assert model.running == 0


async def test_scripts_are_chosen_by_the_prompt() -> None:
    model = ScriptedModel({"a": say("for a"), "b": say("for b")})
    assert (await ask(model, "a")).message.text == "for a"
    assert (await ask(model, "a", "b", ChatMessage(Role.TOOL, ()))).message.text == "for b"
    assert "You said: c" in (await ask(model, "c")).message.text

    seen: list[Request] = []

    def choose(request: Request) -> Sequence[Beat] | None:
        seen.append(request)
        return say(request.prompt.upper()) if request.number == 1 else None

    tool = Tool("read", "reads", {})
    model = ScriptedModel(choose)
    assert (await ask(model, "loud", tools=[tool])).message.text == "LOUD"
    assert "You said: loud" in (await ask(model, "loud")).message.text
    assert [(r.number, r.prompt, r.tools) for r in seen] == [(1, "loud", (tool,)), (2, "loud", ())]


async def test_each_step_plays_one_scene_and_then_it_starts_over() -> None:
    full = ModelError(Failure.CONTEXT_TOO_LONG, "too long")
    model = ScriptedModel([
        *call("c1", "read", {"path": "a"}, pieces=3), Finish(FinishReason.TOOL_USE, Usage(1, 2)),
        *say("cut o"), Finish(FinishReason.MAX_TOKENS),
        *say("so"), Fail(full),
        *call("c2", "list", {}),
    ])
    for _ in range(2):
        first = await deltas(model)
        assert [type(d) for d in first] == [ToolCallStart, *[ToolCallArguments] * 3, ToolCallEnd, Finish]
        assert drafted(first).parts == (ToolCall("c1", "read", '{"path": "a"}'),)
        assert drafted(first).finish == Finish(FinishReason.TOOL_USE, Usage(1, 2))
        second = await ask(model)
        assert (second.message.text, second.finish) == ("cut o", Finish(FinishReason.MAX_TOKENS, Usage(1, 2)))
        with pytest.raises(ModelError) as caught:
            await ask(model)
        assert caught.value is full
        assert (await ask(model)).finish == Finish(FinishReason.TOOL_USE, Usage(1, 1))
    assert model.calls == 8
    assert model.running == 0


@pytest.mark.parametrize("error", [ModelError(Failure.RATE_LIMIT, "slow down"), ZeroDivisionError("bug")])
async def test_a_failure_comes_after_what_was_said_before_it(error: Exception) -> None:
    step = ScriptedModel([*say("half"), Fail(error)]).step([user("hello")])
    assert await anext(step) == TextDelta("half")
    with pytest.raises(type(error)) as caught:
        await anext(step)
    assert caught.value is error


async def test_delays_go_through_the_sleep_that_is_given() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    model = ScriptedModel([Delay(3600), *say("a"), Delay(0.5), *say("b")], sleep=sleep)
    assert (await ask(model)).message.text == "ab"
    assert slept == [3600, 0.5]


async def test_a_step_waits_at_a_gate_until_it_is_opened() -> None:
    model = ScriptedModel([*say("a"), Wait("middle"), *say("b")])
    gate = model.gate("middle")
    tasks = [asyncio.create_task(ask(model)) for _ in range(2)]
    await gate.reached(2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [False, False]
    assert (model.running, gate.arrivals) == (2, 2)
    gate.open()
    assert [draft.message.text for draft in await asyncio.gather(*tasks)] == ["ab", "ab"]
    assert (await ask(model)).message.text == "ab"
    await gate.reached(3)
    assert model.gate("middle") is gate


@pytest.mark.parametrize("beat", [Wait("gate"), Delay(3600)])
async def test_a_step_can_be_canceled_where_it_waits(beat: Beat) -> None:
    model = ScriptedModel([*say("a"), beat, *say("b")])
    step = model.step([user("hello")])
    assert await anext(step) == TextDelta("a")
    waiting = asyncio.create_task(anext(step))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (model.running, model.ignored) == (0, 0)


async def test_a_step_can_be_canceled_between_any_two_deltas() -> None:
    """The consumer never waits for anything else, and is canceled all the same."""
    model = ScriptedModel(say("x" * 100, 100))
    task = asyncio.create_task(ask(model))
    for _ in range(30):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.running == 0


async def test_a_stubborn_step_swallows_cancellations_and_goes_on() -> None:
    model = ScriptedModel([Stubborn((Wait("stuck"), *say("still here", 2))), *say(" and done")])
    task = asyncio.create_task(ask(model))
    await model.gate("stuck").reached()
    for ignored in (1, 2):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        assert (model.running, model.ignored) == (1, ignored)
    model.gate("stuck").open()
    assert (await task).message.text == "still here and done"
    assert model.gate("stuck").arrivals == 1


async def test_after_its_stubborn_beats_a_step_can_be_canceled_again() -> None:
    model = ScriptedModel([Stubborn((Wait("stuck"),)), Wait("open to reason")])
    task = asyncio.create_task(ask(model))
    for gate in ("stuck", "open to reason"):
        await model.gate(gate).reached()
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        model.gate(gate).open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (model.running, model.ignored) == (0, 1)


async def test_closing_a_stubborn_step_takes_until_its_waits_are_over() -> None:
    model = ScriptedModel([Stubborn((*say("a"), Wait("stuck"), *say("b"))), Wait("never")])
    step = model.step([user("hello")])
    assert await anext(step) == TextDelta("a")
    closing = asyncio.create_task(step.aclose())
    await model.gate("stuck").reached()
    assert not closing.done()
    model.gate("stuck").open()
    await closing
    assert (model.running, model.gate("never").arrivals) == (0, 0)


def test_the_end_of_the_event_loop_ends_even_a_stubborn_step() -> None:
    model = ScriptedModel([Stubborn((Wait("stuck"),))])

    async def main() -> asyncio.Task[Draft]:
        task = asyncio.create_task(ask(model))
        await model.gate("stuck").reached()
        return task

    assert asyncio.run(main()).cancelled()
    assert model.running == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from([
    TextDelta("a"), ReasoningDelta("b"), Delay(1), Finish(FinishReason.MAX_TOKENS), Fail(ZeroDivisionError()),
    Stubborn((TextDelta("c"), Delay(2))),
])), st.lists(st.booleans(), min_size=1, max_size=6))
async def test_what_is_streamed_does_not_depend_on_timing(script: list[Beat], hurry: list[bool]) -> None:
    async def slow(seconds: float) -> None:
        for _ in range(int(seconds) * 3):
            await asyncio.sleep(0)

    async def fast(seconds: float) -> None:
        pass

    async def one(model: ScriptedModel, pause: bool) -> list[Delta | str]:
        seen: list[Delta | str] = []
        with suppress(ZeroDivisionError):
            async with aclosing(model.step([user("hello")])) as step:
                async for delta in step:
                    seen.append(delta)
                    if pause:
                        await asyncio.sleep(0)
                return seen
        return [*seen, "failed"]

    alone = ScriptedModel(script, sleep=fast)
    together = ScriptedModel(script, sleep=slow)
    expected = [await one(alone, pause=False) for _ in hurry]
    assert await asyncio.gather(*(one(together, pause) for pause in hurry)) == expected


# --- the OpenAI model: what it sends and what it understands


def openai_model(server: Server, **settings: Any) -> OpenAIModel:
    return OpenAIModel("test-model", **{"base_url": server.url, "api_key": KEY, **settings})


def answered(*replies: Reply, messages: Sequence[ChatMessage] = (), tools: Sequence[Tool] = ()) -> tuple[Draft, Any]:
    """The draft of one step that is answered so, and the body of its request. Every connection is clean afterwards."""
    async def main() -> tuple[Draft, Any]:
        async with Server(*replies) as server, aclosing(openai_model(server)) as model:
            draft = await ask(model, *messages, tools=tools)
            assert len(server.received) == 1
            return draft, server.received[0].body
    return run(main())


def failed(reply: Reply, **settings: Any) -> ModelError:
    """The error of one step that is answered so. It was not tried again, and says no secret in any way."""
    async def main() -> ModelError:
        async with Server(reply, wire.text("tried again")) as server:
            async with aclosing(openai_model(server, **settings)) as model:
                with pytest.raises(ModelError) as caught:
                    await ask(model)
            assert len(server.received) == 1
            return caught.value

    error = run(main())
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = str(error) + repr(error) + "".join(traceback.format_exception(error))
    assert KEY not in shown
    assert str(error).isprintable()
    return error


@needs_openai
async def test_text_is_streamed_piece_by_piece() -> None:
    async with Server(wire.text("Hel", "lo, ", "wörld 🌍")) as server, aclosing(openai_model(server)) as model:
        assert await deltas(model, "hi") == [
            TextDelta("Hel"), TextDelta("lo, "), TextDelta("wörld 🌍"), Finish(FinishReason.END_TURN, Usage(7, 5))]
        [received] = server.received
        assert (received.method, received.path) == ("POST", "/v1/chat/completions")
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert received.body == {
            "model": "test-model", "messages": [{"role": "user", "content": "hi"}],
            "stream": True, "stream_options": {"include_usage": True}}


@needs_openai
async def test_the_first_delta_comes_while_the_server_still_speaks() -> None:
    pieces = wire.answer({"content": "early"}, {"content": "late"})
    held = Reply((*pieces[:2], Act.HOLD, *pieces[2:]))
    async with Server(held) as server, aclosing(openai_model(server)) as model:
        step = model.step([user("hi")])
        assert await anext(step) == TextDelta("early")
        server.released.set()
        assert [d async for d in step] == [TextDelta("late"), Finish(FinishReason.END_TURN, Usage(7, 5))]


@needs_openai
def test_results_are_sent_right_after_their_calls_whatever_was_said_in_between() -> None:
    """A prompt that is canceled on entry while a tool runs leaves its message there."""
    def calls(id: str) -> ChatMessage:
        return ChatMessage(Role.ASSISTANT, (ToolCall(id, "f", "{}"),))

    def result(id: str, content: str) -> ChatMessage:
        return ChatMessage(Role.TOOL, (ToolResult(id, "f", content),))

    _, body = answered(wire.text("ok"), messages=[
        user("a"), calls("c1"), user("b"), result("c1", "one"),
        user("c"), calls("c1"), result("c1", "two"), calls("c1"), user("d")])
    assert [(m["role"], m.get("content")) for m in body["messages"]] == [
        ("user", "a"), ("assistant", None), ("tool", "one"), ("user", "b"),
        ("user", "c"), ("assistant", None), ("tool", "two"), ("user", "d")]


@needs_openai
def test_a_conversation_is_sent_as_the_wire_wants_it() -> None:
    """Calls and results only in pairs, nothing empty, no reasoning, no halves of characters."""
    tool = Tool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    _, body = answered(wire.text("ok"), tools=[tool], messages=[
        ChatMessage(Role.SYSTEM, (Text("Be "), Text("brief."))),
        user("read both"),
        ChatMessage(Role.ASSISTANT, (
            Reasoning("two files"), Text("Reading."),
            ToolCall("c1", "read", '{"path": "a"}'), ToolCall("c2", "read", "{}"))),
        ChatMessage(Role.TOOL, (ToolResult("c1", "read", "A"), ToolResult("c2", "read", "no path", is_error=True))),
        ChatMessage(Role.ASSISTANT, (ToolCall("c3", "read", "{", finished=False),)),
        ChatMessage(Role.ASSISTANT, ()),
        ChatMessage(Role.TOOL, (ToolResult("c0", "read", "forgotten"),)),
        user("\ud83d\ude00 half: \ud83d"),
    ])
    assert body["tools"] == [{"type": "function", "function": {
        "name": "read", "description": "Reads a file.", "parameters": dict(tool.parameters)}}]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "read both"},
        {"role": "assistant", "content": "Reading.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "A"},
        {"role": "tool", "tool_call_id": "c2", "content": "no path"},
        {"role": "user", "content": "😀 half: �"},
    ]


@needs_openai
def test_tool_calls_arrive_in_pieces_and_interleaved() -> None:
    draft, _ = answered(Reply(wire.answer(
        {"content": "Reading."},
        wire.call_piece(0, id="a", name="read"),
        wire.call_piece(0, arguments='{"pa'),
        wire.call_piece(1, id="b", name="list", arguments="{"),
        wire.call_piece(0, arguments='th": "x"'),
        wire.call_piece(1, arguments="}"),
        wire.call_piece(0, arguments="}"),
        finish="tool_calls",
    )))
    assert draft.parts == (Text("Reading."), ToolCall("a", "read", '{"path": "x"}'), ToolCall("b", "list", "{}"))
    assert draft.finish == Finish(FinishReason.TOOL_USE, Usage(7, 5))


@needs_openai
def test_a_call_ends_once_its_arguments_are_complete_and_not_when_it_is_cut_off() -> None:
    call_and_end = [wire.call_piece(0, id="a", name="read", arguments='{"path')]
    cut_off, _ = answered(Reply(wire.answer(*call_and_end, finish="length")))
    assert cut_off.parts == (ToolCall("a", "read", '{"path', finished=False),)
    assert cut_off.finish == Finish(FinishReason.MAX_TOKENS, Usage(7, 5))
    whole, _ = answered(Reply(wire.answer(*call_and_end, finish="tool_calls")))
    assert whole.parts == (ToolCall("a", "read", '{"path'),)


def _without_index(piece: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{k: v for k, v in piece["tool_calls"][0].items() if k != "index"}]}


@needs_openai
@pytest.mark.parametrize("pieces", [
    [wire.call_piece(0, id="a", name="f", arguments="{}"), wire.call_piece(0, id="b", name="g", arguments="{}")],
    [_without_index(wire.call_piece(0, id="a", name="f", arguments="{}")),
     _without_index(wire.call_piece(0, id="b", name="g", arguments="{")),
     _without_index(wire.call_piece(0, arguments="}"))],
    [wire.call_piece(0, id="a", name="f", arguments="{"), wire.call_piece(0, id="a", name="f", arguments="}"),
     wire.call_piece(1, id="b", name="g", arguments="{}")],
], ids=["every index is 0", "no index", "the id with every piece"])
@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_tool_calls_of_servers_that_do_not_keep_to_the_letter(pieces: list[dict[str, Any]], finish: str) -> None:
    draft, _ = answered(Reply(wire.answer(*pieces, finish=finish)))
    assert draft.parts == (ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}"))
    assert draft.finish == Finish(FinishReason.TOOL_USE, Usage(7, 5))


@needs_openai
@pytest.mark.parametrize(("finish", "reason"), [
    ("stop", FinishReason.END_TURN), ("length", FinishReason.MAX_TOKENS),
    ("content_filter", FinishReason.CONTENT_FILTER), ("tool_calls", FinishReason.UNKNOWN),
    ("something new", FinishReason.UNKNOWN),
])
def test_finish_reasons(finish: str, reason: FinishReason) -> None:
    draft, _ = answered(wire.text("hi", finish=finish))
    assert draft.finish == Finish(reason, Usage(7, 5))


@needs_openai
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_and_refusals_are_heard(field: str) -> None:
    said = ({field: "let me"}, {field: " see"}, {"content": "I "}, {"refusal": "will not"})
    draft, _ = answered(Reply(wire.answer(*said)))
    assert draft.parts == (Reasoning("let me see"), Text("I will not"))


ROLE, SAID, FINISH, USAGE, END = wire.answer({"content": "hi"})


@needs_openai
@pytest.mark.parametrize(("reply", "usage"), [
    (Reply((ROLE, SAID, FINISH, USAGE)), Usage(7, 5)),
    (Reply((ROLE, SAID, FINISH, USAGE), framing=Framing.UNTIL_CLOSE), Usage(7, 5)),
    (Reply((ROLE, SAID, FINISH)), None),
    (Reply((ROLE, SAID, FINISH, Act.DROP)), None),
    (Reply((ROLE, SAID, FINISH, USAGE[:20], Act.DROP)), None),
    (Reply((ROLE, SAID, FINISH, FINISH, USAGE, END)), Usage(7, 5)),
    (Reply((ROLE, SAID, FINISH, USAGE, END, Act.HOLD)), Usage(7, 5)),
    (Reply((b": keep-alive\n\n", ROLE, b": keep-alive\n\n", SAID, b"data: null\n\n", FINISH, USAGE, END)), Usage(7, 5)),
    (Reply(tuple(piece.replace(b"\n", b"\r\n") for piece in (ROLE, SAID, FINISH, USAGE, END))), Usage(7, 5)),
], ids=["no [DONE]", "no [DONE], until close", "no usage", "dropped after the finish", "dropped in the usage",
        "two finishes", "open after [DONE]", "comments and nulls", "CRLF"])
def test_an_answer_is_complete_with_its_finish_reason(reply: Reply, usage: Usage | None) -> None:
    draft, _ = answered(reply)
    assert (draft.message.text, draft.finish) == ("hi", Finish(FinishReason.END_TURN, usage))


@needs_openai
async def test_a_server_that_falls_silent_after_the_finish_reason_fails_nothing() -> None:
    silent = Reply((ROLE, SAID, FINISH, Act.HOLD))
    async with Server(silent) as server, aclosing(openai_model(server, timeout=0.1)) as model:
        assert (await ask(model)).finish == Finish(FinishReason.END_TURN)


def _units(text: str) -> list[str]:
    """The text in the pieces that JavaScript counts: a character outside the first plane is two."""
    raw = text.encode("utf-16-le")
    return [raw[i:i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(raw), 2)]


@st.composite
def _pieces(draw: st.DrawFn, text: str, ascii: bool) -> list[str]:
    units = _units(text) if ascii else list(text)
    edges = [0, *sorted(draw(st.lists(st.integers(0, len(units)), max_size=6))), len(units)]
    return ["".join(units[start:end]) for start, end in pairwise(edges)]


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[ChatMessage, tuple[bytes, ...]]:
    """One answer, and one of the many ways in which it can arrive."""
    characters = st.sampled_from("ab\n\r\u2028\x85\"\\é你🌍") | st.characters(exclude_categories=["Cs"])
    words = st.text(characters, max_size=12)
    ascii = draw(st.booleans())
    said = draw(words)
    calls = [ToolCall(f"c{index}", "tool", draw(words)) for index in range(draw(st.integers(0, 3)))]
    pending = [
        [wire.call_piece(index, id=call.id, name="tool"),
         *(wire.call_piece(index, arguments=piece) for piece in draw(_pieces(call.input, ascii)))]
        for index, call in enumerate(calls)
    ]
    chunks: list[dict[str, Any]] = [{"content": piece} for piece in draw(_pieces(said, ascii))]
    chunks += [pieces.pop(0) for pieces in pending]
    while pending := [pieces for pieces in pending if pieces]:
        chunks.append(draw(st.sampled_from(pending)).pop(0))
    body = b"".join(wire.answer(*chunks, finish="tool_calls" if calls else "stop", ascii=ascii))
    parts = (*((Text(said),) if said else ()), *calls)
    return ChatMessage(Role.ASSISTANT, parts), wire.cut(body, draw(st.lists(st.integers(0, len(body)), max_size=20)))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@needs_openai
def test_however_an_answer_is_cut_it_is_the_same(runner: asyncio.Runner) -> None:
    """Text and arguments between any two characters, and in the middle of one; bytes anywhere, on the real socket."""
    server = Server()
    runner.run(server.__aenter__())
    model = openai_model(server)

    @settings(deadline=None, max_examples=effort(150), suppress_health_check=[HealthCheck.too_slow])
    @given(_bodies(), st.sampled_from(Framing))
    def check(body: tuple[ChatMessage, tuple[bytes, ...]], framing: Framing) -> None:
        message, pieces = body
        server.replies.append(Reply(pieces, framing=framing))
        assert runner.run(ask(model)).message == message

    try:
        check()
        longest = "🌍" * 5
        body = b"".join(wire.answer({"content": longest}))
        server.replies.append(Reply(wire.cut(body, range(len(body)))))
        assert runner.run(ask(model)).message.text == longest
    finally:
        runner.run(model.aclose())
        runner.run(server.__aexit__(None, None, None))


@needs_openai
def test_half_a_character_at_the_end_cannot_break_anything() -> None:
    draft, _ = answered(Reply(wire.answer(
        {"reasoning": "\ud83d"}, {"content": "a\ud83d"}, wire.call_piece(0, id="c", name="f", arguments="\ud83d"),
        finish="tool_calls", ascii=True)))
    assert draft.message.text == "a�"
    assert ToolCall("c", "f", "�") in draft.parts
    str(draft.parts).encode()


# --- the OpenAI model: what can go wrong


ERROR = {"type": "invalid_request_error", "param": None, "code": None}


@needs_openai
@pytest.mark.parametrize(("reply", "kind", "says"), [
    (Reply((Act.DROP,), head=False), Failure.DISCONNECTED, "connection was lost"),
    (Reply((Act.RESET,), head=False), Failure.DISCONNECTED, "connection was lost"),
    (Reply((Act.DROP,)), Failure.DISCONNECTED, "connection was lost"),
    (Reply((ROLE, SAID, Act.DROP)), Failure.DISCONNECTED, "connection was lost"),
    (Reply((ROLE, SAID, Act.RESET)), Failure.DISCONNECTED, "connection was lost"),
    (Reply((ROLE, SAID, FINISH[:30], Act.DROP)), Failure.DISCONNECTED, "connection was lost"),
    (Reply((ROLE, SAID, Act.DROP), framing=Framing.UNTIL_CLOSE), Failure.DISCONNECTED, "ended before"),
    (Reply((ROLE, SAID, FINISH[:30]), framing=Framing.UNTIL_CLOSE), Failure.DISCONNECTED, "ended before"),
    (Reply((ROLE, SAID)), Failure.DISCONNECTED, "ended before it was complete"),
    (Reply((ROLE, SAID, END)), Failure.DISCONNECTED, "ended before it was complete"),
    (Reply(), Failure.BAD_RESPONSE, "the response was empty; is this a chat completions endpoint"),
    (Reply(framing=Framing.UNTIL_CLOSE), Failure.BAD_RESPONSE, "the response was empty"),
    (Reply((END,)), Failure.BAD_RESPONSE, "the response was empty"),
    (Reply((b"<html>hello</html>",), headers={"content-type": "text/html"}), Failure.BAD_RESPONSE, "was empty"),
    (Reply((ROLE, b'data: {"choices": [\n\n')), Failure.BAD_RESPONSE, "not UTF-8 JSON"),
    (Reply((ROLE, b'data: {"choices": "\xff\xfe"}\n\n')), Failure.BAD_RESPONSE, "not UTF-8 JSON"),
    (Reply((b"data: " + b"[" * 100_000 + b"\n\n",)), Failure.BAD_RESPONSE, "not UTF-8 JSON"),
    (Reply((ROLE,), headers={"content-encoding": "gzip"}), Failure.BAD_RESPONSE, "compressed"),
    (Reply((wire.event({"choices": 5}),)), Failure.BAD_RESPONSE, "choices has type int; expected list"),
    (Reply((wire.event(wire.chunk({"content": {"a": 1}})),)), Failure.BAD_RESPONSE, "content has type dict"),
    (Reply((wire.event(wire.chunk(wire.call_piece(0))),)), Failure.BAD_RESPONSE, "a tool call without an id"),
    (Reply((wire.event(wire.chunk(wire.call_piece(0, id="a"))),)), Failure.BAD_RESPONSE, "without a name"),
    (Reply(wire.answer(wire.call_piece(0, id="a", name="f"), wire.call_piece(1, id="a", name="f"))),
     Failure.BAD_RESPONSE, "or a duplicate"),
    (wire.refusal(401, {**ERROR, "message": f"Incorrect API key provided: {KEY[:6]}***{KEY[-4:]}"}), Failure.AUTH,
     r"\(401\): set OPENAI_API_KEY to a valid key$"),
    (wire.refusal(403, {**ERROR, "message": f"{KEY} may not"}), Failure.AUTH, r"\(403\)"),
    (wire.refusal(500, {**ERROR, "message": f"oops\n\x1b[31m {KEY}"}), Failure.UNAVAILABLE,
     r"\(500\).*: oops \[31m \*\*\*$"),
    (wire.refusal(502, b"<html>Bad Gateway</html>"), Failure.UNAVAILABLE, r"\(502\).*: <html>Bad Gateway</html>"),
    (wire.refusal(503, b""), Failure.UNAVAILABLE, r"\(503\); try again later$"),
    (wire.refusal(400, {**ERROR, "message": "x" * 5000}), Failure.BAD_REQUEST, r"refused \(400\): x{300}…$"),
    (wire.refusal(404, {**ERROR, "message": "no such model", "code": "model_not_found"}),
     Failure.BAD_REQUEST, "no such"),
    (wire.refusal(422, b'{"detail": "no such field"}'), Failure.BAD_REQUEST, r"\(422\): no such field$"),
    (wire.refusal(400, {**ERROR, "message": "too many tokens", "code": "context_length_exceeded"}),
     Failure.CONTEXT_TOO_LONG, r"exceed the context of test-model \(400\): too many tokens"),
    (wire.refusal(400, {"message": "it does not fit", "type": "exceed_context_size_error", "code": 400}),
     Failure.CONTEXT_TOO_LONG, "it does not fit"),
    (wire.refusal(400, {"message": "the model's context length is only 9", "type": "BadRequestError", "code": 400}),
     Failure.CONTEXT_TOO_LONG, "is only 9$"),
    (wire.refusal(413, b""), Failure.CONTEXT_TOO_LONG, r"\(413\)$"),
    (Reply((ROLE, wire.event({"error": {**ERROR, "message": "overloaded"}}))), Failure.UNAVAILABLE, "overloaded$"),
    (Reply((ROLE, wire.event({"error": {"message": "slow down", "code": 429}}))), Failure.RATE_LIMIT, "slow down$"),
    (Reply((ROLE, wire.event({"error": {"message": "slow", "code": "rate_limit_exceeded"}}))),
     Failure.RATE_LIMIT, "slow$"),
    (Reply((ROLE, wire.event({"error": {"message": "full", "code": "context_length_exceeded"}}))),
     Failure.CONTEXT_TOO_LONG, "full$"),
    (Reply((ROLE, wire.event({"error": f"bad {KEY}"}))), Failure.UNAVAILABLE, r"bad \*\*\*$"),
])
def test_failures(reply: Reply, kind: Failure, says: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error = failed(reply)
    assert (error.kind, error.retry_after) == (kind, None)
    assert re.search(says, str(error))
    assert KEY not in caplog.text


DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


@needs_openai
@pytest.mark.parametrize(("headers", "seconds"), [
    ({"retry-after": "7"}, 7), ({"retry-after": "0.5"}, 0.5), ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": DATE}, 30), ({"retry-after": DATE}, 0),
    ({"retry-after": "-3"}, 0), ({"retry-after": "soon"}, None), ({"retry-after": "inf"}, None), ({}, None),
])
@pytest.mark.parametrize(("status", "kind"), [(429, Failure.RATE_LIMIT), (503, Failure.UNAVAILABLE)])
def test_how_long_to_wait(status: int, kind: Failure, headers: dict[str, str], seconds: float | None) -> None:
    error = failed(wire.refusal(status, {"message": "slow down"}, headers))
    assert (error.kind, error.retry_after) == (kind, seconds)


@needs_openai
@pytest.mark.parametrize("reply", [
    Reply((Act.HOLD,), head=False), Reply((Act.HOLD,)), Reply((ROLE, SAID, Act.HOLD)),
], ids=["before the head", "before the first chunk", "between chunks"])
def test_a_silent_server_is_given_up(reply: Reply) -> None:
    error = failed(reply, timeout=0.1)
    assert error.kind is Failure.UNAVAILABLE
    assert "no response for 0.1 s" in str(error)


@needs_openai
async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://me:hunter2@127.0.0.1:{port}/v1?k=v4lue"
    async with aclosing(OpenAIModel("m", base_url=url, api_key=KEY)) as model:
        with pytest.raises(ModelError) as caught:
            await ask(model)
    assert caught.value.kind is Failure.UNAVAILABLE
    assert str(caught.value).startswith(f"http://127.0.0.1:{port}/v1: cannot connect")
    assert not any(secret in repr(model) + repr(caught.value) for secret in ("hunter2", "v4lue", KEY))


PASSWORD = "hünter2+me"
WRITINGS: dict[str, Callable[[bytes], str]] = {
    "as it is": lambda sent: sent.decode(),
    "percent": lambda sent: quote(sent),
    "percent throughout": lambda sent: "".join(f"%{byte:02x}" for byte in sent),
    "Base64": lambda sent: b64encode(sent).decode(),
    "Base64 behind something": lambda sent: b64encode(b"Authorization: " + sent).decode().rstrip("="),
    "Base64 for URLs": lambda sent: urlsafe_b64encode(b"?" + sent).decode(),
    "Base64 twice": lambda sent: b64encode(b64encode(sent)).decode(),
    "Base64 in percent": lambda sent: quote(b64encode(sent)),
    "hex": lambda sent: sent.hex(),
    "HEX:": lambda sent: sent.hex(":").upper(),
    "JSON": lambda sent: "".join(f"\\u{ord(char):04x}" for char in sent.decode()),
    "HTML": lambda sent: "".join(f"&#{ord(char)};" for char in sent.decode()),
    "upper case": lambda sent: sent.decode().upper(),
    "apart": lambda sent: " ".join(sent.decode()),
    "backwards": lambda sent: sent.decode()[::-1],
}


@needs_openai
@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("status", [400, 422, 429, 500])
async def test_a_password_that_the_server_says_back_is_not_shown_in_any_writing(writing: str, status: int) -> None:
    """The client sends `user:password` in Base64, and a server may quote the header it was sent, or what it read."""
    said = WRITINGS[writing](f"user:{PASSWORD}".encode())
    async with Server(wire.refusal(status, {"message": f"go away, {said}, you"})) as server:
        url = server.url.replace("://", f"://user:{quote(PASSWORD)}@")
        async with aclosing(openai_model(server, base_url=url)) as model:
            with pytest.raises(ModelError) as caught:
                await ask(model)
        assert len(server.received) == 1
    shown = str(caught.value)
    assert said not in shown
    assert PASSWORD not in shown
    assert ("***" in shown) == (writing in ("as it is", "percent"))  # percent: the URL has it so


def test_words_without_a_secret_are_shown_and_long_ones_cost_little() -> None:
    secrets = Secrets(["me", PASSWORD, ""])
    for words in ("the model is overloaded, try again in 20 s", "bad request: bWVzc2FnZXMgYXJlIHRvbyBsb25n", "50% off"):
        assert secrets.hide(words) == words
    assert secrets.hide(f"it is {PASSWORD}, is it") == "it is ***, is it"
    assert PASSWORD[:6] not in secrets.hide(PASSWORD * 100_000)
    assert len(secrets.hide("A" * 10_000_000)) <= LOOKED_AT


# --- the OpenAI model: stopping


@needs_openai
@pytest.mark.parametrize(("reply", "heard"), [
    (Reply((Act.HOLD,), head=False), 0), (Reply((Act.HOLD,)), 0), (Reply((ROLE, SAID, Act.HOLD)), 1),
    (Reply((ROLE, SAID, FINISH[:30], Act.HOLD)), 1), (Reply((b"x", Act.HOLD), status=500), 0),
], ids=["before the head", "before the first chunk", "between chunks", "in a chunk", "in a refusal"])
async def test_canceling_the_task_closes_the_connection(reply: Reply, heard: int) -> None:
    async with Server(reply, wire.text("next")) as server, aclosing(openai_model(server)) as model:
        seen: list[Delta] = []

        async def consume() -> None:
            async with aclosing(model.step([user("hi")])) as step:
                async for delta in step:
                    seen.append(delta)

        task = asyncio.create_task(consume())
        await server.holding.wait()
        while len(seen) < heard:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_left(server.received[0])
        assert len(seen) == heard
        assert (await ask(model)).message.text == "next"
        assert [received.connection for received in server.received] == [1, 2]


@needs_openai
async def test_closing_the_generator_closes_the_connection() -> None:
    endless = Reply((ROLE, *[SAID] * 50, Act.HOLD))
    async with Server(endless, endless, wire.text("next")) as server, aclosing(openai_model(server)) as model:
        for number in range(2):
            step = model.step([user("hi")])
            assert await anext(step) == TextDelta("hi")
            await step.aclose()
            await until_left(server.received[number])
        assert (await ask(model)).message.text == "next"


@needs_openai
async def test_a_deadline_around_the_step_closes_the_connection() -> None:
    async with Server(Reply((ROLE, SAID, Act.HOLD))) as server, aclosing(openai_model(server)) as model:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(model), 0.2)
        await until_left(server.received[0])


@needs_openai
async def test_a_step_that_nobody_began_asks_nothing() -> None:
    async with Server() as server, aclosing(openai_model(server)) as model:
        await model.step([user("hi")]).aclose()
        assert server.received == []


@needs_openai
async def test_complete_answers_share_a_connection_and_running_ones_do_not_wait_for_each_other() -> None:
    holding = Reply((ROLE, SAID, Act.HOLD, FINISH, END))
    replies = [wire.text("1"), wire.text("2"), *[holding] * 20, wire.text("3")]
    async with Server(*replies) as server, aclosing(openai_model(server)) as model:
        assert [(await ask(model)).message.text for _ in range(2)] == ["1", "2"]
        assert {received.connection for received in server.received} == {1}
        steps = [asyncio.create_task(ask(model)) for _ in range(20)]
        while len(server.received) < 22:
            await asyncio.sleep(0.01)
        for step in steps[::2]:
            step.cancel()
        server.released.set()
        ends = await asyncio.gather(*steps, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends[::2])
        assert {end.message.text for end in ends[1::2] if isinstance(end, Draft)} == {"hi"}
        assert (await ask(model)).message.text == "3"


@needs_openai
async def test_canceling_at_any_moment_leaves_nothing() -> None:
    """The event loop runs on for n rounds and then the step is canceled, for every n until it is over before that."""
    async with Server() as server, aclosing(openai_model(server)) as model:
        over = False
        for rounds in count():
            server.replies.clear()
            server.replies.append(wire.text("a", "b"))
            task = asyncio.create_task(ask(model))
            for _ in range(rounds):
                await asyncio.sleep(0)
            over = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                assert (await task).message.text == "ab"
            if over:
                break
        assert rounds > 5


# --- the OpenAI model: settings


@needs_openai
async def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(wire.text("hi")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
        monkeypatch.setenv("OPENAI_MODEL", "from-the-environment")
        async with aclosing(OpenAIModel()) as model:
            assert model.name == "from-the-environment"
            assert KEY not in repr(model)
            await ask(model)
        assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.received[0].body["model"] == "from-the-environment"


@needs_openai
async def test_a_server_of_ones_own_needs_no_key() -> None:
    async with Server(wire.text("hi")) as server, aclosing(openai_model(server, api_key="")) as model:
        assert (await ask(model)).message.text == "hi"


@needs_openai
@pytest.mark.parametrize(("settings", "says"), [
    ({"api_key": KEY}, "no model name"),
    ({"name": "m"}, "no API key: set OPENAI_API_KEY"),
    ({"name": "m", "api_key": f"{KEY} {KEY}"}, "stray space"),
    ({"name": "m", "api_key": f"{KEY}é"}, "invalid characters in the API key"),
    ({"name": "m", "api_key": KEY, "base_url": f"localhost:80/{KEY}"}, "invalid base URL"),
    ({"name": "m", "api_key": KEY, "base_url": f"http://u:{KEY}@[::1"}, "invalid base URL"),
    ({"name": "m", "api_key": KEY, "base_url": f"http://u:{KEY}@127.0.0.1:port"}, "invalid base URL"),
])
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        OpenAIModel(**settings)  # type: ignore[arg-type]
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_without_http_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cancelmark.impl.http", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(UsageError, match=r"pip install 'cancelmark\[openai\]'"):
        OpenAIModel("m", api_key=KEY)


# --- the OpenAI model: on the way


@needs_openai
async def test_a_proxy_of_the_environment_passes_requests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(wire.text("hi")) as proxy:
        address = proxy.url.removesuffix("/v1").replace("://", "://me:hunter2@")
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.setenv("no_proxy", "")
        async with aclosing(OpenAIModel("m", base_url="http://model.test:81/v1?k=v", api_key=KEY)) as model:
            assert (await ask(model)).message.text == "hi"
        (received,) = proxy.received
        assert received.path == "http://model.test:81/v1/chat/completions?k=v"
        assert received.headers["host"] == "model.test:81"
        assert received.headers["proxy-authorization"] == f"Basic {b64encode(b'me:hunter2').decode()}"
        monkeypatch.setenv("no_proxy", "model.test")
        async with aclosing(OpenAIModel("m", base_url="http://model.test:81/v1", api_key=KEY)) as model:
            with pytest.raises(ModelError, match="cannot connect"):
                await ask(model)
        assert len(proxy.received) == 1


@needs_openai
async def test_a_proxy_is_asked_to_connect_to_a_server_with_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(wire.refusal(403, {"message": "no"}), Reply((Act.DROP,))) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.removesuffix("/v1"))
        async with aclosing(OpenAIModel("m", base_url="https://model.test/v1", api_key=KEY, timeout=5)) as model:
            for _ in range(2):  # it is refused, and then dropped
                with pytest.raises(ModelError, match="cannot connect"):
                    await ask(model)
        assert [(received.method, received.path) for received in proxy.received] == [
            ("CONNECT", "model.test:443")] * 2
        assert KEY not in str([received.headers for received in proxy.received])


@needs_openai
def test_an_answer_may_be_compressed_though_nobody_asked_for_it() -> None:
    packed = gzip.compress(b"".join(wire.answer({"content": "hi"})))
    reply = Reply(wire.cut(packed, (3, 40)), headers={"content-type": "text/event-stream", "content-encoding": "gzip"})
    draft, _ = answered(reply)
    assert draft.message.text == "hi"
    error = failed(Reply((packed,), headers={"content-encoding": "br"}))
    assert (error.kind, "compressed" in str(error)) == (Failure.BAD_RESPONSE, True)


@needs_openai
@pytest.mark.parametrize("unpacked", [
    lambda n: b"x" * n, lambda n: b"data: [" + b"1," * (n // 2), lambda n: b": nothing\n" * (n // 10),
    lambda n: wire.event(wire.chunk({"content": "x" * 100_000})) * (n // 100_000),
], ids=["line", "chunk", "comments", "text"])
async def test_an_answer_that_unpacks_into_more_than_any_answer_has_is_given_up_and_others_have_their_turn(
        unpacked: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32 << 20
    monkeypatch.setattr(http, "LARGEST", size // 2)
    packed = gzip.compress(unpacked(size), 1)
    turns, sizes = [0], []
    unpack_some = http.Answer._unpack_some

    def noted(self: http.Answer, data: bytes) -> tuple[bytes, bytes]:
        piece, rest = unpack_some(self, data)
        sizes.append((turns[0], len(piece)))
        return piece, rest

    monkeypatch.setattr(http.Answer, "_unpack_some", noted)
    async def tick() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    reply = Reply((packed,), headers={"content-type": "text/event-stream", "content-encoding": "gzip"})
    async with Server(reply) as server, aclosing(openai_model(server)) as model:
        ticking = asyncio.create_task(tick())
        with pytest.raises(ModelError) as failed:
            await ask(model)
        assert failed.value.kind is Failure.BAD_RESPONSE
        ticking.cancel()
    assert len(sizes) > 10
    assert sum(size for _, size in sizes) < size
    assert all(after - before > 0 for (before, _), (after, _) in pairwise(sizes)), "nothing else ran meanwhile"


@needs_openai
async def test_what_comes_after_the_end_of_an_answer_is_not_waited_for() -> None:
    """However much that is."""
    endless = Reply((*wire.answer({"content": "hi"}), *[b": more\n" * 10_000] * 100_000))
    async with Server(endless) as server, aclosing(openai_model(server)) as model:
        assert (await ask(model)).message.text == "hi"
        await server.received[0].left_early.wait()


@needs_openai
async def test_a_fast_server_is_not_read_ahead_of_a_slow_reader() -> None:
    """What waits to be read is bounded, whatever the server sends."""
    long = [wire.event(wire.chunk({"content": "x" * 65_536})) for _ in range(100)]
    async with Server(Reply((*long, FINISH, END))) as server, aclosing(openai_model(server)) as model:
        step = model.step([user("hi")])
        seen = [await anext(step)]
        for _ in range(1000):
            await asyncio.sleep(0)
        (line,) = model._endpoint._busy
        assert line._unread <= http.UNREAD + 2 * 65_536
        seen += [delta async for delta in step]
        assert sum(len(delta.text) for delta in seen if isinstance(delta, TextDelta)) == 100 * 65_536


@needs_openai
async def test_a_connection_is_kept_for_a_while_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE", 0.01)
    async with Server(wire.text("1"), wire.text("2")) as server, aclosing(openai_model(server)) as model:
        await ask(model)
        while model._endpoint._idle:
            await asyncio.sleep(0.01)
        assert (await ask(model)).message.text == "2"
        assert [received.connection for received in server.received] == [1, 2]
