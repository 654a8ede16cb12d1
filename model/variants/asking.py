"""Plausible mistakes with questions: each is a complete protocol, with every property that it violates.

Most of them forget one of the places that settle questions. Five are wrong only because this protocol decides
otherwise: what survives a requeue (two), a deny that stops the turn, and a hold that withdraws or refuses answers.
"""

from collections.abc import Callable
from typing import Any

from .. import actions, ask, family
from ..actions import Actor, Argument, Variant
from ..ask import AskSubject, answer_of, find_question, number_of, set_question
from ..effects import Answered, Ask, Run, Unsure, Withdraw
from ..family import Feature
from ..lifecycle import Guard, State
from ..properties import Bounds
from ..questions import ANSWERS, Question
from .mistakes import make_mistake
from .record import Apply, ProtocolVariant, after, without

ASK, HOLD = Feature.ASK, Feature.HOLD
OPEN, ALLOWED, DENIED, RAN, WITHDRAWN, VOID = Question

ASK_MISTAKES: list[ProtocolVariant] = []


def mistake(
    name: str, bounds: Bounds, breaks: dict[str, int], *features: Feature, **changes: Any,
) -> None:
    """Register a mistake of a protocol with `ask` and these features."""
    ASK_MISTAKES.append(make_mistake(name, {ASK, *features}, bounds, breaks, **changes))


def keeping(apply: Apply, *kept: Question) -> dict[str, Apply]:
    """The action, after which the questions that were in these states are so again. Its effects stay as they are."""
    def applied(step: Any, arg: Argument) -> None:
        before = {p.seq: p.asks for p in step.active}
        apply(step, arg)
        for p in step.live:
            if p.seq in before:
                step.set_asks(p, tuple(old if old in kept else new for old, new in zip(before[p.seq], p.asks)))

    return {"apply": applied}


def in_state(*states: Question) -> dict[str, Callable[[Any, Any, Variant], bool]]:
    """A guard: the named question of an active prompt is in one of these states."""
    def allows(port: Any, prompt: AskSubject, variant: Variant) -> bool:
        return prompt.state is State.ACTIVE and find_question(prompt, variant) in states

    return {"subject": allows}


def give_answer(step: Any, prompt: Any, n: int, variant: Variant) -> None:
    """Answer question n, whatever number the call names."""
    set_question(step, prompt, n, ANSWERS[answer_of(variant)])
    step.effects.append(Answered(prompt.seq, n, answer_of(variant)))


def numbers_of(prompt: AskSubject, *states: Question) -> list[int]:
    """The numbers of the prompt's questions in these states."""
    return [n for n, question in enumerate(prompt.asks, 1) if question in states]


# --- Calls that cancel

CANCELED = Bounds(1, cancels=1, asks=1)
LEFT_OPEN = {"ask-settled": 4, "no-late-approval": 5}

mistake("a cancel leaves the question open until the turn ends", CANCELED, LEFT_OPEN,
        cancel={"apply": actions.cancel})
mistake("a close does not withdraw", Bounds(1, closes=1, asks=1), LEFT_OPEN, close={"apply": actions.close})
mistake("a stop does not withdraw", Bounds(1, stops=1, asks=1), LEFT_OPEN, Feature.STOP, stop={"apply": family.stop})
mistake("a revoke does not withdraw", Bounds(1, revokes=1, asks=1), LEFT_OPEN, Feature.REVOKE,
        revoke={"apply": family.revoke})
mistake("an interrupt does not withdraw", Bounds(2, asks=1), {"ask-settled": 5, "no-late-approval": 6},
        Feature.INTERRUPT,
        enter={"apply": family.enter})

CANCEL = ask.settling_what_stops(actions.cancel)

mistake("a permission outlives the cancel", CANCELED, {"no-late-approval": 6}, cancel=keeping(CANCEL, ALLOWED))
mistake("an answer after the cancel is taken", CANCELED, {"ask-settled": 5, "no-late-approval": 5},
        cancel=keeping(CANCEL, OPEN, ALLOWED))
mistake("a cancel withdraws in silence", CANCELED, {"ask-settled": 4}, cancel=without(CANCEL, Withdraw))
mistake("a canceled turn still asks", CANCELED, {"ask-settled": 4, "no-late-approval": 5},
        ask={"subject": lambda port, p, _: p.state is State.ACTIVE})


