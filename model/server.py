"""The model's server: several sessions that share one seq counter and one closing flag.

Sessions share nothing else. An action applies to one session or, for close, crash and recover, to all of them at once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .actions import Action, Variant
from .effects import Effect
from .lifecycle import Outcome, Row
from .protocol import Behaviour, Move
from .session import AnySession, Prompt, Session, label

MovesOf = Callable[[AnySession, int], Iterable[Move]]


class Server(NamedTuple):
    """The state of a whole server."""

    seq: int = 0  # the latest seq that was assigned
    closing: bool = False
    sessions: tuple[AnySession, ...] = (Session(),)

    @property
    def prompts(self) -> list[Prompt]:
        return sorted((p for s in self.sessions for p in s.prompts), key=lambda p: p.seq)

    @property
    def owed(self) -> list[Prompt]:
        """The prompts that must finish without further calls."""
        return [p for s in self.sessions for p in s.owed]

    def home(self, seq: int) -> int:
        """The index of the session that contains the prompt with this seq."""
        return next(i for i, s in enumerate(self.sessions) if any(p.seq == seq for p in s.prompts))


class Call(NamedTuple):
    """An applied action with its arguments: `enter(A)`, `finish(A, error)`, `cancel`."""

    action: Action
    session: int | None  # None: all sessions
    seq: int | None
    variant: Variant

    @property
    def name(self) -> str:
        return self.action.name

    def __str__(self) -> str:
        arguments = [] if self.seq is None else [label(self.seq)]
        if isinstance(self.variant, Outcome):
            arguments.append(self.variant.value)
        elif self.variant:
            arguments.append("run id" if self.variant is True else str(self.variant))
        return self.name + (f"({', '.join(arguments)})" if arguments else "")


class Change(NamedTuple):
    """One atomic step of a server, and its result."""

    call: Call
    after: Server
    effects: tuple[Effect, ...]
    rows: tuple[Row, ...]
    moves: tuple[tuple[int, Move], ...]  # the move of each affected session, with the session's index


def changes(
    protocol: Behaviour,
    server: Server,
    moves_of: MovesOf | None = None,
    allowed: Callable[[Action], bool] | None = None,
) -> Iterator[Change]:
    """Every possible next step of `server`. `moves_of` can supply cached moves; `allowed` can rule out actions."""
    all_moves = [tuple((moves_of or protocol.moves)(s, server.seq)) for s in server.sessions]
    for index, moves in enumerate(all_moves):
        for move in moves:
            action = move.action
            if (server.closing and not action.while_closing) or (allowed and not allowed(action)):
                continue
            if not action.everywhere:
                yield _change(server, ((index, move),))
            elif index == 0:
                yield _change(server, tuple(
                    (i, next(m for m in other if m.action is action)) for i, other in enumerate(all_moves)))


def _change(server: Server, moves: tuple[tuple[int, Move], ...]) -> Change:
    index, move = moves[0]
    action = move.action
    sessions, effects, rows = list(server.sessions), move.effects, move.rows
    for i, m in moves:
        sessions[i] = m.after
        if i != index:
            effects, rows = effects + m.effects, rows + m.rows
    accepted = action.bound == "prompts"
    after = Server(server.seq + accepted, server.closing if action.sets_closing is None else action.sets_closing,
                   tuple(sessions))
    call = Call(action, None if action.everywhere else index, after.seq if accepted else move.seq, move.variant)
    return Change(call, after, effects, rows, moves)
