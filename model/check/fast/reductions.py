"""State-space reductions that preserve every verdict. All are off by default, and each can be enabled separately.

finished
--------
Finished prompts are dropped from the state. No action reads a finished prompt. No safety property does either, and each
liveness property checks one prompt at a time. Two states that differ only in finished prompts therefore have the same
future behaviour, and one of them is enough. A finished prompt that violates a liveness property is kept until a
quiescent state reports it. Shortest traces keep their length.

symmetry
--------
States that differ only in the order of their sessions are identified. All sessions start in the same state, have the
same actions, and are checked in the same way, so the successors of a permuted state are the permuted successors. One
thing could distinguish sessions: an action on all sessions that can happen in more than one way, because the server
lets the first session choose. A protocol with such an action is searched without this reduction. Shortest traces keep
their length.

commuting
---------
A step that cannot lose any behaviour is taken at once, before all others (a partial-order reduction). Candidates are
settling a prompt that was canceled on entry, and the entry or failure of a covered prompt. (Moves that lead from s to t
with the same ends count as one step, and all of them are taken.) This is not assumed but checked, for each step of each
session (`Commuting`): a step from s to t is harmless if t can simulate s. That is, there is a relation between sessions
that contains (s, t), and for each pair (x, y) in it, for all run ids and for any number of accepted prompts:

1. each move of x is also a move of y. Both have the same ends, both change the session or neither does, and y's move
   shows everything that x's move shows, except what the step from s to t itself shows. The two moves lead to equal
   sessions or to a pair in the relation;
2. or that move of x leads to y, with the same ends as the step from s to t, and shows no more than that step does;
3. if x is quiescent then so is y, and y violates every liveness property that x violates.

By 1 and 2, each run from s is matched step by step by a run from t. Whatever the run from s violates or reaches, the
run from t, or the step itself, violates or reaches too. By 3 the same is true of violations at quiescence. Both runs
spend the same bounds. Other sessions are unaffected, since no session depends on another. A run that cycles is matched
by a run that cycles. The steps taken at once never form a cycle themselves, since a session's step is decided only
after that of the session it leads to. Every verdict is therefore preserved. Traces may become longer.

The family
----------
The arguments for `finished` and `symmetry` apply unchanged: no call of the family reads a finished prompt (`reject`
considers unfinished prompts only), and the record of what a caller requested is part of the session. The prompts that a
hold exempts at quiescence are queued prompts of its own session, never finished ones. `commuting` is checked for each
step, as for the reference, and so is equally sound. But the relation ignores how much of the bounds is spent, and each
further `next` or `replace` leads to a new session, so building it would never end. A protocol with one of these two is
searched without `commuting`, and the result reports that.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ...actions import Action
from ...family import Feature
from ...lifecycle import IllegalTrigger
from ...protocol import Behaviour
from .tables import Case, Option, Sessions

ENDLESS = {Feature.NEXT, Feature.REPLACE, Feature.ASK}  # calls that can create new sessions without limit

Related = tuple[int, int, int]  # the numbers of two sessions, and the server's seq
Ends = tuple[tuple[object, ...], ...]


def can_commute(protocol: Behaviour) -> bool:
    """Whether the protocol has finitely many sessions, even without bounds on its calls."""
    return ENDLESS.isdisjoint(getattr(protocol, "features", ()))


class OwnStep(NamedTuple):
    """A step from one session to another: a move, or several with the same result."""

    moves: tuple[Option, ...]
    ends: Ends
    shows: frozenset[str]


class Commuting:
    """Decides which steps of which sessions are harmless."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.settled: dict[tuple[int, int], list[tuple[Option, ...]]] = {}  # by session and seq
        self.unsettled: set[tuple[int, int]] = set()
        self.proven: dict[tuple[Ends, frozenset[str]], set[Related]] = {}  # by everything a relation depends on

    def urgent(self, number: int, seq: int) -> list[tuple[Option, ...]]:
        """For each case of the session, the moves of a harmless step to take at once, or none."""
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
                self.urgent(after, seq)  # never recurses into this session, which is still unsettled
                return step.moves
        return ()

    def _steps(self, case: Case) -> Iterator[tuple[int, OwnStep]]:
        """The system's own steps, each with the session that it leads to."""
        steps: dict[tuple[int, Ends], list[Option]] = {}
        for move in case.moves:
            if move.action.system and move.action.while_closing and _alone(move.action):
                steps.setdefault((move.live, move.ends), []).append(move)
        for (after, ends), moves in steps.items():
            yield after, OwnStep(tuple(moves), ends, frozenset(id for move in moves for id in move.shows))

    def _harmless(self, pair: Related, step: OwnStep) -> bool:
        """Build the relation, starting from the pair. False if some pair violates the conditions."""
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
        except (IllegalTrigger, LookupError):  # in a session that no search would reach
            return False
        proven |= relation
        return True

    def _match_pair(self, pair: Related, step: OwnStep) -> Iterator[Related | None]:
        """The pairs that a pair leads to; None if it violates the conditions."""
        x, y, seq = pair
        cases = self.sessions.cases
        for left, right in product(cases(x, seq), cases(y, seq)):
            if any(right.known.get(of, yes) != yes for of, yes in left.known.items()):
                continue  # contradictory run ids
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
    """Whether the action affects only its session."""
    return action.bound is None and action.sets_closing is None and not action.everywhere
