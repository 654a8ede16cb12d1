"""Sends commits to the database: one statement each, or one statement for all that have gathered.

**Group commit.** A node has few statements in flight at a time. Commits that come meanwhile, of whatever workspace,
gather and go together in the next statement: they share its round trip and its commit. A commit that finds room goes at
once and alone, so a node with little load adds no latency. A slow statement stops counting, so it does not hold the
others up.
"""

import asyncio
import json
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from ..interface import StoreError, Unconfirmed

UNDER_WAY = 2  # statements in flight, of one node
TOGETHER = 48  # commits in one statement
LONG = 0.1  # seconds after which a statement in flight no longer counts

_ANSWER = "SELECT o_status, o_version, o_epoch, o_owner, o_places, o_seqs FROM cancelmark"
STEP = f"{_ANSWER}.step(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
STEP_ALL = f"{_ANSWER}.step_all(%s)"

Asked: TypeAlias = tuple[UUID, UUID, str, str, int | None, int | None, str, str, str, str]  # the arguments of `step`
Row: TypeAlias = tuple[Any, ...]
Waiting: TypeAlias = "tuple[Asked, asyncio.Future[Row | None]]"


class Connected(Protocol):
    """Sends a statement to the database."""

    async def fetch(self, query: str, *values: Any, once: bool) -> list[Row]: ...


class Sender:
    """Sends the commits of one node, for one event loop. Callers submit at most one commit of a session at a time."""

    def __init__(self, database: Connected) -> None:
        self._database = database
        self._under_way: set[asyncio.TimerHandle] = set()  # one timer per statement: when it stops counting
        self._waiting: list[Waiting] = []
        self._tasks: set[asyncio.Future[None]] = set()

    async def send(self, asked: Asked) -> Row | None:
        """The answer to the commit. None if it cannot be sent with others: nothing of it is kept, and it must be sent
        alone. Raises `StoreError`."""
        if len(self._under_way) < UNDER_WAY or not asked[2]:  # without a session, it may lock any session
            count = self._count()
            try:
                return await self.send_alone(asked)
            finally:
                self._go_on(count)
        answer: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        return await answer

    async def send_alone(self, asked: Asked) -> Row:
        return (await self._database.fetch(STEP, *asked, once=True))[0]

    def _count(self) -> asyncio.TimerHandle:
        """Count a statement as in flight."""
        count: asyncio.TimerHandle = asyncio.get_running_loop().call_later(LONG, lambda: self._go_on(count))
        self._under_way.add(count)
        return count

    def _go_on(self, count: asyncio.TimerHandle) -> None:
        """Stop counting a statement that has returned or is slow, and send what has gathered meanwhile."""
        count.cancel()
        self._under_way.discard(count)
        if self._waiting and len(self._under_way) < UNDER_WAY:
            together, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
            task = asyncio.ensure_future(self._send_together(together, self._count()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_together(self, together: list[Waiting], count: asyncio.TimerHandle) -> None:
        together.sort(key=lambda waiting: waiting[0][1])
        rows: list[Row | None] | Exception
        try:
            rows = await self._send_all([asked for asked, _ in together])
        except StoreError as error:  # a permanent error belongs to one of them: send each alone
            rows = error if error.retry or isinstance(error, Unconfirmed) else [None] * len(together)
        except Exception as error:
            rows = error
        finally:
            self._go_on(count)
        for n, (_, answer) in enumerate(together):
            if not answer.done():
                if isinstance(rows, Exception):
                    answer.set_exception(rows)
                else:
                    answer.set_result(rows[n])

    async def _send_all(self, calls: list[Asked]) -> list[Row | None]:
        if len(calls) == 1:
            return [await self.send_alone(calls[0])]
        parts = (f'["{node}","{home}",{json.dumps(rest)[1:-1]},{actions},{operations}]'
                 for node, home, *rest, actions, operations in calls)
        rows = await self._database.fetch(STEP_ALL, f"[{','.join(parts)}]", once=True)
        return [None if row[0] == "alone" else row for row in rows]
