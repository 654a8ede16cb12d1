"""A long session behind `cancelmark serve` as it is installed, with its built-in model: what a prompt takes there, from
its posting to its end, beside one in a new session of the same workspace. Both are measured alternately, in one run.

How long anybody else has to wait meanwhile is measured by asking for `/v1/health` again and again while a page of the
session's messages is made, and while somebody who was away for long catches up with its events.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from cancelmark.impl.models.demo import demo_model
from cancelmark.impl.runtime.workspace import Workspaces

from ..process.runtime import history
from ..report import Goal, Report, Table
from ..setting import Setting
from .server import EMPTY, Connection, get, post, server

PROMPTS = 100_000  # in the long session
BATCH = 2000  # of them are written at a time
SAMPLES = 100  # prompts of each session in a round


async def fill(directory: Path, prompts: int) -> tuple[str, str, str]:
    """A workspace with a long session and a new one: its URL, and the sessions' ids."""
    workspaces = Workspaces(demo_model(), directory)
    workspace = await workspaces.open("/bench")
    await workspaces.ready(workspace)
    long, short = [(await workspace.create_session(title)).id for title in ("long", "short")]
    for first in range(1, prompts + 1, BATCH):
        await workspace.runtime.store.write(history(long, first, min(first + BATCH, prompts + 1)))
    await workspaces.close()
    return f"/v1/workspaces/{workspace.id}", long, short


async def prompt_seconds(port: int, url: str, long: str, short: str) -> tuple[list[float], list[float]]:
    """How long prompts take, in the long session and in the new one."""
    times: dict[str, list[float]] = {long: [], short: []}
    async with asyncio.timeout(600), Connection.to(port) as one, Connection.to(port) as other:
        await other.watch(url.rpartition("/")[2])
        ends = other.ends()
        for _ in range(SAMPLES):
            for session in (long, short):
                began = perf_counter()
                await one.call(post(f"{url}/agent", {"session_id": session, "prompt": "fast: hi"}))
                assert (await anext(ends))["session_id"] == session
                times[session].append(perf_counter() - began)
    return times[long], times[short]


async def longest_wait(port: int, work: Callable[[], Awaitable[object]]) -> float:
    """The longest round trip of others while the work is done."""
    longest = 0.0
    async with Connection.to(port) as other:
        working = asyncio.ensure_future(work())
        while not working.done():
            began = perf_counter()
            await other.call(EMPTY)
            longest = max(longest, perf_counter() - began)
        await working
    return longest


async def waits(port: int, url: str, long: str, prompts: int) -> dict[str, float]:
    """How long others have to wait at most, by what is done meanwhile."""
    async with asyncio.timeout(600), Connection.to(port) as one, Connection.to(port) as back:
        async def catch_up() -> None:
            await back.watch(url.rpartition("/")[2], after="0")
            seen = 0
            async for _ in back.ends():
                seen += 1
                if seen == prompts:
                    return

        return {
            "nothing": await longest_wait(port, lambda: asyncio.sleep(0.2)),
            "a page of messages": await longest_wait(port, lambda: one.call(get(f"{url}/sessions/{long}/messages"))),
            f"a reader that catches up with {prompts:,} events": await longest_wait(port, catch_up)}


def measure(setting: Setting) -> Report:
    """The long session beside the new one."""
    ratios: list[float] = []
    rows: list[tuple[object, ...]] = []
    waited: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
        url, long, short = asyncio.run(fill(Path(directory), PROMPTS))
        for number in range(1, setting.rounds + 1):
            with server(directory=directory) as (port, _):
                in_long, in_short = (median(times) for times in asyncio.run(prompt_seconds(port, url, long, short)))
                others = asyncio.run(waits(port, url, long, PROMPTS))
            ratios.append(in_long / in_short)
            rows.append((number, in_short * 1000, in_long * 1000, ratios[-1]))
            waited += [(number, what, seconds * 1000) for what, seconds in others.items()]
    return Report(
        [Table(f"A prompt from its posting to its end, built-in model, medians of {SAMPLES} in milliseconds",
               ("round", "in a new session", f"after {PROMPTS:,} others", "ratio"), rows),
         Table("The longest that others wait for an answer, in milliseconds", ("round", "while there is", "wait"),
               waited)],
        [Goal(f"a prompt over HTTP after {PROMPTS:,} others in its session, beside one in a new session", tuple(ratios),
              "at most", 1.5)])
