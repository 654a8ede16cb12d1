"""A store that others write to as well: what waits is taken again on what is stored, and a session that is lost is left
alone. One process has its store to itself, so here another is played by the store."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.runtimes import World, calls, fails, tool, until, world
from support.stores import at_once, unfinished

from cancelmark.impl.models import Failure
from cancelmark.impl.models.scripted import ScriptedModel, Wait, say
from cancelmark.impl.runtime import Moved, NoSession, Runtime
from cancelmark.impl.store import (
    EPOCH,
    TERMINAL,
    AcceptPrompt,
    Answer,
    AppendEvent,
    Conflict,
    MemoryStore,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    Steps,
)
from cancelmark.model.lifecycle import Outcome, State

Story = Callable[[World], Awaitable[None]]
Chosen = Callable[[Steps], bool]


class Shared(MemoryStore):
    """Before it takes chosen steps, another process writes to their session, so many times. It then waits until some
    have come through."""

    def __init__(self, chosen: Chosen = lambda steps: True, *others: Operation, times: int = 10**9) -> None:
        super().__init__()
        self.chosen, self.others, self.times = chosen, others, times
        self.conflicts = 0
        self._waits = False

    def _commit_now(self, steps: Steps) -> Answer:
        if steps.version is not None and self.times and not self._waits and self.chosen(steps):
            self.times, self._waits = self.times - 1, True
            others = self.others or [RaiseMark(steps.session_id, 0)]
            super()._commit_now(Steps("", steps.session_id, steps.version, others))
            answer = super()._commit_now(steps)
            assert isinstance(answer, Conflict)
            self.conflicts += 1
            return answer
        self._waits = self._waits and steps.version is None
        return super()._commit_now(steps)


def moves(state: State, outcome: Outcome | None = None) -> Chosen:
    """Steps that bring a prompt there."""
    return lambda steps: any(isinstance(op, MovePrompt) and (op.state, op.outcome) == (state, outcome)
                             for op in steps.operations)


def play(store: MemoryStore, story: Story, **how: Any) -> None:
    async def main() -> None:
        async with world(store, **how) as made:
            await story(made)

    asyncio.run(main())


async def read(arguments: str) -> str:
    return "read"


# --- every action, with a conflict at each commit -------------------------------------------------------------------

async def turns_and_a_queue(w: World) -> None:
    _, gate = await w.active("a", "run-a")
    handles = [await w.accept(name, f"run-{name}") for name in "bc"]
    gate.open()
    for handle in handles:
        assert (await handle).outcome is Outcome.END_TURN


async def a_fold(w: World) -> None:
    w.plays("a", calls("c1"), say("done"))
    first = await w.accept("a", "run-a")
    second = await w.accept("b")
    assert (await first).outcome is Outcome.END_TURN
    assert (await second).outcome is Outcome.FOLDED


async def a_requeue(w: World) -> None:
    w.plays("a", fails(Failure.CONTEXT_TOO_LONG), say("at last"))
    assert (await (await w.accept("a", "run-a"))).text == "at last"


async def a_cancel(w: World) -> None:
    first, _ = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    await w.runtime.cancel("s")
    assert [(await handle).outcome for handle in (first, second)] == [Outcome.CANCELED] * 2
    assert (await (await w.accept("c", "run-c"))).outcome is Outcome.END_TURN


async def a_cancel_before_the_entry(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a", "run-a")
    await w.runtime.cancel("s")
    w.runtime.let_all_in()
    assert (await handle).outcome is Outcome.CANCELED


async def a_cleared_queue(w: World) -> None:
    first, gate = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    await w.runtime.clear_queue("s")
    assert (await second).outcome is Outcome.CANCELED
    gate.open()
    assert (await first).outcome is Outcome.END_TURN


async def a_prompt_that_cannot_start(w: World) -> None:
    async def broken(_: str) -> None:
        raise OSError("no agent")

    w.runtime.ready = broken
    result = await (await w.accept("a", "run-a"))
    assert (result.outcome, result.error) == (Outcome.ERROR, "no agent")


async def a_close(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    await w.runtime.close()
    assert (await handle).outcome is Outcome.CANCELED


STORIES = (turns_and_a_queue, a_fold, a_requeue, a_cancel, a_cancel_before_the_entry, a_cleared_queue,
           a_prompt_that_cannot_start, a_close)


@pytest.mark.parametrize("story", STORIES)
def test_every_action_survives_a_conflict_at_each_commit(story: Story) -> None:
    """What is stored in the end is what a store of one's own would have."""
    stored: list[object] = []
    shared = Shared()
    for store in (MemoryStore(), shared):
        async def told(w: World, store: MemoryStore = store) -> None:
            await story(w)
            if not w.runtime.closing:
                await until(lambda: not w.runtime.is_busy())
            store._open = True  # also what has been closed can be looked at here
            records = [await store.prompt(seq) for seq in range(1, await store.latest_seq() + 1)]
            stored.append(([record and record.outcome for record in records], w.messages(), w.ends()))

        play(store, told, tools=[tool("read", read)] if story is a_fold else [])
    assert shared.conflicts
    assert stored[0] == stored[1]


