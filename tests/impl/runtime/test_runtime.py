"""The runtime as a whole: turns with tools, folding, summaries, failures, closing, watching, and canceled callers."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.runtimes import OpenStore, World, calls, fails, tool, until, world
from support.servers import PATIENCE
from support.stores import Meddled, at_once, unfinished

from cancelmark.conformance.schedule import explore_schedules
from cancelmark.impl.models import (
    ChatMessage,
    Delta,
    Failure,
    Finish,
    FinishReason,
    ModelError,
    Role,
    TextDelta,
    Tool,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from cancelmark.impl.models.scripted import Beat, Fail, ScriptedModel, Stubborn, Wait, say
from cancelmark.impl.runtime import Closing, Handle, Refusal, Result, RunIdInUse, Runtime, writer
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.runtime.events import Update
from cancelmark.impl.runtime.messages import SUMMARY
from cancelmark.impl.runtime.turn import ToolRunner, Turn
from cancelmark.impl.store import (
    AcceptPrompt,
    AppendEvent,
    Batch,
    CommitAnswer,
    CommitRequest,
    Event,
    MemoryStore,
    MovePrompt,
    NewSession,
    PutMessage,
    SqliteStore,
    StoreError,
)
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY

USER, NORMAL = ("user", None), ("assistant", "end_turn")
TOOL, TOOL_USE = ("tool", None), ("assistant", "tool_use")
CANCELED, ERROR = ("assistant", "canceled"), ("assistant", "error")


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_not_garbage() -> None:
    """Each test collects its own garbage, and need not look at everything that was there before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_errors_in_the_log(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing goes wrong behind the scenes: neither the runtime nor asyncio has an error to tell."""
    yield
    gc.collect()  # a task or a future whose error nobody has seen says so when it is collected
    if "trouble" not in request.fixturenames:
        assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.fixture
def trouble() -> None:
    """Here something is meant to go wrong, and to be told."""


troubled = pytest.mark.usefixtures("trouble")


def results(w: World, session: str = "s") -> list[tuple[str, str, bool]]:
    """The tool results of a session: of which call, what, and whether it is an error."""
    return [(p["data"]["tool_call_id"], p["data"]["content"], p["data"]["is_error"])
            for m in at_once(w.store.messages(session)) for p in m.parts if p["type"] == "tool_result"]


async def read(arguments: str) -> str:
    return f"read {arguments}"


async def burn(arguments: str) -> str:
    raise OSError("no such file")


# --- Turns and tools ------------------------------------------------------------------------------------------------

@pytest.mark.rule("R6a", "R23a")
async def test_a_turn_without_tools_is_a_user_message_and_an_answer(w: World) -> None:
    w.plays("a", say("hello there", chunks=3))
    result = await (await w.accept("a", "run-a"))
    answer = (await w.store.messages("s"))[1]
    assert result == Result("s", "run-a", Outcome.END_TURN, "hello there", answer.id)
    assert (answer.model, answer.provider) == ("scripted", "cancelmark")
    assert w.messages() == [USER, NORMAL]


async def test_tool_calls_are_answered_and_the_model_hears_the_results(open_store: OpenStore) -> None:
    async with world(open_store(), [tool("read", read)]) as w:
        w.plays("a", calls("c1", "c2"), say("done"))
        assert (await (await w.accept("a"))).text == "done"
        assert results(w) == [("c1", 'read {"n": "c1"}', False), ("c2", 'read {"n": "c2"}', False)]
        assert w.messages() == [USER, TOOL_USE, TOOL, TOOL, NORMAL]
        assert [m.role for m in w.requests[1].messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
        assert [t.name for t in w.requests[0].tools] == ["read"]


@pytest.mark.parametrize(("name", "error"), [
    ("read", "OSError: no such file"), ("fly", "unknown tool 'fly'; use an offered one")])
async def test_a_tool_that_fails_or_is_unknown_is_told_to_the_model_as_an_error(name: str, error: str) -> None:
    async with world(MemoryStore(), [tool("read", burn)]) as w:
        w.plays("a", calls("c1", name=name), say("too bad"))
        assert (await (await w.accept("a"))).outcome is Outcome.END_TURN
        assert results(w) == [("c1", error, True)]


@pytest.mark.rule("R23a", "R23b")
async def test_tool_calls_left_open_by_a_cancel_are_closed_with_an_error_result(open_store: OpenStore) -> None:
    started = asyncio.Event()

    async def slow(arguments: str) -> str:
        if "c2" in arguments:
            started.set()
            await asyncio.Event().wait()
        return "quick"

    async with world(open_store(), [tool("read", slow)]) as w:
        w.plays("a", calls("c1", "c2", "c3"))
        handle = await w.accept("a")
        await started.wait()
        await w.runtime.cancel("s")
        assert (await handle).outcome is Outcome.CANCELED
        assert results(w) == [  # what was done before the cancel is not denied
            ("c1", "quick", False), ("c2", "the turn was canceled", True), ("c3", "the turn was canceled", True)]
        assert w.messages()[-2:] == [CANCELED, TOOL]


async def test_an_open_call_is_closed_although_an_earlier_step_used_the_same_id() -> None:
    async with world(MemoryStore(), [tool("read", read)]) as w:
        w.plays("a", calls("c1"), say("done"))
        await (await w.accept("a"))
        w.plays("b", (*calls("c1")[:-1], Wait("b")))
        handle = await w.accept("b")
        await w.model.gate("b").reached()
        await w.runtime.cancel("s")
        await handle
        assert [(id, is_error) for id, _, is_error in results(w)] == [("c1", False), ("c1", True)]


async def test_a_call_that_was_cut_off_is_closed_with_an_error_result() -> None:
    async with world(MemoryStore(), [tool("read", read)]) as w:
        w.plays("a", (ToolCallStart("c1", "read"), Finish(FinishReason.MAX_TOKENS)))
        assert (await (await w.accept("a"))).outcome is Outcome.END_TURN
        assert [(id, is_error) for id, _, is_error in results(w)] == [("c1", True)]
        assert w.messages() == [USER, ("assistant", "max_tokens"), TOOL]


async def test_a_stop_that_the_model_swallows_still_ends_the_turn_before_its_tools(open_store: OpenStore) -> None:
    async with world(open_store(), [tool("read", read)]) as w:
        w.plays("a", (Stubborn((Wait("a"), *calls("c1")[:-1])), Finish(FinishReason.TOOL_USE)))
        handle = await w.accept("a")
        await w.model.gate("a").reached()
        await w.runtime.cancel("s")
        w.model.gate("a").open()
        assert (await handle).outcome is Outcome.CANCELED
        assert results(w) == [("c1", "the turn was canceled", True)]
        assert w.model.calls == 1


class Swallowing(ScriptedModel):
    """A model whose turns call two tools and then answer. At one point of a turn, its stop is swallowed."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.requests_made, self.hears = where, 0, None
        self.reached = asyncio.Event()

    async def swallow(self, where: str) -> None:
        if where == self.where:
            self.reached.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        self.requests_made += 1
        summary = SUMMARIZE in messages[-1].text
        await self.swallow("summary" if summary else "model")
        if self.where == "a model that fails" and not self.reached.is_set():
            await self.swallow("a model that fails")
            raise ModelError(Failure.CONTEXT_TOO_LONG, "too long")
        if summary or messages[-1].role is Role.TOOL:
            yield TextDelta("done")
            yield Finish(FinishReason.END_TURN)
        else:
            for id in ("c1", "c2"):
                yield ToolCallStart(id, id)
                yield ToolCallArguments(id, "{}")
                yield ToolCallEnd(id)
            yield Finish(FinishReason.TOOL_USE)


@pytest.mark.parametrize("where", ["model", "a model that fails", "c1", "c2", "summary", "_conversation", "_take_in",
                                   "_save", "_short_conversation"])
async def test_wherever_a_stop_is_swallowed_the_model_is_not_asked_again(
    where: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Swallowing(where)
    if where == "summary":
        monkeypatch.setattr("cancelmark.impl.runtime.turn.LONGEST", 0)
    if where.startswith("_"):
        go_on = getattr(Turn, where)

        async def slow(turn: Turn, *more: Any) -> Any:
            result = await go_on(turn, *more)
            await model.swallow(where)
            return result

        monkeypatch.setattr(Turn, where, slow)

    async def use(name: str) -> str:
        await model.swallow(name)
        return "used"

    runners = [ToolRunner(Tool(name, "", {}), partial(lambda name, _: use(name), name)) for name in ("c1", "c2")]
    async with asyncio.timeout(PATIENCE), Runtime(model, tools=runners) as runtime:
        await runtime.create_session("s")
        handle = await runtime.accept("s", "a")
        await model.reached.wait()
        asked = model.requests_made
        await runtime.cancel("s")
        assert (await handle).outcome is Outcome.CANCELED
        assert model.requests_made == asked


@pytest.mark.rule("R23b")
async def test_a_cancel_while_the_complete_answer_is_written_lets_the_turn_end_as_it_ended(w: World) -> None:
    handle = await w.accept("a")
    answered = w.runtime.broker.subscribe(0, "s")
    async for notice in answered:
        if isinstance(notice, Update) and "I am the built-in model" in str(notice.payload):
            await w.runtime.cancel("s")
            break
    outcome = (await handle).outcome
    answers = [m for m in w.messages() if m[0] == "assistant"]
    assert answers == [NORMAL if outcome is Outcome.END_TURN else CANCELED]


async def test_what_was_said_before_the_cancel_is_kept(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    await w.runtime.cancel("s")
    assert (await handle).text == "half "
    assert w.end("run-a")["text"] == "half "


# --- Folding --------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R9a", "R9b", "R14d")
async def test_folded_follow_ups_reach_the_models_next_step(open_store: OpenStore) -> None:
    async with world(open_store(), [tool("read", read)]) as w:
        w.plays("a", (Wait("a"), *calls("c1")))
        host = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        guests = [await w.queued("b"), await w.queued("c")]
        kept = await w.queued("d", "run-d")
        w.model.gate("a").open()
        result = await host
        assert [m.text for m in w.requests[1].messages if m.role is Role.USER] == ["a", "b", "c"]
        assert [await guest for guest in guests] == [
            Result("s", None, Outcome.FOLDED, result.text, result.message_id, None)] * 2
        assert (await kept).outcome is Outcome.END_TURN
        assert w.ends() == [("run-a", "end_turn"), ("run-d", "end_turn")]
        assert [(await w.store.transitions(g.seq))[-1].outcome for g in guests] == [Outcome.FOLDED] * 2


async def test_a_folded_prompt_whose_turn_fails_tells_its_error() -> None:
    async with world(MemoryStore(), [tool("read", read)]) as w:
        w.plays("a", (Wait("a"), *calls("c1")))
        w.plays("b", fails())
        host = await w.accept("a")
        await w.model.gate("a").reached()
        guest = await w.queued("b")
        w.model.gate("a").open()
        assert ((await host).outcome, (await guest).outcome) == (Outcome.ERROR, Outcome.FOLDED)
        assert (await guest).error == "the model is down"


class Slow(Meddled, MemoryStore):
    """A store that takes its time for batches that a test has chosen: they wait for `gate`, and tell `reached`."""

    def __init__(self, slow: Callable[[Batch], bool]) -> None:
        super().__init__()
        self.slow, self.gate, self.reached = slow, asyncio.Event(), asyncio.Event()

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        if self.slow(steps.operations):
            self.reached.set()
            await self.gate.wait()
        return await super().commit(steps)


def moves_to(state: State, outcome: Outcome | None = None) -> Callable[[Batch], bool]:
    return lambda batch: any(isinstance(op, MovePrompt) and (op.state, op.outcome) == (state, outcome) for op in batch)


async def test_the_message_of_a_folded_prompt_is_kept_when_a_cancel_comes_while_it_folds() -> None:
    store = Slow(moves_to(State.DONE, Outcome.FOLDED))
    async with world(store, [tool("read", read)]) as w:
        w.plays("a", (Wait("a"), *calls("c1")))
        host = await w.accept("a")
        await w.model.gate("a").reached()
        guest = await w.queued("b")
        w.model.gate("a").open()
        await store.reached.wait()
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await asyncio.sleep(0)
        store.gate.set()
        await canceling
        assert ((await host).outcome, (await guest).outcome) == (Outcome.CANCELED, Outcome.FOLDED)
        assert [m.parts[0]["data"]["text"] for m in await w.store.messages("s") if m.role == "user"] == ["a", "b"]


@pytest.mark.rule("R9a", "R16b")
async def test_a_message_is_folded_in_the_same_batch_as_its_prompt() -> None:
    """Otherwise a crash in between would lose what the user said."""
    batches: list[Batch] = []

    def note(batch: Batch) -> bool:
        batches.append(batch)
        return False

    async with world(Slow(note), [tool("read", read)]) as w:
        w.plays("a", (Wait("a"), *calls("c1")))
        host = await w.accept("a")
        await w.model.gate("a").reached()
        guest = await w.queued("b")
        w.model.gate("a").open()
        await host
        (batch,) = filter(moves_to(State.DONE, Outcome.FOLDED), batches)
        assert [op.message.id for op in batch if isinstance(op, PutMessage)] == [f"p{guest.seq}"]


# --- Failures -------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R11a", "R14c", "R23b")
@pytest.mark.parametrize("failure", [f for f in Failure if f is not Failure.CONTEXT_TOO_LONG])
async def test_a_model_error_ends_the_turn_and_the_queue_goes_on(failure: Failure) -> None:
    async with world(MemoryStore()) as w:
        w.plays("a", (*say("half "), Wait("a"), *fails(failure, "sorry")))
        a = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        b = await w.queued("b", "run-b")
        w.model.gate("a").open()
        result = await a
        assert (result.outcome, result.error, result.text) == (Outcome.ERROR, "sorry", "half ")
        assert (await b).outcome is Outcome.END_TURN
        assert w.messages() == [USER, ERROR, USER, NORMAL]
        assert w.ends() == [("run-a", "error"), ("run-b", "end_turn")]


@pytest.mark.rule("R23a", "R23b")
@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), TimeoutError("late"), StopAsyncIteration(), KeyError(1)])
async def test_an_unexpected_exception_ends_the_turn_with_an_error(error: Exception) -> None:
    async with world(MemoryStore()) as w:
        w.plays("a", (Fail(error),))
        result = await (await w.accept("a", "run-a"))
        assert result.outcome is Outcome.ERROR
        assert result.error
        assert w.messages() == [USER, ERROR]


