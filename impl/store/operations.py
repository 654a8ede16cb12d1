"""The operations of a commit, and what each requires in order not to be refused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import DEFAULT_TRAITS, Traits

from .records import Json, MessageRecord


class NewSession(NamedTuple):
    """Creates a session, with mark 0."""

    id: str
    title: str = ""
    created_at: int = 0


class RaiseMark(NamedTuple):
    """Raises the session's mark to `mark`, unless it is higher already."""

    session_id: str
    mark: int


class AcceptPrompt(NamedTuple):
    """Accepts a prompt. A shared store assigns a seq to a prompt with seq 0; later operations of the batch refer to it
    as 0, and to its message as p0."""

    seq: int
    session_id: str
    text: str
    run_id: str | None = None
    attachments: tuple[Json, ...] = ()
    traits: Traits = DEFAULT_TRAITS


class MovePrompt(NamedTuple):
    """Moves a prompt to another state. A prompt that becomes active counts as started from then on."""

    seq: int
    state: State
    outcome: Outcome | None = None
    into: int | None = None  # of a fold: the prompt whose turn takes it in


class ChangePrompt(NamedTuple):
    """Updates a prompt's flags, except `begun`, which follows from its moves."""

    seq: int
    traits: Traits


class ReplaceText(NamedTuple):
    """Replaces a prompt's text. `was` is the digest of the old text; the first such digest is kept."""

    seq: int
    text: str
    was: str


class SetQuestions(NamedTuple):
    """Replaces what is journaled of the questions that a prompt's turn has asked."""

    seq: int
    questions: tuple[Json, ...]


class HoldSession(NamedTuple):
    """Sets whether the session is held."""

    session_id: str
    held: bool


class PutMessage(NamedTuple):
    """Adds the message to its session, or replaces the message with its id. With `during`, the prompt with that seq
    must not be done: a message that its turn has sent may arrive late."""

    message: MessageRecord
    during: int | None = None


class AppendEvent(NamedTuple):
    """Appends an event to the log."""

    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


class DropEvent(NamedTuple):
    """Deletes the oldest event of the log."""

    id: int


class ForgetPrompt(NamedTuple):
    """Deletes a prompt that is done, if it has no run id. With a run id its record stays, because the run id must, and
    the digest replaces text and attachments."""

    seq: int
    digest: str | None = None


Operation: TypeAlias = (
    NewSession | RaiseMark | HoldSession | AcceptPrompt | MovePrompt | ChangePrompt | ReplaceText | SetQuestions
    | PutMessage | AppendEvent | DropEvent | ForgetPrompt)
Batch: TypeAlias = Sequence[Operation]

# What each requires in order not to be refused.
NEEDS: Mapping[type[Operation], str] = {
    NewSession: "an id that no session has",
    RaiseMark: "a session that exists",
    HoldSession: "a session that exists",
    AcceptPrompt: "a session that exists, a seq above 0 that no prompt has, and a run id that no prompt has",
    MovePrompt: "a prompt that exists and is not done, and an outcome if and only if the new state is done",
    ChangePrompt: "a prompt that exists and is not done",
    ReplaceText: "a prompt that exists and is not done",
    SetQuestions: "a prompt that exists and is not done",
    PutMessage: "a session that exists, an id that no other session's message has, and a prompt that is not done if it "
                "names one",
    AppendEvent: "a session that exists",
    DropEvent: "the oldest event, and a later one",
    ForgetPrompt: "a prompt that is done and not forgotten, a prompt with a higher seq, and a digest if and only if it "
                  "has a run id",
}
