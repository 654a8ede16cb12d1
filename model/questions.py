"""The states of a question that a turn asks. `ask` has the actions; the observer keeps its own record of them."""

from collections.abc import Mapping

from .lifecycle import Symbol


class Question(Symbol):
    """The state of a question. Only an open question takes an answer, and only an allowed one lets its tool start."""

    OPEN = "open"
    ALLOWED = "allowed"  # its tool has not started
    DENIED = "denied"
    RAN = "ran"  # its tool has started
    WITHDRAWN = "withdrawn"
    VOID = "void"  # allowed, but the prompt was canceled, ended or requeued before the tool started


# What cancels, ends or requeues a prompt does this to its questions. All other states are final.
SETTLED: Mapping[Question, Question] = {Question.OPEN: Question.WITHDRAWN, Question.ALLOWED: Question.VOID}

ANSWERS: Mapping[str, Question] = {"allow": Question.ALLOWED, "deny": Question.DENIED}
