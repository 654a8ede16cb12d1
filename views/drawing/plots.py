"""SVG plots of the size of a search: columns, shares and growth. Pages also give every figure as text."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, log10
from xml.sax.saxutils import escape

from .render import svg_document

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 44
INNER = WIDTH - LEFT - RIGHT
BASE = HEIGHT - BOTTOM


def columns(title: str, values: Sequence[int], across: str, up: str) -> str:
    """One column for each value."""
    most = _round_up(max(values))
    wide = INNER / len(values)
    body = [*_grid({most * i / 4: _short(most * i / 4) for i in range(5)}, 0, most)]
    for i, value in enumerate(values):
        x, y = LEFT + i * wide, _height(value, 0, most)
        body += [f'<g class="bar"><rect x="{x + wide * 0.12:.1f}" y="{y:.1f}" width="{wide * 0.76:.1f}" '
                 f'height="{BASE - y:.1f}" rx="2"><title>{i}: {value:,}</title></rect></g>',
                 *_tick(x + wide / 2, str(i), i, len(values))]
    return svg_document(title, WIDTH, HEIGHT, "\n".join([*body, *_axes(across, up)]))


def shares(title: str, parts: Sequence[Mapping[str, int]], kinds: Sequence[str], across: str, up: str) -> str:
    """One full-height stacked column per mapping, divided in proportion to its values. A kind is a CSS class."""
    wide = INNER / len(parts)
    body = [*_grid({i / 4: f"{25 * i}%" for i in range(5)}, 0, 1)]
    for i, part in enumerate(parts):
        total, below = sum(part.values()), 0
        for kind in kinds:
            if part.get(kind, 0):
                top, bottom = _height((below + part[kind]) / total, 0, 1), _height(below / total, 0, 1)
                body.append(f'<g class="share {kind}"><rect x="{LEFT + i * wide + wide * 0.08:.1f}" y="{top:.1f}" '
                            f'width="{wide * 0.84:.1f}" height="{bottom - top:.1f}"><title>{i}: {kind} '
                            f'{part[kind] / total:.0%}</title></rect></g>')
                below += part[kind]
        body += _tick(LEFT + (i + 0.5) * wide, str(i), i, len(parts))
    return svg_document(title, WIDTH, HEIGHT, "\n".join([*body, *_axes(across, up)]))


def growth(title: str, series: Mapping[str, Sequence[int]], across: str, up: str) -> str:
    """A line per series over 1, 2, 3, …, on a logarithmic scale, labelled at its end."""
    most = ceil(log10(max(value for values in series.values() for value in values)))
    longest = max(map(len, series.values()))
    wide = (INNER - 110) / (longest - 1)
    body = [*_grid({i: f"10{_superscript(i)}" for i in range(most + 1)}, 0, most)]
    ends: list[tuple[float, float, str]] = []
    for number, (name, values) in enumerate(series.items()):
        points = [(LEFT + 12 + i * wide, _height(log10(value), 0, most)) for i, value in enumerate(values)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{name}, {i}: {value:,}</title></circle>'
                for i, ((x, y), value) in enumerate(zip(points, values), 1)]
        body.append(f'<g class="line line{number}"><polyline fill="none" points="{drawn}"/>{"".join(dots)}</g>')
        ends.append((*points[-1], name))
    for x, y, name in _apart(ends):
        body.append(_text(x + 10, y + 4, name, "label"))
    for i in range(longest):
        body += _tick(LEFT + 12 + i * wide, str(i + 1), 0, 1)
    return svg_document(title, WIDTH, HEIGHT, "\n".join([*body, *_axes(across, up)]))


def _apart(ends: Sequence[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """The labels, moved apart so that none overlap."""
    above = -100.0
    for x, y, name in sorted(ends, key=lambda end: end[1]):
        above = max(y, above + 15)
        yield x, above, name


def _height(value: float, least: float, most: float) -> float:
    return BASE - (BASE - TOP) * (value - least) / (most - least)


def _grid(lines: Mapping[float, str], least: float, most: float) -> Iterator[str]:
    for value, name in lines.items():
        y = _height(value, least, most)
        yield f'<line class="guide" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, name, "faint", "end")


def _tick(x: float, name: str, number: int, of: int) -> Iterator[str]:
    """The label below each column, or below every second one if there are many."""
    if of < 14 or number % 2 == 0:
        yield _text(x, BASE + 16, name, "faint", "middle")


def _axes(across: str, up: str) -> Iterator[str]:
    yield _text(LEFT + INNER / 2, HEIGHT - 6, across, "label", "middle")
    yield (f'<text class="label" font-size="12" text-anchor="middle" '
           f'transform="translate(12 {TOP + (BASE - TOP) / 2:g}) rotate(-90)">{escape(up)}</text>')


def _text(x: float, y: float, text: str, css: str, anchor: str = "start") -> str:
    return (f'<text class="{css}" font-size="12" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')


def _round_up(value: int) -> int:
    """The next larger round number that divides evenly into four."""
    unit = int("4" + "0" * max(0, len(str(value)) - 2))
    return ceil(value / unit) * unit


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
