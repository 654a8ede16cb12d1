"""The race as an animated SVG: the same five steps with a flag and with the mark, side by side.

Each step is a frame. In print, and if the reader prefers reduced motion, only the last frame is shown.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from cancelmark.model.check.walk import Walk
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import AnySession, Session, label
from cancelmark.model.trace import Trace, replay
from cancelmark.model.variants.alternatives import FLAG, Memory

from ..drawing.render import svg_document
from ..traces import content
from ..traces.reasons import reason

CALLS = ("accept A", "cancel", "accept B", "enter B", "enter A")
SAYS = ("The client sends A; the server accepts it.", "The user presses Stop. The cancel is meant for A.",
        "The client sends B, after the cancel.", "B is loaded first, and enters.", "A enters.")
WIDTH, HEIGHT, PANEL = 720, 300, 330
PACE = 1.8  # seconds per frame; the last one is shown three times as long


def race_svg() -> str:
    """The animation."""
    traces = {"with a flag": (FLAG, replay(FLAG, CALLS)), "with the mark": (REFERENCE, replay(REFERENCE, CALLS))}
    frames = [_frame(number, traces) for number in range(1, len(CALLS) + 1)]
    return svg_document("The race: a cancel, with a flag and with the mark", WIDTH, HEIGHT,
                        "\n".join([f"<style>{_style(len(frames))}</style>", *frames]))


def _style(frames: int) -> str:
    whole = frames + 2  # the last stays three times as long
    rules = [".frame { opacity: 0; } .frame.last { opacity: 1; }", ".race-title { font-weight: 700; }",
             ".cancelmark .race-wrong { fill: #b3261e; font-weight: 600; }", ".race-call { font-weight: 700; }",
             "@media (prefers-color-scheme: dark) { .cancelmark .race-wrong { fill: #ff8a80; } }"]
    shown = []
    for number in range(frames):
        begin, end = 100 * number / whole, 100 if number == frames - 1 else 100 * (number + 1) / whole
        points = [f"0% {{ opacity: {int(number == 0)}; }}", f"{begin:.2f}% {{ opacity: 1; }}"]
        points += [] if end == 100 else [f"{end:.2f}% {{ opacity: 0; }}", "100% { opacity: 0; }"]
        shown.append(f".frame.f{number + 1} {{ animation: f{number + 1} {PACE * whole:g}s step-end infinite; }} "
                     f"@keyframes f{number + 1} {{ {' '.join(points)} }}")
    return " ".join([*rules, "@media screen and (prefers-reduced-motion: no-preference) {", *shown, "}"])


def _frame(number: int, traces: dict[str, tuple[Protocol, Trace]]) -> str:
    last = " last" if number == len(CALLS) else ""
    parts = [_words(WIDTH / 2, 32, f"{number}. {CALLS[number - 1]}", "race-call", 17, "middle"),
             _words(WIDTH / 2, 56, SAYS[number - 1], "", 14, "middle")]
    for place, (title, (protocol, trace)) in enumerate(traces.items()):
        parts += _panel(20 + place * (PANEL + 20), title, protocol, trace, number)
    return f'<g class="frame f{number}{last}">{"".join(parts)}</g>'


def _panel(x: float, title: str, protocol: Protocol, trace: Trace, number: int) -> list[str]:
    scene = list(content.scenes(trace))[number]
    parts = [f'<rect x="{x:g}" y="74" width="{PANEL}" height="212" rx="12" fill="none" stroke="#8c959f"/>',
             _words(x + 18, 100, title, "race-title", 15),
             _words(x + PANEL - 18, 100, _remembered(scene.after.sessions[0]), "", 14, "end")]
    for row, (seq, cell) in enumerate(sorted(scene.cells.items())):
        y = 122 + row * 44
        parts.append(_words(x + 18, y + 20, label(seq), "race-title", 15))
        parts.append(f'<g class="{cell.kind}"><rect x="{x + 44:g}" y="{y:g}" width="200" height="30" rx="8"/></g>')
        parts.append(_words(x + 144, y + 20, cell.text.replace("_", " "), "", 14, "middle"))
    for row, wrong in enumerate(_wrong(protocol, trace, number)):
        parts.append(_words(x + 18, 234 + 20 * row, f"✗ {wrong}", "race-wrong", 12))
    if number == len(CALLS) and protocol is REFERENCE:
        parts.append(_words(x + 18, 234, "✓ the cancel covers A, and only A", "race-title", 13))
    return parts


def _remembered(session: AnySession) -> str:
    assert isinstance(session, Session)
    if isinstance(session.memory, Memory):
        return "the flag is set" if session.memory.waiting else "the flag is clear"
    return f"mark {content.mark_text(session)}" if session.mark else "nothing remembered"


def _wrong(protocol: Protocol, trace: Trace, number: int) -> Sequence[str]:
    """The violations so far, each shortened to one line."""
    walk, said = Walk(protocol), []
    for step in trace.steps[:number]:
        change = next(c for c in walk.possible if c.call == step.call and c.after == step.after)
        before, known = walk.server, set(walk.broken)
        walk.take(change)
        said += [reason(id, before, change).partition(",")[0] for id in walk.broken if id not in known]
    return [f"wrong: {words}" for words in said]


def _words(x: float, y: float, words: str, css: str, size: int, anchor: str = "start") -> str:
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>')
