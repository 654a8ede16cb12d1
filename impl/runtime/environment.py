"""What the outboxes of one runtime share: store, broker, turns, and the ownership of sessions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.protocol import Protocol as Rules

from ..store import Committed, Json, Store
from .entry import Entry
from .events import Broker
from .refusals import Closing, NoSession, Stuck
from .run import Run
from .session import Counter
from .trace import TraceWriter
from .writer import Writer

if TYPE_CHECKING:
    from .outbox import Outbox

log = logging.getLogger("cancelmark")

Ready = Callable[[str], Awaitable[None]]


class Ownership(Protocol):
    """Decides whether this process runs the prompts of a session. It answers questions, and adds claims and releases to
    commits."""

    shared: bool  # other servers may write to a session and own it
    until: str  # when a stuck session goes on
    remedy: str  # what a caller of a stuck session can do
    interrupted: str  # the error of a turn whose server is gone

    async def start(self) -> None:
        """Recover what the previous run of this process has left."""

    async def create(self, id: str, title: str) -> None:
        """Create a session."""

    async def reach(self, session_id: str) -> "Outbox":
        """The outbox of the session, up to date with the store. Raises `NoSession`, `Stuck`."""

    def leave(self, deadline: float) -> Awaitable[None]:
        """Stop accepting prompts, stop running turns, and close the store."""

    def refuse(self) -> Closing:
        """The error for callers while this process is closing."""

    def refuse_unsaved(self) -> Closing:
        """The error for waiters whose prompt or call was not stored before this process closed."""

    def enters_here(self, box: "Outbox") -> bool:
        """Whether a prompt accepted now also enters here, in the same commit."""

    def may_start(self) -> bool:
        """Whether this process may start turns."""

    def get_claims(self, box: "Outbox", batch: Sequence[Entry]) -> tuple[str, str]:
        """The claim and the release to send with the commit, each empty for none (`store.steps`)."""

    def on_committed(self, box: "Outbox", answer: Committed) -> bool:
        """Take note of a stored commit. Returns whether this process has become the owner by it."""

    def on_settled(self, box: "Outbox", answer: Committed) -> None:
        """Called when the effects of a stored commit are applied."""

    def name_node(self, box: "Outbox") -> str:
        """The name of the server that runs the session's turns, in a cluster."""


class Workers(Protocol):
    """What starts and stops turns."""

    def start(self, box: "Outbox", run: Run) -> None: ...
    def begin_grace(self, box: "Outbox", run: Run) -> None: ...
    def release(self, run: Run) -> None: ...
    def admit(self, box: "Outbox", run: Run) -> None: ...
    def settle(self, box: "Outbox", run: Run) -> None: ...


class Environment:
    """What the outboxes of one runtime share."""

    turns: Workers
    ownership: Ownership
    ready: Ready | None = None  # awaited with the session's id before an accepted prompt enters

    def __init__(self, store: Store, broker: Broker, trace: TraceWriter | None, protocol: Rules) -> None:
        self.store, self.broker, self.trace, self.protocol = store, broker, trace, protocol
        self.counter = Counter()
        self.boxes: dict[str, Outbox] = {}
        self.describe: Callable[[str], Json] = lambda session_id: {"id": session_id}  # a session as updates show it
        self.ended = dict.fromkeys(Outcome, 0)  # prompts that ended with each outcome since this process started
        self.closing = False
        self.pending = 0  # intents that are not stored yet
        self.quiet = asyncio.Event()  # the runtime is closing, and everything is done
        self.over = asyncio.Event()  # the runtime has closed: no more retries
        self.writer = Writer(store, self.over)
        self.tasks: set[asyncio.Future[None]] = set()
        self.left: set[asyncio.Future[None]] = set()  # tasks of turns that were abandoned
        self._committing: dict[asyncio.Future[None], Outbox] = {}

    def find(self, session_id: str) -> "Outbox":
        """The session's outbox. Raises `NoSession`."""
        try:
            return self.boxes[session_id]
        except KeyError:
            raise NoSession(f"there is no session {session_id}; create it first") from None

    @property
    def runs(self) -> "list[tuple[Outbox, Run]]":
        """The prompts that are not done, each with its outbox."""
        return [(box, run) for box in self.boxes.values() for run in box.runs.values()]

    def spawn(self, work: Coroutine[Any, Any, None], box: "Outbox | None" = None) -> "asyncio.Task[None]":
        """Run the coroutine in a task of its own. With `box`, the task commits for that outbox, which becomes stuck if
        the task is canceled."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        if box:
            self._committing[task] = box
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Future[None]") -> None:
        self.tasks.discard(task)
        self.left.discard(task)
        box = self._committing.pop(task, None)
        if box and task.cancelled() and not self.over.is_set():  # the event loop is shutting down
            box.stop(Stuck(f"session {box.session.id} was interrupted; restart the server"))
            box.stop_working()
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Stuck):
            log.error("background task failed", exc_info=error)

    def check_quiet(self) -> None:
        """Set `quiet` if the runtime is closing and everything is done. Nothing new starts while it closes, so it stays
        quiet."""
        if self.closing and not (self.pending or any(box.runs for box in self.boxes.values())):
            self.quiet.set()
