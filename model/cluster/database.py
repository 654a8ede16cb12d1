"""The database: compares version, epoch, owner and step id, then writes. It knows nothing about the protocol."""

from enum import Enum
from typing import NamedTuple

from ..actions import Reach
from ..protocol import Move
from ..session import DONE, AnySession, Prompt, Session
from .rules import Rules
from .state import SessionRow, Write, has_work


class Response(Enum):
    """The database's response to a step."""

    OK = "ok"
    DUP = "duplicate"
    STALE = "stale"  # computed on an old version
    LOST = "fenced"  # the node is no longer the owner, or the epoch is over
    REFUSED = "refused"

    __hash__ = object.__hash__


class Written(NamedTuple):
    """The row after a step, and the moves as applied to it."""

    answer: Response
    row: SessionRow
    moves: tuple[tuple[Session, Move], ...] = ()


class Database:
    """The function that changes a row, with the comparisons that the rules require."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def take_step(self, row: SessionRow, write: Write) -> Written:
        """Compare and write in a single statement, under the row's lock."""
        refusal = self.compare(row, write)
        if refusal is not None:
            return Written(refusal, row)
        session, moves = self.write_moves(row.session, write)
        owner, epoch = row.owner, row.epoch
        if write.intent.action in CLAIMS or (owner is None and has_work(session)):
            owner, epoch = write.by, epoch + self.rules.raises_epoch
        if write.intent.action == RELEASE or not self.needs_owner(session):
            owner = None
        closing = row.closing or (write.intent.action == "close" and self.rules.closing_in_database)
        after = row._replace(session=session, version=row.version + 1, epoch=epoch, owner=owner, closing=closing)
        if not row.knows(write.id):
            after = after._replace(steps=(*row.steps, (write.id, after.latest)))
        return Written(Response.OK, after, moves)

    def compare(self, row: SessionRow, write: Write) -> Response | None:
        """The reason to reject the step, or None to write it."""
        rules, action = self.rules, write.intent.action
        if not write.new and row.knows(write.id):
            return Response.DUP
        if write.fence is not None and (rules.compares_release if action == RELEASE else rules.compares_fence) \
                and (write.fence != row.epoch or write.by != row.owner):
            return Response.LOST
        if action == RECOVER and rules.compares_death and row.owner not in row.dead:
            return Response.REFUSED
        if action == ADOPT and row.owner is not None:
            return Response.REFUSED
        if rules.compares_version and write.version != row.version and not (
                (action == RECOVER and not rules.compares_death) or (action == RELEASE and not rules.compares_release)):
            return Response.STALE
        if action == "accept" and row.closing:
            return Response.REFUSED
        ended = {p.seq for p in row.session.prompts if p.state is DONE}
        moved = {p.seq for p, _ in changed_prompts(write.before, last_session(write))}
        if rules.compares_fence and ended & moved:  # a move must not change a finished prompt
            return Response.REFUSED
        return None

    def write_moves(self, session: Session, write: Write) -> tuple[Session, tuple[tuple[Session, Move], ...]]:
        """Apply to the row's session the changes that the step made to the session it was computed on."""
        before: AnySession = write.before
        moves = []
        for move in write.moves:
            after = put_changes(session, before, move.after)
            moves.append((session, move._replace(after=after)))
            before, session = move.after, after
        return session, tuple(moves)

    def needs_owner(self, session: Session) -> bool:
        return has_work(session) if self.rules.releases_held else bool(session.live)

ADOPT, RECOVER, RELEASE = "adopt", "recover", "release"
CLAIMS = (ADOPT, RECOVER)
STRENGTH = tuple(Reach)


def last_session(write: Write) -> AnySession:
    return write.moves[-1].after if write.moves else write.before


def changed_prompts(before: AnySession, after: AnySession) -> list[tuple[Prompt, Prompt | None]]:
    """The prompts that changed, each with its previous value."""
    were = {p.seq: p for p in before.prompts}
    return [(p, were.get(p.seq)) for p in after.prompts if were.get(p.seq) != p]


def put_changes(row: Session, before: AnySession, after: AnySession) -> Session:
    """The row's session with the changes between the two others applied. Terminal events are counted, not
    overwritten."""
    there = {p.seq: p for p in row.prompts}
    for prompt, was in changed_prompts(before, after):
        here = there.get(prompt.seq)
        if here is not None:
            ends = min(2, here.ends + prompt.ends - (was.ends if was else 0))
            prompt = prompt._replace(ends=ends, reach=max(here.reach, prompt.reach, key=STRENGTH.index))
        there[prompt.seq] = prompt
    fields = {name: getattr(after, name) for name in ("mark", "down", "memory", "held", "wished_hold")
              if getattr(after, name) != getattr(before, name)}
    return row._replace(prompts=tuple(there[seq] for seq in sorted(there)), **fields)
