"""A trace as a picture: time goes down, a lane a prompt, and a bar for as long as a prompt is in one state.

The dashed line across lanes is a cancel: it crosses just the prompts that the cancel reaches.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import NamedTuple

from cancelmark.model.trace import Trace

from ..drawing.render import svg_document
from ..drawing.svg import LETTER, box, line, text
from . import telling

LINE = 15
ROW = 30
HEAD = 46
LANE = 138
MARK = 52
GAP = 14
WORDS = 42  # letters after which the words of a step are wrapped


class Grid(NamedTuple):
    """Where things are: the left edges of columns, and the top edges of rows with the bottom of the last."""

    call: float
    marks: list[float]  # by session
    lanes: dict[int, float]  # by seq
    words: float
    width: float
    rows: list[float]


def trace_svg(trace: Trace) -> str:
    """The trace as an SVG that stands alone: calls at the left, lanes by session, what happened at the right."""
    scenes = [scene for scene in telling.scenes(trace) if scene.call or scene.cells]
    lanes = telling.lanes(trace)
    said = [wrap(", ".join(scene.happened), WORDS) for scene in scenes]
    grid = _grid(trace, scenes, lanes, said)
    body = [
        *_bands(scenes, grid), *_head(trace, lanes, grid), *_steps(scenes, said, grid),
        *(bar for lane in lanes for bar in _bars(scenes, lane, grid)),
        *_marks(scenes, grid), *_loop(trace, grid),
    ]
    foot = 2 if trace.loop is None else ROW
    return svg_document("A trace, step by step", grid.width, grid.rows[-1] + foot, "\n".join(body))


def _grid(
    trace: Trace, scenes: Sequence[telling.Scene], lanes: Sequence[telling.Lane], said: Sequence[list[str]],
) -> Grid:
    call = 3 * LETTER + 2 * GAP
    x = call + max([len(scene.title) for scene in scenes] + [4]) * LETTER + GAP
    marks, places = [], {}
    for session in range(len(trace.start.sessions)):
        marks.append(x)
        x += MARK
        for lane in lanes:
            if lane.session == session:
                places[lane.prompt.seq] = x
                x += LANE
        x += GAP
    heights = [max(ROW, len(lines) * LINE + LINE) for lines in said]
    width = x + max([len(line) for lines in said for line in lines] + [13]) * LETTER
    return Grid(call, marks, places, x, width, list(accumulate(heights, initial=HEAD)))


def _bands(scenes: Sequence[telling.Scene], grid: Grid) -> Iterator[str]:
    """The steps during which the server is down."""
    for i, scene in enumerate(scenes):
        if telling.is_down(scene.after):
            yield box(grid.marks[0], grid.rows[i], grid.words - grid.marks[0] - GAP, grid.rows[i + 1] - grid.rows[i],
                       "down")


def _head(trace: Trace, lanes: Sequence[telling.Lane], grid: Grid) -> Iterator[str]:
    y = HEAD - LINE
    yield text(grid.call, y, "call", "faint")
    yield text(grid.words, y, "what happened", "faint")
    for session, x in enumerate(grid.marks):
        yield text(x, y, "mark", "faint")
        if len(trace.start.sessions) > 1:
            yield text(x, y - LINE - 2, f"session {session + 1}", "strong")
    for lane in lanes:
        yield text(grid.lanes[lane.prompt.seq] + LANE / 2, y, lane.title, "strong", "middle")


def _steps(scenes: Sequence[telling.Scene], said: Sequence[list[str]], grid: Grid) -> Iterator[str]:
    for scene, lines, top in zip(scenes, said, grid.rows):
        yield line(GAP, top, grid.width, top, "guide")
        yield text(grid.call - GAP, top + 20, str(scene.number), "faint", "end")
        yield text(grid.call, top + 20, scene.title)
        for i, words in enumerate(lines):
            yield text(grid.words, top + 20 + i * LINE, words)


def _bars(scenes: Sequence[telling.Scene], lane: telling.Lane, grid: Grid) -> Iterator[str]:
    x = grid.lanes[lane.prompt.seq]
    for cell, start, end in telling.stays(scenes, lane):
        yield box(x + 5, grid.rows[start] + 3, LANE - 10, grid.rows[end] - grid.rows[start] - 6, cell.kind)
        yield text(x + LANE / 2, grid.rows[start] + 20, cell.text, anchor="middle")


def _marks(scenes: Sequence[telling.Scene], grid: Grid) -> Iterator[str]:
    for scene, top in zip(scenes, grid.rows):
        for session, x in enumerate(grid.marks):
            if mark := scene.new_mark(session):
                yield text(x, top + 20, mark, "strong")
                yield line(x, top, x + MARK, top, "cancel")
            for seq in scene.newly_canceled(session):
                yield line(grid.lanes[seq], top, grid.lanes[seq] + LANE, top, "cancel")


def _loop(trace: Trace, grid: Grid) -> Iterator[str]:
    if (words := telling.loop_text(trace)) and trace.loop is not None:
        first = len(grid.rows) - 1 - (len(trace) - trace.loop)
        yield line(GAP / 2, grid.rows[first], GAP / 2, grid.rows[-1], "fault")
        yield text(GAP / 2, grid.rows[-1] + 20, f"↻ {words}", "strong")
