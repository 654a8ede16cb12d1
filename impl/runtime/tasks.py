"""Work that is done to its end, whatever is asked of whoever waits for it."""

import asyncio
from typing import Any


async def outlast(work: "asyncio.Future[Any]") -> asyncio.CancelledError | None:
    """Waits until the work is done, even if the waiting task is canceled meanwhile. If the work has succeeded then,
    the request to cancel is returned, for the caller to raise when it has done what must follow; if not, raised."""
    canceled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as request:
            canceled = request
    if canceled and not has_succeeded(work):
        raise canceled
    return canceled


def has_succeeded(work: "asyncio.Future[Any]") -> bool:
    """Whether the work is done, and nothing went wrong."""
    return work.done() and not work.cancelled() and work.exception() is None
