"""What survives a crash: sessions and their marks, messages, the journal of prompts, and the log of events.

A caller describes what steps of a session change as operations, and commits them against the version of the session on
which the steps were computed. Steps are kept as a whole or not at all, and are durable when the commit is answered; a
prompt's end and its terminal event are put into one commit, so nobody can ever find one without the other. Steps that
were computed on an old version are refused with a snapshot of the session as it is. Three stores have this interface:
`SqliteStore`, a file; `MemoryStore`, the same tables and statements in memory; and `postgres`, a database.
The first two belong to one process, so that they have no conflict and no claim; the database is shared by many.

**Event ids** are given out inside the transaction, by the only writer, so that the order of ids is the order of
commits: whoever has read the log up to an id has missed nothing below it.

**What the store does not judge** is whether the lifecycle has a row for a move: only the machine moves prompts. It
refuses what would break the journal itself, such as a second end. More would hurt: after a batch that was lost to a
full disk, a prompt must still be able to end.
"""

from .interface import (
    Broken,
    ClosingSession,
    NoRoom,
    Refused,
    Store,
    StoreError,
    Unconfirmed,
    UnknownSession,
    Unstorable,
)
from .memory import MemoryStore
from .operations import (
    AcceptPrompt,
    AppendEvent,
    Batch,
    ChangePrompt,
    DropEvent,
    ForgetPrompt,
    HoldSession,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
)
from .records import TERMINAL, Event, Json, Life, Message, PromptRecord, SessionRecord, Transition, make_digest
from .schema import MIGRATIONS
from .sqlite import SqliteStore, StoreStatistics
from .steps import EPOCH, Answer, Committed, Conflict, Lost, Snapshot, Steps
from .troubles import explain

__all__ = [
    "EPOCH", "MIGRATIONS", "TERMINAL", "AcceptPrompt", "Answer", "AppendEvent", "Batch", "Broken", "ChangePrompt",
    "ClosingSession", "Committed", "Conflict", "DropEvent", "Event", "ForgetPrompt", "HoldSession", "Json", "Life",
    "Lost", "MemoryStore", "Message", "MovePrompt", "NewSession", "NoRoom", "Operation", "PromptRecord",
    "PutMessage", "RaiseMark", "Refused", "ReplaceText", "SessionRecord", "Snapshot", "SqliteStore", "Steps",
    "Store", "StoreError", "StoreStatistics", "Transition", "Unconfirmed", "UnknownSession", "Unstorable",
    "explain", "make_digest",
]
