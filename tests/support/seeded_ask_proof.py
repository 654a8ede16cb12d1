"""The mistakes of model/variants/asking.py in the language of the proof, each with the claims that it breaks.

A mistake that counts the questions of a prompt is not here: the proof tells questions apart, and has no numbers.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import z3

from cancelmark.model.proof import actions as a
from cancelmark.model.proof.actions import ACTIONS, count, only
from cancelmark.model.proof.logic import (
    ACTIVE,
    ALLOWED,
    DENIED,
    DONE,
    NO,
    OPEN,
    RAN,
    UNASKED,
    WITHDRAWN,
    Seen,
    Universe,
    View,
    one_of,
    put,
)

from .seeded_proof import Bugs, not_covered

TAKE = {action.name: action.take for action in ACTIONS}
ASK_BUGS = Bugs()
bug = ASK_BUGS.add


def none(_: Any) -> Any:
    return NO


def keeping(action: str, *kept: Any, silent: bool = False) -> Callable[..., Any]:
    """The action, which leaves questions in these states as they are. If silent, it publishes no withdrawal."""
    def take(u: Universe, v: View, **told: Any) -> Any:
        where, guard, after, seen = TAKE[action](u, v, **told)
        status = after.status
        after = replace(after, status=lambda x: z3.If(one_of(v.status(x), *kept), v.status(x), status(x)))
        return where, guard, after, replace(seen, withdrawn=none) if silent else seen

    return take


def is_active(v: View, x: Any) -> Any:
    return v.state(v.owner(x)) == ACTIVE


def giving(v: View, answers: Any, allows: Any) -> tuple[View, Seen]:
    """The state in which these questions have that answer, and that it is published."""
    given = z3.If(allows, ALLOWED, DENIED)
    return replace(v, status=lambda y: z3.If(answers(y), given, v.status(y))), Seen(
        answered=lambda y: z3.If(answers(y), given, UNASKED))


def noted(u: Universe, v: View, after: View, x: Any, allows: Any) -> View:
    """The state with the history of an answer to x."""
    return replace(after, called=a.answer(u, v, x, allows)[2].called)


# --- calls that cancel

LEAVES_OPEN = "open-is-running asks-as-called"
for what, action in (("a cancel leaves the question open until the turn ends", "cancel"),
                     ("a close does not withdraw", "close"), ("a stop does not withdraw", "stop"),
                     ("a revoke does not withdraw", "revoke"), ("an interrupt does not withdraw", "enter")):
    bug(what, action, LEAVES_OPEN, never=(f"{action}: open → withdrawn", f"{action}: allowed → void"))(
        keeping(action, OPEN, ALLOWED, silent=True))
bug("a permission outlives the cancel", "cancel", LEAVES_OPEN, never=("cancel: allowed → void",))(
    keeping("cancel", ALLOWED))
bug("an answer after the cancel is taken", "cancel", f"{LEAVES_OPEN} told-is-open",
    never=("cancel: open → withdrawn", "cancel: allowed → void"))(keeping("cancel", OPEN, ALLOWED))
bug("a cancel withdraws in silence", "cancel", "told-is-open")(keeping("cancel", silent=True))


@bug("a canceled turn still asks", "ask", LEAVES_OPEN)
def _(u: Universe, v: View, p: Any, x: Any) -> Any:
    _, guard, _, _ = a.ask(u, not_covered(v, p), p, x)
    where, _, after, seen = a.ask(u, v, p, x)
    return where, guard, after, seen


# --- the end of the turn, and compaction

bug("the end of a turn leaves its question open", "finish", LEAVES_OPEN,
    never=("finish: open → withdrawn", "finish: allowed → void"))(keeping("finish", OPEN, ALLOWED, silent=True))


@bug("a question is withdrawn after the end is published", "finish", "one-end-each")
def _(u: Universe, v: View, **told: Any) -> Any:
    where, guard, after, seen = a.finish(u, v, **told)
    return where, guard, after, replace(seen, overdue=seen.withdrawn)


bug("a question survives compaction", "requeue", LEAVES_OPEN, never=("requeue: open → withdrawn",))(
    keeping("requeue", OPEN, silent=True))
bug("a permission survives compaction", "requeue", LEAVES_OPEN, never=("requeue: allowed → void",))(
    keeping("requeue", ALLOWED))


# --- which question an answer reaches

@bug("an answer goes to the question that is open now", "answer",
     "answer-is-exact answer-is-heard asks-as-called first-answer-wins withdrawn-takes-no-answer")
def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
    reached = z3.Const("reached", u.question)
    after, seen = giving(v, only(reached), allows)
    guard = z3.And(v.status(x) != UNASKED, v.status(reached) == OPEN, v.owner(reached) == v.owner(x))
    return v.home(v.owner(x)), guard, noted(u, v, after, x, allows), seen


def answering(name: str, breaks: str, also: Callable[[View, Any, Any], Any]) -> None:
    """Adds a bug: an answer that others of the open questions get as well."""
    @bug(name, "answer", breaks)
    def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
        where, guard, _, _ = a.answer(u, v, x, allows)
        after, seen = giving(v, lambda y: z3.And(v.status(y) == OPEN, also(v, x, y)), allows)
        return where, guard, noted(u, v, after, x, allows), seen


answering("one answer answers every open question", "answer-is-exact asks-as-called",
          lambda v, x, y: v.owner(y) == v.owner(x))
answering("a server has one slot for a question", "answer-is-exact apart asks-as-called",
          lambda v, x, y: z3.BoolVal(True))


@bug("a turn has one slot for a question", "ask", "asked-along asks-as-called told-is-open")
def _(u: Universe, v: View, p: Any, x: Any) -> Any:
    where, guard, after, seen = a.ask(u, v, p, x)
    lost = replace(v, status=lambda y: z3.If(
        z3.And(v.status(y) == OPEN, v.owner(y) == p), WITHDRAWN, v.status(y)))
    return where, guard, replace(after, status=put(lost.status, x, OPEN)), seen


# --- several answers, and expiry

def taking(name: str, breaks: str, when: Callable[[View, Any, Any], Any]) -> None:
    """Adds a bug: an answer that is taken on another condition."""
    @bug(name, "answer", breaks)
    def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
        where, _, after, seen = a.answer(u, v, x, allows)
        return where, z3.And(when(v, x, allows), is_active(v, x)), after, seen


taking("the last answer wins until the tool starts",
       "asked-along asks-as-called first-answer-wins one-end-each open-is-running",
       lambda v, x, allows: one_of(v.status(x), OPEN, ALLOWED, DENIED))
taking("a deny beats an earlier allow", "asked-along asks-as-called first-answer-wins one-end-each",
       lambda v, x, allows: z3.Or(v.status(x) == OPEN, z3.And(v.status(x) == ALLOWED, z3.Not(allows))))
taking("an answer after the timeout is taken",
       "asked-along asks-as-called one-end-each open-is-running withdrawn-takes-no-answer",
       lambda v, x, allows: one_of(v.status(x), OPEN, WITHDRAWN))


@bug("a late answer is confirmed as taken", "answer", "first-answer-wins one-end-each withdrawn-takes-no-answer")
def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
    where, _, after, seen = a.answer(u, v, x, allows)
    taken = z3.If(v.status(x) == OPEN, after.status(x), v.status(x))
    return where, z3.And(v.status(x) != UNASKED, is_active(v, x)), after.put(x, status=taken), seen


@bug("a timeout allows", "withdraw", "asked-along asks-as-called", never=("withdraw: open → withdrawn",))
def _(u: Universe, v: View, x: Any) -> Any:
    where, guard, after, seen = a.withdraw(u, v, x)
    return where, guard, after.put(x, status=ALLOWED), seen


# --- the tool

@bug("the tool runs while the question is open", "run", "asked-along told-is-open tool-needs-permission")
def _(u: Universe, v: View, x: Any) -> Any:
    where, _, after, seen = a.run(u, v, x)
    return where, one_of(v.status(x), OPEN, ALLOWED), after, seen


@bug("a permission is not used up", "run", "asks-as-called system-descends", never=("run: allowed → ran",))
def _(u: Universe, v: View, x: Any) -> Any:
    where, guard, after, seen = a.run(u, v, x)
    return where, guard, replace(after, status=v.status), seen


@bug("a deny stops the turn", "answer", "answer-is-exact covered-is-reached running-is-asked unused-is-unset")
def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
    where, guard, after, seen = a.answer(u, v, x, allows)
    p = v.owner(x)
    return where, guard, after.put(p, revoked=z3.Or(v.revoked(p), z3.Not(allows))), replace(
        seen, stopped=only(p, z3.Not(allows)))


# --- crashes


@bug("recovery does not report questions", "recover", "started-is-reported told-is-open")
def _(u: Universe, v: View, first: Any) -> Any:
    where, guard, after, seen = a.recover(u, v, first)
    return where, guard, after, replace(seen, withdrawn=none, unsure=none)


@bug("the start of a tool is not journaled before it", "crash", "asked-along asks-as-called open-is-running")
def _(u: Universe, v: View) -> Any:
    where, guard, after, seen = a.crash(u, v)
    return where, guard, replace(after, status=lambda x: z3.If(
        z3.And(v.status(x) == RAN, is_active(v, x)), ALLOWED, v.status(x))), seen


@bug("recovery runs what was allowed", "recover", "tool-needs-permission tool-starts-once")
def _(u: Universe, v: View, first: Any) -> Any:
    where, guard, after, seen = a.recover(u, v, first)
    return where, guard, after, replace(seen, tools=count(
        lambda x: z3.And(one_of(v.status(x), ALLOWED, RAN), is_active(v, x))))


@bug("a tool that did not start is reported after a crash", "recover", "started-is-reported")
def _(u: Universe, v: View, first: Any) -> Any:
    where, guard, after, seen = a.recover(u, v, first)
    return where, guard, after, replace(
        seen, unsure=lambda x: z3.And(one_of(v.status(x), ALLOWED, RAN), is_active(v, x)))


# --- holds, and a sixth state

@bug("a held session takes no answers", "answer", "answer-is-heard asks-as-called")
def _(u: Universe, v: View, x: Any, allows: Any) -> Any:
    where, guard, after, _ = a.answer(u, v, x, allows)
    _, seen = giving(v, only(x, z3.Not(v.held(where))), allows)
    return where, guard, after.put(x, status=z3.If(v.held(where), OPEN, after.status(x))), seen


@bug("a hold withdraws questions", "hold", "asked-along asks-as-called")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.hold(u, v, session)
    return where, guard, *a.settled(v, lambda p: v.is_in(p, session, ACTIVE), after, seen)


@bug("a turn that waits for an answer does not count as busy", "enter", "first-comes-first one-active")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    def asks(q: Any) -> Any:
        return u.some_question(lambda x: z3.And(v.status(x) == OPEN, v.owner(x) == q))

    _, guard, _, _ = a.enter(u, replace(v, state=lambda q: z3.If(
        z3.And(v.state(q) == ACTIVE, asks(q)), DONE, v.state(q))), p, busy)
    where, _, after, seen = a.enter(u, v, p, busy)
    return where, guard, after, seen
