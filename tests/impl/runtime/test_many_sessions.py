"""A runtime with many sessions: it starts and closes a share of them at a time, and others run in between."""

import asyncio

from support.stores import at_once

from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.tasks import CHUNK
from cancelmark.impl.store import CommitAnswer, CommitRequest, MemoryStore, NewSession
from cancelmark.model.lifecycle import Outcome

MANY = 10 * CHUNK


class Counting(MemoryStore):
    """A store that counts what is committed."""

    commits = 0

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        self.commits += 1
        return super()._commit_now(steps)


async def test_a_close_leaves_room_for_others_and_reaches_every_session() -> None:
    store = Counting()
    most = 0
    async def other() -> None:
        nonlocal most
        while True:
            before = store.commits
            await asyncio.sleep(0)
            most = max(most, store.commits - before)

    await store.write([NewSession(f"s{number}") for number in range(MANY)])
    model = ScriptedModel(lambda request: None)
    async with Runtime(model, store) as runtime:
        assert (await (await runtime.accept("s7", "hello"))).outcome is Outcome.END_TURN
        running = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        await runtime.close()
        running.cancel()
    assert CHUNK / 2 < most <= 2 * CHUNK
    store._open = True
    assert {session.mark for session in at_once(store.sessions())} == {1}


async def test_a_cancel_of_a_session_that_is_still_to_be_closed_is_answered() -> None:
    store = Counting()
    await store.write([NewSession(f"s{number}") for number in range(MANY)])
    async with Runtime(ScriptedModel(), store) as runtime:
        await (await runtime.accept("s7", "hello"))
        closing = asyncio.ensure_future(runtime.close())
        await asyncio.sleep(0)
        await runtime.cancel(f"s{MANY - 1}")
        await runtime.clear_queue(f"s{MANY - 2}")
        await closing
    store._open = True
    assert {session.mark for session in at_once(store.sessions())} == {1}


async def test_a_start_leaves_room_for_others() -> None:
    store = Counting()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await store.write([NewSession(f"s{number}") for number in range(MANY)])
    running = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    turns = 0
    runtime = Runtime(ScriptedModel(), store)
    await runtime.start()
    running.cancel()
    await runtime.close()
    assert turns >= 2 * MANY / CHUNK - 2
