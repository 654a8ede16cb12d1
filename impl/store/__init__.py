"""What survives a crash: sessions and their marks, messages, the journal of prompts, and the log of events.

A caller describes a change as a batch of operations and awaits `Store.write`. A batch is kept as a whole or not at all,
and is durable when `write` returns; a prompt's end and its terminal event are put into one batch, so nobody can ever
find one without the other. Two stores have this interface: `SqliteStore`, a file, and `MemoryStore`, which keeps the
same promises except for the crash.

**Event ids** are given out inside the transaction, by the only writer, so that the order of ids is the order of
commits: whoever has read the log up to an id has missed nothing below it.

**What the store does not judge** is whether the lifecycle has a row for a move: only the machine moves prompts. It
refuses what would break the journal itself, such as a second end. More would hurt: after a batch that was lost to a
full disk, a prompt must still be able to end.
"""

from .interface import Broken, Refused, Store, StoreError, Unstorable
from .memory import MemoryStore
from .operations import AcceptPrompt, AppendEvent, Batch, MovePrompt, NewSession, Operation, PutMessage, RaiseMark
from .records import TERMINAL, Event, Json, Message, PromptRecord, SessionRecord, Transition
from .schema import MIGRATIONS
from .sqlite import SqliteStore, StoreStatistics

__all__ = [
    "MIGRATIONS", "TERMINAL", "AcceptPrompt", "AppendEvent", "Batch", "Broken", "Event", "Json", "MemoryStore",
    "Message", "MovePrompt", "NewSession", "Operation", "PromptRecord", "PutMessage", "RaiseMark", "Refused",
    "SessionRecord", "SqliteStore", "Store", "StoreError", "StoreStatistics", "Transition", "Unstorable",
]
