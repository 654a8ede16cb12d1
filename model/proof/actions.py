"""The actions, written from the rules of specs/protocol.md: guard, state after the step, and effects.

The state after a step consists of terms over the state before it, so no frame axioms are needed. If a rule refers to
the first prompt in the queue, the action gets that prompt as a parameter, and its guard checks it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import z3

from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    ALLOWED,
    CANCEL,
    CANCELED,
    CANCELED_ON_ENTRY,
    CLEAR,
    DENIED,
    DONE,
    END_TURN,
    ERROR,
    FEATURES,
    FOLDED,
    INTERRUPT,
    MODE,
    NO,
    NONE,
    NOTHING,
    OPEN,
    OUTCOME,
    QUEUED,
    RAN,
    REJECT,
    UNASKED,
    VOID,
    WITHDRAWN,
    OfOne,
    Seen,
    Term,
    Universe,
    View,
    one_of,
    put,
)


class Step(NamedTuple):
    """One step: the state before and after, the effects, and the guard under which the step is possible."""

    universe: Universe
    action: str
    where: Term | None  # the session it applies to; None: all sessions
    guard: Term
    before: View
    after: View
    seen: Seen
    arguments: Mapping[str, Term] = {}  # the arguments of the action


@dataclass(frozen=True)
class Action:
    """An action with its parameters, by name, and the sort of each."""

    name: str
    rule: str
    parameters: Mapping[str, str]
    take: Callable[..., tuple[Term | None, Term, View, Seen]]  # where, guard, after, seen
    system: bool = False  # the system performs it unprompted: no caller, no fault, and no turn that asks to be requeued
    up: bool = True  # whether the server must be up, or down

    def step(self, universe: Universe, before: View, arguments: Mapping[str, Term]) -> Step:
        where, guard, after, seen = self.take(universe, before, **arguments)
        after_ran, after_heard = after.ran, after.heard
        # History: the number of terminal events. The protocol never reads it.
        after = replace(
            after, ends=lambda p: _at_most_two(before.ends(p) + seen.published(p)),
            ran=lambda p: z3.Or(after_ran(p), seen.started(p)),
            heard=lambda p: z3.If(seen.takes_in(p), before.latest, after_heard(p)),
            called=called_after(self.name, after, arguments), believed=lambda x: z3.Or(
                seen.opened(x), z3.And(before.believed(x), z3.Not(seen.closed(x)))))
        seen = replace(seen, said=after.version)
        return Step(universe, self.name, where, z3.And(before.down != self.up, guard), before, after, seen, arguments)

    def arguments(self, universe: Universe) -> dict[str, Term]:
        """Free symbols for its parameters."""
        return {name: z3.Function(name, universe.session, universe.prompt) if kind == "first"
                else z3.Const(name, _sort(universe, kind)) for name, kind in self.parameters.items()}


def _sort(universe: Universe, kind: str) -> Term:
    return {"prompt": universe.prompt, "session": universe.session, "question": universe.question,
            "yes": z3.BoolSort(), "outcome": OUTCOME, "mode": MODE}[kind]


def called_after(action: str, after: View, arguments: Mapping[str, Term]) -> OfOne:
    """History: what the calls have made of a question. Whatever cancels, ends or requeues its prompt settles it."""
    def is_settled(x: Term) -> Term:
        p = after.owner(x)
        goes_back = arguments["p"] == p if action == "requeue" else z3.BoolVal(False)
        return z3.Or(after.state(p) != ACTIVE, after.reach(p) == CANCEL, goes_back)

    return lambda x: z3.If(is_settled(x), settled_status(after.called(x)), after.called(x))


def settled_status(status: Term) -> Term:
    return z3.If(status == OPEN, WITHDRAWN, z3.If(status == ALLOWED, VOID, status))


def _at_most_two(n: Term) -> Term:
    return z3.If(n > 2, 2, n)


def only(prompt: Term, when: Term = True) -> OfOne:
    """A predicate that is true of at most that one prompt."""
    return lambda p: z3.And(p == prompt, when)


def count(says: OfOne) -> OfOne:
    return lambda p: z3.If(says(p), 1, 0)


# --- the lifecycle of a prompt

def accept(
    u: Universe, v: View, p: Term, session: Term, named: Term, mode: Term, leader: Term,
) -> tuple[Term, Term, View, Seen]:
    """R1: the next seq, if the server is not closing. R35: with reject, only if every prompt is done; with interrupt,
    to the front, ahead of the first of the unfinished prompts."""
    new = v.put(p, state=ACCEPTED, outcome=NONE, seq=v.latest + 1, home=session, run_id=named, reach=NOTHING,
                revoked=NO, front=z3.IntVal(0), version=z3.IntVal(0), begun=NO, urgent=mode == INTERRUPT,
                place=z3.IntVal(0), wanted=z3.IntVal(0), ran=NO, heard=z3.IntVal(0))
    idle = u.every_prompt(lambda q: z3.Not(z3.And(v.live(q), v.home(q) == session)))
    guard = z3.And(
        v.state(p) == ABSENT, z3.Not(v.closing),
        z3.Implies(mode == REJECT, z3.And(FEATURES.reject, idle, z3.Not(v.held(session)))),
        z3.If(mode == INTERRUPT, z3.And(FEATURES.interrupt, is_leader(u, new, session, leader)), leader == p))
    after = new.put(p, front=z3.If(mode == INTERRUPT, new.front(leader) + 1, 0),
                    place=z3.If(mode == INTERRUPT, v.wishes + 1, 0))
    return session, guard, replace(
        after, latest=v.latest + 1, wishes=v.wishes + z3.If(mode == INTERRUPT, 1, 0)), Seen()


def is_leader(u: Universe, v: View, session: Term, leader: Term) -> Term:
    """No unfinished prompt of the session has a higher front."""
    return z3.And(v.live(leader), v.home(leader) == session, u.every_prompt(lambda q: z3.Implies(
        z3.And(v.live(q), v.home(q) == session), v.front(q) <= v.front(leader))))


def enter(u: Universe, v: View, p: Term, busy: Term) -> tuple[Term, Term, View, Seen]:
    """R3 to R6: the mark is checked before busy. R35: an interrupt that is neither canceled nor held stops the active
    prompt, if that was accepted earlier."""
    def stops(q: Term) -> Term:
        return z3.And(v.urgent(p), z3.Not(v.covered(p)), z3.Not(v.held(v.home(p))), v.is_in(q, v.home(p), ACTIVE),
                      v.seq(q) < v.seq(p), z3.Not(v.covered(q)))

    goes_to = z3.If(v.covered(p), CANCELED_ON_ENTRY, z3.If(busy, QUEUED, ACTIVE))
    starts = goes_to == ACTIVE
    guard = z3.And(v.state(p) == ACCEPTED, busy == z3.Or(
        v.held(v.home(p)), u.some_prompt(lambda q: v.is_in(q, v.home(p), ACTIVE))))
    after = replace(v.put(p, state=goes_to, begun=has_begun(v, p, starts)), revoked=lambda q: z3.Or(
        v.revoked(q), stops(q)), reach=lambda q: z3.If(interrupts(v, p, q), CANCEL, v.reach(q)))
    return v.home(p), guard, *settled(v, stops, after, Seen(started=only(p, starts), stopped=stops))


def interrupts(v: View, p: Term, q: Term) -> Term:
    """Derived from the calls only: p is an interrupt that is neither canceled nor held, and q the turn it must stop."""
    return z3.And(v.urgent(p), v.reach(p) == NOTHING, z3.Not(v.told(v.home(p))), v.is_in(q, v.home(p), ACTIVE),
                  v.seq(q) < v.seq(p))


def has_begun(v: View, p: Term, starts: Term = True) -> Term:
    return z3.Or(v.begun(p), z3.And(FEATURES.replace, starts))


def fail(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R8: ends with an error, unless a cancel came first."""
    after = v.put(p, state=z3.If(v.covered(p), CANCELED_ON_ENTRY, DONE), outcome=z3.If(v.covered(p), NONE, ERROR))
    return v.home(p), v.state(p) == ACCEPTED, after, Seen(published=count(only(p, z3.Not(v.covered(p)))))


