"""The lifecycle as a board: five states, an arrow for each transition between two, and room for the prompts in each.

It is generated from the rows like the large diagram, but with a fixed layout and without labels on its arrows, so that
it fits next to an interactive trace and can be read at a glance, even on a phone.
"""

from collections.abc import Sequence
from math import hypot
from typing import NamedTuple
from xml.sax.saxutils import escape

from cancelmark.model.lifecycle import INITIAL, Row, State
from cancelmark.model.protocol import REFERENCE

from ..drawing.paths import Path
from ..drawing.render import svg_document
from .lifecycle import path_of

WIDTH, HEIGHT = 520, 300
BOX = (132, 64)


class Place(NamedTuple):
    """The centre of a state's box."""

    x: float
    y: float


PLACES: dict[State, Place] = {
    State.ACCEPTED: Place(88, 150),
    State.CANCELED_ON_ENTRY: Place(268, 262),
    State.QUEUED: Place(268, 38),
    State.ACTIVE: Place(268, 150),
    State.DONE: Place(448, 150),
}


def lifecycle_board(rows: Sequence[Row] = REFERENCE.rows) -> str:
    """The board as an SVG. Boxes have the class of their state; arrows have the classes of their path and `from-to`."""
    ways: dict[tuple[State, State], Path] = {}
    for row in rows:
        if row.source is not row.dest:  # no arrow for a transition to the same state
            ways.setdefault((row.source, row.dest), path_of(row))
    body = [_start(), *(_arrow(s, d, path, (d, s) in ways) for (s, d), path in ways.items()), *map(_place, State)]
    return svg_document("The state of each prompt", WIDTH, HEIGHT, "\n".join(body))


def _start() -> str:
    at = PLACES[INITIAL]
    return f'<g class="start"><ellipse cx="8" cy="{at.y:g}" rx="5" ry="5"/></g>' + _line(
        "way happy start-accepted", Place(14, at.y), Place(at.x - BOX[0] / 2, at.y), 0)


def _arrow(source: State, dest: State, path: Path, both_ways: bool) -> str:
    """An arrow between two boxes. Opposite arrows run in parallel; an arrow past another box goes around it."""
    start, end = PLACES[source], PLACES[dest]
    bend = 0.0
    if both_ways:
        start, end = (Place(p.x + (14 if source is State.ACTIVE else -14), p.y) for p in (start, end))
    elif source is INITIAL and dest is State.DONE:
        start, end, bend = Place(start.x, start.y + 18), Place(end.x, end.y + 18), 30
    return _line(f"way {path.css} {source.value}-{dest.value}", _edge(start, end), _edge(end, start), bend)


def _edge(of: Place, towards: Place) -> Place:
    """The point at which the line between two centres leaves the first box."""
    dx, dy = towards.x - of.x, towards.y - of.y
    scale = min(BOX[0] / 2 / abs(dx) if dx else 1e9, BOX[1] / 2 / abs(dy) if dy else 1e9)
    return Place(of.x + dx * scale, of.y + dy * scale)


def _line(css: str, start: Place, end: Place, bend: float) -> str:
    middle = Place((start.x + end.x) / 2, (start.y + end.y) / 2 + bend * 2)
    length = hypot(end.x - middle.x, end.y - middle.y)
    ux, uy = (end.x - middle.x) / length, (end.y - middle.y) / length
    tip = Place(end.x - 9 * ux, end.y - 9 * uy)
    curve = f"Q{middle.x:.1f},{middle.y:.1f} {tip.x:.1f},{tip.y:.1f}"
    corners = (end, Place(tip.x - 4.5 * uy, tip.y + 4.5 * ux), Place(tip.x + 4.5 * uy, tip.y - 4.5 * ux))
    head = " ".join(f"{corner.x:.1f},{corner.y:.1f}" for corner in corners)
    dashes = ' stroke-dasharray="6 3"' if Path.CANCEL.css in css.split() else ""
    return (f'<g class="{css}"><path fill="none"{dashes} d="M{start.x:.1f},{start.y:.1f}{curve}"/>'
            f'<polygon points="{head}"/></g>')


def _place(state: State) -> str:
    x, y = PLACES[state]
    width, height = BOX
    name = escape(state.value.replace("_", " "))
    return (f'<g class="place {state.value}"><rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" '
            f'height="{height}" rx="10"/><text x="{x:g}" y="{y - height / 2 + 21:g}" font-size="15" '
            f'text-anchor="middle">{name}</text></g>')
