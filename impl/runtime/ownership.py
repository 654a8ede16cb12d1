"""Ownership for a store that one process has to itself: it owns all sessions while it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from time import time

from ..store import Committed, ConstraintViolation, NewSession
from .entry import Entry
from .environment import Environment
from .intents import Close, Recover
from .outbox import Outbox
from .refusals import Closing
from .session import TakenStep
from .tasks import CHUNK, in_chunks, wait_through_cancel
from .trace import describe_sessions
from .turns import Turns

log = logging.getLogger("cancelmark")

START = 2.0  # seconds to wait for the recovery of sessions to be stored
LAST_LOOK = 1.0  # seconds for subscribers to read the last events before the store closes
INTERRUPTED = "interrupted by a restart of the server"


class Sole:
    """This process owns every session, and no other process writes to it."""

    shared = False
    until, remedy = "the server is restarted", "restart the server"
    interrupted = INTERRUPTED  # the error of a turn whose server is gone

    def __init__(self, home: Environment, turns: Turns) -> None:
        self.home, self.turns = home, turns
        self._canceled = False  # the runtime is closing, and every session is canceled

    async def reach(self, session_id: str) -> Outbox:
        box = self.home.find(session_id)
        if box.stuck:
            raise box.stuck
        return box

    def refuse(self) -> Closing:
        return Closing()

    def refuse_unsaved(self) -> Closing:
        return Closing("the server closed before this was saved; the prompt ends on restart")

    def enters_here(self, box: Outbox) -> bool:
        return True

    def may_start(self) -> bool:
        return self._canceled or not self.home.closing

    def get_claims(self, box: Outbox, batch: Sequence[Entry]) -> tuple[str, str]:
        return "", ""

    def on_committed(self, box: Outbox, answer: Committed) -> bool:
        return False

    def on_settled(self, box: Outbox, answer: Committed) -> None:
        pass

    def name_node(self, box: Outbox) -> str:
        return ""

    async def create(self, id: str, title: str) -> None:
        home = self.home
        made = home.writer.begin(id, None, [NewSession(id, title, int(time()))])
        canceled = await wait_through_cancel(made.answer)
        with suppress(ConstraintViolation):  # a concurrent caller has created it
            made.answer.result()
        if id not in home.boxes:
            Outbox.open(home, id)
        if canceled:
            raise canceled

    async def start(self) -> None:
        """Recover what a crash or a restart has left: no accepted prompt is lost, and no prompt ends twice."""
        home = self.home
        sessions = await home.store.load_all()
        home.counter.latest = await home.store.latest_seq()
        boxes = [Outbox.open(home, known.session_id, known) async for known in in_chunks(sessions)]
        async for box in in_chunks(boxes):
            await self.turns.adopt(box, list(box.session.prompts.values()))
        found = describe_sessions(box.session for box in boxes) if home.trace else None
        steps: list[TakenStep] = []
        left = [box for box in boxes if box.session.prompts]
        async for box in in_chunks(left):  # callers cannot reach them yet
            steps += box.add(Recover())
        if home.trace:
            home.trace.everywhere("recover", steps, [box.session.mark for box in boxes], found)
        recovering = [box.drained() for box in left]
        for box in left:
            box.reconcile_all()
        for future in recovering:
            future.add_done_callback(lambda done: done.exception())  # a stuck session has been logged
        if recovering:  # a session that cannot be stored yet must not delay the others
            await asyncio.wait(recovering, timeout=START)

    def leave(self, deadline: float) -> Awaitable[None]:
        """Cancel every session, wait until all prompts are done, and close the store.

        Turns that have not ended by the deadline are abandoned. Acceptances in flight are accepted before the cancel,
        unless that takes too long.
        """
        accepting = [box for box in self.home.boxes.values() if box.accepting and not box.stuck]
        if not accepting:
            self._cancel_all()
        return self._leave(deadline, accepting)

    async def _leave(self, deadline: float, accepting: Sequence[Outbox]) -> None:
        home = self.home
        if accepting:  # meanwhile no turn starts
            await asyncio.wait([box.drained() for box in accepting], timeout=deadline)
            self._cancel_all()
            for box, run in home.runs:
                box.start_if_missing(run)
        if not await self._quiet_within(deadline):
            for box, run in home.runs:
                home.spawn(self.turns.abandon(box, run))
            if not await self._quiet_within(self.turns.grace):
                log.error("closing with %d prompts whose end could not be stored; they end on restart", len(home.runs))
        home.over.set()
        for task in home.tasks:
            task.cancel()
        if home.tasks:
            await asyncio.wait(home.tasks)  # before Python 3.12 gather yields even if all are done
        for box in home.boxes.values():
            box.fail_waiters()
        await let_watchers_look(home)
        home.store.close()

    def _cancel_all(self) -> None:
        """Submit the close to every session. Idle sessions beyond a share follow later: only their mark has to be
        written."""
        home = self.home
        boxes = [box for box in home.boxes.values() if not box.stuck]
        self._canceled = True
        later = [box for box in boxes if box.idle][CHUNK:]
        steps = [step for box in boxes for step in box.add(Close())]
        if home.trace:
            home.trace.everywhere("close", steps, [box.session.mark for box in boxes])
        waiting = set(later)
        for box in boxes:
            if box not in waiting:
                box.flush()
        if later:
            home.spawn(self._go_later(later))

    async def _go_later(self, boxes: Sequence[Outbox]) -> None:
        async for box in in_chunks(boxes):
            box.flush()

    async def _quiet_within(self, seconds: float) -> bool:
        self.home.check_quiet()
        try:
            async with asyncio.timeout(seconds):  # in Python 3.11 wait_for can swallow a cancel
                await self.home.quiet.wait()
        except TimeoutError:
            return False
        return True


async def let_watchers_look(home: Environment) -> None:
    """Close the broker, and give subscribers time to read the rest."""
    home.broker.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_LOOK):
            while home.broker.statistics().subscriptions:
                await asyncio.sleep(0.01)
