"""Every task of a runtime is held by somebody: a garbage collection ends one that is not, and nobody is told."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from support.runtimes import PATIENCE, calls, tool, until

from cancelmark.impl.models import ChatMessage, Delta, Tool
from cancelmark.impl.models.scripted import ScriptedModel, say
from cancelmark.impl.runtime import Runtime
from cancelmark.model.lifecycle import Outcome


class Hermit:
    """One who waits for something that nobody else holds."""

    def __init__(self) -> None:
        self.times = 0  # that it has come to wait
        self._waiting: weakref.ref[asyncio.Future[None]]

    async def wait(self, _: str = "") -> str:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = weakref.ref(waiting)
        self.times += 1
        await waiting
        return "awake"

    async def wait_stubbornly(self) -> str:
        while True:
            with suppress(asyncio.CancelledError):
                return await self.wait()

    def wake(self) -> None:
        gc.collect()
        waiting = self._waiting()
        assert waiting is not None, "its task was collected while it waited"
        waiting.set_result(None)


class Slow(ScriptedModel):
    """A model that waits before it speaks."""

    def __init__(self, wait: Callable[[], Awaitable[str]]) -> None:
        super().__init__()
        self._wait_first = wait

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        await self._wait_first()
        async for delta in super().step(messages, tools):
            yield delta


def with_ready(hermit: Hermit) -> Runtime:
    async def ready(session_id: str) -> None:
        await hermit.wait()

    return Runtime(ScriptedModel(), ready=ready, grace=0)


def with_model(hermit: Hermit) -> Runtime:
    return Runtime(Slow(hermit.wait), grace=0)


def with_tool(hermit: Hermit) -> Runtime:
    scenes = iter([calls("c1"), say("done")])
    return Runtime(ScriptedModel(lambda request: next(scenes)), tools=[tool("read", hermit.wait)], grace=0)


@pytest.mark.parametrize("make", [with_ready, with_model, with_tool])
async def test_who_waits_for_what_nobody_else_holds_is_not_collected(make: Callable[[Hermit], Runtime]) -> None:
    hermit = Hermit()
    async with asyncio.timeout(PATIENCE), make(hermit) as runtime:
        await runtime.create_session("s")
        handle = await runtime.accept("s", "hello")
        await until(lambda: hermit.times > 0)
        hermit.wake()
        assert (await handle).outcome is Outcome.END_TURN


async def test_an_abandoned_turn_is_not_collected_before_it_has_cleaned_up() -> None:
    hermit = Hermit()
    async with asyncio.timeout(PATIENCE), Runtime(Slow(hermit.wait_stubbornly), grace=0) as runtime:
        await runtime.create_session("s")
        handle = await runtime.accept("s", "hello")
        await until(lambda: hermit.times > 0)
        await runtime.cancel("s")
        assert (await handle).outcome is Outcome.CANCELED
        await until(lambda: hermit.times == 3)  # asked to stop, and abandoned
        hermit.wake()


def test_a_prompt_that_is_done_leaves_nothing_to_the_garbage_collector() -> None:
    """What holds itself in a circle stays until a collection, and each of those looks at everything that is stored."""
    async def main() -> int:
        async with Runtime(ScriptedModel()) as runtime:
            await runtime.create_session("s")
            await (await runtime.accept("s", "the first"))
            gc.collect()
            gc.disable()
            try:
                for number in range(10):
                    await (await runtime.accept("s", f"prompt {number}"))
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(main()) == 0
