"""Commits to the store what must survive, and retries with backoff."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from ..store import (
    AcceptPrompt,
    CommitAnswer,
    CommitRequest,
    Committed,
    Conflict,
    ConstraintViolation,
    Lost,
    Operation,
    PutMessage,
    Store,
    StoreError,
    Unstorable,
)
from .messages import emptied

log = logging.getLogger("cancelmark")

PATIENCE = (0.05, 0.2, 1.0, 5.0)  # seconds of backoff between attempts
UNSTORABLE = "a message of this turn could not be stored"  # not quoted: the store would refuse it again


class Commit(NamedTuple):
    """A commit in flight."""

    steps: CommitRequest
    answer: "asyncio.Future[CommitAnswer]"  # of the first attempt


class Writer:
    """Commits to one store, for one runtime. `over` is set when there are to be no more retries."""

    def __init__(self, store: Store, over: asyncio.Event) -> None:
        self._store, self._over = store, over
        self._life, self._numbers = uuid4().hex, count(1)

    def begin(self, session_id: str, version: int | None, operations: Sequence[Operation], epoch: int | None = None,
              claim: str = "", release: str = "", actions: Sequence[Sequence[object]] = ()) -> Commit:
        """Start a commit under a new id. A store in memory answers at once, without a task."""
        id = f"{self._life}-{next(self._numbers)}"
        steps = CommitRequest(id, session_id, version, operations, epoch, claim, release, actions)
        return Commit(steps, self._begin(steps))

    def again(self, commit: Commit) -> Commit:
        """Retry the commit under its id, which is idempotent."""
        return Commit(commit.steps, self._begin(commit.steps))

    async def complete(self, commit: Commit) -> tuple[CommitAnswer, bool]:
        """Wait for the answer. If the store can never take a message, commit without the messages. Also returns whether
        that was necessary."""
        operations = commit.steps.operations
        try:
            return await commit.answer, False
        except (ConstraintViolation, Unstorable) as error:
            refused = error
        without_messages = [PutMessage(emptied(op.message, UNSTORABLE)) if isinstance(op, PutMessage) else op
                  for op in operations]
        journal = [op for op in operations if not isinstance(op, PutMessage)]
        messages = len(journal) < len(operations) and not isinstance(
            getattr(refused, "operation", None), AcceptPrompt)
        for attempt in (without_messages, journal) if messages else ():
            with suppress(ConstraintViolation, Unstorable):
                answer = await self._begin(commit.steps._replace(operations=attempt))
                log.error("session %s: %s: %s", commit.steps.session_id, UNSTORABLE, refused)
                return answer, True
        raise refused

    async def say(self, begun: "asyncio.Future[CommitAnswer]",
                  begin_again: "Callable[[], asyncio.Future[CommitAnswer]]", wanted: Callable[[], bool],
                  ) -> CommitAnswer | None:
        """Wait for the answer, and retry with backoff while `wanted`. Returns None once it is no longer wanted."""
        answer: asyncio.Future[CommitAnswer] | None = begun
        attempt = 0
        while wanted():
            try:
                return await (answer or begin_again())
            except StoreError as error:
                if not error.retry or self._over.is_set():
                    raise
                log.error("message write failed, retrying: %s", error)
                await self.pause(attempt)
                attempt, answer = attempt + 1, None
        return None

    async def read(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Do a read that must precede further writes, and retry with backoff."""
        for attempt in count():
            try:
                await ask()
                return
            except StoreError as error:
                if not error.retry or self._over.is_set():
                    raise
                log.error("session read failed, retrying: %s", error)
                await self.pause(attempt)

    async def pause(self, attempt: int, hurry: asyncio.Event | None = None) -> None:
        """Wait for the backoff of that attempt, or until `hurry` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE[min(attempt, len(PATIENCE) - 1)]):
                await (hurry or self._over).wait()

    def _begin(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        if steps.operations or steps.claim or steps.release:
            return self._store.begin_commit(steps)
        if self._store.shared:
            return asyncio.ensure_future(self._compare(steps))
        nothing: asyncio.Future[CommitAnswer] = asyncio.get_running_loop().create_future()
        nothing.set_result(Committed(steps.version or 0, ()))
        return nothing

    async def _compare(self, steps: CommitRequest) -> CommitAnswer:
        """The answer to a commit that writes nothing. It must still be checked: on a newer version there may be
        something to do."""
        snapshot = await self._store.load(steps.session_id)
        if steps.epoch is not None and (snapshot.epoch != steps.epoch or not snapshot.owned):
            return Lost()
        if snapshot.version != steps.version:
            return Conflict(snapshot)
        return Committed(snapshot.version, (), epoch=snapshot.epoch if snapshot.owned else None)
