"""What survives a crash: sessions and their marks, messages, the journal of prompts, and the log of events.

**Commits.** A caller describes what the steps of a session change as operations, and commits them against the version
of the session on which it computed the steps. A commit is atomic, and durable when it is answered. A prompt's end and
its terminal event are in one commit, so no reader ever finds one without the other. A request that was computed on an
old version is rejected with a snapshot of the session as it is. Three stores have this interface: `SqliteStore`, a
file; `MemoryStore`, the same tables and statements in memory; and `postgres`, a database. The first two belong to one
process, so they have neither conflicts nor claims; several servers share the database.

**Event ids** are assigned inside the transaction by the only writer, so the order of ids is the order of commits: a
reader that has read the log up to an id has missed nothing below it.

**What the store does not check** is whether the lifecycle has a row for a move: only the machine moves prompts. It
refuses what would corrupt the journal itself, such as a second end. Checking more would do harm: after a batch that was
lost to a full disk, a prompt must still be able to end.
"""

from .interface import (
    Broken,
    ClosingSession,
    ConstraintViolation,
    NoRoom,
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
    SetQuestions,
)
from .records import (
    ASK,
    TERMINAL,
    Event,
    Incarnation,
    Json,
    MessageRecord,
    PromptRecord,
    SessionRecord,
    Transition,
    make_digest,
)
from .schema import MIGRATIONS
from .sqlite import SqliteStore, StoreStatistics
from .steps import EPOCH, CommitAnswer, CommitRequest, Committed, Conflict, Lost, Snapshot
from .troubles import explain

__all__ = [
    "ASK",
    "EPOCH",
    "MIGRATIONS",
    "TERMINAL",
    "AcceptPrompt",
    "AppendEvent",
    "Batch",
    "Broken",
    "ChangePrompt",
    "ClosingSession",
    "CommitAnswer",
    "CommitRequest",
    "Committed",
    "Conflict",
    "ConstraintViolation",
    "DropEvent",
    "Event",
    "ForgetPrompt",
    "HoldSession",
    "Incarnation",
    "Json",
    "Lost",
    "MemoryStore",
    "MessageRecord",
    "MovePrompt",
    "NewSession",
    "NoRoom",
    "Operation",
    "PromptRecord",
    "PutMessage",
    "RaiseMark",
    "ReplaceText",
    "SessionRecord",
    "SetQuestions",
    "Snapshot",
    "SqliteStore",
    "Store",
    "StoreError",
    "StoreStatistics",
    "Transition",
    "Unconfirmed",
    "UnknownSession",
    "Unstorable",
    "explain",
    "make_digest",
]
