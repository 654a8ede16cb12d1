"""Workspaces: what a server keeps for a path. Each is a runtime with its sessions, in a file of its own.

A run belongs to its workspace, never to a request or a connection. A workspace lives while a client is attached to it,
and for a grace period after the last one has left or the last call has named it, and in any case until its prompts are
done (R26); then it closes as a server does that shuts down: nothing more is accepted, every session is canceled, every
run is waited for, the store is closed. Opening the same path again finds the same workspace, with its sessions.
Workspaces that a crash has left open are open again after the restart, and go on.

A data directory belongs to one server at a time:

    index.db            the workspaces: id, path, log, and whether each is open and its agent ready
    workspaces/ID.db    the sessions, messages, prompts and events of one, with SQLite's files beside it
    server.json         where the server listens, while it runs (`discovery`)

The id of a workspace follows from its path. Its `log` names what was written to its log of events before lives had
names (`places`).
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
from ..store import MemoryStore, Message, SessionRecord, SqliteStore, Store, StoreError
from ..store.index import Index, Record, make_private
from ..store.places import Places
from .conversation import read_back, summarize
from .events import Broker, Notice, Update
from .messages import wire_message, wire_part
from .refusals import Busy, Closing, NoSession, Refusal, RunIdInUse, Stuck
from .retention import EVERYTHING, Retention
from .runtime import Runtime
from .trace import TraceWriter

log = logging.getLogger("cancelmark.workspace")

GRACE = 300.0  # seconds
QUEUE = 1000  # prompts of one session that are not done
OPEN = 64  # workspaces
FULL_FOR = 10.0  # seconds for which a server whose disk was found full is not ready


class Unknown(LookupError):
    """There is no such workspace, or session."""


class NotReady(Refusal):
    """The workspace's agent has not been initialized."""


class Full(Refusal):
    """A limit is reached; later there may be room."""


class Watch:
    """The notices of a workspace for one reader. It can rest: until it resumes nobody has to care for it, and it misses
    updates, but no events."""

    def __init__(self, broker: Broker, after: int | None) -> None:
        self._broker, self._subscription = broker, broker.subscribe(after)
        self._closed = False

    @property
    def place(self) -> int:
        """What to come back with: every event up to this id has been seen."""
        return self._subscription.place

    async def take(self) -> Notice | None:
        """The next notice, if there is one already."""
        return await self._subscription.take()

    @property
    def over(self) -> bool:
        """Whether nothing can come any more, if there is nothing to take."""
        return self._subscription.over

    async def wait(self) -> None:
        """Waits for a notice, for the end, or to be nudged. Call it when there is nothing to take."""
        await self._subscription.wait()

    def nudge(self) -> None:
        """Ends a wait."""
        self._subscription.nudge()

    async def settle(self, seconds: float) -> None:
        """Waits for so long, or until there is an event."""
        await self._subscription.settle(seconds)

    def rest(self) -> None:
        self._subscription.rest()

    def resume(self) -> None:
        resting, self._subscription = self._subscription, self._broker.subscribe(self.place)
        resting.close()
        if self._closed:
            self._subscription.close()

    def close(self) -> None:
        """Ends it for good, also for a reader that waits."""
        self._closed = True
        self._subscription.close()