async def test_a_tool_that_is_canceled_by_nobody_we_know_ends_the_turn_with_an_error() -> None:
    async def canceled(arguments: str) -> str:
        raise asyncio.CancelledError

    async with world(MemoryStore(), [tool("read", canceled)]) as w:
        w.plays("a", calls("c1"))
        result = await (await w.accept("a", "run-a"))
        assert result.outcome is Outcome.ERROR
        assert w.messages()[-2:] == [ERROR, TOOL]


# --- Summaries ------------------------------------------------------------------------------------------------------

TOO_LONG = fails(Failure.CONTEXT_TOO_LONG, "too long")


@pytest.mark.rule("R10a")
async def test_a_turn_that_is_too_long_is_summarized_and_goes_on(w: World) -> None:
    w.plays("a", TOO_LONG, say("went on"))
    w.plays(SUMMARIZE, say("all about a"))
    result = await (await w.accept("a", "run-a"))
    assert (result.outcome, result.text) == (Outcome.END_TURN, "went on")
    assert w.ends() == [("run-a", "end_turn")]
    assert w.messages() == [USER, ERROR, ("system", None), NORMAL]
    went_on = w.requests[-1].messages
    assert [(m.role, m.text) for m in went_on] == [(Role.SYSTEM, SUMMARY + "all about a"), (Role.USER, "a")]
    assert [t.state for t in await w.store.transitions(1)] == [
        State.ACCEPTED, State.ACTIVE, State.QUEUED, State.ACTIVE, State.DONE]


