"""Ways to search fewer states without losing a verdict. Each can be switched off, and none is on unless asked for.

**finished**: a finished prompt is forgotten. No action looks at one, and no property but those at rest, each of which
judges a prompt by itself. So two states that differ only in finished prompts can do the same and show the same for
ever, and one of them is enough. A finished prompt that breaks a property at rest is kept until a state of rest shows
it. Shortest traces stay as short.

**symmetry**: states that differ only in which session is which are one. All sessions start alike, have the same actions
and are judged alike, so whatever one state leads to, its mirror image leads to the mirror image of that. The one thing
that could tell sessions apart is an action that happens everywhere in more than one way, because the server lets the
first session choose; a protocol that has one is searched without this. Shortest traces stay as short.

**commuting**: a step by which nothing can be lost is taken at once, and nothing else is tried before it. Such are the
settling of a prompt canceled on entry, and the entry of a prompt that the mark covers (or its failure: moves that lead
from s to t with the same ends are one step, and all are taken). This is not assumed of them but checked, for each step
of each session, on what sessions can do (`Commuting`): a step from s to t is harmless if t can do whatever s can. That
is, if there is a relation between sessions that has (s, t) in it, and for each pair (x, y) in it, whatever the run ids
and however many prompts the server has accepted:

1. each move of x is a move of y too, with the same ends, changing the session or not alike, and showing as much, apart
   from what the step from s to t shows itself; and the two lead to equal sessions, or to a pair in the relation;
2. or that move of x leads to y, with the same ends as the step from s to t, and shows no more than that does;
3. if x can do nothing by itself then neither can y, and y breaks as much at rest.

By 1 and 2 each run from s is matched by a run from t, step by step, and whatever is broken or met on the one is broken
or met on the other, or was by the step itself; by 3 so is what is broken at rest. Bounds are spent alike. Other
sessions take no notice, since what a session can do depends on nothing of another. A run that goes round in circles is
matched by one that does. And the steps taken at once never make a circle themselves, since a session's step is decided
only after that of the session it leads to. So every verdict stays. Traces may become longer.

**The family.** `finished` and `symmetry` hold for it word for word: no call of the family looks at a finished prompt
(`reject` asks for prompts that are not done), and what a call wants of a session is kept in that session. What a hold
excuses at rest are queued prompts of its own session, never a finished one. `commuting` is checked for each step, as
for the reference, and so is as sound; but the relation does not count what is spent of the bounds, and each further
`next` or `replace` leads to a session that was never met before, so that it would have no end. A protocol with one of
these is searched without `commuting`, and the result says so.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ...actions import Action
from ...family import Feature
from ...lifecycle import IllegalTrigger
from ...protocol import Behaviour
from .tables import Case, Option, Sessions

ENDLESS = {Feature.NEXT, Feature.REPLACE}  # calls that lead to ever new sessions

Related = tuple[int, int, int]  # two sessions, by number, and the server's seq
Ends = tuple[tuple[object, ...], ...]


def can_commute(protocol: Behaviour) -> bool:
    """Whether what the sessions of the protocol can do has an end, bounds or not."""
    return ENDLESS.isdisjoint(getattr(protocol, "features", ()))


class OwnStep(NamedTuple):
    """What leads from one session to another: a move, or several that come to the same."""

    moves: tuple[Option, ...]
    ends: Ends
    shows: frozenset[str]


class Commuting:
    """Which steps of which sessions are harmless."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.settled: dict[tuple[int, int], list[tuple[Option, ...]]] = {}  # by session and seq
        self.unsettled: set[tuple[int, int]] = set()
        self.proven: dict[tuple[Ends, frozenset[str]], set[Related]] = {}  # by all that a relation depends on

    def urgent(self, number: int, seq: int) -> list[tuple[Option, ...]]:
        """For each case of the session, the moves of the harmless step to take at once, if there is one."""
        found = self.settled.get((number, seq))
        if found is None:
            self.unsettled.add((number, seq))
            found = [self._first(number, seq, case) for case in self.sessions.cases(number, seq)]
            self.settled[number, seq] = found
            self.unsettled.remove((number, seq))
        return found

    def _first(self, number: int, seq: int, case: Case) -> tuple[Option, ...]:
        for after, step in self._steps(case):
            if (after, seq) not in self.unsettled and self._harmless((number, after, seq), step):
                self.urgent(after, seq)  # which is not this one, as long as this one is not settled
                return step.moves
        return ()

    def _steps(self, case: Case) -> Iterator[tuple[int, OwnStep]]:
        """The steps that the system can take by itself, each with the session that it leads to."""
        steps: dict[tuple[int, Ends], list[Option]] = {}
        for move in case.moves:
            if move.action.system and move.action.while_closing and _alone(move.action):
                steps.setdefault((move.live, move.ends), []).append(move)
        for (after, ends), moves in steps.items():
            yield after, OwnStep(tuple(moves), ends, frozenset(id for move in moves for id in move.shows))

    def _harmless(self, pair: Related, step: OwnStep) -> bool:
        """Builds the relation from the pair on, or finds a pair that does not fit."""
        proven = self.proven.setdefault((step.ends, step.shows), set())
        relation = {pair}
        todo = [pair]
        try:
            while todo:
                for following in self._match_pair(todo.pop(), step):
                    if following is None:
                        return False
                    if following not in relation and following not in proven:
                        relation.add(following)
                        todo.append(following)
        except (IllegalTrigger, LookupError):  # in a session that no search would meet
            return False
        proven |= relation
        return True

    def _match_pair(self, pair: Related, step: OwnStep) -> Iterator[Related | None]:
        """The pairs that a pair leads to; None if it does not fit."""
        x, y, seq = pair
        cases = self.sessions.cases
        for left, right in product(cases(x, seq), cases(y, seq)):
            if any(right.known.get(of, yes) != yes for of, yes in left.known.items()):
                continue  # no run ids are like that
            moves = {move.label: move for move in right.moves}
            if len(moves) < len(right.moves) or (
                    _quiet(left) and not (_quiet(right) and left.unrest | right.unrest == right.unrest)):
                yield None
            for move in left.moves:
                if (move.live == y and _alone(move.action) and move.ends == step.ends
                        and step.shows.issuperset(move.shows)):
                    continue
                other = moves.get(move.label)
                if (other is None or move.ends != other.ends or move.run_ids != other.run_ids
                        or move.lost != other.lost or move.changes != other.changes
                        or not step.shows.union(other.shows).issuperset(move.shows)):
                    yield None
                elif move.live != other.live:
                    yield move.live, other.live, seq + (move.action.bound == "prompts")
        bounds = self.sessions.plain.bounds
        if bounds.sessions > 1 and seq < bounds.prompts:  # another session may accept
            yield x, y, seq + 1


def _quiet(case: Case) -> bool:
    return not any(move.action.system for move in case.moves)


def _alone(action: Action) -> bool:
    """Whether the action touches nothing but its session."""
    return action.bound is None and action.sets_closing is None and not action.everywhere
