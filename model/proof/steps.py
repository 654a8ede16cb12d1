"""The step claims: what every step satisfies, if the invariant holds before it."""

from collections.abc import Callable

import z3

from .actions import ASK_MOVES, MOVES, Step, in_front, interrupts
from .invariant import StepClaim
from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    ALLOWED,
    CANCEL,
    CANCELED,
    CANCELED_ON_ENTRY,
    DENIED,
    DONE,
    FEATURES,
    NONE,
    NOTHING,
    OPEN,
    QUEUED,
    RAN,
    REJECT,
    UNASKED,
    VOID,
    WITHDRAWN,
    OfOne,
    Term,
    View,
    one_of,
)


def _each(says: Callable[[Step, Term], Term]) -> Callable[[Step], Term]:
    return lambda step: step.universe.every_prompt(lambda p: says(step, p))


def _each_question(says: Callable[[Step, Term], Term]) -> Callable[[Step], Term]:
    return lambda step: step.universe.every_question(lambda x: says(step, x))


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
        u.every_session(lambda s: z3.Implies(s != step.where, z3.And(
            after.mark(s) == before.mark(s), after.held(s) == before.held(s)))),
        u.every_prompt(lambda p: z3.Implies(
            z3.And(before.state(p) != ABSENT, before.home(p) != step.where),
            z3.And(after.same_prompt(before, p), step.seen.nothing(p)))),
        _keeps_questions(step, lambda p: before.home(p) != step.where))


def _keeps_questions(step: Step, whose: OfOne) -> Term:
    """The step affects no question of these prompts."""
    before, after = step.before, step.after
    return step.universe.every_question(lambda x: z3.Implies(
        z3.And(before.status(x) != UNASKED, whose(before.owner(x))),
        z3.And(after.same_question(before, x), step.seen.no_word(x))))


def _idle_cancel(step: Step) -> Term:
    if step.action not in ("cancel", "clear_queue", "stop"):
        return z3.BoolVal(True)
    u, before, after = step.universe, step.before, step.after

    def here(p: Term) -> Term:
        return z3.And(before.state(p) != ABSENT, before.home(p) == step.where)

    idle = u.every_prompt(lambda p: z3.Implies(here(p), before.state(p) == DONE))
    keeps_hold = z3.Or(after.held(step.where) == before.held(step.where), step.arguments.get("holds", False))
    return z3.Implies(idle, z3.And(keeps_hold, _keeps_questions(step, here), u.every_prompt(
        lambda p: z3.Implies(here(p), z3.And(after.same_prompt(before, p), step.seen.nothing(p))))))


def _untouched(step: Step, p: Term) -> Term:
    """The step does not affect the prompt."""
    before, after = step.before, step.after
    return z3.And(after.same_prompt(before, p), step.seen.nothing(p),
                  z3.Implies(before.live(p), after.covered(p) == before.covered(p)))


def _heard_of(step: Step, p: Term) -> Term:
    """The prompt is done, will be canceled on entry, or is asked to stop."""
    return z3.Or(step.after.state(p) == DONE, step.after.covered(p))


def _revoke_is_exact(step: Step) -> Term:
    if step.action != "revoke":
        return z3.BoolVal(True)
    p = step.arguments["p"]
    return z3.And(_heard_of(step, p), _keeps_questions(step, lambda q: q != p),
                  step.universe.every_prompt(lambda q: z3.Or(q == p, _untouched(step, q))))


def _is_in_front(step: Step, p: Term) -> Term:
    """The prompt that a stop targets, derived from the calls only."""
    return in_front(step.universe, step.before, step.where, p, step.after.told, step.before.wished_ahead)


def _of(action: str, says: Callable[[Step, Term], Term]) -> Callable[[Step], Term]:
    """A claim about every prompt in the steps of one action."""
    return lambda step: step.universe.every_prompt(lambda p: says(step, p)) if step.action == action \
        else z3.BoolVal(True)


def _edited(step: Step) -> Term:
    starts_with_it = step.universe.every_prompt(lambda p: z3.Implies(
        z3.Or(step.seen.started(p), step.seen.folded(p)), step.seen.said(p) == step.before.wanted(p)))
    if step.action != "replace":
        return starts_with_it
    before, p = step.before, step.arguments["p"]
    return z3.And(one_of(before.state(p), ACCEPTED, QUEUED), z3.Not(before.ran(p)), before.reach(p) == NOTHING)


def _rejects(step: Step) -> Term:
    if step.action != "accept":
        return z3.BoolVal(True)
    before, where = step.before, step.where
    return z3.Implies(step.arguments["mode"] == REJECT, z3.And(
        z3.Not(before.told(where)),
        step.universe.every_prompt(lambda p: z3.Not(z3.And(before.live(p), before.home(p) == where)))))


