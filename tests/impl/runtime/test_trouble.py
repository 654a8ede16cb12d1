"""When the store fails under a whole runtime: what passes is waited out, what does not is told, and nothing is lost.

Failures are made by SQLite itself: triggers that refuse, pages that run out, tables that are gone. The last part takes
the disk away from a process, by its limit on file sizes and by a file system that is full.
"""

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.paths import SUPPORT
from support.runtimes import PATIENCE, World, until, world
from support.stores import Meddled, at_once, unfinished

from cancelmark.impl.models.scripted import ScriptedModel, Wait, say
from cancelmark.impl.runtime import Handle, Outbox, Runtime, Stuck
from cancelmark.impl.runtime.session import TakenStep
from cancelmark.impl.store import (
    AcceptPrompt,
    AppendEvent,
    Broken,
    CommitAnswer,
    CommitRequest,
    ConstraintViolation,
    MemoryStore,
    MessageRecord,
    NewSession,
    NoRoom,
    PutMessage,
    SqliteStore,
    StoreError,
    Unstorable,
)
from cancelmark.impl.wire import Held
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY

Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@contextmanager
def other_program(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)) as db:
        yield db


def refuse(path: Path, what: str, when: str) -> None:
    """From now on the database refuses such rows, for good."""
    with other_program(path) as db:
        db.execute(f"CREATE TRIGGER injected BEFORE {what} WHEN {when} BEGIN SELECT RAISE(ABORT, 'injected'); END")


async def ends_after_a_restart(path: Path) -> dict[str | None, str]:
    """Each run id's one end, once a new runtime has taken up what the last one left."""
    with other_program(path) as db:
        db.execute("DROP TRIGGER IF EXISTS injected")
    async with asyncio.timeout(PATIENCE), Runtime(ScriptedModel(), SqliteStore(path)) as runtime:
        await until(lambda: not runtime.is_busy())
        assert (await unfinished(runtime.store)) == []
        events = await runtime.store.events(terminal=True)
        assert max(Counter(e.payload["seq"] for e in events).values()) == 1
        return {event.run_id: event.payload["outcome"] for event in events}


# --- A prompt that cannot start ---------------------------------------------------------------------------------------

async def not_ready(session_id: str) -> None:
    raise LookupError("the agent is not initialized")


