"""Ownership for a store that several servers share: at most one at a time owns a session, while the session has work.

**Level-triggered.** Whichever node has written to a session, its owner loads the session and reconciles what runs with
what is stored: an accepted prompt enters, an active one runs, a covered one stops. A notification only makes this
happen sooner.

**A session is owned only while there is work in it.** The node that submits work to an unowned session claims it in the
same commit. The commit after which no work is left releases it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import time

from cancelmark.model.lifecycle import State

from ..runtime import Closing, NoSession
from ..runtime.entry import Entry
from ..runtime.environment import Environment
from ..runtime.intents import Recover
from ..runtime.outbox import Outbox
from ..runtime.ownership import let_watchers_look
from ..runtime.refusals import Leaving
from ..runtime.tasks import cancel_all
from ..runtime.turns import Turns
from ..store import (
    ClosingSession,
    Committed,
    Conflict,
    ConstraintViolation,
    NewSession,
    Snapshot,
    StoreError,
    UnknownSession,
)
from ..store.postgres import PostgresStore

log = logging.getLogger("cancelmark.cluster")


class Leased:
    """Claims and releases sessions, and takes calls for all of them. `tell` notifies other nodes of a changed session,
    `node` returns this server's name."""

    shared = True
    until, remedy = "a node takes it over", "retry later"
    interrupted = "interrupted: the server that ran it is gone"

    def __init__(self, home: Environment, turns: Turns, *, tell: Callable[[str], None] = lambda session: None,
                 node: Callable[[], str] = lambda: "") -> None:
        assert isinstance(home.store, PostgresStore)
        self.home, self.turns, self.store = home, turns, home.store
        self._tell, self._node = tell, node
        self.draining, self.recovered = False, 0  # it is leaving; sessions that it recovered from dead nodes

    async def start(self) -> None:
        self.home.counter.latest = await self.store.latest_seq()

    async def create(self, id: str, title: str) -> None:
        try:
            with suppress(ConstraintViolation):  # a concurrent caller has created it
                made = await self.home.writer.begin(id, None, [NewSession(id, title, int(time()))]).answer
                if isinstance(made, Committed) and id not in self.home.boxes:
                    box = Outbox.open(self.home, id, version=made.version)
                    box.epoch, box.free = None, True
        except ClosingSession as error:
            raise Closing("the workspace is closing; open it again") from error

    # --- questions from an outbox

    def refuse(self) -> Closing:
        return Leaving() if self.draining else Closing("the workspace is closing; open it again")

    def refuse_unsaved(self) -> Closing:
        return Leaving("the server closed before this was saved; another server continues the session")

    def enters_here(self, box: Outbox) -> bool:
        """Whether this node owns the session after the acceptance: only the owner lets prompts enter."""
        mine = box.owned or (box.free and not (box.session.prompts.keys() - box.unstored.keys() or box.session.held))
        return mine and not self.draining

    def may_start(self) -> bool:
        return not self.draining  # the next owner starts the turn of a prompt that becomes active now

    def needs_owner(self, box: Outbox) -> bool:
        """Whether the session has work: a prompt that runs, is still to enter, or is next."""
        prompts = box.session.prompts.values()
        return bool(prompts) and (not box.session.held or any(p.state is not State.QUEUED for p in prompts))

    def get_claims(self, box: Outbox, batch: Sequence[Entry]) -> tuple[str, str]:
        if box.owned:
            return "", "idle" if len(batch) == len(box.entries) and not self.needs_owner(box) else ""
        if box.free and self.needs_owner(box):  # a leaving node hands it over to the next one
            return ("", "handover") if self.draining else ("adopt", "")
        return "", ""

    def on_committed(self, box: Outbox, answer: Committed) -> bool:
        claimed = answer.epoch is not None and not box.owned
        if claimed:
            box.epoch, box.free = answer.epoch, False
        return claimed

    def on_settled(self, box: Outbox, answer: Committed) -> None:
        if answer.events or not box.owned or box.claim:
            self._tell(box.session.id)
        if box.release and box.owned:
            self._forget_ownership(box)

    def _forget_ownership(self, box: Outbox) -> None:
        """Mark the session as unowned."""
        box.epoch, box.free = None, True
        box.runs.clear()

    def name_node(self, box: Outbox) -> str:
        return self._node() if box.owned else ""

    # --- reconciling with what is stored

    async def reach(self, session_id: str) -> Outbox:
        known = self.home.boxes.get(session_id)
        box = known or await self._load_box(session_id)
        if box.stuck:
            raise box.stuck
        if known and not box.working:  # otherwise the commit in flight will detect a newer version
            await self._reconcile(box, await self._load(session_id))
        return self.home.boxes.get(session_id) or await self.reach(session_id)

    async def reconcile(self, session_id: str | None = None) -> None:
        """Reconcile the session, or all sessions, with what other nodes have stored. Raises `NoSession`."""
        if session_id is not None:
            await self.reach(session_id)
            return
        for snapshot in await self.store.load_all():
            box = self.home.boxes.get(snapshot.session_id)
            if box is None:
                Outbox.open(self.home, snapshot.session_id, snapshot).reconcile_all()
            else:
                await self._reconcile(box, snapshot)

    async def reconcile_own(self, session_id: str) -> bool:
        """Reconcile the session if this node owns it. Returns whether it does."""
        box = self.home.boxes.get(session_id)
        if box is None or not box.owned:
            return False
        await self._reconcile(box, await self._load(session_id), wait=True)
        return True

    def is_behind(self, session_id: str, version: int) -> bool:
        """Whether this node has not loaded that version of the session, or does not own it."""
        box = self.home.boxes.get(session_id)
        return box is None or not box.owned or (box.version != version and not box.working)

    def count_owned(self) -> int:
        return sum(box.owned for box in self.home.boxes.values())

    def is_working(self) -> bool:
        """Whether this node owns a session, or is about to."""
        return any(box.working or box.owned for box in self.home.boxes.values())

    async def _load(self, session_id: str) -> Snapshot:
        try:
            snapshot = await self.store.load(session_id)
        except UnknownSession:
            raise NoSession(f"there is no session {session_id}; create it first") from None
        self.home.counter.raise_to(self.store.seen)  # a cancel's mark must cover all prompts so far
        return snapshot

    async def _load_box(self, session_id: str) -> Outbox:
        """The outbox of a session that this node does not know yet. Concurrent loaders share the first outbox: with
        two, a turn that one asks to stop could not end in the other."""
        snapshot = await self._load(session_id)
        if known := self.home.boxes.get(session_id):
            return known
        box = Outbox.open(self.home, session_id, snapshot)
        box.reconcile_all()
        return box

    async def _reconcile(self, box: Outbox, snapshot: Snapshot, wait: bool = False) -> None:
        """Load the snapshot into the outbox, unless this node knows something newer. If a commit is in flight, skip the
        snapshot, or wait for the commit with `wait`."""
        if box.working and not wait:
            return
        await box.lock()
        try:
            is_current = (box.owned and snapshot.owned
                          and (snapshot.version, snapshot.epoch) == (box.version, box.epoch))
            if not (is_current or box.stuck or snapshot.version < box.version):
                await box.load(snapshot)
        except StoreError:
            raise
        except Exception as error:  # the session is only partly loaded
            box.mark_stuck(error)
        finally:
            box.unlock()

    # --- taking sessions over

    async def claim(self, session_id: str) -> None:
        """Take over a session that was handed over, or whose owner is dead."""
        if self.draining:
            return
        box = self.home.boxes.get(session_id) or await self._load_box(session_id)
        if box.owned or box.stuck:
            return
        await box.lock()
        try:
            snapshot = await self._load(session_id)
            if box.stuck or snapshot.owned:
                return
            box.restore(snapshot)
            if snapshot.free:
                await self._adopt(box)
            else:
                await self._recover(box, snapshot)
        finally:
            box.unlock()

    async def _adopt(self, box: Outbox) -> None:
        """Claim an unowned session. Its active prompt, if any, has no turn yet. If another node has done the session's
        work meanwhile, release the session in the same commit."""
        release = "" if self.needs_owner(box) else "idle"
        answer = await self.home.writer.begin(box.session.id, box.version, [], None, "adopt", release).answer
        if isinstance(answer, Committed):
            box.version = answer.version
            if self.on_committed(box, answer):
                log.info("session adopted", extra={"session": box.session.id})
                box.reconcile_all()

    async def _recover(self, box: Outbox, snapshot: Snapshot) -> None:
        """Take the session over from an owner that is dead or gives it up: what was active ends with an error."""
        giving_up, stored = box.owned, False
        try:
            await self.turns.adopt(box, box.session.live)
            stored = await box.commit_first(Recover(), "" if giving_up else "recover", lambda: (
                "idle" if not self.needs_owner(box) else "handover" if giving_up else ""))
        finally:
            if stored:
                self.recovered += 1
                log.warning("session recovered", extra={"session": box.session.id})
            else:  # another node was first, the owner is alive, or the database is unreachable
                box.runs.clear()
                box.restore(snapshot)

    async def give_up_stuck(self) -> None:
        """Give up this node's stuck sessions, as if it had died: what was active ends with an error, and any node can
        go on with the rest."""
        for id, old in [(id, box) for id, box in self.home.boxes.items() if box.stuck]:
            try:
                await self._give_up(id, old)
            except NoSession as gone:
                old.forget(gone)
            except StoreError as error:  # the others must be given up anyway
                log.warning("stuck session could not be given up, retrying later: %s", error, extra={"session": id})

    async def _give_up(self, id: str, old: Outbox) -> None:
        snapshot = await self._load(id)
        if self.home.boxes.get(id) is not old:  # it was lost meanwhile, and perhaps loaded again
            return
        box = Outbox.open(self.home, id, snapshot)
        await box.lock()
        try:
            if box.owned:
                await self._recover(box, snapshot)
        finally:
            if box.owned and old.stuck and not box.stuck:
                box.stop(old.stuck)
            box.unlock()

    def lose_all(self) -> None:
        """Abandon every session of this node: the others have declared it dead, and its writes are fenced."""
        for box in list(self.home.boxes.values()):
            if box.owned:
                box.lose()

    # --- leaving

    def leave(self, deadline: float) -> Awaitable[None]:
        self.draining = True
        return self._leave(deadline)

    async def _leave(self, deadline: float) -> None:
        """Hand the sessions over: start nothing more, let turns end until the deadline, end the others as interrupted,
        and close the store. Waiting prompts go on at another node."""
        home, loop = self.home, asyncio.get_running_loop()
        end = loop.time() + deadline
        while loop.time() < end and any(
                box.accepting or any(run.task for run in box.runs.values()) for box in home.boxes.values()):
            await asyncio.sleep(0.01)
        for box, run in home.runs:
            if run.turn and run.task:
                await self.turns.interrupt(box, run)
        failed: list[object] = []
        try:
            async with asyncio.timeout(self.turns.grace):
                failed += await asyncio.gather(*map(self._release, list(home.boxes.values())), return_exceptions=True)
        except TimeoutError as error:
            failed.append(error)
        for problem in filter(None, failed):
            log.error("handover failed, another node will recover the sessions: %s", problem)
        home.over.set()
        await cancel_all(home.tasks)
        for box in home.boxes.values():
            box.fail_waiters()
        await let_watchers_look(home)
        home.store.close()

    async def _release(self, box: Outbox) -> None:
        while box.entries and not box.stuck:
            await box.drained()
        await box.lock()
        try:
            if box.owned and not box.stuck:
                answer = await self._send_release(box, box.version, "handover" if self.needs_owner(box) else "idle")
                if isinstance(answer, Conflict):  # a call has come in meanwhile; the next owner handles it
                    await self._send_release(box, answer.snapshot.version, "handover")
                self._forget_ownership(box)
                self._tell(box.session.id)
        finally:
            box.unlock()

    async def _send_release(self, box: Outbox, version: int, release: str) -> object:
        return await self.home.writer.begin(box.session.id, version, [], box.epoch, "", release).answer
