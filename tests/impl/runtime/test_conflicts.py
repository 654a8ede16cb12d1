"""A store that others write to as well: what waits is taken again on what is stored, and a session that is lost is left
alone. One process has its store to itself, so here another is played by the store."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from support.runtimes import World, at_once_ready, calls, fails, tool, until, world

from cancelmark.impl import wire
from cancelmark.impl.models import Failure
from cancelmark.impl.models.scripted import ScriptedModel, Wait, say
from cancelmark.impl.runtime import Moved, NoSession, RunIdInUse, Runtime
from cancelmark.impl.runtime.refusals import Busy, OtherVersion, PromptRefusal, Refusal, TooLate
from cancelmark.impl.store import (
    EPOCH,
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    ChangePrompt,
    CommitAnswer,
    CommitRequest,
    Conflict,
    HoldSession,
    MemoryStore,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
    make_digest,
)
from cancelmark.model.actions import Argument, Port, cancel
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State, Trigger
from cancelmark.model.protocol import FAMILY, REFERENCE
from cancelmark.model.session import Traits

Story = Callable[[World], Awaitable[None]]
Chosen = Callable[[CommitRequest], bool]


class Shared(MemoryStore):
    """Before it takes chosen steps, another process writes to their session, so many times. It then waits until some
    have come through."""

    def __init__(self, chosen: Chosen = lambda steps: True, *others: Operation, times: int = 10**9) -> None:
        super().__init__()
        self.chosen, self.others, self.times = chosen, others, times
        self.conflicts = 0
        self._waits = False

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        if steps.version is not None and self.times and not self._waits and self.chosen(steps):
            self.times, self._waits = self.times - 1, True
            others = self.others or [RaiseMark(steps.session_id, 0)]
            super()._commit_now(CommitRequest("", steps.session_id, steps.version, others))
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


def has(kind: type, **fields: object) -> Chosen:
    """A request with such an operation."""
    return lambda steps: any(isinstance(op, kind) and all(getattr(op, name) == value for name, value in fields.items())
                             for op in steps.operations)


Calling = Callable[[Runtime], Awaitable[object]]

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


# --- and of the family

async def a_revoke_of_what_runs(w: World) -> None:
    first, _ = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    assert (await w.runtime.revoke("s", "run-a")).effect == "asked"
    assert [(await handle).outcome for handle in (first, second)] == [Outcome.CANCELED, Outcome.END_TURN]


async def a_revoke_of_what_waits(w: World) -> None:
    first, gate = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    w.runtime.holding = True
    third = await w.accept("c", "run-c")
    assert (await w.runtime.revoke("s", second.seq)).effect == "canceled"
    assert (await w.runtime.revoke("s", third.seq)).effect == "canceled"
    w.runtime.let_all_in()
    gate.open()
    outcomes = [(await handle).outcome for handle in (first, second, third)]
    assert outcomes == [Outcome.END_TURN, Outcome.CANCELED, Outcome.CANCELED]


async def a_stop(w: World) -> None:
    first, _ = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    assert (await w.runtime.stop("s")).stopped == first.seq
    assert [(await handle).outcome for handle in (first, second)] == [Outcome.CANCELED, Outcome.END_TURN]


async def a_stop_before_the_entry(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a", "run-a")
    assert (await w.runtime.stop("s")).stopped == handle.seq
    w.runtime.let_all_in()
    assert (await handle).outcome is Outcome.CANCELED


async def a_stop_that_holds(w: World) -> None:
    first, _ = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    assert (await w.runtime.stop("s", hold=True)).held
    assert (await first).outcome is Outcome.CANCELED
    assert w.states() == [State.QUEUED]
    assert not (await w.runtime.resume("s")).held
    assert (await second).outcome is Outcome.END_TURN


async def a_hold_and_a_resume(w: World) -> None:
    assert (await w.runtime.hold("s")).held
    handle = await w.queued("a", "run-a")
    assert w.runtime.is_held("s")
    await w.runtime.resume("s")
    assert (await handle).outcome is Outcome.END_TURN
    assert not w.runtime.is_held("s")


async def a_new_text(w: World) -> None:
    _, gate = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    w.plays("another", say("heard it"))
    assert (await w.runtime.replace("s", "run-b", "another")).version == 1
    gate.open()
    assert (await second).text == "heard it"


async def a_place_at_the_front(w: World) -> None:
    _, gate = await w.active("a", "run-a")
    handles = [await w.queued(name, f"run-{name}") for name in "bc"]
    await w.runtime.next("s", "run-c")
    gate.open()
    for handle in handles:
        await handle
    assert [run_id for run_id, _ in w.ends()] == ["run-a", "run-c", "run-b"]


async def an_interrupt(w: World) -> None:
    first, _ = await w.active("a", "run-a")
    second = await w.queued("b", "run-b")
    third = await w.runtime.accept("s", "c", "run-c", (), Feature.INTERRUPT)
    assert [(await handle).outcome for handle in (first, third, second)] == [
        Outcome.CANCELED, Outcome.END_TURN, Outcome.END_TURN]
    assert [run_id for run_id, _ in w.ends()] == ["run-a", "run-c", "run-b"]


async def a_prompt_only_if_idle(w: World) -> None:
    assert (await (await w.runtime.accept("s", "a", "run-a", (), Feature.REJECT))).outcome is Outcome.END_TURN
    second, gate = await w.active("b", "run-b")
    with pytest.raises(Busy):
        await w.runtime.accept("s", "c", "run-c", (), Feature.REJECT)
    gate.open()
    assert (await second).outcome is Outcome.END_TURN


FAMILY_STORIES = (a_revoke_of_what_runs, a_revoke_of_what_waits, a_stop, a_stop_before_the_entry, a_stop_that_holds,
                  a_hold_and_a_resume, a_new_text, a_place_at_the_front, an_interrupt, a_prompt_only_if_idle)


@pytest.mark.parametrize("story", [*STORIES, *FAMILY_STORIES])
async def test_every_action_survives_a_conflict_at_each_commit(story: Story) -> None:
    """What is stored in the end is what a store of one's own would have."""
    stored: list[object] = []
    shared = Shared()
    for store in (MemoryStore(), shared):
        async with world(store, tools=[tool("read", read)] if story is a_fold else [],
                         protocol=FAMILY if story in FAMILY_STORIES else REFERENCE) as w:
            await story(w)
            if not w.runtime.closing:
                await until(lambda: not w.runtime.is_busy())
            store._open = True  # also what has been closed can be looked at here
            records = [await store.prompt(seq) for seq in range(1, await store.latest_seq() + 1)]
            stored.append(([record and (record.outcome, record.text, record.traits) for record in records],
                           w.messages(), w.ends(), [known.held for known in await store.load_all()]))
    assert shared.conflicts
    assert stored[0] == stored[1]


