"""The behaviours that the original's own tests pin and that only a runtime can show: handles, refusals, shutdown.

Those that the models and the server show too are in `test_behaviours`.
"""

import asyncio

import pytest
from support.runtimes import World, until

from cancelmark.impl.runtime import Closing, Refusal, RunIdInUse
from cancelmark.model.lifecycle import Outcome, State

USER, CANCELED, NORMAL = ("user", None), ("assistant", "canceled"), ("assistant", "end_turn")


# --- Reservations ---------------------------------------------------------------------------------------------------

async def test_releasing_an_accepted_prompt_twice_has_no_effect_the_second_time(w: World) -> None:
    w.runtime.holding = True
    handle, other = await w.accept("a", "run-a"), await w.accept("b", "run-b")
    handle.release()
    handle.release()
    assert w.states() == [State.ACCEPTED, State.ACCEPTED]
    for text in "ab":
        w.runtime.door(text).set()
    assert [(await h).outcome for h in (handle, other)] == [Outcome.END_TURN, Outcome.END_TURN]


async def test_releasing_a_prompt_that_is_done_is_safe(w: World) -> None:
    handle = await w.accept("a", "run-a")
    await handle
    handle.release()
    assert w.ends() == [("run-a", "end_turn")]


# --- Entry ----------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R23a", "R23b")
async def test_the_canceled_turn_is_written_even_when_the_run_is_canceled_before_its_first_step(w: World) -> None:
    await w.accept("a")
    await w.runtime.cancel("s")  # the turn's task has been made, and may not have begun
    await until(lambda: not w.runtime.is_busy("s"))
    assert w.messages() == [USER, CANCELED]


@pytest.mark.rule("R23b")
async def test_if_the_user_message_exists_already_only_the_assistant_message_is_written(w: World) -> None:
    handle, _ = await w.active("a")
    await until(lambda: len(w.messages()) == 2)
    (user, _unfinished) = await w.store.messages("s")
    await w.runtime.cancel("s")
    await handle
    assert w.messages() == [USER, CANCELED]
    assert (await w.store.messages("s"))[0] == user


# --- Backend --------------------------------------------------------------------------------------------------------

@pytest.mark.rule("R1c")
async def test_an_empty_prompt_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    for text in ("", "  \n"):
        with pytest.raises(Refusal, match="empty"):
            await w.accept(text, "run-a")
    assert (w.states(), await w.store.latest_seq(), await w.runtime.status("run-a")) == ([], 0, None)


@pytest.mark.rule("R1c")
async def test_a_missing_session_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    for attempt in (w.accept("a", session="nowhere"), w.runtime.cancel("nowhere"), w.runtime.clear_queue("nowhere")):
        with pytest.raises(Refusal, match="no session nowhere"):
            await attempt
    assert await w.store.latest_seq() == 0


@pytest.mark.rule("R1c", "R22a")
async def test_a_run_id_in_use_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    await w.active("a", "run-a")
    for session in "st":
        with pytest.raises(RunIdInUse, match="run-a"):
            await w.accept("b", "run-a", session)
    assert len(w.states()) == 1


async def test_an_empty_run_id_is_none(w: World) -> None:
    handles = [await w.accept(text, "") for text in "ab"]
    assert [handle.run_id for handle in handles] == [None, None]


@pytest.mark.rule("R1c", "R15a")
async def test_a_closing_runtime_is_a_synchronous_error_and_nothing_is_accepted(w: World) -> None:
    handle, _ = await w.active("a", "run-a")
    closing = asyncio.ensure_future(w.runtime.close())
    await asyncio.sleep(0)
    with pytest.raises(Closing):
        await w.accept("b", "run-b")
    await closing
    assert (await handle).outcome is Outcome.CANCELED
    with pytest.raises(Closing):
        await w.accept("c", "run-c")

