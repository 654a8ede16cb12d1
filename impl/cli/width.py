"""The width of the terminal, and help texts that fit it."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from textwrap import wrap

WIDE = 110
MORE = "    "  # indent of a continuation line
_UNBROKEN = "\N{NO-BREAK SPACE}"  # stands for a space at which `wrap` must not break


def columns() -> int:
    """The width of the terminal; a fixed wide one for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else WIDE


class Help(argparse.HelpFormatter):
    """Fits descriptions and examples to any width: fills paragraphs, and keeps each indented line separate."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        deeper = max(map(len, action.choices or ()), default=0) if action.nargs == argparse.PARSER else 0
        self._action_max_length = max(self._action_max_length, deeper + 2 * self._indent_increment)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line for part in text.strip("\n").split("\n\n")
                         for line in (*_fill_part(part.splitlines(), min(width, WIDE)), "")).rstrip()


def _fill_part(lines: list[str], width: int) -> Iterator[str]:
    """Fills one paragraph. An indented line, or the line before one, is not joined with others, unless the indented
    lines are sentences."""
    paragraph: list[str] = []
    lines = _join_explanations(lines)
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


def _join_explanations(lines: list[str]) -> list[str]:
    """The lines, with each explanation that continues on the next line, in the same column, on one line."""
    joined: list[str] = []
    for line in lines:
        if joined and len(line) - len(line.lstrip()) == _column(joined[-1]):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    return joined


def _column(line: str) -> int:
    """The column of the explanation in a line with a name and its explanation; 0 if there is none."""
    found = re.match(r" *\S+(?: \S+)* {2,}", line)
    return found.end() if found else 0


def _is_prose(lines: list[str]) -> bool:
    """Whether indented lines are sentences, rather than commands or names with their explanations."""
    return bool(lines) and lines[-1].endswith((".", ":")) and not any("  " in line.strip() for line in lines)


def fit_line(line: str, width: int) -> Iterator[str]:
    """Fits a line that is a command or a name and, after two or more spaces, its explanation. A long explanation is
    wrapped in its column if that leaves enough room, and otherwise goes below. A long command is broken so that it can
    still be pasted into a shell: with a backslash, and never inside quotes."""
    if len(line) <= width:
        yield line
        return
    if 0 < (column := _column(line)) <= width // 3:
        yield from wrap(line[column:], width, initial_indent=line[:column], subsequent_indent=" " * column)
        return
    indent = " " * (len(line) - len(line.lstrip()))
    what, *says = re.split(r" {2,}", line.strip(), maxsplit=1)
    quoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda part: part[0].replace(" ", _UNBROKEN), what)
    *broken, last = wrap(quoted, width - 2, initial_indent=indent, subsequent_indent=indent + MORE,
                         break_on_hyphens=False, break_long_words=False)
    sign = "" if what.startswith(('"', "{")) else " \\"
    yield from (f"{part}{sign}".replace(_UNBROKEN, " ") for part in broken)
    yield last.replace(_UNBROKEN, " ")
    for words in says:
        yield from wrap(words, width, initial_indent=indent + MORE, subsequent_indent=indent + MORE)
