"""The two stores: the same answers to the same batches; and for the file: group commit, failures, crashes, versions."""

import asyncio
import copy
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.postgres import shared_database
from support.simulation.database import SimulatedDatabase, SimulatedServer
from support.stores import at_once, unfinished

from cancelmark.impl.store import (
    MIGRATIONS,
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    Batch,
    ChangePrompt,
    CommitRequest,
    Committed,
    ConstraintViolation,
    Event,
    HoldSession,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PromptRecord,
    PutMessage,
    RaiseMark,
    ReplaceText,
    SessionRecord,
    SqliteStore,
    Store,
    StoreError,
    Transition,
    sqlite,
)
from cancelmark.impl.store.operations import NEEDS
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import Traits

KINDS = ("memory", "sqlite")
Answer: TypeAlias = tuple[int, ...] | BaseException


def open_store(kind: str, directory: Path) -> Store:
    return MemoryStore() if kind == "memory" else SqliteStore(directory / "test.db")


def write(store: Store, *batch: Operation) -> tuple[int, ...]:
    return asyncio.run(store.write(batch))


async def write_together(store: Store, batches: Sequence[Batch]) -> list[Answer]:
    return await asyncio.gather(*(store.write(batch) for batch in batches), return_exceptions=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, timeout=60)) as store:
        write(store, NewSession("s"))
        yield store


@contextmanager
def other_program(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection to the same file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


@contextmanager
def gathering(path: Path) -> Iterator[None]:
    """Keeps the store's next transaction from beginning, so that all that is written meanwhile is in it."""
    with other_program(path) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


async def write_in_one_transaction(store: SqliteStore, batches: Sequence[Batch]) -> list[Answer]:
    with gathering(store.path):
        writing = asyncio.ensure_future(write_together(store, batches))
        while len(store._waiting) < len(batches):
            await asyncio.sleep(0)
    return await writing


def commits_in_wal(path: Path) -> int:
    """How many transactions the write-ahead log holds: a frame that ends one has the database's size in its header."""
    data = Path(f"{path}-wal").read_bytes()
    page_size = int.from_bytes(data[8:12], "big")
    salt = data[16:24]
    frames = [data[at:at + 24] for at in range(32, len(data), 24 + page_size)]
    return sum(frame[4:8] != bytes(4) for frame in frames if frame[8:16] == salt)


# --- the two stores and a dictionary ------------------------------------------------------------------------------

class Model:
    """The store, obviously right: dictionaries, and a copy of everything before each batch."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionRecord] = {}
        self.held: set[str] = set()
        self.prompts: dict[int, PromptRecord] = {}
        self.history: list[Transition] = []
        self.messages: dict[str, MessageRecord] = {}
        self.events: list[Event] = []

    def write(self, batch: Batch) -> tuple[int, ...] | None:
        """The ids of the batch's events, or None if it is refused."""
        before, events = copy.deepcopy(self.__dict__), len(self.events)
        if all(self.apply(operation) for operation in batch):
            return tuple(event.id for event in self.events[events:])
        self.__dict__ = before
        return None

    def apply(self, op: Operation) -> bool:
        match op:
            case NewSession(id, title, created_at):
                fits = id not in self.sessions
                self.sessions.setdefault(id, SessionRecord(id, title, 0, created_at))
                return fits
            case RaiseMark(id, mark) if id in self.sessions:
                self.sessions[id] = self.sessions[id]._replace(mark=max(mark, self.sessions[id].mark))
                return True
            case AcceptPrompt(seq, id, text, run_id, attachments, traits) if id in self.sessions:
                fits = seq > 0 and seq not in self.prompts and run_id not in self.run_ids()
                self.prompts[seq] = PromptRecord(seq, id, text, run_id, State.ACCEPTED, None, None, attachments, traits)
                self.history.append(Transition(seq, State.ACCEPTED, None))
                return fits
            case HoldSession(id, held) if id in self.sessions:
                self.held = self.held | {id} if held else self.held - {id}
                return True
            case ChangePrompt(seq, traits) if seq in self.prompts:
                before = self.prompts[seq]
                self.prompts[seq] = before._replace(traits=traits._replace(begun=before.traits.begun))
                return before.state is not State.DONE
            case ReplaceText(seq, text, was) if seq in self.prompts:
                before = self.prompts[seq]
                self.prompts[seq] = before._replace(text=text, first=was if before.first is None else before.first)
                return before.state is not State.DONE
            case MovePrompt(seq, state, outcome, into) if seq in self.prompts:
                before = self.prompts[seq]
                fits = before.state is not State.DONE and (state is State.DONE) == (outcome is not None)
                traits = before.traits._replace(begun=before.traits.begun or state is State.ACTIVE)
                self.prompts[seq] = before._replace(state=state, outcome=outcome, into=into, traits=traits)
                self.history.append(Transition(seq, state, outcome))
                return fits
            case PutMessage(message, during) if message.session_id in self.sessions:
                fits = self.messages.get(message.id, message).session_id == message.session_id
                if during is not None:
                    fits = fits and during in self.prompts and self.prompts[during].state is not State.DONE
                self.messages[message.id] = message
                return fits
            case AppendEvent(id, type, payload, run_id) if id in self.sessions:
                self.events.append(Event(len(self.events) + 1, id, run_id, type, payload))
                return True
        return False

    def run_ids(self) -> set[str]:
        return {p.run_id for p in self.prompts.values() if p.run_id is not None}


SESSION_IDS = ("s", "t", "u")
RUN_IDS = ("r1", "r2", "r3", "")
SEQS = st.integers(0, 6)
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
PAYLOADS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
PARTS = st.lists(st.builds(lambda data: {"type": "text", "data": data}, PAYLOADS), max_size=2).map(tuple)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(NewSession, st.sampled_from(SESSION_IDS), st.text(max_size=4), st.integers(0, 9)),
    st.builds(RaiseMark, st.sampled_from(SESSION_IDS), st.integers(-1, 9)),
    st.builds(AcceptPrompt, SEQS, st.sampled_from(SESSION_IDS), st.text(max_size=9),
              st.none() | st.sampled_from(RUN_IDS), PARTS,
              st.builds(lambda front, urgent: Traits(front=front, urgent=urgent), st.integers(0, 3), st.booleans())),
    st.builds(HoldSession, st.sampled_from(SESSION_IDS), st.booleans()),
    st.builds(ChangePrompt, SEQS, st.builds(Traits, st.booleans(), st.integers(0, 3), st.integers(0, 3), st.just(False),
                                            st.booleans())),
    st.builds(ReplaceText, SEQS, st.text(max_size=9), st.text(max_size=3)),
    st.builds(MovePrompt, SEQS, st.sampled_from(State), st.none() | st.sampled_from(Outcome),
              st.none() | SEQS),
    st.builds(MovePrompt, SEQS, st.just(State.DONE), st.sampled_from(Outcome), st.none() | SEQS),
    st.builds(PutMessage, st.builds(
        MessageRecord, st.sampled_from("xyz"), st.sampled_from(SESSION_IDS), st.sampled_from(["user", "assistant"]),
        PARTS,
        created_at=st.integers(0, 9), updated_at=st.integers(0, 9)), st.none() | SEQS),
    st.builds(AppendEvent, st.sampled_from(SESSION_IDS), st.sampled_from([TERMINAL, "message"]), PAYLOADS,
              st.none() | st.sampled_from(RUN_IDS)),
)
# Most batches start where there is something to change.
START: Batch = (NewSession("s"), AcceptPrompt(1, "s", "", "r1"), NewSession("t"), AcceptPrompt(2, "t", ""))
GROUPS = st.lists(st.lists(st.lists(OPERATIONS, max_size=4), min_size=1, max_size=4), max_size=6)


