"""Notebooks: how the kit's reports look (`%load_ext cancelmark.conformance.notebook`), and stories that are played."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from cancelmark.views import notebook
from cancelmark.views.course.recording import Recording
from cancelmark.views.notebook import Word, on_paper, register, table

from .report import Report, Status, Verdict, counted
from .schedule import run

P = ParamSpec("P")
T = TypeVar("T")
CSS = {Status.KEPT: "good", Status.BROKEN: "bad"}


def verdict_picture(verdict: Verdict) -> str | None:
    """The shortest history that breaks a guarantee, if one does."""
    return on_paper(verdict.svg, verdict.story) if verdict.finding else None


def report_sheet(report: Report) -> str:
    """What the kit says of a server."""
    return table(f"{report.name}, judged in {counted(report.histories)}", ("guarantee", "verdict", "why"), (
        (v.guarantee, Word(CSS.get(v.status, ""), v.status.value), v.about) for v in report.rows)).html


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext cancelmark.conformance.notebook`."""
    notebook.load_ipython_extension(shell)
    register(shell, {Verdict: verdict_picture}, {Report: report_sheet})


# --- stories

def aside(function: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Calls the function in a thread of its own: a notebook has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments, **more).result()


def play(kind: Callable[[Recording], Any], story: Callable[[Any], Awaitable[None]]) -> Recording:
    """What happens when the story is told to a new server of that kind. The clock jumps, so that nobody waits."""
    async def main() -> Recording:
        history = Recording(asyncio.get_running_loop().time)
        server = kind(history)
        await story(server)
        await asyncio.gather(*server.tasks)
        return history

    return aside(run, main())