@pytest.mark.rule("R10a", "R10b")
async def test_a_turn_that_goes_on_after_a_summary_comes_before_what_was_queued_meanwhile(w: World) -> None:
    w.plays("a", TOO_LONG, say("went on"))
    w.plays(SUMMARIZE, (Wait("summary"), *say("all about a")))
    a = await w.accept("a", "run-a")
    await w.model.gate("summary").reached()
    b = await w.queued("b", "run-b")
    w.model.gate("summary").open()
    await asyncio.gather(a, b)
    assert w.ends() == [("run-a", "end_turn"), ("run-b", "end_turn")]
    assert (await a).text == "went on"


async def test_a_turn_that_goes_on_after_another_still_answers_its_own_prompt(w: World) -> None:
    """It was accepted later and entered first, so that the other has its turn when it goes back to the queue."""
    w.runtime.holding = True
    await w.accept("a", "A")
    w.runtime.holding = False
    w.plays("b", TOO_LONG, say("at last"))
    w.plays(SUMMARIZE, (Wait("summary"), *say("all about b")))
    handle = await w.accept("b", "B")
    await w.model.gate("summary").reached()
    w.runtime.door("a").set()
    await until(lambda: w.runtime.queued("s") == ["a"])
    w.model.gate("summary").open()
    assert (await handle).text == "at last"
    assert [request.prompt for request in w.requests] == ["b", SUMMARIZE, "a", "b"]


