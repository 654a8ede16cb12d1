"""The inductive invariant, and the claims that make up each guarantee of specs/protocol.md.

There are three kinds of claims:

- a *conjunct* of the invariant is about a state. The conjuncts together are inductive: they hold initially, and every
  action preserves them. Each is a guarantee itself, or is needed to prove another claim.
- a *step claim* is about one step from a state in which the invariant holds (see `steps`).
- a *consequence* is about a state, and follows from the invariant.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import z3

from .actions import Step
from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    ALLOWED,
    CANCEL,
    CANCELED,
    CANCELED_ON_ENTRY,
    CLEAR,
    DONE,
    FEATURES,
    FOLDED,
    NONE,
    NOTHING,
    OPEN,
    QUEUED,
    UNASKED,
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
        """The formula that the claim holds for this step."""


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
    """A claim about each prompt separately."""
    return lambda u, v: u.every_prompt(lambda p: says(v, p))


def iff(a: Term, b: Term) -> Term:
    return a == b


def initial(u: Universe, v: View) -> Term:
    """The initial state: no prompt, no mark, no hold, no question, and a server that is up and not closing."""
    return z3.And(
        v.latest == 0, v.wishes == 0, z3.Not(v.closing), z3.Not(v.down),
        u.every_session(lambda s: z3.And(v.mark(s) == 0, z3.Not(v.held(s)), z3.Not(v.told(s)))),
        u.every_prompt(lambda p: z3.And(v.state(p) == ABSENT, v.outcome(p) == NONE, v.reach(p) == NOTHING,
                                        v.ends(p) == 0)),
        u.every_question(lambda x: z3.And(v.status(x) == UNASKED, v.called(x) == UNASKED, z3.Not(v.believed(x)))))


# --- the invariant

INVARIANT: tuple[StateClaim, ...] = (
    StateClaim(
        "seq-given", "Every prompt's seq has been assigned.",
        of_each(lambda v, p: z3.Implies(v.state(p) != ABSENT, z3.And(v.seq(p) >= 1, v.seq(p) <= v.latest)))),
    StateClaim(
        "seq-unique", "No two prompts have the same seq.",
        lambda u, v: u.every_pair(lambda p, q: z3.Implies(
            z3.And(v.state(p) != ABSENT, v.state(q) != ABSENT, v.seq(p) == v.seq(q)), p == q))),
    StateClaim(
        "mark-given", "A mark is 0 or an assigned seq, so it covers no prompt that is accepted later.",
        lambda u, v: z3.And(v.latest >= 0, u.every_session(lambda s: z3.And(v.mark(s) >= 0, v.mark(s) <= v.latest)))),
    StateClaim(
        "covered-is-reached", "An unfinished prompt is covered if and only if a canceling call has targeted it.",
        of_each(lambda v, p: z3.Implies(v.live(p), iff(v.covered(p), v.reach(p) == CANCEL)))),
    StateClaim(
        "clear-is-final", "Every prompt that clear_queue has targeted is done with outcome canceled.",
        of_each(lambda v, p: z3.Implies(v.reach(p) == CLEAR,
                                        z3.And(v.state(p) == DONE, v.outcome(p) == CANCELED)))),
    StateClaim(
        "queue-is-uncovered", "No queued prompt is covered.",
        of_each(lambda v, p: z3.Implies(v.state(p) == QUEUED, z3.Not(v.covered(p))))),
    StateClaim(
        "entry-is-covered", "Every prompt in state canceled on entry is covered.",
        of_each(lambda v, p: z3.Implies(v.state(p) == CANCELED_ON_ENTRY, v.covered(p)))),
    StateClaim(
        "canceled-is-reached", "A prompt that ended canceled was targeted by a canceling call or by clear_queue.",
        of_each(lambda v, p: z3.Implies(v.outcome(p) == CANCELED, v.reach(p) != NOTHING))),
    StateClaim(
        "one-end", "A finished prompt has one outcome and one terminal event; an unfinished prompt has neither.",
        of_each(lambda v, p: z3.And(iff(v.state(p) == DONE, v.outcome(p) != NONE),
                                    v.ends(p) == z3.If(v.state(p) == DONE, 1, 0)))),
    StateClaim(
        "one-active", "A session has at most one active prompt.",
        lambda u, v: u.every_pair(lambda p, q: z3.Implies(
            z3.And(v.state(p) == ACTIVE, v.state(q) == ACTIVE, v.home(p) == v.home(q)), p == q))),
    StateClaim(
        "folded-has-no-id", "No folded prompt has a run id.",
        of_each(lambda v, p: z3.Implies(v.outcome(p) == FOLDED, z3.Not(v.run_id(p))))),
    StateClaim(
        "queue-has-a-turn", "If a prompt is queued, its session has an active prompt or is held.",
        lambda u, v: u.every_prompt(lambda p: z3.Implies(v.state(p) == QUEUED, z3.Or(
            v.held(v.home(p)), u.some_prompt(lambda q: v.is_in(q, v.home(p), ACTIVE)))))),
    StateClaim(
        "places-given", "The number stored for a prompt's last move to the front is 0 or has been assigned.",
        lambda u, v: z3.And(v.wishes >= 0, u.every_prompt(lambda p: z3.Implies(v.state(p) != ABSENT, z3.And(
            v.front(p) >= 0, v.place(p) >= 0, v.place(p) <= v.wishes))))),
    StateClaim(
        "order-as-called", "Unfinished prompts are ordered as the calls require: the prompt most recently moved to the "
        "front first, then by seq.",
        lambda u, v: u.every_pair(lambda p, q: z3.Implies(
            z3.And(v.live(p), v.live(q), v.home(p) == v.home(q)), iff(v.ahead(p, q), v.wished_ahead(p, q))))),
    StateClaim(
        "held-as-called", "A session is held if and only if a hold followed the last resume.",
        lambda u, v: u.every_session(lambda s: iff(v.held(s), v.told(s)))),
    StateClaim(
        "text-as-called", "Every unfinished prompt has the last text that the server accepted for it.",
        of_each(lambda v, p: z3.Implies(v.live(p), v.version(p) == v.wanted(p)))),
    StateClaim(
        "begun-is-known", "If texts can be replaced, the server knows which unfinished prompts have started.",
        of_each(lambda v, p: z3.Implies(z3.And(FEATURES.replace, v.live(p)), iff(v.begun(p), v.ran(p))))),
    StateClaim(
        "interrupt-is-news", "Since a pending interrupt was accepted, no turn of its session has folded a prompt.",
        lambda u, v: u.every_pair(lambda p, q: z3.And(
            z3.Implies(v.state(p) != ABSENT, v.heard(p) <= v.latest),
            z3.Implies(z3.And(v.live(p), v.live(q), v.home(p) == v.home(q), v.urgent(q), v.state(q) == ACCEPTED,
                              v.reach(q) == NOTHING), v.heard(p) < v.seq(q))))),
    StateClaim("unused-is-unset", "If the protocol lacks an optional call, the state of that call keeps its initial "
               "value.",
               lambda u, v: z3.And(u.every_session(lambda s: z3.Implies(v.held(s), FEATURES.hold)),
                                   u.every_prompt(lambda p: z3.Implies(v.state(p) != ABSENT, _unset(v, p))),
                                   u.every_question(lambda x: z3.Implies(v.status(x) != UNASKED, FEATURES.ask)))),
    StateClaim(
        "open-is-running", "A prompt with an open question or unused permission is active and not canceled.",
        lambda u, v: u.every_question(lambda x: z3.Implies(one_of(v.status(x), OPEN, ALLOWED), z3.And(
            v.state(v.owner(x)) == ACTIVE, v.reach(v.owner(x)) != CANCEL)))),
    StateClaim(
        "asks-as-called", "Every question has the state that calls gave it.",
        lambda u, v: u.every_question(lambda x: v.status(x) == v.called(x))),
    StateClaim(
        "told-is-open", "Subscribers know which questions are open.",
        lambda u, v: u.every_question(lambda x: iff(v.believed(x), v.status(x) == OPEN))),
)


def _unset(v: View, p: Term) -> Term:
    f = FEATURES
    return z3.And(
        z3.Implies(v.revoked(p), z3.Or(f.revoke, f.stop, f.interrupt)),
        z3.Implies(z3.Or(v.front(p) != 0, v.place(p) != 0), z3.Or(f.next, f.interrupt)),
        z3.Implies(z3.Or(v.version(p) != 0, v.begun(p)), f.replace), z3.Implies(v.urgent(p), f.interrupt))


# --- consequences

def at_rest(u: Universe, v: View) -> Term:
    """The system is quiescent: none of its own actions (enter, fail, settle, step, finish, recover) is enabled."""
    return z3.And(z3.Not(v.down), u.every_prompt(
        lambda p: z3.Not(one_of(v.state(p), ACCEPTED, CANCELED_ON_ENTRY, ACTIVE))))


def _is_parked(v: View, p: Term) -> Term:
    return z3.And(FEATURES.hold, v.state(p) == QUEUED, v.told(v.home(p)))


CONSEQUENCES: tuple[StateClaim, ...] = (
    StateClaim(
        "on-entry-is-reached", "Every prompt in state canceled on entry was targeted by a canceling call.",
        of_each(lambda v, p: z3.Implies(v.state(p) == CANCELED_ON_ENTRY, v.reach(p) == CANCEL))),
    StateClaim(
        "rest-is-done", "At quiescence every prompt is done or is queued in a held session.",
        lambda u, v: z3.Implies(at_rest(u, v), u.every_prompt(lambda p: z3.Or(
            one_of(v.state(p), ABSENT, DONE), _is_parked(v, p))))),
    StateClaim(
        "rest-is-told", "At quiescence every prompt has its terminal event or is queued in a held session.",
        lambda u, v: z3.Implies(at_rest(u, v), u.every_prompt(lambda p: z3.Implies(
            v.state(p) != ABSENT, z3.Or(v.ends(p) == 1, _is_parked(v, p)))))),
)

# By property id: the claims that together make up the property, once the whole invariant is proved.
GUARANTEES: Mapping[str, tuple[str, ...]] = {
    "no-poisoning": ("canceled-is-reached", "on-entry-is-reached", "interrupt-stops-no-later"),
    "no-late-fold": ("stopping-folds-nobody", "nobody-folds-past"),
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
    "revoke-exact": ("revoke-is-exact",),
    "keeps-queue": ("stop-keeps-others",),
    "stop-heard": ("stop-is-heard",),
    "held": ("held-waits",),
    "edited": ("latest-text",),
    "send-now": ("interrupt-is-heard",),
    "reject": ("reject-finds-nobody",),
    "no-late-approval": ("tool-needs-permission", "withdrawn-takes-no-answer"),
    "tool-once": ("tool-starts-once",),
    "one-answer": ("first-answer-wins",),
    "answer-exact": ("answer-is-exact", "asked-once"),
    "answer-heard": ("answer-is-heard", "asks-as-called"),
    "ask-settled": ("open-is-running", "told-is-open", "one-end-each"),
    "may-have-run": ("started-is-reported",),
}

# What a guarantee needs beyond its claims, and what the solver does not show.
REMARKS: Mapping[str, str] = {
    "attribution": "In the proof, an event names the prompt whose text it carries. The text itself exists only in the "
                   "runtime.",
    "all-done": "At quiescence the server is up, and no prompt is accepted, canceled on entry or active. Tests in "
                "small universes check that these are exactly the states in which the system has no action left.",
    "progress": "The sum of the ranks of all prompts and questions, plus 1 if the server is down, decreases with every "
                "step that the system takes on its own, and it cannot decrease forever. That there are finitely many "
                "prompts and questions is argued outside the logic.",
}

# What is not proved, and why.
UNPROVED: Mapping[str, str] = {
    "delivery": "it is about subscribers and the log, which this model leaves out; `cancelmark revisions` explores a "
                "separate small model of delivery, within bounds",
}
