"""Clauses of specs/protocol.md that no other test pins, each by a test that fails when the clause is broken."""

import asyncio
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support.runtimes import World, until, world
from support.stores import Meddled, at_once
from tools.replaying import Graph

from cancelmark.impl.runtime import Closing, Leaving, Result, RunIdInUse
from cancelmark.impl.runtime.session import Counter, LivePrompt, Session
from cancelmark.impl.runtime.workspace import Full, NoSession, Unknown
from cancelmark.impl.server.app import CALLS, _problem
from cancelmark.impl.store import (
    AcceptPrompt,
    AppendEvent,
    Batch,
    CommitAnswer,
    CommitRequest,
    MemoryStore,
    MovePrompt,
    SqliteStore,
    StoreError,
)
from cancelmark.model import wire
from cancelmark.model.effects import Effect, End, Fold, Start, Stop
from cancelmark.model.lifecycle import Outcome, State, Trigger
from cancelmark.model.properties import Bounds


class Gated(Meddled, MemoryStore):
    """A store in which chosen batches wait until a test lets them through. It remembers what was written."""

    def __init__(self, chosen: Callable[[Batch], bool] = lambda batch: False) -> None:
        super().__init__()
        self.chosen, self.written = chosen, list[Batch]()
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        if self.chosen(steps.operations):
            self.reached.set()
            await self.open.wait()
        answer = await super().commit(steps)
        self.written.append(steps.operations)
        return answer


def accepts(batch: Batch) -> bool:
    return any(isinstance(op, AcceptPrompt) for op in batch)


def moves_to(state: State) -> Callable[[Batch], bool]:
    return lambda batch: any(isinstance(op, MovePrompt) and op.state is state for op in batch)


async def a_while() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# --- Acceptance -----------------------------------------------------------------------------------------------------

@pytest.mark.rule("R1a")
async def test_a_cancel_covers_a_prompt_that_is_still_being_journaled() -> None:
    store = Gated(accepts)
    async with world(store) as w:
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await store.reached.wait()
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await a_while()
        store.open.set()
        await canceling
        assert (await (await accepting)).outcome is Outcome.CANCELED
        assert w.model.calls == 0


@pytest.mark.rule("R1a", "R12b")
async def test_seqs_are_counted_over_all_sessions_and_a_cancel_covers_up_to_the_latest_of_them(w: World) -> None:
    w.runtime.holding = True
    handles = [await w.accept(f"a{n}", session=session) for n, session in enumerate("stst")]
    assert [handle.seq for handle in handles] == [1, 2, 3, 4]
    await w.runtime.cancel("s")
    assert {session.id: session.mark for session in await w.store.sessions()} == {"s": 4, "t": 0}


@pytest.mark.rule("R1b")
async def test_the_caller_is_told_only_when_the_acceptance_is_journaled() -> None:
    store = Gated(accepts)
    async with world(store) as w:
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await store.reached.wait()
        await a_while()
        assert not accepting.done()
        assert w.model.calls == 0
        store.open.set()
        await (await accepting)
        assert accepts(store.written[2])  # after the two sessions, and before anything else


@pytest.mark.rule("R22a")
async def test_a_run_id_stays_in_use_when_its_prompt_is_done_and_after_a_restart(tmp_path: Path) -> None:
    for life in range(2):
        async with world(SqliteStore(tmp_path / "test.db")) as w:
            if not life:
                await (await w.accept("a", "run-a"))
            with pytest.raises(RunIdInUse, match="run-a"):
                await w.accept("a", "run-a")
            assert w.ends() == [("run-a", "end_turn")]


class Unstoppable(Meddled, MemoryStore):
    """A store that, like a disk, goes on with what was asked for when the one who asked is gone."""

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        async def later() -> CommitAnswer:
            await asyncio.sleep(0.001)
            return await super(Unstoppable, self).commit(steps)

        return await asyncio.shield(asyncio.ensure_future(later()))


@pytest.mark.rule("R26")
async def test_a_prompt_whose_sender_is_gone_before_the_answer_runs_to_its_end() -> None:
    async with world(Unstoppable()) as w:
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await asyncio.sleep(0)
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        await until(lambda: at_once(w.runtime.status("run-a")) is not None)
        await until(lambda: w.ends() == [("run-a", "end_turn")])


