"""The course's exercises: predict how prompts end, and find bugs hidden in protocols.

An exercise is the reference protocol with one hidden change, identified by a number. A reader who has found the change
submits a trace of something that this protocol does and the reference does not.
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
    """The predicted outcomes of prompts, by name. `...` means no prediction."""

    says: Mapping[str, str | EllipsisType]

    def against(self, seen: Recording | Trace | Mapping[str, str]) -> "JudgedPrediction":
        """Compare the prediction with a history, a trace, or the outcomes by name."""
        if isinstance(seen, Recording):
            return JudgedPrediction(self.says, seen.ends)
        if isinstance(seen, Mapping):
            return JudgedPrediction(self.says, seen)
        ends = {label(p.seq): p.outcome.value for p in seen.states[-1].prompts if p.outcome}
        return JudgedPrediction(self.says, ends)


@dataclass(frozen=True)
class JudgedPrediction:
    """A prediction and the actual outcomes."""

    said: Mapping[str, str | EllipsisType]
    was: Mapping[str, str]


def predict(**ends: str | EllipsisType) -> Prediction:
    """Predict the outcomes of prompts: `predict(A="canceled", B=...)`."""
    for name, end in ends.items():
        if end is not ... and end not in ENDS:
            raise ValueError(f"{name} cannot end {end!r}; choose one of {', '.join(ENDS)}, or ... for no prediction")
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

FOUND: set[int] = set()  # the exercises solved since this module was loaded


def exercise(number: int) -> Protocol:
    """The protocol of an exercise, under a name that does not reveal the bug."""
    return replace(_hidden(number), name=f"exercise {number}")


def _hidden(number: int) -> Protocol:
    if number not in HIDDEN:
        raise LookupError(f"there is no exercise {number!r}; choose one from 1 to {len(HIDDEN)}")
    return HIDDEN[number]


@dataclass(frozen=True)
class ShownBug:
    """A bug that the reader found: the step in which the exercise differs from the reference, and the change."""

    number: int
    step: int
    call: str
    bug: str


def show_bug(number: int, trace: Trace) -> ShownBug:
    """Reveal the bug of an exercise if the trace shows it. Otherwise raise ValueError with the reason."""
    if not isinstance(trace, Trace):
        raise TypeError(f"show_bug expects a trace, such as result.violations[…], not {trace!r:.60}")
    sessions = len(trace.start.sessions)
    calls = [call_text(step.call, sessions) for step in trace.steps]
    states = trace.states
    try:
        replay(exercise(number), calls, sessions, agrees=lambda at, server: server == states[at])
    except ValueError as error:
        raise ValueError(f"this is not a trace of exercise {number}: {error}") from error
    for length, step in enumerate(trace.steps, 1):
        try:
            usual = replay(REFERENCE, calls[:length], sessions).steps[-1]
        except ValueError:  # the reference does not allow this call
            break
        if (usual.effects, usual.after) != (step.effects, step.after):
            break
    else:
        raise ValueError(f"the reference behaves in the same way, so these {len(calls)} steps do not show the bug of "
                         f"exercise {number}")
    FOUND.add(number)
    return ShownBug(number, length, calls[length - 1], _hidden(number).name)
