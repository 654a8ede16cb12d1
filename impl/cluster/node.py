"""One life of one server in a cluster: it beats, buries those who do not, and looks at what is to be done.

**The lease is the process's.** The beat is sent by the loop that runs the turns, so that a loop that hangs does not
beat. Death is one-way: a node that finds itself dead drops its turns, and goes on under another id. A node declares
others dead only if it has itself beaten without a break for as long as a lease lasts: after an outage of the database
everybody's lease has run out, and nobody is dead. If a beat is not answered by the time of the next, that one is
sent on a connection of its own.

**Polling is enough.** A wake-up (LISTEN on a connection of its own, if the database can be reached directly) makes a
node look sooner. It is sent after a commit, for all that has gathered, and never within a step: NOTIFY holds a lock of
the whole instance until the commit. It names its sender, who need not hear it, and the sessions that have changed: the
owner of one loads that one, before it looks at anything else. If they have no room in it, everybody looks at all.
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
GATHER = 0.003  # seconds in which wake-ups gather
ROOM = 7_000  # characters of a wake-up; PostgreSQL takes less than 8,000 bytes
KEPT = "1 day"  # for which the journal of steps, and the names of dead nodes, are kept
PRUNE = 600.0  # seconds between two looks at what is too old

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
    """How long a node that says nothing is waited for, in seconds, and how often it says something and looks."""

    length: float = 10.0
    poll: float = 1.0

    @property
    def beat(self) -> float:
        return self.length * 0.3


@dataclass(frozen=True)
class Work:
    """A session that is this node's, or that nobody has."""

    workspace: UUID
    session: str
    version: int
    owned: bool


class Node:
    """This server among the others. `look` is awaited with what there is to do. `look_at` is awaited with a workspace
    and a session that another node has written to, and says whether that is all. `die` is called when it is dead."""

    def __init__(self, database: Database, url: str, lease: Lease, look: Callable[[list[Work]], Awaitable[None]],
                 look_at: Callable[[str, str], Awaitable[bool]], die: Callable[[], None], direct: str | None = None,
                 ) -> None:
        self.database, self.url, self.lease = database, url, lease
        self.draining = False
        self.others = 0  # that live
        self.deaths = self.buried = 0
        self.beaten = 0.0  # when the last beat that was answered was sent, by the clock of the event loop
        self._look, self._look_at, self._die, self._direct = look, look_at, die, direct
        self._awake, self._told = asyncio.Event(), asyncio.Event()
        self._news: set[tuple[str, str]] = set()  # workspaces and sessions of which the others are to be told
        self._tasks: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()  # beats, and looks at sessions
        self._dying = asyncio.Lock()

    @property
    def id(self) -> UUID:
        return self.database.node

    @property
    def alive(self) -> bool:
        """Whether its lease has not run out, as far as it knows."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until its lease runs out."""
        return self.beaten + self.lease.length - asyncio.get_running_loop().time()

    async def start(self) -> None:
        await self._enroll(self.id)
        loops = [self._beat_for_ever, self._look_for_ever, self._tell_for_ever, self._prune_for_ever]
        if self._direct:
            loops.append(partial(self._listen_for_ever, self._direct))
        self._tasks = [asyncio.ensure_future(self._keep_up(loop)) for loop in loops]

    async def _keep_up(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Begins the loop again, whatever has ended it."""
        while True:
            try:
                await loop()
            except Exception as error:
                log.error("a loop of this node failed; it begins again", exc_info=error)
            await asyncio.sleep(self.lease.poll)

    async def stop(self) -> None:
        """Nothing is this node's any more."""
        await cancel_all([*self._tasks, *self._under_way])
        with suppress(StoreError):
            await self.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", self.id)
            await self.database.fetch(f"SELECT pg_notify('{CHANNEL}', '')")

    def wake(self) -> None:
        """Looks now."""
        self._awake.set()

    def tell(self, workspace: str, session: str = "") -> None:
        """Has the others look at the session, soon; without one, at all."""
        if self.others:
            self._news.add((workspace, session))
            self._told.set()

    async def _enroll(self, id: UUID) -> None:
        """Takes a place among the nodes under that name, which is this node's once the database knows it: nobody could
        bury an owner that it does not know."""
        sent = asyncio.get_running_loop().time()
        await self.database.fetch(
            "INSERT INTO cancelmark.nodes VALUES (%s, %s, clock_timestamp(),"
            " clock_timestamp() + make_interval(secs => %s), false, false)", id, self.url, self.lease.length)
        self.beaten, self.database.node = sent, id

    async def _beat_for_ever(self) -> None:
        unanswered: set[asyncio.Task[None]] = set()
        while True:
            began = asyncio.get_running_loop().time()
            unanswered.add(self._spawn(self._beat(afresh=bool(unanswered))))
            done, unanswered = await asyncio.wait(
                unanswered, timeout=self.lease.beat, return_when=asyncio.FIRST_COMPLETED)
            errors = [asyncio.CancelledError() if one.cancelled() else one.exception() for one in done]
            for error in filter(None, errors):  # whatever it is: a node that does not beat is dead
                log.warning("no beat: %s", error, exc_info=None if isinstance(error, StoreError) else error)
            if None in errors:
                unanswered = set()  # the others are too late, whatever they say
                await asyncio.sleep(began + self.lease.beat - asyncio.get_running_loop().time())
            elif errors:
                await asyncio.sleep(min(self.lease.beat, 0.2))

    async def _beat(self, afresh: bool = False) -> None:
        """Renews the lease of this node. If it is dead to the others, it goes on as another (C5b, C5c)."""
        id, sent = self.id, asyncio.get_running_loop().time()
        rows = await self.database.fetch(BEAT, self.lease.length, self.draining, id, deadline=self.lease.length,
                                         afresh=afresh)
        async with self._dying:
            if id != self.id:
                return
            if rows:
                self.beaten, self.others = max(self.beaten, sent), rows[0][0] - 1
                return
            log.error("this node was declared dead; it goes on under another name", extra={"node": str(self.id)})
            await self._enroll(uuid4())
            self._die()  # in the same breath: under its old name it would see its sessions, and run them again
            self.deaths += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # too late for anybody to ask
        return task

    async def _look_for_ever(self) -> None:
        """Buries who does not beat, and looks at what is to be done, woken or not (C5a, C6)."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                buried = await self.database.fetch(BURY, self.id, self.lease.length)
                for (id,) in buried:
                    self.buried += 1
                    log.warning("a node is dead", extra={"node": str(id)})
                await self._look([Work(*row) for row in await self.database.fetch(WORK, self.id)])
            except StoreError as error:
                log.warning("nothing is seen: %s", error)
            except Exception as error:  # one session that fails must not keep the node from looking at the others
                log.error("a look failed", exc_info=error)
            with suppress(TimeoutError):  # a look belongs to the interval, unless it takes most of it
                async with asyncio.timeout_at(max(began + self.lease.poll, loop.time() + self.lease.poll / 2)):
                    await self._awake.wait()
            self._awake.clear()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
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
                log.info("no wake-ups: %s", error)
            await asyncio.sleep(self.lease.poll)

    def _hear(self, said: str) -> None:
        """What a node has said. If it is nothing, or cannot be read, anything may have changed."""
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
            log.warning("a session is not seen: %s", error, extra={"session": session})
        except Exception as error:
            log.error("a look at a session failed", exc_info=error, extra={"session": session})
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