@pytest.mark.rule("R28a")
async def test_a_prompt_that_is_dropped_before_it_goes_on_is_told_of_without_its_summary(w: World) -> None:
    w.runtime.holding = True
    w.holds("a")
    await w.accept("a", "A")
    w.runtime.holding = False
    w.plays("b", TOO_LONG)
    w.plays(SUMMARIZE, (Wait("summary"), *say("all about b")))
    handle = await w.accept("b", "B")
    await w.model.gate("summary").reached()
    w.runtime.door("a").set()
    await until(lambda: w.runtime.queued("s") == ["a"])
    w.model.gate("summary").open()
    await until(lambda: w.runtime.queued("s") == ["b"])
    await w.runtime.clear_queue("s")
    assert (await handle).outcome is Outcome.CANCELED
    assert w.end("B") == {"session_id": "s", "run_id": "B", "outcome": "canceled", "cancelled": True, "seq": 2}


async def test_who_folded_into_a_turn_that_is_folded_itself_is_told(w: World) -> None:
    """c folds into b, which goes back to the queue after a summary and folds into a."""
    w.runtime.holding = True
    await w.accept("a")
    w.runtime.holding = False
    w.plays("b", (Wait("b"), *calls("c1")), say("all of you"))
    b = await w.accept("b")
    await w.model.gate("b").reached()
    c = await w.queued("c")
    w.plays("c", TOO_LONG)
    w.plays(SUMMARIZE, (Wait("summary"), *say("all about b and c")))
    w.model.gate("b").open()
    await w.model.gate("summary").reached()
    w.runtime.door("a").set()
    await until(lambda: w.runtime.queued("s") == ["a"])
    w.model.gate("summary").open()
    assert [(end.outcome, end.text) for end in (await b, await c)] == [(Outcome.FOLDED, "all of you")] * 2


async def test_a_cancel_during_the_summary_ends_the_turn_canceled(w: World) -> None:
    w.plays("a", TOO_LONG, say("went on"))
    w.plays(SUMMARIZE, (Wait("summary"), *say("all about a")))
    handle = await w.accept("a", "run-a")
    await w.model.gate("summary").reached()
    await w.runtime.cancel("s")
    assert (await handle).outcome is Outcome.CANCELED
    assert w.messages() == [USER, CANCELED]
    assert w.ends() == [("run-a", "canceled")]


@pytest.mark.rule("R10c")
async def test_a_cancel_while_the_summary_is_written_ends_the_turn_canceled() -> None:
    store = Slow(lambda batch: any(isinstance(op, PutMessage) and op.message.role == "system" for op in batch))
    async with world(store) as w:
        w.plays("a", TOO_LONG, say("went on"))
        handle = await w.accept("a", "run-a")
        await store.reached.wait()
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await asyncio.sleep(0)
        store.gate.set()
        await canceling
        assert (await handle).outcome is Outcome.CANCELED
        assert w.messages() == [USER, ERROR, ("system", None), CANCELED]
        assert w.model.calls == 2


async def test_a_summary_that_fails_ends_the_turn_with_an_error(w: World) -> None:
    w.plays("a", TOO_LONG)
    w.plays(SUMMARIZE, TOO_LONG)
    result = await (await w.accept("a", "run-a"))
    assert (result.outcome, result.error) == (Outcome.ERROR, "too long (and summarizing the conversation failed)")
    assert w.ends() == [("run-a", "error")]


