"""Diagrams of cluster histories: lifelines for a client, the nodes and the database, with the row next to them.

Time runs downwards, one step per line. A client's call is an arrow to its node, and a node's step is an arrow to the
database. A dashed arrow that stops short is late or lost. Faults of a node are written at its lifeline. Two red lines
enclose the step that violates a property.
"""

from collections.abc import Iterator
from itertools import accumulate

from cancelmark.model.cluster.database import Response
from cancelmark.model.cluster.flaws import ClusterFlaw, find_history
from cancelmark.model.cluster.log import Log
from cancelmark.model.cluster.search import Path
from cancelmark.model.cluster.sending import Edge
from cancelmark.model.cluster.state import Cluster, name_node
from cancelmark.model.session import label

from ..drawing.render import svg_document
from ..drawing.svg import LETTER, arrow, line, text

EDGE, TOP, LINE, PAD = 14, 82, 24, 12
GAP = 190  # between lifelines
LOST = "response lost"


def tell_history(path: Path) -> str:
    """The history as terminal text: each step, and the row after it."""
    lines = [(str(edge), row) for (edge, _), row in zip(path.steps, rows_after(path))]
    wide = max((len(words) for words, _ in lines), default=0)
    return "".join(f"{number:3}  {words:{wide}}  {row}\n" for number, (words, row) in enumerate(lines, 1))


def rows_after(path: Path) -> list[str]:
    """The row, or the log, after each step as display text."""
    if isinstance(path.start, Log):
        return [_log_words(log) for _, log in path.steps]
    epochs = list(accumulate((cluster.row.epoch for _, cluster in path.steps), initial=0))[1:]
    return [_row_words(cluster, epoch) for (_, cluster), epoch in zip(path.steps, epochs)]


def _row_words(cluster: Cluster, epoch: int) -> str:
    row = cluster.row
    words = [f"{label(p.seq)} {p.state.value.replace('_', ' ')}{' twice' if p.ends > 1 else ''}"
             for p in row.session.prompts]
    if row.session.mark:
        words.append(f"mark {row.session.mark}")
    words += ["held"] * row.session.held + ["closing"] * row.closing
    words.append(f"owner {row.owner or '–'}, epoch {epoch}")
    return " · ".join([*words, *(f"{id} dead" for id in sorted(row.dead))])


def _log_words(log: Log) -> str:
    places = ", ".join(f"{e.place}" for e in log.events) or "none"
    seen = ", ".join(f"{e.place}" for e in log.seen) or "none"
    return f"committed {places} · seen {seen}"


def history_svg(path: Path, title: str, says: str, breaks: str) -> str:
    """The history as a standalone SVG. Its last step violates a property."""
    nodes = len(path.start.heard if isinstance(path.start, Log) else path.start.nodes)
    xs: list[float] = [EDGE + 40 + GAP * n for n in range(nodes + 2)]  # client, nodes, database
    rows = rows_after(path)
    names = ["subscriber" if isinstance(path.start, Log) else "client",
             *(f"node {name_node(n)}" for n in range(nodes)), "database"]
    heights = [LINE * (1 + edge.client + (edge.how == LOST)) + PAD for edge, _ in path.steps]
    heights[-1] += LINE
    tops = [*accumulate(heights, initial=TOP)]
    width = max(xs[-1] + PAD + max(map(len, rows)) * LETTER, len(says) * LETTER * 0.9, len(title) * LETTER) + EDGE
    body = [
        text(EDGE, 22, title, "strong"), text(EDGE, 42, says, "faint"),
        *(text(x, TOP - PAD, name, "strong", "middle") for x, name in zip(xs, names)),
        *(line(x, TOP, x, tops[-1], "lifeline") for x in xs),
    ]
    for (edge, _), row, top, bottom in zip(path.steps, rows, tops, tops[1:]):
        body += [line(EDGE, top, width - EDGE, top, "guide"), *_draw_step(edge, top + LINE, xs),
                 text(xs[-1] + PAD, bottom - PAD - 2, row, "faint")]
    body += [line(EDGE, y, width - EDGE, y, "fault") for y in tops[-2:]]
    body.append(text(xs[-1] + PAD, tops[-2] + LINE - 4, f"✗ breaks {breaks}", "strong"))
    return svg_document(title, width, tops[-1] + PAD, "\n".join(body))


def _draw_step(edge: Edge, y: float, xs: list[float]) -> Iterator[str]:
    """The arrows of one step, each with its label."""
    words = edge.what + (f" ({edge.how})" if edge.how else "")
    database = xs[-1]
    if edge.by is None:
        at = next((x for n, x in enumerate(xs[1:-1]) if edge.what.startswith(name_node(n))), None)
        if at is None:  # a step of the database or of the subscriber
            at = xs[0] if edge.what.startswith("subscriber") else database
        left = at is not database
        yield text(at + (PAD if left else -PAD), y - 4, words, "strong" if edge.fault else "",
                   "start" if left else "end")
        return
    node = xs[1 + edge.by]
    if edge.what.startswith("subscriber"):
        yield arrow(database, xs[0], y + 2, "ordinary")
        yield text(node + PAD, y - 4, words)
        return
    if edge.client:
        yield arrow(xs[0], node, y + 2, "ordinary")
        yield text(xs[0] + PAD, y - 4, edge.what)
        y += LINE
    elif not edge.to_database:
        yield text(node + PAD, y - 4, words)
        return
    refused = edge.answer in (Response.LOST, Response.STALE, Response.REFUSED)
    css = "fault" if refused else "cancel" if edge.fault else "ordinary"
    if edge.how == LOST:  # on its way back
        yield arrow(node, database, y + 2, "ordinary")
        yield text(node + PAD, y - 4, "" if edge.client else edge.what)
        yield arrow(database, database - 90, y + LINE + 2, css, dashed=True)
        yield text(database - PAD, y + LINE - 4, edge.how, "strong", "end")
        return
    yield arrow(node, node + 90 if edge.how == "late" else database, y + 2, css, dashed=edge.how == "late")
    yield text(node + PAD, y - 4, edge.how if edge.client else words)


def flaw_svg(flaw: ClusterFlaw) -> str:
    return history_svg(find_history(flaw), f"{flaw.name}: breaks {flaw.property}", flaw.says, flaw.property)
