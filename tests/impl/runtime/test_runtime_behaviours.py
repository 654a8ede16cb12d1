"""The behaviours that the original's own tests pin, on our runtime: one test each, named after the behaviour.

What the original reads from private fields is asserted here on what a caller can see: states and marks in the journal,
the queue, messages, terminal events, and whether the model was called. A prompt is held between acceptance and entry by
`Held`, because a caller alone cannot hit that window for certain.
"""

import asyncio
import logging

import pytest
from support.runtimes import OpenStore, World, fails, on_both_stores, play, until, world
from support.stores import at_once

from cancelmark.impl.runtime import Closing, Refusal, RunIdInUse
from cancelmark.impl.store import Store
from cancelmark.model.lifecycle import Outcome, State

USER, CANCELED, NORMAL = ("user", None), ("assistant", "canceled"), ("assistant", "end_turn")


def mark(w: World, session: str = "s") -> int:
    return next(s.mark for s in at_once(w.store.sessions()) if s.id == session)


# --- Reservations ---------------------------------------------------------------------------------------------------

@on_both_stores
async def test_releasing_an_accepted_prompt_twice_has_no_effect_the_second_time(w: World) -> None:
    w.runtime.holding = True
    handle, other = await w.accept("a", "run-a"), await w.accept("b", "run-b")
    handle.release()
    handle.release()
    assert w.states() == [State.ACCEPTED, State.ACCEPTED]
    for text in "ab":
        w.runtime.door(text).set()
    assert [(await h).outcome for h in (handle, other)] == [Outcome.END_TURN, Outcome.END_TURN]


@on_both_stores
async def test_several_accepted_prompts_on_a_session_are_counted_each(w: World) -> None:
    w.runtime.holding = True
    handles = [await w.accept(text) for text in "abc"]
    assert w.states() == [State.ACCEPTED] * 3
    for left, handle in zip((2, 1, 0), handles):
        w.runtime.door("abc"[2 - left]).set()
        await handle
        assert len(w.states()) == left
    assert not w.runtime.is_busy("s")


@on_both_stores
async def test_releasing_a_prompt_that_is_done_is_safe(w: World) -> None:
    handle = await w.accept("a", "run-a")
    await handle
    handle.release()
    assert w.ends() == [("run-a", "end_turn")]


# --- Cancel ---------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R12e")
@on_both_stores
async def test_an_idle_cancel_leaves_nothing_pending_and_changes_no_state(w: World) -> None:
    await w.runtime.cancel("s")
    assert (w.states(), w.messages(), await w.store.events()) == ([], [], [])
    assert not w.runtime.is_busy("s")