class Workspace:
    """One open workspace."""

    def __init__(self, record: Record, runtime: Runtime, places: Places, sessions: Iterable[SessionRecord],
                 grace: float, queue: int, left: Callable[["Workspace"], None],
                 retention: Retention = EVERYTHING) -> None:
        self.id, self.path, self.log, self.ready = record.id, record.path, record.log, record.ready
        self.runtime, self.places, self.grace, self.queue = runtime, places, grace, queue
        self._sessions = {session.id: session for session in sessions}
        runtime.describe = self._tell_session
        self._order = list(self._sessions)
        self._places = {id: place for place, id in enumerate(self._order)}
        self._accepting: Counter[str] = Counter()  # prompts of a session that are being written
        self._claims: dict[str, float] = {}  # until when, by client; for ever while it is attached
        self._watches: dict[str, set[Watch]] = {}  # by client
        self.attached = 0  # how many watch
        self._left, self._alarm = left, asyncio.get_running_loop().call_later(grace, self._look)
        self._letting_go = asyncio.ensure_future(retention.apply_for_ever(runtime.store, runtime.broker))

    # --- who keeps it open

    @property
    def clients(self) -> list[str]:
        """The clients that hold a claim."""
        now = asyncio.get_running_loop().time()
        return [client for client, until in self._claims.items() if client and until > now]

    def claim(self, client: str = "") -> None:
        """The workspace stays for the grace period from now on, for this client or for nobody in particular."""
        if self._claims.get(client) != inf:
            self._claims[client] = asyncio.get_running_loop().time() + self.grace

    @contextmanager
    def watch(self, client: str, after: int | None) -> Iterator[Watch]:
        """Everything that happens, also what came after that event. It keeps the workspace open while it lasts, and
        ends when the client is released."""
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
        """Takes the client's claim back and ends its streams. False if it had none."""
        known = self._claims.pop(client, None) is not None
        for watch in self._watches.pop(client, ()):
            watch.close()
        if known:
            self.claim()
        return known

    def wanted(self) -> bool:
        """Whether anybody has a claim, or a prompt is not done: prompts outlive those who watch them (R26). Sees to it
        that somebody asks again when that may be over."""
        loop = asyncio.get_running_loop()
        self._claims = {client: until for client, until in self._claims.items() if until > loop.time()}
        wanted = bool(self._claims) or bool(self.runtime.unfinished())  # one that is stuck is not waited for
        if wanted:
            wait = max(self._claims.values(), default=inf) - loop.time()
            self._alarm.cancel()
            self._alarm = loop.call_later(min(wait, self.grace), self._look)
        return wanted

    def _look(self) -> None:
        if not self.wanted():
            self._left(self)

    # --- where several servers share it

    async def look(self, session_id: str | None = None) -> None:
        """Hears of what other servers have done in the session, or in all. A server that is alone knows."""

    async def find_owner(self, session_id: str) -> str:
        """The name of the server that runs the session's turns, where there are several."""
        return ""

    async def hear(self) -> None:
        """Asks how far the log of events has come. A server that is alone knows."""

    # --- sessions

    async def create_session(self, title: str) -> SessionRecord:
        id = str(uuid4())
        await self.runtime.create_session(id, title)
        session = self._sessions[id] = SessionRecord(id, title, 0, int(time()))
        self._places[id] = len(self._order)
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
        """The sessions, or those that were made before that one, the latest first."""
        end = len(self._order) if before is None else self._places[before]
        return (self._sessions[self._order[place]] for place in range(end - 1, -1, -1))

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
        """Accepts a prompt. Idempotent under a run id: the same prompt again is answered with the seq that it has.
        Raises `Refusal` if it is not accepted (R22b, R22c), and `StoreError` if that is unknown."""
        if not self.ready:
            raise NotReady("the agent is not initialized; POST to its init first")
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
        except (RunIdInUse, Closing, Full, Stuck, Busy, StoreError) as refusal:  # what was accepted before is
            if isinstance(refusal, Busy) and run_id is not None:
                await self.runtime.store.write(())  # the same prompt may be just being journaled
            try:
                known = await self.runtime.store.prompt(run_id) if run_id is not None else None
            except StoreError:  # unknown, unless the store has closed with the workspace
                if isinstance(refusal, Closing):
                    raise refusal from None
                raise
            if known is None and isinstance(refusal, RunIdInUse):  # no prompt has it: the session was deleted meanwhile
                raise NoSession(f"session_id: session {session_id} was deleted; create another") from refusal
            if known is None:
                raise
            if known.session_id != session_id or not known.was(text, [*map(wire_part, attachments)]):
                raise RunIdInUse(f"run_id: {run_id!r:.80} is in use by another prompt; choose a new one") from None
            if not self.runtime.has_session(session_id):
                await self.look(session_id)
            return wire.Accepted(session_id, known.seq, run_id or "", self.runtime.is_held(session_id))

    async def summarize(self, session_id: str) -> None:
        """Writes a summary of the session, from which its next turn goes on. Only a session that is not busy has one,
        and only one that has been told something."""
        self.session(session_id)
        self._refuse_if_busy(session_id)
        runtime = self.runtime
        conversation = await read_back(partial(runtime.store.messages, session_id))
        if all(heard.role is Role.SYSTEM for heard in conversation):
            return
        summary = await summarize(runtime.model.step, conversation)
        self._refuse_if_busy(session_id)
        now = int(time())
        message = Message(f"summary-{uuid4()}", session_id, Role.SYSTEM.value,
                          (wire_part(summary),), created_at=now, updated_at=now)
        await runtime.store.begin_say(session_id, [message])
        runtime.broker.publish(Update(session_id, "message", wire_message(message)))

    def _refuse_if_busy(self, session_id: str) -> None:
        if self.runtime.is_busy(session_id):
            raise Busy(f"session {session_id} is busy; summarize it when its prompts are done")

    async def close(self, deadline: float | None = None) -> None:
        """Accepts nothing more, cancels every session, waits for every run, and closes the store."""
        self._alarm.cancel()
        self._letting_go.cancel()
        await self.runtime.close(deadline)
        if self.runtime.trace:
            self.runtime.trace.close()


