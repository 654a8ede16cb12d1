"""Effects: what an action asks the outside world to do. They are carried out in the order in which they are appended.

Each effect has a `kind`, the `seq` of its prompt, display text (`words`), and the extra fields that a trace shows
(`details`). Traces, diagrams and tables are generated from these.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from .lifecycle import Outcome


class _OnPrompt:
    """An effect on one prompt. Its kind is the lower-case name of its class."""

    __slots__ = ()
    kind: ClassVar[str]
    words: ClassVar[str]
    details: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()


@dataclass(frozen=True, slots=True)
class Acknowledge(_OnPrompt):
    """Tell the caller that the prompt is accepted, once the acceptance is journaled."""

    words = "acknowledged"
    seq: int


@dataclass(frozen=True, slots=True)
class Start(_OnPrompt):
    """Start the prompt's turn, or resume it after compaction."""

    words = "starts"
    seq: int


@dataclass(frozen=True, slots=True)
class Stop(_OnPrompt):
    """Ask the prompt's running turn to stop."""

    words = "asked to stop"
    seq: int


@dataclass(frozen=True, slots=True)
class Fold(_OnPrompt):
    """Write the prompt's user message, and pass its text to another prompt's running turn."""

    words, details = "folds into {into}", ("into",)
    seq: int
    into: int


@dataclass(frozen=True, slots=True)
class Record(_OnPrompt):
    """Write the prompt's user message, and an assistant message with finish reason `canceled`."""

    words = "recorded as canceled"
    seq: int


@dataclass(frozen=True, slots=True)
class End(_OnPrompt):
    """Journal the prompt's terminal event, with its outcome, and publish it unless the outcome is `folded`. `of` is the
    seq of the prompt whose text and error the event carries."""

    words, details = "ends: {outcome}", ("outcome",)
    seq: int
    outcome: Outcome
    of: int


@dataclass(frozen=True, slots=True)
class Report(_OnPrompt):
    """Publish an error notice under the prompt's run id, in addition to its terminal event. `of` is the seq of the
    prompt that failed.

    Only the original uses it. In the reference the terminal event carries the error.
    """

    words = "reports an error"
    seq: int
    of: int


@dataclass(frozen=True, slots=True)
class Ask(_OnPrompt):
    """Publish the question with this number, once it is journaled."""

    words, details = "asks question {ask}", ("ask",)
    seq: int
    ask: int


@dataclass(frozen=True, slots=True)
class Answered(_OnPrompt):
    """Publish the answer to the question, then pass it to the turn."""

    words, details = "has question {ask} answered: {answer}", ("ask", "answer")
    seq: int
    ask: int
    answer: str


@dataclass(frozen=True, slots=True)
class Withdraw(_OnPrompt):
    """Publish that the question takes no answer any more, then notify the turn."""

    words, details = "has question {ask} withdrawn", ("ask",)
    seq: int
    ask: int


@dataclass(frozen=True, slots=True)
class Run(_OnPrompt):
    """Start the tool that the question is about."""

    words, details = "runs the tool of question {ask}", ("ask",)
    seq: int
    ask: int


@dataclass(frozen=True, slots=True)
class Unsure(_OnPrompt):
    """Publish that the tool was started before a crash, and may have run."""

    words, details = "may have run the tool of question {ask}", ("ask",)
    seq: int
    ask: int


Effect: TypeAlias = (Acknowledge | Start | Stop | Fold | Record | End | Report
                     | Ask | Answered | Withdraw | Run | Unsure)

EFFECTS: tuple[type[Effect], ...] = (Acknowledge, Start, Stop, Fold, Record, End)  # those of the reference
ASK_EFFECTS: tuple[type[Effect], ...] = (Ask, Answered, Withdraw, Run, Unsure)  # those of the feature `ask`


def encode_effect(effect: Effect) -> dict[str, Any]:
    """The effect as JSON-compatible data, as a trace stores it."""
    details = {name: getattr(effect, name) for name in effect.details}
    return {"effect": effect.kind, "seq": effect.seq,
            **{name: value.value if isinstance(value, Outcome) else value for name, value in details.items()}}
