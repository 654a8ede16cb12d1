"""A trace as an SVG sequence diagram: client calls and server messages, next to the states of the prompts.

Time runs downwards. The space between two lines is one atomic step. A client's call is an arrow to the server, a
message to clients is an arrow back, and the server's own actions are written next to its lifeline. Each state of a
prompt is a bar on its lifeline. A cancel is a dashed line that crosses exactly the prompts that it covers.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from cancelmark.model.actions import Actor
from cancelmark.model.effects import Acknowledge, End, Fold
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import label
from cancelmark.model.trace import Trace

from ..drawing.render import svg_document
from ..drawing.svg import LETTER, arrow, box, line, text
from . import content

EDGE = 14
TOP = 82  # room for the title, the sentence, and the names of the lifelines
CLIENTS = 74  # x of the clients' lifeline
SERVER = CLIENTS + 200
MARK = 44
LANE = 138
LINE = 22  # the height of one message
PAD = 12

CSS = {Outcome.END_TURN: "happy", Outcome.ERROR: "fault", Outcome.CANCELED: "cancel"}


class Grid(NamedTuple):
    """The layout: the left edges of the columns, and the top edges of the steps with the bottom of the last."""

    marks: list[float]  # by session
    lanes: dict[int, float]  # by seq
    width: float
    steps: list[float]


def trace_svg(trace: Trace, title: str = "A trace, step by step", says: str = "") -> str:
    """The trace as a standalone SVG with a title and an explanatory sentence. If steps repeat forever, the sentence
    says which."""
    if loop := content.loop_text(trace):
        says = f"{says} ↻ {loop}".lstrip()
    scenes = [scene for scene in content.scenes(trace) if scene.call]
    lanes = content.lanes(trace)
    grid = _grid(trace, scenes, lanes, says)
    body = [
        text(EDGE, 22, title, "strong"), text(EDGE, 42, says, "faint"),
        *_bands(scenes, grid), *_names(lanes, grid),
        *(line(x, grid.steps[0], x, grid.steps[-1], "lifeline") for x in (CLIENTS, SERVER)),
        *(bar for lane in lanes for bar in _bars(scenes, lane, grid)),
        *(part for scene, top in zip(scenes, grid.steps) for part in _step(scene, top, grid)),
    ]
    return svg_document(title, grid.width, grid.steps[-1] + PAD, "\n".join(body))


def _is_client_call(scene: content.Scene) -> bool:
    """Whether it is a client's call."""
    return scene.call is not None and scene.call.action.actor is Actor.CLIENT


def _server_words(scene: content.Scene) -> str:
    """The text next to the server: its own action, or changes by a client's call that no prompt's state shows."""
    return ", ".join(scene.changes) if _is_client_call(scene) else scene.title


def _client_messages(scene: content.Scene) -> list[tuple[str, str]]:
    """The messages that clients receive, each with the class of its arrow."""
    told = []
    for effect in scene.effects:
        if isinstance(effect, Acknowledge):
            told.append((f"202: {label(effect.seq)} is accepted", "ordinary"))
        elif isinstance(effect, End) and effect.outcome in CSS:
            told.append((f"{label(effect.seq)} done: {effect.outcome.value}", CSS[effect.outcome]))
    return told


def _grid(
    trace: Trace, scenes: Sequence[content.Scene], lanes: Sequence[content.Lane], says: str,
) -> Grid:
    marks, places = [], {}
    x = SERVER + PAD + max([len(_server_words(scene)) for scene in scenes] + [6]) * LETTER + PAD
    for session in range(len(trace.start.sessions)):
        marks.append(x)
        x += MARK
        for lane in lanes:
            if lane.session == session:
                places[lane.prompt.seq] = x
                x += LANE
        x = max(x + 2 * PAD, marks[-1] + 11 * LETTER)  # room for the session's name, even without prompts
    heights = [max(1, _is_client_call(scene) + len(_client_messages(scene))) * LINE + PAD for scene in scenes]
    top = TOP + (LINE if len(marks) > 1 else 0)  # room for the names of several sessions
    return Grid(marks, places, max(x - PAD, len(says) * LETTER * 0.9 + 2 * EDGE), [*accumulate(heights, initial=top)])


def _bands(scenes: Sequence[content.Scene], grid: Grid) -> Iterator[str]:
    """A line above each step, and a band while the server is down."""
    for i, scene in enumerate(scenes):
        top, bottom = grid.steps[i:i + 2]
        if content.is_down(scene.after):
            yield box(EDGE, top, grid.width - 2 * EDGE, bottom - top, "down")
        yield line(EDGE, top, grid.width - EDGE, top, "guide")
        yield text(EDGE + 2 * LETTER, top + LINE, str(scene.number), "faint", "end")


def _names(lanes: Sequence[content.Lane], grid: Grid) -> Iterator[str]:
    y = grid.steps[0] - PAD
    yield text(CLIENTS, y, "clients", "strong", "middle")
    yield text(SERVER, y, "server", "strong", "middle")
    for session, x in enumerate(grid.marks):
        yield text(x, y, "mark", "faint")
        if len(grid.marks) > 1:
            yield text(x, y - LINE, f"session {session + 1}", "strong")
    for lane in lanes:
        yield text(grid.lanes[lane.prompt.seq] + LANE / 2, y, lane.title, "strong", "middle")


def _bars(scenes: Sequence[content.Scene], lane: content.Lane, grid: Grid) -> Iterator[str]:
    x = grid.lanes[lane.prompt.seq]
    for cell, start, end in content.stays(scenes, lane):
        top = grid.steps[start]
        bottom = top + LINE + PAD if cell.kind == State.DONE.value else grid.steps[end]
        yield box(x + 5, top + 4, LANE - 10, bottom - top - 8, cell.kind)
        yield text(x + LANE / 2, top + LINE, cell.text, anchor="middle")


def _step(scene: content.Scene, top: float, grid: Grid) -> Iterator[str]:
    assert scene.call is not None
    y = top + LINE
    if _is_client_call(scene):
        yield arrow(CLIENTS, SERVER, y + 2, "ordinary")
        yield text(CLIENTS + PAD, y - 4, scene.title)
        if scene.changes:
            yield text(SERVER + PAD, y, _server_words(scene), "faint")
        y += LINE
    else:
        yield text(SERVER + PAD, y, _server_words(scene), "strong" if scene.call.session is None else "")
    for words, css in _client_messages(scene):
        yield arrow(SERVER, CLIENTS, y + 2, css, dashed=True)
        yield text(CLIENTS + PAD, y - 4, words)
        y += LINE
    for effect in scene.effects:
        if isinstance(effect, Fold):
            inside = grid.lanes[effect.into] + LANE / 2 + 3 * LETTER
            yield arrow(grid.lanes[effect.seq] + 5, inside, top + LINE - 4, "ordinary")
            yield text(grid.lanes[effect.into] + LANE / 2, top + LINE, f"+ {label(effect.seq)}", "strong", "middle")
    for session, x in enumerate(grid.marks):
        if mark := scene.new_mark(session):
            yield text(x, top + LINE, mark, "strong")
            yield line(x - 4, top, x + MARK, top, "cancel")
        for seq in scene.newly_canceled(session):
            yield line(grid.lanes[seq], top, grid.lanes[seq] + LANE, top, "cancel")