def _holds(step: Step, p: Term) -> Term:
    before, seen = step.before, step.seen
    ran = before.state(p) == ACTIVE
    return z3.Implies(step.after.told(before.home(p)), z3.And(
        z3.Not(seen.folded(p)), z3.Implies(seen.started(p), ran),
        z3.Implies(ran, step.after.state(p) != QUEUED)))


def _first(step: Step, p: Term, q: Term) -> Term:
    after = step.after
    goes_on = z3.And(step.before.state(p) == ACTIVE, after.told(after.home(p)))
    passes = z3.And(step.seen.started(p), after.state(q) == QUEUED, after.home(p) == after.home(q), z3.Not(goes_on))
    return z3.Implies(passes, z3.And(
        after.wished_ahead(p, q), z3.Or(FEATURES.next, FEATURES.interrupt, after.seq(p) < after.seq(q))))


def moves(step: Step, p: Term, source: Term, dest: Term, outcome: Term) -> Term:
    before, after = step.before, step.after
    return z3.And(before.state(p) == source, after.state(p) == dest, after.outcome(p) == outcome)


def _along_rows(step: Step) -> Term:
    return step.universe.every_prompt(lambda p: z3.Or(
        z3.And(step.after.state(p) == step.before.state(p), step.after.outcome(p) == step.before.outcome(p)),
        *(moves(step, p, *move) for move in MOVES[step.action])))


def _asked_along(step: Step, x: Term) -> Term:
    before, after = step.before.status(x), step.after.status(x)
    return z3.Or(after == before, *(z3.And(before == source, after == dest)
                                    for source, dest in ASK_MOVES.get(step.action, ())))


def _asked_once(step: Step, x: Term) -> Term:
    """What has been asked stays the question of its prompt, and what is asked is new."""
    known = step.before.status(x) != UNASKED
    return z3.And(z3.Implies(step.seen.opened(x), z3.Not(known)),
                  z3.Implies(known, step.after.owner(x) == step.before.owner(x)))


def _answers(says: Callable[[Step, Term], Term]) -> Callable[[Step], Term]:
    """A claim about the question that an answer names."""
    return lambda step: says(step, step.arguments["x"]) if step.action == "answer" else z3.BoolVal(True)


def _is_refused(step: Step, changes: OfOne) -> Term:
    """No answer is published, and these questions keep their status."""
    return step.universe.every_question(lambda y: z3.And(step.seen.answered(y) == UNASKED, z3.Implies(
        changes(y), step.after.status(y) == step.before.status(y))))


def _answer_is_exact(step: Step, x: Term) -> Term:
    before, u = step.before, step.universe
    return z3.And(
        u.every_prompt(lambda p: z3.Implies(before.state(p) != ABSENT, _untouched(step, p))),
        u.every_question(lambda y: z3.Or(y == x, z3.And(
            step.after.same_question(before, y), step.seen.no_word(y)))))


def _one_end(step: Step, x: Term) -> Term:
    seen = step.seen
    both = z3.And(seen.answered(x) != UNASKED, seen.withdrawn(x))
    return z3.Implies(seen.closed(x), z3.And(step.before.believed(x), z3.Not(seen.overdue(x)), z3.Not(both)))


def _may_have_run(step: Step) -> Term:
    if step.action != "recover":
        return z3.BoolVal(True)
    before = step.before
    return step.universe.every_question(lambda x: step.seen.unsure(x) == z3.And(
        before.state(before.owner(x)) == ACTIVE, before.called(x) == RAN))


RANK = ((ACCEPTED, 3), (QUEUED, 2), (ACTIVE, 1), (CANCELED_ON_ENTRY, 1))
ASK_RANK = ((OPEN, 2), (ALLOWED, 1))
SYSTEM = ("enter", "fail", "settle", "step", "finish", "recover", "run", "withdraw")


def rank(v: View, p: Term) -> Term:
    """The maximum number of steps until the prompt ends, if it is not requeued."""
    return _ranked(v.state(p), RANK)


def rank_of_question(v: View, x: Term) -> Term:
    """The maximum number of steps until no more happens to the question."""
    return _ranked(v.status(x), ASK_RANK)


def _ranked(value: Term, ranks: tuple[tuple[Term, int], ...]) -> Term:
    term = z3.IntVal(0)
    for known, n in ranks:
        term = z3.If(value == known, n, term)
    return term


