"""This server as a node of a cluster: it sends heartbeats, declares silent nodes dead, and polls for work.

**The lease belongs to the process.** The event loop that runs the turns also sends the heartbeat, so a hanging loop
misses its heartbeats. Death is one-way: a node that finds itself declared dead abandons its turns and continues under a
new id. A node may declare others dead only if it has itself sent heartbeats without a break for the length of a lease:
after an outage of the database every lease has expired, and no node is dead. If a heartbeat is not answered by the time
of the next, the next one uses a connection of its own.

**Polling is enough.** A notification (LISTEN on a connection of its own, if the database can be reached directly) only
makes a node poll sooner. It is sent after a commit, for all changes that have gathered, and never inside a step: NOTIFY
holds a lock of the whole instance until the commit. It names its sender, which ignores it, and the changed sessions:
an owner reconciles these before its next poll. If the sessions do not fit into one notification, every node polls
for everything.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ..runtime.tasks import cancel_all
from ..store import StoreError
from ..store.postgres import Database

log = logging.getLogger("cancelmark.cluster")

CHANNEL = "cancelmark"
GATHER = 0.003  # seconds to gather changes for one notification
ROOM = 7_000  # characters of a notification; PostgreSQL's limit is 8,000 bytes
KEPT = "1 day"  # retention of the journal of steps, and of dead nodes
PRUNE = 600.0  # seconds between two prunings

BEAT = """
UPDATE cancelmark.nodes SET since = CASE WHEN expires < clock_timestamp() THEN clock_timestamp() ELSE since END,
    expires = clock_timestamp() + make_interval(secs => %s), draining = %s
WHERE id = %s AND NOT dead
RETURNING (SELECT count(*) FROM cancelmark.nodes n WHERE NOT n.dead AND n.expires > clock_timestamp())
"""
BURY = """
UPDATE cancelmark.nodes SET dead = true
WHERE NOT dead AND expires < clock_timestamp() AND EXISTS (
    SELECT FROM cancelmark.nodes me WHERE me.id = %s AND NOT me.dead AND me.expires > clock_timestamp()
    AND me.since < clock_timestamp() - make_interval(secs => %s))
RETURNING id
"""
WORK = """
SELECT workspace_id, id, version, true FROM cancelmark.sessions WHERE owner = %s
UNION ALL SELECT workspace_id, id, version, false FROM cancelmark.sessions WHERE wanted
UNION ALL SELECT s.workspace_id, s.id, s.version, false FROM cancelmark.nodes n
    JOIN cancelmark.sessions s ON s.owner = n.id WHERE n.dead
