"""What the commands print on: tables and colour on a terminal, plain text in a pipe, nothing at a closed one."""

import sys
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


class Output(Console):
    """A console that leaves a reader who has gone to the command line's own handling."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def output() -> Console:
    return Output(highlight=False, soft_wrap=True)


def progress_bar(*columns: "ProgressColumn", auto_refresh: bool = True) -> "Progress":
    """A bar on a terminal, which is gone at the end, and nothing in a pipe. The console is silent as well: older
    versions of rich print an empty line after a bar that is only disabled."""
    from rich.progress import Progress

    shown = sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True, quiet=not shown), transient=True, disable=not shown,
                    auto_refresh=auto_refresh)
