"""An outbox under attack: what comes between an intent and its answer loses no prompt, and leaves no caller waiting."""

import asyncio
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from support.runtimes import World, until, world
from support.stores import Meddled

from cancelmark.impl.models.scripted import Stubborn, Wait, say
from cancelmark.impl.runtime import Closing, Handle, Moved, RunIdInUse, Stuck, writer
from cancelmark.impl.runtime.intents import Cancel, ClearQueue, Hold
from cancelmark.impl.runtime.session import LivePrompt, Session
from cancelmark.impl.store import (
    EPOCH,
    AcceptPrompt,
    CommitAnswer,
    CommitRequest,
    Committed,
    MemoryStore,
    MovePrompt,
    NoRoom,
    Operation,
    PutMessage,
    SqliteStore,
    Unconfirmed,
)
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import Outcome, Trigger
from cancelmark.model.protocol import FAMILY


class Slow(Meddled, MemoryStore):
    """Each commit waits at its gate, if it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await super().commit(steps)


class Numbering(Slow):
    """A store that several servers share: it gives out the seqs, and others have taken some before."""

    shared = True
    taken = 0  # by others, before the next

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        seqs: list[int] = []
        operations: list[Operation] = []
        latest = await self.latest_seq()
        for operation in steps.operations:
            match operation:
                case AcceptPrompt(seq=0):
                    seqs.append(max([latest, *seqs]) + 1 + self.taken)
                    self.taken = 0
                    operation = operation._replace(seq=seqs[-1])
                case MovePrompt(seq=0):
                    operation = operation._replace(seq=seqs[-1])
                case PutMessage(message) if message.id == "p0":
                    operation = PutMessage(message._replace(id=f"p{seqs[-1]}"))
            operations.append(operation)
        answer = await super().commit(steps._replace(operations=operations))
        return answer._replace(seqs=tuple(seqs), epoch=EPOCH) if isinstance(answer, Committed) else answer


async def behind_a_cancel(w: World, store: Slow) -> None:
    """What is asked next gathers behind a cancel that is being committed."""
    await (await w.accept("first"))
    store.gate.clear()
    w.runtime.boxes["s"].submit_nowait(Cancel())
    await until(lambda: store.waiting == 1)


async def test_prompts_that_are_accepted_together_end_whatever_seqs_the_store_gives_them() -> None:
    """The first gets the seq that the second was foreseen to have."""
    store = Numbering()
    async with world(store) as w:
        await behind_a_cancel(w, store)
        accepting = [asyncio.ensure_future(w.accept(text, text)) for text in "abc"]
        await asyncio.sleep(0)
        store.taken = 1
        store.gate.set()
        for handle in await asyncio.gather(*accepting):
            assert (await handle).outcome is Outcome.END_TURN


class Faulty(Numbering):
    """Answers the next commits as told: busy, or doubtful, whether it was kept or not."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[str] = []
        self.known: dict[str, CommitAnswer] = {}  # by the commit's id, under which a repetition is idempotent

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        how = self.answers.pop(0) if self.answers and self.gate.is_set() else "ok"
        if how == "busy":
            raise NoRoom("here", "it is full", "wait")
        if how != "lost" and (not steps.id or steps.id not in self.known):
            self.known[steps.id] = await super().commit(steps)
        if how != "ok":
            raise Unconfirmed("here", "no answer", "retry")
        return self.known[steps.id]


@pytest.mark.parametrize("answers", [
    answers for n in range(4) for answers in product(("busy", "lost", "kept"), repeat=n)], ids="-".join)
