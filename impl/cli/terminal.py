"""What the commands print on: tables and colour on a terminal, plain text in a pipe, nothing at a closed one."""

from typing import NoReturn

from rich.console import Console


class Output(Console):
    """A console that leaves a reader who has gone to the command line's own handling."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def output() -> Console:
    return Output(highlight=False, soft_wrap=True)