def test_a_recovery_survives_a_conflict() -> None:
    store = Shared(times=0)

    async def main() -> None:
        await store.write([NewSession("s"), AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.ACTIVE),
                           AcceptPrompt(2, "s", "b", "run-b"), MovePrompt(2, State.QUEUED)])
        store.times = 1
        async with Runtime(ScriptedModel(), store) as runtime:
            await until(lambda: not runtime.is_busy("s"))
            assert [event.payload["outcome"] for event in await store.events()] == ["error", "end_turn"]
        assert store.conflicts

    asyncio.run(main())


# --- what others have written ---------------------------------------------------------------------------------------

def canceled(seq: int, run_id: str) -> tuple[Operation, ...]:
    """Another process ends a prompt."""
    return (MovePrompt(seq, State.DONE, Outcome.CANCELED),
            AppendEvent("s", TERMINAL, {"seq": seq, "outcome": "canceled", "run_id": run_id}, run_id))


def test_a_requeue_that_a_cancel_overtakes_becomes_the_end() -> None:
    store = Shared(moves(State.QUEUED), RaiseMark("s", 1), times=1)

    async def story(w: World) -> None:
        w.plays("a", fails(Failure.CONTEXT_TOO_LONG), say("at last"))
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.CANCELED
        assert w.ends() == [("run-a", "canceled")]
        assert w.messages()[-1] == ("assistant", "canceled")
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN

    play(store, story)
    assert store.conflicts == 1


def test_a_turn_is_stopped_that_another_has_canceled() -> None:
    store = Shared(moves(State.QUEUED), RaiseMark("s", 1), times=1)

    async def story(w: World) -> None:
        first, _ = await w.active("a", "run-a")
        second = await w.accept("b", "run-b")
        assert (await first).outcome is Outcome.CANCELED
        assert (await second).outcome is Outcome.END_TURN, "the cancel came before it"

    play(store, story)
    assert store.conflicts == 1


def test_a_prompt_that_another_has_ended_is_not_ended_again_and_its_caller_is_told() -> None:
    store = Shared(moves(State.DONE, Outcome.END_TURN), *canceled(2, "run-b"), times=1)

    async def story(w: World) -> None:
        first, gate = await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        gate.open()
        assert (await second).outcome is Outcome.CANCELED
        assert (await first).outcome is Outcome.END_TURN
        assert w.ends() == [("run-b", "canceled"), ("run-a", "end_turn")]

    play(store, story)
    assert store.conflicts == 1


def test_an_end_that_another_has_written_is_not_written_again() -> None:
    store = Shared(moves(State.DONE, Outcome.END_TURN), *canceled(1, "run-a"), times=1)

    async def story(w: World) -> None:
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.CANCELED
        assert w.ends() == [("run-a", "canceled")]
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN

    play(store, story)
    assert store.conflicts == 1


def test_a_prompt_that_another_has_accepted_runs_here() -> None:
    store = Shared(moves(State.ACTIVE), AcceptPrompt(77, "s", "theirs", "run-t"), times=1)

    async def story(w: World) -> None:
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.END_TURN
        await until(lambda: not w.runtime.is_busy())
        assert w.ends() == [("run-a", "end_turn"), ("run-t", "end_turn")]

    play(store, story)