async def test_a_recovery_survives_a_conflict() -> None:
    store = Shared(times=0)
    await store.write([NewSession("s"), AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.ACTIVE),
                       AcceptPrompt(2, "s", "b", "run-b"), MovePrompt(2, State.QUEUED)])
    store.times = 1
    async with Runtime(ScriptedModel(), store) as runtime:
        await until(lambda: not runtime.is_busy("s"))
        assert [event.payload["outcome"] for event in await store.events()] == ["error", "end_turn"]
    assert store.conflicts


# --- what others have written ---------------------------------------------------------------------------------------

def canceled(seq: int, run_id: str) -> tuple[Operation, ...]:
    """Another process ends a prompt."""
    return (MovePrompt(seq, State.DONE, Outcome.CANCELED),
            AppendEvent("s", TERMINAL, {"seq": seq, "outcome": "canceled", "run_id": run_id}, run_id))


async def test_a_requeue_that_a_cancel_overtakes_becomes_the_end() -> None:
    store = Shared(moves(State.QUEUED), RaiseMark("s", 1), times=1)
    async with world(store) as w:
        w.plays("a", fails(Failure.CONTEXT_TOO_LONG), say("at last"))
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.CANCELED
        assert w.ends() == [("run-a", "canceled")]
        assert w.messages()[-1] == ("assistant", "canceled")
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN
    assert store.conflicts == 1


