"""Sequence diagrams of what clients and the language model observed. Time runs downwards.

There are three lifelines: clients, server and language model. The server's internal steps are not observable.
"""

from collections.abc import Sequence

from cancelmark.views.drawing.render import svg_document
from cancelmark.views.drawing.svg import LETTER, arrow, line, text
from cancelmark.views.traces.sequence import Arrow, Message, statement

from ..judging.history import CLIENTS, MODEL, SERVER, Observation

EDGE, TOP, ROW = 14, 82, 24


def exchange_text(seen: Sequence[Observation]) -> str:
    """The diagram as text, for a terminal."""
    left = max([len(s.text) for s in seen if CLIENTS in s.ends] + [12]) + 6
    right = max([len(s.text) for s in seen if MODEL in s.ends] + [14]) + 6
    rows = [f"      {CLIENTS:{left - 2}}{SERVER:{right}}{MODEL}"]
    for s in seen:
        told, asked = " " * left, ""
        if CLIENTS in s.ends:
            told = _letters(s.text, left, out=s.source == CLIENTS) if s.dest else f"{s.text:{left}}"
        elif MODEL in s.ends:
            asked = _letters(s.text, right, out=s.source == SERVER)
        else:
            asked = f"  {s.text}"
        rows.append(f"{s.at:4}  {told}│{asked}".rstrip())
    return "\n".join(rows)


def _letters(words: str, width: int, out: bool) -> str:
    dashes = "─" * (width - len(words) - 3)
    return f"{words} {dashes}▶ " if out else f"◀{dashes} {words} "


def exchange_mermaid(seen: Sequence[Observation]) -> str:
    """The diagram as a Mermaid `sequenceDiagram`."""
    ids = {CLIENTS: "C", SERVER: "S", MODEL: "M", "": ""}
    lines = ["sequenceDiagram", "    actor C as clients", "    participant S as server",
             "    participant M as language model"]
    for s in seen:
        kind = Arrow.NOTE if not s.dest else Arrow.CALL if s.asks else Arrow.TOLD
        lines.append(f"    {statement(Message(kind, ids[s.source], ids[s.dest], s.text), 'C,M')}")
    return "\n".join(lines) + "\n"


def exchange_svg(seen: Sequence[Observation], title: str, says: str = "", heading: bool = True) -> str:
    """The diagram as a self-contained SVG. With `heading` it has its title and the sentence `says` above it; without,
    the page that embeds it has to show both."""
    places = _places(seen)
    top = TOP if heading else TOP - 50
    bottom = top + ROW * (len(seen) + 1)
    body = [text(EDGE, 22, title, "strong"), text(EDGE, 42, says, "faint")] if heading else []
    for name, x in places.items():
        body += [text(x, top - 10, name, "strong", "middle"), line(x, top, x, bottom, "lifeline")]
    for n, s in enumerate(seen, 1):
        y, x = top + n * ROW, places[s.source]
        body.append(text(EDGE + 2 * LETTER, y, str(s.at), "faint", "end"))
        if not s.dest:
            body.append(text(x + LETTER, y, s.text, "strong"))
            continue
        body.append(arrow(x, places[s.dest], y + 2, "ordinary", dashed=not s.asks))
        body.append(text(min(x, places[s.dest]) + LETTER, y - 4, s.text))
    notes = [places[s.source] + (len(s.text) + 2) * LETTER for s in seen if not s.dest]
    said = len(says) * LETTER * 0.9 + 2 * EDGE if heading else 0
    return svg_document(title, max(places[MODEL] + 80, said, *notes), bottom + EDGE, "\n".join(body))


def _places(seen: Sequence[Observation]) -> dict[str, float]:
    """The x positions of the lifelines, far enough apart for the longest message between two of them."""
    left, right = ((max([len(s.text) for s in seen if end in s.ends and s.dest] + [18]) + 4) * LETTER
                   for end in (CLIENTS, MODEL))
    return {CLIENTS: EDGE + 60, SERVER: EDGE + 60 + left, MODEL: EDGE + 60 + left + right}
