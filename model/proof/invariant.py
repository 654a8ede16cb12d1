"""What always holds, what every step respects, and which guarantees of specs/protocol.md that amounts to.

Three kinds of claims:

- a *conjunct* of the invariant, about a state. All of them together are inductive: they hold at the start, and no
  action leads out of them. Each is a guarantee itself, or some other claim cannot be shown without it.
- a *step claim*, about one step from a state in which the invariant holds.
- a *consequence*, about a state: it follows from the invariant.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import z3

from .actions import MOVES, Step
from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    CANCEL,
    CANCELED,
    CANCELED_ON_ENTRY,
    CLEAR,
    DONE,
    FOLDED,
    NONE,
    NOTHING,
    QUEUED,
    Term,
    Universe,
    View,
    one_of,
)


@dataclass(frozen=True)
class Claim(ABC):
    name: str
    sentence: str

    @abstractmethod
    def of(self, step: Step) -> Term:
        """That the claim holds of this step."""


@dataclass(frozen=True)
class StateClaim(Claim):
    holds: Callable[[Universe, View], Term]

    def of(self, step: Step) -> Term:
        return self.holds(step.universe, step.after)


@dataclass(frozen=True)
class StepClaim(Claim):
    holds: Callable[[Step], Term]

    def of(self, step: Step) -> Term:
        return self.holds(step)


def of_each(says: Callable[[View, Term], Term]) -> Callable[[Universe, View], Term]:
    """A claim about every prompt by itself."""
    return lambda u, v: u.every_prompt(lambda p: says(v, p))


def iff(a: Term, b: Term) -> Term:
    return a == b


def initial(u: Universe, v: View) -> Term:
    """The start: no prompt, no mark, and a server that is up and open."""
    return z3.And(
        v.latest == 0, z3.Not(v.closing), z3.Not(v.down), u.every_session(lambda s: v.mark(s) == 0),
        u.every_prompt(lambda p: z3.And(v.state(p) == ABSENT, v.outcome(p) == NONE, v.reach(p) == NOTHING,
                                        v.ends(p) == 0)))


# --- the invariant

INVARIANT: tuple[StateClaim, ...] = (
    StateClaim(
        "seq-given", "A prompt's seq is one that has been given out.",
        of_each(lambda v, p: z3.Implies(v.state(p) != ABSENT, z3.And(v.seq(p) >= 1, v.seq(p) <= v.latest)))),
    StateClaim(
        "seq-unique", "No two prompts have the same seq.",
        lambda u, v: u.every_pair(lambda p, q: z3.Implies(
            z3.And(v.state(p) != ABSENT, v.state(q) != ABSENT, v.seq(p) == v.seq(q)), p == q))),
    StateClaim(
        "mark-given", "A mark is 0 or a seq that has been given out, so it covers nobody who is accepted later.",
        lambda u, v: z3.And(v.latest >= 0, u.every_session(lambda s: z3.And(v.mark(s) >= 0, v.mark(s) <= v.latest)))),
    StateClaim(
        "covered-is-reached", "The mark covers an unfinished prompt if and only if a cancel came after its acceptance.",
        of_each(lambda v, p: z3.Implies(v.live(p), iff(v.covered(p), v.reach(p) == CANCEL)))),
    StateClaim(
        "clear-is-final", "What clear_queue has reached is done, and canceled.",
        of_each(lambda v, p: z3.Implies(v.reach(p) == CLEAR,
                                        z3.And(v.state(p) == DONE, v.outcome(p) == CANCELED)))),
    StateClaim(
        "queue-is-uncovered", "No queued prompt is covered.",
        of_each(lambda v, p: z3.Implies(v.state(p) == QUEUED, z3.Not(v.covered(p))))),
    StateClaim(
        "entry-is-covered", "Every prompt that is canceled on entry is covered.",
        of_each(lambda v, p: z3.Implies(v.state(p) == CANCELED_ON_ENTRY, v.covered(p)))),
    StateClaim(
        "canceled-is-reached", "A prompt that ended canceled was reached by a cancel, or by clear_queue.",
        of_each(lambda v, p: z3.Implies(v.outcome(p) == CANCELED, v.reach(p) != NOTHING))),
    StateClaim(
        "one-end", "A prompt that is done has one outcome and one terminal event; any other has neither.",
        of_each(lambda v, p: z3.And(iff(v.state(p) == DONE, v.outcome(p) != NONE),
                                    v.ends(p) == z3.If(v.state(p) == DONE, 1, 0)))),
    StateClaim(
        "one-active", "A session has at most one active prompt.",
        lambda u, v: u.every_pair(lambda p, q: z3.Implies(
            z3.And(v.state(p) == ACTIVE, v.state(q) == ACTIVE, v.home(p) == v.home(q)), p == q))),
    StateClaim(
        "folded-has-no-id", "No prompt with a caller's run id has been folded.",
        of_each(lambda v, p: z3.Implies(v.outcome(p) == FOLDED, z3.Not(v.run_id(p))))),
    StateClaim(
        "queue-has-a-turn", "Where a prompt is queued, another is active.",
        lambda u, v: u.every_prompt(lambda p: z3.Implies(
            v.state(p) == QUEUED, u.some_prompt(lambda q: v.is_in(q, v.home(p), ACTIVE))))),
)


# --- steps

def _each(says: Callable[[Step, Term], Term]) -> Callable[[Step], Term]:
    return lambda step: step.universe.every_prompt(lambda p: says(step, p))


def _waits(v: View, p: Term) -> Term:
    return one_of(v.state(p), ACCEPTED, CANCELED_ON_ENTRY, QUEUED)


def _closed(step: Step) -> Term:
    before, after = step.before.closing, step.after.closing
    if step.action == "accept":
        return z3.And(z3.Not(before), after == before)
    if step.action == "close":
        return after
    return z3.BoolVal(True) if step.action == "recover" else after == before


def _isolated(step: Step) -> Term:
    if step.where is None:
        return z3.BoolVal(True)
    u, before, after = step.universe, step.before, step.after
    return z3.And(
        u.every_session(lambda s: z3.Implies(s != step.where, after.mark(s) == before.mark(s))),
        u.every_prompt(lambda p: z3.Implies(
            z3.And(before.state(p) != ABSENT, before.home(p) != step.where),
            z3.And(after.same_prompt(before, p), step.seen.nothing(p)))))


def _idle_cancel(step: Step) -> Term:
    if step.action != "cancel":
        return z3.BoolVal(True)
    u, before, after = step.universe, step.before, step.after

    def here(p: Term) -> Term:
        return z3.And(before.state(p) != ABSENT, before.home(p) == step.where)

    idle = u.every_prompt(lambda p: z3.Implies(here(p), before.state(p) == DONE))
    return z3.Implies(idle, u.every_prompt(
        lambda p: z3.Implies(here(p), z3.And(after.same_prompt(before, p), step.seen.nothing(p)))))


def moves(step: Step, p: Term, source: Term, dest: Term, outcome: Term) -> Term:
    before, after = step.before, step.after
    return z3.And(before.state(p) == source, after.state(p) == dest, after.outcome(p) == outcome)


def _along_rows(step: Step) -> Term:
    return step.universe.every_prompt(lambda p: z3.Or(
        z3.And(step.after.state(p) == step.before.state(p), step.after.outcome(p) == step.before.outcome(p)),
        *(moves(step, p, *move) for move in MOVES[step.action])))


RANK = ((ACCEPTED, 3), (QUEUED, 2), (ACTIVE, 1), (CANCELED_ON_ENTRY, 1))
SYSTEM = ("enter", "fail", "settle", "step", "finish", "recover")


def rank(v: View, p: Term) -> Term:
    """How many steps a prompt is from its end, at most, if nobody requeues it."""
    term = z3.IntVal(0)
    for state, n in RANK:
        term = z3.If(v.state(p) == state, n, term)
    return term


def _descends(step: Step) -> Term:
    if step.action not in SYSTEM:
        return z3.BoolVal(True)
    u, before, after = step.universe, step.before, step.after
    return z3.And(
        u.every_prompt(lambda p: rank(after, p) <= rank(before, p)),
        z3.Or(u.some_prompt(lambda p: rank(after, p) < rank(before, p)), z3.And(before.down, z3.Not(after.down))))


STEPS: tuple[StepClaim, ...] = (
    StepClaim(
        "stopping-folds-nobody", "A turn that a cancel has reached takes nobody in.",
        _each(lambda s, p: z3.Implies(s.seen.takes_in(p), s.before.reach(p) != CANCEL))),
    StepClaim(
        "reached-never-starts", "No prompt starts or folds that a cancel has reached, by this step or earlier.",
        _each(lambda s, p: z3.Implies(z3.Or(s.seen.started(p), s.seen.folded(p)), s.after.reach(p) != CANCEL))),
    StepClaim(
        "reached-ends-canceled", "If a cancel has reached a prompt that waits, it can only end canceled.",
        _each(lambda s, p: z3.Implies(z3.And(_waits(s.before, p), s.after.reach(p) == CANCEL),
                                      one_of(s.after.outcome(p), NONE, CANCELED)))),
    StepClaim(
        "running-is-asked", "A turn that runs is asked to stop when a cancel reaches it, and by nothing else.",
        _each(lambda s, p: z3.And(
            z3.Implies(z3.And(s.before.state(p) == ACTIVE, s.before.reach(p) != CANCEL, s.after.reach(p) == CANCEL),
                       s.seen.stopped(p)),
            z3.Implies(s.seen.stopped(p), s.after.reach(p) == CANCEL)))),
    StepClaim(
        "queue-is-dropped", "What is queued when a cancel reaches it is done then, and canceled.",
        _each(lambda s, p: z3.Implies(
            z3.And(s.before.state(p) == QUEUED, s.before.reach(p) == NOTHING, s.after.reach(p) == CANCEL),
            z3.And(s.after.state(p) == DONE, s.after.outcome(p) == CANCELED)))),
    StepClaim(
        "nobody-vanishes", "A prompt that was accepted stays, with its seq, its session and its run id.",
        _each(lambda s, p: z3.Implies(s.before.state(p) != ABSENT, z3.And(
            s.after.state(p) != ABSENT, s.after.seq(p) == s.before.seq(p), s.after.home(p) == s.before.home(p),
            s.after.run_id(p) == s.before.run_id(p))))),
    StepClaim(
        "an-end-is-final", "A prompt that is done stays as it is.",
        _each(lambda s, p: z3.Implies(s.before.state(p) == DONE, s.after.same_prompt(s.before, p)))),
    StepClaim(
        "first-comes-first", "Nothing starts past an earlier prompt that is queued.",
        lambda s: s.universe.every_pair(lambda p, q: z3.Implies(
            z3.And(s.seen.started(p), s.after.state(q) == QUEUED, s.after.home(p) == s.after.home(q)),
            s.after.seq(p) < s.after.seq(q)))),
    StepClaim(
        "ids-are-not-folded", "No step folds a prompt with a caller's run id.",
        _each(lambda s, p: z3.Implies(s.seen.folded(p), z3.Not(s.before.run_id(p))))),
    StepClaim(
        "own-text", "A terminal event carries its own prompt's text, and comes when the prompt is done.",
        _each(lambda s, p: z3.Implies(s.seen.published(p) > 0,
                                      z3.And(s.seen.carries(p) == p, s.after.state(p) == DONE)))),
    StepClaim("idle-cancel", "A cancel of an idle session changes no prompt there and asks for nothing.", _idle_cancel),
    StepClaim("apart", "A step in one session changes no other.", _isolated),
    StepClaim("closed-is-closed", "Nothing is accepted while the server closes, and only a restart opens it.", _closed),
    StepClaim(
        "record-is-written", "A prompt canceled on entry is done only with its record.",
        _each(lambda s, p: z3.Implies(z3.And(s.before.state(p) == CANCELED_ON_ENTRY, s.after.state(p) == DONE),
                                      s.seen.recorded(p)))),
    StepClaim(
        "end-before-start", "When a turn starts, everything that is done has its terminal event already.",
        lambda s: z3.And(z3.Not(s.seen.late), s.universe.every_pair(lambda p, q: z3.Implies(
            z3.And(s.seen.started(p), s.after.state(q) == DONE), s.after.ends(q) >= 1)))),
    StepClaim("along-rows", "A prompt moves along the rows of the protocol, and in no other way.", _along_rows),
    StepClaim(
        "mark-rises", "No mark ever falls.",
        lambda s: s.universe.every_session(lambda x: s.after.mark(x) >= s.before.mark(x))),
    StepClaim(
        "system-descends",
        "What the system does by itself brings a prompt nearer to its end, and none further away.", _descends),
)


# --- consequences

def at_rest(u: Universe, v: View) -> Term:
    """Nothing is left that the system does by itself: enter, fail, settle, step, finish or recover."""
    return z3.And(z3.Not(v.down), u.every_prompt(
        lambda p: z3.Not(one_of(v.state(p), ACCEPTED, CANCELED_ON_ENTRY, ACTIVE))))


CONSEQUENCES: tuple[StateClaim, ...] = (
    StateClaim(
        "on-entry-is-reached", "A prompt that is canceled on entry was reached by a cancel.",
        of_each(lambda v, p: z3.Implies(v.state(p) == CANCELED_ON_ENTRY, v.reach(p) == CANCEL))),
    StateClaim(
        "rest-is-done", "At rest every prompt is done.",
        lambda u, v: z3.Implies(at_rest(u, v), u.every_prompt(lambda p: one_of(v.state(p), ABSENT, DONE)))),
    StateClaim(
        "rest-is-told", "At rest every prompt has its terminal event.",
        lambda u, v: z3.Implies(at_rest(u, v), u.every_prompt(
            lambda p: z3.Implies(v.state(p) != ABSENT, v.ends(p) == 1)))),
)

# By the id of a property of specs/protocol.md: the claims that it amounts to, once the whole invariant is shown.
GUARANTEES: Mapping[str, tuple[str, ...]] = {
    "no-poisoning": ("canceled-is-reached", "on-entry-is-reached"),
    "no-late-fold": ("stopping-folds-nobody",),
    "no-lost-cancel": ("reached-never-starts", "reached-ends-canceled"),
    "cancel-stops": ("running-is-asked",),
    "queue-dropped": ("queue-is-dropped", "clear-is-final"),
    "no-loss": ("nobody-vanishes",),
    "one-terminal": ("one-end", "an-end-is-final"),
    "single-active": ("one-active",),
    "fifo": ("first-comes-first",),
    "no-absorption": ("ids-are-not-folded", "folded-has-no-id"),
    "attribution": ("own-text",),
    "idle-cancel-noop": ("idle-cancel",),
    "isolation": ("apart",),
    "closed": ("closed-is-closed",),
    "record": ("record-is-written",),
    "prompt-terminal": ("end-before-start",),
    "all-done": ("rest-is-done",),
    "some-terminal": ("rest-is-told",),
    "progress": ("system-descends",),
}

# What a guarantee needs beyond its claims, and what no solver was asked.
REMARKS: Mapping[str, str] = {
    "attribution": "An event here names the prompt whose text it carries. What the text is, only a runtime knows.",
    "all-done": "At rest: the server is up, and no prompt is accepted, canceled on entry or active. That just then the "
                "system has no action left is tested in small universes.",
    "progress": "The ranks of all prompts, and 1 for a server that is down, add up to a number that falls with every "
                "step that the system takes by itself, and it cannot fall for ever. That the prompts are finitely many "
                "is an argument beside the logic.",
}

# What is not proved here, and why.
UNPROVED: Mapping[str, str] = {
    "delivery": "it speaks of subscribers and the log, which this model does not have; `cancelmark revisions` searches "
                "a small model of its own, within bounds",
}
