"""Work that is begun at once: without a task if it need not wait, and in a task of its own from its first wait on."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from cancelmark.impl.runtime.tasks import begun, uncut


def story(main: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def within() -> None:
            async with asyncio.timeout(30):
                await main()

        asyncio.run(within())

    test.__name__, test.__doc__ = getattr(main, "__name__", "test"), main.__doc__
    return test


async def answer(waits: int, said: list[str]) -> int:
    said.append("begins")
    for _ in range(waits):
        await asyncio.sleep(0)
    said.append("ends")
    return 42


@story
async def test_work_that_need_not_wait_is_over_at_once_and_needs_no_task() -> None:
    said: list[str] = []
    done = begun(answer(0, said))
    assert said == ["begins", "ends"]
    assert done.done()
    assert not isinstance(done, asyncio.Task)
    assert await done == 42


@story
async def test_work_that_waits_has_begun_and_goes_on_in_a_task() -> None:
    said: list[str] = []
    task = begun(answer(3, said))
    assert said == ["begins"]
    assert isinstance(task, asyncio.Task)
    assert await task == 42
    assert said == ["begins", "ends"]


@pytest.mark.parametrize("waits", [0, 2])
def test_an_exception_is_kept_for_who_asks(waits: int) -> None:
    async def fail() -> None:
        await answer(waits, [])
        raise ZeroDivisionError("oops")

    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="oops"):
            await begun(fail())

    asyncio.run(main())


@story
async def test_a_future_that_others_wait_for_too_is_waited_for() -> None:
    """Between the first wait and the task's first step another task may have begun to wait for the same future."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        return await future

    other = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task = begun(wait())
    third = begun(wait())
    future.set_result("here")
    assert await asyncio.gather(task, other, third) == ["here"] * 3


@story
async def test_canceling_the_task_reaches_the_work() -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            said.append("canceled")
            await asyncio.sleep(0)
            said.append("cleaned up")
            raise

    task = begun(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == ["canceled", "cleaned up"]


@story
async def test_until_its_first_wait_the_work_has_no_task_and_then_its_own() -> None:
    """A deadline that is set there would otherwise cancel the caller."""
    tasks: list[object] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    async def deadline() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)

    caller = asyncio.current_task()
    task = begun(work())
    assert asyncio.current_task() is caller
    await task
    assert tasks == [None, task]
    with pytest.raises(RuntimeError, match="inside a task"):
        await begun(deadline())


def test_work_that_is_left_when_its_loop_ends_is_closed(recwarn: pytest.WarningsRecorder) -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append("closed")

    loop = asyncio.new_event_loop()
    task = None

    async def main() -> None:
        nonlocal task
        task = begun(work())
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    loop.run_until_complete(main())
    loop.close()
    del task
    gc.collect()
    assert said == ["closed"]


@story
async def test_what_must_not_be_cut_off_is_done_before_its_caller_is_canceled() -> None:
    said: list[str] = []
    caller = asyncio.ensure_future(uncut(answer(5, said)))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert said == ["begins", "ends"]
