"""The checks of the properties of `ask`. They compare what a step does with the observer's record of the questions."""

from . import observer
from .ask import answer_of, number_of
from .effects import Answered, Ask, End, Run, Unsure, Withdraw
from .properties import SessionStep
from .questions import Question
from .session import ACTIVE, Prompt

WAITING = (Question.OPEN, Question.ALLOWED)
LATE = (Question.WITHDRAWN, Question.VOID)
ANSWERED = (Question.ALLOWED, Question.DENIED, Question.RAN)


def recorded(prompt: Prompt, n: int) -> Question | None:
    """The state of a question in the observer's record, or None if the turn did not ask it."""
    asks = observer.wish_of(prompt).asks
    return asks[n - 1] if n <= len(asks) else None


def _answers(step: SessionStep) -> list[Answered]:
    return [e for e in step.effects if isinstance(e, Answered)]


def _runs(step: SessionStep) -> list[Run]:
    return [e for e in step.effects if isinstance(e, Run)]


def no_late_approval(step: SessionStep) -> bool:
    if step.call == "answer" and step.prompt and recorded(step.prompt, number_of(step.variant)) in LATE:
        return not _answers(step)
    # A tool that has started before is a matter of `tool_once`.
    return all(recorded(step.before.prompt(e.seq), e.ask) in (Question.ALLOWED, Question.RAN)
               and step.after.prompt(e.seq).state is ACTIVE for e in _runs(step))


def tool_once(step: SessionStep) -> bool:
    runs = _runs(step)
    return len(runs) == len(set(runs)) and not any(
        recorded(step.before.prompt(e.seq), e.ask) is Question.RAN for e in runs)


def one_answer(step: SessionStep) -> bool:
    if step.call != "answer" or not step.prompt or recorded(step.prompt, number_of(step.variant)) not in ANSWERED:
        return True
    return not _answers(step) and step.after.prompt(step.prompt.seq).asks == step.prompt.asks


def answer_exact(step: SessionStep) -> bool:
    if step.call != "answer" or not step.prompt:
        return True
    n, seq = number_of(step.variant), step.prompt.seq
    before, after = step.prompt.asks, step.after.prompt(seq).asks
    return (all(p in step.after.prompts for p in step.before.prompts if p.seq != seq)
            and (before[:n - 1], before[n:]) == (after[:n - 1], after[n:])
            and all((e.seq, e.ask) == (seq, n) for e in _answers(step)))


def answer_heard(step: SessionStep) -> bool:
    if step.call == "answer" and step.prompt:
        n, given = number_of(step.variant), answer_of(step.variant)
        taken = Answered(step.prompt.seq, n, given) in step.effects
        if recorded(step.prompt, n) is Question.OPEN and not taken:
            return False
    return all(p.asks[n:n + 1] == (question,) for p in step.after.live
               for n, question in enumerate(observer.wish_of(p).asks) if question in WAITING)


def ask_settled(step: SessionStep) -> bool:
    if step.call != "ask" and not any(observer.wish_of(p).asks for p in step.after.prompts):
        return not any(isinstance(e, Ask | Answered | Withdraw) for e in step.effects)
    if any(recorded(p, n) is not Question.OPEN for p in step.after.prompts for n in observer.wish_of(p).told):
        return False
    told = {(p.seq, n) for p in step.before.prompts for n in observer.wish_of(p).told}
    ended = set()
    for e in step.effects:
        if isinstance(e, End):
            ended.add(e.seq)
        elif isinstance(e, Ask):
            told.add((e.seq, e.ask))
        elif isinstance(e, Answered | Withdraw):
            if (e.seq, e.ask) not in told or e.seq in ended:
                return False
            told.remove((e.seq, e.ask))
    return True


def may_have_run(step: SessionStep) -> bool:
    if step.call != "recover":
        return True
    ran = [(p.seq, n) for p in step.before.active
           for n, question in enumerate(observer.wish_of(p).asks, 1) if question is Question.RAN]
    return [(e.seq, e.ask) for e in step.effects if isinstance(e, Unsure)] == ran
