"""The mistakes of model/variants/mistakes.py in the language of the proof, each with the claims that it breaks.

Mistakes that need a memory or a step of their own are not here: the proof has no word for either.
"""

from dataclasses import replace
from typing import Any

import z3

from cancelmark.model.proof import actions as a
from cancelmark.model.proof.actions import only
from cancelmark.model.proof.logic import (
    ACCEPTED,
    ACTIVE,
    QUEUED,
    REJECT,
    Seen,
    Universe,
    View,
    one_of,
    put,
)

from .seeded_proof import Bugs

NO, ZERO = z3.BoolVal(False), z3.IntVal(0)
FAMILY_BUGS = Bugs()
bug = FAMILY_BUGS.add


def released(v: View) -> View:
    """The same state, in which nothing is held."""
    return replace(v, held=lambda _: NO)


# --- revoke and stop

def raise_mark(v: View, after: View, p: Any, when: Any = True) -> View:
    mark, session = v.mark(v.home(p)), v.home(p)
    return replace(after, mark=put(v.mark, session, z3.If(z3.And(when, v.seq(p) > mark), v.seq(p), mark)))


@bug("revoke raises the mark", "revoke", "covered-is-reached queue-is-uncovered revoke-is-exact")
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, after, seen = a.revoke(u, v, p)
    return where, guard, raise_mark(v, after, p), seen


@bug("revoke looks at the queue and the turn only", "revoke", "covered-is-reached revoke-is-exact")
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, after, seen = a.revoke(u, v, p)
    return where, guard, after.put(p, revoked=z3.If(v.state(p) == ACCEPTED, v.revoked(p), after.revoked(p))), seen


def forgetting(**forgotten: Any) -> Any:
    """A crash that forgets this of the prompts that wait."""
    def crash(u: Universe, v: View) -> Any:
        where, guard, after, seen = a.crash(u, v)

        def forget(field: str, value: Any) -> Any:
            before = getattr(v, field)
            return lambda p: z3.If(one_of(v.state(p), ACCEPTED, QUEUED), value, before(p))

        return where, guard, replace(after, **{f: forget(f, value) for f, value in forgotten.items()}), seen

    return crash


bug("revoke is answered before it is journaled", "crash", "covered-is-reached")(forgetting(revoked=NO))


@bug("stop asks only what is active", "stop", "covered-is-reached stop-is-heard")
def _(u: Universe, v: View, session: Any, holds: Any, finds: Any, whom: Any, **told: Any) -> Any:
    where, guard, after, seen = a.stop(u, v, session, holds, finds, whom, **told)
    return where, guard, after.put(
        whom, revoked=z3.If(v.state(whom) == ACCEPTED, v.revoked(whom), after.revoked(whom))), seen


@bug("stop raises the mark", "stop", "covered-is-reached queue-is-uncovered stop-keeps-others")
def _(u: Universe, v: View, session: Any, holds: Any, finds: Any, whom: Any, **told: Any) -> Any:
    where, guard, after, seen = a.stop(u, v, session, holds, finds, whom, **told)
    return where, guard, raise_mark(v, after, whom, finds), seen


# --- hold

@bug("hold is not asked on entry", "enter", "first-comes-first held-waits")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    _, guard, _, _ = a.enter(u, released(v), p, busy)
    where, _, after, seen = a.enter(u, v, p, busy)
    return where, guard, after, seen


@bug("hold is not asked when a turn ends", "finish", "held-waits")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    _, guard, _, _ = a.finish(u, released(v), p, how, hands_off, first)
    where, _, after, seen = a.finish(u, v, p, how, hands_off, first)
    return where, guard, after, seen


@bug("hold is not asked when a turn goes on", "requeue", "held-waits")
def _(u: Universe, v: View, p: Any, first: Any) -> Any:
    where, guard, after, seen = a.requeue(u, released(v), p, first)
    return where, guard, replace(after, held=v.held), seen