async def assert_equal(store: Store, model: Model) -> None:
    assert await store.sessions() == list(model.sessions.values())
    assert {s.session_id for s in await store.load_all() if s.held} == model.held
    assert await unfinished(store) == sorted(
        (p for p in model.prompts.values() if p.state is not State.DONE), key=lambda p: p.seq)
    assert await store.latest_seq() == max([0, *model.prompts, *(s.mark for s in model.sessions.values())])
    for run_id in RUN_IDS:
        assert await store.prompt(run_id) == next((p for p in model.prompts.values() if p.run_id == run_id), None)
    for seq in range(7):
        assert await store.transitions(seq) == [t for t in model.history if t.seq == seq]
    for id in SESSION_IDS:
        everything = [m for m in model.messages.values() if m.session_id == id]
        assert await store.messages(id) == everything
        assert await store.messages(id, last=2) == everything[-2:]
        for place, message in enumerate(everything):
            assert await store.messages(id, since=message.id) == everything[place:]
            assert await store.messages(id, before=message.id) == everything[:place]
            assert await store.messages(id, before=message.id, last=1) == everything[max(0, place - 1):place]
        for other in (m.id for m in model.messages.values() if m.session_id != id):
            assert await store.messages(id, since=other) == await store.messages(id, before=other) == []
    assert await store.latest_event() == len(model.events)
    for after, until, session, terminal, limit in [
        (0, None, None, False, None), (2, None, None, False, 3), (0, None, "s", True, None), (1, 4, "t", False, 2),
        (-1, 0, None, False, None), (0, None, None, True, 0), (99, None, None, False, None),
        *((first, last, name, True, None) for last in range(len(model.events) + 1) for first in (0, last - 1)
          for name in (None, "s")),
    ]:
        assert await store.events(after, until=until, session=session, terminal=terminal, limit=limit) == [
            e for e in model.events[max(after, 0):until]
            if session in (None, e.session_id) and (e.type == TERMINAL or not terminal)][:limit]


async def write_groups(store: Store, groups: list[list[Batch]]) -> None:
    """Batches of a group are written at the same time, and are applied in the order in which they were asked for."""
    model = Model()
    for group in ([START], *groups):
        for result, batch in zip(await write_together(store, group), group):
            expected = model.write(batch)
            assert isinstance(result, ConstraintViolation) if expected is None else result == expected
        await assert_equal(store, model)