@pytest.mark.rule("R12b")
@on_both_stores
async def test_a_cancel_with_an_accepted_prompt_is_pending(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a")
    await w.runtime.cancel("s")
    assert w.states() == [State.ACCEPTED]
    assert mark(w) >= handle.seq
    assert await w.store.events() == []


@on_both_stores
async def test_a_second_cancel_while_one_is_pending_changes_nothing(w: World) -> None:
    w.runtime.holding = True
    await w.accept("a")
    await w.runtime.cancel("s")
    before = mark(w)
    await w.runtime.cancel("s")
    assert (mark(w), w.states(), await w.store.events()) == (before, [State.ACCEPTED], [])


@pytest.mark.rule("R2", "R12a", "R12b")
@on_both_stores
async def test_one_cancel_with_an_active_and_an_accepted_prompt_does_both(w: World) -> None:
    active, _ = await w.active("a", "run-a")
    w.runtime.holding = True
    accepted = await w.accept("b", "run-b")
    await w.runtime.cancel("s")
    assert (await active).outcome is Outcome.CANCELED
    w.runtime.door("b").set()
    assert (await accepted).outcome is Outcome.CANCELED
    assert w.ends() == [("run-a", "canceled"), ("run-b", "canceled")]
    assert w.model.calls == 1


@pytest.mark.rule("R7a", "R7b")
@on_both_stores
async def test_two_accepted_one_cancel_both_are_canceled_on_entry(w: World) -> None:
    w.runtime.holding = True
    handles = [await w.accept(text) for text in "ab"]
    await w.runtime.cancel("s")
    for text in "ab":
        w.runtime.door(text).set()
    assert [(await handle).outcome for handle in handles] == [Outcome.CANCELED] * 2
    assert w.messages() == [USER, CANCELED, USER, CANCELED]
    assert (w.runtime.queued("s"), w.states(), w.model.calls) == ([], [], 0)
    w.runtime.holding = False
    assert (await (await w.accept("c"))).outcome is Outcome.END_TURN  # nothing is pending any more


@pytest.mark.rule("R12b")
@on_both_stores
async def test_a_later_prompt_that_enters_first_does_not_consume_the_cancel(w: World) -> None:
    w.runtime.holding = True
    a, b = await w.accept("a"), await w.accept("b")
    await w.runtime.cancel("s")
    c = await w.accept("c")
    for text, handle, outcome in (("c", c, Outcome.END_TURN), ("a", a, Outcome.CANCELED), ("b", b, Outcome.CANCELED)):
        w.runtime.door(text).set()
        assert (await handle).outcome is outcome
    assert w.messages() == [USER, NORMAL, USER, CANCELED, USER, CANCELED]
    assert w.model.calls == 1


@pytest.mark.rule("R14d")
@on_both_stores
async def test_a_queued_prompt_with_a_run_id_that_a_cancel_drops_publishes_one_cancelled_run_complete(w: World) -> None:
    active, _ = await w.active("a", "run-a")
    queued = await w.queued("b", "run-b")
    await w.runtime.cancel("s")
    assert ((await queued).outcome, (await active).outcome) == (Outcome.CANCELED, Outcome.CANCELED)
    assert w.end("run-b")["cancelled"] is True
    assert w.end("run-b")["run_id"] == "run-b"
    assert w.model.calls == 1


@pytest.mark.rule("R12c", "R14d")
@on_both_stores
async def test_a_queued_prompt_without_a_run_id_that_a_cancel_drops_has_its_end_in_the_journal(w: World) -> None:
    active, _ = await w.active("a", "run-a")
    queued = await w.queued("b")
    await w.runtime.cancel("s")
    await asyncio.gather(active, queued)
    assert w.ends() == [(None, "canceled"), ("run-a", "canceled")]
    assert (await w.store.transitions(queued.seq))[-1].outcome is Outcome.CANCELED


# --- Entry ----------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R7a", "R7b", "R21")
@on_both_stores
async def test_canceled_on_entry_writes_both_messages_and_never_calls_the_model(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a", "run-a")
    await w.runtime.cancel("s")
    w.runtime.door("a").set()
    await handle
    user, answer = await w.store.messages("s")
    assert (user.role, user.parts[0]["data"]["text"]) == ("user", "a")
    assert (answer.role, answer.finish_reason) == CANCELED
    assert w.model.calls == 0


@pytest.mark.rule("R14a", "R21")
@on_both_stores
async def test_canceled_on_entry_publishes_one_run_complete(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a", "run-a")
    await w.runtime.cancel("s")
    w.runtime.door("a").set()
    await handle
    end = w.end("run-a")
    assert (end["session_id"], end["run_id"], end["cancelled"]) == ("s", "run-a", True)
    assert "error" not in end
    assert len(await w.store.events()) == 1


@pytest.mark.rule("R3b", "R4")
@on_both_stores
async def test_the_cancel_check_precedes_the_busy_check(w: World) -> None:
    w.runtime.holding = True
    covered = await w.accept("a", "run-a")
    await w.runtime.cancel("s")
    w.runtime.door("b").set()
    active, gate = await w.active("b", "run-b")
    w.runtime.door("a").set()
    assert (await covered).outcome is Outcome.CANCELED  # at once, and not after the queue
    assert w.runtime.queued("s") == []
    gate.open()
    assert (await active).outcome is Outcome.END_TURN


@pytest.mark.rule("R12e")
@on_both_stores
async def test_after_an_idle_cancel_the_next_prompt_runs_normally_to_end_turn(w: World) -> None:
    await w.runtime.cancel("s")
    assert (await (await w.accept("a", "run-a"))).outcome is Outcome.END_TURN
    assert w.messages() == [USER, NORMAL]
    assert "cancelled" not in w.end("run-a")


@on_both_stores
async def test_a_stale_mark_catches_nobody(w: World) -> None:
    first, _ = await w.active("a")
    await w.runtime.cancel("s")
    await first
    assert mark(w) >= first.seq
    assert [(await (await w.accept(text))).outcome for text in "bcd"] == [Outcome.END_TURN] * 3


@pytest.mark.rule("R23a", "R23b")
@on_both_stores
async def test_the_canceled_turn_is_written_even_when_the_run_is_canceled_before_its_first_step(w: World) -> None:
    await w.accept("a")
    await w.runtime.cancel("s")  # the turn's task has been made, and may not have begun
    await until(lambda: not w.runtime.is_busy("s"))
    assert w.messages() == [USER, CANCELED]


@pytest.mark.rule("R23b")
@on_both_stores
async def test_if_the_user_message_exists_already_only_the_assistant_message_is_written(w: World) -> None:
    handle, _ = await w.active("a")
    (user, _unfinished) = await w.store.messages("s")
    await w.runtime.cancel("s")
    await handle
    assert w.messages() == [USER, CANCELED]
    assert (await w.store.messages("s"))[0] == user


# --- Queue ----------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R9b", "R11b")
@on_both_stores
async def test_above_the_mark_a_queued_prompt_folds_or_is_kept_in_order_and_below_it_is_dropped(w: World) -> None:
    stopping, _ = await w.active("stopping")
    dropped = [await w.queued("dropped 1"), await w.queued("dropped 2", "run-dropped")]
    await w.runtime.cancel("s")
    assert [(await handle).outcome for handle in dropped] == [Outcome.CANCELED] * 2
    await stopping
    host, gate = await w.active("host", "run-host")
    kept = [await w.queued("kept 1", "run-1"), await w.queued("kept 2", "run-2")]
    folded = [await w.queued("folded 1"), await w.queued("folded 2")]
    assert w.runtime.queued("s") == ["kept 1", "kept 2", "folded 1", "folded 2"]
    gate.open()
    assert [(await handle).outcome for handle in (host, *kept)] == [Outcome.END_TURN] * 3
    assert [(await handle).outcome for handle in folded] == [Outcome.FOLDED] * 2
    assert [end for end in w.ends() if end[1] == "end_turn"] == [
        ("run-host", "end_turn"), ("run-1", "end_turn"), ("run-2", "end_turn")]


@pytest.mark.rule("R9a")
@on_both_stores
async def test_without_a_mark_every_queued_prompt_without_a_run_id_folds(w: World) -> None:
    host, gate = await w.active("host")
    first = await w.queued("next", "run-next")
    folded = [await w.queued(text) for text in ("f1", "f2", "f3")]
    gate.open()
    await asyncio.gather(host, first)
    assert [(await handle).outcome for handle in folded] == [Outcome.FOLDED] * 3
    assert w.model.calls == 2
    assert w.requests[-1].prompt == "f3"  # the turn of "next" heard them all before its first step


@on_both_stores
async def test_a_queued_prompt_keeps_its_prompt_text_and_run_id(w: World) -> None:
    await w.active("a")
    await w.queued("the text", "the run id")
    assert w.runtime.queued("s") == ["the text"]
    status = await w.runtime.status("the run id")
    assert status is not None
    assert (status.text, status.run_id, status.state) == ("the text", "the run id", State.QUEUED)


@pytest.mark.rule("R5a", "R11a", "R14c")
@on_both_stores
async def test_a_queued_prompt_with_a_run_id_runs_as_its_own_turn_after_the_active_one(w: World) -> None:
    a, gate = await w.active("a", "run-a")
    b = await w.queued("b", "run-b")
    gate.open()
    await asyncio.gather(a, b)
    assert w.ends() == [("run-a", "end_turn"), ("run-b", "end_turn")]
    assert w.end("run-a")["text"] == "half done"
    assert "You said: b" in w.end("run-b")["text"]
    assert w.messages() == [USER, NORMAL, USER, NORMAL]


# --- Backend --------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R1c")
@on_both_stores
async def test_an_empty_prompt_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    for text in ("", "  \n"):
        with pytest.raises(Refusal, match="empty"):
            await w.accept(text, "run-a")
    assert (w.states(), await w.store.latest_seq(), await w.runtime.status("run-a")) == ([], 0, None)


@pytest.mark.rule("R1c")
@on_both_stores
async def test_a_missing_session_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    for attempt in (w.accept("a", session="nowhere"), w.runtime.cancel("nowhere"), w.runtime.clear_queue("nowhere")):
        with pytest.raises(Refusal, match="no session nowhere"):
            await attempt
    assert await w.store.latest_seq() == 0


@pytest.mark.rule("R1c", "R22a")
@on_both_stores
async def test_a_run_id_in_use_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    await w.active("a", "run-a")
    for session in "st":
        with pytest.raises(RunIdInUse, match="run-a"):
            await w.accept("b", "run-a", session)
    assert len(w.states()) == 1


@on_both_stores
async def test_an_empty_run_id_is_none(w: World) -> None:
    handles = [await w.accept(text, "") for text in "ab"]
    assert [handle.run_id for handle in handles] == [None, None]


@pytest.mark.rule("R1c", "R15a")
def test_a_closing_runtime_is_a_synchronous_error_and_nothing_is_accepted(open_store: OpenStore) -> None:
    async def story(w: World) -> None:
        handle, _ = await w.active("a", "run-a")
        closing = asyncio.ensure_future(w.runtime.close())
        await asyncio.sleep(0)
        with pytest.raises(Closing):
            await w.accept("b", "run-b")
        await closing
        assert (await handle).outcome is Outcome.CANCELED
        with pytest.raises(Closing):
            await w.accept("c", "run-c")

    play(open_store(), story)


@on_both_stores
async def test_acceptance_returns_at_once(w: World) -> None:
    handle, gate = await w.active("a")  # returned, although the turn is held
    assert w.states() == [State.ACTIVE]
    gate.open()
    await handle


@pytest.mark.rule("R15c")
def test_shutdown_waits_for_the_run(open_store: OpenStore) -> None:
    async def story(w: World) -> None:
        handle, _ = await w.active("a", "run-a")
        await w.runtime.close()
        assert (await handle).outcome is Outcome.CANCELED
        assert w.model.running == 0

    play(open_store(), story)


@on_both_stores
async def test_a_cancel_after_acceptance_and_before_the_run_is_active_gives_a_canceled_turn(w: World) -> None:
    w.runtime.holding = True
    handle = await w.accept("a", "run-a")
    await w.runtime.cancel("s")
    w.runtime.door("a").set()
    assert (await handle).outcome is Outcome.CANCELED
    assert w.messages() == [USER, CANCELED]
    assert w.ends() == [("run-a", "canceled")]


@on_both_stores
async def test_an_error_before_the_run_could_start_publishes_one_errored_run_complete(w: World) -> None:
    async def refuse(session_id: str) -> None:
        raise LookupError(f"the agent of session {session_id} is not initialized")

    w.runtime.ready = refuse
    result = await (await w.accept("a", "run-a"))
    assert (result.outcome, result.error) == (Outcome.ERROR, "the agent of session s is not initialized")
    assert w.end("run-a")["error"] == result.error
    assert w.ends() == [("run-a", "error")]
    assert w.model.calls == 0


@pytest.mark.rule("R14a")
@on_both_stores
async def test_if_the_end_was_already_published_there_is_no_second_one(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    queued = await w.queued("b", "run-b")
    await w.runtime.cancel("s")
    await asyncio.gather(handle, queued)
    for again in (w.runtime.cancel, w.runtime.clear_queue, w.runtime.cancel):
        await again("s")
    assert sorted(w.ends()) == [("run-a", "canceled"), ("run-b", "canceled")]


@on_both_stores
async def test_a_canceled_run_publishes_no_error(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    await w.runtime.cancel("s")
    result = await handle
    assert result.error is None
    assert "error" not in w.end("run-a")
    assert all(event.terminal for event in await w.store.events())


@pytest.mark.rule("R14c")
@on_both_stores
async def test_an_errored_run_publishes_its_error_and_is_not_cancelled(w: World) -> None:
    w.plays("a", fails(message="the model is down"))
    result = await (await w.accept("a", "run-a"))
    assert (result.outcome, result.error) == (Outcome.ERROR, "the model is down")
    assert w.end("run-a")["error"] == "the model is down"
    assert "cancelled" not in w.end("run-a")


@pytest.mark.rule("R20")
def test_a_cancel_in_one_session_changes_no_other(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    async def main(store: Store) -> None:
        async with world(store) as w:
            mine, _ = await w.active("a", "run-a")
            theirs, gate = await w.active("b", "run-b", session="t")
            await w.runtime.cancel("s")
            await mine
            gate.open()
            assert (await theirs).outcome is Outcome.END_TURN

    with caplog.at_level(logging.WARNING):
        asyncio.run(main(open_store()))
    assert caplog.messages == []