def _descends(step: Step) -> Term:
    if step.action not in SYSTEM:
        return z3.BoolVal(True)
    u, before, after = step.universe, step.before, step.after
    return z3.And(
        u.every_prompt(lambda p: rank(after, p) <= rank(before, p)),
        u.every_question(lambda x: rank_of_question(after, x) <= rank_of_question(before, x)),
        z3.Or(u.some_prompt(lambda p: rank(after, p) < rank(before, p)),
              u.some_question(lambda x: rank_of_question(after, x) < rank_of_question(before, x)),
              z3.And(before.down, z3.Not(after.down))))


STEPS: tuple[StepClaim, ...] = (
    StepClaim(
        "stopping-folds-nobody", "A canceled turn folds no prompts.",
        _each(lambda s, p: z3.Implies(s.seen.takes_in(p), s.before.reach(p) != CANCEL))),
    StepClaim(
        "nobody-folds-past", "No turn folds a prompt that was accepted after a pending interrupt.",
        lambda s: s.universe.every_pair(lambda p, q: z3.Implies(
            z3.And(s.seen.folded(p), s.before.is_in(q, s.before.home(p), ACCEPTED), s.before.urgent(q),
                   s.before.reach(q) == NOTHING), s.before.seq(p) < s.before.seq(q)))),
    StepClaim(
        "interrupt-stops-no-later", "An interrupt stops only a turn that was accepted before it and that has folded "
        "no prompt since.",
        _of("enter", lambda s, q: z3.Implies(s.seen.stopped(q), z3.And(
            s.before.seq(q) < s.before.seq(s.arguments["p"]), s.before.heard(q) < s.before.seq(s.arguments["p"]))))),
    StepClaim(
        "reached-never-starts", "No prompt that was canceled, in this step or earlier, starts or folds.",
        _each(lambda s, p: z3.Implies(z3.Or(s.seen.started(p), s.seen.folded(p)), s.after.reach(p) != CANCEL))),
    StepClaim(
        "reached-ends-canceled", "A prompt that is canceled while it waits can only end canceled.",
        _each(lambda s, p: z3.Implies(z3.And(_waits(s.before, p), s.after.reach(p) == CANCEL),
                                      one_of(s.after.outcome(p), NONE, CANCELED)))),
    StepClaim(
        "running-is-asked", "A running turn is asked to stop when a call cancels it, and only then.",
        _each(lambda s, p: z3.And(
            z3.Implies(z3.And(s.before.state(p) == ACTIVE, s.before.reach(p) != CANCEL, s.after.reach(p) == CANCEL),
                       s.seen.stopped(p)),
            z3.Implies(s.seen.stopped(p), s.after.reach(p) == CANCEL)))),
    StepClaim(
        "queue-is-dropped", "A call that cancels a queued prompt immediately ends it as canceled.",
        _each(lambda s, p: z3.Implies(
            z3.And(s.before.state(p) == QUEUED, s.before.reach(p) == NOTHING, s.after.reach(p) == CANCEL),
            z3.And(s.after.state(p) == DONE, s.after.outcome(p) == CANCELED)))),
    StepClaim(
        "nobody-vanishes", "An accepted prompt is never lost, and keeps its seq, session, run id and urgency.",
        _each(lambda s, p: z3.Implies(s.before.state(p) != ABSENT, z3.And(
            s.after.state(p) != ABSENT, s.after.seq(p) == s.before.seq(p), s.after.home(p) == s.before.home(p),
            s.after.run_id(p) == s.before.run_id(p), s.after.urgent(p) == s.before.urgent(p))))),
    StepClaim(
        "an-end-is-final", "A finished prompt does not change.",
        _each(lambda s, p: z3.Implies(s.before.state(p) == DONE, s.after.same_prompt(s.before, p)))),
    StepClaim(
        "first-comes-first", "No prompt starts before a queued prompt ahead of it. The order is by seq, unless a call "
        "moved a prompt.",
        lambda s: s.universe.every_pair(lambda p, q: _first(s, p, q))),
    StepClaim(
        "ids-are-not-folded", "No step folds a prompt with a run id.",
        _each(lambda s, p: z3.Implies(s.seen.folded(p), z3.Not(s.before.run_id(p))))),
    StepClaim(
        "own-text", "A terminal event carries its own prompt's text, and is published when the prompt is done.",
        _each(lambda s, p: z3.Implies(s.seen.published(p) > 0,
                                      z3.And(s.seen.carries(p) == p, s.after.state(p) == DONE)))),
    StepClaim("idle-cancel", "A cancel, stop or clear_queue on an idle session changes neither prompts nor the hold, "
              "and has no effects.", _idle_cancel),
    StepClaim("apart", "A step in one session changes no other session.", _isolated),
    StepClaim("closed-is-closed", "No prompt is accepted while the server is closing, and only a restart ends the "
              "closing.", _closed),
    StepClaim(
        "record-is-written", "The step that ends a prompt canceled on entry also writes its messages.",
        _each(lambda s, p: z3.Implies(z3.And(s.before.state(p) == CANCELED_ON_ENTRY, s.after.state(p) == DONE),
                                      s.seen.recorded(p)))),
    StepClaim(
        "end-before-start", "When a turn starts, every finished prompt already has its terminal event.",
        lambda s: z3.And(z3.Not(s.seen.late), s.universe.every_pair(lambda p, q: z3.Implies(
            z3.And(s.seen.started(p), s.after.state(q) == DONE), s.after.ends(q) >= 1)))),
    StepClaim("along-rows", "A prompt's state changes only as the rows of the protocol allow.", _along_rows),
    StepClaim(
        "mark-rises", "No mark ever decreases.",
        lambda s: s.universe.every_session(lambda x: s.after.mark(x) >= s.before.mark(x))),
    StepClaim(
        "system-descends",
        "Each of the system's own steps brings some prompt or question closer to its end, and moves none further away.",
        _descends),
    StepClaim("revoke-is-exact", "A revoke cancels its prompt and affects no other prompt.", _revoke_is_exact),
    StepClaim("stop-keeps-others", "A stop changes no prompt except the one in front.",
              _of("stop", lambda s, p: z3.Or(_is_in_front(s, p), z3.And(
                  _untouched(s, p), _keeps_questions(s, lambda q: q == p))))),
    StepClaim("stop-is-heard", "A stop cancels the prompt in front, whether it is active or has not entered yet.",
              _of("stop", lambda s, p: z3.Implies(_is_in_front(s, p), _heard_of(s, p)))),
    StepClaim("held-waits", "In a held session no waiting prompt starts or folds, and the running turn continues.",
              _each(_holds)),
    StepClaim("latest-text", "A prompt starts or folds with the last text that the server accepted for it. The server "
              "accepts no new text once the prompt has started or is canceled.", _edited),
    StepClaim("interrupt-is-heard", "An interrupt that enters an unheld session, and is not canceled itself, asks the "
              "active prompt to stop if that prompt was accepted earlier.",
              _of("enter", lambda s, q: z3.Implies(interrupts(s.before, s.arguments["p"], q), s.after.covered(q)))),
    StepClaim("reject-finds-nobody", "A prompt sent with reject is accepted only if every other prompt is done and the "
              "session is not held.", _rejects),
    StepClaim(
        "tool-needs-permission", "A tool that a turn asked about starts only after a client allowed it while the "
        "question was open, and while its prompt is active.",
        _each_question(lambda s, x: z3.Implies(s.seen.tools(x) > 0, z3.And(
            one_of(s.before.called(x), ALLOWED, RAN), s.after.state(s.after.owner(x)) == ACTIVE)))),
    StepClaim(
        "withdrawn-takes-no-answer", "A question that was withdrawn, or whose permission is void, takes no answer.",
        _answers(lambda s, x: z3.Implies(
            one_of(s.before.called(x), WITHDRAWN, VOID), _is_refused(s, lambda y: z3.BoolVal(False))))),
    StepClaim("tool-starts-once", "A tool that was allowed starts at most once.",
              _each_question(lambda s, x: z3.And(
                  s.seen.tools(x) <= 1, z3.Implies(s.seen.tools(x) > 0, s.before.called(x) != RAN)))),
    StepClaim(
        "first-answer-wins", "A question that has an answer takes no other: no question of its prompt changes.",
        _answers(lambda s, x: z3.Implies(one_of(s.before.called(x), ALLOWED, DENIED, RAN), _is_refused(
            s, lambda y: s.before.owner(y) == s.before.owner(x))))),
    StepClaim("answer-is-exact", "An answer changes no prompt, and no question except the one that it names.",
              _answers(_answer_is_exact)),
    StepClaim("answer-is-heard", "An open question takes the answer that a client gives.",
              _answers(lambda s, x: z3.Implies(s.before.called(x) == OPEN, s.seen.answered(x) == z3.If(
                  s.arguments["allows"], ALLOWED, DENIED)))),
    StepClaim("asked-once", "A question is asked once, and stays the question of its prompt.",
              _each_question(_asked_once)),
    StepClaim("asked-along", "The state of a question changes only as the protocol allows.",
              _each_question(_asked_along)),
    StepClaim(
        "one-end-each", "Only a question that subscribers believe to be open is answered or withdrawn: once, and "
        "before its prompt's terminal event.", _each_question(_one_end)),
    StepClaim("started-is-reported", "A recovery reports exactly the tools of active prompts that had started.",
              _may_have_run),
)
