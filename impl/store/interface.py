"""What every store promises, and how it says that it cannot keep it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar, TypeVar
from uuid import uuid4

from .operations import NEEDS, Batch, Operation, PutMessage
from .records import Event, Life, Message, PromptRecord, SessionRecord, Transition
from .steps import Answer, Committed, Snapshot, Steps

V = TypeVar("V")


class StoreError(Exception):
    """The store cannot do what was asked: where, what the problem is and what to do about it. Trying again may help,
    unless it is one of the kinds below. Where it is, and the database's own words (`detail`), are for the log:
    a caller is told the problem and the remedy."""

    retry: ClassVar[bool] = True

    def __init__(self, where: object, problem: str, remedy: str, detail: object = "") -> None:
        said = " ".join(str(detail).split())[:200]
        super().__init__(f"{where}: {problem}{': ' if said else ''}{said}; {remedy}")
        self.where, self.problem, self.remedy = str(where), problem, remedy


class Refused(StoreError):
    """A batch contradicts what is stored. Nothing of it is kept, and trying again cannot help."""

    retry = False

    def __init__(self, where: object, operation: Operation) -> None:
        super().__init__(where, f"refused {operation!r:.200}", f"it needs {NEEDS[type(operation)]}")
        self.operation = operation


class NoRoom(StoreError):
    """The disk is full. Nothing of the batch is kept."""


class Unstorable(StoreError):
    """A batch has a value that cannot be stored. Nothing of it is kept, and trying again cannot help."""

    retry = False


class Unconfirmed(StoreError):
    """The disk failed while it confirmed a batch. For this process nothing of the batch is kept, and it can be written
    again; but until something else is durable in its place, a restart may find it, as a whole."""


class Broken(StoreError):
    """The store is damaged or closed, or fails in a way that is not known to pass. Nothing can be written any more."""

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
    """What every store promises. Reading sees every batch that was committed, and never a part of one."""

    UNSTORABLE: ClassVar[str] = "half a character in it (a lone surrogate); send whole ones"
    shared: ClassVar[bool] = False  # several processes write to it, and it gives out the seqs

    @abstractmethod
    def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
        """Begins to keep the steps, all of them or none, and returns a future of what came of it.

        When the answer is `Committed`, the steps are durable and all listeners have been told of their events. Steps
        that were computed on another version than the session has are answered by a `Conflict`, those of an owner of
        another epoch by `Lost`, and nothing of them is kept. Steps whose id was committed before are not kept again,
        and get the first answer; a store remembers the latest `REMEMBERED` ids at least.

        Commits are applied in the order in which the calls were made. When the future raises `StoreError` nothing is
        kept, also not for a restart to find, and the store can be used on. `Unconfirmed` is the exception: nobody knows
        whether a restart will find the steps. When the future is canceled the steps may or may not be kept. They are
        never kept in part (R1c, R1d, R16a, R16b).
        """

    async def commit(self, steps: Steps) -> Answer:
        """Keeps the steps: `begin_commit`, and waits for it."""
        return await self.begin_commit(steps)

    def begin_say(self, session_id: str, messages: Iterable[Message], epoch: int | None = None,
                  ) -> "asyncio.Future[Answer]":
        """Begins to keep what was said in the session without a step. `Lost` if its owner is of another epoch."""
        return self.begin_commit(Steps("", session_id, None, [PutMessage(message) for message in messages], epoch))

    async def write(self, batch: Batch) -> tuple[int, ...]:
        """Keeps operations that hold on any version of any session, and returns the ids of their events."""
        answer = await self.begin_commit(Steps("", "", None, batch))
        assert isinstance(answer, Committed)
        return answer.events

    def is_storable(self, text: str) -> bool:
        """Whether the text can be written at all, as UTF-8: what can never be stored must not be accepted."""
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
        return True

    @abstractmethod
    async def load(self, session_id: str) -> Snapshot:
        """The session as it is stored, in one consistent read. Its version may be older than its rows if a commit is
        under way: a commit on it is then a conflict, never a mistake. Raises `UnknownSession` if there is none."""

    @abstractmethod
    async def load_all(self) -> list[Snapshot]:
        """Every session, in the order in which they were made, in one consistent read."""

    @abstractmethod
    async def prompt(self, key: str | int) -> PromptRecord | None:
        """The prompt with that run id, or that seq, done or not (R22a)."""

    @abstractmethod
    async def prompts(self, session_id: str, finished: int, *, before: int | None = None) -> list[PromptRecord]:
        """The session's prompts that are not done, and so many of those that are, the latest, all by seq. With
        `before`, a page of what came earlier: only those that are done, with a lower seq. Without those that are
        forgotten."""

    @abstractmethod
    async def done_prompts(self, until: int, limit: int, *, before: int | None = None) -> list[PromptRecord]:
        """At most `limit` of the oldest prompts that can be forgotten, up to seq `until`: those that are done, but not
        the latest prompt. With `before`, only those that come before the first that was done at that time or later."""

    @abstractmethod
    async def transitions(self, seq: int) -> list[Transition]:
        """Every state that the prompt has come to, in order, the first being that of its acceptance. Of one that is
        forgotten, none."""

    @abstractmethod
    async def latest_seq(self) -> int:
        """The highest seq that was ever given out, or 0. Marks count: a seq that a cancel has covered was given out,
        even if its prompt was never journaled, and the prompt that got it next would be canceled by that
        cancel (R17e)."""

    @abstractmethod
    async def sessions(self) -> list[SessionRecord]:
        """All sessions, in the order in which they were made."""

    @abstractmethod
    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[Message]:
        """The session's messages, in the order in which they were first put: from the message with id `since` on, up to
        the one with id `before` and without it, only the `last` so many of these. If the session has no message with
        such an id, there are none."""

    @abstractmethod
    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        """The events above id `after` and up to `until`, by id: of one session, only terminal ones, at most `limit`."""

    @abstractmethod
    async def latest_event(self) -> int:
        """The highest id in the log, or 0."""

    @abstractmethod
    async def first_event(self, since: int = 0) -> int:
        """The lowest id in the log of an event that was made at that time or later. If there is none, one above the
        highest. Events are taken to be made in the order of their ids."""

    @abstractmethod
    async def lives(self) -> list[Life]:
        """Who has written the log, in order. The last life is this one, from the next event that it had not found when
        it was opened. If it finds less of the log than the life before has told, the events that get the same ids are
        of another life (R29c)."""

    @abstractmethod
    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """From now on calls `listener` with the highest id in the log after each commit that appended events, in the
        running event loop and before the writers are told. Returns a function that ends this."""

    @abstractmethod
    def close(self) -> None:
        """Finishes the writes that have been asked for and lets go of everything. Closing twice is closing once."""


def discard(listeners: list[V], listener: V) -> None:
    with suppress(ValueError):
        listeners.remove(listener)


def draw_name() -> str:
    """A name for a life of a store, which no other has."""
    return uuid4().hex[:12]