async def test_a_turn_is_stopped_that_another_has_canceled() -> None:
    store = Shared(moves(State.QUEUED), RaiseMark("s", 1), times=1)
    async with world(store) as w:
        first, _ = await w.active("a", "run-a")
        second = await w.accept("b", "run-b")
        assert (await first).outcome is Outcome.CANCELED
        assert (await second).outcome is Outcome.END_TURN, "the cancel came before it"
    assert store.conflicts == 1


async def test_a_prompt_that_another_has_ended_is_not_ended_again_and_its_caller_is_told() -> None:
    store = Shared(moves(State.DONE, Outcome.END_TURN), *canceled(2, "run-b"), times=1)
    async with world(store) as w:
        first, gate = await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        gate.open()
        assert (await second).outcome is Outcome.CANCELED
        assert (await first).outcome is Outcome.END_TURN
        assert w.ends() == [("run-b", "canceled"), ("run-a", "end_turn")]
    assert store.conflicts == 1


async def test_an_end_that_another_has_written_is_not_written_again() -> None:
    store = Shared(moves(State.DONE, Outcome.END_TURN), *canceled(1, "run-a"), times=1)
    async with world(store) as w:
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.CANCELED
        assert w.ends() == [("run-a", "canceled")]
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN
    assert store.conflicts == 1


async def test_a_prompt_that_another_has_accepted_runs_here() -> None:
    store = Shared(moves(State.ACTIVE), AcceptPrompt(77, "s", "theirs", "run-t"), times=1)
    async with world(store) as w:
        assert (await (await w.accept("a", "run-a"))).outcome is Outcome.END_TURN
        await until(lambda: not w.runtime.is_busy())
        assert w.ends() == [("run-a", "end_turn"), ("run-t", "end_turn")]


async def test_a_cancel_that_is_taken_again_does_not_reach_what_was_accepted_since() -> None:
    class Slow(Shared):
        """The first cancel meets a conflict, of which it hears late."""

        def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
            answer = super().begin_commit(steps)
            if self.conflicts == 1 and isinstance(answer.result(), Conflict):
                return asyncio.ensure_future(self._tell_late(answer))
            return answer

        async def _tell_late(self, answer: "asyncio.Future[CommitAnswer]") -> CommitAnswer:
            await go_on.wait()
            return answer.result()

    store = Slow(lambda steps: any(isinstance(op, RaiseMark) for op in steps.operations), times=1)
    go_on = asyncio.Event()
    async with world(store) as w:
        first, _ = await w.active("a", "run-a")
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await until(lambda: store.conflicts == 1)
        accepting = asyncio.ensure_future(w.accept("b", "run-b"))
        await asyncio.sleep(0)
        go_on.set()
        await canceling
        assert (await first).outcome is Outcome.CANCELED
        assert (await (await accepting)).outcome is Outcome.END_TURN


REVOKED = Traits(revoked=True)
FAMILY_MEANWHILE: dict[str, tuple[Chosen, tuple[Operation, ...], Calling, list[tuple[str, str]]]] = {
    "a revoke of a prompt that another has ended": (
        moves(State.DONE, Outcome.CANCELED), canceled(2, "run-b"), lambda runtime: runtime.revoke("s", 2),
        [("run-b", "canceled"), ("run-a", "end_turn"), ("run-c", "end_turn")]),
    "a stop where another has stopped": (
        has(ChangePrompt), (ChangePrompt(1, REVOKED),), lambda runtime: runtime.stop("s"),
        [("run-a", "canceled"), ("run-b", "end_turn"), ("run-c", "end_turn")]),
    "a new text for a prompt that another has ended": (
        has(ReplaceText), canceled(2, "run-b"), lambda runtime: runtime.replace("s", 2, "another"),
        [("run-b", "canceled"), ("run-a", "end_turn"), ("run-c", "end_turn")]),
    "a place for a prompt that another has ended": (
        has(ChangePrompt), canceled(3, "run-c"), lambda runtime: runtime.next("s", 3),
        [("run-c", "canceled"), ("run-a", "end_turn"), ("run-b", "end_turn")]),
    "a place where another has given one": (
        has(ChangePrompt), (ChangePrompt(2, Traits(front=7)),), lambda runtime: runtime.next("s", 3),
        [("run-a", "end_turn"), ("run-c", "end_turn"), ("run-b", "end_turn")]),
}


