"""Steps on their way to the database: one statement each, or one for all that have gathered.

**Group commit.** Few statements of a workspace are under way at a time. Steps that come meanwhile gather, and go
together in the next statement: they share its way, its locks and its commit. Whoever comes when there is room goes at
once and alone, so that a node with little to do waits for nobody.
"""

import asyncio
import json
from typing import Any, TypeAlias
from uuid import UUID

from ..interface import StoreError, Unconfirmed
from .database import Database

UNDER_WAY = 2  # statements of one workspace
TOGETHER = 64  # steps in one statement

_ANSWER = "SELECT o_status, o_version, o_epoch, o_owner, o_places, o_seqs FROM cancelmark"
STEP = f"{_ANSWER}.step(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
STEP_ALL = f"{_ANSWER}.step_all(%s, %s, %s, %s)"

Asked: TypeAlias = tuple[UUID, UUID, str, str, int | None, int | None, str, str, str, str]  # what `step` is called with
Row: TypeAlias = tuple[Any, ...]


class Sender:
    """Sends the steps of one workspace, for one event loop. No two steps of one session are given to it at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._under_way = 0
        self._waiting: list[tuple[Asked, asyncio.Future[Row | None]]] = []
        self._tasks: set[asyncio.Future[None]] = set()

    async def send(self, asked: Asked) -> Row | None:
        """The answer to the step. None if it was sent with others and failed: then it is to be sent alone, and nothing
        of it is kept. Raises `StoreError`."""
        if self._under_way < UNDER_WAY or not asked[2]:  # without a session, it may lock any
            self._under_way += 1
            try:
                return await self.send_alone(asked)
            finally:
                self._go_on()
        answer: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        return await answer

    async def send_alone(self, asked: Asked) -> Row:
        return (await self._database.fetch(STEP, *asked, once=True))[0]

    def _go_on(self) -> None:
        """A statement is back: what has gathered meanwhile is sent."""
        self._under_way -= 1
        if self._waiting and self._under_way < UNDER_WAY:
            together, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
            self._under_way += 1
            task = asyncio.ensure_future(self._send_together(together))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_together(self, together: "list[tuple[Asked, asyncio.Future[Row | None]]]") -> None:
        rows: list[Row | None] | Exception
        try:
            rows = list(await self._send_all([asked for asked, _ in together]))
        except StoreError as error:  # what does not pass by itself is the trouble of one of them
            rows = error if error.retry or isinstance(error, Unconfirmed) else [None] * len(together)
        except Exception as error:
            rows = error
        finally:
            self._go_on()
        for n, (_, answer) in enumerate(together):
            if not answer.done():
                if isinstance(rows, Exception):
                    answer.set_exception(rows)
                else:
                    answer.set_result(rows[n])

    async def _send_all(self, calls: list[Asked]) -> list[Row]:
        if len(calls) == 1:
            return [await self.send_alone(calls[0])]
        parts = (f"[{json.dumps(call[2:8])[1:-1]},{call[8]},{call[9]}]" for call in calls)
        node, home, *_ = calls[0]
        return await self._database.fetch(
            STEP_ALL, node, home, [call[2] for call in calls], f"[{','.join(parts)}]", once=True)