# --- The end of the turn, and compaction

def withdraw_last(step: Any, arg: Argument) -> None:
    step.effects += [Withdraw(arg.subject.seq, n) for n in numbers_of(arg.subject, OPEN)]


mistake("the end of a turn leaves its question open", Bounds(1, asks=1), {"ask-settled": 4},
        finish={"apply": actions.finish})
mistake("a question is withdrawn after the end is published", Bounds(1, asks=1), {"ask-settled": 4},
        finish=after(actions.finish, withdraw_last))

REQUEUED = Bounds(1, requeues=1, asks=1)
REQUEUE = ask.settling_first(actions.requeue)

mistake("a question survives compaction", REQUEUED, {"ask-settled": 4, "no-late-approval": 5},
        requeue=without(keeping(REQUEUE, OPEN)["apply"], Withdraw))
mistake("a permission survives compaction", REQUEUED, {"no-late-approval": 6}, requeue=keeping(REQUEUE, ALLOWED))


def count_anew(step: Any, arg: Argument) -> None:
    step.memory = len(arg.subject.asks)


def answer_by_new_number(step: Any, arg: Argument) -> None:
    """Counts the questions from the last requeue on."""
    n = number_of(arg.variant) + (step.memory or 0)
    if n in numbers_of(arg.subject, OPEN):
        give_answer(step, arg.subject, n, arg.variant)


mistake("questions are numbered anew after compaction", Bounds(1, requeues=1, asks=2),
        {"answer-exact": 6, "answer-heard": 6, "ask-settled": 6, "no-late-approval": 6, "one-answer": 7},
        requeue=after(REQUEUE, count_anew), answer={"apply": answer_by_new_number, **in_state(*Question)})


# --- Which question an answer reaches

def answer_what_is_open(step: Any, arg: Argument) -> None:
    for n in numbers_of(arg.subject, OPEN)[:1]:
        give_answer(step, arg.subject, n, arg.variant)


def answer_all(step: Any, arg: Argument) -> None:
    for n in numbers_of(arg.subject, OPEN):
        give_answer(step, next(p for p in step.active if p.seq == arg.subject.seq), n, arg.variant)


def ask_in_one_slot(step: Any, arg: Argument) -> None:
    asks = tuple(WITHDRAWN if question is OPEN else question for question in arg.subject.asks)
    step.set_asks(arg.subject, (*asks, OPEN))
    step.effects.append(Ask(arg.subject.seq, len(asks) + 1))


TWO = Bounds(1, asks=2)

mistake("an answer goes to the question that is open now", TWO,
        {"answer-exact": 5, "answer-heard": 5, "ask-settled": 5, "no-late-approval": 6, "one-answer": 6},
        answer={"apply": answer_what_is_open, **in_state(*Question)})
mistake("one answer answers every open question", TWO, {"answer-exact": 5, "answer-heard": 5, "no-late-approval": 6},
        answer={"apply": answer_all})
mistake("a turn has one slot for a question", TWO, {"answer-heard": 4, "ask-settled": 5},
        ask={"apply": ask_in_one_slot})


# --- Several answers, and expiry

def answer_again(step: Any, arg: Argument) -> None:
    give_answer(step, arg.subject, number_of(arg.variant), arg.variant)


def let_deny_win(step: Any, arg: Argument) -> None:
    if find_question(arg.subject, arg.variant) is OPEN or answer_of(arg.variant) == "deny":
        answer_again(step, arg)


def confirm_late_answer(step: Any, arg: Argument) -> None:
    if find_question(arg.subject, arg.variant) is OPEN:
        ask.answer(step, arg)
    else:
        step.effects.append(Answered(arg.subject.seq, number_of(arg.variant), answer_of(arg.variant)))


def allow_on_expiry(step: Any, arg: Argument) -> None:
    set_question(step, arg.subject, number_of(arg.variant), ALLOWED)
    step.effects.append(Withdraw(arg.subject.seq, number_of(arg.variant)))


ONE = Bounds(1, asks=1)

mistake("the last answer wins until the tool starts", ONE,
        {"answer-heard": 5, "ask-settled": 5, "one-answer": 5, "no-late-approval": 6},
        answer={"apply": answer_again, **in_state(OPEN, ALLOWED, DENIED)})
