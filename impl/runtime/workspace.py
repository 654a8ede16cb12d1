"""Workspaces: a workspace is a directory whose sessions clients share. Each has a runtime and a file of its own.

**How long a workspace is open.** A run belongs to its workspace, never to a request or a connection. A workspace stays
open while a client is attached to it, then for a grace period after the last client has left or the last call has named
it, and in any case until its prompts are done. Then it closes like a server that shuts down: it accepts nothing more,
cancels every session, waits for every run, and closes the store. Opening the same path again finds the same workspace,
with its sessions. Workspaces that a crash has left open are open again after the restart, and resume.

**The data directory** belongs to one server at a time:

    index.db            the workspaces: id, path, log, and whether each is open and its agent ready
    workspaces/ID.db    the sessions, messages, prompts and events of one, with SQLite's files beside it
    server.json         where the server listens, while it runs (`discovery`)

The id of a workspace follows from its path. Its `log` identifies events that were written before incarnations of
the log had names (`offsets`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from os.path import realpath
from pathlib import Path
from time import time
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5
from weakref import WeakValueDictionary

from cancelmark.model.family import Feature
from cancelmark.model.protocol import FAMILY, Protocol

from .. import wire
from ..files import make_directory
from ..models import Attachment, Model, Role
from ..store import MemoryStore, MessageRecord, SessionRecord, SqliteStore, Store, StoreError
from ..store.index import Index, Record, make_private
from ..store.offsets import Offsets
from .conversation import read_back, summarize
from .events import Broker, Notice, Update
from .messages import wire_message, wire_part
from .refusals import Busy, Closing, Leaving, NoSession, Refusal, RunIdInUse, Stuck
from .retention import EVERYTHING, Retention
from .runtime import Runtime
from .trace import TraceWriter
from .turn import ToolRunner

log = logging.getLogger("cancelmark.workspace")

GRACE = 300.0  # seconds
QUEUE = 1000  # prompts of one session that are not done
OPEN = 64  # workspaces
FULL_FOR = 10.0  # seconds for which a server is not ready after its disk was full


class Unknown(LookupError):
    """There is no such workspace, or session."""


class NotReady(Refusal):
    """The workspace's agent has not been initialized."""


class Full(Refusal):
    """A limit is reached; a later retry may succeed."""


class Watch:
    """The notices of a workspace for one reader. If the reader stalls, the watch can rest: until it resumes it
    misses updates, but no events."""

    def __init__(self, broker: Broker, after: int | None) -> None:
        self._broker, self._subscription = broker, broker.subscribe(after)
        self._closed = False

    @property
    def offset(self) -> int:
        """The offset to resume with: every event up to this id was returned."""
        return self._subscription.offset

    async def take(self) -> Notice | None:
        """The next notice, if there is one already."""
        return await self._subscription.take()

    @property
    def over(self) -> bool:
        """Whether the subscription ends once its buffer is empty."""
        return self._subscription.exhausted

    async def wait(self) -> None:
        """Wait for a notice, for the end, or for `nudge`. Call it when there is nothing to take."""
        await self._subscription.wait()

    def nudge(self) -> None:
        """End a wait."""
        self._subscription.nudge()

    async def settle(self, seconds: float) -> None:
        """Wait so many seconds, or until there is an event."""
        await self._subscription.settle(seconds)

    def rest(self) -> None:
        self._subscription.pause()

    def resume(self) -> None:
        resting, self._subscription = self._subscription, self._broker.subscribe(self.offset)
        resting.close()
        if self._closed:
            self._subscription.close()

    def close(self) -> None:
        """End it for good, also for a reader that waits."""
        self._closed = True
        self._subscription.close()


