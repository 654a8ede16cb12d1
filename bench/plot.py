"""Cost against size, both on logarithmic axes, as SVG: what grows linearly is a straight line of slope one."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 20, 50
COLOURS = ("#1f6f8b", "#c0504d", "#6a8f3c", "#7d5ba6")

Points = Sequence[tuple[float, float]]


def plot(series: Mapping[str, Points], across: str, up: str) -> str:
    """A line with a dot for each point, for each series by its name."""
    points = [point for line in series.values() for point in line]
    axes = [(floor(log10(min(values))), ceil(log10(max(values)) + 1e-9)) for values in zip(*points)]

    def place(x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = axes
        return (LEFT + (log10(x) - x0) / max(1, x1 - x0) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - (log10(y) - y0) / max(1, y1 - y0) * (HEIGHT - TOP - BOTTOM))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             f'height="{HEIGHT}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    (x0, x1), (y0, y1) = axes
    for power in range(x0, x1 + 1):
        x, _ = place(10.0**power, 10.0**y0)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
                     f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(y0, y1 + 1):
        _, y = place(10.0**x0, 10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(*point) for point in sorted(line)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + '"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        y = TOP + 20 + 22 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 15} {y}h22" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{WIDTH - RIGHT + 43}" y="{y + 4}">{escape(name)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}'
                 f'</text><text x="{LEFT}" y="{TOP - 6}" font-size="12">{escape(up)}</text></svg>')
    return "\n".join(parts) + "\n"