@bug("hold parks a turn that goes on", "requeue", "held-waits")
def _(u: Universe, v: View, p: Any, first: Any) -> Any:
    where, guard, after, seen = a.requeue(u, v, p, first)
    held = v.held(v.home(p))
    return where, guard, after.put(p, state=z3.If(held, QUEUED, after.state(p)), begun=z3.If(
        held, v.begun(p), after.begun(p))), replace(seen, started=only(first, z3.Not(held)))


@bug("recovery forgets the hold", "recover", "held-as-called held-waits")
def _(u: Universe, v: View, first: Any) -> Any:
    return a.recover(u, released(v), first)


@bug("a held queue folds", "step", "held-waits")
def _(u: Universe, v: View, p: Any) -> Any:
    _, guard, _, _ = a.take_in(u, released(v), p)
    where, _, after, seen = a.take_in(u, v, p)
    return where, guard, after, seen


@bug("resume forgets the handoff", "resume", "queue-has-a-turn", never=("resume: queued → active",))
def _(u: Universe, v: View, session: Any, hands_off: Any, first: Any) -> Any:
    where, guard, after, _ = a.resume(u, v, session, hands_off, first)
    return where, guard, replace(after, state=v.state, begun=v.begun), Seen()


@bug("cancel releases the hold", "cancel", "held-as-called idle-cancel")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, replace(after, held=put(v.held, session, NO)), seen


# --- replace and next

def replacing(u: Universe, v: View, p: Any, allowed: Any) -> Any:
    where, _, after, seen = a.replace_text(u, v, p)
    return where, z3.And(a.FEATURES.replace, allowed), after, seen


@bug("replace is taken after the start", "replace", "latest-text")
def _(u: Universe, v: View, p: Any) -> Any:
    return replacing(u, v, p, z3.And(v.live(p), z3.Not(v.covered(p))))


@bug("replace is taken by a prompt that was requeued", "replace", "latest-text")
def _(u: Universe, v: View, p: Any) -> Any:
    return replacing(u, v, p, a.waits(v, p))


@bug("replace deletes and inserts", "replace", "covered-is-reached order-as-called latest-text")
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, after, seen = replacing(u, v, p, z3.And(one_of(v.state(p), ACCEPTED, QUEUED), z3.Not(v.begun(p))))
    return where, guard, after.put(p, revoked=NO, front=ZERO), seen


bug("replace is not journaled", "crash", "text-as-called")(forgetting(version=ZERO))
bug("next is not journaled", "crash", "order-as-called")(forgetting(front=ZERO))


@bug("next queues what is accepted, covered or not", "next", "queue-is-uncovered queue-has-a-turn along-rows")
def _(u: Universe, v: View, p: Any, moves: Any, leader: Any) -> Any:
    where, _, after, seen = a.move_to_front(u, v, p, moves, leader)
    uncovered = replace(v, revoked=put(v.revoked, p, NO), mark=lambda _: ZERO)
    _, guard, _, _ = a.move_to_front(u, uncovered, p, moves, leader)
    return where, guard, after.put(p, state=QUEUED), seen


@bug("a turn that goes on goes to the front", "requeue", "first-comes-first",
     never=("requeue: active → queued", "requeue: queued → active"))
def _(u: Universe, v: View, p: Any, first: Any) -> Any:
    where, _, _, _ = a.requeue(u, v, p, first)
    return where, z3.And(v.state(p) == ACTIVE, z3.Not(v.covered(p)), first == p), *a.settled(
        v, only(p), a.starting(v, p), Seen(started=only(p)))


@bug("the handoff goes by seq", "finish", "first-comes-first")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    _, guard, _, _ = a.finish(u, replace(v, front=lambda _: ZERO), p, how, hands_off, first)
    where, _, after, seen = a.finish(u, v, p, how, hands_off, first)
    return where, guard, after, seen


# --- interrupt and reject

