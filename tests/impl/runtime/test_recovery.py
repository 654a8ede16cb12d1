"""After a crash: nothing that was accepted is lost, no end comes twice, and a cancel that was acknowledged still holds.

The first half takes a copy of the file while a runtime is in the middle of something, which is what a crash would
leave, and starts another runtime on the copy. The second half kills real processes.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from support.budget import effort
from support.kills import Observer
from support.runtimes import PATIENCE, World, calls, tool, until, world
from support.stores import Meddled, at_once, unfinished

from cancelmark.conformance.trace.check import TraceCheck
from cancelmark.conformance.trace.records import TraceLine, read_lines
from cancelmark.impl.models import FinishReason, ToolCall, ToolResult
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import Runtime, Stuck
from cancelmark.impl.runtime.messages import finished, said, text_of, user_message, wire_part
from cancelmark.impl.runtime.ownership import INTERRUPTED
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    CommitAnswer,
    CommitRequest,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    SqliteStore,
)
from cancelmark.model.actions import Argument, Port, recover
from cancelmark.model.family import FAMILY_ACTIONS
from cancelmark.model.lifecycle import Outcome, State, Trigger
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol

USER, NORMAL = ("user", None), ("assistant", "end_turn")
CANCELED, ERROR = ("assistant", "canceled"), ("assistant", "error")


class Crashes:
    """Stores, each in the file that a crash of the last one has left."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lives = 0

    @property
    def path(self) -> Path:
        return self._directory / f"{self._lives}.db"

    def open(self) -> SqliteStore:
        return SqliteStore(self.path)

    def crash(self) -> None:
        """The next store is as this one is now. What this one does from now on has never happened."""
        with closing(sqlite3.connect(self.path)) as now:
            self._lives += 1
            with closing(sqlite3.connect(self.path)) as copy:
                now.backup(copy)

    async def journal(self, *operations: Operation) -> None:
        """What the last life has left, in so many words."""
        with closing(self.open()) as store:
            await store.write([NewSession("s"), NewSession("t"), *operations])


@pytest.fixture
def crashes(tmp_path: Path) -> Crashes:
    return Crashes(tmp_path)


def quiet(w: World) -> Callable[[], bool]:
    return lambda: not any(map(w.runtime.is_busy, ("s", "t")))


@pytest.mark.rule("R14a", "R17a", "R23a")
async def test_what_was_active_ends_interrupted_once_and_its_unfinished_message_is_closed(crashes: Crashes) -> None:
    async with world(crashes.open()) as w:
        await w.active("a", "run-a")
        await until(lambda: w.messages() == [USER, ("assistant", None)])
        crashes.crash()
    for _ in range(2):
        async with world(crashes.open()) as w:
            await until(quiet(w))
            assert w.messages() == [USER, ERROR]
            assert w.ends() == [("run-a", "error")]
            assert w.end("run-a")["error"] == INTERRUPTED
            assert w.end("run-a")["message_id"] == (await w.store.messages("s"))[1].id
            assert w.model.calls == 0
            crashes.crash()


