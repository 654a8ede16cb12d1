"""What is written to a store: operations, and what each of them needs in order not to be refused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import PLAIN, Traits

from .records import Json, Message


class NewSession(NamedTuple):
    """A session with mark 0."""

    id: str
    title: str = ""
    created_at: int = 0


class RaiseMark(NamedTuple):
    """The session's mark becomes `mark`, unless it is higher already."""

    session_id: str
    mark: int


class AcceptPrompt(NamedTuple):
    """A prompt is accepted. A store that several processes share gives a seq to a prompt that has 0: operations of the
    same batch that follow move it as 0, and put its message as p0."""

    seq: int
    session_id: str
    text: str
    run_id: str | None = None
    attachments: tuple[Json, ...] = ()
    traits: Traits = PLAIN


class MovePrompt(NamedTuple):
    """A prompt comes to another state. One that was active has begun."""

    seq: int
    state: State
    outcome: Outcome | None = None
    into: int | None = None  # of a fold: the prompt whose turn takes it in


class ChangePrompt(NamedTuple):
    """A call has made something else of a prompt. Whether it has begun is told by its moves."""

    seq: int
    traits: Traits


class ReplaceText(NamedTuple):
    """A prompt has another text from now on. `was` is the digest of the one before: the first is kept."""

    seq: int
    text: str
    was: str


class HoldSession(NamedTuple):
    """The session is held from now on, or is not."""

    session_id: str
    held: bool


class PutMessage(NamedTuple):
    """The message is added to its session, or takes the place of the one with its id."""

    message: Message


class AppendEvent(NamedTuple):
    """An event is added to the log."""

    session_id: str
    type: str
    payload: Json
    run_id: str | None = None


class DropEvent(NamedTuple):
    """The oldest event leaves the log."""

    id: int


class ForgetPrompt(NamedTuple):
    """A prompt that is done leaves the journal, if it has no run id. With one it stays, so that its run id does, and
    its digest takes the place of its text and attachments."""

    seq: int
    digest: str | None = None


Operation: TypeAlias = (
    NewSession | RaiseMark | HoldSession | AcceptPrompt | MovePrompt | ChangePrompt | ReplaceText | PutMessage
    | AppendEvent | DropEvent | ForgetPrompt)
Batch: TypeAlias = Sequence[Operation]

# What each needs in order not to be refused.
NEEDS: Mapping[type[Operation], str] = {
    NewSession: "an id that no session has",
    RaiseMark: "a session that exists",
    HoldSession: "a session that exists",
    AcceptPrompt: "a session that exists, a seq above 0 that no prompt has, and a run id that no prompt has",
    MovePrompt: "a prompt that exists and is not done, and an outcome if and only if the new state is done",
    ChangePrompt: "a prompt that exists and is not done",
    ReplaceText: "a prompt that exists and is not done",
    PutMessage: "a session that exists, and an id that no other session's message has",
    AppendEvent: "a session that exists",
    DropEvent: "the oldest event, and a later one",
    ForgetPrompt: "a prompt that is done and not forgotten, a prompt with a higher seq, and a digest if and only if it "
                  "has a run id",
}
