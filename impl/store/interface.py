"""What every store guarantees, and the errors that it raises."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar, TypeVar
from uuid import uuid4

from .operations import NEEDS, Batch, Operation, PutMessage
from .records import Event, Incarnation, MessageRecord, PromptRecord, SessionRecord, Transition
from .steps import CommitAnswer, CommitRequest, Committed, Snapshot

V = TypeVar("V")


class StoreError(Exception):
    """The store cannot do what was asked. Carries the problem and the remedy.

    A retry may succeed, unless the class says otherwise (`retry`). The location, and the database's own words
    (`detail`), are for the log: a caller is shown the problem and the remedy only.
    """

    retry: ClassVar[bool] = True

    def __init__(self, where: object, problem: str, remedy: str, detail: object = "") -> None:
        said = " ".join(str(detail).split())[:200]
        super().__init__(f"{where}: {problem}{': ' if said else ''}{said}; {remedy}")
        self.where, self.problem, self.remedy = str(where), problem, remedy


class ConstraintViolation(StoreError):
    """A batch contradicts what is stored. Nothing of it is kept, and a retry cannot succeed."""

    retry = False

    def __init__(self, where: object, operation: Operation) -> None:
        super().__init__(where, f"refused {operation!r:.200}", f"it needs {NEEDS[type(operation)]}")
        self.operation = operation


class NoRoom(StoreError):
    """The disk is full. Nothing of the batch is kept."""


class Unstorable(StoreError):
    """A batch contains a value that cannot be stored. Nothing of it is kept, and a retry cannot succeed."""

    retry = False


class Unconfirmed(StoreError):
    """The disk failed while it confirmed a batch. This process treats the batch as not written, and may retry it. Until
    something else is durable in its place, the whole batch may reappear after a restart."""


class Broken(StoreError):
    """The store is damaged or closed, or has failed in a way that is not known to be transient. Nothing can be written
    any more."""

    retry = False


class UnknownSession(LookupError):
    """There is no such session, or it was deleted."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id}")


class ClosingSession(StoreError):
    """The session accepts nothing more."""

    retry = False


def closed(where: object) -> StoreError:
    return Broken(where, "the store is closed", "open it again")


class Store(ABC):
    """What every store guarantees. A read sees every committed batch, and never a part of one."""

    UNSTORABLE: ClassVar[str] = "half a character (a lone surrogate); send valid Unicode"
    shared: ClassVar[bool] = False  # several processes write to it, and it assigns the seqs

    @abstractmethod
    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        """Start to commit the steps atomically, and return a future of the answer.

        - `Committed`: the steps are durable, and all listeners have been notified of their events.
        - `Conflict`: the session is not at the version on which the steps were computed. Nothing is kept.
        - `Lost`: the steps are from an owner of another epoch. Nothing is kept.

        A commit is idempotent under its id: a repetition gets the first answer. A store remembers at least the latest
        `REMEMBERED` ids. Commits are applied in the order of the calls.

        If the future raises `StoreError`, nothing is kept, so a restart finds nothing either, and the store remains
        usable. `Unconfirmed` is the exception: a restart may or may not find the steps. If the future is canceled, the
        steps may or may not be kept. They are never kept in part.
        """

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        """Commit the steps, and wait for the answer."""
        return await self.begin_commit(steps)

    def begin_append_messages(self, session_id: str, messages: Iterable[MessageRecord], epoch: int | None = None,
                              during: int | None = None) -> "asyncio.Future[CommitAnswer]":
        """Start to store messages of the session without a step. The answer is `Lost` if the owner has another epoch.
        Raises `ConstraintViolation` if the prompt with the seq `during` is done."""
        operations = [PutMessage(message, during) for message in messages]
        return self.begin_commit(CommitRequest("", session_id, None, operations, epoch))

    async def write(self, batch: Batch) -> tuple[int, ...]:
        """Commit operations that are valid on any version of any session, and return the ids of their events."""
        answer = await self.begin_commit(CommitRequest("", "", None, batch))
        assert isinstance(answer, Committed)
        return answer.events

    def is_storable(self, text: str) -> bool:
        """Whether the text can be written at all, as UTF-8: a text that can never be stored must not be accepted."""
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
        return True

    @abstractmethod
    async def load(self, session_id: str) -> Snapshot:
        """The stored session, in one consistent read. While a commit is in flight, the version may be older than the
        rows: a commit on it is then a conflict, never an error. Raises `UnknownSession`."""

    @abstractmethod
    async def load_all(self) -> list[Snapshot]:
        """Every session in the order of creation, in one consistent read."""

    @abstractmethod
    async def prompt(self, key: str | int) -> PromptRecord | None:
        """The prompt with that run id or seq, done or not."""

    @abstractmethod
    async def prompts(self, session_id: str, finished: int, *, before: int | None = None) -> list[PromptRecord]:
        """The session's prompts that are not done, and the latest `finished` of those that are, by seq. With `before`,
        a page of earlier ones: only prompts that are done, with a lower seq. Forgotten prompts are left out."""

    @abstractmethod
    async def done_prompts(self, until: int, limit: int, *, before: int | None = None) -> list[PromptRecord]:
        """At most `limit` of the oldest prompts that can be forgotten, up to seq `until`: those that are done, except
        the latest prompt. `before` is a time: stop at the first prompt that finished at or after it."""

    @abstractmethod
    async def transitions(self, seq: int) -> list[Transition]:
        """Every state of the prompt so far, in order, starting with its acceptance. Empty for a forgotten prompt."""

    @abstractmethod
    async def latest_seq(self) -> int:
        """The highest seq that a prompt has or that a mark covers, or 0. A seq at or below a mark must never be given
        out again, even if its prompt was never journaled: the next prompt under it would be canceled by that cancel."""

    @abstractmethod
    async def sessions(self) -> list[SessionRecord]:
        """All sessions in the order of creation."""

    @abstractmethod
    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[MessageRecord]:
        """The session's messages, in the order in which they were first stored: from id `since` on, before id `before`,
        and of these only the last `last`. Empty if the session has no message with such an id."""

    @abstractmethod
    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        """The events above id `after` and up to `until`, in order of id. With `session`, only those of that session;
        with `terminal`, only terminal ones. At most `limit`."""

    @abstractmethod
    async def latest_event(self) -> int:
        """The highest id in the log, or 0."""

    @abstractmethod
    async def first_event(self, since: int = 0) -> int:
        """The lowest id of an event made at that time or later; if there is none, one above the highest. Assumes that
        events were made in the order of their ids."""

    @abstractmethod
    async def incarnations(self) -> list[Incarnation]:
        """The incarnations of the store that have written the log, in order: one per opening. The current one starts
        after the last event found at opening. If published events have been lost by then, their ids are used again
        under its name."""

    @abstractmethod
    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener` with the highest id in the log after each commit that appended events. It is called in the
        running event loop, before the committing callers are answered. Returns a function that ends this."""

    @abstractmethod
    def close(self) -> None:
        """Finish the writes that were submitted, and release all resources. Idempotent."""


def discard(listeners: list[V], listener: V) -> None:
    with suppress(ValueError):
        listeners.remove(listener)


def draw_name() -> str:
    """A new unique name for a life of a store."""
    return uuid4().hex[:12]