async def test_after_a_summary_later_prompts_are_told_the_summary_and_what_came_after_it(w: World) -> None:
    w.plays("a", TOO_LONG, say("went on"))
    w.plays(SUMMARIZE, say("all about a"))
    await (await w.accept("a"))
    await (await w.accept("b"))
    assert [m.text for m in w.requests[-1].messages] == [SUMMARY + "all about a", "went on", "b"]


# --- Stubborn turns -------------------------------------------------------------------------------------------------

STUBBORN: tuple[Beat, ...] = (
    *say("half "), Stubborn((Wait("a"), *say("too late"), *calls("c1")[:-1])), Finish(FinishReason.TOOL_USE))


@pytest.mark.rule("R24a", "R24b")
async def test_a_stubborn_turn_is_abandoned_and_its_late_output_goes_nowhere(open_store: OpenStore) -> None:
    used: list[str] = []

    async def use(arguments: str) -> str:
        used.append(arguments)
        return "used"

    async with world(open_store(), [tool("read", use)], grace=0.01) as w:
        w.plays("a", STUBBORN)
        a = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        await w.runtime.cancel("s")
        b = await w.accept("b", "run-b")
        result = await a
        assert (result.outcome, result.text, result.error) == (Outcome.CANCELED, "half ", None)
        assert (await b).outcome is Outcome.END_TURN  # the session does not wait for it
        before = await w.store.messages("s")
        watched = w.runtime.broker.statistics().published
        assert w.messages() == [USER, CANCELED, USER, NORMAL]
        w.model.gate("a").open()
        await until(lambda: w.model.running == 0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert await w.store.messages("s") == before
        assert w.runtime.broker.statistics().published == watched
        assert w.ends() == [("run-a", "canceled"), ("run-b", "end_turn")]
        assert "error" not in w.end("run-a")
        assert (used, w.model.calls) == ([], 2)


@pytest.mark.parametrize("every", [1, 4, 9])
@pytest.mark.rule("R24a")
def test_a_stubborn_turn_has_one_grace_period_whatever_comes_meanwhile(every: int) -> None:
    async def main() -> None:
        async with world(MemoryStore(), grace=10) as w:
            w.plays("a", STUBBORN)
            a = await w.accept("a", "run-a")
            await w.model.gate("a").reached()
            now = asyncio.get_running_loop().time  # virtual
            begin = now()
            while a.result is None:
                await w.runtime.cancel("s")
                await w.accept(f"at {now()}")
                w.runtime.boxes["s"].reconcile_all()  # as after a write of another server
                assert now() - begin <= 10 + every
                await asyncio.sleep(every)

    for schedule in explore_schedules(main, preemptions=0):
        schedule.result()


async def test_the_turn_after_an_abandoned_one_ends_its_own_message() -> None:
    async with world(MemoryStore(), grace=0.01) as w:
        w.plays("a", STUBBORN)
        a = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        await w.runtime.cancel("s")
        await a
        b, _ = await w.active("b", "run-b")
        await w.runtime.cancel("s")
        assert (await b).message_id != (await a).message_id
        assert w.end("run-b")["message_id"] == (await w.store.messages("s"))[-1].id


# --- Closing --------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R15b", "R15c")
async def test_close_ends_everything_in_every_session(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    async with world(SqliteStore(path)) as w:
        active = [(await w.active(text, f"run-{text}", session))[0] for text, session in (("a", "s"), ("b", "t"))]
        queued = [await w.queued("c", "run-c"), await w.queued("d")]
        w.runtime.holding = True
        accepted = await w.accept("e", "run-e", "t")
        closing = asyncio.ensure_future(w.runtime.close())
        await asyncio.gather(*active, *queued)
        assert not closing.done()  # one is still to enter
        w.runtime.door("e").set()
        await closing
        assert {(await handle).outcome for handle in (*active, *queued, accepted)} == {Outcome.CANCELED}
    store = SqliteStore(path)
    assert at_once(unfinished(store)) == []
    assert len(at_once(store.events(terminal=True))) == 5
    store.close()


@pytest.mark.parametrize("deadline", [0, 0.01])
async def test_close_with_a_deadline_abandons_what_does_not_stop(deadline: float, w: World) -> None:
    w.plays("a", STUBBORN)
    handle = await w.accept("a", "run-a")
    await w.model.gate("a").reached()
    await w.runtime.close(deadline)
    assert (await handle).outcome is Outcome.CANCELED


async def test_closing_twice_is_closing_once(w: World) -> None:
    handle, _ = await w.active("a")
    one, two = asyncio.ensure_future(w.runtime.close()), asyncio.ensure_future(w.runtime.close())
    await two
    assert one.done()
    assert (await handle).outcome is Outcome.CANCELED
    await w.runtime.close()


async def test_a_close_whose_caller_is_canceled_goes_on(w: World) -> None:
    handle, _ = await w.active("a")
    closing = asyncio.ensure_future(w.runtime.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert (await handle).outcome is Outcome.CANCELED
    await w.runtime.close()
    with pytest.raises(StoreError, match="closed"):
        await w.store.sessions()


async def test_a_prompt_that_is_being_accepted_when_the_runtime_closes_is_canceled(w: World) -> None:
    first = await w.accept("a")
    await first
    accepting = asyncio.ensure_future(w.accept("b", "run-b"))
    await asyncio.sleep(0)
    await w.runtime.close()
    (handle,) = await asyncio.gather(accepting, return_exceptions=True)
    if isinstance(handle, Handle):
        assert (await handle).outcome is Outcome.CANCELED
    else:
        assert isinstance(handle, Closing)
    assert w.model.calls == 1


async def test_who_cancels_a_session_that_was_made_during_the_close_does_not_wait_for_ever() -> None:
    store = Slow(lambda batch: any(isinstance(op, NewSession) and op.id == "u" for op in batch))
    async with world(store) as w:
        w.plays("a", (Stubborn((Wait("a"),)),))
        await w.accept("a")
        await w.model.gate("a").reached()
        making = asyncio.ensure_future(w.runtime.create_session("u"))
        await store.reached.wait()
        closing = asyncio.ensure_future(w.runtime.close())
        await asyncio.sleep(0)
        store.gate.set()
        await making
        w.model.gate("a").open()
        await closing
        with pytest.raises(Closing):
            async with asyncio.timeout(10):
                await w.runtime.cancel("u")


async def test_a_session_that_is_made_while_the_runtime_closes_does_no_harm() -> None:
    store = Slow(lambda batch: any(isinstance(op, MovePrompt) and op.outcome is Outcome.CANCELED for op in batch))
    async with world(store) as w:
        handle, _ = await w.active("a")
        closing = asyncio.ensure_future(w.runtime.close())
        await store.reached.wait()
        with pytest.raises(Closing):
            await w.runtime.create_session("u")
        store.gate.set()
        await closing
        assert (await handle).outcome is Outcome.CANCELED


async def test_who_watches_sees_the_ends_that_a_close_brings(w: World) -> None:
    subscription = w.runtime.broker.subscribe(0)

    async def watch() -> list[str | None]:
        with subscription:
            await until(lambda: w.runtime.broker.closed)  # a slow reader, who begins when everything is over
            return [n.run_id async for n in subscription if isinstance(n, Event)]

    watching = asyncio.ensure_future(watch())
    await w.active("a", "run-a")
    await w.queued("b", "run-b")
    await w.runtime.close()
    assert sorted(map(str, await watching)) == ["run-a", "run-b"]


@pytest.mark.rule("R25b")
@troubled
async def test_a_close_without_a_working_store_keeps_its_deadline_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store = Failing(lambda batch: any(isinstance(op, MovePrompt) and op.outcome for op in batch))
    async with world(store, grace=0.05) as w:
        handle, _ = await w.active("a")
        await w.runtime.close(0)
        with pytest.raises(Closing, match="restart"):
            await handle
        with pytest.raises(Closing, match="restart"):
            [_ async for _ in handle.events()]
        with pytest.raises(Refusal, match="restart"):
            await w.runtime.cancel("s")
    assert "could not be stored" in caplog.text


# --- Watching -------------------------------------------------------------------------------------------------------

async def test_a_handles_events_are_its_updates_and_at_last_its_terminal_event(w: World) -> None:
    w.plays("a", (Wait("a"), *say("hello there", chunks=4)))
    a = await w.accept("a", "run-a")
    await w.model.gate("a").reached()
    b = await w.queued("b", "run-b")

    async def watch(handle: Handle) -> list[Any]:
        return [notice async for notice in handle.events()]

    watching = [asyncio.ensure_future(watch(handle)) for handle in (a, b)]
    await asyncio.sleep(0)
    w.model.gate("a").open()
    seen_a, seen_b = await asyncio.gather(*watching)
    for seen, run_id in ((seen_a, "run-a"), (seen_b, "run-b")):
        assert {notice.run_id for notice in seen} == {run_id}
        assert [isinstance(notice, Event) for notice in seen] == [False] * (len(seen) - 1) + [True]
    assert "hello there" in str(seen_a[-2].payload)


async def test_the_events_of_a_prompt_that_is_done_are_its_terminal_event(w: World) -> None:
    handle = await w.accept("a", "run-a")
    await handle
    assert [(n.run_id, n.type) async for n in handle.events()] == [("run-a", "run_complete")]


@pytest.mark.rule("R14d")
async def test_the_events_of_a_folded_prompt_end_without_a_terminal_event(w: World) -> None:
    active, gate = await w.active("a", "run-a")
    host = await w.queued("b", "run-b")
    guest = await w.queued("c")
    watching = asyncio.ensure_future(anext(aiter(guest.events()), None))
    gate.open()
    assert await watching is None
    assert (await guest).outcome is Outcome.FOLDED
    await asyncio.gather(active, host)


async def test_releasing_a_handle_ends_its_events_and_nothing_else(w: World) -> None:
    handle, gate = await w.active("a", "run-a")
    watching = asyncio.ensure_future(anext(aiter(handle.events()), None))
    await asyncio.sleep(0)
    handle.release()
    assert await watching is None
    gate.open()
    assert (await handle).outcome is Outcome.END_TURN
    assert w.runtime.broker.statistics().subscriptions == 0


@pytest.mark.rule("R26")
async def test_dropping_a_handle_or_canceling_who_waits_for_it_does_not_touch_the_run(w: World) -> None:
    handle, gate = await w.active("a", "run-a")

    async def wait(handle: Handle) -> None:
        await handle

    waiting = asyncio.ensure_future(wait(handle))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del handle
    gate.open()
    await until(lambda: w.ends() == [("run-a", "end_turn")])


async def test_status_queue_and_busy_tell_where_a_prompt_is(w: World) -> None:
    assert (w.runtime.is_busy("s"), w.runtime.queued("s"), await w.runtime.status("run-b")) == (False, [], None)
    a, gate = await w.active("a", "run-a")
    b = await w.queued("b", "run-b")
    c = await w.queued("c", "run-c")
    assert (w.runtime.is_busy("s"), w.runtime.is_busy("t")) == (True, False)
    assert w.runtime.queued("s") == ["b", "c"]
    await w.runtime.clear_queue("s")
    assert [(await handle).outcome for handle in (b, c)] == [Outcome.CANCELED] * 2
    assert (w.runtime.is_busy("s"), w.runtime.queued("s")) == (True, [])
    gate.open()
    await a
    assert not w.runtime.is_busy("s")
    found = [await w.runtime.status(run_id) for run_id in ("run-a", "run-b")]
    assert [p and p.outcome for p in found] == [Outcome.END_TURN, Outcome.CANCELED]


async def test_a_session_is_busy_until_the_end_is_published(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    canceling = asyncio.ensure_future(w.runtime.cancel("s"))
    while w.runtime.is_busy("s"):
        await asyncio.sleep(0)
    assert w.ends() == [("run-a", "canceled")]
    await asyncio.gather(canceling, handle)


# --- A store that fails for a while ---------------------------------------------------------------------------------

class Failing(MemoryStore):
    """A store that fails to write batches that a test has chosen."""

    def __init__(self, fails: Callable[[Batch], bool]) -> None:
        super().__init__()
        self.fails, self.failures = fails, 0

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        if self.fails(steps.operations):
            self.failures += 1
            raise StoreError("memory", "the disk is full", "make room")
        return super()._commit_now(steps)


class Suspending(Meddled, MemoryStore):
    """A store that takes a while for every batch, in which anything can happen."""

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().commit(steps)


def times(n: int, chosen: Callable[[Batch], bool]) -> Callable[[Batch], bool]:
    """The first n of the chosen batches."""
    left = iter(range(n))
    return lambda batch: chosen(batch) and next(left, None) is not None


@pytest.mark.rule("R25a")
@troubled
@pytest.mark.parametrize("kind", [MovePrompt, PutMessage, AppendEvent])
async def test_a_store_that_fails_for_a_while_loses_nothing(kind: type) -> None:
    store = Failing(times(2, lambda batch: any(isinstance(op, kind) for op in batch) and not any(
        isinstance(op, AcceptPrompt) for op in batch)))  # which would be refused
    async with world(store) as w:
        a, gate = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        gate.open()
        assert [(await handle).outcome for handle in (a, b)] == [Outcome.END_TURN] * 2
        assert w.ends() == [("run-a", "end_turn"), ("run-b", "end_turn")]
        assert w.messages() == [USER, NORMAL, USER, NORMAL]
        assert store.failures == 2


@pytest.mark.rule("R16c", "R25a")
@troubled
async def test_a_cancel_that_cannot_be_written_is_not_acknowledged_until_it_is() -> None:
    store = Failing(times(2, moves_to(State.DONE, Outcome.CANCELED)))
    async with world(store) as w:
        a, _ = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        await w.runtime.cancel("s")
        assert store.failures == 2
        assert [(await handle).outcome for handle in (a, b)] == [Outcome.CANCELED] * 2


@pytest.mark.rule("R16c")
async def test_a_turn_that_lets_go_at_once_ends_in_the_commit_of_the_cancel(tmp_path: Path) -> None:
    async with world(SqliteStore(tmp_path / "one.db")) as w:
        assert isinstance(w.store, SqliteStore)
        a, _ = await w.active("a", "run-a")
        before = w.store.statistics().commits
        await w.runtime.cancel("s")
        assert (await a).outcome is Outcome.CANCELED
        assert w.store.statistics().commits == before + 1


@pytest.mark.rule("R1c")
async def test_a_prompt_that_cannot_be_journaled_is_not_accepted() -> None:
    store = Failing(times(1, lambda batch: isinstance(batch[0], AcceptPrompt)))
    async with world(store) as w:
        with pytest.raises(StoreError, match="disk is full"):
            await w.accept("a", "run-a")
        assert w.states() == []
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.END_TURN


async def test_a_session_that_cannot_be_made_is_not_there() -> None:
    store = Failing(times(1, lambda batch: isinstance(batch[0], NewSession) and batch[0].id == "u"))
    async with world(store) as w:
        with pytest.raises(StoreError, match="disk is full"):
            await w.runtime.create_session("u")
        with pytest.raises(Refusal, match="no session u"):
            await w.accept("a", session="u")
        await w.runtime.create_session("u")
        assert (await (await w.accept("a", session="u"))).outcome is Outcome.END_TURN


async def test_two_callers_who_make_the_same_session_at_once_both_have_it() -> None:
    async with world(Suspending()) as w:
        await asyncio.gather(*(w.runtime.create_session("u") for _ in range(2)))
        assert (await (await w.accept("a", session="u"))).outcome is Outcome.END_TURN
        assert [s.id for s in await w.store.sessions()] == ["s", "t", "u"]


@pytest.mark.rule("R24b")
@troubled
async def test_an_abandoned_turns_write_is_not_tried_again_over_its_ending() -> None:
    store = Failing(times(1, lambda batch: any(
        isinstance(op, PutMessage) and (op.message.role, op.message.finish_reason) == ("assistant", None)
        for op in batch)))
    async with world(store, grace=0.01) as w:
        handle, _ = await w.active("a", "run-a")
        await until(lambda: store.failures == 1)
        await w.runtime.cancel("s")
        assert (await handle).outcome is Outcome.CANCELED
        assert w.messages() == [USER, CANCELED]
        await asyncio.sleep(2 * writer.PATIENCE[0])
        await until(lambda: not w.runtime.left)  # the turn has given up, or has made a second attempt
        assert w.messages() == [USER, CANCELED]


async def test_a_prompt_that_is_answered_at_once_takes_two_commits(tmp_path: Path) -> None:
    """Its acceptance with its start, and its end with the answer: an answer that takes a while is written once more."""
    store = SqliteStore(tmp_path / "test.db")
    async with world(store) as w:
        for number in range(3):
            before = store.statistics()
            await (await w.accept("a", f"run-{number}"))
            after = store.statistics()
            assert (after.commits - before.commits, after.batches - before.batches) == (2, 2)
        handle, gate = await w.active("b")
        await until(lambda: w.messages()[-1] == ("assistant", None))
        gate.open()
        await handle
        assert store.statistics().commits == after.commits + 3


async def test_an_answer_that_is_begun_has_its_place_before_what_comes_later() -> None:
    """Also if nothing of it was written when another prompt is canceled before it has entered."""
    async with world(MemoryStore(), protocol=FAMILY) as w:
        active, gate = await w.active("a")
        w.runtime.holding = True
        dropped = await w.accept("b")
        await w.runtime.revoke("s", dropped.seq)
        w.runtime.let_all_in()
        assert (await dropped).outcome is Outcome.CANCELED
        assert w.messages() == [USER, ("assistant", None), USER, CANCELED]
        gate.open()
        await active
        assert w.messages() == [USER, ("assistant", "end_turn"), USER, CANCELED]


# --- Canceled callers -----------------------------------------------------------------------------------------------

Act = Callable[[World], Awaitable[object]]


async def cancel_at(point: int, work: Awaitable[object]) -> bool:
    """Cancels the work when it has suspended so often. False if it was over before."""
    task = asyncio.ensure_future(work)
    for _ in range(point):
        await asyncio.sleep(0)
    late = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return not late


CALLERS: dict[str, Act] = {
    "accept": lambda w: w.accept("b", "run-b"),
    "cancel": lambda w: w.runtime.cancel("s"),
    "clear_queue": lambda w: w.runtime.clear_queue("s"),
    "create_session": lambda w: w.runtime.create_session("u"),
}


@pytest.mark.parametrize("name", CALLERS)
def test_a_caller_may_be_canceled_at_any_point(name: str) -> None:
    async def story(w: World, point: int) -> bool:
        a, gate = await w.active("a", "run-a")
        c = await w.queued("c", "run-c")
        cut = await cancel_at(point, CALLERS[name](w))
        gate.open()
        for handle in (a, c):
            await handle
        await until(lambda: not w.runtime.is_busy("s"))
        accepted = await w.runtime.status("run-b") is not None
        assert len(w.ends()) == 2 + accepted
        if accepted:
            with pytest.raises(RunIdInUse):
                await w.accept("b", "run-b")
        else:
            await (await w.accept("b", "run-b"))
        await w.runtime.create_session("u")
        assert (await (await w.accept("d", "run-d", "u"))).outcome is Outcome.END_TURN
        return cut

    async def main(point: int) -> bool:
        async with world(Suspending()) as w:
            return await story(w, point)

    point = 0
    while asyncio.run(main(point)):
        point += 1
    assert point > 3


@pytest.mark.rule("R1c", "R22a")
async def test_a_refusal_leaves_nothing_behind(w: World) -> None:
    attempts = await asyncio.gather(*(w.accept("a", "run-a") for _ in range(3)), return_exceptions=True)
    handles = [handle for handle in attempts if isinstance(handle, Handle)]
    assert [type(other) for other in attempts if other not in handles] == [RunIdInUse] * 2
    assert all(isinstance(other, Refusal) for other in attempts if other not in handles)
    assert (await handles[0]).outcome is Outcome.END_TURN
    assert w.ends() == [("run-a", "end_turn")]


@pytest.mark.parametrize(("text", "run_id"), [("\ud83d", None), ("hello", "\udc00")], ids=["text", "run id"])
async def test_what_cannot_be_stored_is_refused_and_nothing_is_accepted(
    open_store: OpenStore, text: str, run_id: str | None,
) -> None:
    async with Runtime(ScriptedModel(), open_store()) as runtime:
        await runtime.create_session("s")
        with pytest.raises(Refusal, match="half a character"):
            await runtime.accept("s", text, run_id)
        assert not (await unfinished(runtime.store))
        assert (await (await runtime.accept("s", "hello"))).outcome is Outcome.END_TURN
