"""SVG shapes for trace diagrams, styled by the theme's classes."""

from xml.sax.saxutils import escape

LETTER = 7.2  # the width of a letter in the widest font of the stack, at the common text size
HEAD = 7  # the length of an arrow's head


def text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="12" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def box(x: float, y: float, width: float, height: float, css: str) -> str:
    return f'<g class="{css}"><rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/></g>'


def arrow(x1: float, x2: float, y: float, css: str, dashed: bool = False) -> str:
    """A horizontal arrow from x1 to x2."""
    way = 1 if x2 > x1 else -1
    back = x2 - way * HEAD
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (f'<g class="{css}"><path fill="none"{dashes} d="M{x1:g} {y:g}H{back:g}"/>'
            f'<polygon points="{x2:g},{y:g} {back:g},{y - 4:g} {back:g},{y + 4:g}"/></g>')
