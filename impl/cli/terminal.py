"""Console output: tables and colour on a terminal, plain text in a pipe, no traceback when the pipe closes."""

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table


class Output(Console):
    """A console that raises `BrokenPipeError` when its reader is gone; `run_command` handles it."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def output() -> Console:
    return Output(highlight=False, soft_wrap=True)


def plain_table(*headings: str, right: Collection[str] = (), wrapped: Collection[str] | None = None) -> "Table":
    """A table without borders. Columns in `right` are right-aligned. If `wrapped` is given, only those may wrap."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headings))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left",
                         no_wrap=wrapped is not None and heading not in wrapped)
    return table


def progress_bar(*columns: "ProgressColumn", auto_refresh: bool = True) -> "Progress":
    """A progress bar on standard error that is erased when it finishes; nothing in a pipe.

    The console is quiet too: older versions of rich print an empty line after a bar that is only disabled."""
    from rich.progress import Progress

    shown = sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True, quiet=not shown), transient=True, disable=not shown,
                    auto_refresh=auto_refresh)
