"""The possible states of one session, given the lines of a trace so far.

A trace may omit steps. So a session is followed as a set of candidates: the model states that some behaviour with
exactly these lines can have reached. A line keeps the candidates that can take it, after any omitted steps.

## Steps that may be omitted

enter, fail, settle, step and finish, any number of times. Actions of callers and operators, and requeue, may not: if
they could be inferred anywhere, every trace would be accepted.

## Effects that are owed

The end of a prompt must never be omitted. A step requests effects, of which `start` and `end` matter here. If a line
does not list its effects, or a step was omitted, these effects are *owed*, in order, and later lines report them. A
line that reports one implies that those before it are over (R19b): a start may be skipped, an end may not.

## Keeping the candidates few

An omitted step is inferred only where it makes a difference:

- Before an acceptance none does, because each can as well come after it.
- Before a line that reports an effect, no other end can be owed.
- A prompt that has not entered can do whatever a queued one can, since it can enter at the last moment. So its entry is
  inferred only together with the step that needs it in the queue: a fold, a clear, or a turn ahead of another prompt. A
  cancel needs nothing: a prompt that has not entered is canceled on entry, and ends as the dropped ones do.
- Once optional calls have left a trace in the state (a hold, a moved prompt, an interrupt), every step is inferred
  everywhere. The same holds before an acceptance with `reject` or `interrupt`.

Tests compare this with a search that infers every step everywhere.
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
    DEFAULT_TRAITS,
    DONE,
    QUEUED,
    Prompt,
    Session,
)

from .records import ACTION, TraceEffect, TraceLine, TraceRow, TraceTraits

MOST = 2_000  # candidates of a session at a time
TELLS_ITS_END = ("finish", "fail", "settle")  # without `effects`, such a line reports the end of its own prompt


class Limit:
    """Whether there were more candidates than can be followed. Those with the fewest omitted steps are."""

    hit = False


class Owed(NamedTuple):
    """A start or an end that a step has requested and no line has reported yet."""

    effect: str
    seq: int
    outcomes: frozenset[Outcome] = frozenset()  # the possible outcomes of an end


class Candidate(NamedTuple):
    """A possible state: the session without its finished prompts, and the effects that are owed, in order."""

    session: Session
    owed: tuple[Owed, ...] = ()

    @property
    def ends_owed(self) -> list[int]:
        return [owed.seq for owed in self.owed if owed.effect == "end"]


def why_impossible(session: Session) -> str | None:
    """Which invariant of the model the state breaks; None if it breaks none."""
    seqs = [p.seq for p in session.prompts]
    if len(set(seqs)) < len(seqs):
        return "it contains a prompt twice"
    if len(session.active) > 1:
        return f"prompts {' and '.join(str(p.seq) for p in session.active)} are active"
    if session.queue and not session.active and not session.held:
        return f"prompt {session.queue[0].seq} is queued, but none is active"
    for prompt in session.prompts:
        covered = session.covered(prompt)
        if prompt.state is DONE:
            return f"prompt {prompt.seq} is done, but listed as unfinished"
        if prompt.state is QUEUED and covered:
            return f"prompt {prompt.seq} is queued, though {_why_covered(session, prompt)}"
        if prompt.state is CANCELED_ON_ENTRY and not covered:
            return f"prompt {prompt.seq} is canceled on entry, though the mark does not cover it"
        if prompt.begun and prompt.state in (ACCEPTED, CANCELED_ON_ENTRY):
            return f"prompt {prompt.seq} has begun, but is {prompt.state.value}"
        if prompt.urgent and not prompt.front:
            return f"prompt {prompt.seq} is an interrupt, but is not at the front"
    return None


def _why_covered(session: Session, prompt: Prompt) -> str:
    return "the mark covers it" if prompt.seq <= session.mark else "it is revoked"


# --- what a line reports of a move --------------------------------------------------------------------------------

def moved_rows(session: Session, move: Move) -> tuple[TraceRow, ...]:
    """The rows of a move with the prompts that they move. Its effects name the prompts that end or start."""
    ends = iter([e.seq for e in move.effects if isinstance(e, End)])
    starts = iter([e.seq for e in move.effects if isinstance(e, Start)])
    others = iter([move.seq] if move.seq is not None else
                  [p.seq for p in session.prompts if p.state is ACCEPTED])  # `recover` makes these enter, in order
    return tuple(TraceRow(next(ends if row.outcome else starts if row.dest is ACTIVE else others), row.name)
                 for row in move.rows)


def made_traits(session: Session, move: Move) -> tuple[TraceTraits, ...]:
    """The traits that a move has changed, by prompt, except `begun`, which follows from its row."""
    before = {p.seq: TraceTraits.of(p.seq, p.traits or DEFAULT_TRAITS) for p in session.prompts}
    after = [TraceTraits.of(p.seq, p.traits or DEFAULT_TRAITS) for p in move.after.prompts]
    return tuple(made for made in after if made != before.get(made.seq, TraceTraits.of(made.seq, DEFAULT_TRAITS)))


def owed_by(moves: Iterable[Move]) -> tuple[Owed, ...]:
    """The effects that a move owes; of several moves that differ in a turn's outcome, with all these outcomes."""
    first, *others = moves
    outcomes = {e.seq: frozenset([e.outcome]) for e in first.effects if isinstance(e, End)}
    for other in others:
        for e in other.effects:
            if isinstance(e, End):
                outcomes[e.seq] |= {e.outcome}
    return tuple(Owed("end", e.seq, outcomes[e.seq]) if isinstance(e, End) else Owed("start", e.seq)
                 for e in first.effects if isinstance(e, Start | End))


