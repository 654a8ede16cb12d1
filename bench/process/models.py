"""Models that do nothing, so that everything that is measured is the runtime's."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from cancelmark.impl.models import Delta, Failure, Finish, FinishReason, Message, ModelError, TextDelta, Tool
from cancelmark.impl.runtime.conversation import SUMMARIZE


class Null:
    """Its step ends at once. It looks at nothing and says nothing."""

    name, provider = "null", "bench"
    hears: int | None = 0

    async def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Nothing is held."""


class Endless(Null):
    """Its step never ends, so that what comes later is queued."""

    async def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        await asyncio.Event().wait()
        yield Finish(FinishReason.END_TURN)


class Reader(Null):
    """It hears everything that was said, as a real model has to, and more than its window is too long for it."""

    hears = None  # everything

    def __init__(self, window: int) -> None:
        self.window = window  # messages

    async def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        if len(messages) > self.window and messages[-1].text != SUMMARIZE:
            raise ModelError(Failure.CONTEXT_TOO_LONG, "too long")
        yield TextDelta("yes")
        yield Finish(FinishReason.END_TURN)
