"""What can happen, by the rules of specs/protocol.md: each action with its guard, the state after it, and what it asks.

The state after a step is written as terms over the state before it, so nothing has to be said about what stays as it
is. Where a rule speaks of the first in the queue, the action is told who that is, and its guard checks it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import z3

from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    CANCEL,
    CANCELED,
    CANCELED_ON_ENTRY,
    CLEAR,
    DONE,
    END_TURN,
    ERROR,
    FOLDED,
    NONE,
    NOTHING,
    OUTCOME,
    QUEUED,
    OfOne,
    Seen,
    Term,
    Universe,
    View,
    one_of,
)


class Step(NamedTuple):
    """One step: the state before, the state after, what the world is asked to do, and when all this can be."""

    universe: Universe
    action: str
    where: Term | None  # the session it takes place in; None: in all of them
    guard: Term
    before: View
    after: View
    seen: Seen


@dataclass(frozen=True)
class Action:
    """An action and what it is told: the names of its parameters, and of which kind they are."""

    name: str
    rule: str
    parameters: Mapping[str, str]
    take: Callable[..., tuple[Term | None, Term, View, Seen]]  # where, guard, after, seen
    system: bool = False  # the system takes it by itself, without a caller, a fault or a turn that wants to go on
    up: bool = True  # whether it is taken by a server that is up, or by one that is down

    def step(self, universe: Universe, before: View, arguments: Mapping[str, Term]) -> Step:
        where, guard, after, seen = self.take(universe, before, **arguments)
        # The observer: it counts the terminal events, and the protocol never reads what it wrote.
        after = replace(after, ends=lambda p: _at_most_two(before.ends(p) + seen.published(p)))
        return Step(universe, self.name, where, z3.And(before.down != self.up, guard), before, after, seen)

    def arguments(self, universe: Universe) -> dict[str, Term]:
        """Free symbols for its parameters."""
        return {name: z3.Function(name, universe.session, universe.prompt) if kind == "first"
                else z3.Const(name, _sort(universe, kind)) for name, kind in self.parameters.items()}


def _sort(universe: Universe, kind: str) -> Term:
    return {"prompt": universe.prompt, "session": universe.session, "yes": z3.BoolSort(), "outcome": OUTCOME}[kind]


def _at_most_two(n: Term) -> Term:
    return z3.If(n > 2, 2, n)


def only(prompt: Term, when: Term = True) -> OfOne:
    """True of that prompt alone, if at all."""
    return lambda p: z3.And(p == prompt, when)


def count(says: OfOne) -> OfOne:
    return lambda p: z3.If(says(p), 1, 0)


# --- the life of one prompt

def accept(u: Universe, v: View, p: Term, session: Term, named: Term) -> tuple[Term, Term, View, Seen]:
    """R1: the next seq, in a server that is not closing."""
    after = v.put(p, state=ACCEPTED, outcome=NONE, seq=v.latest + 1, home=session, run_id=named, reach=NOTHING)
    return session, z3.And(v.state(p) == ABSENT, z3.Not(v.closing)), replace(after, latest=v.latest + 1), Seen()


def enter(u: Universe, v: View, p: Term, busy: Term) -> tuple[Term, Term, View, Seen]:
    """R3 to R6: the mark before the busy question."""
    goes_to = z3.If(v.covered(p), CANCELED_ON_ENTRY, z3.If(busy, QUEUED, ACTIVE))
    guard = z3.And(v.state(p) == ACCEPTED, busy == u.some_prompt(lambda q: v.is_in(q, v.home(p), ACTIVE)))
    return v.home(p), guard, v.put(p, state=goes_to), Seen(started=only(p, goes_to == ACTIVE))


def fail(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R8: an error, unless a cancel came first."""
    after = v.put(p, state=z3.If(v.covered(p), CANCELED_ON_ENTRY, DONE), outcome=z3.If(v.covered(p), NONE, ERROR))
    return v.home(p), v.state(p) == ACCEPTED, after, Seen(published=count(only(p, z3.Not(v.covered(p)))))


