"""The content of a trace for display: for each step the call, its effects, and the new state of every prompt.

All views of a trace (text, sequence diagrams, chain) show this content and differ only in layout.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cancelmark.model.actions import Reach
from cancelmark.model.effects import Effect
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.server import Call, Server
from cancelmark.model.session import AnySession, Prompt, Session, label
from cancelmark.model.trace import Trace, call_text

from ..drawing.theme import STOPPING


class Cell(NamedTuple):
    """One prompt after one step."""

    seq: int
    text: str  # its state, and its outcome once it is done
    kind: str  # its state, or `stopping`: the CSS class in the diagram
    changed: bool


class Scene(NamedTuple):
    """One step and the resulting state. Scene 0 is the start, without a call."""

    number: int
    call: Call | None
    title: str
    effects: tuple[Effect, ...]
    before: Server
    after: Server
    happened: tuple[str, ...]  # everything that happened, as display text
    cells: dict[int, Cell]  # by seq, for accepted prompts only
    changes: tuple[str, ...] = ()  # the part of `happened` that no prompt's state shows

    def new_mark(self, session: int) -> str | None:
        """The session's mark after the step, or None if the step did not change it."""
        before, after = self.before.sessions[session], self.after.sessions[session]
        return None if before.mark == after.mark else mark_text(after)

    def newly_canceled(self, session: int) -> list[int]:
        """The seqs of the session's prompts that this step canceled."""
        known = {p.seq for p in self.before.sessions[session].prompts if p.reach is Reach.CANCEL}
        return [p.seq for p in self.after.sessions[session].prompts if p.reach is Reach.CANCEL and p.seq not in known]


class Lane(NamedTuple):
    """One prompt's lane in a diagram."""

    session: int
    prompt: Prompt

    @property
    def title(self) -> str:
        return f"{self.prompt.label} (run id)" if self.prompt.run_id else self.prompt.label


def mark_text(session: AnySession) -> str:
    """`≤ B` if the mark covers B and all earlier prompts. The original numbers prompts differently: just `2`."""
    if not session.mark:
        return "–"
    return f"≤ {label(session.mark)}" if isinstance(session, Session) else str(session.mark)


def lanes(trace: Trace) -> list[Lane]:
    """Every prompt of the trace, grouped by session, in order of acceptance."""
    return [Lane(i, p) for i, session in enumerate(trace.states[-1].sessions)
            for p in sorted(session.prompts, key=lambda p: p.seq)]


def effect_words(effect: Effect) -> str:
    """What happens to the effect's prompt: `folds into B`."""
    details = {name: getattr(effect, name) for name in effect.details}
    return effect.words.format(**{
        name: value.value if isinstance(value, Outcome) else label(value) if name == "into" else value
        for name, value in details.items()})


def effect_text(effect: Effect) -> str:
    """The effect as display text: `A folds into B`."""
    of = getattr(effect, "of", effect.seq)
    text = f" with the text of {label(of)}" if of != effect.seq else ""
    return f"{label(effect.seq)} {effect_words(effect)}{text}"


def scenes(trace: Trace) -> Iterator[Scene]:
    """The start and then every step."""
    before, cells = trace.start, _cells(trace.start, {})
    yield Scene(0, None, "", (), before, before, (), cells)
    for number, step in enumerate(trace.steps, 1):
        cells = _cells(step.after, cells)
        title = call_text(step.call, len(step.after.sessions))
        changes = tuple(words for was, now in zip(before.sessions, step.after.sessions)
                        for words in _session_changes(was, now))
        happened = (*map(effect_text, step.effects), *_server_changes(before, step.after), *changes)
        yield Scene(number, step.call, title, step.effects, before, step.after, happened, cells, changes)
        before = step.after


def stays(scenes: Sequence[Scene], lane: Lane) -> Iterator[tuple[Cell, int, int]]:
    """The prompt's successive states, each with its first scene and the scene after its last. A finished prompt stays
    finished, so its last state covers a single scene."""
    cells = [scene.cells.get(lane.prompt.seq) for scene in scenes]
    starts = [(i, cell) for i, cell in enumerate(cells) if cell and cell.changed]
    for (start, cell), end in zip(starts, [*(i for i, _ in starts[1:]), len(scenes)]):
        yield cell, start, start + 1 if cell.kind == State.DONE.value else end


def _cells(server: Server, before: Mapping[int, Cell]) -> dict[int, Cell]:
    cells = {}
    for session in server.sessions:
        for p in session.prompts:
            text, kind = prompt_text(session, p)
            cells[p.seq] = Cell(p.seq, text, kind, changed=p.seq not in before or before[p.seq].text != text)
    return cells


def prompt_text(session: AnySession, p: Prompt) -> tuple[str, str]:
    """The prompt's state as display text, and its kind."""
    if p.outcome:
        return f"{p.state.value}: {p.outcome.value}", p.state.value
    stopping = p.state is State.ACTIVE and session.covered(p)
    return p.state.value + f", {STOPPING}" * stopping, STOPPING if stopping else p.state.value


def is_down(server: Server) -> bool:
    return any(session.down for session in server.sessions)


def _server_changes(before: Server, after: Server) -> Iterator[str]:
    """Changes of the server's own state, as display text."""
    if is_down(before) != is_down(after):
        yield "server down" if is_down(after) else "server up"
    if before.closing != after.closing:
        yield "stops accepting prompts" if after.closing else "accepts prompts again"


def _session_changes(before: AnySession, after: AnySession) -> Iterator[str]:
    """Changes by calls of the family that no prompt's state shows, as display text."""
    if not (isinstance(before, Session) and isinstance(after, Session)):
        return
    if before.held != after.held:
        yield "the session is held" if after.held else "the hold ends"
    known = {p.seq: p for p in before.prompts}
    for p in after.prompts:
        was = known.get(p.seq)
        if p.front > (was.front if was else 0):
            yield f"{p.label} moves to the front"
        if was and p.version > was.version:
            yield f"{p.label} has a new text"
        if was and p.revoked and not was.revoked and p.state is State.ACCEPTED:
            yield f"{p.label} will be canceled on entry"


def loop_text(trace: Trace) -> str | None:
    """The steps that repeat forever, as display text."""
    if trace.loop is None:
        return None
    first, last = trace.loop + 1, len(trace)
    return f"step {last} repeats forever" if first == last else f"steps {first} to {last} repeat forever"
