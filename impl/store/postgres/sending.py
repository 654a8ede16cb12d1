"""Steps on their way to the database: one statement each, or one for all that have gathered.

**Group commit.** Few statements of a node are under way at a time. Steps that come meanwhile, of whatever workspace,
gather and go together in the next statement: they share its way and its commit. Whoever comes when there is room goes
at once and alone, so that a node with little to do waits for nobody. A statement that takes long is not waited for.
"""

import asyncio
import json
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from ..interface import StoreError, Unconfirmed

UNDER_WAY = 2  # statements of one node
TOGETHER = 48  # steps in one statement
LONG = 0.1  # seconds after which a statement that is under way does not count any more

_ANSWER = "SELECT o_status, o_version, o_epoch, o_owner, o_places, o_seqs FROM cancelmark"
STEP = f"{_ANSWER}.step(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
STEP_ALL = f"{_ANSWER}.step_all(%s)"

Asked: TypeAlias = tuple[UUID, UUID, str, str, int | None, int | None, str, str, str, str]  # what `step` is called with
Row: TypeAlias = tuple[Any, ...]
Waiting: TypeAlias = "tuple[Asked, asyncio.Future[Row | None]]"


class Connected(Protocol):
    """What takes a statement to the database."""

    async def fetch(self, query: str, *values: Any, once: bool) -> list[Row]: ...


class Sender:
    """Sends the steps of one node, for one event loop. No two steps of one session are given to it at a time."""

    def __init__(self, database: Connected) -> None:
        self._database = database
        self._under_way: set[asyncio.TimerHandle] = set()  # statements, by when they do not count any more
        self._waiting: list[Waiting] = []
        self._tasks: set[asyncio.Future[None]] = set()

    async def send(self, asked: Asked) -> Row | None:
        """The answer to the step. None if it cannot be sent with others: then it is to be sent alone, and nothing of it
        is kept. Raises `StoreError`."""
        if len(self._under_way) < UNDER_WAY or not asked[2]:  # without a session, it may lock any
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
        """A statement is sent."""
        count: asyncio.TimerHandle = asyncio.get_running_loop().call_later(LONG, lambda: self._go_on(count))
        self._under_way.add(count)
        return count

    def _go_on(self, count: asyncio.TimerHandle) -> None:
        """A statement is back, or takes long: what has gathered meanwhile is sent."""
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
        except StoreError as error:  # what does not pass by itself is the trouble of one of them
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