# --- applying a line ----------------------------------------------------------------------------------------------

def variant_of(line: TraceLine) -> Variant:
    if line.action == "accept":
        named = line.run_id is not None
        return named if line.if_busy is None else line.if_busy.value + (RUN_ID if named else "")
    if line.ask is not None:
        return f"{line.ask} {line.answer}" if line.answer else str(line.ask)
    return HOLD if line.hold else line.outcome


def move_of(session: Session, line: TraceLine, seq: int) -> Move | None:
    """The model's move for the action of the line, with `seq` as the latest seq; None if the model does not allow it.
    """
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
    """Whether every field of the line agrees with the move. The mark of an action on all sessions is checked elsewhere.
    """
    return ((line.mark is None or ACTION[move.action.name].everywhere or move.after.mark == line.mark)
            and (line.held is None or move.after.held == line.held)
            and (line.traits is None or line.traits == made_traits(session, move))
            and (line.rows is None or line.rows == moved_rows(session, move))
            and (line.effects is None or line.effects == tuple(map(TraceEffect.of, move.effects))))


def take_action(
    candidate: Candidate, line: TraceLine, seq: int, limit: Limit | None,
) -> Iterator[tuple[Candidate, Session, Move]]:
    """The candidates after the action of the line, each with the session before the move, and the move. Without a limit
    no omitted entry is inferred."""
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
    """The candidate after a line that reports a start or an end; None if that is not owed next."""
    for at, owed in enumerate(candidate.owed):
        if (owed.effect, owed.seq) == (line.effect, line.seq) and (
                line.outcome is None or line.outcome in owed.outcomes):
            return Candidate(candidate.session, candidate.owed[at + 1:])
        if owed.effect == "end":
            return None
    return None


# --- omitted steps ------------------------------------------------------------------------------------------------

