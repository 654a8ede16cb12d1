"""Work that is done to its end, whatever is asked of whoever waits for it, and work that leaves room for others."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SHARE = 100  # things that are done before others run
AGAIN = 1.0  # seconds after which a cancel is asked for again


async def in_shares(things: Iterable[T]) -> AsyncIterator[T]:
    """The things, one after the other. Others run after each `SHARE` of them."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % SHARE == 0:
            await asyncio.sleep(0)


async def cancel_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels the tasks, and waits until they have ended. A cancel may be swallowed, so it is asked for again: before
    Python 3.12 `asyncio.wait_for` swallows one if what it waits for comes at that moment."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)


async def outlast(work: "asyncio.Future[Any]") -> asyncio.CancelledError | None:
    """Waits until the work is done, even if the waiting task is canceled meanwhile. If the work has succeeded then,
    the request to cancel is returned, for the caller to raise when it has done what must follow; if not, raised."""
    canceled: asyncio.CancelledError | None = None
    while not work.done():
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = partial(_tell, done)
        work.add_done_callback(tell)
        try:
            await done  # `asyncio.wait` does the same for many, and takes a few times as long
        except asyncio.CancelledError as request:
            canceled = request
            work.remove_done_callback(tell)
    if canceled and not has_succeeded(work):
        raise canceled
    return canceled


def _tell(done: "asyncio.Future[None]", _: "asyncio.Future[Any]") -> None:
    if not done.done():
        done.set_result(None)


def has_succeeded(work: "asyncio.Future[Any]") -> bool:
    """Whether the work is done, and nothing went wrong."""
    return work.done() and not work.cancelled() and work.exception() is None