@pytest.mark.parametrize("case", FAMILY_MEANWHILE)
async def test_a_call_of_the_family_is_taken_again_on_what_others_have_written(case: str) -> None:
    chosen, others, make, ends = FAMILY_MEANWHILE[case]
    store = Shared(chosen, *others, times=1)
    async with world(store, protocol=FAMILY) as w:
        _, gate = await w.active("a", "run-a")
        for name in "bc":
            await w.queued(name, f"run-{name}")
        with suppress(TooLate):
            await make(w.runtime)
        gate.open()
        await until(lambda: not w.runtime.is_busy())
        assert w.ends() == ends
    assert store.conflicts == 1


@pytest.mark.parametrize("hold", [False, True])
async def test_a_stop_that_is_taken_again_reaches_nobody_else(hold: bool) -> None:
    """Another process has ended what ran and started the next, whom nobody has asked to stop."""
    store = Shared(has(ChangePrompt, seq=1), *canceled(1, "run-a"), MovePrompt(2, State.ACTIVE), times=1)
    async with world(store, protocol=FAMILY) as w:
        await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        assert (await w.runtime.stop("s", hold=hold)).stopped == 1
        assert (await second).outcome is Outcome.END_TURN
        assert w.runtime.is_held("s") is hold
        assert w.ends() == [("run-a", "canceled"), ("run-b", "end_turn")]
    assert store.conflicts == 1


REVOKED_INTERRUPT = ChangePrompt(2, Traits(revoked=True, front=1, urgent=True))
KEPT_OUT: dict[str, tuple[Operation, list[tuple[str, str]]]] = {
    "revoked": (REVOKED_INTERRUPT, [("run-b", "canceled"), ("run-a", "end_turn")]),
    "held": (HoldSession("s", held=True), [("run-a", "end_turn"), ("run-b", "end_turn")]),
}


@pytest.mark.rule("R12d")
@pytest.mark.parametrize("case", KEPT_OUT)
async def test_an_interrupt_that_others_keep_out_stops_nobody(case: str) -> None:
    """Its entry has not stopped what runs before that was written."""
    written, ends = KEPT_OUT[case]
    store = Shared(has(ChangePrompt, seq=1), written, times=1)
    async with world(store, protocol=FAMILY) as w:
        _, gate = await w.active("a", "run-a")
        w.runtime.ready = at_once_ready  # it enters after it was accepted
        await w.runtime.accept("s", "b", "run-b", (), Feature.INTERRUPT)
        await until(lambda: store.conflicts == 1)
        await until(lambda: w.states()[1:] in ([], [State.QUEUED]))
        gate.open()
        await until(lambda: ("run-a", "end_turn") in w.ends())
        await w.runtime.resume("s")
        await until(lambda: not w.runtime.is_busy())
        assert w.ends() == ends
    assert store.conflicts == 1


