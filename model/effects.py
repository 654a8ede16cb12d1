"""Effects: what an action asks the world to do. They are carried out in the order in which they were noted."""

from dataclasses import dataclass
from typing import TypeAlias

from .lifecycle import Outcome


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the caller that the prompt is accepted, once that is journaled."""

    seq: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the prompt's turn, or go on with it after a summary."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the prompt's running turn to stop."""

    seq: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Write the prompt's user message, and hand its text to the running turn of another."""

    seq: int
    into: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write the prompt's user message, and an assistant message with finish reason `canceled`."""

    seq: int


@dataclass(frozen=True, slots=True)
class End:
    """Journal the prompt's terminal event, with its outcome, and publish it unless that is `folded`. `of` is the prompt
    whose text and error it carries."""

    seq: int
    outcome: Outcome
    of: int


@dataclass(frozen=True, slots=True)
class Report:
    """Publish an error notice under the prompt's run id, apart from its terminal event. `of`: whose error it is.

    The original has these; the reference says everything in the terminal event and never asks for one.
    """

    seq: int
    of: int


Effect: TypeAlias = Acknowledge | Start | Stop | Fold | Record | End | Report
