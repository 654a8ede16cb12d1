"""Calls that other nodes come in between, and that are made again."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from ..runtime import Moved
from ..runtime.refusals import Refusal

P = ParamSpec("P")
T = TypeVar("T")

PAUSE = 0.002  # seconds before a call is made again

CALLS = {"cancel", "clear_queue", "revoke", "stop", "hold", "resume", "replace", "next"}


class Stale(Refusal):
    """Others have written to the session meanwhile: the call is made again."""


def repeated(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The call is made again until no other node comes in between."""
    async def repeat(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await call(*args, **kwargs)
            except (Stale, Moved):
                await asyncio.sleep(PAUSE)

    return repeat