@pytest.mark.rule("R10c")
@pytest.mark.parametrize("others", [(), (REVOKED_INTERRUPT,)], ids=["stopped", "not stopped"])
async def test_a_turn_that_must_go_on_waits_until_it_is_known_whether_an_interrupt_stops_it(
    others: tuple[Operation, ...],
) -> None:
    """The entry of the interrupt meets a conflict, of which it hears when the turn is summarized."""
    class Slow(Shared):
        def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
            before = self.conflicts
            answer = super().begin_commit(steps)
            return asyncio.ensure_future(self._tell_late(answer)) if self.conflicts > before else answer

        async def _tell_late(self, answer: "asyncio.Future[CommitAnswer]") -> CommitAnswer:
            await go_on.wait()
            return answer.result()

    store = Slow(has(ChangePrompt, seq=1), *others, times=1)
    go_on = asyncio.Event()
    async with world(store, protocol=FAMILY) as w:
        w.plays("a", (Wait("a"), *fails(Failure.CONTEXT_TOO_LONG)), say("at last"))
        first = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        w.runtime.ready = at_once_ready  # it enters after it was accepted
        second = asyncio.ensure_future(w.runtime.accept("s", "b", "run-b", (), Feature.INTERRUPT))
        await until(lambda: store.conflicts == 1)
        entries = w.runtime.boxes["s"].entries
        waiting = len(entries)
        w.model.gate("a").open()
        await until(lambda: len(entries) > waiting)  # the turn has its summary
        go_on.set()
        assert (await first).outcome is (Outcome.END_TURN if others else Outcome.CANCELED)
        assert (await (await second)).outcome is (Outcome.CANCELED if others else Outcome.END_TURN)
        assert others == () or w.messages()[-1] == ("assistant", "end_turn")
    assert store.conflicts == 1


async def test_a_hold_that_another_has_made_is_kept() -> None:
    store = Shared(moves(State.DONE, Outcome.END_TURN), HoldSession("s", held=True), times=1)
    async with world(store, protocol=FAMILY) as w:
        first, gate = await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        gate.open()
        assert (await first).outcome is Outcome.END_TURN
        assert w.states() == [State.QUEUED], "the turn has ended in a session that is held by now"
        await w.runtime.resume("s")
        assert (await second).outcome is Outcome.END_TURN
    assert store.conflicts == 1


# --- what a caller is told is what was committed

def after_a_hold(make: Calling) -> Calling:
    """The call comes while a hold is being committed, and changes nothing at first: what it is told waits for that."""
    async def call(runtime: Runtime) -> object:
        holding = asyncio.ensure_future(runtime.hold("s"))
        await asyncio.sleep(0)
        try:
            return await make(runtime)
        finally:
            await holding

    return call


Told = tuple[Chosen, tuple[Operation, ...], Calling, object]
ANOTHER = (ChangePrompt(2, Traits(version=1)), ReplaceText(2, "theirs", make_digest("b", ())))
TOLD: dict[str, Told] = {
    "a revoke of a prompt that another has ended": (
        moves(State.DONE, Outcome.CANCELED), (MovePrompt(2, State.DONE, Outcome.END_TURN),),
        lambda runtime: runtime.revoke("s", 2), ("none", "done", "end_turn")),
    "a revoke of a prompt that another has revoked": (
        moves(State.DONE, Outcome.CANCELED), canceled(2, "run-b"),
        lambda runtime: runtime.revoke("s", 2), ("none", "done", "canceled")),
    "a revoke of a prompt that another has started": (
        moves(State.DONE, Outcome.CANCELED), (*canceled(1, "run-a"), MovePrompt(2, State.ACTIVE)),
        lambda runtime: runtime.revoke("s", 2), ("asked", "active", "")),
    "a stop where another has held": (
        has(ChangePrompt), (HoldSession("s", held=True),), lambda runtime: runtime.stop("s"), (1, True)),
    "a stop of one who is in front by now": (
        has(HoldSession), (*canceled(1, "run-a"), MovePrompt(2, State.ACTIVE)),
        after_a_hold(lambda runtime: runtime.stop("s", seq=2)), (2, True)),
    "a hold where another has held": (
        has(HoldSession), (HoldSession("s", held=True),), lambda runtime: runtime.hold("s"), (True,)),
    "a new text where another has given one": (
        has(ReplaceText), ANOTHER, lambda runtime: runtime.replace("s", 2, "mine"), (2, 2)),
    "the new text that another has given": (
        has(ReplaceText), ANOTHER, lambda runtime: runtime.replace("s", 2, "theirs"), (2, 1)),
    "a new text for a version that another has replaced": (
        has(ReplaceText), ANOTHER, lambda runtime: runtime.replace("s", 2, "mine", 0), OtherVersion),
    "a new text for the version that another has made": (
        has(HoldSession), ANOTHER, after_a_hold(lambda runtime: runtime.replace("s", 2, "mine", 1)), (2, 2)),
    "a new text for a prompt that another has ended": (
        has(ReplaceText), canceled(2, "run-b"), lambda runtime: runtime.replace("s", 2, "mine"), TooLate),
    "a new text for a turn that another has ended": (
        has(HoldSession), canceled(1, "run-a"),
        after_a_hold(lambda runtime: runtime.replace("s", 1, "mine")), "canceled"),
    "a place for a prompt that another has ended": (
        has(ChangePrompt), canceled(3, "run-c"), lambda runtime: runtime.next("s", 3), TooLate),
    "a place for a turn that another has ended": (
        has(HoldSession), canceled(1, "run-a"), after_a_hold(lambda runtime: runtime.next("s", 1)), "canceled"),
}


