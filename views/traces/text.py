"""A trace as text: one line a step, a column a prompt."""

from collections.abc import Sequence
from textwrap import wrap

from cancelmark.model.trace import Trace

from . import telling

GAP = "  "
LEAST = 24  # columns that it takes to say what happened; with less it goes below the step


def trace_text(trace: Trace, width: int = 110) -> str:
    """The trace in aligned columns: step, call, each session's mark and prompts, and what happened in words.

    A `*` is on whatever changed. What happened is wrapped to stay within `width`, and goes below its step where the
    prompts leave no room beside it. Where not even the prompts fit beside each other, they go below too.
    """
    lanes = telling.lanes(trace)
    sessions = len(trace.start.sessions)
    table, happened = [_header(lanes, sessions)], [""]
    for scene in telling.scenes(trace):
        if scene.call or scene.cells:
            table.append(_row(scene, lanes, sessions, trace.loop))
            happened.append(", ".join(scene.happened))
    widths = [max(map(len, column)) for column in zip(*table)]
    if sum(widths) + len(GAP) * len(widths) > width + len(GAP):
        return _stacked(table, happened, width, telling.loop_text(trace))
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
    if loop := telling.loop_text(trace):
        lines.append(f"↻ {loop}")
    return "\n".join(lines) + "\n"


def _stacked(table: list[list[str]], happened: list[str], width: int, loop: str | None) -> str:
    """For a narrow terminal: each step on a line of its own, and below it the mark, the prompts and what happened."""
    head, *rows = table
    lines = []
    for (number, call, *cells), words in zip(rows, happened[1:]):
        lines.append(f"{number}{GAP}{call}")
        told = GAP.join(f"{name} {cell}" for name, cell in zip(head[2:], cells) if cell)
        for part in (told, words):
            lines += wrap(part, width, initial_indent=" " * 6, subsequent_indent=" " * 8)
    return "\n".join([*lines, *([f"↻ {loop}"] if loop else [])]) + "\n"


def _header(lanes: Sequence[telling.Lane], sessions: int) -> list[str]:
    cells = ["step", "call"]
    for session in range(sessions):
        at = f"@{session + 1}" if sessions > 1 else ""
        cells += [f"mark{at}", *(f"{lane.title}{at}" for lane in lanes if lane.session == session)]
    return cells


def _row(scene: telling.Scene, lanes: Sequence[telling.Lane], sessions: int, loop: int | None) -> list[str]:
    repeats = loop is not None and scene.number > loop
    cells = [f"{'↻ ' if repeats else ''}{scene.number}".rjust(4), scene.title]
    for session in range(sessions):
        cells.append(telling.mark_text(scene.after.sessions[session]) + "*" * (scene.new_mark(session) is not None))
        for lane in lanes:
            if lane.session == session:
                cell = scene.cells.get(lane.prompt.seq)
                cells.append(cell.text + "*" * cell.changed if cell else "")
    return cells