@pytest.mark.rule("R1d")
async def test_a_step_that_was_doubtful_once_is_never_told_as_refused(
    answers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancel and the acceptance behind it are one commit, which the store answers in these ways before it is well."""
    monkeypatch.setattr(writer, "PATIENCE", (0.0,))
    store = Faulty()
    async with world(store) as w:
        await behind_a_cancel(w, store)
        canceling = w.runtime.boxes["s"].submit(Cancel())
        accepting = asyncio.ensure_future(w.accept("b", "run-b"))
        await asyncio.sleep(0)
        store.answers = [*answers]
        store.gate.set()
        await canceling
        (told,) = await asyncio.gather(accepting, return_exceptions=True)
        await until(lambda: not w.runtime.is_busy())
        kept = await store.prompt("run-b")
        if kept is None:
            assert isinstance(told, NoRoom | Unconfirmed)
        else:
            assert isinstance(told, Handle | Unconfirmed)
            assert kept.outcome is Outcome.END_TURN, "the cancel came before it"


@pytest.mark.rule("R22a")
async def test_of_two_prompts_with_one_run_id_that_come_together_one_is_accepted() -> None:
    store = Slow()
    async with world(store) as w:
        await behind_a_cancel(w, store)
        accepting = [asyncio.ensure_future(w.accept(text, run_id)) for text, run_id in ("ax", "bx", "cy")]
        await asyncio.sleep(0)
        store.gate.set()
        first, second, third = await asyncio.gather(*accepting, return_exceptions=True)
        assert isinstance(second, RunIdInUse)
        assert isinstance(first, Handle)
        assert isinstance(third, Handle)
        assert (await first).outcome is (await third).outcome is Outcome.END_TURN


async def test_a_prompt_that_is_dropped_before_its_acceptance_is_stored_hides_no_other() -> None:
    store = Slow()
    async with world(store) as w:
        _, gate = await w.active("a", "run-a")
        store.gate.clear()
        accepting = asyncio.ensure_future(w.accept("b", "run-b"))
        await until(lambda: store.waiting == 1)
        clearing = w.runtime.boxes["s"].submit(ClearQueue())
        unfinished = w.runtime.unfinished("s")
        store.gate.set()
        gate.open()
        await asyncio.gather(accepting, clearing)
        assert unfinished == 1


@pytest.mark.parametrize("store", [Slow, Numbering])
async def test_an_acceptance_that_is_stored_though_its_session_is_lost_meanwhile_is_answered(store: type[Slow]) -> None:
    """Its caller would send the prompt again."""
    slow = store()
    async with world(slow) as w:
        slow.gate.clear()
        box = w.runtime.boxes["s"]
        accepting = [asyncio.ensure_future(w.accept(text)) for text in "ab"]
        await until(lambda: slow.waiting == 1)
        box.lose()
        with pytest.raises(Moved):
            await accepting[1]
        slow.gate.set()
        handle = await accepting[0]
        assert await slow.prompt(handle.seq)
        with pytest.raises(Moved):
            await handle
        await until(lambda: not box.working)
        assert (w.runtime.pending, box.runs, w.model.calls) == (0, {}, 0)


async def test_a_call_that_fails_in_the_middle_harms_nothing_that_is_asked_before_the_session_is_loaded(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("injected")

    store = Slow()
    async with world(store, protocol=FAMILY) as w:
        first, gate = await w.active("a", "run-a")
        second = await w.queued("b", "run-b")
        store.gate.clear()
        box = w.runtime.boxes["s"]
        holding = box.submit(Hold("hold"))
        await until(lambda: store.waiting == 1)
        with monkeypatch.context() as broken:
            broken.setattr(Session, "fire", fail)
            clearing = box.submit(ClearQueue())
        assert box.session.torn
        resuming, accepting = box.submit(Hold("resume")), asyncio.ensure_future(w.accept("c", "run-c"))
        gate.open()
        await until(lambda: len(box.entries) == 4)  # the last is the turn's end
        store.gate.set()
        with pytest.raises(KeyError):
            await clearing
        assert (await holding).held
        assert not (await resuming).held
        for handle in (first, second, await accepting):
            assert (await handle).outcome is Outcome.END_TURN


async def test_a_call_that_was_never_applied_is_not_answered_as_if_it_were_stored() -> None:
    """It waits for its session, which is being loaded when the runtime ends."""
    store = Slow()
    async with world(store) as w:
        await (await w.accept("first"))
        box = w.runtime.boxes["s"]
        await box.lock()
        canceling = box.submit(Cancel())
        w.runtime.over.set()
        later = box.submit(Cancel())
        for one in (canceling, later):
            with pytest.raises(Closing):
                await one
        box.unlock()


def test_a_session_whose_recovery_fails_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was active when the last life ended is not run again."""
    path = tmp_path / "test.db"

    async def leave() -> None:
        async with world(SqliteStore(path)) as w:
            await w.active("a", "run-a")
            with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(path.with_name("crash.db"))) as copy:
                now.backup(copy)

    async def start() -> None:
        fire = Session.fire

        def fail(self: Session, prompt: LivePrompt, trigger: Trigger) -> None:
            if self.effects.action == "recover":
                raise KeyError("injected")
            fire(self, prompt, trigger)

        monkeypatch.setattr(Session, "fire", fail)
        async with world(SqliteStore(path.with_name("crash.db"))) as w:
            with pytest.raises(Stuck):
                await w.accept("b")
            assert w.model.calls == 0

    asyncio.run(leave())
    asyncio.run(start())


async def test_an_interrupt_that_is_refused_stops_nobody_whatever_seq_the_store_gives_what_runs() -> None:
    class Full(Numbering):
        async def commit(self, steps: CommitRequest) -> CommitAnswer:
            if any(isinstance(operation, AcceptPrompt) and operation.traits.urgent for operation in steps.operations):
                raise NoRoom("here", "the disk is full", "make room")
            return await super().commit(steps)

    store = Full()
    async with world(store, protocol=FAMILY) as w:
        store.gate.clear()
        store.taken = 2
        accepting = asyncio.ensure_future(w.accept("a", "run-a"))
        await until(lambda: store.waiting == 1)
        interrupting = asyncio.ensure_future(w.runtime.accept("s", "b", "run-b", (), Feature.INTERRUPT))
        await until(lambda: len(w.runtime.boxes["s"].entries) == 2)
        store.gate.set()
        with pytest.raises(NoRoom):
            await interrupting
        assert (await (await accepting)).outcome is Outcome.END_TURN


async def test_a_turn_that_has_ended_is_not_abandoned_though_its_end_is_not_applied_yet() -> None:
    async with world(MemoryStore()) as w:
        handle, gate = await w.active("a", "run-a")
        box = w.runtime.boxes["s"]
        run = box.runs[handle.seq]
        await box.lock()
        gate.open()
        await until(lambda: bool(box.entries))
        await w.runtime.turns.abandon(box, run)
        box.unlock()
        assert (await handle).outcome is Outcome.END_TURN
        assert w.messages() == [("user", None), ("assistant", "end_turn")]


async def test_a_session_that_is_lost_leaves_no_timer_behind() -> None:
    async with world(MemoryStore()) as w:
        w.plays("a", (Stubborn((Wait("a"),)), *say("done")))
        handle = await w.accept("a", "run-a")
        await w.model.gate("a").reached()
        box = w.runtime.boxes["s"]
        run = box.runs[handle.seq]
        await w.runtime.cancel("s")
        box.lose()
        assert run.grace is not None
        assert run.grace.cancelled()