async def test_a_tool_call_that_a_crash_left_open_is_closed(crashes: Crashes) -> None:
    started = asyncio.Event()

    async def slow(arguments: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with world(crashes.open(), [tool("read", slow)]) as w:
        w.plays("a", calls("c1"))
        await w.accept("a", "run-a")
        await started.wait()
        crashes.crash()
    async with world(crashes.open()) as w:
        await until(quiet(w))
        result = (await w.store.messages("s"))[-1].parts[0]["data"]
        assert (result["tool_call_id"], result["content"], result["is_error"]) == ("c1", INTERRUPTED, True)


@pytest.mark.rule("R17b", "R17d")
async def test_what_was_accepted_and_queued_goes_on_in_order(crashes: Crashes) -> None:
    async with world(crashes.open()) as w:
        await w.active("a", "run-a")
        await w.queued("b", "run-b")
        w.runtime.holding = True
        await w.accept("c", "run-c")
        w.runtime.door("d").set()
        await w.queued("d", "run-d")
        await w.accept("e", "run-e", "t")
        assert w.states() == [State.ACTIVE, State.QUEUED, State.ACCEPTED, State.QUEUED, State.ACCEPTED]
        crashes.crash()
    async with world(crashes.open(), held=["b"]) as w:
        await w.model.gate("b").reached()
        assert w.runtime.queued("s") == ["c", "d"]
        w.model.gate("b").open()
        await until(quiet(w))
        assert w.ends() == [("run-a", "error"), *((f"run-{text}", "end_turn") for text in "bcd")]
        assert w.ends("t") == [("run-e", "end_turn")]


@pytest.mark.rule("R2", "R16a", "R17c")
async def test_an_acknowledged_cancel_still_holds(crashes: Crashes) -> None:
    async with world(crashes.open()) as w:
        w.runtime.holding = True
        await w.accept("a", "run-a")
        await w.accept("b")
        await w.runtime.cancel("s")
        await w.accept("c", "run-c")
        crashes.crash()
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert sorted(w.ends(), key=str) == [("run-a", "canceled"), ("run-c", "end_turn"), (None, "canceled")]
        assert sorted(w.messages(), key=str) == sorted([USER, CANCELED, USER, CANCELED, USER, NORMAL], key=str)
        assert w.model.calls == 1


@pytest.mark.rule("R17c", "R21")
async def test_what_was_canceled_on_entry_is_settled(crashes: Crashes) -> None:
    await crashes.journal(
        AcceptPrompt(1, "s", "a", "run-a"), RaiseMark("s", 1), MovePrompt(1, State.CANCELED_ON_ENTRY))
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert w.ends() == [("run-a", "canceled")]
        assert w.messages() == [USER, CANCELED]
        assert w.model.calls == 0


@pytest.mark.rule("R17a", "R17b", "R17c", "R20")
async def test_each_session_recovers_by_itself(crashes: Crashes) -> None:
    """Each has something else to recover, and what comes of it is written in that session and in no other."""
    prompts = {1: ("s", State.ACTIVE), 2: ("t", State.CANCELED_ON_ENTRY), 3: ("s", State.QUEUED),
               4: ("t", State.ACTIVE), 5: ("u", State.QUEUED)}
    await crashes.journal(
        NewSession("u"), RaiseMark("t", 2),
        *(AcceptPrompt(seq, session, f"{seq}", f"run-{seq}") for seq, (session, _) in prompts.items()),
        *(MovePrompt(seq, state) for seq, (_, state) in prompts.items()))
    for _ in range(2):
        async with world(crashes.open()) as w:
            await until(lambda: not any(map(w.runtime.is_busy, "stu")))
            assert w.ends("s") == [("run-1", "error"), ("run-3", "end_turn")]
            assert sorted(w.ends("t")) == [("run-2", "canceled"), ("run-4", "error")]
            assert w.ends("u") == [("run-5", "end_turn")]
            for session in "stu":
                told = {message.id.partition("-")[0] for message in await w.store.messages(session)}
                assert told == {f"p{seq}" for seq, (where, _) in prompts.items() if where == session}
            assert [session.mark for session in await w.store.sessions()] == [0, 2, 0]
            crashes.crash()


async def test_a_prompt_that_was_folded_stays_folded(crashes: Crashes) -> None:
    async with world(crashes.open(), held=["c"]) as w:
        active, gate = await w.active("a", "run-a")
        await w.queued("b", "run-b")
        guest = await w.queued("c")
        gate.open()
        await active
        await w.model.gate("c").reached()  # the turn of b has heard c
        crashes.crash()
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert w.ends() == [("run-a", "end_turn"), ("run-b", "error")]
        assert [t.outcome for t in await w.store.transitions(guest.seq)][-1] is Outcome.FOLDED
        assert w.messages() == [USER, NORMAL, USER, USER, ERROR]


@pytest.mark.rule("R17e")
async def test_a_cancel_of_seqs_that_were_never_journaled_does_not_reach_a_prompt_after_the_restart(
    crashes: Crashes,
) -> None:
    await crashes.journal(RaiseMark("s", 7))
    async with world(crashes.open()) as w:
        handle = await w.accept("a")
        assert handle.seq > 7
        assert (await handle).outcome is Outcome.END_TURN


@pytest.mark.parametrize("answers", [0, 1])
async def test_a_crash_during_recovery_leaves_one_ending(crashes: Crashes, answers: int) -> None:
    """The ending's messages were written, and the crash came before the prompt's end was."""
    answer = MessageRecord("p1-2", "s", "assistant", (wire_part(ToolCall("c1", "read", "{}")),))
    await crashes.journal(
        AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.ACTIVE), PutMessage(user_message("s", 1, "a")),
        *[PutMessage(answer)] * answers)

    class Dying(Meddled, SqliteStore):
        async def commit(self, steps: CommitRequest) -> CommitAnswer:
            if any(isinstance(op, MovePrompt) for op in steps.operations):
                crashes.crash()
            return await super().commit(steps)

    async with world(Dying(crashes.path)) as w:
        await until(quiet(w))
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert w.messages() == [USER, ERROR, *[("tool", None)] * answers]
        assert w.ends() == [("run-a", "error")]