class Workspace:
    """One open workspace."""

    def __init__(self, record: Record, runtime: Runtime, offsets: Offsets, sessions: Iterable[SessionRecord],
                 grace: float, queue: int, left: Callable[["Workspace"], None],
                 retention: Retention = EVERYTHING) -> None:
        self.id, self.path, self.log, self.ready = record.id, record.path, record.log, record.ready
        self.runtime, self.offsets, self.grace, self.queue = runtime, offsets, grace, queue
        self._sessions = {session.id: session for session in sessions}
        runtime.describe = self._tell_session
        self._order = list(self._sessions)
        self._positions = {id: position for position, id in enumerate(self._order)}
        self._accepting: Counter[str] = Counter()  # prompts of a session that are not stored yet
        self._claims: dict[str, float] = {}  # expiry by client; never while it is attached
        self._watches: dict[str, set[Watch]] = {}  # by client
        self.attached = 0  # open watches
        self._left, self._alarm = left, asyncio.get_running_loop().call_later(grace, self._look)
        self._letting_go = asyncio.ensure_future(retention.apply_for_ever(runtime.store, runtime.broker))

    # --- claims keep it open

    @property
    def clients(self) -> list[str]:
        """The clients that hold a claim."""
        now = asyncio.get_running_loop().time()
        return [client for client, until in self._claims.items() if client and until > now]

    def claim(self, client: str = "") -> None:
        """Keep the workspace open for the grace period from now on. Without a client, the claim is anonymous."""
        if self._claims.get(client) != inf:
            self._claims[client] = asyncio.get_running_loop().time() + self.grace

    @contextmanager
    def watch(self, client: str, after: int | None) -> Iterator[Watch]:
        """A watch of everything that happens, including events above the id `after`. It keeps the workspace open while
        it lasts, and ends when the client is released."""
        watch = Watch(self.runtime.broker, after)
        self._claims[client] = inf
        self._watches.setdefault(client, set()).add(watch)
        self.attached += 1
        try:
            yield watch
        finally:
            watch.close()
            self.attached -= 1
            others = self._watches.get(client, set())
            others.discard(watch)
            if not others and self._watches.pop(client, None) is not None:
                del self._claims[client]
                self.claim(client)

    def release(self, client: str) -> bool:
        """Drop the client's claim and end its streams. Returns whether it had a claim."""
        known = self._claims.pop(client, None) is not None
        for watch in self._watches.pop(client, ()):
            watch.close()
        if known:
            self.claim()
        return known

    def wanted(self) -> bool:
        """Whether there is a claim, or a prompt that is not done: prompts outlive their watchers. If so, schedules the
        next check."""
        loop = asyncio.get_running_loop()
        self._claims = {client: until for client, until in self._claims.items() if until > loop.time()}
        wanted = bool(self._claims) or bool(self.runtime.unfinished())  # a stuck session does not count
        if wanted:
            wait = max(self._claims.values(), default=inf) - loop.time()
            self._alarm.cancel()
            self._alarm = loop.call_later(min(wait, self.grace), self._look)
        return wanted

    def _look(self) -> None:
        if not self.wanted():
            self._left(self)

    # --- in a cluster

    async def look(self, session_id: str | None = None) -> None:
        """Reconcile the session, or all sessions, with what other servers have stored. No effect on a single server."""

    async def find_owner(self, session_id: str) -> str:
        """The name of the server that runs the session's turns, in a cluster."""
        return ""

    async def hear(self) -> None:
        """Learn the latest offset of the event log from the store. No effect on a single server."""

    # --- sessions

    async def create_session(self, title: str) -> SessionRecord:
        id = str(uuid4())
        await self.runtime.create_session(id, title)
        session = self._sessions[id] = SessionRecord(id, title, 0, int(time()))
        self._positions[id] = len(self._order)
        self._order.append(id)
        self.runtime.broker.publish(Update(id, "session", self._tell_session(id)))
        return session

    def _tell_session(self, id: str) -> dict[str, Any]:
        session = self._sessions[id]
        return {"id": id, "title": session.title, "created_at": session.created_at}

    @property
    def number_of_sessions(self) -> int:
        return len(self._sessions)

    def sessions(self, before: str | None = None) -> Iterator[SessionRecord]:
        """The sessions, latest first; with `before`, only those created before that one."""
        end = len(self._order) if before is None else self._positions[before]
        return (self._sessions[self._order[position]] for position in range(end - 1, -1, -1))

    def has_session(self, id: str) -> bool:
        return id in self._sessions

    def session(self, id: str) -> SessionRecord:
        try:
            return self._sessions[id]
        except KeyError:
            raise Unknown(f"there is no session {id!r:.80}; create it first") from None

    # --- prompts

    async def accept(self, session_id: str, text: str, run_id: str | None,
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> wire.Accepted:
        """Accept a prompt. Idempotent under a run id: the same prompt again is answered with the seq that it has.
        Raises `Refusal` if it is not accepted, and `StoreError` if it is not or if that is unknown."""
        if not self.ready:
            raise NotReady("the agent is not initialized; POST to agent/init first")
        if session_id not in self._sessions:
            await self.look(session_id)
        if session_id not in self._sessions:
            raise NoSession(f"session_id: there is no session {session_id!r:.80}; create it first")
        try:
            waiting = self.runtime.unfinished(session_id) + self._accepting[session_id]
            if waiting >= self.queue and not self.runtime.closing:
                raise Full(f"session {session_id} has {self.queue} prompts that are not done; wait until some are")
            self._accepting[session_id] += 1
            try:
                handle = await self.runtime.accept(session_id, text, run_id, attachments, mode)
                return wire.Accepted(session_id, handle.seq, run_id or "", handle.held)
            finally:
                self._accepting[session_id] -= 1
        except (RunIdInUse, Closing, Full, Stuck, Busy, StoreError) as refusal:
            # A caller that retries an accepted prompt must still get its seq.
            try:
                known = await self.runtime.store.prompt(run_id) if run_id is not None else None
            except StoreError as error:  # it may have been accepted before, which a refusal would deny
                if isinstance(refusal, Closing):
                    raise Leaving() from error
                raise
            if known is None and isinstance(refusal, RunIdInUse):  # the session was deleted meanwhile
                raise NoSession(f"session_id: session {session_id} was deleted; create another") from refusal
            if known is None:
                raise
            if known.session_id != session_id or not known.was(text, [*map(wire_part, attachments)]):
                raise RunIdInUse(f"run_id: {run_id!r:.80} is in use by another prompt; choose a new one") from None
            if not self.runtime.has_session(session_id):
                await self.look(session_id)
            return wire.Accepted(session_id, known.seq, run_id or "", self.runtime.is_held(session_id))

    async def summarize(self, session_id: str) -> None:
        """Write a summary of the session, from which its next turn continues. A busy session raises `Busy`; an empty
        one is left as it is."""
        self.session(session_id)
        self._refuse_if_busy(session_id)
        runtime = self.runtime
        conversation = await read_back(partial(runtime.store.messages, session_id))
        if all(heard.role is Role.SYSTEM for heard in conversation):
            return
        summary = await summarize(runtime.model.step, conversation)
        self._refuse_if_busy(session_id)
        now = int(time())
        message = MessageRecord(f"summary-{uuid4()}", session_id, Role.SYSTEM.value,
                          (wire_part(summary),), created_at=now, updated_at=now)
        await runtime.store.begin_append_messages(session_id, [message])
        runtime.broker.publish(Update(session_id, "message", wire_message(message)))

    def _refuse_if_busy(self, session_id: str) -> None:
        if self.runtime.is_busy(session_id):
            raise Busy(f"session {session_id} is busy; summarize it when its prompts are done")

    async def close(self, deadline: float | None = None) -> None:
        """Accept nothing more, cancel every session, wait for every run, and close the store."""
        self._alarm.cancel()
        self._letting_go.cancel()
        await self.runtime.close(deadline)
        if self.runtime.trace:
            self.runtime.trace.close()


class Workspaces:
    """The workspaces of one server. Without a directory nothing outlives the process. With `traces`, each workspace
    writes its trace to a file of its own there."""

    closing_refusal: type[Closing] = Closing

    def __init__(self, model: Model, directory: Path | None = None, *, grace: float = GRACE, stop: float = 5.0,
                 queue: int = QUEUE, limit: int = OPEN, traces: Path | None = None,
                 retention: Retention = EVERYTHING, protocol: Protocol = FAMILY,
                 tools: Sequence[ToolRunner] = ()) -> None:
        self.model, self.directory, self.traces, self.retention = model, directory, traces, retention
        self.protocol, self.tools = protocol, tools
        self.grace, self.stop, self.queue, self.limit = grace, stop, queue, limit
        self.closing = False
        self.full_until = 0.0  # on the event loop's clock
        self._open: dict[str, Workspace] = {}
        self._opening = 0  # workspaces that are being opened
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # a lock lives as long as a holder
        self._tasks: set[asyncio.Task[None]] = set()
        if directory is not None:
            make_directory(directory, "--data-dir")
            make_directory(directory / "workspaces", "--data-dir")
        if traces is not None:
            make_directory(traces, "--trace")
        self._index = Index(directory)
        if directory is not None:
            make_private(directory)

    async def start(self) -> None:
        """Open the workspaces that were open when the previous process ended. Each resumes where it was."""
        for record in self._index.all().values():
            if record.open:
                try:
                    self._open[record.id] = await self._opened(record)
                except Exception as error:  # the other workspaces must open anyway
                    log.error("workspace could not be opened", extra={"workspace": record.id, "problem": error},
                              exc_info=None if isinstance(error, StoreError) else error)

    async def open(self, path: str, client: str = "") -> Workspace:
        """The workspace of this path, with symbolic links resolved. Opens it if it is not open."""
        try:
            resolved = await asyncio.to_thread(realpath, path)  # a slow disk must not block the event loop
        except OSError as error:
            raise Refusal(f"path: {path!r:.200} cannot be resolved: {error.strerror}; choose another path") from None
        id = str(uuid5(NAMESPACE_URL, f"file://{resolved}"))
        async with self._lock(id):
            workspace = await self._find_open(id)
            if workspace is None:
                if self.closing:
                    raise self.closing_refusal()
                record = await self._known(id) or Record(id, resolved, "", True, False)
                with self._reserve_slot():
                    workspace = self._open[id] = await self._opened(record._replace(open=True))
                log.info("workspace opened", extra={"workspace": id})
            workspace.claim(client)
        return workspace

    @contextmanager
    def _reserve_slot(self) -> Iterator[None]:
        """Reserve one of `limit` slots while a workspace is being opened. Raises `Full`."""
        if len(self._open) + self._opening >= self.limit:
            raise Full(f"the limit of {self.limit} open workspaces is reached; delete one, or retry later")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def __iter__(self) -> Iterator[Workspace]:
        return iter(list(self._open.values()))

    def get(self, id: str) -> Workspace:
        """The open workspace with this id. Looking it up keeps it open for the grace period."""
        workspace = self._open.get(id)
        if workspace is None:
            raise Unknown(f"there is no workspace {id!r:.80}; open it by its path first")
        workspace.claim()
        return workspace

    async def find(self, id: str) -> Workspace:
        """The workspace with this id. In a cluster, also one that another server has opened."""
        return self.get(id)

    async def _find_open(self, id: str) -> Workspace | None:
        return self._open.get(id)

    async def _known(self, id: str) -> Record | None:
        return self._index.all().get(id)

    async def is_ready(self) -> bool:
        """Whether the server can take work now, as far as is known: not for a while after the disk was full."""
        return not self.closing and asyncio.get_running_loop().time() >= self.full_until

    def note_full(self) -> None:
        """Take note that a call has found the disk full."""
        self.full_until = asyncio.get_running_loop().time() + FULL_FOR

    def figures(self) -> Mapping[str, tuple[str, float]]:
        """Further metrics, by name: the help text and the value of each."""
        return {}

    async def ready(self, workspace: Workspace) -> None:
        """Initialize the workspace's agent: from now on it accepts prompts."""
        if not workspace.ready:
            await self._put(Record(workspace.id, workspace.path, workspace.log, True, True))
            workspace.ready = True

    async def delete(self, id: str, deadline: float | None = None, *, forget: bool = False) -> None:
        """Close the workspace. Its file is kept, and opening the path again finds what was there. With `forget` the
        file is deleted, and opening the path again makes a new workspace."""
        workspace = self.get(id)
        async with self._lock(id):
            if self._open.get(id) is workspace:
                await self._closed(workspace, deadline)
                if forget:
                    await asyncio.to_thread(self._forget, id)
                    log.info("workspace forgotten", extra={"workspace": id})

    def _forget(self, id: str) -> None:
        """Delete the files, then the index record: an interrupted deletion leaves no file that the index does not know.
        SQLite's side files go first, or the next database would read them."""
        if self.directory is not None:
            file = self.directory / "workspaces" / f"{id}.db"
            beside = sorted(file.parent.glob(f"{id}.db-*"), reverse=True)  # -wal, -v3, -shm, -lock
            try:
                for path in (*beside, file):
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(file, f"the file cannot be deleted: {error.strerror}", "delete it by hand") from error
        self._index.remove(id)

    def release(self, client: str) -> int:
        """Drop the client's claims, and return how many there were."""
        return sum(workspace.release(client) for workspace in self)

    async def close(self, deadline: float | None = None) -> None:
        """Close everything, within about `deadline` seconds. A restart opens the same workspaces again."""
        self.closing = True
        await asyncio.gather(*(workspace.close(deadline) for workspace in self))
        for id in list(self._locks):  # let running opens and closes finish
            async with self._lock(id):
                pass
        await asyncio.gather(*(workspace.close(deadline) for workspace in self))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._index.close()

    async def _opened(self, record: Record) -> Workspace:
        def make() -> tuple[MemoryStore | SqliteStore, Record]:
            if self.directory is None:
                return MemoryStore(), record._replace(log=uuid4().hex[:8])
            file = self.directory / "workspaces" / f"{record.id}.db"
            fresh = not (record.log and file.exists())
            return SqliteStore(file), record._replace(log=uuid4().hex[:8]) if fresh else record

        store, record = await asyncio.to_thread(make)
        try:
            return await self._started(store, record)
        except BaseException:
            store.close()
            raise

    async def _started(self, store: Store, record: Record) -> Workspace:
        await self._put(record)
        trace = None
        if self.traces:
            try:
                trace = TraceWriter(self.traces / f"{record.id}.ndjson")
            except OSError as error:
                log.error("trace could not be opened", extra={"workspace": record.id, "problem": error})
        runtime = Runtime(self.model, store, tools=self.tools, grace=self.stop, trace=trace, protocol=self.protocol)
        await runtime.start()
        offsets = Offsets(await store.incarnations(), record.log)
        return Workspace(record, runtime, offsets, await store.sessions(), self.grace, self.queue, self._left,
                         self.retention)

    async def _put(self, record: Record) -> None:
        await asyncio.to_thread(self._index.put, record)

    async def _closed(self, workspace: Workspace, deadline: float | None = None) -> None:
        await workspace.close(deadline)
        if not self.closing:  # after a shutdown it must open again
            del self._open[workspace.id]
            await self._put(Record(workspace.id, workspace.path, workspace.log, False, workspace.ready))
            log.info("workspace closed", extra={"workspace": workspace.id})

    def _left(self, workspace: Workspace) -> None:
        task = asyncio.ensure_future(self._leave(workspace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, workspace: Workspace) -> None:
        async with self._lock(workspace.id):
            if self._open.get(workspace.id) is workspace and not workspace.wanted():  # no client has returned
                log.info("last client left; closing the workspace", extra={"workspace": workspace.id})
                await self._closed(workspace)

    def _lock(self, id: str) -> asyncio.Lock:
        return self._locks.setdefault(id, asyncio.Lock())
