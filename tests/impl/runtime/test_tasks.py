"""Work that is done to its end although whoever waits for it is canceled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cancelmark.impl.runtime import tasks
from cancelmark.impl.runtime.tasks import cancel_all, has_succeeded, wait_through_cancel


async def work(waits: int, error: Exception | None = None) -> int:
    for _ in range(waits):
        await asyncio.sleep(0)
    if error:
        raise error
    return 42


async def begin(task: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
    """A task that has taken its first step."""
    begun = asyncio.ensure_future(task)
    await asyncio.sleep(0)
    return begun


async def follow(task: "asyncio.Task[int]", said: list[str]) -> int:
    """Waits for the work, does what must follow, and only then lets itself be canceled."""
    canceled = await wait_through_cancel(task)
    said.append(f"the work gave {task.result()}")
    if canceled:
        raise canceled
    return task.result()


@pytest.mark.parametrize("waits", [0, 1, 5])
async def test_who_waits_gets_the_result_or_the_error_of_the_work(waits: int) -> None:
    assert await follow(await begin(work(waits)), []) == 42
    failed = await begin(work(waits, ZeroDivisionError("oops")))
    with pytest.raises(ZeroDivisionError, match="oops"):
        await follow(failed, [])


@pytest.mark.parametrize("cancels", [1, 3])
async def test_who_is_canceled_waits_on_and_does_what_must_follow(cancels: int) -> None:
    said: list[str] = []
    caller = await begin(follow(await begin(work(9)), said))
    for _ in range(cancels):
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert said == ["the work gave 42"]


async def test_who_is_canceled_is_canceled_also_when_the_work_fails() -> None:
    said: list[str] = []
    caller = await begin(follow(await begin(work(5, ZeroDivisionError("oops"))), said))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert said == []


async def test_work_has_succeeded_when_it_is_done_without_error_or_cancel() -> None:
    tasks = [await begin(work(*how)) for how in ((9,), (0,), (0, ZeroDivisionError("oops")), (9,))]
    tasks[3].cancel()
    await asyncio.sleep(0)
    assert [has_succeeded(task) for task in tasks] == [False, True, False, False]
    await tasks[0]


async def test_a_task_that_swallows_a_cancel_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN", 0.01)
    swallowed: list[str] = []

    async def swallow() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if len(swallowed) == 2:
                    raise
                swallowed.append("a cancel")

    begun = [asyncio.ensure_future(swallow()), asyncio.ensure_future(asyncio.sleep(60))]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel_all([*begun, asyncio.ensure_future(asyncio.sleep(0))])
    assert all(task.cancelled() for task in begun)
    assert len(swallowed) == 2
