"""Why a step violates a property of `ask`: sentences for `reasons`."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from cancelmark.model.ask import answer_of, number_of
from cancelmark.model.ask_properties import ANSWERED, LATE, WAITING, recorded
from cancelmark.model.effects import Answered, Ask, Effect, End, Run, Unsure, Withdraw
from cancelmark.model.observer import wish_of
from cancelmark.model.properties import SessionStep
from cancelmark.model.questions import Question
from cancelmark.model.session import ACTIVE, label

Reasons = Iterator[str]


def _question(seq: int, n: int) -> str:
    return f"question {n} of {label(seq)}"


def _at_start(text: str) -> str:
    return text[0].upper() + text[1:]


def _state(question: Question | None) -> str:
    return "was never asked" if question is None else f"is {question.value}"


def _named(step: SessionStep) -> tuple[int, Question | None]:
    """The question that an answer names, and its state in the observer's record."""
    assert step.prompt is not None
    n = number_of(step.variant)
    return n, recorded(step.prompt, n)


def _no_late_approval(step: SessionStep) -> Reasons:
    if step.call == "answer" and step.prompt:
        n, question = _named(step)
        if question in LATE:
            yield f"The answer to {_question(step.prompt.seq, n)} is taken, although the question {_state(question)}."
    for e in step.effects:
        if isinstance(e, Run):
            question = recorded(step.before.prompt(e.seq), e.ask)
            if question not in (Question.ALLOWED, Question.RAN):
                yield f"The tool of {_question(e.seq, e.ask)} starts, although the question {_state(question)}."
            elif step.after.prompt(e.seq).state is not ACTIVE:
                yield f"The tool of {_question(e.seq, e.ask)} starts, although the turn is over."


def _tool_once(step: SessionStep) -> Reasons:
    for e in step.effects:
        if isinstance(e, Run):
            yield f"The tool of {_question(e.seq, e.ask)} starts a second time."


def _one_answer(step: SessionStep) -> Reasons:
    if step.prompt and _named(step)[1] in ANSWERED:
        yield (f"{_at_start(_question(step.prompt.seq, _named(step)[0]))} was already answered, but a later answer is "
               "taken too.")


def _answer_exact(step: SessionStep) -> Reasons:
    assert step.prompt is not None
    own = step.prompt.seq, number_of(step.variant)
    reached = [(e.seq, e.ask) for e in step.effects if isinstance(e, Answered) and (e.seq, e.ask) != own]
    for other in reached:
        yield f"The answer names {_question(*own)}, but it reaches {_question(*other)}."
    if not reached:
        yield f"The answer names {_question(*own)}, but it changes something else too."


def _answer_heard(step: SessionStep) -> Reasons:
    if step.call == "answer" and step.prompt:
        n, question = _named(step)
        if question is Question.OPEN and Answered(step.prompt.seq, n, answer_of(step.variant)) not in step.effects:
            yield f"{_at_start(_question(step.prompt.seq, n))} is open, but the answer has no effect."
    for p in step.after.live:
        for n, question in enumerate(wish_of(p).asks, 1):
            if question in WAITING and p.asks[n - 1:n] != (question,):
                now = p.asks[n - 1].value if n <= len(p.asks) else "gone"
                yield f"{_at_start(_question(p.seq, n))} should be {question.value}, but it is {now}."


def _ask_settled(step: SessionStep) -> Reasons:
    for p in step.after.prompts:
        for n in sorted(wish_of(p).told):
            if (question := recorded(p, n)) is not Question.OPEN:
                yield f"Subscribers still see {_question(p.seq, n)} as open, although it {_state(question)}."
    yield from _wrong_ends(step.effects, {(p.seq, n) for p in step.before.prompts for n in wish_of(p).told})


def _wrong_ends(effects: Iterable[Effect], told: set[tuple[int, int]]) -> Reasons:
    ended = set()
    for e in effects:
        if isinstance(e, End):
            ended.add(e.seq)
        elif isinstance(e, Ask):
            told.add((e.seq, e.ask))
        elif isinstance(e, Answered | Withdraw):
            if (e.seq, e.ask) not in told:
                yield f"Subscribers receive a second end of {_question(e.seq, e.ask)}."
            elif e.seq in ended:
                yield f"Subscribers receive the end of {_question(e.seq, e.ask)} after the prompt's terminal event."
            told.discard((e.seq, e.ask))


def _may_have_run(step: SessionStep) -> Reasons:
    told = {(e.seq, e.ask) for e in step.effects if isinstance(e, Unsure)}
    ran = {(p.seq, n) for p in step.before.active
           for n, question in enumerate(wish_of(p).asks, 1) if question is Question.RAN}
    for missing in sorted(ran - told):
        yield f"The tool of {_question(*missing)} had started before the crash, but the recovery does not report it."
    for wrong in sorted(told - ran):
        yield f"The recovery reports that the tool of {_question(*wrong)} may have run, but it had not started."


ASK_REASONS: Mapping[str, Callable[[SessionStep], Reasons]] = {
    "no-late-approval": _no_late_approval, "tool-once": _tool_once, "one-answer": _one_answer,
    "answer-exact": _answer_exact, "answer-heard": _answer_heard, "ask-settled": _ask_settled,
    "may-have-run": _may_have_run,
}