@pytest.mark.parametrize(("kind", "rows"), [("memory", 0), ("sqlite", sqlite.ROWS), ("sqlite", 2)])
@given(groups=GROUPS)
@settings(max_examples=effort(10, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_batches_have_the_effect_that_they_have_on_dictionaries(
    kind: str, rows: int, groups: list[list[Batch]], tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also where two rows are many enough to be inserted together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "ROWS", rows)
        with closing(open_store(kind, tmp_path_factory.mktemp("store"))) as store:
            asyncio.run(write_groups(store, groups))


def fit_for_postgres(op: Operation) -> Operation:
    """The operation, in the part of its range in which PostgreSQL is like the others: no NUL in a text, a seq that the
    store does not have to give out or to look up, and one active prompt of a session."""
    match op:
        case NewSession() | AcceptPrompt() | ReplaceText():
            op = op._replace(**{name: value.replace("\0", "0") for name, value in op._asdict().items()
                                if isinstance(value, str)})
            return op._replace(seq=op.seq or 7) if isinstance(op, AcceptPrompt) else op
        case PutMessage(message, during):
            return PutMessage(message._replace(**{name: value.replace("\0", "0") for name, value
                                                  in message._asdict().items() if isinstance(value, str)}), during)
        case MovePrompt():
            return op._replace(seq=op.seq or 7, state=State.QUEUED if op.state is State.ACTIVE else op.state)
    return op


@pytest.mark.parametrize("simulated", [
    pytest.param(True, id="simulated"), pytest.param(False, id="postgres", marks=pytest.mark.real)])
def test_any_batches_have_the_same_effect_on_postgres(simulated: bool) -> None:
    async def run(groups: list[list[Batch]]) -> None:
        store = PostgresStore(database, uuid4())
        await store.make()
        await write_groups(store, [[[*map(fit_for_postgres, batch)] for batch in group] for group in groups])

    with asyncio.Runner() as runner:
        database = (SimulatedDatabase(SimulatedServer()) if simulated
                    else Database(shared_database(), connections=2))
        runner.run(database.open())

        @given(groups=GROUPS)
        @settings(max_examples=effort(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def check(groups: list[list[Batch]]) -> None:
            runner.run(run(groups))

        try:
            check()
        finally:
            runner.run(database.close())


@pytest.mark.rule("R16b")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("refused", [
    NewSession("s"), RaiseMark("x", 1), HoldSession("x", True), ChangePrompt(2, Traits()), ReplaceText(2, "", ""),
    AcceptPrompt(1, "s", "again"), AcceptPrompt(2, "s", "", "r"),
    AcceptPrompt(0, "s", ""), AcceptPrompt(2, "x", ""), MovePrompt(2, State.QUEUED), MovePrompt(1, State.DONE),
    MovePrompt(1, State.QUEUED, Outcome.ERROR), PutMessage(MessageRecord("m", "t", "user", ())),
    PutMessage(MessageRecord("n", "x", "user", ())), AppendEvent("x", TERMINAL, {}),
], ids=repr)
def test_a_batch_with_one_refused_operation_leaves_no_trace(kind: str, refused: Operation, tmp_path: Path) -> None:
    with closing(open_store(kind, tmp_path)) as store:
        write(store, NewSession("s"), NewSession("t"), AcceptPrompt(1, "s", "text", "r"),
              PutMessage(MessageRecord("m", "s", "user", ())))
        with pytest.raises(ConstraintViolation) as refusal:
            write(store, RaiseMark("s", 7), MovePrompt(1, State.QUEUED),
                  PutMessage(MessageRecord("m", "s", "tool", ())), NewSession("new"),
                  AppendEvent("s", TERMINAL, {}), refused)
        assert refusal.value.operation == refused
        assert NEEDS[type(refused)] in str(refusal.value)
        assert [s.mark for s in at_once(store.sessions())] == [0, 0]
        assert at_once(unfinished(store)) == [PromptRecord(1, "s", "text", "r", State.ACCEPTED, None)]
        assert [m.role for m in at_once(store.messages("s"))] == ["user"]
        assert at_once(store.events()) == []
        assert write(store, AppendEvent("s", TERMINAL, {})) == (1,)


# Everything that can be changed is changed twice, or made and changed.
TWICE: Batch = (
    RaiseMark("s", 3), RaiseMark("s", 5), MovePrompt(1, State.QUEUED), MovePrompt(1, State.ACTIVE),
    *(PutMessage(MessageRecord("x", "s", role, ())) for role in ("user", "assistant")), NewSession("u"),
    RaiseMark("u", 1), *(PutMessage(MessageRecord("y", "u", role, ())) for role in ("user", "assistant")),
    AcceptPrompt(3, "u", "", "r3"),
    MovePrompt(3, State.QUEUED), MovePrompt(3, State.DONE, Outcome.CANCELED), AppendEvent("u", TERMINAL, {}, "r3"),
    MovePrompt(1, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {}, "r1"),
)


@pytest.mark.rule("R16b")
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_changes_things_twice_is_taken_back_wherever_it_is_refused(kind: str, tmp_path: Path) -> None:
    refused = AcceptPrompt(1, "s", "again")
    with closing(open_store(kind, tmp_path)) as store:
        model = Model()
        model.write(START)
        write(store, *START)
        for place in range(len(TWICE) + 1):
            with pytest.raises(ConstraintViolation):
                write(store, *TWICE[:place], refused)
            asyncio.run(assert_equal(store, model))
        assert write(store, *TWICE) == model.write(TWICE)
        asyncio.run(assert_equal(store, model))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_ends_once_and_its_whole_history_is_kept(kind: str, tmp_path: Path) -> None:
    with closing(open_store(kind, tmp_path)) as store:
        write(store, NewSession("s"), AcceptPrompt(1, "s", "text", "r"), MovePrompt(1, State.ACTIVE))
        end = MovePrompt(1, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {"text": "hi"}, "r")
        assert write(store, *end) == (1,)
        with pytest.raises(ConstraintViolation):
            write(store, *end)
        assert at_once(store.events()) == [Event(1, "s", "r", TERMINAL, {"text": "hi"})]
        assert at_once(store.prompt("r")) == PromptRecord(
            1, "s", "text", "r", State.DONE, Outcome.END_TURN, traits=Traits(begun=True))
        assert at_once(store.transitions(1)) == [
            Transition(1, State.ACCEPTED, None), Transition(1, State.ACTIVE, None),
            Transition(1, State.DONE, Outcome.END_TURN)]


@pytest.mark.rule("R17e")
@pytest.mark.parametrize("kind", KINDS)
def test_a_seq_that_only_a_mark_has_seen_is_not_given_out_again(kind: str, tmp_path: Path) -> None:
    """The acceptance of 5 was lost to a full disk, the cancel that covered it was kept."""
    with closing(open_store(kind, tmp_path)) as store:
        write(store, NewSession("s"), AcceptPrompt(4, "s", ""), RaiseMark("s", 5))
        assert at_once(store.latest_seq()) == 5


def test_a_message_knows_why_it_finished() -> None:
    text: dict[str, Any] = {"type": "text", "data": {"text": "hi"}}
    finish: dict[str, Any] = {"type": "finish", "data": {"reason": "canceled", "time": 1}}
    assert MessageRecord("m", "s", "assistant", (text, finish)).finish_reason == "canceled"
    assert MessageRecord("m", "s", "assistant", (text,)).finish_reason is None


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_hear_of_events_before_the_writer_does(kind: str, tmp_path: Path) -> None:
    async def run(store: Store) -> None:
        heard: list[int] = []
        unwatch = store.watch(heard.append)
        for expected in (1, 2):
            await store.write([AppendEvent("s", TERMINAL, {})])
            assert heard[-1] == expected
        await store.write([RaiseMark("s", 1)])
        with pytest.raises(ConstraintViolation):
            await store.write([AppendEvent("s", TERMINAL, {}), NewSession("s")])
        unwatch()
        unwatch()
        await store.write([AppendEvent("s", TERMINAL, {})])
        assert heard == [1, 2]

    with closing(open_store(kind, tmp_path)) as store:
        write(store, NewSession("s"))
        asyncio.run(run(store))


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_store_says_so(kind: str, tmp_path: Path) -> None:
    store = open_store(kind, tmp_path)
    store.close()
    store.close()
    for use in (lambda: store.write([]), store.sessions, store.latest_seq, store.events, store.latest_event,
                store.load_all, lambda: store.load("s"), lambda: store.prompt("r"), lambda: store.messages("s"),
                lambda: store.transitions(1)):
        with pytest.raises(StoreError, match="closed"):
            asyncio.run(use())


async def test_a_write_to_the_memory_store_is_done_at_once() -> None:
    steps = CommitRequest("", "s", None, [NewSession("s"), AppendEvent("s", TERMINAL, {})])
    assert MemoryStore().begin_commit(steps).result() == Committed(0, (1,))


# --- group commit ---------------------------------------------------------------------------------------------------

def test_batches_that_wait_at_the_same_time_share_one_commit(store: SqliteStore, path: Path) -> None:
    before, commits = commits_in_wal(path), store.statistics().commits
    batches: list[Batch] = [[AcceptPrompt(seq, "s", "text"), AppendEvent("s", TERMINAL, {})] for seq in range(1, 51)]
    results = asyncio.run(write_in_one_transaction(store, batches))
    assert results == [(id,) for id in range(1, 51)]
    assert commits_in_wal(path) - before == 1
    assert store.statistics().commits - commits == 1
    assert store.statistics().batches == 51


def test_many_rows_are_inserted_by_few_statements(store: SqliteStore) -> None:
    executed: list[str] = []
    store._writer.set_trace_callback(executed.append)
    seqs = range(1, 3 * sqlite.ROWS + 3)
    asyncio.run(write_in_one_transaction(store, [[AcceptPrompt(seq, "s", "text")] for seq in seqs]))
    assert sum("INSERT INTO prompts" in sql for sql in executed) == 3 + 2
    assert [p.seq for p in at_once(unfinished(store))] == [*seqs]


@pytest.mark.parametrize("stranger", [False, True])
def test_many_rows_are_kept_in_their_order_and_one_of_them_fails_alone(store: SqliteStore, stranger: bool) -> None:
    """One of the messages is put twice; the stranger's has an id of another session."""
    write(store, NewSession("t"), PutMessage(MessageRecord("other", "t", "user", ())))
    ids = [*(f"m{number}" for number in range(sqlite.ROWS - 1)), "m3", "other" if stranger else "m98", "m99"]
    batches: list[Batch] = [[PutMessage(MessageRecord(id, "s", "user", (), updated_at=number))]
                            for number, id in enumerate(ids)]
    results = asyncio.run(write_in_one_transaction(store, batches))
    assert [isinstance(result, ConstraintViolation) for result in results] == [id == "other" for id in ids]
    kept = at_once(store.messages("s"))
    assert [message.id for message in kept] == [id for id in dict.fromkeys(ids) if id != "other"]
    assert kept[3].updated_at == sqlite.ROWS - 1


def test_batches_that_come_one_after_the_other_do_not(store: SqliteStore, path: Path) -> None:
    """The counting can tell the difference."""
    before = commits_in_wal(path)
    for mark in range(1, 6):
        write(store, RaiseMark("s", mark))
    assert commits_in_wal(path) - before == 5


def test_a_bad_batch_fails_alone(store: SqliteStore, path: Path) -> None:
    before = commits_in_wal(path)
    batches: list[Batch] = [
        [AcceptPrompt(1, "s", "", "r"), AppendEvent("s", TERMINAL, {})],
        [AppendEvent("s", TERMINAL, {}), AcceptPrompt(2, "s", "", "r")],
        [AppendEvent("s", TERMINAL, {})],
        [AcceptPrompt(3, "s", "not Unicode: \ud800")],
        [RaiseMark("s", 2**70)],
        [MovePrompt(1, State.ACTIVE)],
    ]
    first, second, third, fourth, fifth, sixth = asyncio.run(write_in_one_transaction(store, batches))
    assert (first, third, sixth) == ((1,), (2,), ())
    assert isinstance(second, ConstraintViolation)
    for error in (fourth, fifth):
        assert isinstance(error, StoreError)
        assert "value that cannot be stored" in str(error)
    assert [p.seq for p in at_once(unfinished(store))] == [1]
    assert commits_in_wal(path) - before == 1


def test_what_is_no_json_is_the_callers_mistake_and_is_not_even_tried(store: SqliteStore) -> None:
    with pytest.raises(TypeError):
        write(store, AppendEvent("s", TERMINAL, {"no": object()}))


@pytest.mark.rule("R16a")
def test_the_file_is_synchronized_at_every_commit(store: SqliteStore) -> None:
    assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_many_threads_with_loops_of_their_own_can_write_and_read(store: SqliteStore) -> None:
    def work(number: int) -> None:
        async def run() -> None:
            for i in range(20):
                seq = 1 + 20 * number + i
                await store.write([AcceptPrompt(seq, "s", "", f"r{seq}")])
                assert await store.prompt(f"r{seq}") is not None

        asyncio.run(run())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.seq for p in at_once(unfinished(store))] == list(range(1, 81))


async def test_canceling_who_waits_corrupts_nothing(store: SqliteStore, path: Path) -> None:
    """All batches are in the transaction already: the canceled one is kept, and nobody is told."""
    with gathering(path):
        tasks = [asyncio.ensure_future(store.write([AcceptPrompt(seq, "s", ""), AppendEvent("s", TERMINAL, {})]))
                 for seq in (1, 2, 3)]
        while len(store._waiting) < 3:
            await asyncio.sleep(0)
        tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert (results[0], results[2]) == ((1,), (3,))
    assert [p.seq for p in at_once(unfinished(store))] == [1, 2, 3]
    assert at_once(store.latest_event()) == 3


def test_a_loop_that_ended_meanwhile_is_no_trouble(store: SqliteStore, path: Path) -> None:
    async def leave() -> None:
        store.watch(lambda latest: None)
        writing = asyncio.ensure_future(store.write([AppendEvent("s", TERMINAL, {})]))
        while not store._waiting:
            await asyncio.sleep(0)
        writing.cancel()

    with gathering(path):
        asyncio.run(leave())
    assert write(store, AppendEvent("s", TERMINAL, {})) == (2,)


async def test_closing_finishes_what_was_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch is being committed and another waits when the store is closed."""
    committing, go_on = threading.Event(), threading.Event()
    commit = SqliteStore._commit

    def slow_commit(store: SqliteStore, group: Iterable[Any]) -> None:
        committing.set()
        go_on.wait()
        commit(store, group)

    monkeypatch.setattr(SqliteStore, "_commit", slow_commit)
    store = SqliteStore(path)
    first = asyncio.ensure_future(store.write([NewSession("s")]))
    await asyncio.to_thread(committing.wait)
    second = asyncio.ensure_future(store.write([AcceptPrompt(1, "s", "")]))
    await asyncio.sleep(0)
    closer = asyncio.ensure_future(asyncio.to_thread(store.close))
    while store._open:
        await asyncio.sleep(0)
    go_on.set()
    await closer
    await asyncio.wait_for(asyncio.wait([first, second]), timeout=60)
    assert (first.result(), second.result()) == ((), ())
    assert not store._thread.is_alive()
    with closing(SqliteStore(path)) as store:
        assert [p.seq for p in at_once(unfinished(store))] == [1]


# --- failures -------------------------------------------------------------------------------------------------------

TRIGGERS = {
    "abort": "RAISE(ABORT, 'injected')",
    "rollback": "RAISE(ROLLBACK, 'injected')",
}


@pytest.mark.parametrize("how", TRIGGERS)
def test_a_failure_inside_a_batch_takes_back_that_batch_only(store: SqliteStore, path: Path, how: str) -> None:
    """Also when SQLite throws away the whole transaction: the others are then applied again."""
    with other_program(path) as db:
        db.execute(f"CREATE TRIGGER injected BEFORE INSERT ON events WHEN new.type = 'bad'"
                   f" BEGIN SELECT {TRIGGERS[how]}; END")
    before = commits_in_wal(path)
    results = asyncio.run(write_in_one_transaction(store, [
        [AcceptPrompt(seq, "s", ""), AppendEvent("s", "bad" if seq % 2 else "good", {})] for seq in range(1, 7)]))
    assert [isinstance(result, ConstraintViolation) for result in results] == [True, False] * 3
    assert [result for result in results if isinstance(result, tuple)] == [(1,), (2,), (3,)]
    assert [p.seq for p in at_once(unfinished(store))] == [2, 4, 6]
    assert commits_in_wal(path) - before == 1


def test_a_full_disk_takes_back_the_batch_that_does_not_fit(store: SqliteStore) -> None:
    """And the others are kept, and the store goes on when there is room again."""
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 3}")
    big = MessageRecord("big", "s", "user", ({"type": "text", "data": {"text": "x" * 100_000}},))
    first, second, third = asyncio.run(write_in_one_transaction(store, [
        [AcceptPrompt(1, "s", "")], [AcceptPrompt(2, "s", ""), PutMessage(big)], [AcceptPrompt(3, "s", "")]]))
    assert (first, third) == ((), ())
    assert isinstance(second, StoreError)
    assert "disk is full; free some space" in str(second)
    assert str(store.path) in str(second)
    assert [p.seq for p in at_once(unfinished(store))] == [1, 3]
    store._writer.execute("PRAGMA max_page_count = 1000000")
    write(store, AcceptPrompt(2, "s", ""), PutMessage(big))
    assert [p.seq for p in at_once(unfinished(store))] == [1, 2, 3]
    assert at_once(store.messages("s")) == [big]


@pytest.mark.rule("R16b")
def test_a_failing_commit_fails_every_batch_in_it_and_keeps_none(store: SqliteStore, path: Path) -> None:
    """Even one that was refused: it was refused because of a batch that is not kept."""
    with other_program(path) as db:
        db.executescript("""
            CREATE TABLE injected (id TEXT REFERENCES sessions DEFERRABLE INITIALLY DEFERRED);
            CREATE TRIGGER injected AFTER INSERT ON events WHEN new.type = 'bad'
            BEGIN INSERT INTO injected VALUES ('no such session'); END;
        """)
    results = asyncio.run(write_in_one_transaction(store, [
        [AcceptPrompt(1, "s", "", "r")], [AcceptPrompt(2, "s", "", "r")], [AppendEvent("s", "bad", {})]]))
    for result in results:
        assert isinstance(result, StoreError)
        assert not isinstance(result, ConstraintViolation)
        assert "nothing of the batch was kept" in str(result)
    assert at_once(unfinished(store)) == []
    assert at_once(store.events()) == []
    assert write(store, AcceptPrompt(2, "s", "", "r"), AppendEvent("s", "good", {})) == (1,)


def test_an_event_of_a_failed_commit_is_not_announced(store: SqliteStore, path: Path) -> None:
    async def run() -> list[int]:
        heard: list[int] = []
        store.watch(heard.append)
        with other_program(path) as db:
            db.execute("CREATE TABLE injected (id TEXT REFERENCES sessions DEFERRABLE INITIALLY DEFERRED)")
            db.execute("CREATE TRIGGER injected AFTER INSERT ON prompts BEGIN INSERT INTO injected VALUES ('x'); END")
        with pytest.raises(StoreError):
            await store.write([AppendEvent("s", TERMINAL, {}), AcceptPrompt(1, "s", "")])
        await store.write([AppendEvent("s", TERMINAL, {})])
        return heard

    assert asyncio.run(run()) == [1]


LIMITED = """
    import asyncio, resource, sys
    from cancelmark.impl.store import AcceptPrompt, NewSession, PutMessage, MessageRecord, SqliteStore, StoreError

    async def main(path):
        store = SqliteStore(path)
        await store.write([NewSession("s"), AcceptPrompt(1, "s", "")])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        big = PutMessage(MessageRecord("m", "s", "user", ({"type": "text", "data": {"text": "x" * 300_000}},)))
        results = await asyncio.gather(
            store.write([AcceptPrompt(2, "s", "")]), store.write([AcceptPrompt(3, "s", ""), big]),
            return_exceptions=True)
        assert isinstance(results[1], StoreError), results
        kept = [1, 2] if results[0] == () else [1]
        assert [p.seq for p in (await store.load("s")).prompts] == kept and await store.messages("s") == []
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await store.write([AcceptPrompt(3, "s", ""), big])
        assert [p.seq for p in (await store.load("s")).prompts] == [*kept, 3] and len(await store.messages("s")) == 1
        store.close()
        print(results[1])

    asyncio.run(main(sys.argv[1]))
"""


def run_child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
                          capture_output=True, text=True, check=False)


def test_a_disk_that_takes_no_more_at_commit_keeps_nothing_of_it(path: Path) -> None:
    """The operating system refuses the write to the log; when it no longer does, the store goes on."""
    child = run_child(LIMITED, path)
    assert child.returncode == 0, child.stderr
    assert "the disk could not be read or written; check its space" in child.stdout
    assert str(path) in child.stdout


def test_a_file_that_another_program_writes_to_gives_an_error_and_not_a_hang(path: Path) -> None:
    with closing(SqliteStore(path, timeout=0)) as store, other_program(path) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program; stop that program"):
            write(store, NewSession("s"))
        assert at_once(store.sessions()) == []
        db.execute("ROLLBACK")
        write(store, NewSession("s"))
        assert len(at_once(store.sessions())) == 1


def test_a_file_has_one_store_at_a_time(store: SqliteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(StoreError, match=r"test\.db: another store has the database open.*; close that one"):
            SqliteStore(name)
    child = run_child("import sys; from cancelmark.impl.store import SqliteStore; SqliteStore(sys.argv[1])", path)
    assert "another store has the database open" in child.stderr
    store.close()
    SqliteStore(path).close()


def a_directory(path: Path) -> None:
    path.mkdir()


def in_no_directory(path: Path) -> None:
    path.parent.rmdir()


def garbage(path: Path) -> None:
    path.write_bytes(b"This is not a database. " * 500)


def short_garbage(path: Path) -> None:
    path.write_text("hello")


def of_another_program(path: Path) -> None:
    with other_program(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")


def of_another_program_by_its_number(path: Path) -> None:
    with other_program(path) as db:
        db.execute("PRAGMA user_version = 3")


def newer(path: Path) -> None:
    SqliteStore(path).close()
    with other_program(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")


def damaged(path: Path) -> None:
    SqliteStore(path).close()
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)


@pytest.mark.parametrize(("make", "message"), [
    (a_directory, "cannot be opened; choose a file"),
    (in_no_directory, "cannot be opened; choose a file in a directory that exists"),
    (garbage, "not a database; choose another file"),
    (short_garbage, "not a database; choose another file"),
    (of_another_program, "belongs to another program; choose another file"),
    (of_another_program_by_its_number, "belongs to another program; choose another file"),
    (newer, f"schema version {len(MIGRATIONS) + 1}; this program supports {len(MIGRATIONS)}; upgrade Cancelmark"),
    (damaged, "damaged; restore a backup"),
])
def test_a_file_that_cannot_be_used_is_named_with_the_remedy_and_left_as_it_is(
    make: Callable[[Path], None], message: str, tmp_path: Path,
) -> None:
    path = tmp_path / "directory" / "test.db"
    path.parent.mkdir()
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as error:
        SqliteStore(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_read_only_file_is_found_out_when_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root no file is read-only, so SQLite is asked to open it so."""
    SqliteStore(path).close()

    def connect(path: Path, timeout: float) -> sqlite3.Connection:
        mode = "rwc" if path.name.endswith("-lock") else "ro"
        return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False)

    monkeypatch.setattr("cancelmark.impl.store.sqlite.connect", connect)
    with pytest.raises(StoreError, match=r"test\.db: the database is read-only; make the file and its directory"):
        SqliteStore(path)


def test_damage_that_is_found_later_is_named_when_it_is_found(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        write(store, NewSession("s"), *(AppendEvent("s", TERMINAL, {"text": "x" * 500}) for _ in range(100)))
    with other_program(path) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    with closing(SqliteStore(path)) as store:
        assert len(at_once(store.sessions())) == 1
        with pytest.raises(StoreError, match="damaged; restore a backup"):
            at_once(store.events())
        with pytest.raises(StoreError, match="damaged; restore a backup"):
            write(store, AppendEvent("s", TERMINAL, {}))


@pytest.mark.parametrize("damage", ["UPDATE events SET payload = '{'", "UPDATE prompts SET state = 'lost'"])
def test_a_row_that_makes_no_sense_is_damage(store: SqliteStore, path: Path, damage: str) -> None:
    write(store, AcceptPrompt(1, "s", ""), AppendEvent("s", TERMINAL, {}))
    with other_program(path) as db:
        db.execute(damage)
    with pytest.raises(StoreError, match="damaged"):
        at_once(store.events()) and at_once(unfinished(store))


# --- crashes --------------------------------------------------------------------------------------------------------

CRASHING = """
    import asyncio, os, signal, sys
    from cancelmark.impl.store import AcceptPrompt, AppendEvent, MovePrompt, NewSession, SqliteStore
    from cancelmark.model.lifecycle import Outcome, State

    async def work(store, seqs, told, last):
        for seq in seqs:
            run_id = f"r{seq}"
            await store.write([AcceptPrompt(seq, "s", "text", run_id)])
            os.write(1, f"accepted {seq}\\n".encode())
            (id,) = await store.write([MovePrompt(seq, State.DONE, Outcome.END_TURN),
                                       AppendEvent("s", "run_complete", {"seq": seq}, run_id)])
            os.write(1, f"ended {seq} {id}\\n".encode())
            told.append(seq)
            if len(told) >= last:
                os.kill(os.getpid(), signal.SIGKILL)

    async def main(path, workers, last):
        store = SqliteStore(path)
        start = await store.latest_seq() + 1
        if not await store.sessions():
            await store.write([NewSession("s")])
        told = []
        await asyncio.gather(*(work(store, range(start + n, start + 10_000, workers), told, last)
                               for n in range(workers)))

    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.rule("R16a", "R16b")
def test_what_was_reported_as_written_survives_being_killed(path: Path) -> None:
    """Killed right after a write returned, with others under way, again and again on one file."""
    random = Random(1)
    accepted: set[int] = set()
    ended: dict[int, int] = {}
    for _ in range(10):
        child = run_child(CRASHING, path, random.randint(1, 8), random.randint(1, 12))
        assert child.returncode == -signal.SIGKILL, child.stderr
        for what, seq, *id in (line.split() for line in child.stdout.splitlines()):
            if what == "accepted":
                assert int(seq) not in accepted, "a seq was given out twice"
                accepted.add(int(seq))
            else:
                ended[int(seq)] = int(id[0])
        with closing(SqliteStore(path)) as store:
            events = {event.payload["seq"]: event.id for event in at_once(store.events())}
            left = {p.seq for p in at_once(unfinished(store))}
            assert ended.items() <= events.items()
            assert accepted <= left | events.keys()
            assert left.isdisjoint(events), "an end without its event, or an event without its end"
            for seq in events:
                prompt = at_once(store.prompt(f"r{seq}"))
                assert prompt is not None
                assert prompt.state is State.DONE
            assert len(events) == at_once(store.latest_event())
    assert len(ended) >= 20


# --- migrations -----------------------------------------------------------------------------------------------------

def schema(path: Path) -> list[tuple[Any, ...]]:
    with other_program(path) as db:
        return db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


def version(path: Path) -> int:
    with other_program(path) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


LATER = ("ALTER TABLE sessions ADD COLUMN color TEXT", "CREATE TABLE extras (id TEXT); INSERT INTO extras VALUES ('x')")


@pytest.mark.parametrize("old", range(len(MIGRATIONS) + len(LATER)))
def test_a_database_of_every_older_version_becomes_the_newest(
    old: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two versions more than there are, so that there is a way to go from the first on."""
    all_of_them = MIGRATIONS + LATER
    fresh, path = tmp_path / "fresh.db", tmp_path / "old.db"
    if old:
        monkeypatch.setattr("cancelmark.impl.store.schema.MIGRATIONS", all_of_them[:old])
        with closing(SqliteStore(path)) as store:
            write(store, NewSession("s", "kept"))
        assert version(path) == old
    monkeypatch.setattr("cancelmark.impl.store.schema.MIGRATIONS", all_of_them)
    SqliteStore(fresh).close()
    with closing(SqliteStore(path)) as store:
        assert [s.title for s in at_once(store.sessions())] == ["kept"] * bool(old)
    assert schema(path) == schema(fresh)
    assert version(path) == version(fresh) == len(all_of_them)


def test_the_history_of_prompts_survives_the_migration_that_writes_less_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("cancelmark.impl.store.schema.MIGRATIONS", MIGRATIONS[:1])
        SqliteStore(path).close()
    with other_program(path) as db:
        db.executescript("""
            INSERT INTO sessions VALUES ('s', '', 0, 0);
            INSERT INTO prompts (seq, session_id, text, state)
                VALUES (1, 's', 'a', 'accepted'), (2, 's', 'b', 'accepted');
            UPDATE prompts SET state = 'active' WHERE seq = 1;
            UPDATE prompts SET state = 'done', outcome = 'end_turn' WHERE seq = 1;
        """)
    with closing(SqliteStore(path)) as store:
        assert at_once(store.transitions(1)) == [Transition(1, State.ACCEPTED, None), Transition(1, State.ACTIVE, None),
                                        Transition(1, State.DONE, Outcome.END_TURN)]
        assert at_once(store.transitions(2)) == [Transition(2, State.ACCEPTED, None)]
        assert at_once(store.transitions(3)) == []


def test_a_migration_that_fails_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteStore(path)) as store:
        write(store, NewSession("s"))
    before = schema(path)
    with monkeypatch.context() as patch:
        patch.setattr("cancelmark.impl.store.schema.MIGRATIONS",
                      (*MIGRATIONS, "DROP TABLE events; CREATE TABLE sessions (id TEXT)"))
        with pytest.raises(StoreError, match=r"test\.db: the database failed: table sessions already exists"):
            SqliteStore(path)
    assert schema(path) == before
    assert version(path) == len(MIGRATIONS)
    with closing(SqliteStore(path)) as store:
        assert len(at_once(store.sessions())) == 1


def test_nothing_is_left_behind(path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir() and os.environ.get("CI") != "true":
        pytest.skip("this system does not list open files")
    before = len(os.listdir(descriptors)), threading.active_count()
    with closing(SqliteStore(path)) as store:
        write(store, NewSession("s"))
    garbage(path.with_name("garbage.db"))
    with pytest.raises(StoreError):
        SqliteStore(path.with_name("garbage.db"))
    assert (len(os.listdir(descriptors)), threading.active_count()) == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["garbage.db", "test.db", "test.db-lock"]


def test_payloads_come_back_as_they_went_in(store: SqliteStore) -> None:
    payload: dict[str, Any] = {"text": "ünï\x00code \ud800", "list": [1, 2.5, None, True, {"a": []}]}
    write(store, AppendEvent("s", TERMINAL, payload, "r"))
    assert at_once(store.events())[0].payload == payload == json.loads(json.dumps(payload))
