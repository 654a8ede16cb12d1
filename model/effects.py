"""Effects: what an action asks the world to do. They are carried out in the order in which they were noted.

Each says its `kind`, whose it is (`seq`), what people read of that prompt (`words`), and which more a trace tells
(`details`). Traces, diagrams and tables are made from this.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from .lifecycle import Outcome


class _OnPrompt:
    """An effect on one prompt. Its kind is the name of its class."""

    __slots__ = ()
    kind: ClassVar[str]
    words: ClassVar[str]
    details: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()


@dataclass(frozen=True, slots=True)
class Acknowledge(_OnPrompt):
    """Tell the caller that the prompt is accepted, once that is journaled."""

    words = "acknowledged"
    seq: int


@dataclass(frozen=True, slots=True)
class Start(_OnPrompt):
    """Begin the prompt's turn, or go on with it after a summary."""

    words = "starts"
    seq: int


@dataclass(frozen=True, slots=True)
class Stop(_OnPrompt):
    """Ask the prompt's running turn to stop."""

    words = "asked to stop"
    seq: int


@dataclass(frozen=True, slots=True)
class Fold(_OnPrompt):
    """Write the prompt's user message, and hand its text to the running turn of another."""

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
    """Journal the prompt's terminal event, with its outcome, and publish it unless that is `folded`. `of` is the prompt
    whose text and error it carries."""

    words, details = "ends: {outcome}", ("outcome",)
    seq: int
    outcome: Outcome
    of: int


@dataclass(frozen=True, slots=True)
class Report(_OnPrompt):
    """Publish an error notice under the prompt's run id, apart from its terminal event. `of`: whose error it is.

    The original has these; the reference says everything in the terminal event and never asks for one.
    """

    words = "reports an error"
    seq: int
    of: int


Effect: TypeAlias = Acknowledge | Start | Stop | Fold | Record | End | Report

EFFECTS: tuple[type[Effect], ...] = (Acknowledge, Start, Stop, Fold, Record, End)  # those of the reference


def encode_effect(effect: Effect) -> dict[str, Any]:
    """The effect as data, as a trace tells it."""
    details = {name: getattr(effect, name) for name in effect.details}
    return {"effect": effect.kind, "seq": effect.seq,
            **{name: value.value if isinstance(value, Outcome) else value for name, value in details.items()}}
