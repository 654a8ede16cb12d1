"""The state of a session apart from its prompts, as display text: always the same facts, in the same order.

The reference has a mark and a queue. The original has more internal state, and its flaws lie there: which turn is
registered, which calls are in progress, where each goroutine is. A fact that does not apply is an empty string.
"""

from collections.abc import Iterable, Mapping

from cancelmark.model.delivery import Stream
from cancelmark.model.revisions.agent import Agent, Caller, Entry, Frame, Goroutine
from cancelmark.model.session import AnySession, label

from .content import mark_text

NONE = "–"
AWAY = "away"
NO = ""


def facts(session: AnySession) -> Mapping[str, str]:
    """The facts by name, in display order."""
    if isinstance(session, Agent):
        return _agent(session)
    if isinstance(session, Stream):
        return _stream(session)
    return {"mark": mark_text(session), "queue": _labels(p.seq for p in session.queue), "server": _down(session),
            "hold": "held" if session.held else NO}


def _labels(seqs: Iterable[int]) -> str:
    return ", ".join(map(label, seqs)) or NONE


def _down(session: AnySession) -> str:
    return "down" if session.down else NO


def _agent(agent: Agent) -> dict[str, str]:
    return {
        "mark": mark_text(agent),
        "queue": _entries(agent.queue_entries),
        "registered": _registered(agent),
        "reservations": str(agent.accepted or NO),
        "cancel flag": "set" if agent.flag else NO,
        "context": "dead" if agent.dead else NO,
        "calls in progress": ", ".join(map(_caller, agent.callers)),
        "goroutines": "\n".join(map(_goroutine, agent.goroutines)),
    }


def _entries(entries: Iterable[Entry]) -> str:
    return _labels(e.seq for e in entries)


def _registered(agent: Agent) -> str:
    """The turn that a cancel would stop. A registration can outlive the frame that made it."""
    if agent.registered is None:
        return NONE
    head, depth = agent.registered
    frames = next((g.frames for g in agent.goroutines if g.head == head), ())
    return label(frames[depth].seq) if depth < len(frames) else f"a finished turn of {label(head)}'s goroutine"


def _caller(caller: Caller) -> str:
    return f"{caller.name}…" + (f" (has read {_entries(caller.read)})" if caller.read else "")


def _goroutine(goroutine: Goroutine) -> str:
    frames = " › ".join(map(_frame, goroutine.frames))
    buffered = f", buffers the terminal event of {label(goroutine.latest[0])}" if goroutine.latest else ""
    return f"{label(goroutine.head)}: {frames}{buffered}"


def _frame(frame: Frame) -> str:
    read = f" (has read {_entries(frame.read)})" if frame.read else ""
    return f"{label(frame.seq)} at {frame.at}{read}" + ", stopping" * frame.stop


def _stream(stream: Stream) -> dict[str, str]:
    return {
        "subscriber": "attached" if stream.attached else AWAY,
        "buffer": _labels(stream.buffer) if stream.buffer else NO,
        "log": _labels(stream.log) if stream.log else NO,
        "offset in the log": str(stream.place) if stream.log else NO,
    }