async def test_the_answer_of_another_prompt_is_not_taken_for_its_own(crashes: Crashes) -> None:
    theirs = MessageRecord("p1-2", "s", "assistant", ())
    await crashes.journal(
        AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.DONE, Outcome.CANCELED),
        AppendEvent("s", TERMINAL, {"outcome": "canceled"}, "run-a"), PutMessage(user_message("s", 1, "a")),
        PutMessage(theirs), AcceptPrompt(12, "s", "b", "run-b"), MovePrompt(12, State.ACTIVE))
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert (await w.store.messages("s"))[1] == theirs
        assert w.end("run-b")["message_id"].startswith("p12-")


@pytest.mark.rule("R15c", "R17e")
async def test_closing_leaves_nothing_to_recover(crashes: Crashes) -> None:
    async with world(crashes.open()) as w:
        await w.active("a", "run-a")
        await w.queued("b", "run-b")
    async with world(crashes.open()) as w:
        assert w.states() == []
        assert sorted(w.ends()) == [("run-a", "canceled"), ("run-b", "canceled")]
        assert (await (await w.accept("c", "run-c"))).outcome is Outcome.END_TURN


async def test_a_turn_that_goes_on_after_a_summary_is_interrupted_like_any_other(crashes: Crashes) -> None:
    summary = MessageRecord("p1-3", "s", "system", ({"type": "text", "data": {
        "text": "Summary of the conversation so far: none"}},))
    ended = finished(MessageRecord("p1-2", "s", "assistant", ()), FinishReason.ERROR)
    await crashes.journal(
        AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.ACTIVE), PutMessage(user_message("s", 1, "a")),
        PutMessage(ended), PutMessage(summary), MovePrompt(1, State.QUEUED), MovePrompt(1, State.ACTIVE))
    async with world(crashes.open()) as w:
        await until(quiet(w))
        assert w.messages() == [USER, ERROR, ("system", None), ERROR]
        assert w.ends() == [("run-a", "error")]


# --- Processes that are killed --------------------------------------------------------------------------------------

KILLS = effort(64)  # hundreds, and more, in `make test-deep`


async def clean_run(path: Path, protocol: Protocol = REFERENCE) -> None:
    """A last life in which everything ends."""
    async with asyncio.timeout(PATIENCE), Runtime(ScriptedModel(), SqliteStore(path), protocol=protocol) as runtime:
        if protocol is FAMILY:
            for session in "st":
                await runtime.resume(session)
        await until(lambda: not any(map(runtime.is_busy, "st")))