def read_answer(told: object) -> object:
    match told:
        case wire.Revoked():
            return told.effect, told.state, told.outcome
        case wire.Stopped():
            return told.stopped, told.held
        case wire.Held():
            return (told.held,)
        case wire.Replaced():
            return told.seq, told.version
        case PromptRefusal():
            return told.told["outcome"]
        case _:
            return told


@pytest.mark.parametrize("case", TOLD)
async def test_a_caller_is_told_what_was_committed(case: str) -> None:
    """The first answer would have been of a session that nobody has stored."""
    chosen, others, make, expected = TOLD[case]
    store = Shared(chosen, *others, times=0)
    async with world(store, protocol=FAMILY) as w:
        _, gate = await w.active("a", "run-a")
        other = w.holds("b")  # also if another has started it
        for name in "bc":
            await w.queued(name, f"run-{name}")
        store.times = 1
        try:
            told: object = await make(w.runtime)
        except Refusal as refusal:
            told = refusal
        if isinstance(expected, type):
            assert isinstance(told, expected)
        else:
            assert read_answer(told) == expected
        assert store.conflicts == 1
        gate.open()
        other.open()
        await until(lambda: not w.runtime.is_busy() or w.runtime.is_held("s"))


# --- what cannot be

async def test_what_was_asked_behind_an_acceptance_that_is_refused_is_applied_without_it() -> None:
    """The cancel comes while the second acceptance under a run id is on its way, and is answered after it."""
    class Slow(MemoryStore):
        def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
            again = any(isinstance(op, AcceptPrompt) and op.text == "again" for op in steps.operations)
            return asyncio.ensure_future(self._commit_later(steps)) if again else super().begin_commit(steps)

        async def _commit_later(self, steps: CommitRequest) -> CommitAnswer:
            await go_on.wait()
            return await super().begin_commit(steps)

    go_on = asyncio.Event()
    async with world(Slow()) as w:
        done = await w.accept("done", "run-a")
        await done
        first, _ = await w.active("a", "run-b")
        waiting = await w.queued("b", "run-c")
        refused = asyncio.ensure_future(w.accept("again", "run-a"))
        canceled = asyncio.ensure_future(w.runtime.cancel("s"))
        later = asyncio.ensure_future(w.accept("c", "run-d"))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(RunIdInUse):
            await refused
        await canceled
        assert [(await handle).outcome for handle in (first, waiting)] == [Outcome.CANCELED] * 2
        assert (await (await later)).outcome is Outcome.END_TURN
        assert [run_id for run_id, _ in w.ends()].count("run-a") == 1
        assert not w.runtime.boxes["s"].unstored


async def test_a_call_that_fails_in_the_middle_of_its_step_changes_nothing() -> None:
    """The session is loaded again: what runs runs on, and what was asked meanwhile is done."""
    def cancel_and_fail(step: Port, arg: Argument) -> None:
        cancel(step, arg)
        for prompt in step.active:
            step.fire(prompt, Trigger.SETTLE)

    async with world(MemoryStore(), protocol=REFERENCE.changed("broken", cancel={"apply": cancel_and_fail})) as w:
        first, gate = await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        with pytest.raises(IllegalTrigger, match="settle"):
            await w.runtime.cancel("s")
        assert (await w.accept("c", "run-c")).seq == 3
        gate.open()
        assert [(await handle).outcome for handle in (first, second)] == [Outcome.END_TURN] * 2
        await until(lambda: not w.runtime.is_busy())
        assert [run_id for run_id, _ in w.ends()] == ["run-a", "run-b", "run-c"]