# --- Atomic steps ---------------------------------------------------------------------------------------------------

@pytest.mark.rule("R19a")
def test_no_step_begins_while_another_is_half_done() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Pausing(Session):
        def fire(self, prompt: LivePrompt, trigger: Trigger) -> None:
            if trigger is Trigger.DROP and not inside.is_set():
                inside.set()
                assert go_on.wait(30)
            super().fire(prompt, trigger)

    session = Pausing("s", Counter())
    for _ in range(3):
        session.take("enter", session.accept()[0])
    effects: dict[str, list[Effect]] = {}
    canceling = threading.Thread(target=lambda: effects.update(cancel=session.take("cancel")))
    clearing = threading.Thread(target=lambda: effects.update(clear=session.take("clear_queue")))
    canceling.start()
    assert inside.wait(30)
    clearing.start()
    clearing.join(0.05)
    assert clearing.is_alive()  # it waits until the cancel is whole
    go_on.set()
    canceling.join(30)
    clearing.join(30)
    assert effects == {"cancel": [Stop(1), *(End(seq, Outcome.CANCELED, of=seq) for seq in (2, 3))], "clear": []}


# --- Entry, queue and turn ------------------------------------------------------------------------------------------

@pytest.mark.rule("R5b", "R11b")
async def test_the_queue_is_in_order_of_seq_whatever_the_order_of_entry(w: World) -> None:
    host, gate = await w.active("host", "run-host")
    w.runtime.holding = True
    handles = [await w.accept(text, f"run-{text}") for text in "abc"]
    for text in "cab":
        w.runtime.door(text).set()
        await until(lambda text=text: text in w.runtime.queued("s"))  # type: ignore[misc]
    assert w.runtime.queued("s") == ["a", "b", "c"]
    gate.open()
    await asyncio.gather(host, *handles)
    assert [run_id for run_id, _ in w.ends()] == ["run-host", "run-a", "run-b", "run-c"]


@pytest.mark.rule("R5a", "R6a", "R6b")
async def test_one_prompt_is_active_and_the_others_wait(w: World) -> None:
    gates = [w.holds(text) for text in "abc"]
    handles = [await w.accept(text, f"run-{text}") for text in "abc"]
    for n, gate in enumerate(gates):
        await gate.reached()
        await until(lambda n=n: w.states() == [State.ACTIVE, *[State.QUEUED] * (2 - n)])  # type: ignore[misc]
        assert w.model.running == 1
        gate.open()
        await handles[n]


@pytest.mark.rule("R9b", "R9c")
def test_a_turn_that_is_covered_folds_nothing_and_a_run_id_is_never_folded() -> None:
    for run_id, cancels, folds in ((None, False, True), (None, True, False), ("run-b", False, False)):
        session = Session("s", Counter())
        host, _ = session.accept("a")
        session.take("enter", host)
        if cancels:
            session.take("cancel")
        guest, _ = session.accept("b", run_id)
        session.take("enter", guest)
        assert session.can("step", host) is folds
        if folds:
            assert session.take("step", host) == [Fold(2, into=1), End(2, Outcome.FOLDED, of=2)]
        assert guest.state is (State.DONE if folds else State.QUEUED)


@pytest.mark.rule("R10a", "R10b", "R10d")
@pytest.mark.parametrize("end", ["fold", "drop", "start"])
def test_a_prompt_that_is_back_in_the_queue_is_a_queued_prompt_like_any_other(end: str) -> None:
    session = Session("s", Counter())
    first, _ = session.accept("a")
    second, _ = session.accept("b")
    session.take("enter", second)
    session.take("enter", first)
    assert session.take("requeue", second) == [Start(first.seq)]  # its seq is lower, and there is no end
    assert (first.state, second.state, second.seq) == (State.ACTIVE, State.QUEUED, 2)
    if end == "fold":
        assert End(2, Outcome.FOLDED, of=2) in session.take("step", first)
    elif end == "drop":
        assert session.take("clear_queue") == [End(2, Outcome.CANCELED, of=2)]
    else:
        assert session.take("finish", first, Outcome.END_TURN)[-1] == Start(2)


