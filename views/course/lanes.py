"""A recording as a diagram: time runs to the right, one lane per prompt, and the oracle's findings below.

A dashed vertical line is a call. It has a cross on the lane of each prompt that it must affect: those that are accepted
and have not ended.
"""

from collections.abc import Iterator
from math import isfinite
from textwrap import wrap

from cancelmark.model.lifecycle import State
from cancelmark.model.oracle import Call, Prompt

from ..drawing.render import svg_document
from ..drawing.svg import LETTER, box, line, text
from .recording import Recording

WIDTH = 720
LEFT, RIGHT = 44, 128  # room for the names, and for the outcome of the last prompt
HEAD, LANE, FOOT, LINE = 38, 44, 26, 17
WORDS = 96  # characters per line of a complaint
BAR = 26


class Axis:
    """Maps times to x coordinates."""

    def __init__(self, recording: Recording) -> None:
        seen = [t for span in [*recording.calls, *(m for p in recording.prompts for m in p.moments)]
                for t in (span.begin, span.end) if isfinite(t)]
        self.first, self.last = (min(seen), max(seen)) if seen else (0.0, 1.0)

    def x(self, t: float) -> float:
        share = (min(t, self.last) - self.first) / ((self.last - self.first) or 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def recording_svg(recording: Recording, title: str = "What happened, and when") -> str:
    """The recording as a standalone SVG."""
    axis, prompts = Axis(recording), recording.prompts
    bottom = HEAD + LANE * len(prompts)
    complaints = recording.complaints()
    said = [words for complaint in complaints for words in _wrap_complaint(complaint)]
    said = said or ["The oracle finds nothing wrong."]
    css = "complaint" if complaints else "faint"
    body = [
        *(part for i, p in enumerate(prompts) for part in _lane(p, HEAD + LANE * i, axis)),
        *(part for call in recording.calls for part in _call(call, prompts, axis, bottom)),
        line(LEFT, bottom + 6, WIDTH - RIGHT, bottom + 6, "lifeline"),
        text(WIDTH - RIGHT + 6, bottom + 10, "time →", "faint"),
        *(text(LEFT, bottom + FOOT + LINE * (i + 1), words, css) for i, words in enumerate(said)),
    ]
    return svg_document(title, WIDTH, bottom + FOOT + LINE * (len(said) + 1), "\n".join(body))


def _wrap_complaint(complaint: str) -> Iterator[str]:
    first, *more = wrap(f"✗ {complaint}", WORDS)
    yield first
    yield from (f"   {words}" for words in more)


def _lane(p: Prompt, top: float, axis: Axis) -> Iterator[str]:
    """A bar while the prompt is accepted, one for each turn, and its outcome."""
    yield line(LEFT, top + LANE / 2, axis.x(p.accept.begin), top + LANE / 2, "guide")
    yield text(LEFT - 10, top + LANE / 2 + 4, p.name, "strong", "end")
    end = p.ends[0].end if p.ends else axis.last
    began = [p.accept.begin, *(s.begin for s in p.starts)]
    for i, (start, until) in enumerate(zip(began, [*began[1:], end])):
        kind = (State.ACTIVE if i else State.ACCEPTED).value
        x, wide = axis.x(start), max(axis.x(until) - axis.x(start), 4)
        yield box(x, top + (LANE - BAR) / 2, wide, BAR, kind)
        if wide > (len(kind) + 1) * LETTER:
            yield text(x + wide / 2, top + LANE / 2 + 4, kind, anchor="middle")
    ended = " and ".join(e.outcome for e in p.ends) or "no end"
    yield text(axis.x(end) + 8, top + LANE / 2 + 4, ended, "strong")


def _call(call: Call, prompts: list[Prompt], axis: Axis, bottom: float) -> Iterator[str]:
    x = axis.x(call.begin)
    yield text(x, HEAD - 18, call.kind, "strong", "middle")
    yield line(x, HEAD - 12, x, bottom + 6, "cancel")
    for i, p in enumerate(prompts):
        y = HEAD + LANE * i + LANE / 2
        if p.accept.end < call.begin and not any(e.end < call.begin for e in p.ends):
            yield (f'<g class="cross"><path fill="none" d="M{x - 5:g} {y - 5:g}l10 10M{x - 5:g} {y + 5:g}l10 -10"/>'
                   f"<title>the {call.kind} must affect {p.name}</title></g>")
