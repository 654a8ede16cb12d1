"""A store that several servers share: a session belongs to one of them at a time, while there is something to do in it.

**Level-triggered.** Whatever was written, by this node or another, the owner loads the session, and compares what is
stored with what it runs: what is accepted enters, what is active runs, what is covered stops. A wake-up makes it look
sooner and nothing else.

**A session is owned only while there is something to do in it.** Whoever gives work to a session that is free claims it
in the same commit; the commit after which nothing is left to do releases it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time

from cancelmark.model.lifecycle import State

from ..runtime import Closing, NoSession
from ..runtime.intents import Recover
from ..runtime.outbox import Entry, Environment, Outbox
from ..runtime.ownership import let_watchers_look
from ..runtime.refusals import TOO_LATE
from ..runtime.tasks import cancel_all
from ..runtime.turns import Turns
from ..store import ClosingSession, Committed, Conflict, NewSession, Refused, Snapshot, StoreError, UnknownSession
from ..store.postgres import PostgresStore

log = logging.getLogger("cancelmark.cluster")


class Leased:
    """Sessions are claimed and released; calls are taken for all of them (C1a). `tell` is called with a session at
    which other nodes should look, `node` says how this server is called."""

    shared = True
    until, remedy = "a node goes on with it", "ask again"
    interrupted = "interrupted: the server that ran it is gone"

    def __init__(self, home: Environment, turns: Turns, *, tell: Callable[[str], None] = lambda session: None,
                 node: Callable[[], str] = lambda: "") -> None:
        assert isinstance(home.store, PostgresStore)
        self.home, self.turns, self.store = home, turns, home.store
        self._tell, self._node = tell, node
        self.draining, self.recovered = False, 0  # it leaves; sessions of others that it has taken over

    async def start(self) -> None:
        self.home.counter.latest = await self.store.latest_seq()

    async def create(self, id: str, title: str) -> None:
        try:
            with suppress(Refused):  # another caller was faster
                made = await self.home.writer.begin(id, None, [NewSession(id, title, int(time()))]).answer
                if isinstance(made, Committed) and id not in self.home.boxes:
                    box = self.home.open(id, version=made.version)
                    box.epoch, box.free = None, True
        except ClosingSession as error:
            raise Closing("the workspace is closing; open it again") from error

    # --- what an outbox asks

    def starts(self, box: Outbox) -> bool:
        """If this node owns the session after the acceptance: the owner takes prompts in (C1b)."""
        mine = box.owned or (box.free and not (box.session.prompts.keys() - box.unstored.keys() or box.session.held))
        return mine and not self.draining

    def may_start(self) -> bool:
        return not self.draining  # what is active then has not begun, and is another node's

    def needs_owner(self, box: Outbox) -> bool:
        """Whether somebody has something to do in it: a prompt runs, is still to enter, or is next (C7b)."""
        prompts = box.session.prompts.values()
        return bool(prompts) and (not box.session.held or any(p.state is not State.QUEUED for p in prompts))

    def ask(self, box: Outbox, batch: Sequence[Entry]) -> tuple[str, str]:
        if box.owned:
            return "", "idle" if len(batch) == len(box.entries) and not self.needs_owner(box) else ""
        if box.free and self.needs_owner(box):  # a node that leaves gives it to whoever comes
            return ("", "handover") if self.draining else ("adopt", "")
        return "", ""

    def hear(self, box: Outbox, answer: Committed) -> bool:
        claimed = answer.epoch is not None and not box.owned
        if claimed:
            box.epoch, box.free = answer.epoch, False
        return claimed

    def settled(self, box: Outbox, answer: Committed) -> None:
        if answer.events or not box.owned or box.claim:
            self._tell(box.session.id)
        if box.release and box.owned:
            self._let_go(box)

    def _let_go(self, box: Outbox) -> None:
        """The session is nobody's any more."""
        box.epoch, box.free = None, True
        box.runs.clear()

    def name(self, box: Outbox) -> str:
        return self._node() if box.owned else ""

    # --- looking at what is stored

    async def reach(self, session_id: str) -> Outbox:
        known = self.home.boxes.get(session_id)
        box = known or await self._load_box(session_id)
        if box.stuck:
            raise box.stuck
        if known and not box.working:  # else its commit compares
            await self._see(box, await self._load(session_id))
        return self.home.boxes.get(session_id) or await self.reach(session_id)

    async def look(self, session_id: str | None = None) -> None:
        """Hears of what other nodes have done: in the session, or in all. Raises `NoSession`."""
        if session_id is not None:
            await self.reach(session_id)
            return
        for snapshot in await self.store.load_all():
            box = self.home.boxes.get(snapshot.session_id)
            if box is None:
                self.home.open(snapshot.session_id, snapshot).look_all()
            else:
                await self._see(box, snapshot)

    async def look_at_own(self, session_id: str) -> bool:
        """Looks at the session, if it is this node's, and says whether it is."""
        box = self.home.boxes.get(session_id)
        if box is None or not box.owned:
            return False
        await self._see(box, await self._load(session_id), wait=True)
        return True

    def is_behind(self, session_id: str, version: int) -> bool:
        """Whether this node has not seen what its session is."""
        box = self.home.boxes.get(session_id)
        return box is None or not box.owned or (box.version != version and not box.working)

    def count_owned(self) -> int:
        return sum(box.owned for box in self.home.boxes.values())

    def is_working(self) -> bool:
        """Whether a session is this node's, or is about to be."""
        return any(box.working or box.owned for box in self.home.boxes.values())

    async def _load(self, session_id: str) -> Snapshot:
        try:
            snapshot = await self.store.load(session_id)
        except UnknownSession:
            raise NoSession(f"there is no session {session_id}; create it first") from None
        self.home.counter.raise_to(self.store.seen)  # a mark covers all before
        return snapshot

    async def _load_box(self, session_id: str) -> Outbox:
        """A session that this node does not know. Who comes second takes the outbox of who came first: a turn that is
        asked to stop in one could not end in another."""
        snapshot = await self._load(session_id)
        if known := self.home.boxes.get(session_id):
            return known
        box = self.home.open(session_id, snapshot)
        box.look_all()
        return box

    async def _see(self, box: Outbox, snapshot: Snapshot, wait: bool = False) -> None:
        """The session is what the snapshot says, unless this node knows of something later. If it is about to, it may
        not wait for that."""
        if box.working and not wait:
            return
        await box.take()
        try:
            known = box.owned and snapshot.version == box.version and snapshot.epoch == box.epoch and snapshot.owned
            if not (known or box.stuck or snapshot.version < box.version):
                await box.load(snapshot)
        except StoreError:
            raise
        except Exception as error:  # it is loaded in part
            box.stand_still(error)
        finally:
            box.give_back()

    # --- sessions of others

    async def claim(self, session_id: str) -> None:
        """Takes over a session that was handed over, or whose owner is dead (C4d)."""
        if self.draining:
            return
        box = self.home.boxes.get(session_id) or await self._load_box(session_id)
        if box.owned or box.stuck:
            return
        await box.take()
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
            box.give_back()

    async def _adopt(self, box: Outbox) -> None:
        """Nobody owns it: what is active has not begun. If nothing is left to do in it, since others were faster, it is
        given up in the same step."""
        release = "" if self.needs_owner(box) else "idle"
        answer = await self.home.writer.begin(box.session.id, box.version, [], None, "adopt", release).answer
        if isinstance(answer, Committed):
            box.version = answer.version
            if self.hear(box, answer):
                log.info("session adopted", extra={"session": box.session.id})
                box.look_all()

    async def _recover(self, box: Outbox, snapshot: Snapshot) -> None:
        """Its owner is dead, or gives it up: what was active ends with an error (C4b)."""
        fenced, stored = box.owned, False
        try:
            await self.turns.take_up(box, box.session.live)
            stored = await box.commit_first(Recover(), "" if fenced else "recover", lambda: (
                "idle" if not self.needs_owner(box) else "handover" if fenced else ""))
        finally:
            if stored:
                self.recovered += 1
                log.warning("session recovered", extra={"session": box.session.id})
            else:  # another was faster, or the owner lives, or the database is away
                box.runs.clear()
                box.restore(snapshot)

    async def give_up_stuck(self) -> None:
        """Gives up the sessions with which this node could not go on, as if it had died: what was active ends with an
        error, and any node goes on with the rest."""
        for id, old in [(id, box) for id, box in self.home.boxes.items() if box.stuck]:
            try:
                await self._give_up(id, old)
            except NoSession as gone:
                old.forget(gone)
            except StoreError as error:  # the others are given up all the same
                log.warning("a session cannot be given up: %s", error, extra={"session": id})

    async def _give_up(self, id: str, old: Outbox) -> None:
        snapshot = await self._load(id)
        if self.home.boxes.get(id) is not old:  # it was lost meanwhile, and may have been loaded again
            return
        box = self.home.open(id, snapshot)
        await box.take()
        try:
            if box.owned:
                await self._recover(box, snapshot)
        finally:
            if box.owned and old.stuck and not box.stuck:
                box.stop_for_good(old.stuck)
            box.give_back()

    def lose_all(self) -> None:
        """This node is dead to the others: nothing of what it runs counts any more."""
        for box in list(self.home.boxes.values()):
            if box.owned:
                box.lose()

    # --- leaving

    async def leave(self, deadline: float) -> None:
        """Hands its sessions over: starts nothing more, lets turns end until the deadline, ends the others as
        interrupted, and closes the store. Prompts that wait go on at another node (C7a)."""
        home, loop = self.home, asyncio.get_running_loop()
        self.draining = True
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
            log.error("closing with sessions that could not be handed over; another node recovers them: %s", problem)
        home.over.set()
        await cancel_all(home.tasks)
        for box in home.boxes.values():
            box.leave_behind(TOO_LATE)
        await let_watchers_look(home)
        home.store.close()

    async def _release(self, box: Outbox) -> None:
        while box.entries and not box.stuck:
            await box.drained()
        await box.take()
        try:
            if box.owned and not box.stuck:
                answer = await self._send_release(box, box.version, "handover" if self.needs_owner(box) else "idle")
                if isinstance(answer, Conflict):  # somebody has called meanwhile: whoever has it next sees that
                    await self._send_release(box, answer.snapshot.version, "handover")
                self._let_go(box)
                self._tell(box.session.id)
        finally:
            box.give_back()

    async def _send_release(self, box: Outbox, version: int, release: str) -> object:
        return await self.home.writer.begin(box.session.id, version, [], box.epoch, "", release).answer