def settle(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R7"""
    return (v.home(p), v.state(p) == CANCELED_ON_ENTRY, v.put(p, state=DONE, outcome=CANCELED),
            Seen(recorded=only(p), published=count(only(p))))


# --- the turn

def take_in(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R9: queued prompts without a run id fold. A step is not enabled if there is no such prompt."""
    def folds(q: Term) -> Term:
        return z3.And(v.is_in(q, v.home(p), QUEUED), z3.Not(v.run_id(q)))

    def to_enter(q: Term) -> Term:
        return z3.And(v.is_in(q, v.home(p), ACCEPTED), v.urgent(q), z3.Not(v.covered(q)))

    guard = z3.And(v.state(p) == ACTIVE, z3.Not(v.covered(p)), z3.Not(v.held(v.home(p))), u.some_prompt(folds),
                   z3.Not(u.some_prompt(to_enter)))
    return v.home(p), guard, ended(v, folds, FOLDED), Seen(folded=folds, takes_in=only(p), published=count(folds))


def requeue(u: Universe, v: View, p: Term, first: Term) -> tuple[Term, Term, View, Seen]:
    """R10: back to the queue at its own position, and the first queued prompt starts. R32: in a held session, the turn
    resumes immediately instead."""
    held = v.held(v.home(p))
    waiting = v.put(p, state=z3.If(held, ACTIVE, QUEUED))
    guard = z3.And(v.state(p) == ACTIVE, z3.Not(v.covered(p)),
                   z3.If(held, first == p, is_first(u, waiting, v.home(p), first)))
    return v.home(p), guard, *settled(v, only(p), starting(waiting, first), Seen(started=only(first)))


def finish(u: Universe, v: View, p: Term, how: Term, hands_off: Term, first: Term) -> tuple[Term, Term, View, Seen]:
    """R11 and R12: the prompt is done, and in the same step the first queued prompt starts, if there is one."""
    guard = z3.And(
        v.state(p) == ACTIVE, one_of(how, END_TURN, ERROR, CANCELED), z3.Implies(how == CANCELED, v.covered(p)),
        may_hand_off(u, v, v.home(p), hands_off, first))
    done = v.put(p, state=DONE, outcome=how)
    return v.home(p), guard, *settled(v, only(p), starting(done, first, hands_off), Seen(
        started=only(first, hands_off), published=count(only(p))))


def may_hand_off(u: Universe, v: View, session: Term, hands_off: Term, first: Term) -> Term:
    """Whether there is a handoff, and to which prompt. R32: not in a held session."""
    return z3.If(hands_off, z3.And(z3.Not(v.held(session)), is_first(u, v, session, first)),
                 z3.Or(v.held(session), u.every_prompt(lambda q: z3.Not(v.is_in(q, session, QUEUED)))))


def is_first(u: Universe, v: View, session: Term, first: Term) -> Term:
    return z3.And(v.is_in(first, session, QUEUED), u.every_prompt(
        lambda q: z3.Implies(v.is_in(q, session, QUEUED), z3.Not(v.ahead(q, first)))))


def starting(v: View, first: Term, when: Term = True) -> View:
    return v.put(first, state=z3.If(when, ACTIVE, v.state(first)), begun=has_begun(v, first, when))


def ended(v: View, who: OfOne, how: Term) -> View:
    return replace(v, state=lambda p: z3.If(who(p), DONE, v.state(p)),
                   outcome=lambda p: z3.If(who(p), how, v.outcome(p)))


# --- calls

def cancel(u: Universe, v: View, session: Term) -> tuple[Term, Term, View, Seen]:
    """R12"""
    after, seen = canceled(v, lambda s: s == session)
    return session, z3.BoolVal(True), after, seen


def canceled(v: View, where: OfOne) -> tuple[View, Seen]:
    """Raises the mark to the latest seq, drops the queue, and asks the active prompt to stop."""
    dropped, seen = cleared(v, where)
    after = replace(
        dropped, mark=lambda s: z3.If(where(s), v.latest, v.mark(s)),
        reach=lambda p: z3.If(z3.And(where(v.home(p)), v.live(p)), CANCEL, v.reach(p)))

    def stops(p: Term) -> Term:
        return z3.And(where(v.home(p)), v.state(p) == ACTIVE, z3.Not(v.covered(p)))

    return settled(v, stops, after, replace(seen, stopped=stops))


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


def revoke(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R30"""
    after, seen = revoked(v, p, z3.BoolVal(True))
    return v.home(p), z3.And(FEATURES.revoke, v.live(p)), after.put(p, reach=CANCEL), seen


def revoked(v: View, p: Term, when: Term) -> tuple[View, Seen]:
    """Drops the prompt if it is queued, asks it to stop if it is active, and otherwise lets it be canceled on entry."""
    drops = z3.And(when, v.state(p) == QUEUED)
    marks = z3.And(when, one_of(v.state(p), ACCEPTED, ACTIVE), z3.Not(v.covered(p)))
    after = ended(v, only(p, drops), CANCELED)
    stops = only(p, z3.And(marks, v.state(p) == ACTIVE))
    return settled(v, stops, after.put(p, revoked=z3.Or(v.revoked(p), marks)), Seen(
        stopped=stops, published=count(only(p, drops))))


def stop(
    u: Universe, v: View, session: Term, holds: Term, finds: Term, whom: Term, means: Term, meant: Term,
) -> tuple[Term, Term, View, Seen]:
    """R31: revokes the prompt in front, and can hold the session. The history's `reach` is derived from the calls
    only."""
    before = replace(v, held=put(v.held, session, z3.Or(v.held(session), holds)),
                     told=put(v.told, session, z3.Or(v.told(session), holds)))
    guard = z3.And(
        FEATURES.stop, z3.Implies(holds, FEATURES.hold),
        _one_in_front(u, before, session, finds, whom, before.held, before.ahead),
        _one_in_front(u, before, session, means, meant, before.told, before.wished_ahead))
    after, seen = revoked(before, whom, finds)
    return session, guard, after.put(meant, reach=z3.If(means, CANCEL, v.reach(meant))), seen


def _one_in_front(
    u: Universe, v: View, session: Term, some: Term, whom: Term, held: OfOne, ahead: Callable[[Term, Term], Term],
) -> Term:
    """Whether there is a prompt in front, and which."""
    return z3.If(some, in_front(u, v, session, whom, held, ahead), z3.And(
        u.every_prompt(lambda q: z3.And(
            z3.Not(v.is_in(q, session, ACTIVE)), z3.Or(held(session), z3.Not(v.is_in(q, session, ACCEPTED)))))))


def in_front(
    u: Universe, v: View, session: Term, p: Term, held: OfOne, ahead: Callable[[Term, Term], Term],
) -> Term:
    """R31: the active prompt or, if there is none and the session is not held, the first one that has not entered."""
    return z3.Or(v.is_in(p, session, ACTIVE), z3.And(
        v.is_in(p, session, ACCEPTED), z3.Not(held(session)), u.every_prompt(lambda q: z3.And(
            z3.Not(v.is_in(q, session, ACTIVE)),
            z3.Implies(v.is_in(q, session, ACCEPTED), z3.Not(ahead(q, p)))))))


def hold(u: Universe, v: View, session: Term) -> tuple[Term, Term, View, Seen]:
    """R32"""
    yes = z3.BoolVal(True)
    return session, FEATURES.hold, replace(v, held=put(v.held, session, yes), told=put(v.told, session, yes)), Seen()


def resume(u: Universe, v: View, session: Term, hands_off: Term, first: Term) -> tuple[Term, Term, View, Seen]:
    """R32: ends the hold and, if no prompt is active, hands off."""
    open_ = replace(v, held=put(v.held, session, NO), told=put(v.told, session, NO))
    runs = u.some_prompt(lambda q: v.is_in(q, session, ACTIVE))
    guard = z3.And(FEATURES.hold, z3.Or(
        z3.And(runs, z3.Not(hands_off)), z3.And(z3.Not(runs), may_hand_off(u, open_, session, hands_off, first))))
    return session, guard, starting(open_, first, hands_off), Seen(started=only(first, hands_off))


def replace_text(u: Universe, v: View, p: Term) -> tuple[Term, Term, View, Seen]:
    """R33"""
    guard = z3.And(FEATURES.replace, waits(v, p), z3.Not(v.begun(p)))
    return v.home(p), guard, v.put(p, version=v.version(p) + 1, wanted=v.wanted(p) + 1), Seen()


def waits(v: View, p: Term) -> Term:
    return z3.And(one_of(v.state(p), ACCEPTED, QUEUED), z3.Not(v.covered(p)))


def move_to_front(u: Universe, v: View, p: Term, moves: Term, leader: Term) -> tuple[Term, Term, View, Seen]:
    """R34: moves ahead of the first of the unfinished prompts, unless it already is the first."""
    def behind(q: Term) -> Term:
        return z3.And(q != p, v.live(q), v.home(q) == v.home(p), v.ahead(q, p))

    guard = z3.And(FEATURES.next, waits(v, p), moves == u.some_prompt(behind),
                   z3.If(moves, is_leader(u, v, v.home(p), leader), leader == p))
    after = v.put(p, front=z3.If(moves, v.front(leader) + 1, v.front(p)), place=v.wishes + 1)
    return v.home(p), guard, replace(after, wishes=v.wishes + 1), Seen()


def close(u: Universe, v: View) -> tuple[None, Term, View, Seen]:
    """R15: stops accepting prompts, and cancels every session."""
    after, seen = canceled(v, lambda _: z3.BoolVal(True))
    return None, z3.Not(v.closing), replace(after, closing=z3.BoolVal(True)), seen


# --- faults

def crash(u: Universe, v: View) -> tuple[None, Term, View, Seen]:
    """R16"""
    return None, z3.BoolVal(True), replace(v, down=z3.BoolVal(True)), Seen()


def recover(u: Universe, v: View, first: OfOne) -> tuple[None, Term, View, Seen]:
    """R17: active prompts end, covered prompts are canceled on entry, and all others resume in order."""
    def goes_on(p: Term) -> Term:
        return z3.Or(v.state(p) == QUEUED, z3.And(v.state(p) == ACCEPTED, z3.Not(v.covered(p))))

    def starts(p: Term) -> Term:
        return z3.And(goes_on(p), first(v.home(p)) == p, z3.Not(v.held(v.home(p))))

    def interrupted(p: Term) -> Term:
        return v.state(p) == ACTIVE

    def leads(p: Term, leader: Term) -> Term:
        return z3.And(goes_on(leader), v.home(leader) == v.home(p), z3.Not(v.ahead(p, leader)))

    guard = u.every_prompt(lambda p: z3.Implies(goes_on(p), leads(p, first(v.home(p)))))
    done = ended(v, interrupted, ERROR)
    after = replace(done, down=z3.BoolVal(False), closing=z3.BoolVal(False), state=lambda p: z3.If(
        starts(p), ACTIVE, z3.If(goes_on(p), QUEUED, z3.If(v.state(p) == ACCEPTED, CANCELED_ON_ENTRY, done.state(p)))),
        begun=lambda p: has_begun(v, p, starts(p)))
    return None, guard, *settled(v, interrupted, after, Seen(
        started=starts, published=count(interrupted),
        unsure=lambda x: z3.And(v.status(x) == RAN, interrupted(v.owner(x)))))


# --- questions

def settled(v: View, whose: OfOne, after: View, seen: Seen) -> tuple[View, Seen]:
    """R36: the questions of these prompts are settled too: open ones are withdrawn, unused permissions void."""
    return replace(after, status=lambda x: z3.If(whose(v.owner(x)), settled_status(v.status(x)), v.status(x))), \
        replace(seen, withdrawn=lambda x: z3.And(v.status(x) == OPEN, whose(v.owner(x))))


def ask(u: Universe, v: View, p: Term, x: Term) -> tuple[Term, Term, View, Seen]:
    """R36a: a question that has not been asked yet, so its number is new."""
    guard = z3.And(FEATURES.ask, v.state(p) == ACTIVE, z3.Not(v.covered(p)), v.status(x) == UNASKED)
    return v.home(p), guard, v.put(x, status=OPEN, owner=p, called=OPEN), Seen(opened=only(x))


def answer(u: Universe, v: View, x: Term, allows: Term) -> tuple[Term, Term, View, Seen]:
    """R36b, R36c"""
    given = z3.If(allows, ALLOWED, DENIED)
    after = v.put(x, status=given, called=z3.If(v.called(x) == OPEN, given, v.called(x)))
    return v.home(v.owner(x)), v.status(x) == OPEN, after, Seen(answered=put(lambda _: UNASKED, x, given))


def run(u: Universe, v: View, x: Term) -> tuple[Term, Term, View, Seen]:
    """R36d"""
    return v.home(v.owner(x)), v.status(x) == ALLOWED, v.put(x, status=RAN, called=RAN), Seen(tools=count(only(x)))


def withdraw(u: Universe, v: View, x: Term) -> tuple[Term, Term, View, Seen]:
    """R36f"""
    after = v.put(x, status=WITHDRAWN, called=z3.If(v.called(x) == OPEN, WITHDRAWN, v.called(x)))
    return v.home(v.owner(x)), v.status(x) == OPEN, after, Seen(withdrawn=only(x))


ACTIONS: tuple[Action, ...] = (
    Action("accept", "R1", {"p": "prompt", "session": "session", "named": "yes", "mode": "mode", "leader": "prompt"},
           accept),
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
    Action("revoke", "R30", {"p": "prompt"}, revoke),
    Action("stop", "R31", {"session": "session", "holds": "yes", "finds": "yes", "whom": "prompt", "means": "yes",
                           "meant": "prompt"}, stop),
    Action("hold", "R32", {"session": "session"}, hold),
    Action("resume", "R32", {"session": "session", "hands_off": "yes", "first": "prompt"}, resume),
    Action("replace", "R33", {"p": "prompt"}, replace_text),
    Action("next", "R34", {"p": "prompt", "moves": "yes", "leader": "prompt"}, move_to_front),
    Action("ask", "R36", {"p": "prompt", "x": "question"}, ask),
    Action("answer", "R36", {"x": "question", "allows": "yes"}, answer),
    Action("run", "R36", {"x": "question"}, run, system=True),
    Action("withdraw", "R36", {"x": "question"}, withdraw, system=True),
)

# Every state change that each action can make to a prompt: from, to, and the outcome. There are no others.
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
    "revoke": ((QUEUED, DONE, CANCELED),),
    "stop": (),
    "hold": (),
    "resume": ((QUEUED, ACTIVE, NONE),),
    "replace": (),
    "next": (),
    "ask": (),
    "answer": (),
    "run": (),
    "withdraw": (),
}

SETTLES = ((OPEN, WITHDRAWN), (ALLOWED, VOID))
# Every change that each action can make to the status of a question: from, to. There are no others.
ASK_MOVES: Mapping[str, tuple[tuple[Term, Term], ...]] = {
    "ask": ((UNASKED, OPEN),),
    "answer": ((OPEN, ALLOWED), (OPEN, DENIED)),
    "run": ((ALLOWED, RAN),),
    "withdraw": ((OPEN, WITHDRAWN),),
    **dict.fromkeys(("enter", "requeue", "finish", "cancel", "close", "recover", "revoke", "stop"), SETTLES),
}
