"""A trace: a path of calls through a protocol, as data and as text, and its replay from that text.

The text of a call is its `str`, such as `finish(A, error)`. With several sessions, a call on one of them appends the
session's number: `cancel@2`. `replay` also accepts calls without punctuation: `finish A error`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .effects import Effect
from .protocol import Behaviour
from .server import Call, Change, Server, changes


class TraceStep(NamedTuple):
    """One step of a trace: the call, its effects, and the state after it."""

    call: Call
    effects: tuple[Effect, ...]
    after: Server

    @classmethod
    def of(cls, change: Change) -> "TraceStep":
        return cls(change.call, change.effects, change.after)


@dataclass(frozen=True)
class Trace:
    """A path from the start. If `loop` is set, the steps after the first `loop` steps repeat forever."""

    start: Server
    steps: tuple[TraceStep, ...]
    loop: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def states(self) -> list[Server]:
        """The start, and the state after each step."""
        return [self.start, *(step.after for step in self.steps)]


def call_text(call: Call, sessions: int) -> str:
    """The call as text that `replay` accepts, for a server with that many sessions."""
    return str(call) if sessions == 1 or call.session is None else f"{call}@{call.session + 1}"


def replay(
    protocol: Behaviour, calls: Iterable[str], sessions: int = 1, *,
    agrees: Callable[[int, Server], bool] = lambda number, server: True,
) -> Trace:
    """The trace of exactly these calls, in this order. Raises ValueError for a call that is not enabled, or if `agrees`
    accepts none of the states after a step; it receives the number of the step and a state.

    In revisions of the original a call can have several results. All are followed, and the first path that completes
    every call is the trace.
    """
    start = Server(sessions=(protocol.start,) * sessions)
    ways: dict[Server, tuple[TraceStep, ...]] = {start: ()}
    for number, text in enumerate(calls, 1):
        onward: dict[Server, tuple[TraceStep, ...]] = {}
        for server, steps in ways.items():
            for step in _steps(protocol, server, text, f"step {number}, {text!r}"):
                onward.setdefault(step.after, (*steps, step))
        if onward and not any(agrees(number, server) for server in onward):
            raise ValueError(f"step {number}, {text!r}: protocol {protocol.name} does not reach the state that the "
                             "trace has after this step")
        onward = {server: steps for server, steps in onward.items() if agrees(number, server)}
        if not onward:
            enabled = dict.fromkeys(call_text(c.call, sessions) for server in ways for c in changes(protocol, server))
            raise ValueError(f"step {number}, {text!r}: not enabled here; enabled: {', '.join(enabled) or 'nothing'}")
        ways = onward
    return Trace(start, next(iter(ways.values())))


def _steps(protocol: Behaviour, server: Server, text: str, where: str) -> Iterator[TraceStep]:
    """The possible results of the call on `server`."""
    body, at, session = text.partition("@")
    words = _words(body)
    if not any(words[:len(name)] == name for name in (_words(action.name) for action in protocol.actions)):
        names = ", ".join(action.name for action in protocol.actions)
        raise ValueError(f"{where}: no such action; protocol {protocol.name} has {names}")
    if at and session.strip() not in map(str, range(1, len(server.sessions) + 1)):
        raise ValueError(f"{where}: no such session; there are {len(server.sessions)}, counted from 1")
    index = int(session) - 1 if at else 0
    for change in changes(protocol, server):
        here = not at if change.call.session is None else change.call.session == index
        if here and _words(str(change.call)) == words:
            yield TraceStep.of(change)


def _words(text: str) -> Sequence[str]:
    return [word for word in re.split(r"[\s(),_]+", text) if word]


def positions(protocol: Behaviour, trace: Trace) -> tuple[int, ...]:
    """Encode a trace as numbers: for each step, its index among all possible next steps of the state before it."""
    return tuple(
        next(i for i, change in enumerate(changes(protocol, before)) if (change.call, change.after) == step[::2])
        for before, step in zip(trace.states, trace.steps))


def retraced(protocol: Behaviour, positions: Iterable[int], sessions: int = 1, loop: int | None = None) -> Trace:
    """Decode a trace from the output of `positions`."""
    start = server = Server(sessions=(protocol.start,) * sessions)
    steps = []
    for position in positions:
        change = list(changes(protocol, server))[position]
        steps.append(TraceStep.of(change))
        server = change.after
    return Trace(start, tuple(steps), loop)
