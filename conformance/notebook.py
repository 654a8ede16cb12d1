"""Notebooks: rendering of the kit's reports (`%load_ext cancelmark.conformance.notebook`), and running of stories."""

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
    """The diagram of the shortest history that breaks the guarantee, if one does."""
    return on_paper(verdict.svg, verdict.story) if verdict.finding else None


def report_sheet(report: Report) -> str:
    """The table of verdicts."""
    return table(f"{report.name}, judged in {counted(report.histories)}", ("guarantee", "verdict", "reason"), (
        (v.guarantee, Word(CSS.get(v.status, ""), v.status.value), v.about) for v in report.rows)).html


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext cancelmark.conformance.notebook`."""
    notebook.load_ipython_extension(shell)
    register(shell, {Verdict: verdict_picture}, {Report: report_sheet})


# --- stories

def aside(function: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Call the function in another thread, since a notebook already has an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments, **more).result()


def play(kind: Callable[[Recording], Any], story: Callable[[Any], Awaitable[None]]) -> Recording:
    """The recording of a story on a new server of that kind. Time is virtual, so waiting costs nothing."""
    async def main() -> Recording:
        history = Recording(asyncio.get_running_loop().time)
        server = kind(history)
        await story(server)
        await asyncio.gather(*server.tasks)
        return history

    return aside(run, main())
