"""A trace as text: one line per step, one column per prompt."""

from collections.abc import Sequence
from textwrap import wrap

from cancelmark.model.trace import Trace

from . import content

GAP = "  "
LEAST = 24  # minimum width of the "what happened" column; if less is left, its text goes below the step


def trace_text(trace: Trace, width: int = 110) -> str:
    """The trace in aligned columns: step, call, each session's mark and prompts, and a description of what happened.

    A `*` marks each changed value. The description is wrapped to stay within `width`; if the columns leave no room for
    it, it goes below its step. If even the columns do not fit, they go below the step too.
    """
    lanes = content.lanes(trace)
    sessions = len(trace.start.sessions)
    table, happened = [_header(lanes, sessions)], [""]
    for scene in content.scenes(trace):
        if scene.call or scene.cells:
            table.append(_row(scene, lanes, sessions, trace.loop))
            happened.append(", ".join(scene.happened))
    widths = [max(map(len, column)) for column in zip(*table)]
    if sum(widths) + len(GAP) * len(widths) > width + len(GAP):
        return _stacked(table, happened, width, content.loop_text(trace))
    indent = sum(widths) + len(GAP) * len(widths)
    below = width - indent < LEAST
    if below:
        indent = widths[0] + len(GAP)
    else:
        happened[0] = "what happened"
    lines = []
    for row, words in zip(table, happened):
        cells = GAP.join(cell.ljust(wide) for cell, wide in zip(row, widths)) + GAP
        said = wrap(words, width - indent)
        beside = said.pop(0) if said and not below else ""
        lines.append((cells + beside).rstrip())
        lines += [" " * indent + more for more in said]
    if loop := content.loop_text(trace):
        lines.append(f"↻ {loop}")
    return "\n".join(lines) + "\n"


def _stacked(table: list[list[str]], happened: list[str], width: int, loop: str | None) -> str:
    """The layout for a narrow terminal: each step on its own line, with the mark, prompts and description below it."""
    head, *rows = table
    lines = []
    for (number, call, *cells), words in zip(rows, happened[1:]):
        lines.append(f"{number}{GAP}{call}")
        told = GAP.join(f"{name} {cell}" for name, cell in zip(head[2:], cells) if cell)
        for part in (told, words):
            lines += wrap(part, width, initial_indent=" " * 6, subsequent_indent=" " * 8)
    return "\n".join([*lines, *([f"↻ {loop}"] if loop else [])]) + "\n"


def _header(lanes: Sequence[content.Lane], sessions: int) -> list[str]:
    cells = ["step", "call"]
    for session in range(sessions):
        at = f"@{session + 1}" if sessions > 1 else ""
        cells += [f"mark{at}", *(f"{lane.title}{at}" for lane in lanes if lane.session == session)]
    return cells


def _row(scene: content.Scene, lanes: Sequence[content.Lane], sessions: int, loop: int | None) -> list[str]:
    repeats = loop is not None and scene.number > loop
    cells = [f"{'↻ ' if repeats else ''}{scene.number}".rjust(4), scene.title]
    for session in range(sessions):
        cells.append(content.mark_text(scene.after.sessions[session]) + "*" * (scene.new_mark(session) is not None))
        for lane in lanes:
            if lane.session == session:
                cell = scene.cells.get(lane.prompt.seq)
                cells.append(cell.text + "*" * cell.changed if cell else "")
    return cells
