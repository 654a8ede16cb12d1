"""The workspaces of a database, as one node serves them.

A workspace is open at every node that a client asks for it, or that owns one of its sessions. An idle node releases it,
which does not affect the other nodes. Only a call closes it, and then at all nodes: its sessions accept nothing more,
their prompts are canceled, and when these are done the workspace is closed. Opening its path again opens its sessions
again.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ..models import Model
from ..runtime.refusals import Leaving, Refusal
from ..runtime.runtime import Runtime
from ..runtime.workspace import Unknown, Workspace, Workspaces
from ..store import SessionRecord, StoreError
from ..store.index import Record
from ..store.offsets import Offsets
from ..store.postgres import Database, PostgresStore
from .leased import Leased
from .mirror import Mirror, name_node
from .node import Lease, Node, Work

log = logging.getLogger("cancelmark.cluster")

LEASE = Lease()
# In the order of ids, to avoid deadlocks.
BY_ID = "id IN (SELECT id FROM cancelmark.sessions WHERE workspace_id = %s ORDER BY id FOR NO KEY UPDATE)"
CLOSING = 0.05  # seconds between two checks of a closing workspace


class SharedWorkspace(Workspace):
    """A workspace that other nodes may have open too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.runtime.ownership, Leased)
        self.leased = self.runtime.ownership
        self.store = self.leased.store
        self.mirror = Mirror(self.store, self.runtime.broker, self._add)

    async def find_owner(self, session_id: str) -> str:
        return await self.mirror.find_owner(session_id)

    async def look(self, session_id: str | None = None) -> None:
        if session_id is None or session_id not in self._sessions:
            for session in await self.store.sessions():
                self._add(session)
        if session_id is None:
            await self.leased.reconcile()
        elif session_id in self._sessions:
            await self.leased.reconcile(session_id)

    def _add(self, session: SessionRecord) -> bool:
        """Register a session, and return whether it is new."""
        is_new = session.id not in self._sessions
        if is_new:
            self._positions[session.id] = len(self._order)
            self._order.append(session.id)
        self._sessions[session.id] = session
        return is_new

    async def hear(self) -> None:
        """Learn the latest offset of the log: a client may have seen events that this node does not know of yet."""
        self.store.hear(await self.store.latest_event())

    def wanted(self) -> bool:
        return super().wanted() or self.leased.is_working()

    async def close(self, deadline: float | None = None) -> None:
        """Close the workspace. First publishes to the subscribers here what other nodes have done, since no later poll
        will."""
        with suppress(StoreError):
            await self.mirror.look()
            await self.hear()
        await super().close(deadline)


