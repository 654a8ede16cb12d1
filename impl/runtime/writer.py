"""Writes to the store what must survive, and tries again for as long as that may help."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from ..store import (
    AcceptPrompt,
    Answer,
    Committed,
    Conflict,
    Lost,
    Operation,
    PutMessage,
    Refused,
    Steps,
    Store,
    StoreError,
    Unstorable,
)
from .messages import emptied

log = logging.getLogger("cancelmark")

PATIENCE = (0.05, 0.2, 1.0, 5.0)  # seconds between attempts to write
UNSTORABLE = "what was said could not be stored"  # and is not quoted: it would be refused again


class Commit(NamedTuple):
    """Steps that are being made durable."""

    steps: Steps
    answer: "asyncio.Future[Answer]"  # of the first attempt, which has begun


class Writer:
    """Commits to one store, for one runtime. `over` is set when nothing is to be tried again."""

    def __init__(self, store: Store, over: asyncio.Event) -> None:
        self._store, self._over = store, over
        self._life, self._numbers = uuid4().hex, count(1)

    def begin(self, session_id: str, version: int | None, operations: Sequence[Operation], epoch: int | None = None,
              claim: str = "", release: str = "", actions: Sequence[Sequence[object]] = ()) -> Commit:
        """Begins to commit steps. With a store in memory that is done at once, and costs no task."""
        steps = Steps(f"{self._life}-{next(self._numbers)}", session_id, version, operations, epoch, claim, release,
                      actions)
        return Commit(steps, self._begin(steps))

    def again(self, commit: Commit) -> Commit:
        """Sends the same steps again, under their id."""
        return Commit(commit.steps, self._begin(commit.steps))

    async def complete(self, commit: Commit) -> tuple[Answer, bool]:
        """The answer. If the store will never take a message, the rest is kept without it: the second says whether that
        was so."""
        operations = commit.steps.operations
        try:
            return await commit.answer, False
        except (Refused, Unstorable) as error:
            refused = error
        poorer = [PutMessage(emptied(op.message, UNSTORABLE)) if isinstance(op, PutMessage) else op
                  for op in operations]
        journal = [op for op in operations if not isinstance(op, PutMessage)]
        messages = len(journal) < len(operations) and not isinstance(
            getattr(refused, "operation", None), AcceptPrompt)
        for attempt in (poorer, journal) if messages else ():
            with suppress(Refused, Unstorable):
                answer = await self._begin(commit.steps._replace(operations=attempt))
                log.error("session %s: %s: %s", commit.steps.session_id, UNSTORABLE, refused)
                return answer, True
        raise refused

    async def say(self, begun: "asyncio.Future[Answer]", begin_again: "Callable[[], asyncio.Future[Answer]]",
                  wanted: Callable[[], bool]) -> Answer | None:
        """Waits for the answer, and begins again for as long as that may help and is wanted. None if it is not wanted
        any more (R25a)."""
        answer: asyncio.Future[Answer] | None = begun
        attempt = 0
        while wanted():
            try:
                return await (answer or begin_again())
            except StoreError as error:
                if not error.retry or self._over.is_set():
                    raise
                log.error("a step cannot be written, trying again: %s", error)
                await self.pause(attempt)
                attempt, answer = attempt + 1, None
        return None

    async def read(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Does what has to be read before more can be written, and again for as long as that may help."""
        for attempt in count():
            try:
                await ask()
                return
            except StoreError as error:
                if not error.retry or self._over.is_set():
                    raise
                log.error("a session cannot be read, trying again: %s", error)
                await self.pause(attempt)

    async def pause(self, attempt: int, hurry: asyncio.Event | None = None) -> None:
        """Waits before something is tried again that was tried in vain so often, until `hurry` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE[min(attempt, len(PATIENCE) - 1)]):
                await (hurry or self._over).wait()

    def _begin(self, steps: Steps) -> "asyncio.Future[Answer]":
        if steps.operations or steps.claim or steps.release:
            return self._store.begin_commit(steps)
        if self._store.shared:
            return asyncio.ensure_future(self._compare(steps))
        nothing: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        nothing.set_result(Committed(steps.version or 0, ()))
        return nothing

    async def _compare(self, steps: Steps) -> Answer:
        """The answer to steps that write nothing: nothing may be all that there was to do only on an old version."""
        snapshot = await self._store.load(steps.session_id)
        if steps.epoch is not None and (snapshot.epoch != steps.epoch or not snapshot.owned):
            return Lost()
        if snapshot.version != steps.version:
            return Conflict(snapshot)
        return Committed(snapshot.version, (), epoch=snapshot.epoch if snapshot.owned else None)
