"""Intents: what callers want of a session, and the entry that holds one in an outbox until it is stored."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import wire
from .run import Run
from .session import TakenStep

if TYPE_CHECKING:
    from .outbox import Outbox


class Decision(NamedTuple):
    """What an intent does to a session: the steps it took, the answer for its caller, and the call to publish. The
    answer and the call are delivered once the steps, and everything submitted before, are stored."""

    steps: Sequence[TakenStep] = ()
    answer: Any = None  # an exception is raised at the caller
    call: wire.Called | None = None


class Intent:
    """What a caller wants of a session. It may be applied more than once; only the last application counts."""

    accepts = False  # it accepts a prompt
    alone = False  # it starts a new commit, apart from earlier acceptances
    fatal = False  # the session cannot go on without it
    run: Run | None = None  # of the prompt that it accepts

    def apply(self, box: "Outbox") -> Decision:
        """Take the steps, without suspending."""
        raise NotImplementedError


class Barrier(Intent):
    """A barrier: it is answered when everything submitted before it is."""

    def apply(self, box: "Outbox") -> Decision:
        return Decision()


NOTHING = Barrier()


class Entry:
    """An intent in an outbox."""

    __slots__ = ("after", "answer", "applied", "call", "done", "intent", "steps", "traced")

    def __init__(self, intent: Intent, done: "asyncio.Future[Any] | None") -> None:
        self.intent, self.done = intent, done
        self.steps: Sequence[TakenStep] = ()
        self.answer: Any = None
        self.call: wire.Called | None = None
        self.after: int | None = None  # the last line of the trace when it was first applied
        self.applied = self.traced = False

    def resolve(self, answer: Any) -> None:
        if self.done and not self.done.done():
            if isinstance(answer, BaseException):
                self.done.set_exception(answer)
                self.done.exception()  # mark it as retrieved: the caller may have stopped waiting
            else:
                self.done.set_result(answer)