class SharedWorkspaces(Workspaces):
    """The workspaces of one database at one node."""

    closing_refusal = Leaving

    def __init__(self, model: Model, database: str | Database, *, url: str = "", lease: Lease = LEASE,
                 wake_ups: str | None = "", **options: Any) -> None:
        super().__init__(model, None, **options)
        self.database = Database(database) if isinstance(database, str) else database
        listen_address = self.database.address if wake_ups == "" else wake_ups
        self.node = Node(self.database, url, lease, self._look, self._look_at_own, self._die, listen_address)
        self._over = False

    async def start(self) -> None:
        """Connect to the database, and join the cluster. Raises `StoreError`."""
        await self.database.open()
        await self.node.start()

    async def find(self, id: str) -> Workspace:
        workspace = self._open.get(id)
        if workspace is None:
            async with self._lock(id):
                workspace = self._open.get(id) or await self._open_known(id)
        if not workspace.ready:  # another node may have initialized its agent
            record = await self._find_record(id)
            workspace.ready = record is not None and record.ready
        workspace.claim()
        return workspace

    async def _open_known(self, id: str) -> Workspace:
        """Open a workspace that another node, or an earlier process, has opened."""
        if self.closing:
            raise Leaving()
        workspace = self._open[id] = await self._attach(id)
        return workspace

    async def _find_record(self, id: str) -> Record | None:
        try:
            key = UUID(id)
        except ValueError:
            return None
        rows = await self.database.fetch(
            "SELECT path, log, open, ready FROM cancelmark.workspaces WHERE id = %s", key)
        return Record(id, *rows[0]) if rows else None

    async def _opened(self, record: Record) -> Workspace:
        """Open the workspace at all nodes, for a client's request."""
        if not record.log:
            await PostgresStore(self.database, UUID(record.id)).make(record.path, uuid4().hex[:8])
        await self.database.fetch(
            "WITH opened AS (UPDATE cancelmark.workspaces SET open = true WHERE id = %s AND NOT open RETURNING id)"
            " UPDATE cancelmark.sessions SET closing = false WHERE workspace_id IN (SELECT id FROM opened)"
            f" AND {BY_ID}", UUID(record.id), UUID(record.id))
        return await self._attach(record.id)

    async def _attach(self, id: str) -> Workspace:
        """The workspace at this node, as stored. Raises `Unknown` if it was closed or forgotten."""
        known = await self._find_record(id)
        if known is None or not known.open:
            raise _make_unknown(id)
        store = PostgresStore(self.database, UUID(id))
        leased = partial(Leased, tell=partial(self.node.tell, id), node=lambda: name_node(self.node.id, self.node.url))
        runtime = Runtime(self.model, store, tools=self.tools, grace=self.stop, protocol=self.protocol,
                          ownership=leased)
        await runtime.start()
        offsets = Offsets(await store.incarnations(), known.log)
        return SharedWorkspace(known, runtime, offsets, await store.sessions(), self.grace, self.queue, self._left,
                               self.retention)

    async def _known(self, id: str) -> Record | None:
        return await self._find_record(id)

    async def _find_open(self, id: str) -> Workspace | None:
        """The workspace, if it is open here and no other node has closed or forgotten it meanwhile."""
        workspace = self._open.get(id)
        if workspace is not None:
            record = await self._find_record(id)
            if record is None or not record.open or record.log != workspace.log:
                await self._let_go(workspace)
                return None
        return workspace

    async def ready(self, workspace: Workspace) -> None:
        if not workspace.ready:
            await self.database.fetch("UPDATE cancelmark.workspaces SET ready = true WHERE id = %s", UUID(workspace.id))
            workspace.ready = True

    async def is_ready(self) -> bool:
        if not await super().is_ready() or not self.node.alive:
            return False
        try:  # a standby can be read but not written
            await self.database.fetch("UPDATE cancelmark.nodes SET url = url WHERE id = %s", self.node.id, deadline=2.0)
        except StoreError:
            return False
        return True

    def figures(self) -> Mapping[str, tuple[str, float]]:
        leased = [w.leased for w in self if isinstance(w, SharedWorkspace)]
        return {
            "sessions_owned": ("Sessions owned by this node", sum(one.count_owned() for one in leased)),
            "sessions_recovered": ("Sessions recovered from dead nodes by this node",
                                   sum(one.recovered for one in leased)),
            "others": ("Other live nodes", self.node.others),
            "deaths": ("Times this node was declared dead and rejoined", self.node.deaths),
            "buried": ("Nodes declared dead by this node", self.node.buried),
            "lease_seconds": ("Seconds until the lease of this node expires", self.node.remaining),
        }

    # --- closing

    async def delete(self, id: str, deadline: float | None = None, *, forget: bool = False) -> None:
        """Close the workspace at all nodes: accept nothing more, cancel everything, and wait until it is done."""
        workspace = await self.find(id)
        runtime, key = workspace.runtime, UUID(id)
        runtime.closing = True  # takes effect here at once; other nodes see it in the sessions
        try:
            await self.database.fetch(
                f"UPDATE cancelmark.sessions SET closing = true WHERE workspace_id = %s AND {BY_ID}", key, key)
            while busy := await self.database.fetch(
                    "SELECT id FROM cancelmark.sessions WHERE workspace_id = %s AND live > 0 ORDER BY id", key):
                await asyncio.gather(*(runtime.cancel(session) for (session,) in busy))
                await asyncio.sleep(CLOSING)
        except BaseException:  # the sessions stay marked as closing, and a retry goes on from that
            runtime.closing = self.closing
            raise
        async with self._lock(id):
            if self._open.get(id) is workspace:
                await self._let_go(workspace, deadline)
            if forget:
                await self.database.fetch("SELECT cancelmark.forget(%s)", key)
            else:
                await self.database.fetch("UPDATE cancelmark.workspaces SET open = false WHERE id = %s", key)
        log.info("workspace forgotten" if forget else "workspace closed", extra={"workspace": id})
        self.node.tell(id)

    async def _leave(self, workspace: Workspace) -> None:
        async with self._lock(workspace.id):
            if self._open.get(workspace.id) is workspace and not workspace.wanted():
                await self._let_go(workspace)

    async def _let_go(self, workspace: Workspace, deadline: float | None = None) -> None:
        """Release the workspace at this node. The other nodes are not affected."""
        await workspace.close(deadline)
        self._open.pop(workspace.id, None)

    async def close(self, deadline: float | None = None) -> None:
        """Hand everything over, and leave the cluster."""
        if self._over:
            return
        self._over = True
        self.node.draining = True
        await super().close(deadline)
        await self.node.stop()
        await self.database.close()

    # --- polls

    async def _look(self, work: list[Work]) -> None:
        """Reconcile the sessions that this node owns or may claim, and learn how far the logs have come."""
        await self._update_log_positions()
        for one in work:
            try:
                await self._look_at(one)
            except (StoreError, Refusal, Unknown) as error:
                log.warning("session could not be reconciled, retrying: %s", error, extra={"session": one.session})
            except Exception as error:  # one failing session must not stop the others
                log.error("session could not be reconciled", exc_info=error, extra={"session": one.session})
        for workspace in self:
            assert isinstance(workspace, SharedWorkspace)
            await workspace.leased.give_up_stuck()
            await workspace.mirror.look()

    async def _look_at(self, one: Work) -> None:
        workspace = self._open.get(str(one.workspace))
        if workspace is None:
            if self.closing:
                return
            record = await self._find_record(str(one.workspace))
            if record is None:
                return
            async with self._lock(record.id):
                workspace = self._open.get(record.id)
                if workspace is None:
                    workspace = self._open[record.id] = await self._attach(record.id)
        assert isinstance(workspace, SharedWorkspace)
        if one.owned:
            if workspace.leased.is_behind(one.session, one.version):
                await workspace.leased.reconcile(one.session)
        elif not self.closing:
            await workspace.leased.claim(one.session)

    async def _look_at_own(self, workspace_id: str, session_id: str) -> bool:
        """Reconcile a session that another node has written to, if this node owns it."""
        workspace = self._open.get(workspace_id)
        return isinstance(workspace, SharedWorkspace) and await workspace.leased.reconcile_own(session_id)

    async def _update_log_positions(self) -> None:
        shared = [workspace for workspace in self if isinstance(workspace, SharedWorkspace)]
        if not shared:
            return
        rows = await self.database.fetch(
            "SELECT l.workspace_id, l.latest, l.floor, CASE WHEN w.open THEN w.log END"
            " FROM cancelmark.logs l JOIN cancelmark.workspaces w ON w.id = l.workspace_id"
            " WHERE l.workspace_id = ANY(%s)", [UUID(w.id) for w in shared])
        found = {str(id): tuple(told) for id, *told in rows}
        for workspace in shared:
            latest, floor, known = found.get(workspace.id, (0, 0, None))
            if latest > workspace.runtime.broker.latest:
                await workspace.mirror.look()  # first: no message may follow its prompt's end
                workspace.store.hear(latest)
            workspace.runtime.broker.floor = max(workspace.runtime.broker.floor, floor)
            if known != workspace.log and not workspace.runtime.unfinished() and not self._lock(workspace.id).locked():
                async with self._lock(workspace.id):
                    await self._let_go(workspace)

    def _die(self) -> None:
        for workspace in self:
            assert isinstance(workspace, SharedWorkspace)
            workspace.leased.lose_all()


def _make_unknown(id: str) -> Unknown:
    return Unknown(f"there is no workspace {id!r:.80}; open it by its path first")