@pytest.mark.rule("R8a")
async def test_a_prompt_that_cannot_start_ends_with_the_reason_and_the_next_one_is_tried(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        w.runtime.ready = not_ready
        first = await w.accept("a", "run-a")
        result = await first
        assert (result.outcome, result.error) == (Outcome.ERROR, "the agent is not initialized")
        assert [t.state for t in await w.store.transitions(first.seq)] == [State.ACCEPTED, State.DONE]
        w.runtime.ready = None
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN
        assert w.ends() == [("run-a", "error"), ("run-b", "end_turn")]


@pytest.mark.rule("R8b")
async def test_a_prompt_that_cannot_start_and_was_canceled_meanwhile_is_canceled_on_entry(path: Path) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(session_id: str) -> None:
        asked.set()
        await go_on.wait()
        raise LookupError("the agent is not initialized")

    async with world(SqliteStore(path)) as w:
        w.runtime.ready = slowly
        handle = await w.accept("a", "run-a")
        await asked.wait()
        await w.runtime.cancel("s")
        go_on.set()
        result = await handle
        assert (result.outcome, result.error) == (Outcome.CANCELED, None)
        assert State.CANCELED_ON_ENTRY in [t.state for t in await w.store.transitions(handle.seq)]
        assert w.messages() == [("user", None), ("assistant", "canceled")]


async def test_a_prompt_that_cannot_start_does_not_disturb_the_one_that_runs(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        active, gate = await w.active("a", "run-a")
        w.runtime.ready = not_ready
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.ERROR
        assert w.runtime.is_busy("s")
        gate.open()
        assert (await active).outcome is Outcome.END_TURN


# --- Messages that are refused ----------------------------------------------------------------------------------------

async def test_a_message_of_the_user_that_is_refused_ends_its_prompt_with_an_error(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        refuse(path, "INSERT ON messages", "new.parts LIKE '%poison%'")
        result = await (await w.accept("poison", "run-a"))
        assert result.outcome is Outcome.ERROR
        assert "could not be stored" in str(result.error)
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN
        assert w.ends() == [("run-a", "error"), ("run-b", "end_turn")]
        assert w.model.calls == 1


@pytest.mark.parametrize("what", ["INSERT ON messages", "UPDATE ON messages"])
async def test_an_answer_that_is_refused_is_left_out_and_its_prompt_ends(path: Path, what: str) -> None:
    async with world(SqliteStore(path)) as w:
        refuse(path, what, "new.parts LIKE '%poison%'")
        w.plays("a", (Wait("poison"), *say("poison")))
        handle = await w.accept("a", "run-a")
        await until(lambda: w.messages()[-1:] == [("assistant", None)])
        w.model.gate("poison").open()
        result = await handle
        assert (result.outcome, result.text) == (Outcome.END_TURN, "poison")  # it did end so
        (_, answer) = await w.store.messages("s")
        if what.startswith("UPDATE"):
            assert answer.finish_reason == "error"
            assert "could not be stored" in answer.parts[-1]["data"]["message"]
        assert (await (await w.accept("b", "run-b"))).outcome is Outcome.END_TURN


async def test_a_store_that_takes_no_answer_at_all_does_not_keep_a_prompt_from_its_end(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        refuse(path, "INSERT ON messages", "new.role = 'assistant'")
        result = await (await w.accept("a", "run-a"))
        assert result.outcome is Outcome.END_TURN  # it did end so
        assert w.ends() == [("run-a", "end_turn")]
        assert w.messages() == [("user", None)]
        assert not w.runtime.is_busy("s")


# --- A journal that is refused, or a store that is broken -------------------------------------------------------------

async def test_a_journal_that_is_refused_stops_its_session_loudly_and_no_other(
    path: Path, caplog: pytest.LogCaptureFixture,
) -> None:
    async with world(SqliteStore(path)) as w:
        active, gate = await w.active("a", "run-a")
        queued = await w.queued("b", "run-b")
        refuse(path, "UPDATE ON prompts", "new.session_id = 's' AND new.state = 'done'")
        gate.open()
        for handle in (active, queued):
            with pytest.raises(Stuck, match="restart the server"):
                await handle
        with pytest.raises(Stuck, match="session s is stuck"):
            [_ async for _ in active.events()]
        for call in (w.accept("c"), w.runtime.cancel("s"), w.runtime.clear_queue("s")):
            with pytest.raises(Stuck):
                await call
        assert (await (await w.accept("d", "run-d", "t"))).outcome is Outcome.END_TURN
    (told,) = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert "session s is stuck until the server is restarted" in told.getMessage()
    assert await ends_after_a_restart(path) == {"run-a": "error", "run-b": "end_turn", "run-d": "end_turn"}


async def test_who_waits_for_a_cancel_that_cannot_be_journaled_is_told(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        await w.active("a", "run-a")
        refuse(path, "UPDATE ON sessions", "true")
        with pytest.raises(Stuck):
            await w.runtime.cancel("s")
    assert await ends_after_a_restart(path) == {"run-a": "error"}


async def test_a_turn_in_a_session_that_stands_still_says_nothing_more(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        _, gate = await w.active("a", "run-a")
        refuse(path, "UPDATE ON sessions", "true")
        with pytest.raises(Stuck):
            await w.runtime.cancel("s")
        before = await w.store.messages("s")
        gate.open()
        await until(lambda: w.model.running == 0)
        assert await w.store.messages("s") == before
        assert w.runtime.is_busy()
        assert not w.runtime.unfinished()


async def test_a_prompt_that_is_accepted_while_its_session_comes_to_stand_still_is_told_too(path: Path) -> None:
    class Slow(Meddled, SqliteStore):
        async def commit(self, steps: CommitRequest) -> CommitAnswer:
            answer = await super().commit(steps)
            if isinstance(steps.operations[0], AcceptPrompt) and steps.operations[0].run_id == "run-b":
                await go_on.wait()
            return answer

    go_on = asyncio.Event()
    async with world(Slow(path)) as w:
        await w.active("a", "run-a")
        accepting = asyncio.ensure_future(w.accept("b", "run-b"))
        await until(lambda: at_once(w.runtime.status("run-b")) is not None)
        refuse(path, "UPDATE ON sessions", "true")
        canceling = asyncio.ensure_future(w.runtime.cancel("s"))
        await asyncio.sleep(0)
        go_on.set()
        handle = await accepting
        with pytest.raises(Stuck):
            await canceling
        with other_program(path) as db:
            db.execute("DROP TRIGGER injected")  # too late: nobody knows what the journal has missed
        with pytest.raises(Stuck):
            await handle
        assert [t.state for t in await w.store.transitions(handle.seq)] == [State.ACCEPTED, State.QUEUED]
        assert not w.runtime.unfinished()
    assert await ends_after_a_restart(path) == {"run-a": "error", "run-b": "end_turn"}


async def test_a_broken_store_is_told_to_everybody_and_a_close_does_not_wait(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        handle, gate = await w.active("a", "run-a")
        with other_program(path) as db:
            db.execute("ALTER TABLE prompts RENAME TO elsewhere")
        gate.open()
        with pytest.raises(Stuck, match="the database failed"):
            await handle
        await w.runtime.close(PATIENCE)
    with other_program(path) as db:
        db.execute("ALTER TABLE elsewhere RENAME TO prompts")
    assert await ends_after_a_restart(path) == {"run-a": "error"}


async def test_a_store_that_breaks_its_promises_stops_the_session_too(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(Meddled, MemoryStore):
        async def commit(self, steps: CommitRequest) -> CommitAnswer:
            if any(isinstance(op, AppendEvent) for op in steps.operations):
                raise KeyError("a bug")
            return await super().commit(steps)

    async with world(Buggy()) as w:
        handle, gate = await w.active("a", "run-a")
        gate.open()
        with pytest.raises(Stuck, match="a bug"):
            await handle
    assert [r.levelno for r in caplog.records if "is stuck" in r.getMessage()] == [logging.CRITICAL]


@pytest.mark.parametrize("failing", range(4))
async def test_a_call_whose_step_is_stored_is_answered_whatever_fails_after_that(
        failing: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls in two commits; what one of their steps asks for fails once it is stored."""
    do, done = Outbox._apply_effects, list[str]()

    def fail(self: Outbox, step: TakenStep) -> None:
        done.append(step.action)
        if len(done) == failing + 1:
            raise ValueError("injected")
        do(self, step)

    monkeypatch.setattr(Outbox, "_apply_effects", fail)
    store = SqliteStore(path)
    async with asyncio.timeout(PATIENCE), Runtime(ScriptedModel(), store, protocol=FAMILY) as runtime:
        await runtime.create_session("s")
        calls = [runtime.hold("s"), runtime.resume("s"), runtime.hold("s"), runtime.resume("s")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        stored = 4 if failing else 1  # the first call has a commit of its own, and the others were to follow
        assert [isinstance(answer, Held) for answer in answers] == [n < stored for n in range(4)]
        assert all(isinstance(answer, Held | Stuck) for answer in answers)


async def test_a_session_that_cannot_be_recovered_does_not_keep_the_server_from_starting(path: Path) -> None:
    async def leave() -> None:
        async with world(SqliteStore(path)) as w:
            await w.active("a", "run-a")
            await w.active("b", "run-b", "t")
            with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(path.with_name("crash.db"))) as copy:
                now.backup(copy)

    async def start(crash: Path) -> None:
        async with world(SqliteStore(crash)) as w:
            assert w.ends("t") == [("run-b", "error")]
            with pytest.raises(Stuck):
                await w.accept("c")
            assert (await (await w.accept("d", "run-d", "t"))).outcome is Outcome.END_TURN

    await leave()
    crash = path.with_name("crash.db")
    SqliteStore(crash).close()
    refuse(crash, "UPDATE ON prompts", "new.session_id = 's'")
    await start(crash)
    assert await ends_after_a_restart(crash) == {"run-a": "error", "run-b": "error", "run-d": "end_turn"}


async def test_messages_that_cannot_be_read_do_not_keep_an_interrupted_prompt_from_ending(path: Path) -> None:
    async with world(SqliteStore(path)) as w:
        await w.active("a", "run-a")
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(path.with_name("crash.db"))) as copy:
            now.backup(copy)
    crash = path.with_name("crash.db")
    with other_program(crash) as db:
        db.execute("UPDATE messages SET parts = 'no JSON'")
    assert await ends_after_a_restart(crash) == {"run-a": "error"}


# --- What may pass ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("code", "kind"), [
    ("SQLITE_BUSY", StoreError), ("SQLITE_FULL", NoRoom), ("SQLITE_IOERR", StoreError),
    ("SQLITE_READONLY", StoreError), ("SQLITE_CANTOPEN", StoreError), ("SQLITE_NOMEM", StoreError),
    ("SQLITE_CORRUPT", Broken), ("SQLITE_NOTADB", Broken), ("SQLITE_ERROR", Broken), ("SQLITE_MISUSE", Broken),
    ("SQLITE_TOOBIG", Unstorable),
])
def test_what_is_tried_again_is_what_may_pass(code: str, kind: type[StoreError], path: Path) -> None:
    from cancelmark.impl.store.troubles import explain

    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = getattr(sqlite3, code)  # type: ignore[misc]
    explained = explain(path, error)
    assert type(explained) is kind
    assert explained.retry == (kind in (StoreError, NoRoom))


async def test_what_cannot_be_stored_says_so_and_is_not_tried_again(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        await store.write([NewSession("s")])
        with pytest.raises(Unstorable, match="too large"):
            await store.write([PutMessage(MessageRecord("m", "s", "user", (), created_at=2**63))])
        with pytest.raises(ConstraintViolation):
            await store.write([NewSession("s")])
        assert not any(kind.retry for kind in (Unstorable, ConstraintViolation, Broken))


def limit_pages(store: SqliteStore, more: int | None) -> None:
    """So many pages more fit on the disk; without a number, as many as you like."""
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {2**30 if more is None else pages + more}")


@pytest.mark.parametrize("more", range(4))
async def test_a_full_disk_delays_every_prompt_and_loses_none(
    path: Path, more: int, caplog: pytest.LogCaptureFixture,
) -> None:
    store = SqliteStore(path)
    async with world(store) as w:
        a, gate = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        t, other = await w.active("t", "run-t", "t")
        limit_pages(store, more)
        w.plays("b", say("x" * 50_000))
        w.plays("t", say("y" * 50_000))
        accepted: list[tuple[str, Handle]] = []
        gate.open()
        other.open()

        async def fill() -> None:
            for number in range(40):
                accepted.append((f"run-{number}", await w.accept("z" * 1000, f"run-{number}")))

        with pytest.raises(StoreError, match="disk is full"):
            await fill()
        await until(lambda: "retrying" in caplog.text)
        limit_pages(store, None)
        assert await w.runtime.status(f"run-{len(accepted)}") is None, "what was refused left a trace"
        for handle in (a, b, t, *(handle for _, handle in accepted)):
            assert (await handle).outcome is Outcome.END_TURN
        ends = Counter(run_id for session in "st" for run_id, _ in w.ends(session))
        assert ends == Counter(["run-a", "run-b", "run-t", *(run_id for run_id, _ in accepted)])


async def test_a_restart_ends_what_a_full_disk_held_up(path: Path) -> None:
    store = SqliteStore(path)
    async with world(store, grace=0.2) as w:
        _, gate = await w.active("a", "run-a")
        await w.queued("b", "run-b")
        limit_pages(store, 0)
        w.plays("a", say("x" * 100_000))
        gate.open()
        with pytest.raises(StoreError, match="disk is full"):
            await w.accept("c" * 100_000, "run-c")
        await w.runtime.close(0)
    ends = await ends_after_a_restart(path)
    assert ends.keys() == {"run-a", "run-b"}


async def test_a_cancel_on_a_full_disk_holds_when_there_is_room_again(path: Path) -> None:
    store = SqliteStore(path)
    async with world(store) as w:
        a, _ = await w.active("a", "run-a")
        b = await w.queued("b", "run-b")
        with other_program(path) as db:
            db.execute("BEGIN IMMEDIATE")
            canceling = asyncio.ensure_future(w.runtime.cancel("s"))
            await asyncio.sleep(0.05)
            assert not canceling.done(), "a cancel was acknowledged that is not durable"
            db.execute("ROLLBACK")
        await canceling
        assert [(await handle).outcome for handle in (a, b)] == [Outcome.CANCELED] * 2


# --- Disks that are taken away from a process -------------------------------------------------------------------------

SCRIPT = SUPPORT / "starved.py"


def starved(path: Path, how: str) -> str:
    """What a server says that runs out of disk space, gets it back, and closes."""
    done = subprocess.run([sys.executable, "-W", "error", str(SCRIPT), str(path), how], capture_output=True, text=True,
                          timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout, "the disk was never full"
    return done.stdout


async def assert_nothing_is_lost(path: Path, said: str) -> None:
    accepted = {line.split()[1] for line in said.splitlines() if line.startswith("accepted")}
    refused = {line.split()[1] for line in said.splitlines() if line.startswith("refused")}
    ends = await ends_after_a_restart(path)
    assert len(accepted) > 5
    assert accepted <= ends.keys(), "an accepted prompt was lost"
    assert refused.isdisjoint(ends)


@pytest.mark.parametrize("how", ["returns", "killed"])
async def test_a_limit_on_the_size_of_files_loses_nothing(path: Path, how: str) -> None:
    await assert_nothing_is_lost(path, starved(path, f"limit-{how}"))


async def test_a_full_file_system_loses_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system may not be mounted here")  # in CI too: it takes a privilege, not a package
    try:
        await assert_nothing_is_lost(small / "test.db", starved(small / "test.db", "fill"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert not os.listdir(small)
