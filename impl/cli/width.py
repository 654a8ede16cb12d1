"""The width of the terminal, and help that fits into it."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from textwrap import wrap

WIDE = 110
MORE = "    "  # before what belongs to the line above


def columns() -> int:
    """How wide the terminal is; what goes into a pipe or a file is set for a wide one."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else WIDE


class Help(argparse.HelpFormatter):
    """Descriptions and examples that fit any width: paragraphs are filled, indented lines stay lines of their own."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        deeper = max(map(len, action.choices or ()), default=0) if action.nargs == argparse.PARSER else 0
        self._action_max_length = max(self._action_max_length, deeper + 2 * self._indent_increment)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line for part in text.strip("\n").split("\n\n")
                         for line in (*_fill_part(part.splitlines(), min(width, WIDE)), "")).rstrip()


def _fill_part(lines: list[str], width: int) -> Iterator[str]:
    """One paragraph. A line that is indented, or that comes before such a line, is not joined with others, unless the
    indented lines are sentences."""
    paragraph: list[str] = []
    at = next((n for n, line in enumerate(lines) if line.startswith(" ")), len(lines))
    if _is_prose(lines[at:]):
        indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
        yield from lines[:at]
        yield from wrap(" ".join(map(str.strip, lines[at:])), width, initial_indent=indent, subsequent_indent=indent,
                        break_on_hyphens=False, break_long_words=False)
        return
    for line, following in zip(lines, [*lines[1:], ""]):
        if not line.startswith(" "):
            paragraph.append(line)
        if paragraph and (line.startswith(" ") or following.startswith(" ") or line is lines[-1]):
            yield from wrap(" ".join(paragraph), width)
            paragraph = []
        if line.startswith(" "):
            yield from fit_line(line, width)


def _is_prose(lines: list[str]) -> bool:
    """Whether indented lines are sentences, and neither commands nor names with what there is to say about them."""
    return bool(lines) and lines[-1].endswith((".", ":")) and not any("  " in line.strip() for line in lines)


def fit_line(line: str, width: int) -> Iterator[str]:
    """A line that is a command or a name and, after two spaces or more, what there is to say about it."""
    if len(line) <= width:
        yield line
        return
    indent = " " * (len(line) - len(line.lstrip()))
    what, *says = re.split(r" {2,}", line.strip(), maxsplit=1)
    *broken, last = wrap(what, width - 2, initial_indent=indent, subsequent_indent=indent + MORE,
                         break_on_hyphens=False, break_long_words=False)
    sign = "" if what.startswith(('"', "{")) else " \\"  # so that a shell takes it as it stands
    yield from (f"{part}{sign}" for part in broken)
    yield last
    for words in says:
        yield from wrap(words, width, initial_indent=indent + MORE, subsequent_indent=indent + MORE)