# --- a session that is lost -----------------------------------------------------------------------------------------

class Taken(MemoryStore):
    """From the chosen steps on the session belongs to another."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen
        self.lost = False

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        mine = steps.session_id == "s" and steps.epoch is not None
        self.lost = self.lost or (mine and self.chosen(steps))
        return super()._commit_now(steps._replace(epoch=EPOCH + 1) if self.lost and mine else steps)


@pytest.mark.parametrize("chosen", [
    pytest.param(moves(State.QUEUED), id="a step"),
    pytest.param(lambda steps: steps.version is None and isinstance(steps.operations[0], PutMessage), id="a message"),
])
async def test_a_session_that_is_lost_lets_go_of_its_turns_and_is_forgotten(chosen: Chosen) -> None:
    store = Taken(chosen)
    async with world(store) as w:
        w.plays("a", (*say("half "), Wait("a"), *calls("c1")), say("done"))
        first = await w.accept("a", "run-a")
        await asyncio.sleep(0.01)
        if not store.lost:
            with pytest.raises(Moved, match="another server"):
                await (await w.accept("b", "run-b"))
        with pytest.raises(Moved, match="another server"):
            await first
        with pytest.raises(NoSession):
            await w.accept("c")
        assert w.ends() == []
        assert (await (await w.accept("d", session="t"))).outcome is Outcome.END_TURN, "the others go on"
    assert store.lost


LOST: dict[str, tuple[Chosen, Calling]] = {
    "revoke what runs": (has(ChangePrompt), lambda runtime: runtime.revoke("s", 1)),
    "revoke what waits": (moves(State.DONE, Outcome.CANCELED), lambda runtime: runtime.revoke("s", 2)),
    "stop": (has(ChangePrompt), lambda runtime: runtime.stop("s")),
    "stop and hold": (has(HoldSession, held=True), lambda runtime: runtime.stop("s", hold=True)),
    "hold": (has(HoldSession, held=True), lambda runtime: runtime.hold("s")),
    "replace": (has(ReplaceText), lambda runtime: runtime.replace("s", 2, "another")),
    "next": (has(ChangePrompt), lambda runtime: runtime.next("s", 3)),
    "accept with interrupt": (has(ChangePrompt), lambda runtime: runtime.accept("s", "d", "run-d", (),
                                                                               Feature.INTERRUPT)),
}


@pytest.mark.parametrize("call", LOST)
async def test_a_call_of_the_family_that_finds_its_session_lost_is_not_answered_as_if_it_were_taken(call: str) -> None:
    chosen, make = LOST[call]
    store = Taken(chosen)
    async with world(store, protocol=FAMILY) as w:
        first, _ = await w.active("a", "run-a")
        waiting = [await w.queued(name, f"run-{name}") for name in "bc"]
        assert not store.lost
        if call == "accept with interrupt":  # its acceptance is journaled without a version: what follows is lost
            with suppress(Moved):
                await (await make(w.runtime))  # type: ignore[misc]
        else:
            with pytest.raises(Moved, match="another server"):
                await make(w.runtime)
        for handle in (first, *waiting):
            with pytest.raises(Moved, match="another server"):
                await handle
        assert w.ends() == []
        with pytest.raises(NoSession):
            await w.runtime.hold("s")
    assert store.lost


async def test_a_resume_that_finds_its_session_lost_is_not_answered_as_if_it_were_taken() -> None:
    store = Taken(has(HoldSession, held=False))
    async with world(store, protocol=FAMILY) as w:
        await w.runtime.hold("s")
        waiting = await w.queued("a", "run-a")
        with pytest.raises(Moved, match="another server"):
            await w.runtime.resume("s")
        with pytest.raises(Moved, match="another server"):
            await waiting
        assert w.ends() == []
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
