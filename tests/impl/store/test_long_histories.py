"""Reading from a store with a long history: page by page, and at a cost that does not grow with what came before."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.costs import count_work
from support.stores import at_once

from cancelmark.impl.store import (
    AcceptPrompt,
    AppendEvent,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PromptRecord,
    PutMessage,
    SqliteStore,
    Store,
)
from cancelmark.model.lifecycle import INITIAL, Outcome, State

FEW, MANY = 300, 3000

both_stores = pytest.mark.parametrize("open_store", [lambda _: MemoryStore(), lambda path: SqliteStore(path / "s.db")],
                                      ids=["memory", "SQLite"])


def history(prompts: int) -> list[Operation]:
    """A session with so many prompts that are done, before three that are not, beside another session."""
    operations: list[Operation] = [NewSession("s"), NewSession("t"), AcceptPrompt(1, "s", "waits since long ago")]
    for seq in range(2, prompts + 2):
        operations += [AcceptPrompt(seq, "s", "hello", f"r{seq}"), MovePrompt(seq, State.DONE, Outcome.END_TURN),
                       PutMessage(MessageRecord(f"p{seq}", "s", "user", ())),
                       AppendEvent("s", "run_complete", {"seq": seq})]
    return [*operations, AcceptPrompt(prompts + 2, "t", "other"), AcceptPrompt(prompts + 3, "s", "last")]


READS: dict[str, Callable[[Store], object]] = {
    "prompts": lambda store: at_once(store.prompts("s", 50)),
    "earlier prompts": lambda store: at_once(store.prompts("s", 50, before=200)),
    "a snapshot": lambda store: at_once(store.load("s")),
    "all snapshots": lambda store: at_once(store.load_all()),
    "the latest messages": lambda store: at_once(store.messages("s", last=50)),
    "earlier messages": lambda store: at_once(store.messages("s", before="p200", last=50)),
    "a page of events": lambda store: at_once(store.events(100, limit=50)),
    "a page of a session's events": lambda store: at_once(store.events(100, session="s", limit=50)),
    "a prompt by its run id": lambda store: at_once(store.prompt("r200")),
}


@both_stores
def test_reading_costs_the_same_after_a_long_history(open_store: Callable[[Path], Store], tmp_path: Path) -> None:
    costs: list[dict[str, int]] = []
    for prompts in (FEW, MANY):
        directory = tmp_path / str(prompts)
        directory.mkdir()
        store = open_store(directory)
        asyncio.run(store.write(history(prompts)))
        costs.append({name: count_work(store, read) for name, read in READS.items()})
        store.close()
    few, many = costs
    assert all(few.values())
    assert {name: cost for name, cost in many.items() if cost > few[name] * 1.2 + 20} == {}, few


def plain_page(records: list[PromptRecord], finished: int, before: int | None) -> list[PromptRecord]:
    """What a page of prompts is, in plain words."""
    done = [r for r in records if r.state is State.DONE and (before is None or r.seq < before)]
    unfinished = [r for r in records if r.state is not State.DONE] if before is None else []
    return sorted([*done[max(0, len(done) - finished):], *unfinished])


@both_stores
@given(states=st.lists(st.sampled_from([INITIAL, State.QUEUED, State.DONE, State.DONE]), max_size=12),
       finished=st.integers(0, 5), shuffled=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_page_has_what_is_not_done_and_the_latest_that_is(
    open_store: Callable[[Path], Store], states: list[State], finished: int, shuffled: Random,
) -> None:
    records = [PromptRecord(seq, "s", f"text {seq}", None, state, Outcome.END_TURN if state is State.DONE else None)
               for seq, state in enumerate(states, 1)]
    accepted: list[Operation] = [AcceptPrompt(r.seq, "s", r.text) for r in records]
    moved: list[Operation] = [MovePrompt(r.seq, r.state, r.outcome) for r in records if r.state is not INITIAL]
    shuffled.shuffle(accepted)
    shuffled.shuffle(moved)
    with TemporaryDirectory() as directory:
        store = open_store(Path(directory))
        asyncio.run(store.write([NewSession("s"), *accepted, *moved]))
        for before in (None, *range(1, len(states) + 2)):
            assert at_once(store.prompts("s", finished, before=before)) == plain_page(records, finished, before)
        store.close()


def test_what_a_refused_batch_had_accepted_is_not_listed() -> None:
    store = MemoryStore()
    asyncio.run(store.write([NewSession("s"), AcceptPrompt(1, "s", "a")]))
    with pytest.raises(Exception, match="refused"):
        asyncio.run(store.write([AcceptPrompt(2, "s", "b"), MovePrompt(1, State.DONE, Outcome.ERROR),
                                 AcceptPrompt(2, "s", "again")]))
    assert [(r.seq, r.state) for r in at_once(store.prompts("s", 9))] == [(1, INITIAL)]
    assert [r.seq for r in at_once(store.load("s")).prompts] == [1]