class Workspaces:
    """The workspaces of one server. Without a directory nothing outlives the process. In `traces`, if given, each
    writes its trace to a file of its own."""

    def __init__(self, model: Model, directory: Path | None = None, *, grace: float = GRACE, stop: float = 5.0,
                 queue: int = QUEUE, limit: int = OPEN, traces: Path | None = None,
                 retention: Retention = EVERYTHING, protocol: Protocol = FAMILY) -> None:
        self.model, self.directory, self.traces, self.retention = model, directory, traces, retention
        self.protocol = protocol
        self.grace, self.stop, self.queue, self.limit = grace, stop, queue, limit
        self.closing = False
        self.full_until = 0.0  # by the clock of the event loop
        self._open: dict[str, Workspace] = {}
        self._opening = 0  # of those that are not open yet
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # who holds one keeps it
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
        """Opens the workspaces that the last life has left open, each of which goes on where it was."""
        for record in self._index.all().values():
            if record.open:
                try:
                    self._open[record.id] = await self._opened(record)
                except Exception as error:  # the others are not to wait for this one
                    log.error("a workspace cannot be opened", extra={"workspace": record.id, "problem": error},
                              exc_info=None if isinstance(error, StoreError) else error)

    async def open(self, path: str, client: str = "") -> Workspace:
        """The workspace of this path, wherever links in it lead. It is opened if it is not open."""
        try:
            resolved = await asyncio.to_thread(realpath, path)  # it may ask a disk that is slow
        except OSError as error:
            raise Refusal(f"path: {path!r:.200} cannot be followed: {error.strerror}; choose another") from None
        id = str(uuid5(NAMESPACE_URL, f"file://{resolved}"))
        async with self._lock(id):
            workspace = await self._find_open(id)
            if workspace is None:
                if self.closing:
                    raise Closing("the server is closing; ask another, or this one when it is back")
                record = await self._known(id) or Record(id, resolved, "", True, False)
                with self._place():
                    workspace = self._open[id] = await self._opened(record._replace(open=True))
                log.info("workspace opened", extra={"workspace": id})
            workspace.claim(client)
        return workspace

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place for a workspace that is being opened, from now on: nobody else can take it meanwhile."""
        if len(self._open) + self._opening >= self.limit:
            raise Full(f"{self.limit} workspaces are open; delete one, or wait until its clients leave one")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def __iter__(self) -> Iterator[Workspace]:
        return iter(list(self._open.values()))

    def get(self, id: str) -> Workspace:
        """The open workspace with this id. That somebody asks for it keeps it open for a while."""
        workspace = self._open.get(id)
        if workspace is None:
            raise Unknown(f"there is no workspace {id!r:.80}; open it by its path first")
        workspace.claim()
        return workspace

    async def find(self, id: str) -> Workspace:
        """The same, also if another server has opened it."""
        return self.get(id)

    async def _find_open(self, id: str) -> Workspace | None:
        return self._open.get(id)

    async def _known(self, id: str) -> Record | None:
        return self._index.all().get(id)

    async def is_ready(self) -> bool:
        """Whether work can be taken now, as far as is known: not for a while after the disk was found full."""
        return not self.closing and asyncio.get_running_loop().time() >= self.full_until

    def note_full(self) -> None:
        """A call has found the disk full."""
        self.full_until = asyncio.get_running_loop().time() + FULL_FOR

    def figures(self) -> Mapping[str, tuple[str, float]]:
        """Figures of its own, by name: what each is, and its value."""
        return {}

    async def ready(self, workspace: Workspace) -> None:
        """Initializes the workspace's agent: from now on it accepts prompts."""
        if not workspace.ready:
            await self._put(Record(workspace.id, workspace.path, workspace.log, True, True))
            workspace.ready = True

    async def delete(self, id: str, deadline: float | None = None, *, forget: bool = False) -> None:
        """Closes the workspace. Its file is kept: opening the path again finds what was there. With `forget` the file
        is deleted, and opening the path again makes a new workspace."""
        workspace = self.get(id)
        async with self._lock(id):
            if self._open.get(id) is workspace:
                await self._closed(workspace, deadline)
                if forget:
                    await asyncio.to_thread(self._forget, id)
                    log.info("workspace forgotten", extra={"workspace": id})

    def _forget(self, id: str) -> None:
        """Deletes the files before the record: if that is interrupted, no file is left that nobody knows of. SQLite's
        files beside the database go first, or the next database would find them."""
        if self.directory is not None:
            file = self.directory / "workspaces" / f"{id}.db"
            beside = sorted(file.parent.glob(f"{id}.db-*"), reverse=True)  # -wal, -v3, -shm, -lock
            try:
                for path in (*beside, file):
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(file, f"it cannot be deleted: {error.strerror}", "delete it by hand") from error
        self._index.remove(id)

    def release(self, client: str) -> int:
        """Takes back the client's claims, and says how many."""
        return sum(workspace.release(client) for workspace in self)

    async def close(self, deadline: float | None = None) -> None:
        """Closes everything, within about `deadline` seconds. A restart opens the same workspaces again."""
        self.closing = True
        await asyncio.gather(*(workspace.close(deadline) for workspace in self))
        for id in list(self._locks):  # who is in the middle of opening or closing one comes to an end first
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
                log.error("no trace is written", extra={"workspace": record.id, "problem": error})
        runtime = Runtime(self.model, store, grace=self.stop, trace=trace, protocol=self.protocol)
        await runtime.start()
        places = Places(await store.lives(), record.log)
        return Workspace(record, runtime, places, await store.sessions(), self.grace, self.queue, self._left,
                         self.retention)

    async def _put(self, record: Record) -> None:
        await asyncio.to_thread(self._index.put, record)

    async def _closed(self, workspace: Workspace, deadline: float | None = None) -> None:
        await workspace.close(deadline)
        if not self.closing:  # what a shutdown closes is open again after it
            del self._open[workspace.id]
            await self._put(Record(workspace.id, workspace.path, workspace.log, False, workspace.ready))
            log.info("workspace closed", extra={"workspace": workspace.id})

    def _left(self, workspace: Workspace) -> None:
        task = asyncio.ensure_future(self._leave(workspace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, workspace: Workspace) -> None:
        async with self._lock(workspace.id):
            if self._open.get(workspace.id) is workspace and not workspace.wanted():  # nobody has come back meanwhile
                log.info("no client is left", extra={"workspace": workspace.id})
                await self._closed(workspace)

    def _lock(self, id: str) -> asyncio.Lock:
        return self._locks.setdefault(id, asyncio.Lock())
