"""What the course asks of its reader: to predict how prompts end, and to find the bugs that are hidden in protocols.

An exercise is the reference protocol with one change, known by its number. Whoever has found the change shows a trace:
something that this protocol does and the reference does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import EllipsisType

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import label
from cancelmark.model.trace import Trace, call_text, replay
from cancelmark.model.variants.catalogue import VARIANTS

from .recording import Recording

# --- predictions

@dataclass(frozen=True)
class Prediction:
    """How somebody says that prompts will end, by name. What is left open is `...`."""

    says: Mapping[str, str | EllipsisType]

    def against(self, seen: Recording | Trace | Mapping[str, str]) -> "JudgedPrediction":
        """The prediction beside what happened: a history, a trace, or just the ends by name."""
        if isinstance(seen, Recording):
            return JudgedPrediction(self.says, seen.ends)
        if isinstance(seen, Mapping):
            return JudgedPrediction(self.says, seen)
        ends = {label(p.seq): p.outcome.value for p in seen.states[-1].prompts if p.outcome}
        return JudgedPrediction(self.says, ends)


@dataclass(frozen=True)
class JudgedPrediction:
    """What was said, and what was so."""

    said: Mapping[str, str | EllipsisType]
    was: Mapping[str, str]


def predict(**ends: str | EllipsisType) -> Prediction:
    """`predict(A="canceled", B=...)`: how prompts will end, before it is seen."""
    for name, end in ends.items():
        if end is not ... and end not in ENDS:
            raise ValueError(f"{name} cannot end {end!r}; choose one of {', '.join(ENDS)}, or leave the dots")
    return Prediction(ends)


ENDS = tuple(outcome.value for outcome in Outcome)


# --- hidden bugs

HIDDEN: dict[int, Protocol] = {number: VARIANTS[name].protocol for number, name in enumerate((
    "the mark is one too high",
    "busy is asked before the mark",
    "an error does not hand off",
    "recovery forgets the mark",
    "the last in the queue goes first",
    "the text of a folded prompt is handed to nobody",
), 1)}

FOUND: set[int] = set()  # the exercises that were solved since this module was loaded


def exercise(number: int) -> Protocol:
    """The protocol of that exercise. Its name does not give the bug away."""
    return replace(_hidden(number), name=f"exercise {number}")


def _hidden(number: int) -> Protocol:
    if number not in HIDDEN:
        raise LookupError(f"there is no exercise {number!r}; there are {len(HIDDEN)}, counted from 1")
    return HIDDEN[number]


@dataclass(frozen=True)
class ShownBug:
    """A bug that was found: the step in which the exercise differs from the reference, and what was changed."""

    number: int
    step: int
    call: str
    bug: str


def show_bug(number: int, trace: Trace) -> ShownBug:
    """Judges whether the trace shows the bug of that exercise, and tells what it was. A ValueError says why not."""
    if not isinstance(trace, Trace):
        raise TypeError(f"a bug is shown by a trace, such as result.violations[…], and not by {trace!r:.60}")
    sessions = len(trace.start.sessions)
    calls = [call_text(step.call, sessions) for step in trace.steps]
    states = trace.states
    try:
        replay(exercise(number), calls, sessions, agrees=lambda at, server: server == states[at])
    except ValueError as error:
        raise ValueError(f"this is no trace of exercise {number}: {error}") from error
    for length, step in enumerate(trace.steps, 1):
        try:
            usual = replay(REFERENCE, calls[:length], sessions).steps[-1]
        except ValueError:  # the reference does not allow this call
            break
        if (usual.effects, usual.after) != (step.effects, step.after):
            break
    else:
        raise ValueError(f"the reference does all of this too, so these {len(calls)} steps do not show the bug of "
                         f"exercise {number}")
    FOUND.add(number)
    return ShownBug(number, length, calls[length - 1], _hidden(number).name)