def entrances(session: Session, line: TraceLine, limit: Limit) -> Iterator[Session]:
    """The session after each choice of omitted entries that makes a difference to the line."""
    late = _late(session)
    choices: Iterable[Iterable[Prompt]] = [()]
    if not late or line.action in ("accept", "enter", "fail", "settle", "hold", "next", "replace"):
        pass
    elif line.rows is not None or (line.effects is not None and line.action != "recover"):
        named = {row.seq for row in line.rows or ()} | {effect.seq for effect in line.effects or ()}
        if line.action == "recover":  # a prompt that enters with the recovery had not entered before
            enter = {row.seq for row in line.rows or () if row.row.startswith("enter")}
            choices = [[p for p in late if p.seq not in enter]]
        else:
            choices = [[p for p in late if p.seq in named and (p.seq != line.seq or line.action == "revoke")]]
    elif line.action == "clear_queue":
        some = chain.from_iterable(combinations(late, size) for size in range(1, len(late)))
        choices = islice(chain([(), late], some), MOST)  # the most likely ones first
        limit.hit |= 2 ** len(late) > MOST
    elif line.action == "revoke":
        choices = [(), [p for p in late if p.seq == line.seq]]
    elif line.action == "step":
        choices = [(), *([p] for p in late if not p.run_id)]
    elif line.action in ("finish", "requeue", "resume"):
        choices = [(), *([p] for p in ahead(session, late, line.action))]
    return (enter_queue(session, choice) for choice in choices)


def _late(session: Session) -> list[Prompt]:
    """The prompts that would be queued if they entered."""
    if not (session.down or session.held or session.active):
        return []
    return [p for p in session.prompts if p.state is ACCEPTED and not session.covered(p)]


def ahead(session: Session, late: Iterable[Prompt], action: str) -> list[Prompt]:
    """The prompts that get the next turn if they have entered, and otherwise have to wait."""
    rivals = [*session.queue, *(session.active if action == "requeue" else ())]
    return [p for p in late if rivals and all(place(p) < place(rival) for rival in rivals)]


def enter_queue(session: Session, prompts: Iterable[Prompt]) -> Session:
    for prompt in prompts:
        session = _live(FAMILY.apply(ACTION["enter"], session, prompt, None, 0))
    return session


def imagine_step(candidate: Candidate, about: Collection[int] | None = None) -> Iterator[Candidate]:
    """The candidates after one more omitted step, of the prompts `about` or of any prompt."""
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
    """Whether its turn may fold queued prompts."""
    return not (session.covered(prompt) or session.held or any(
        p.urgent and p.state is ACCEPTED and not session.covered(p) for p in session.prompts))


def is_simple(session: Session) -> bool:
    """Whether no optional call has left a trace in the state."""
    return not session.held and all(p.traits is None or (p.traits[:3] == DEFAULT_TRAITS[:3] and not p.urgent)
                                    for p in session.prompts)


def _step(candidate: Candidate, session: Session, name: str, prompt: Prompt) -> Candidate:
    action = ACTION[name]
    moves = [FAMILY.apply(action, session, prompt, variant, 0) for variant in action.variants
             if FAMILY.allows(action, session, prompt, variant)]
    return Candidate(_live(moves[0]), candidate.owed + owed_by(moves))


def with_imagined_steps(candidates: Collection[Candidate], line: TraceLine, limit: Limit) -> Iterator[Candidate]:
    """The candidates, and those after omitted steps that make a difference to the line."""
    if line.action == "accept" and line.if_busy is None:
        return iter(candidates)
    owing, about = _scope(line)
    return imagine_steps(candidates, limit, owing, about if all(is_simple(one.session) for one in candidates) else None)


def imagine_steps(
    candidates: Collection[Candidate], limit: Limit, owing: list[int] | None = None,
    about: Collection[int] | None = None,
) -> Iterator[Candidate]:
    """The candidates, and those after any omitted steps. With `about`, only after steps of these prompts; with `owing`,
    only as long as the first owed end is that of a prompt in it."""
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
    """The prompts whose end can be owed just before the line, and those whose steps make a difference to it; None: all.
    """
    tells = [effect.seq for effect in line.effects or () if effect.effect in ("start", "end")]
    own = line.effects is None and line.action in ("finish", "settle")
    if not (line.effect or tells or own):
        return None, None
    owing = [line.seq] if line.effect == "end" and line.seq else []
    if line.outcome is Outcome.FOLDED or line.action in ("clear_queue", "revoke"):  # another prompt has the turn
        return owing, None
    return owing, {*([line.seq] if line.seq else []), *(effect.seq for effect in line.effects or ())}
