"""Waiting that survives cancellation, and long loops that yield to other tasks."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

CHUNK = 100  # items between two yields to the event loop
AGAIN = 1.0  # seconds between two cancel requests


async def in_chunks(things: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over the items, and yield to other tasks after every `CHUNK` of them."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % CHUNK == 0:
            await asyncio.sleep(0)


async def cancel_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel the tasks, and wait until they have ended. Repeats the cancel, because a task may swallow one: before
    Python 3.12 `asyncio.wait_for` does if its result arrives at that moment."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)


async def wait_through_cancel(work: "asyncio.Future[Any]") -> asyncio.CancelledError | None:
    """Wait until the work is done, even if the waiting task is canceled meanwhile.

    If the work has succeeded, returns that cancellation for the caller to raise after its own cleanup. If the work has
    failed, raises it.
    """
    canceled: asyncio.CancelledError | None = None
    while not work.done():
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = partial(_tell, done)
        work.add_done_callback(tell)
        try:
            await done  # cheaper than `asyncio.wait`, which is made for many futures
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
    """Whether the work is done, without an error or a cancel."""
    return work.done() and not work.cancelled() and work.exception() is None
