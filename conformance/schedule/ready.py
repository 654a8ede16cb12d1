"""Ready callbacks: their owners, which may overtake which, and where they will resume.

Some of this is private in asyncio. All access to its internals for callbacks and tasks is in this module.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple, cast


class Ready(NamedTuple):
    """A callback that may run next, as passed to a chooser."""

    handle: asyncio.Handle
    position: int  # among all callbacks that are ready, in the order in which they became so
    owner: object | None  # see `find_owner`

    @property
    def task(self) -> str:
        """The name of the task whose step or done callback it is, or else what kind of callback."""
        match self.owner:
            case asyncio.Task() as task:
                return task.get_name()
            case asyncio.TimerHandle():
                return "timer"
            case Job():
                return "thread"
            case Option():
                return "pick"
            case asyncio.Future():
                return "future"
        return "callback"

    @property
    def is_task(self) -> bool:
        """Whether it is the step or a done callback of a task, which has that name."""
        return isinstance(self.owner, asyncio.Task)

    @property
    def place(self) -> str:
        """Where a task resumes, function and line. Otherwise the tasks that it wakes, or the name of the callback."""
        match self.owner:
            case asyncio.Task() as task if not task.done():
                return _place(task)
            case Job() as job:
                return name_of(job.function)
            case Option(text):
                return text
        woken = [name for arg in self.handle._args if isinstance(arg, asyncio.Future) for name in _waiters(arg)]
        what = f"wakes {', '.join(woken)}" if woken else name_of(_callback(self.handle))
        return f"{what} at {self.handle.when():.10g} s" if isinstance(self.handle, asyncio.TimerHandle) else what


class Option(NamedTuple):
    """One of the things that may happen, in place of a callback that may run: see `pick`."""

    text: str


# Given two or more callbacks that are ready, first in first out: the index of the one that runs.
Choose = Callable[[Sequence[Ready]], int]


class Job(NamedTuple):
    """What `run_in_executor` was given: one step, whenever it is chosen."""

    future: asyncio.Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.cancelled():
            try:
                self.future.set_result(self.function(*self.args))
            except Exception as error:
                self.future.set_exception(error)


def find_owner(handle: asyncio.Handle) -> object | None:
    """The owner of a callback. Callbacks of one owner run in the order in which they became ready.

    A task owns its steps, and a future its done callbacks (any callback whose only argument is a future that is done).
    Each timer and each executor job is its own owner. All other callbacks have no owner, and run in order too, because
    asyncio guarantees the order of call_soon.
    """
    if isinstance(handle, asyncio.TimerHandle):
        return handle
    callback = _callback(handle)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Job):
        return owner
    # A step is a method that a task does not show; `task.cancel` is one that it does.
    if isinstance(owner, asyncio.Task) and not hasattr(owner, getattr(callback, "__name__", "")):
        return owner
    match handle._args:
        case [asyncio.Future() as future] if future.done():
            return future
    return None


def _callback(handle: asyncio.Handle) -> Any:
    return cast(Any, handle)._callback


def name_of(callback: Any) -> str:
    """The name of a callback without an address in it."""
    while isinstance(callback, partial):  # to_thread wraps its function in Context.run
        wrapped = isinstance(getattr(callback.func, "__self__", None), Context)
        callback = callback.args[0] if wrapped else callback.func
    name = str(getattr(callback, "__qualname__", type(callback).__qualname__))
    asyncios = str(getattr(callback, "__module__", "")).startswith("asyncio.")
    return name.replace("<locals>.", "") if asyncios else name.rpartition("<locals>.")[2]


# --- where a task is

def waiting(task: asyncio.Task[Any]) -> str:
    """What a suspended task waits for, and where."""
    waiter = cast(Any, task)._fut_waiter
    plumbing = [frame.f_code.co_qualname for frame in _frames(task) if _is_plumbing(frame)]
    if isinstance(waiter, asyncio.Task):
        what = f"task {waiter.get_name()}"
    elif children := getattr(waiter, "_children", None):
        what = "gather of " + ", ".join(c.get_name() if isinstance(c, asyncio.Task) else "a future" for c in children)
    else:
        what = plumbing[-1].lstrip("_") if plumbing else "a future"
    return f"{task.get_name()} waits for {what}, at {_place(task)}"


def _waiters(future: asyncio.Future[Any]) -> list[str]:
    owners = [getattr(callback, "__self__", None) for callback, _ in future._callbacks or ()]
    return [owner.get_name() for owner in owners if isinstance(owner, asyncio.Task)]


def _place(task: asyncio.Task[Any]) -> str:
    """Function and line of the innermost frame that is not asyncio's own."""
    frames = _frames(task)
    frame = next((frame for frame in reversed(frames) if not _is_plumbing(frame)), None)
    return f"{frame.f_code.co_name}:{frame.f_lineno}" if frame else name_of(task.get_coro())


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """From the task's own function inwards to where it is suspended."""
    frames: list[FrameType | None] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frames.append(getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return [frame for frame in frames if frame is not None]


def _is_plumbing(frame: FrameType) -> bool:
    return _has_plumbing(str(frame.f_globals.get("__name__")))


@cache
def _has_plumbing(module: str) -> bool:
    return module.startswith("asyncio.") or module == f"{__package__}.search"