mistake("a deny beats an earlier allow", ONE, {"answer-heard": 5, "ask-settled": 5, "one-answer": 5},
        answer={"apply": let_deny_win, **in_state(OPEN, ALLOWED)})
mistake("a late answer is confirmed as taken", ONE, {"ask-settled": 5, "no-late-approval": 5, "one-answer": 5},
        answer={"apply": confirm_late_answer, **in_state(*Question)})
mistake("an answer after the timeout is taken", ONE, {"ask-settled": 5, "no-late-approval": 5},
        answer={"apply": answer_again, **in_state(OPEN, WITHDRAWN)})
mistake("a timeout allows", ONE, {"no-late-approval": 5}, withdraw={"apply": allow_on_expiry})


# --- The tool

def run_again(step: Any, arg: Argument) -> None:
    step.effects.append(Run(arg.subject.seq, number_of(arg.variant)))


def stop_on_deny(step: Any, arg: Argument) -> None:
    if answer_of(arg.variant) == "deny":
        family.cancel_one(step, arg.subject)


mistake("the tool runs while the question is open", ONE, {"ask-settled": 4, "no-late-approval": 4},
        run=in_state(OPEN, ALLOWED))
mistake("a permission is not used up", ONE, {"tool-once": 6}, run={"apply": run_again, "actor": Actor.CLIENT})
mistake("a deny stops the turn", ONE, {"cancel-stops": 4, "no-poisoning": 5}, answer=after(ask.answer, stop_on_deny))


# --- Crashes

CRASHED = Bounds(1, crashes=1, asks=1)
RECOVER = ask.settling_after_crash(actions.recover)


def crash_forgets_start(step: Any, arg: Argument) -> None:
    for prompt in step.active:
        step.set_asks(prompt, tuple(ALLOWED if question is RAN else question for question in prompt.asks))
    actions.crash(step, arg)


def run_what_was_allowed(step: Any, arg: Argument) -> None:
    step.effects += [Run(p.seq, n) for p in step.active for n in numbers_of(p, ALLOWED, RAN)]
    RECOVER(step, arg)


def doubt_what_was_allowed(step: Any, arg: Argument) -> None:
    step.effects += [Unsure(p.seq, n) for p in step.active for n in numbers_of(p, ALLOWED)]
    RECOVER(step, arg)


mistake("recovery does not report questions", CRASHED, {"ask-settled": 5, "may-have-run": 7},
        recover=without(without(RECOVER, Withdraw)["apply"], Unsure))
mistake("the start of a tool is not journaled before it", CRASHED, {"may-have-run": 7},
        crash={"apply": crash_forgets_start})
mistake("recovery runs what was allowed", CRASHED, {"no-late-approval": 6, "tool-once": 7},
        recover={"apply": run_what_was_allowed})
mistake("a tool that did not start is reported after a crash", CRASHED, {"may-have-run": 6},
        recover={"apply": doubt_what_was_allowed})


# --- Holds, other sessions, and a sixth state

HELD = Bounds(1, holds=1, asks=1)


def answer_unless_held(step: Any, arg: Argument) -> None:
    if not step.held:
        ask.answer(step, arg)


def hold_and_withdraw(step: Any, arg: Argument) -> None:
    family.hold(step, arg)
    for prompt in step.active:
        step.effects += ask.settle_asks(step, prompt)


def answer_in_session(step: Any, arg: Argument) -> None:
    for prompt in step.active:
        answer_what_is_open(step, arg._replace(prompt=prompt))


mistake("a held session takes no answers", HELD,
        {"answer-heard": 5, "ask-settled": 5, "one-answer": 7, "no-late-approval": 8}, HOLD,
        answer={"apply": answer_unless_held})
mistake("a hold withdraws questions", HELD, {"answer-heard": 4}, HOLD, hold={"apply": hold_and_withdraw})
mistake("a server has one slot for a question", Bounds(2, asks=2, sessions=2),
        {"answer-heard": 4, "isolation": 4, "no-late-approval": 5},
        answer={"apply": answer_in_session, "subject": None, "variants": ("1 allow",), "everywhere": True})
mistake("a turn that waits for an answer does not count as busy", Bounds(2, asks=1), {"single-active": 5},
        guards={Guard.BUSY: lambda port, prompt: port.down or any(OPEN not in p.asks for p in port.active)})