@pytest.mark.rule("R11a")
async def test_a_follow_up_that_was_queued_while_the_turn_stopped_runs_when_it_has(w: World) -> None:
    stopping, _ = await w.active("a", "run-a")
    canceling = asyncio.ensure_future(w.runtime.cancel("s"))
    await asyncio.sleep(0)
    follow_up = await w.accept("b", "run-b")
    await canceling
    assert [(await handle).outcome for handle in (stopping, follow_up)] == [Outcome.CANCELED, Outcome.END_TURN]


@pytest.mark.rule("R13a", "R13b")
async def test_clear_queue_drops_what_is_queued_and_leaves_everything_else_as_it_is(w: World) -> None:
    active, gate = await w.active("a", "run-a")
    queued = [await w.queued("b", "run-b"), await w.queued("c")]
    w.runtime.holding = True
    accepted = await w.accept("d", "run-d")
    await w.runtime.clear_queue("s")
    assert [(await handle).outcome for handle in queued] == [Outcome.CANCELED] * 2
    assert w.states() == [State.ACTIVE, State.ACCEPTED]
    assert [session.mark for session in await w.store.sessions()] == [0, 0]
    w.runtime.door("d").set()
    gate.open()
    assert [(await handle).outcome for handle in (active, accepted)] == [Outcome.END_TURN] * 2


# --- Ends, and the journal ------------------------------------------------------------------------------------------

def ends_and_moves(batch: Batch) -> tuple[set[int], set[int]]:
    """The prompts whose terminal events a batch has, and those that it moves to done, unless they are folded."""
    return ({op.payload["seq"] for op in batch if isinstance(op, AppendEvent)},
            {op.seq for op in batch if isinstance(op, MovePrompt) and op.outcome not in (None, Outcome.FOLDED)})


@pytest.mark.rule("R14a", "R16b")
async def test_a_step_is_journaled_as_a_whole() -> None:
    """The end of a prompt, its terminal event, the handoff and the mark of one step are in one batch."""
    store = Gated()
    async with world(store) as w:
        a, gate = await w.active("a", "run-a")
        b, c = await w.queued("b", "run-b"), await w.queued("c", "run-c")
        held = w.holds("b")
        gate.open()
        await a
        await held.reached()
        await w.runtime.cancel("s")
        await asyncio.gather(b, c)
        ends = [ends_and_moves(batch) for batch in store.written]
        assert all(events == moves for events, moves in ends)
        assert [events for events, _ in ends if events] == [{1}, {2, 3}]
        handoff = next(batch for batch in store.written if ends_and_moves(batch)[0] == {1})
        assert MovePrompt(2, State.ACTIVE) in handoff
        dropping = next(batch for batch in store.written if 3 in ends_and_moves(batch)[0])
        assert "RaiseMark" in {type(op).__name__ for op in dropping}


@pytest.mark.rule("R14b")
async def test_an_end_is_published_before_the_next_turn_starts_and_does_not_wait_for_it() -> None:
    store = Gated(lambda batch: any(isinstance(op, AppendEvent) and op.run_id == "run-a" for op in batch))
    async with world(store) as w:
        a, gate = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        held = w.holds("b")
        gate.open()
        await store.reached.wait()
        await a_while()
        assert w.model.calls == 1  # the next turn waits for the end
        store.open.set()
        assert (await a).outcome is Outcome.END_TURN  # and the end does not wait for the next turn
        await held.reached()
        held.open()
        await b


@pytest.mark.rule("R16c")
async def test_nothing_is_started_or_published_before_its_step_is_journaled() -> None:
    store = Gated(moves_to(State.ACTIVE))
    async with world(store) as w:
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await store.reached.wait()
        await a_while()
        assert (w.model.calls, w.states(), accepting.done(), w.runtime.unfinished("s")) == (0, [], False, 0)
        store.open.set()
        await (await accepting)
    ending = Gated(moves_to(State.DONE))
    async with world(ending) as w:
        a, _ = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await ending.reached.wait()
        await a_while()
        assert (w.ends(), canceling.done()) == ([], False)
        ending.open.set()
        await asyncio.gather(canceling, a, b)