def entering(u: Universe, v: View, p: Any, busy: Any, stops: Any) -> Any:
    """An entry that stops others than it should."""
    where, guard, after, seen = a.enter(u, v, p, busy)

    def marks(q: Any) -> Any:
        return z3.And(v.urgent(p), stops(q), z3.Not(v.covered(q)))

    return where, guard, replace(after, revoked=lambda q: z3.Or(v.revoked(q), marks(q))), replace(
        seen, stopped=lambda q: z3.And(marks(q), v.state(q) == ACTIVE))


def may_follow(v: View, p: Any) -> Any:
    return z3.And(z3.Not(v.covered(p)), z3.Not(v.held(v.home(p))))


@bug("an interrupt decides where it is accepted", "enter", "covered-is-reached running-is-asked interrupt-is-heard")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, lambda q: NO)


@bug("an interrupt stops whoever is active", "enter",
     "covered-is-reached running-is-asked interrupt-stops-no-later")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, lambda q: z3.And(may_follow(v, p), v.is_in(q, v.home(p), ACTIVE)))


@bug("a covered interrupt interrupts", "enter",
     "covered-is-reached running-is-asked interrupt-stops-no-later")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, lambda q: z3.And(
        z3.Not(v.held(v.home(p))), v.is_in(q, v.home(p), ACTIVE), v.seq(q) < v.seq(p)))


@bug("an interrupt interrupts while held", "enter", "covered-is-reached running-is-asked")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, lambda q: z3.And(
        z3.Not(v.covered(p)), v.is_in(q, v.home(p), ACTIVE), v.seq(q) < v.seq(p)))


@bug("folding goes on while an interrupt is to enter", "step", "interrupt-is-news nobody-folds-past")
def _(u: Universe, v: View, p: Any) -> Any:
    _, guard, _, _ = a.take_in(u, replace(v, urgent=lambda _: NO), p)
    where, _, after, seen = a.take_in(u, v, p)
    return where, guard, after, seen


@bug("the place of an interrupt is given on entry", "accept", "order-as-called")
def _(u: Universe, v: View, p: Any, **told: Any) -> Any:
    where, guard, after, seen = a.accept(u, v, p, **told)
    return where, guard, after.put(p, front=ZERO), seen


@bug("an interrupt cancels all before it", "enter", "covered-is-reached queue-is-uncovered")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, lambda q: z3.And(
        may_follow(v, p), v.live(q), v.home(q) == v.home(p), v.seq(q) < v.seq(p)))


@bug("an interrupt starts beside the stopping turn", "enter", "one-active first-comes-first held-waits")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    where, guard, after, seen = a.enter(u, v, p, busy)
    starts = z3.And(z3.Not(v.covered(p)), z3.Or(v.urgent(p), z3.Not(busy)))
    return where, guard, after.put(p, state=z3.If(starts, ACTIVE, after.state(p)), begun=a.has_begun(v, p, starts)), \
        replace(seen, started=only(p, starts))


@bug("reject asks whether the session is busy", "accept", "reject-finds-nobody")
def _(u: Universe, v: View, p: Any, session: Any, mode: Any, **told: Any) -> Any:
    idle = replace(v, held=lambda _: NO, state=lambda q: z3.If(
        z3.And(mode == REJECT, v.state(q) != a.ABSENT, v.state(q) != ACTIVE), a.DONE, v.state(q)))
    _, guard, _, _ = a.accept(u, idle, p, session, mode=mode, **told)
    where, _, after, seen = a.accept(u, v, p, session, mode=mode, **told)
    return where, guard, after, seen


@bug("reject forgets the hold", "accept", "reject-finds-nobody")
def _(u: Universe, v: View, p: Any, **told: Any) -> Any:
    _, guard, _, _ = a.accept(u, released(v), p, **told)
    where, _, after, seen = a.accept(u, v, p, **told)
    return where, guard, after, seen
