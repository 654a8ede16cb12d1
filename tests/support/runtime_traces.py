"""Traces that a runtime writes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.runtimes import World, calls, fails, world

from cancelmark.impl.models import Failure
from cancelmark.impl.models.scripted import Wait, say
from cancelmark.impl.runtime.trace import TraceWriter
from cancelmark.impl.store import Store


def write_trace(tmp_path: Path, store: Store, story: Callable[[World], Awaitable[None]], **options: Any) -> Path:
    """Plays the story, and returns the path of its trace."""
    path = tmp_path / "trace.ndjson"

    async def main() -> None:
        with TraceWriter(path) as trace:
            async with world(store, **options) as w:
                w.runtime.trace = trace
                await story(w)

    asyncio.run(main())
    return path


async def echo(arguments: str) -> str:
    """A tool."""
    return arguments


async def do_everything(w: World) -> None:
    """A story in which every action happens."""
    w.plays("a", (Wait("a"), *calls("c1")), say("done"))
    a = await w.accept("a", "run-a")
    await w.model.gate("a").reached()
    await w.queued("folds")
    w.plays("long", fails(Failure.CONTEXT_TOO_LONG), say("at last"))
    long = await w.queued("long", "run-long")
    w.model.gate("a").open()
    await asyncio.gather(a, long)
    _, _ = await w.active("b", "run-b")
    await w.queued("c", "run-c")
    await w.runtime.clear_queue("s")
    w.runtime.holding = True
    late = await w.accept("late", "run-late")
    await w.runtime.cancel("s")
    w.runtime.door("late").set()
    await late

    async def not_ready(session_id: str) -> None:
        raise LookupError("not ready")

    w.runtime.holding, w.runtime.ready = False, not_ready
    await (await w.accept("d", "run-d", "t"))
    w.runtime.ready = None
