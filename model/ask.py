"""Questions: a turn asks whether it may run a tool, clients answer, and a cancel withdraws the question.

A question is an attribute of the active prompt, not a state: a turn can have several questions open and still run. Its
number is never used again in its prompt, even after compaction. Three steps lead to a tool, each of them journaled:

- `ask`: the turn asks; the question is open.
- `answer`: a client allows or denies. The first answer wins.
- `run`: the turn starts the tool. This step is journaled before the tool starts, so a crash knows which tools may have
  run, and a cancel between `answer` and `run` voids the permission.

Whatever cancels, ends, requeues or recovers a prompt *settles* its questions in the same step: open ones are withdrawn,
and permissions that were not used become void. An open question therefore never belongs to a canceled prompt, and
`answer` needs no guard except that the question is open. No row and no state of a prompt is added.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias
from typing import Protocol as Interface

from .actions import Action, Actor, Argument, Port, Reach, Subject, Variant
from .effects import Answered, Ask, Effect, Run, Stop, Unsure, Withdraw
from .lifecycle import Guard, State
from .questions import ANSWERS, SETTLED, Question


class AskSubject(Subject, Interface):
    """A view of a prompt that can ask."""

    @property
    def asks(self) -> tuple[Question, ...]:
        """Its questions; the first has number 1."""


class AskPort(Port, Interface):
    """A view of a session whose turns can ask, during one step."""

    def set_asks(self, prompt: Any, asks: tuple[Question, ...]) -> None:
        """Replace the prompt's questions."""


# --- The actions on questions -------------------------------------------------------------------------------------

NUMBERS = ("1", "2")  # the questions that a search answers: its bound allows no more


def number_of(variant: Variant) -> int:
    """The number of the question that an action names."""
    return int(str(variant).split()[0])


def answer_of(variant: Variant) -> str:
    """`allow` or `deny`."""
    return str(variant).split()[1]


def find_question(prompt: AskSubject, variant: Variant) -> Question | None:
    """The state of the question that an action names, or None if the prompt has no such question."""
    n = number_of(variant)
    return prompt.asks[n - 1] if n <= len(prompt.asks) else None


def set_question(step: AskPort, prompt: Any, n: int, question: Question) -> None:
    step.set_asks(prompt, (*prompt.asks[:n - 1], question, *prompt.asks[n:]))


def ask(step: AskPort, arg: Argument) -> None:
    """Opens a question with the next number of its prompt, and publishes it once it is journaled."""
    prompt, asks = arg.subject, (*arg.subject.asks, Question.OPEN)
    step.set_asks(prompt, asks)
    step.effects.append(Ask(prompt.seq, len(asks)))


def answer(step: AskPort, arg: Argument) -> None:
    """Allows or denies the named question, which takes no further answer."""
    n, given = number_of(arg.variant), answer_of(arg.variant)
    set_question(step, arg.subject, n, ANSWERS[given])
    step.effects.append(Answered(arg.subject.seq, n, given))


def run(step: AskPort, arg: Argument) -> None:
    """Starts the tool that was allowed, once the start is journaled."""
    n = number_of(arg.variant)
    set_question(step, arg.subject, n, Question.RAN)
    step.effects.append(Run(arg.subject.seq, n))


def withdraw(step: AskPort, arg: Argument) -> None:
    """Withdraws a question that the turn gives up, or that expires. The turn continues as if denied."""
    n = number_of(arg.variant)
    set_question(step, arg.subject, n, Question.WITHDRAWN)
    step.effects.append(Withdraw(arg.subject.seq, n))


def can_ask(port: Port, prompt: AskSubject, _: Variant) -> bool:
    return prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED)


def is_open(port: Port, prompt: AskSubject, variant: Variant) -> bool:
    return find_question(prompt, variant) is Question.OPEN


def is_allowed(port: Port, prompt: AskSubject, variant: Variant) -> bool:
    return find_question(prompt, variant) is Question.ALLOWED


ASK_ACTIONS: tuple[Action, ...] = (
    Action("ask", Actor.TURN, ask, "p active, not covered", "R36", can_ask, bound="asks", clauses=("R36a",)),
    Action("answer", Actor.CLIENT, answer, "question n of p is open", "R36", is_open,
           variants=tuple(f"{n} {given}" for n in NUMBERS for given in ANSWERS), clauses=("R36b", "R36c")),
    Action("run", Actor.TURN, run, "question n of p is allowed", "R36", is_allowed, variants=NUMBERS,
           clauses=("R36d", "R36e")),
    Action("withdraw", Actor.TURN, withdraw, "question n of p is open", "R36", is_open, variants=NUMBERS,
           clauses=("R36f",)),
)


# --- The other actions, which settle questions --------------------------------------------------------------------

Apply: TypeAlias = Callable[[Any, Argument], None]


def settle_asks(step: AskPort, prompt: Any) -> list[Effect]:
    """Withdraw the prompt's open questions and void its unused permissions. Returns the effects, in order of number."""
    if SETTLED.keys().isdisjoint(prompt.asks):
        return []
    withdrawn: list[Effect] = [
        Withdraw(prompt.seq, n) for n, question in enumerate(prompt.asks, 1) if question is Question.OPEN]
    step.set_asks(prompt, tuple(SETTLED.get(question, question) for question in prompt.asks))
    return withdrawn


def settling_what_stops(apply: Apply) -> Apply:
    """The action, and in the same step the questions of each turn that it asks to stop are settled. Their effects come
    right after *stop*: a turn that a withdrawal wakes must find that it is to stop."""
    @wraps(apply)
    def applied(step: AskPort, arg: Argument) -> None:
        apply(step, arg)
        stopped = {effect.seq for effect in step.effects if isinstance(effect, Stop)}
        settled = {p.seq: settle_asks(step, p) for p in step.active if p.seq in stopped}
        step.effects[:] = [e for effect in step.effects for e in (
            effect, *(settled.get(effect.seq, ()) if isinstance(effect, Stop) else ()))]

    return applied


def settling_first(apply: Apply) -> Apply:
    """The action on a prompt whose questions are settled before: a withdrawal is published before the prompt's end."""
    @wraps(apply)
    def applied(step: AskPort, arg: Argument) -> None:
        step.effects += settle_asks(step, arg.subject)
        apply(step, arg)

    return applied


def settling_after_crash(apply: Apply) -> Apply:
    """The recovery, which first reports the tools that had started, and settles the questions of turns that broke."""
    @wraps(apply)
    def applied(step: AskPort, arg: Argument) -> None:
        for prompt in step.active:
            step.effects += [Unsure(prompt.seq, n) for n, question in enumerate(prompt.asks, 1)
                             if question is Question.RAN]
            step.effects += settle_asks(step, prompt)
        apply(step, arg)

    return applied


def with_asks(actions: Iterable[Action]) -> tuple[Action, ...]:
    """The actions of a protocol whose turns can ask: these, each settling the questions that it must, and four more."""
    def settle(action: Action) -> Action:
        if action.name in ("requeue", "finish"):
            return replace(action, apply=settling_first(action.apply), clauses=(*action.clauses, "R36h"))
        if action.name == "recover":
            return replace(action, apply=settling_after_crash(action.apply), clauses=(*action.clauses, "R36i"))
        if action.reaches is Reach.CANCEL:
            return replace(action, apply=settling_what_stops(action.apply), clauses=(*action.clauses, "R36g"))
        return action

    return (*map(settle, actions), *ASK_ACTIONS)
