"""How the kit's reports look in a notebook, and the model's objects: `%load_ext cancelmark.conformance.notebook`."""

from typing import Any

from cancelmark.views import notebook
from cancelmark.views.notebook import Word, on_paper, register, table

from .report import Report, Status, Verdict, counted

CSS = {Status.KEPT: "good", Status.BROKEN: "bad"}


def verdict_picture(verdict: Verdict) -> str | None:
    """The shortest history that breaks a guarantee, if one does."""
    return on_paper(verdict.svg, verdict.story) if verdict.finding else None


def report_sheet(report: Report) -> str:
    """What the kit says of a server."""
    return table(f"{report.name}, judged in {counted(report.histories)}", ("guarantee", "verdict", "why"), (
        (v.guarantee, Word(CSS.get(v.status, ""), v.status.value), v.about) for v in report.verdicts)).html


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext cancelmark.conformance.notebook`."""
    notebook.load_ipython_extension(shell)
    register(shell, {Verdict: verdict_picture}, {Report: report_sheet})
