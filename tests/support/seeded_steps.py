"""Seeded actions for the conjuncts of the step claims: each takes one more liberty than the protocol allows.

A bug declares the step claims that it breaks, no more and no less, and conjuncts of the invariant that are guarantees.
Together with the other seeded bugs, these break every conjunct of a claim by itself (model/proof/test_conjuncts.py).
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import z3

from cancelmark.model.proof import actions as a
from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    ALLOWED,
    CANCELED,
    CANCELED_ON_ENTRY,
    DENIED,
    DONE,
    END_TURN,
    ERROR,
    FEATURES,
    NO,
    NOTHING,
    OF_QUESTION,
    OPEN,
    QUEUED,
    RAN,
    REJECT,
    UNASKED,
    VOID,
    WITHDRAWN,
    Seen,
    Universe,
    View,
    one_of,
)

from .seeded_proof import Bugs

TAKE = {action.name: action.take for action in ACTIONS}
STEP_BUGS = Bugs()
bug = STEP_BUGS.add
Whom = Callable[[Universe, View, View, Any, Any], Any]  # before, after, the session of the step, and one prompt


def other(value: Any) -> Any:
    """Another value of the same sort."""
    if z3.is_bool(value):
        return z3.Not(value)
    if z3.is_int(value):
        return value + 1
    first, second = (value.sort().constructor(number)() for number in (0, 1))
    return z3.If(value == first, second, first)


def always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def everywhere(*_: Any) -> Any:
    return z3.BoolVal(True)


def is_in(state: Any) -> Whom:
    return lambda u, v, after, where, p: v.state(p) == state


def also(action: str, field: str, change: Callable[[Any], Any] = other, whom: Whom = everywhere) -> Any:
    """The action, which besides changes one field of the state, or of what it asks for."""
    def take(u: Universe, v: View, **told: Any) -> Any:
        where, guard, after, seen = TAKE[action](u, v, **told)
        part: Any = after if hasattr(after, field) else seen
        right = getattr(part, field)
        wrong = change(right) if z3.is_expr(right) else lambda x: z3.If(
            whom(u, v, after, where, x), change(right(x)), right(x))
        part = replace(part, **{field: wrong})
        return where, guard, *((part, seen) if isinstance(part, View) else (after, part))

    return take


# --- what must stay as it is

KEEPS = {"cancel": "apart idle-cancel", "stop": "apart idle-cancel stop-keeps-others",
         "revoke": "apart revoke-is-exact", "answer": "apart answer-is-exact"}
SAYS = dict.fromkeys(("seq", "home", "run_id", "urgent"), "nobody-vanishes") | {
    "state": "along-rows nobody-vanishes", "outcome": "along-rows one-end", "stopped": "running-is-asked",
    "takes_in": "stopping-folds-nobody",
    "started": "first-comes-first held-waits latest-text reached-never-starts",
    "folded": "held-waits ids-are-not-folded latest-text nobody-folds-past reached-never-starts"}
OF_SESSION = {"mark", "held", "told"}
OF_PROMPT = {name for name, value in vars(View.free(Universe())).items() if callable(value)} - {
    *OF_SESSION, *OF_QUESTION}
TOLD_OF_QUESTION = {"opened", "answered", "withdrawn", "tools", "unsure"}
OF_SEEN = {field.name for field in fields(Seen)} - {"carries", "said", "late", "overdue", *TOLD_OF_QUESTION}


def is_over(u: Universe, v: View, after: View, where: Any, p: Any) -> Any:
    """Done, and the observer has nothing to add if its turn starts or takes in another."""
    return z3.And(v.state(p) == DONE, v.ran(p), v.heard(p) == v.latest)


for action, kept in KEEPS.items():
    for field in sorted(OF_PROMPT - {"ends"} | OF_SEEN):
        final = "" if field in OF_SEEN - {"published"} else "an-end-is-final"
        bug(f"{action} touches {field} of what is done", action, f"{kept} {final} {SAYS.get(field, '')}")(
            also(action, field, whom=is_over))
    bug(f"{action} takes an end back", action, f"{kept} an-end-is-final")(
        also(action, "published", lambda n: n - 1, is_in(DONE)))

SAYS_OF_QUESTION = {
    "status": "asked-along", "owner": "asked-once", "called": "", "opened": "asked-once", "answered": "one-end-each",
    "withdrawn": "one-end-each", "tools": "tool-needs-permission tool-starts-once", "unsure": ""}
for action, kept in KEEPS.items():
    for field, says in SAYS_OF_QUESTION.items():
        bug(f"{action} touches {field} of a question of what is done", action, f"{kept} {says}")(
            also(action, field, whom=lambda u, v, after, where, x: z3.And(
                v.status(x) != UNASKED, v.state(v.owner(x)) == DONE)))

bug("cancel raises every mark", "cancel", "apart")(also("cancel", "mark"))
bug("cancel opens a closed server", "cancel", "closed-is-closed")(also("cancel", "closing"))
bug("accept closes the server", "accept", "closed-is-closed")(also("accept", "closing"))
for action in ("cancel", "clear_queue", "stop"):
    bug(f"{action} changes every hold", action, "apart idle-cancel")(also(action, "held"))
for action in ("cancel", "stop"):
    idle = "an-end-is-final idle-cancel" + " stop-keeps-others" * (action == "stop")
    bug(f"{action} touches what is done if another session is busy", action, idle)(also(
        action, "front", whom=lambda u, v, after, where, p: z3.And(
            v.home(p) == where, v.state(p) == DONE,
            u.some_prompt(lambda q: z3.And(v.live(q), v.home(q) != where)))))
    bug(f"{action} touches what is done if a prompt is still to come", action, idle)(also(
        action, "front", whom=lambda u, v, after, where, p: z3.And(
            v.home(p) == where, v.state(p) == DONE, u.some_prompt(lambda q: v.is_in(q, where, ABSENT)))))


# --- moves

bug("cancel loses the queue", "cancel", "along-rows apart nobody-vanishes own-text queue-is-dropped")(
    also("cancel", "state", always(ABSENT), is_in(QUEUED)))
bug("cancel keeps the queue, canceled", "cancel", "along-rows own-text queue-is-dropped")(
    also("cancel", "state", always(QUEUED), is_in(QUEUED)))
bug("cancel makes every end a canceled one", "cancel",
    "along-rows an-end-is-final apart canceled-is-reached idle-cancel")(
    also("cancel", "outcome", always(CANCELED), is_in(DONE)))
bug("cancel ends a prompt that is canceled on entry", "cancel", "along-rows apart reached-ends-canceled")(
    also("cancel", "outcome", always(END_TURN), is_in(CANCELED_ON_ENTRY)))
bug("clear_queue keeps the queue, canceled", "clear_queue", "along-rows clear-is-final own-text")(
    also("clear_queue", "state", always(QUEUED), is_in(QUEUED)))
bug("clear_queue ends the queue with an error", "clear_queue", "along-rows apart clear-is-final")(
    also("clear_queue", "outcome", always(ERROR), is_in(QUEUED)))
bug("enter ends the queue in silence", "enter", "along-rows apart end-before-start")(
    also("enter", "state", always(DONE), is_in(QUEUED)))
for action, state in {"enter": ACCEPTED, "fail": ACCEPTED, "settle": CANCELED_ON_ENTRY, "step": QUEUED,
                      "finish": ACTIVE}.items():
    broken = "along-rows own-text " * (action != "enter") + "system-descends"
    bug(f"{action} moves nothing", action, broken)(
        also(action, "state", always(state), is_in(state)))
bug("enter brings back what is done", "enter", "along-rows an-end-is-final apart system-descends")(
    also("enter", "state", always(ACCEPTED), is_in(DONE)))
bug("recover stays down", "recover", "system-descends")(
    also("recover", "down"))


def handing_off(u: Universe, v: View, front: Any, how: Any, p: Any, **told: Any) -> Any:
    """A finish that hands off to the last, by seq, of those with the highest front."""
    where, _, after, seen = a.finish(u, v, how=how, p=p, **told)
    _, guard, _, _ = a.finish(u, replace(v, front=front, seq=lambda q: -v.seq(q)), how=how, p=p, **told)
    return where, z3.And(guard, z3.Implies(how == CANCELED, v.covered(p))), after, seen


@bug("where calls can move prompts, the last of those that none has moved goes first", "finish", "first-comes-first")
def _(u: Universe, v: View, **told: Any) -> Any:
    where, guard, after, seen = handing_off(u, v, v.place, **told)
    return where, z3.And(guard, FEATURES.next), after, seen


@bug("the last goes first, as if a call had moved it", "finish", "first-comes-first")
def _(u: Universe, v: View, first: Any, hands_off: Any, **told: Any) -> Any:
    where, guard, after, seen = handing_off(u, v, always(z3.IntVal(0)), first=first, hands_off=hands_off, **told)
    return where, guard, after.put(first, place=z3.If(hands_off, v.wishes + 1, after.place(first))), seen


@bug("replace is taken after the end", "replace", "an-end-is-final latest-text")
def _(u: Universe, v: View, p: Any) -> Any:
    where, _, after, seen = a.replace_text(u, v, p)
    return where, z3.And(FEATURES.replace, v.state(p) == DONE, z3.Not(v.ran(p)), v.reach(p) == NOTHING), after, seen


@bug("reject asks for the hold only", "accept", "reject-finds-nobody")
def _(u: Universe, v: View, mode: Any, **told: Any) -> Any:
    idle = replace(v, state=lambda q: z3.If(z3.And(mode == REJECT, v.live(q)), DONE, v.state(q)))
    _, guard, _, _ = a.accept(u, idle, mode=mode, **told)
    where, _, after, seen = a.accept(u, v, mode=mode, **told)
    return where, guard, after, seen


# --- who is in front of a stop

def is_in_front(doctor: Callable[[View, Any, Any], View], ahead: Any = View.wished_ahead) -> Whom:
    """In front, if the state were the doctored one."""
    return lambda u, v, after, where, p: a.in_front(
        u, doctor(v, where, p), where, p, after.told, lambda q, r: ahead(v, q, r))


def as_it_is(v: View, where: Any, p: Any) -> View:
    return v


def with_state(v: View, of: Any, state: Any) -> View:
    return replace(v, state=lambda q: z3.If(of(q), state, v.state(q)))


def with_home(v: View, of: Any, session: Any) -> View:
    return replace(v, home=lambda q: z3.If(of(q), session, v.home(q)))


for what, breaks, touched in (
    ("the active prompt of any session", "apart", is_in(ACTIVE)),
    ("what is to enter another session", "apart", is_in_front(
        lambda v, where, p: with_home(v, lambda q: z3.And(q == p, v.state(q) == ACCEPTED), where))),
    ("what is not to enter", "an-end-is-final idle-cancel", is_in_front(
        lambda v, where, p: with_state(v, lambda q: q == p, ACCEPTED))),
    ("what is to enter beside a turn", "", is_in_front(
        lambda v, where, p: with_state(v, lambda q: v.state(q) == ACTIVE, DONE))),
    ("what is to enter behind what was moved", "", is_in_front(
        as_it_is, lambda v, p, q: z3.And(v.place(p) == v.place(q), v.seq(p) < v.seq(q)))),
    ("what is to enter, by seq not the first", "", is_in_front(as_it_is, lambda v, p, q: v.place(p) > v.place(q))),
):
    bug(f"stop touches {what}", "stop", f"stop-keeps-others {breaks}")(also("stop", "front", whom=touched))
bug("stop forgets that the session is held", "stop", "stop-is-heard stop-keeps-others")(also("stop", "told"))


def missing(reached: Whom) -> Any:
    """A stop that reaches only those."""
    return also("stop", "revoked", always(NO), lambda u, v, after, where, p: z3.And(
        z3.Not(v.revoked(p)), z3.Not(reached(u, v, after, where, p))))


for what, reached in {
    "what is active": is_in(ACCEPTED),
    "what is to enter while another session is busy": is_in_front(
        lambda v, where, p: with_home(v, lambda q: v.state(q) == ACTIVE, where)),
    "what is to enter after one of another session": is_in_front(
        lambda v, where, p: with_home(v, lambda q: v.state(q) == ACCEPTED, where)),
    "what is to enter after what is done": is_in_front(
        lambda v, where, p: with_state(v, lambda q: v.state(q) != ACTIVE, ACCEPTED)),
    "what was moved past an earlier one": is_in_front(
        as_it_is, lambda v, p, q: z3.Or(v.place(p) > v.place(q), v.seq(p) < v.seq(q))),
}.items():
    bug(f"stop misses {what}", "stop", "stop-is-heard")(missing(reached))


# --- questions

def was(*statuses: Any) -> Whom:
    return lambda u, v, after, where, x: one_of(v.status(x), *statuses)


bug("cancel withdraws what was denied", "cancel", "asked-along apart idle-cancel")(
    also("cancel", "status", always(WITHDRAWN), was(DENIED)))
bug("cancel voids what was denied", "cancel", "asked-along apart idle-cancel")(
    also("cancel", "status", always(VOID), was(DENIED)))
bug("cancel denies what is open", "cancel", "asked-along apart")(also("cancel", "status", always(DENIED), was(OPEN)))
bug("cancel uses permissions up", "cancel", "asked-along apart")(also("cancel", "status", always(RAN), was(ALLOWED)))
bug("enter opens what was denied", "enter", "asked-along apart system-descends")(
    also("enter", "status", always(OPEN), was(DENIED)))


@bug("enter withdraws the questions of the running turn", "enter", "asks-as-called")
def _(u: Universe, v: View, **told: Any) -> Any:
    where, guard, after, seen = a.enter(u, v, **told)
    return where, guard, *a.settled(v, lambda p: v.is_in(p, where, ACTIVE), after, seen)


def of_the_turn(*statuses: Any) -> Whom:
    """A question in these states, of the active prompt of the session."""
    return lambda u, v, after, where, x: z3.And(
        one_of(v.status(x), *statuses), v.is_in(v.owner(x), where, ACTIVE))


bug("hold starts the tools that were denied", "hold", "tool-needs-permission")(
    also("hold", "tools", always(z3.IntVal(1)), of_the_turn(DENIED)))
bug("hold publishes open questions again", "hold", "asked-once")(
    also("hold", "opened", always(z3.BoolVal(True)), of_the_turn(OPEN)))
bug("an answer writes the messages of the prompt", "answer", "answer-is-exact")(
    also("answer", "recorded", always(z3.BoolVal(True)), lambda u, v, after, where, p: v.is_in(p, where, ACTIVE)))
bug("an allow is published as a deny", "answer", "answer-is-heard")(
    also("answer", "answered", lambda given: z3.If(given == ALLOWED, DENIED, given)))


def late_answer(says: Any, *statuses: Any) -> Any:
    """An answer that is taken in these states, and published or not."""
    def take(u: Universe, v: View, x: Any, allows: Any) -> Any:
        where, _, after, seen = a.answer(u, v, x, allows)
        return where, one_of(v.status(x), *statuses), after, seen if says else Seen()

    return take


for what, status in (("denied", DENIED), ("started", RAN)):
    bug(f"a question is answered although its tool was {what}", "answer",
        "asked-along first-answer-wins one-end-each")(late_answer(True, status))
bug("an answer to what was denied is taken in silence", "answer", "asked-along first-answer-wins")(
    late_answer(False, DENIED))
bug("an answer to a void permission is taken", "answer", "asked-along one-end-each withdrawn-takes-no-answer")(
    late_answer(True, VOID))
bug("an answer withdraws the question too", "answer", "one-end-each")(
    also("answer", "withdrawn", always(z3.BoolVal(True)), lambda u, v, after, where, x: z3.And(
        v.status(x) == OPEN, after.status(x) != OPEN)))
for action in KEEPS:
    bug(f"{action} publishes open questions again", action,
        f"asked-once {KEEPS[action].replace('idle-cancel', '')}")(
            also(action, "opened", always(z3.BoolVal(True)), lambda u, v, after, where, x: z3.And(
                v.status(x) == OPEN, after.status(x) == OPEN)))
bug("an answer raises the mark", "answer", "answer-is-exact")(
    also("answer", "mark", whom=lambda u, v, after, where, s: s == where))
bug("an allowed tool starts twice", "run", "tool-starts-once")(also("run", "tools", lambda n: 2 * n))


@bug("an answer makes the tool one that has started", "answer", "asked-along")
def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
    where, guard, after, seen = a.answer(u, v, x, allows)
    return where, guard, after.put(x, status=RAN, called=RAN), seen