def test_a_cancel_that_is_taken_again_does_not_reach_what_was_accepted_since() -> None:
    class Slow(Shared):
        """The first cancel meets a conflict, of which it hears late."""

        def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
            answer = super().begin_commit(steps)
            if self.conflicts == 1 and isinstance(answer.result(), Conflict):
                return asyncio.ensure_future(self._tell_late(answer))
            return answer

        async def _tell_late(self, answer: "asyncio.Future[Answer]") -> Answer:
            await go_on.wait()
            return answer.result()

    store = Slow(lambda steps: any(isinstance(op, RaiseMark) for op in steps.operations), times=1)
    go_on = asyncio.Event()

    async def story(w: World) -> None:
        first, _ = await w.active("a", "run-a")
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await until(lambda: store.conflicts == 1)
        second = await w.accept("b", "run-b")
        go_on.set()
        await canceling
        assert (await first).outcome is Outcome.CANCELED
        assert (await second).outcome is Outcome.END_TURN

    play(store, story)


def test_a_prompt_that_is_being_journaled_is_not_taken_for_anothers() -> None:
    class Slow(Shared):
        """The acceptance of b is stored, and answered late."""

        def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
            answer = super().begin_commit(steps)
            late = steps.operations[0] == AcceptPrompt(2, "s", "b", "run-b")
            return asyncio.ensure_future(self._tell_late(answer)) if late else answer

        async def _tell_late(self, answer: "asyncio.Future[Answer]") -> Answer:
            await go_on.wait()
            return answer.result()

    store = Slow(moves(State.DONE, Outcome.END_TURN), times=1)
    go_on = asyncio.Event()

    async def story(w: World) -> None:
        first, gate = await w.active("a", "run-a")
        accepting = asyncio.ensure_future(w.accept("b", "run-b"))
        await until(lambda: len(at_once(unfinished(store))) == 2)
        gate.open()
        assert (await first).outcome is Outcome.END_TURN
        assert store.conflicts == 1
        go_on.set()
        assert (await (await accepting)).outcome is Outcome.END_TURN
        assert w.ends() == [("run-a", "end_turn"), ("run-b", "end_turn")]

    play(store, story)


# --- a session that is lost -----------------------------------------------------------------------------------------

class Taken(MemoryStore):
    """From the chosen steps on the session belongs to another."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen
        self.lost = False

    def _commit_now(self, steps: Steps) -> Answer:
        mine = steps.session_id == "s" and steps.epoch is not None
        self.lost = self.lost or (mine and self.chosen(steps))
        return super()._commit_now(steps._replace(epoch=EPOCH + 1) if self.lost and mine else steps)


@pytest.mark.parametrize("chosen", [
    pytest.param(moves(State.QUEUED), id="a step"),
    pytest.param(lambda steps: steps.version is None and isinstance(steps.operations[0], PutMessage), id="a message"),
])
def test_a_session_that_is_lost_lets_go_of_its_turns_and_is_forgotten(chosen: Chosen) -> None:
    store = Taken(chosen)

    async def story(w: World) -> None:
        w.plays("a", (*say("half "), Wait("a"), *calls("c1")), say("done"))
        first = await w.accept("a", "run-a")
        await asyncio.sleep(0.01)
        if not store.lost:
            second = await w.accept("b", "run-b")
            with pytest.raises(Moved, match="another server"):
                await second
        with pytest.raises(Moved, match="another server"):
            await first
        with pytest.raises(NoSession):
            await w.accept("c")
        assert w.ends() == []
        assert (await (await w.accept("d", session="t"))).outcome is Outcome.END_TURN, "the others go on"

    play(store, story)
    assert store.lost


# --- what it costs --------------------------------------------------------------------------------------------------

def calls_for_one_more(waiting: int) -> int:
    """Python functions that are called while one more prompt is queued, behind so many."""
    async def main() -> int:
        called = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal called
            called += event == "call"

        async with world(MemoryStore()) as w:
            await w.active("a")
            for number in range(waiting):
                await w.accept(str(number), f"run-{number}")
            sys.setprofile(count)
            try:
                await w.accept("last", "run-last")
            finally:
                sys.setprofile(None)
        return called

    return asyncio.run(main())


def test_a_step_costs_the_same_however_long_the_queue_is() -> None:
    assert calls_for_one_more(10) == calls_for_one_more(500)
