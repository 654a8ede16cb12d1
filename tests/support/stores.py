"""What may come between a runtime and its store, and what a store tells at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from cancelmark.impl.store import CommitAnswer, CommitRequest, Committed, Operation, PromptRecord, Store

T = TypeVar("T")


class Meddled(Store):
    """Comes before the store that it meddles with: what a class of its own does in `commit` happens to all steps."""

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        return asyncio.ensure_future(self.commit(steps))

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        return await super().begin_commit(steps)  # type: ignore[safe-super]


def at_once(read: Coroutine[Any, Any, T]) -> T:
    """What both stores read without waiting."""
    try:
        read.send(None)
    except StopIteration as answer:
        value: T = answer.value
        return value
    raise AssertionError(f"{read} waits")


async def unfinished(store: Store) -> list[PromptRecord]:
    """The prompts that are not done, by seq."""
    return sorted(prompt for session in await store.load_all() for prompt in session.prompts)


def steps(id: str, version: int | None, *operations: Operation, session: str = "s", **more: Any) -> CommitRequest:
    return CommitRequest(id, session, version, operations, **more)


def committed(answer: CommitAnswer) -> Committed:
    assert isinstance(answer, Committed), answer
    return answer
