"""What is written to a store: operations, each of which says what it needs in order not to be refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from cancelmark.model.lifecycle import Outcome, State

from .records import Json, Message


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session with mark 0."""

    needs: ClassVar[str] = "an id that no session has"
    id: str
    title: str = ""
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class RaiseMark:
    """The session's mark becomes `mark`, unless it is higher already."""

    needs: ClassVar[str] = "a session that exists"
    session_id: str
    mark: int


@dataclass(frozen=True, slots=True)
class AcceptPrompt:
    """A prompt is accepted."""

    needs: ClassVar[str] = "a session that exists, a seq above 0 that no prompt has, and a run id that no prompt has"
    seq: int
    session_id: str
    text: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class MovePrompt:
    """A prompt comes to another state."""

    needs: ClassVar[str] = "a prompt that exists and is not done, and an outcome if and only if the new state is done"
    seq: int
    state: State
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class PutMessage:
    """The message is added to its session, or takes the place of the one with its id."""

    needs: ClassVar[str] = "a session that exists, and an id that no other session's message has"
    message: Message


@dataclass(frozen=True, slots=True)
class AppendEvent:
    """An event is added to the log."""

    needs: ClassVar[str] = "a session that exists"
    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


Operation: TypeAlias = NewSession | RaiseMark | AcceptPrompt | MovePrompt | PutMessage | AppendEvent
Batch: TypeAlias = Sequence[Operation]