"""


@dataclass(frozen=True)
class Lease:
    """How long a silent node counts as alive, and how often a node polls, in seconds."""

    length: float = 10.0
    poll: float = 1.0

    @property
    def beat(self) -> float:
        return self.length * 0.3


@dataclass(frozen=True)
class Work:
    """A session that this node owns, or that waits for an owner."""

    workspace: UUID
    session: str
    version: int
    owned: bool


class Node:
    """This server among the others.

    - `look` is awaited with the work that a poll has found.
    - `look_at` is awaited with a workspace and a session that another node has written to. It returns False if a
      poll is still needed.
    - `die` is called when this node was declared dead.
    - `listen_address` is where it listens for notifications; without one it only polls.
    """

    def __init__(self, database: Database, url: str, lease: Lease, look: Callable[[list[Work]], Awaitable[None]],
                 look_at: Callable[[str, str], Awaitable[bool]], die: Callable[[], None],
                 listen_address: str | None = None) -> None:
        self.database, self.url, self.lease = database, url, lease
        self.draining = False
        self.others = 0  # other nodes alive
        self.deaths = self.buried = 0
        self.renewed_at = 0.0  # when the last answered heartbeat was sent, on the event loop's clock
        self._look, self._look_at, self._die, self._listen_address = look, look_at, die, listen_address
        self._awake, self._has_news = asyncio.Event(), asyncio.Event()
        self._news: set[tuple[str, str]] = set()  # workspaces and sessions to notify the others of
        self._tasks: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()  # heartbeats, and reconciliations of sessions
        self._dying = asyncio.Lock()

    @property
    def id(self) -> UUID:
        return self.database.node

    @property
    def alive(self) -> bool:
        """Whether its lease has not expired, as far as it knows."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until its lease expires."""
        return self.renewed_at + self.lease.length - asyncio.get_running_loop().time()

    async def start(self) -> None:
        await self._enroll(self.id)
        loops = [self._beat_for_ever, self._look_for_ever, self._tell_for_ever, self._prune_for_ever]
        if self._listen_address:
            loops.append(partial(self._listen_for_ever, self._listen_address))
        self._tasks = [asyncio.ensure_future(self._keep_up(loop)) for loop in loops]

    async def _keep_up(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Restart the loop whenever it fails."""
        while True:
            try:
                await loop()
            except Exception as error:
                log.error("background loop failed, restarting it", exc_info=error)
            await asyncio.sleep(self.lease.poll)

    async def stop(self) -> None:
        """Stop the loops, and mark this node as dead so others can take over what it still owns."""
        await cancel_all([*self._tasks, *self._under_way])
        with suppress(StoreError):
            await self.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", self.id)
            await self.database.fetch(f"SELECT pg_notify('{CHANNEL}', '')")

    def wake(self) -> None:
        """Poll now."""
        self._awake.set()

    def tell(self, workspace: str, session: str = "") -> None:
        """Notify the other nodes of the session, soon; without a session, of the whole workspace."""
        if self.others:
            self._news.add((workspace, session))
            self._has_news.set()

    async def _enroll(self, id: UUID) -> None:
        """Register under the id. This node uses the id only once the database knows it: an unknown owner could never be
        declared dead."""
        sent = asyncio.get_running_loop().time()
        await self.database.fetch(
            "INSERT INTO cancelmark.nodes VALUES (%s, %s, clock_timestamp(),"
            " clock_timestamp() + make_interval(secs => %s), false, false)", id, self.url, self.lease.length)
        self.renewed_at, self.database.node = sent, id

    async def _beat_for_ever(self) -> None:
        unanswered: set[asyncio.Task[None]] = set()
        while True:
            began = asyncio.get_running_loop().time()
            unanswered.add(self._spawn(self._beat(afresh=bool(unanswered))))
            done, unanswered = await asyncio.wait(
                unanswered, timeout=self.lease.beat, return_when=asyncio.FIRST_COMPLETED)
            errors = [asyncio.CancelledError() if one.cancelled() else one.exception() for one in done]
            for error in filter(None, errors):  # retry after any error
                log.warning("heartbeat failed, retrying: %s", error,
                            exc_info=None if isinstance(error, StoreError) else error)
            if None in errors:
                unanswered = set()  # the earlier ones no longer matter
                await asyncio.sleep(began + self.lease.beat - asyncio.get_running_loop().time())
            elif errors:
                await asyncio.sleep(min(self.lease.beat, 0.2))

    async def _beat(self, afresh: bool = False) -> None:
        """Send a heartbeat, which renews the lease. If the others have declared this node dead, continue under a new
        id."""
        id, sent = self.id, asyncio.get_running_loop().time()
        rows = await self.database.fetch(BEAT, self.lease.length, self.draining, id, deadline=self.lease.length,
                                         afresh=afresh)
        async with self._dying:
            if id != self.id:
                return
            if rows:
                self.renewed_at, self.others = max(self.renewed_at, sent), rows[0][0] - 1
                return
            log.error("this node was declared dead; continuing under a new id", extra={"node": str(self.id)})
            await self._enroll(uuid4())
            self._die()  # at once, or a poll could run its old sessions again
            self.deaths += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark it as retrieved
        return task

    async def _look_for_ever(self) -> None:
        """Declare silent nodes dead, and poll for work, at each interval and after each notification."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                buried = await self.database.fetch(BURY, self.id, self.lease.length)
                for (id,) in buried:
                    self.buried += 1
                    log.warning("node declared dead", extra={"node": str(id)})
                await self._look([Work(*row) for row in await self.database.fetch(WORK, self.id)])
            except StoreError as error:
                log.warning("poll failed, retrying: %s", error)
            except Exception as error:  # one failing session must not stop the polls
                log.error("poll failed", exc_info=error)
            with suppress(TimeoutError):  # the interval includes the poll, unless that takes most of it
                async with asyncio.timeout_at(max(began + self.lease.poll, loop.time() + self.lease.poll / 2)):
                    await self._awake.wait()
            self._awake.clear()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            news, self._news = sorted(self._news), set()
            said = json.dumps([str(self.id), *news])
            with suppress(StoreError):
                await self.database.fetch(f"SELECT pg_notify('{CHANNEL}', %s)", said if len(said) <= ROOM else "")
            await asyncio.sleep(GATHER)

    async def _listen_for_ever(self, address: str) -> None:
        while True:
            try:
                async with aclosing(self.database.listen(address, CHANNEL)) as notices:
                    async for said in notices:
                        self._hear(said)
            except StoreError as error:
                log.info("not listening for notifications, retrying: %s", error)
            await asyncio.sleep(self.lease.poll)

    def _hear(self, said: str) -> None:
        """Handle a notification. If it is empty or malformed, anything may have changed."""
        try:
            sender, *told = json.loads(said)
            news = [(str(workspace), str(session)) for workspace, session in told]
        except (ValueError, TypeError, RecursionError):
            sender, news = "", [("", "")]
        for workspace, session in news if sender != str(self.id) else ():
            self._spawn(self._look_soon(workspace, session))

    async def _look_soon(self, workspace: str, session: str) -> None:
        try:
            if session and await self._look_at(workspace, session):
                return
        except StoreError as error:
            log.warning("session could not be reconciled, polling instead: %s", error, extra={"session": session})
        except Exception as error:
            log.error("session could not be reconciled", exc_info=error, extra={"session": session})
        self.wake()

    async def _prune_for_ever(self) -> None:
        while True:
            await asyncio.sleep(PRUNE)
            with suppress(StoreError):
                await self.database.fetch(
                    f"DELETE FROM cancelmark.steps WHERE made_at < clock_timestamp() - interval '{KEPT}'", deadline=60)
                await self.database.fetch(
                    f"DELETE FROM cancelmark.nodes n WHERE dead AND expires < clock_timestamp() - interval '{KEPT}'"
                    " AND NOT EXISTS (SELECT FROM cancelmark.sessions s WHERE s.owner = n.id)", deadline=60)
