"""Work that is not cut off: begun at once, and done to its end whatever is asked of whoever waits for it."""

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # for those who run coroutines themselves: "Extending" in its manual
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begun(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Begins the work at once, and goes on with it in a task of its own if it has to wait.

    With a store in memory nearly all work is over without waiting, and then costs no task. Until its first wait the
    work has no current task, so that what needs one there (`asyncio.timeout`) fails instead of reaching the caller's.
    """
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    if caller:
        _leave_task(loop, caller)
    try:
        awaited = work.send(None)
    except StopIteration as end:
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(end.value)
        return done
    except Exception as error:
        failed: asyncio.Future[T] = loop.create_future()
        failed.set_exception(error)
        return failed
    finally:
        if caller:
            _enter_task(loop, caller)
    if awaited is not None:
        awaited._asyncio_future_blocking = False  # so that others can wait for it until the task does
    return asyncio.ensure_future(_rest(work, awaited))


@coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What is left of the work, which waits for `awaited`."""
    while True:
        if awaited is not None:
            awaited._asyncio_future_blocking = True  # how a future tells a task that it is to be waited for
        try:
            yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            go_on = partial(work.throw, error)
        else:
            go_on = partial(work.send, None)
        try:
            awaited = go_on()
        except StopIteration as end:
            result: T = end.value
            return result


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Does the work to its end even if the waiting task is canceled meanwhile, and only then is the task canceled."""
    task = begun(work)
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as request:
            canceled = request
        except Exception:
            break  # of the work's own, and raised below
    if canceled:
        raise canceled
    return task.result()
