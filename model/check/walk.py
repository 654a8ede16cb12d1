"""A walk through a protocol one step at a time, with every property checked: for the game, and to compare traces."""

from ..protocol import Behaviour
from ..server import Change, Server, changes
from ..trace import Trace, TraceStep
from .judging import broken_by, broken_now, properties_of


class Walk:
    """The steps taken so far. The first `at` steps are in force; the others were undone and can be redone."""

    def __init__(self, protocol: Behaviour, sessions: int = 1) -> None:
        self.protocol = protocol
        self.start = Server(sessions=(protocol.start,) * sessions)
        self.taken: list[Change] = []
        self.at = 0

    @classmethod
    def along(cls, protocol: Behaviour, trace: Trace) -> "Walk":
        """The walk that follows a trace of the protocol."""
        walk = cls(protocol, len(trace.start.sessions))
        for step in trace.steps:
            walk.take(next(c for c in walk.possible if (c.call, c.after) == (step.call, step.after)))
        return walk

    @property
    def servers(self) -> list[Server]:
        """The states of the walk, starting with the first."""
        return [self.start, *(change.after for change in self.taken[:self.at])]

    @property
    def server(self) -> Server:
        """The current state."""
        return self.servers[-1]

    @property
    def possible(self) -> list[Change]:
        """Every possible next step."""
        return list(changes(self.protocol, self.server))

    def take(self, change: Change) -> None:
        """Take one of the possible steps. Undone steps are discarded."""
        self.taken[self.at:] = [change]
        self.at += 1

    def jump(self, to: int) -> None:
        """Undo or redo steps until `to` of them are in force."""
        self.at = max(0, min(to, len(self.taken)))

    @property
    def trace(self) -> Trace:
        return Trace(self.start, tuple(map(TraceStep.of, self.taken[:self.at])))

    @property
    def broken(self) -> dict[str, int]:
        """The violated properties, each with the number of the first step that violated it."""
        properties = properties_of(self.protocol)
        found: dict[str, int] = {}
        for number, (before, change) in enumerate(zip(self.servers, self.taken[:self.at]), 1):
            for id in (*broken_by(properties, before, change), *broken_now(self.protocol, change.after)):
                found.setdefault(id, number)
        return found