@pytest.mark.rule("R1b", "R14a", "R16a", "R21")
def test_no_kill_loses_an_accepted_prompt_or_an_acknowledged_cancel_or_ends_a_prompt_twice(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    random, observer = Random(1), Observer()
    seed = 0
    while observer.kills < KILLS:
        seed += 1
        observer.live(path, seed, random)
    asyncio.run(clean_run(path))
    interrupted = check_journal(path, observer)

    # Nothing passes by being impossible: the kills have hit every phase, and there was something to lose.
    assert {"time", "start", "run", "close"} <= set(observer.ends)
    assert len(observer.accepted) > 100
    assert len(observer.covered) > 3
    assert interrupted > 10


def check_journal(path: Path, observer: Observer) -> int:
    """Every prompt has ended once, and what callers were told is true. How many turns a kill has interrupted."""
    with closing(SqliteStore(path)) as store:
        assert at_once(unfinished(store)) == []
        prompts = {seq: at_once(store.transitions(seq)) for seq in range(1, at_once(store.latest_seq()) + 1)}
        terminals = Counter(event.payload["seq"] for event in at_once(store.events(terminal=True)))
        for seq, transitions in prompts.items():
            if transitions:  # a seq can be given out and its prompt never be journaled
                assert transitions[0].state is State.ACCEPTED
                assert [t.outcome for t in transitions].count(None) == len(transitions) - 1
                assert terminals[seq] == (transitions[-1].outcome is not Outcome.FOLDED)
        for run_id in observer.accepted:
            prompt = at_once(store.prompt(run_id))
            assert prompt is not None, "an accepted prompt was lost"
            assert prompt.outcome is not Outcome.FOLDED
        for run_id in observer.covered:
            prompt = at_once(store.prompt(run_id))
            assert prompt is not None
            assert prompt.outcome is Outcome.CANCELED
            assert State.ACTIVE not in [t.state for t in prompts[prompt.seq]]
        by_run_id = Counter(event.run_id for event in at_once(store.events(terminal=True)) if event.run_id)
        assert set(by_run_id.values()) == {1}
        for message in (m for session in "st" for m in at_once(store.messages(session))):
            assert message.role != "assistant" or message.finish_reason, "an answer was left unfinished"
        for session in "st":
            parts = [part for message in at_once(store.messages(session)) for part in said(message).parts]
            called = sum(isinstance(part, ToolCall) for part in parts)
            assert called == sum(isinstance(part, ToolResult) for part in parts)
        for run_id in observer.revoked:
            prompt = at_once(store.prompt(run_id))
            assert prompt is not None
            assert prompt.outcome is Outcome.CANCELED, "a prompt that a revoke has canceled ended otherwise"
        heard = {message.id: text_of(message) for session in "st" for message in at_once(store.messages(session))}
        for run_id, (version, text) in observer.texts.items():
            prompt = at_once(store.prompt(run_id))
            assert prompt is not None
            assert prompt.traits.version >= version, "a text that was taken is lost"
            assert prompt.traits.version > version or prompt.text == text
            assert heard.get(f"p{prompt.seq}", prompt.text) == prompt.text, "a turn began with another text"
        interrupted = [e for e in at_once(store.events(terminal=True)) if e.payload.get("error") == INTERRUPTED]
    return len(interrupted)


def check_trace(path: Path) -> None:
    """What all lives have written is a behaviour of the family, also what each has found of the one before."""
    check, actions = TraceCheck(), set()
    with path.open("rb") as file:
        for line in read_lines(file):
            check.take(line)
            actions |= {line.action} if isinstance(line, TraceLine) else set()
    assert check.complete
    assert actions >= {action.name for action in FAMILY_ACTIONS}


@pytest.mark.rule("R16a", "R30a", "R31c", "R32b", "R33a", "R35b")
def test_no_kill_undoes_what_a_call_of_the_family_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    random, observer = Random(4), Observer("family")
    seed = 0
    phases = {"time", "run", "close"}
    while (observer.kills < effort(24) or not phases <= set(observer.ends)) and seed < effort(200):
        seed += 1
        observer.live(path, seed, random)
    check_trace(tmp_path / "test.db.ndjson")
    asyncio.run(clean_run(path, FAMILY))
    interrupted = check_journal(path, observer)

    assert phases <= set(observer.ends)
    assert len(observer.revoked) > 5
    assert len(observer.texts) > 5
    assert observer.founds > 3, "sessions were held across a kill"
    assert interrupted, "a hold keeps most prompts from running, and not all"


async def test_a_session_whose_recovery_fails_in_the_middle_stands_still_and_runs_nothing() -> None:
    def recover_and_fail(step: Port, arg: Argument) -> None:
        recover(step, arg)
        for prompt in step.active:
            step.fire(prompt, Trigger.SETTLE)

    store = MemoryStore()
    await store.write([NewSession("s"), AcceptPrompt(1, "s", "a", "run-a"), MovePrompt(1, State.ACTIVE),
                       AcceptPrompt(2, "s", "b", "run-b"), MovePrompt(2, State.QUEUED)])
    model = ScriptedModel()
    broken = REFERENCE.changed("broken", recover={"apply": recover_and_fail})
    async with Runtime(model, store, protocol=broken) as runtime:
        with pytest.raises(Stuck, match="no row allows settle"):
            await runtime.cancel("s")
    assert model.calls == 0
