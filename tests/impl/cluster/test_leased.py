"""Sessions of a store that is shared, at one node: what is under way when it leaves, or when the store fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from support.runtimes import PATIENCE
from support.simulation.database import SimulatedDatabase, SimulatedServer

from cancelmark.impl.cluster.leased import Leased
from cancelmark.impl.models.scripted import ScriptedModel, Wait
from cancelmark.impl.runtime import Leaving, Runtime
from cancelmark.impl.runtime.turn import Turn
from cancelmark.impl.store import CommitAnswer, CommitRequest, Snapshot, StoreError, Unconfirmed, UnknownSession
from cancelmark.impl.store.postgres import PostgresStore
from cancelmark.model.lifecycle import Outcome


class Stalling(PostgresStore):
    """What is committed in a stalled session waits."""

    def __init__(self) -> None:
        super().__init__(SimulatedDatabase(SimulatedServer()), uuid4())
        self.stalled: set[str] = set()
        self.go_on = asyncio.Event()

    async def _commit(self, steps: CommitRequest) -> CommitAnswer:
        if steps.session_id in self.stalled:
            await self.go_on.wait()
        return await super()._commit(steps)


@asynccontextmanager
async def leased(grace: float = PATIENCE, store: Stalling | None = None) -> AsyncIterator[tuple[Runtime, Stalling]]:
    store, model = store or Stalling(), ScriptedModel({"waits": [Wait("gate")]})
    await store.make()
    async with asyncio.timeout(PATIENCE):
        async with Runtime(model, store, grace=grace, ownership=Leased) as runtime:
            for session in "st":
                await runtime.create_session(session)
            yield runtime, store


async def test_whoever_waits_for_a_commit_that_is_not_answered_is_told_when_the_node_leaves() -> None:
    async with leased(grace=0.05) as (runtime, store):
        handle = await runtime.accept("s", "a")
        assert (await handle).outcome is Outcome.END_TURN
        store.stalled.add("s")
        waiting = [asyncio.ensure_future(call) for call in (
            runtime.accept("s", "b"), runtime.cancel("s"), runtime.accept("s", "c"))]
        await asyncio.sleep(0.01)
        await runtime.close(0.01)
        sent, *unsent = waiting
        with pytest.raises(Unconfirmed, match="run id"):  # it may be stored: a client that is told "no" posts anew
            await sent
        for one in unsent:
            with pytest.raises(Leaving):
                await one
        store.go_on.set()


async def test_a_session_that_cannot_be_handed_over_keeps_no_other_from_it() -> None:
    class Failing(Stalling):
        async def _commit(self, steps: CommitRequest) -> CommitAnswer:
            if steps.release == "handover":
                if steps.session_id == "s":
                    raise StoreError("here", "the database is away", "wait")
                for _ in range(100):  # it takes longer
                    await asyncio.sleep(0)
            return await super()._commit(steps)

    async with leased(store=Failing()) as (runtime, store):
        for session in "st":
            for text in ("waits", "b"):
                await runtime.accept(session, text, f"{session}-{text}")
        await runtime.close(0.0)
        seen = PostgresStore(store.database, store.workspace)
        assert {one.session_id: one.free for one in await seen.load_all()} == {"s": False, "t": True}


async def test_a_stuck_session_that_is_deleted_keeps_no_other_from_being_given_up() -> None:
    async with leased() as (runtime, store):
        for session in "st":
            await runtime.accept(session, "waits", f"{session}-waits")
            runtime.boxes[session].mark_stuck(ValueError("injected"))
        load = store.load

        async def load_if_there(session_id: str) -> Snapshot:
            if session_id == "s":
                raise UnknownSession(session_id)
            return await load(session_id)

        store.load = load_if_there  # type: ignore[method-assign]
        assert isinstance(runtime.ownership, Leased)
        await runtime.ownership.give_up_stuck()
        assert list(runtime.boxes) == ["t"]
        assert not runtime.boxes["t"].stuck


async def test_a_turn_that_cannot_look_back_does_not_keep_its_node_from_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(self: Turn) -> None:
        raise StoreError("here", "the database is away", "wait")

    async with leased() as (runtime, store):
        handle = await runtime.accept("s", "waits", "run-a")
        assert isinstance(runtime.model, ScriptedModel)
        await runtime.model.gate("gate").reached()
        monkeypatch.setattr(Turn, "look_back", fail)
        await runtime.close(0.0)
        assert (await handle).outcome is Outcome.ERROR
        (seen,) = [one for one in await PostgresStore(store.database, store.workspace).load_all()
                   if one.session_id == "s"]
        assert seen.free
