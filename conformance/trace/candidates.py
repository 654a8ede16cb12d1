"""Where one session can be, as far as the lines of a trace tell.

A trace may leave steps out. What is left is a set of candidates: states of the model that some behaviour with just
these lines can have come to. A line is taken by those that can do what it says, after steps that were left out.

**Steps that can be left out**: enter, fail, settle, step and finish, in any number. Those of callers and operators, and
requeue, cannot: any number of them could be imagined everywhere.

**What cannot be left out is the end of a prompt.** A step asks for effects, of which `start` and `end` matter here. A
line that does not list its effects, or a step that was left out, leaves them *owed*, in order. Lines of their own tell
them later. To tell one is to tell that those before it are over (R19b): a start may be passed over, an end may not.

**Few candidates.** A step that was left out is imagined only where it makes a difference. Before an acceptance none
does, as each can as well come after it. Where a line tells an effect, nothing can have owed an end before it. And a
prompt that waits to enter can do whatever one in the queue can, since it can enter at the last moment: so entering the
queue is imagined only together with what needs it there (to be folded, to be cleared away, to be handed the turn ahead
of another). A cancel needs nothing: whoever has not entered is canceled on entry, and ends as the dropped ones do. Once
calls of the family have left something behind, a hold or a place or a prompt that will stop another, every step is
imagined everywhere. So it is before an acceptance that is refused if the session is busy, or that stops what runs.
Tests compare all this with a search that imagines every step everywhere.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, combinations, islice
from typing import NamedTuple

from cancelmark.model.actions import Variant
from cancelmark.model.check.graph import Search
from cancelmark.model.effects import End, Start
from cancelmark.model.family import HOLD, RUN_ID, place
from cancelmark.model.lifecycle import Guard, Outcome
from cancelmark.model.protocol import FAMILY, Move
from cancelmark.model.session import (
    ACCEPTED,
    ACTIVE,
    CANCELED_ON_ENTRY,
    DONE,
    PLAIN,
    QUEUED,
    Prompt,
    Session,
)

from .records import ACTION, Asked, Made, Moved, TraceLine

MOST = 2_000  # candidates of a session at a time
TELLS_ITS_END = ("finish", "fail", "settle")  # the end of its own prompt, if it says nothing about effects


class Limit:
    """Whether there were more candidates than can be followed. Those after the fewest steps left out are."""

    hit = False


class Owed(NamedTuple):
    """A start or an end that was asked for and that no line has told yet."""

    effect: str
    seq: int
    outcomes: frozenset[Outcome] = frozenset()  # of an end: it is one of these


class Candidate(NamedTuple):
    """A candidate: the session without its finished prompts, and what is owed, in order."""

    session: Session
    owed: tuple[Owed, ...] = ()

    @property
    def ends_owed(self) -> list[int]:
        return [owed.seq for owed in self.owed if owed.effect == "end"]


def why_impossible(session: Session) -> str | None:
    """Why a session cannot be in this state, if it cannot: it breaks an invariant of the model."""
    seqs = [p.seq for p in session.prompts]
    if len(set(seqs)) < len(seqs):
        return "a prompt is there twice"
    if len(session.active) > 1:
        return f"prompts {' and '.join(str(p.seq) for p in session.active)} are active"
    if session.queue and not session.active and not session.held:
        return f"prompt {session.queue[0].seq} is queued, and none is active"
    for prompt in session.prompts:
        covered = session.covered(prompt)
        if prompt.state is DONE:
            return f"prompt {prompt.seq} is done, and has no place among the unfinished"
        if prompt.state is QUEUED and covered:
            return f"prompt {prompt.seq} is queued, though {_why_covered(session, prompt)}"
        if prompt.state is CANCELED_ON_ENTRY and not covered:
            return f"prompt {prompt.seq} is canceled on entry, though the mark does not cover it"
        if prompt.begun and prompt.state in (ACCEPTED, CANCELED_ON_ENTRY):
            return f"prompt {prompt.seq} has begun, and is {prompt.state.value}"
        if prompt.urgent and not prompt.front:
            return f"prompt {prompt.seq} is an interrupt, and its place is not at the front"
    return None


def _why_covered(session: Session, prompt: Prompt) -> str:
    return "the mark covers it" if prompt.seq <= session.mark else "it is revoked"


# --- what a move says ---------------------------------------------------------------------------------------------

def moved_rows(session: Session, move: Move) -> tuple[Moved, ...]:
    """The rows of a move with the prompts that they move: one that ends or starts is told by the effect."""
    ends = iter([e.seq for e in move.effects if isinstance(e, End)])
    starts = iter([e.seq for e in move.effects if isinstance(e, Start)])
    others = iter([move.seq] if move.seq is not None else
                  [p.seq for p in session.prompts if p.state is ACCEPTED])  # `recover` lets these enter, in order
    return tuple(Moved(next(ends if row.outcome else starts if row.dest is ACTIVE else others), row.name)
                 for row in move.rows)


def made_traits(session: Session, move: Move) -> tuple[Made, ...]:
    """What a move has made of prompts; that one has begun is told by its row."""
    before = {p.seq: Made.of(p.seq, p.traits or PLAIN) for p in session.prompts}
    after = [Made.of(p.seq, p.traits or PLAIN) for p in move.after.prompts]
    return tuple(made for made in after if made != before.get(made.seq, Made.of(made.seq, PLAIN)))


def owed_by(moves: Iterable[Move]) -> tuple[Owed, ...]:
    """What a move owes; of several that differ in how a turn finishes, with all these outcomes."""
    first, *others = moves
    outcomes = {e.seq: frozenset([e.outcome]) for e in first.effects if isinstance(e, End)}
    for other in others:
        for e in other.effects:
            if isinstance(e, End):
                outcomes[e.seq] |= {e.outcome}
    return tuple(Owed("end", e.seq, outcomes[e.seq]) if isinstance(e, End) else Owed("start", e.seq)
                 for e in first.effects if isinstance(e, Start | End))


# --- taking a line ------------------------------------------------------------------------------------------------

def variant_of(line: TraceLine) -> Variant:
    if line.action == "accept":
        named = line.run_id is not None
        return named if line.if_busy is None else line.if_busy.value + (RUN_ID if named else "")
    return HOLD if line.hold else line.outcome


def move_of(session: Session, line: TraceLine, seq: int) -> Move | None:
    """What the model does when it takes the action of the line, with `seq` as the latest; nothing if it does not."""
    assert line.action
    action, prompt = ACTION[line.action], None
    if action.subject:
        prompt = next((p for p in session.prompts if p.seq == line.seq), None)
        if prompt is None or not FAMILY.allows(action, session, prompt, variant_of(line)):
            return None
    elif not FAMILY.allows(action, session, None, variant_of(line)):
        return None
    if action.name == "recover":
        session = session._replace(down=True)
    return FAMILY.apply(action, session, prompt, variant_of(line), seq)


def agrees(line: TraceLine, session: Session, move: Move) -> bool:
    """Whether everything that the line says of the move is so. The mark apart, if it happens everywhere."""
    return ((line.mark is None or ACTION[move.action.name].everywhere or move.after.mark == line.mark)
            and (line.held is None or move.after.held == line.held)
            and (line.traits is None or line.traits == made_traits(session, move))
            and (line.rows is None or line.rows == moved_rows(session, move))
            and (line.effects is None or line.effects == tuple(map(Asked.of, move.effects))))


def take_action(
    candidate: Candidate, line: TraceLine, seq: int, limit: Limit | None,
) -> Iterator[tuple[Candidate, Session, Move]]:
    """What becomes of a candidate with an action in its session, and the move, from the session, that does it.
    Without a limit nobody has entered unseen."""
    for before in entrances(candidate.session, line, limit) if limit else [candidate.session]:
        move = move_of(before, line, seq)
        if move is None or not agrees(line, before, move):
            continue
        owed = owed_by([move])
        if line.effects is None and not (line.action in TELLS_ITS_END
                                         and Owed("end", line.seq or 0) in _without_outcomes(owed)):
            yield Candidate(_live(move), candidate.owed + owed), before, move
        elif not owed:
            yield Candidate(_live(move), candidate.owed), before, move
        elif not candidate.ends_owed:
            own = [o.effect for o in owed].index("end") + 1 if line.effects is None else len(owed)
            yield Candidate(_live(move), owed[own:]), before, move


def _without_outcomes(owed: Iterable[Owed]) -> list[Owed]:
    return [Owed(o.effect, o.seq) for o in owed]


def _live(move: Move) -> Session:
    assert isinstance(move.live, Session)
    return move.live.with_prompts(move.live.prompts) if move.action.name == "accept" else move.live


def tell_effect(candidate: Candidate, line: TraceLine) -> Candidate | None:
    """What is left when a line has told a start or an end, if it can."""
    for at, owed in enumerate(candidate.owed):
        if (owed.effect, owed.seq) == (line.effect, line.seq) and (
                line.outcome is None or line.outcome in owed.outcomes):
            return Candidate(candidate.session, candidate.owed[at + 1:])
        if owed.effect == "end":
            return None
    return None


# --- steps that were left out -------------------------------------------------------------------------------------

def entrances(session: Session, line: TraceLine, limit: Limit) -> Iterator[Session]:
    """The session after those have entered the queue whom the line finds there."""
    late = _late(session)
    choices: Iterable[Iterable[Prompt]] = [()]
    if not late or line.action in ("accept", "enter", "fail", "settle", "hold", "next", "replace"):
        pass
    elif line.rows is not None or (line.effects is not None and line.action != "recover"):
        named = {row.seq for row in line.rows or ()} | {effect.seq for effect in line.effects or ()}
        if line.action == "recover":  # whom it lets enter had not entered
            enter = {row.seq for row in line.rows or () if row.row.startswith("enter")}
            choices = [[p for p in late if p.seq not in enter]]
        else:
            choices = [[p for p in late if p.seq in named and (p.seq != line.seq or line.action == "revoke")]]
    elif line.action == "clear_queue":
        some = chain.from_iterable(combinations(late, size) for size in range(1, len(late)))
        choices = islice(chain([(), late], some), MOST)  # the likely ones first
        limit.hit |= 2 ** len(late) > MOST
    elif line.action == "revoke":
        choices = [(), [p for p in late if p.seq == line.seq]]
    elif line.action == "step":
        choices = [(), *([p] for p in late if not p.run_id)]
    elif line.action in ("finish", "requeue", "resume"):
        choices = [(), *([p] for p in ahead(session, late, line.action))]
    return (enter_queue(session, choice) for choice in choices)


def _late(session: Session) -> list[Prompt]:
    """Those who would be queued if they entered."""
    if not (session.down or session.held or session.active):
        return []
    return [p for p in session.prompts if p.state is ACCEPTED and not session.covered(p)]


def ahead(session: Session, late: Iterable[Prompt], action: str) -> list[Prompt]:
    """Those who are handed the turn if they have entered, and otherwise would have to wait."""
    rivals = [*session.queue, *(session.active if action == "requeue" else ())]
    return [p for p in late if rivals and all(place(p) < place(rival) for rival in rivals)]


def enter_queue(session: Session, prompts: Iterable[Prompt]) -> Session:
    for prompt in prompts:
        session = _live(FAMILY.apply(ACTION["enter"], session, prompt, None, 0))
    return session


def imagine_step(candidate: Candidate, about: Collection[int] | None = None) -> Iterator[Candidate]:
    """The candidate after one more step that the trace does not have: of the prompts `about`, or of any."""
    session = candidate.session
    late, simple = _late(session), is_simple(session)
    for prompt in session.prompts if about is None else [p for p in session.prompts if p.seq in about]:
        if prompt.state is ACCEPTED:
            if not simple or session.covered(prompt) or not FAMILY.step(session).holds(prompt, Guard.BUSY):
                yield _step(candidate, session, "enter", prompt)
            if not session.covered(prompt):
                yield _step(candidate, session, "fail", prompt)
        elif prompt.state is CANCELED_ON_ENTRY:
            yield _step(candidate, session, "settle", prompt)
        elif prompt.state is ACTIVE:
            if _can_fold(session, prompt):
                folding = [()] if any(not p.run_id for p in session.queue) else []
                for choice in (*folding, *([p] for p in late if not p.run_id)):
                    yield _step(candidate, enter_queue(session, choice), "step", prompt)
            for choice in ((), *([p] for p in ahead(session, late, "finish"))):
                yield _step(candidate, enter_queue(session, choice), "finish", prompt)


def _can_fold(session: Session, prompt: Prompt) -> bool:
    """Whether its turn takes others in, if there are any in the queue."""
    return not (session.covered(prompt) or session.held or any(
        p.urgent and p.state is ACCEPTED and not session.covered(p) for p in session.prompts))


def is_simple(session: Session) -> bool:
    """Whether no call of the family has left anything behind that what is to come depends on."""
    return not session.held and all(p.traits is None or (p.traits[:3] == PLAIN[:3] and not p.urgent)
                                    for p in session.prompts)


def _step(candidate: Candidate, session: Session, name: str, prompt: Prompt) -> Candidate:
    action = ACTION[name]
    moves = [FAMILY.apply(action, session, prompt, variant, 0) for variant in action.variants
             if FAMILY.allows(action, session, prompt, variant)]
    return Candidate(_live(moves[0]), candidate.owed + owed_by(moves))


def with_imagined_steps(candidates: Collection[Candidate], line: TraceLine, limit: Limit) -> Iterator[Candidate]:
    """The candidates, and those after steps that the trace does not have and that make a difference to the line."""
    if line.action == "accept" and line.if_busy is None:
        return iter(candidates)
    owing, about = _scope(line)
    return imagine_steps(candidates, limit, owing, about if all(is_simple(one.session) for one in candidates) else None)


def imagine_steps(
    candidates: Collection[Candidate], limit: Limit, owing: list[int] | None = None,
    about: Collection[int] | None = None,
) -> Iterator[Candidate]:
    """The candidates, and those after any steps that a trace may leave out; if so asked, only steps of the prompts
    `about`, and only as long as the first to owe an end is in `owing`."""
    def onward(candidate: Candidate) -> Iterator[tuple[None, Candidate]]:
        if limit.hit or (owing is not None and candidate.ends_owed):
            return
        for after in imagine_step(candidate, about):
            if owing is None or after.ends_owed[:1] in ([], owing):
                yield None, after
        limit.hit = len(search.depths) >= most

    search = Search(candidates, onward)
    most = len(search.depths) + MOST
    return iter(search)


def _scope(line: TraceLine) -> tuple[list[int] | None, Collection[int] | None]:
    """Whose end can have been owed just before the line, and whose steps make a difference to it; `None`: anybody's."""
    tells = [effect.seq for effect in line.effects or () if effect.effect in ("start", "end")]
    own = line.effects is None and line.action in ("finish", "settle")
    if not (line.effect or tells or own):
        return None, None
    owing = [line.seq] if line.effect == "end" and line.seq else []
    if line.outcome is Outcome.FOLDED or line.action in ("clear_queue", "revoke"):  # somebody else has the turn
        return owing, None
    return owing, {*([line.seq] if line.seq else []), *(effect.seq for effect in line.effects or ())}