@pytest.mark.rule("R19b", "R25a")
async def test_the_steps_of_a_session_are_carried_out_in_order_however_long_each_takes() -> None:
    store = Gated(lambda batch: any(isinstance(op, MovePrompt) and (op.seq, op.state) == (2, State.DONE)
                                    for op in batch))
    async with world(store) as w:
        a, _ = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        clearing = asyncio.ensure_future(w.runtime.clear_queue("s"))
        await store.reached.wait()
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))  # its own batch could be written at once
        await a_while()
        assert not canceling.done()
        assert [session.mark for session in await w.store.sessions()] == [0, 0]
        store.open.set()
        await asyncio.gather(clearing, canceling, a, b)
        assert w.ends() == [("run-b", "canceled"), ("run-a", "canceled")]


# --- The wire -------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R28a")
def test_a_terminal_event_has_the_fields_that_the_wire_says() -> None:
    outcomes = [outcome for outcome in Outcome if outcome is not Outcome.FOLDED]
    for outcome, run_id, message_id, text in product(outcomes, (None, "run-a"), (None, "p1-2"), ("", "hello")):
        error = "it broke" if outcome is Outcome.ERROR else None
        payload = Result("s", run_id, outcome, text, message_id, error).to_json(1)
        end = wire.RunComplete("s", 1, outcome.value, run_id or "", message_id or "", text, error or "")
        assert set(payload) == {name for name, field in wire.RUN_COMPLETE.items() if field.there(end)}
        assert payload["outcome"] == outcome.value
        assert payload.get("cancelled", False) is (outcome is Outcome.CANCELED)


@pytest.mark.rule("R14d", "R28a")
async def test_published_ends_are_what_the_wire_says_and_a_folded_prompt_has_none(w: World) -> None:
    host, gate = await w.active("a", "run-a")
    kept = await w.queued("b", "run-b")
    folded = [await w.queued("c"), await w.queued("d")]
    gate.open()
    await asyncio.gather(host, kept, *folded)
    nameless = await w.accept("e")
    await nameless
    assert w.ends() == [("run-a", "end_turn"), ("run-b", "end_turn"), (None, "end_turn")]
    for event in await w.store.events(terminal=True):
        assert event.type == next(each.name for each in wire.EVENTS if "R28a" in each.rules)
        assert event.payload["session_id"] == "s"
        assert ("run_id" in event.payload) is (event.run_id is not None)
    assert [event.payload["seq"] for event in await w.store.events()] == [1, 2, 5]


@pytest.mark.rule("R27a", "R27b")
def test_the_server_has_the_calls_and_the_statuses_that_the_wire_says() -> None:
    calls = {(call.method, call.path): call for call in CALLS}
    for request in wire.REQUESTS:
        assert calls[request.method, request.path].status == request.status, request.path
    refusals = {refusal.status for refusal in wire.REFUSALS}
    assert {400, *calls["POST", wire.AGENT].refusals} == refusals | {wire.UNKNOWN}
    for status, error in ((400, NoSession("")), (404, Unknown("")), (409, Closing()), (409, RunIdInUse("")),
                          (429, Full("")), (503, Leaving()), (503, StoreError("", "", ""))):
        assert _problem(error, calls["POST", wire.AGENT]).status == status


# --- What the specification says of every reachable state -----------------------------------------------------------

@pytest.mark.parametrize("bounds", [
    Bounds(3, cancels=1), Bounds(2, cancels=1, requeues=1, crashes=1, closes=1),
    Bounds(2, cancels=1, crashes=1, sessions=2)], ids=str)
def test_what_an_implementation_may_rely_on_holds_in_every_reachable_state(bounds: Bounds) -> None:
    for situation in Graph(bounds).walk():
        for session in situation.server.sessions:
            assert len(session.active) <= 1
            assert not any(session.covered(prompt) for prompt in session.queue)
            assert session.down or session.active or not session.queue
            assert session.mark <= situation.server.seq