def settle(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R7"""
    return (v.home(p), v.state(p) == CANCELED_ON_ENTRY, v.put(p, state=DONE, outcome=CANCELED),
            Seen(recorded=only(p), published=count(only(p))))


# --- the turn

def take_in(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R9: what is queued without a run id folds. A step that finds nothing to take in is no step of the protocol."""
    def folds(q: Term) -> Term:
        return z3.And(v.is_in(q, v.home(p), QUEUED), z3.Not(v.run_id(q)))

    guard = z3.And(v.state(p) == ACTIVE, z3.Not(v.covered(p)), u.some_prompt(folds))
    return v.home(p), guard, ended(v, folds, FOLDED), Seen(folded=folds, takes_in=only(p), published=count(folds))


def requeue(u: Universe, v: View, p: Term, first: Term) -> tuple[Term, Term, View, Seen]:
    """R10: back to the queue at its own seq, and the first in the queue becomes active."""
    waiting = v.put(p, state=QUEUED)
    guard = z3.And(v.state(p) == ACTIVE, z3.Not(v.covered(p)), is_first(u, waiting, v.home(p), first))
    return v.home(p), guard, waiting.put(first, state=ACTIVE), Seen(started=only(first))


def finish(u: Universe, v: View, p: Term, how: Term, hands_off: Term, first: Term) -> tuple[Term, Term, View, Seen]:
    """R11 and R12: done, and in the same step the first in the queue becomes active, if there is any."""
    guard = z3.And(
        v.state(p) == ACTIVE, one_of(how, END_TURN, ERROR, CANCELED), z3.Implies(how == CANCELED, v.covered(p)),
        z3.If(hands_off, is_first(u, v, v.home(p), first),
              u.every_prompt(lambda q: z3.Not(v.is_in(q, v.home(p), QUEUED)))))
    done = v.put(p, state=DONE, outcome=how)
    after = done.put(first, state=z3.If(hands_off, ACTIVE, done.state(first)))
    return v.home(p), guard, after, Seen(started=only(first, hands_off), published=count(only(p)))


def is_first(u: Universe, v: View, session: Term, first: Term) -> Term:
    return z3.And(v.is_in(first, session, QUEUED), u.every_prompt(
        lambda q: z3.Implies(v.is_in(q, session, QUEUED), v.seq(first) <= v.seq(q))))


def ended(v: View, who: OfOne, how: Term) -> View:
    return replace(v, state=lambda p: z3.If(who(p), DONE, v.state(p)),
                   outcome=lambda p: z3.If(who(p), how, v.outcome(p)))


# --- calls

def cancel(u: Universe, v: View, session: Term) -> tuple[Term, Term, View, Seen]:
    """R12"""
    after, seen = canceled(v, lambda s: s == session)
    return session, z3.BoolVal(True), after, seen


def canceled(v: View, where: OfOne) -> tuple[View, Seen]:
    """The mark rises to the latest seq, the queue is dropped, the active prompt is asked to stop."""
    dropped, seen = cleared(v, where)
    after = replace(
        dropped, mark=lambda s: z3.If(where(s), v.latest, v.mark(s)),
        reach=lambda p: z3.If(z3.And(where(v.home(p)), v.live(p)), CANCEL, v.reach(p)))
    return after, replace(seen, stopped=lambda p: z3.And(
        where(v.home(p)), v.state(p) == ACTIVE, z3.Not(v.covered(p))))


def cleared(v: View, where: OfOne) -> tuple[View, Seen]:
    def dropped(p: Term) -> Term:
        return z3.And(where(v.home(p)), v.state(p) == QUEUED)

    after = replace(ended(v, dropped, CANCELED), reach=lambda p: z3.If(
        z3.And(dropped(p), v.reach(p) != CANCEL), CLEAR, v.reach(p)))
    return after, Seen(published=count(dropped))


def clear_queue(u: Universe, v: View, session: Term) -> tuple[Term, Term, View, Seen]:
    """R13"""
    after, seen = cleared(v, lambda s: s == session)
    return session, z3.BoolVal(True), after, seen


def close(u: Universe, v: View) -> tuple[None, Term, View, Seen]:
    """R15: nothing is accepted from here on, and every session is canceled."""
    after, seen = canceled(v, lambda _: z3.BoolVal(True))
    return None, z3.Not(v.closing), replace(after, closing=z3.BoolVal(True)), seen


# --- faults

def crash(u: Universe, v: View) -> tuple[None, Term, View, Seen]:
    """R16"""
    return None, z3.BoolVal(True), replace(v, down=z3.BoolVal(True)), Seen()


def recover(u: Universe, v: View, first: OfOne) -> tuple[None, Term, View, Seen]:
    """R17: what was active ends, what is covered is canceled on entry, everything else goes on in order of seq."""
    def goes_on(p: Term) -> Term:
        return z3.Or(v.state(p) == QUEUED, z3.And(v.state(p) == ACCEPTED, z3.Not(v.covered(p))))

    def starts(p: Term) -> Term:
        return z3.And(goes_on(p), first(v.home(p)) == p)

    def interrupted(p: Term) -> Term:
        return v.state(p) == ACTIVE

    def leads(p: Term, leader: Term) -> Term:
        return z3.And(goes_on(leader), v.home(leader) == v.home(p), v.seq(leader) <= v.seq(p))

    guard = u.every_prompt(lambda p: z3.Implies(goes_on(p), leads(p, first(v.home(p)))))
    done = ended(v, interrupted, ERROR)
    after = replace(done, down=z3.BoolVal(False), closing=z3.BoolVal(False), state=lambda p: z3.If(
        starts(p), ACTIVE, z3.If(goes_on(p), QUEUED, z3.If(v.state(p) == ACCEPTED, CANCELED_ON_ENTRY, done.state(p)))))
    return None, guard, after, Seen(started=starts, published=count(interrupted))


ACTIONS: tuple[Action, ...] = (
    Action("accept", "R1", {"p": "prompt", "session": "session", "named": "yes"}, accept),
    Action("enter", "R3", {"p": "prompt", "busy": "yes"}, enter, system=True),
    Action("fail", "R8", {"p": "prompt"}, fail, system=True),
    Action("settle", "R7", {"p": "prompt"}, settle, system=True),
    Action("step", "R9", {"p": "prompt"}, take_in, system=True),
    Action("requeue", "R10", {"p": "prompt", "first": "prompt"}, requeue),
    Action("finish", "R11", {"p": "prompt", "how": "outcome", "hands_off": "yes", "first": "prompt"}, finish,
           system=True),
    Action("cancel", "R12", {"session": "session"}, cancel),
    Action("clear_queue", "R13", {"session": "session"}, clear_queue),
    Action("close", "R15", {}, close),
    Action("crash", "R16", {}, crash),
    Action("recover", "R17", {"first": "first"}, recover, system=True, up=False),
)

# Every way in which a step can move a prompt: from, to, and the outcome it gets. Nothing else happens to a prompt.
MOVES: Mapping[str, tuple[tuple[Term, Term, Term], ...]] = {
    "accept": ((ABSENT, ACCEPTED, NONE),),
    "enter": ((ACCEPTED, CANCELED_ON_ENTRY, NONE), (ACCEPTED, QUEUED, NONE), (ACCEPTED, ACTIVE, NONE)),
    "fail": ((ACCEPTED, CANCELED_ON_ENTRY, NONE), (ACCEPTED, DONE, ERROR)),
    "settle": ((CANCELED_ON_ENTRY, DONE, CANCELED),),
    "step": ((QUEUED, DONE, FOLDED),),
    "requeue": ((ACTIVE, QUEUED, NONE), (QUEUED, ACTIVE, NONE)),
    "finish": ((ACTIVE, DONE, END_TURN), (ACTIVE, DONE, ERROR), (ACTIVE, DONE, CANCELED), (QUEUED, ACTIVE, NONE)),
    "cancel": ((QUEUED, DONE, CANCELED),),
    "clear_queue": ((QUEUED, DONE, CANCELED),),
    "close": ((QUEUED, DONE, CANCELED),),
    "crash": (),
    "recover": ((ACTIVE, DONE, ERROR), (ACCEPTED, CANCELED_ON_ENTRY, NONE), (ACCEPTED, QUEUED, NONE),
                (ACCEPTED, ACTIVE, NONE), (QUEUED, ACTIVE, NONE)),
}
