"""A node alone: heartbeats that are answered in any order, and notifications of any size."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cancelmark.impl.cluster.node import BEAT, Lease, Node

LARGEST = 7_999  # bytes of a payload that PostgreSQL takes


class Database:
    """Answers heartbeats when it is told to, as of the moment in which it does, and keeps what is notified."""

    def __init__(self) -> None:
        self.node = uuid4()
        self.buried: set[UUID] = set()
        self.beats: list[tuple[UUID, asyncio.Future[list[tuple[Any, ...]]]]] = []
        self.said: list[str] = []

    async def fetch(self, query: str, *values: Any, **how: Any) -> list[tuple[Any, ...]]:
        if query == BEAT:
            answer: asyncio.Future[list[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()
            self.beats.append((values[2], answer))
            return await answer
        if "pg_notify" in query:
            self.said += values
        return []

    def answer(self, number: int) -> None:
        id, answer = self.beats[number]
        if not answer.done():
            answer.set_result([] if id in self.buried else [(1,)])


def make_node(database: Database, looked: list[tuple[str, str]], died: list[UUID]) -> Node:
    async def look_at(workspace: str, session: str) -> bool:
        looked.append((workspace, session))
        return True

    async def look(work: Sequence[object]) -> None:
        raise AssertionError("it is not asked to look at all")

    return Node(database, "", Lease(), look, look_at, lambda: died.append(database.node))  # type: ignore[arg-type]


@given(st.permutations(range(6)), st.sets(st.integers(0, 5), max_size=2))
async def test_a_node_dies_once_for_each_burial_however_late_its_heartbeats_are_answered(
        order: list[int], burials: set[int]) -> None:
    """Six heartbeats are sent; some are under way when the node is buried, and all are answered, in any order."""
    database, died = Database(), list[UUID]()
    node = make_node(database, [], died)
    beats, named = [], set()
    for number in range(6):
        named.add(database.node)
        beats.append(asyncio.ensure_future(node._beat()))
        await asyncio.sleep(0)
        if number in burials:
            database.buried.add(database.node)
    for number in order:
        database.answer(number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*beats)
    assert node.deaths == len(died) == len(database.buried & named)
    assert database.node not in database.buried


@pytest.mark.parametrize("sessions", [0, 1, 60, 400])
async def test_a_notification_of_any_size_reaches_the_other_nodes(sessions: int) -> None:
    """They reconcile every session that it names, or everything if it names none."""
    heard = list[tuple[str, str]]()
    sender, hearer = make_node(Database(), [], []), make_node(Database(), heard, [])
    sender.others = 1
    news = [(str(uuid4()), str(uuid4())) for _ in range(sessions)] or [(str(uuid4()), "")]
    for one in news:
        sender.tell(*one)
    telling = asyncio.ensure_future(sender._tell_for_ever())
    await asyncio.sleep(0.01)
    telling.cancel()
    said: Iterable[str] = sender.database.said  # type: ignore[attr-defined]
    assert said
    for one in said:
        assert len(one.encode()) <= LARGEST
        hearer._hear(one)
    await asyncio.sleep(0.01)
    assert hearer._awake.is_set() or set(news) <= set(heard)
