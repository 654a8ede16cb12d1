"""The bugs of model/variants/bugs.py once more, in the language of the proof, each with the claims that it must break.

A claim that is broken comes with a counterexample to induction. A bug declares all of them, no more and no less.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import z3

from cancelmark.model.proof import actions as a
from cancelmark.model.proof.actions import ACTIONS, Action, count, only
from cancelmark.model.proof.logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    CANCELED,
    CANCELED_ON_ENTRY,
    DONE,
    END_TURN,
    ERROR,
    FOLDED,
    QUEUED,
    Seen,
    Universe,
    View,
    one_of,
    put,
)


@dataclass(frozen=True)
class ProofBug:
    name: str  # as in model/variants/bugs.py
    action: Action
    breaks: frozenset[str]
    never: tuple[str, ...]  # moves that no longer happen


class Bugs(list[ProofBug]):
    """Bugs, in the order in which they were added."""

    def add(
        self, name: str, action: str, breaks: str, never: tuple[str, ...] = (),
    ) -> Callable[[Callable[..., Any]], None]:
        """Adds a bug: another way to take the action."""
        def add(take: Callable[..., Any]) -> None:
            right = next(x for x in ACTIONS if x.name == action)
            self.append(ProofBug(name, replace(right, take=take), frozenset(breaks.split()), never))

        return add


BUGS = Bugs()
bug = BUGS.add


# --- entry

def entering(u: Universe, v: View, p: Any, busy: Any, goes_to: Any) -> Any:
    where, guard, after, seen = a.enter(u, v, p, busy)
    return where, guard, after.put(p, state=goes_to, begun=a.has_begun(v, p, goes_to == ACTIVE)), replace(
        seen, started=only(p, goes_to == ACTIVE))


@bug("the mark is not asked on entry", "enter", "queue-is-uncovered reached-never-starts",
     never=("enter: accepted → canceled_on_entry",))
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, z3.If(busy, QUEUED, ACTIVE))


@bug("busy is asked before the mark", "enter", "queue-is-uncovered")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    return entering(u, v, p, busy, z3.If(busy, QUEUED, z3.If(v.covered(p), CANCELED_ON_ENTRY, ACTIVE)))


@bug("a prompt without a run id does not wait", "enter", "one-active first-comes-first held-waits")
def _(u: Universe, v: View, p: Any, busy: Any) -> Any:
    waits = z3.And(busy, v.run_id(p))
    return entering(u, v, p, busy, z3.If(v.covered(p), CANCELED_ON_ENTRY, z3.If(waits, QUEUED, ACTIVE)))


@bug("a prompt that cannot start ignores the mark", "fail", "reached-ends-canceled",
     never=("fail: accepted → canceled_on_entry",))
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, _, _ = a.fail(u, v, p)
    return where, guard, v.put(p, state=DONE, outcome=ERROR), Seen(published=count(only(p)))


@bug("nothing is written for a prompt canceled on entry", "settle", "record-is-written")
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, after, _ = a.settle(u, v, p)
    return where, guard, after, Seen(published=count(only(p)))


@bug("a canceled prompt is tried again", "settle", "along-rows system-descends",
     never=("settle: canceled_on_entry → done",))
def _(u: Universe, v: View, p: Any) -> Any:
    where, guard, _, _ = a.settle(u, v, p)
    return where, guard, v.put(p, state=ACCEPTED), Seen()


# --- cancel, clear_queue, close

def with_mark(u: Universe, v: View, session: Any, mark: Any, take: Any = a.cancel) -> Any:
    where, guard, after, seen = take(u, v, session)
    return where, guard, replace(after, mark=lambda s: z3.If(s == session, mark, v.mark(s))), seen


@bug("the mark is one too high", "cancel", "mark-given")
def _(u: Universe, v: View, session: Any) -> Any:
    return with_mark(u, v, session, v.latest + 1)


@bug("the mark is one too low", "cancel", "covered-is-reached entry-is-covered mark-rises")
def _(u: Universe, v: View, session: Any) -> Any:
    return with_mark(u, v, session, z3.If(v.latest > 0, v.latest - 1, 0))


@bug("a cancel does not ask the running turn to stop", "cancel", "running-is-asked")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, after, replace(seen, stopped=Seen().stopped)


def cancel_keeps_queue(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, replace(after, state=v.state, outcome=v.outcome), replace(seen, published=Seen().published)


for name in ("a cancel leaves the queue", "a cancel leaves the queue to the next handoff"):  # the cancel is the same
    bug(name, "cancel", "queue-is-uncovered queue-is-dropped", never=("cancel: queued → done",))(cancel_keeps_queue)


@bug("a cancel drops the queue in silence", "cancel", "one-end")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, after, replace(seen, published=Seen().published)


@bug("a cancel publishes the end of a turn that still runs", "cancel", "one-end own-text")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, after, replace(seen, published=count(
        lambda p: z3.And(v.home(p) == session, one_of(v.state(p), QUEUED, ACTIVE))))


@bug("a cancel ends what is queued with an error", "cancel", "reached-ends-canceled queue-is-dropped along-rows",
     never=("cancel: queued → done",))
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, replace(after, outcome=lambda p: z3.If(
        v.is_in(p, session, QUEUED), ERROR, v.outcome(p))), seen


@bug("an idle cancel asks for something", "cancel", "idle-cancel")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.cancel(u, v, session)
    return where, guard, after, replace(seen, recorded=lambda p: v.is_in(p, session, DONE))


@bug("a cancel reaches every session", "cancel", "apart")
def _(u: Universe, v: View, session: Any) -> Any:
    after, seen = a.canceled(v, lambda s: z3.BoolVal(True))
    return session, z3.BoolVal(True), after, seen


@bug("clear_queue raises the mark", "clear_queue", "covered-is-reached")
def _(u: Universe, v: View, session: Any) -> Any:
    return with_mark(u, v, session, v.latest, a.clear_queue)


@bug("clear_queue asks the running turn to stop", "clear_queue", "running-is-asked")
def _(u: Universe, v: View, session: Any) -> Any:
    where, guard, after, seen = a.clear_queue(u, v, session)
    return where, guard, after, replace(
        seen, stopped=lambda p: z3.And(v.is_in(p, session, ACTIVE), z3.Not(v.covered(p))))


@bug("clear_queue leaves prompts with a run id", "clear_queue", "clear-is-final")
def _(u: Universe, v: View, session: Any) -> Any:
    def dropped(p: Any) -> Any:
        return z3.And(v.is_in(p, session, QUEUED), z3.Not(v.run_id(p)))

    where, guard, cleared, _ = a.clear_queue(u, v, session)
    return where, guard, replace(a.ended(v, dropped, CANCELED), reach=cleared.reach), Seen(published=count(dropped))


@bug("a closing server accepts", "accept", "closed-is-closed")
def _(u: Universe, v: View, p: Any, session: Any, **told: Any) -> Any:
    _, guard, _, _ = a.accept(u, replace(v, closing=z3.BoolVal(False)), p, session, **told)
    where, _, after, seen = a.accept(u, v, p, session, **told)
    return where, guard, after, seen


@bug("a close is forgotten", "close", "closed-is-closed")
def _(u: Universe, v: View) -> Any:
    where, guard, after, seen = a.close(u, v)
    return where, guard, replace(after, closing=v.closing), seen


# --- the turn, the queue, the handoff

@bug("a step folds prompts with a run id", "step", "folded-has-no-id ids-are-not-folded")
def _(u: Universe, v: View, p: Any) -> Any:
    def folds(q: Any) -> Any:
        return v.is_in(q, v.home(p), QUEUED)

    where, guard, _, _ = a.take_in(u, v, p)
    return where, guard, a.ended(v, folds, FOLDED), Seen(folded=folds, takes_in=only(p), published=count(folds))


def not_covered(v: View, p: Any) -> View:
    """The same state, in which that prompt has not been canceled."""
    return replace(v, revoked=put(v.revoked, p, z3.BoolVal(False)),
                   mark=put(v.mark, v.home(p), z3.If(v.mark(v.home(p)) < v.seq(p), v.mark(v.home(p)), v.seq(p) - 1)))


@bug("a stopping turn folds", "step", "stopping-folds-nobody")
def _(u: Universe, v: View, p: Any) -> Any:
    where, _, after, seen = a.take_in(u, v, p)
    _, guard, _, _ = a.take_in(u, not_covered(v, p), p)
    return where, guard, after, seen


@bug("the last in the queue goes first", "finish", "first-comes-first")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    where, _, after, seen = a.finish(u, v, p, how, hands_off, first)
    backwards = replace(v, seq=lambda q: -v.seq(q), front=lambda q: -v.front(q))
    _, guard, _, _ = a.finish(u, backwards, p, how, hands_off, first)
    return where, z3.And(guard, z3.Implies(how == CANCELED, v.covered(p))), after, seen


@bug("an error does not hand off", "finish", "queue-has-a-turn")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    where, guard, after, seen = a.finish(u, v, p, how, hands_off, first)
    stays = z3.And(v.state(p) == ACTIVE, how == ERROR, z3.Not(hands_off))
    return where, z3.Or(z3.And(guard, how != ERROR), stays), after, seen


@bug("the next turn starts before the end is published", "finish", "end-before-start")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    where, guard, after, seen = a.finish(u, v, p, how, hands_off, first)
    return where, guard, after, replace(seen, late=hands_off)


@bug("an end carries its neighbour's text", "finish", "own-text")
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    where, guard, after, seen = a.finish(u, v, p, how, hands_off, first)
    return where, guard, after, replace(seen, carries=lambda q: z3.If(hands_off, first, q))


@bug("turns never end in an error", "finish", "",
     never=("finish: active → done",))
def _(u: Universe, v: View, p: Any, how: Any, hands_off: Any, first: Any) -> Any:
    return a.finish(u, v, p, z3.If(how == ERROR, END_TURN, how), hands_off, first)


# --- crash and recovery

@bug("recovery forgets the queue", "recover", "nobody-vanishes along-rows",
     never=("recover: queued → active",))
def _(u: Universe, v: View, first: Any) -> Any:
    without = replace(v, state=lambda p: z3.If(v.state(p) == QUEUED, ABSENT, v.state(p)))
    return a.recover(u, without, first)


@bug("a crash forgets what was accepted", "crash", "nobody-vanishes along-rows")
def _(u: Universe, v: View) -> Any:
    where, guard, after, seen = a.crash(u, v)
    return where, guard, replace(
        after, state=lambda p: z3.If(v.state(p) == ACCEPTED, ABSENT, v.state(p))), seen


@bug("recovery forgets the mark", "recover", "covered-is-reached entry-is-covered reached-never-starts mark-rises")
def _(u: Universe, v: View, first: Any) -> Any:
    return a.recover(u, replace(v, mark=lambda s: z3.IntVal(0)), first)


@bug("recovery runs a stopped turn again", "recover",
     "reached-never-starts first-comes-first begun-is-known started-is-reported",
     never=("recover: active → done", "recover: accepted → canceled_on_entry", "recover: accepted → queued",
            "recover: accepted → active", "recover: queued → active", "recover: open → withdrawn",
            "recover: allowed → void"))
def _(u: Universe, v: View, first: Any) -> Any:
    return None, z3.BoolVal(True), replace(v, down=z3.BoolVal(False)), Seen(started=lambda p: v.state(p) == ACTIVE)


@bug("a cancel ends the active prompt and starts the next", "cancel",
     "queue-is-uncovered queue-is-dropped reached-never-starts along-rows begun-is-known held-waits",
     never=("cancel: queued → done",))
def _(u: Universe, v: View, session: Any) -> Any:
    def stops(p: Any) -> Any:
        return v.is_in(p, session, ACTIVE)

    def starts(p: Any) -> Any:
        return z3.And(u.some_prompt(stops), a.is_first(u, v, session, p))

    where, guard, after, seen = a.cancel(u, v, session)
    ended = a.ended(v, stops, CANCELED)
    return where, guard, *a.settled(v, stops, replace(
        ended, mark=after.mark, reach=after.reach, state=lambda p: z3.If(starts(p), ACTIVE, ended.state(p))), Seen(
            started=starts, stopped=seen.stopped, published=count(stops)))
