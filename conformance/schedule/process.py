"""Groups of tasks that pause and resume together, like those of one process among several."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

T = TypeVar("T")

_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """Whatever is started in it belongs to it: its tasks, their tasks, callbacks and timers. While it is held nothing
    of that runs, and time passes without it; after that all of it is late. A process that was killed is one that is
    held for ever."""

    def __init__(self, name: str) -> None:
        self.name, self.held = name, False

    def start(self, coro: Coroutine[Any, Any, T], name: str | None = None) -> "asyncio.Task[T]":
        context = copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(coro, name=name, context=context)


def current_process() -> Process | None:
    """The process of the step that runs now."""
    return _PROCESS.get()


def is_held(handle: asyncio.Handle) -> bool:
    process = cast(Any, handle)._context.get(_PROCESS)
    return process is not None and process.held
