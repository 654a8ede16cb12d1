"""A store that one process has to itself: it owns all sessions from its start to its end."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from time import time

from ..store import Committed, NewSession, Refused
from .intents import Close, Recover
from .outbox import Entry, Environment, Outbox
from .refusals import TOO_LATE
from .session import Effects
from .tasks import SHARE, in_shares, outlast
from .trace import describe_sessions
from .turns import Turns

log = logging.getLogger("cancelmark")

START = 2.0  # seconds for what the last life has left to be written
LAST_LOOK = 1.0  # seconds for those who watch to see the last events before the store closes
INTERRUPTED = "interrupted by a restart of the server"


class Sole:
    """Every session is this process's, and nobody else writes to it."""

    shared = False
    until, remedy = "the server is restarted", "restart the server"
    interrupted = INTERRUPTED  # what is said of a turn whose server is gone

    def __init__(self, home: Environment, turns: Turns) -> None:
        self.home, self.turns = home, turns
        self._canceled = False  # it closes, and everything is canceled

    async def reach(self, session_id: str) -> Outbox:
        box = self.home.find(session_id)
        if box.stuck:
            raise box.stuck
        return box

    def starts(self, box: Outbox) -> bool:
        return True

    def may_start(self) -> bool:
        return self._canceled or not self.home.closing

    def ask(self, box: Outbox, batch: Sequence[Entry]) -> tuple[str, str]:
        return "", ""

    def hear(self, box: Outbox, answer: Committed) -> bool:
        return False

    def settled(self, box: Outbox, answer: Committed) -> None:
        pass

    def name(self, box: Outbox) -> str:
        return ""

    async def create(self, id: str, title: str) -> None:
        home = self.home
        made = home.writer.begin(id, None, [NewSession(id, title, int(time()))])
        canceled = await outlast(made.answer)
        with suppress(Refused):  # another caller was faster
            made.answer.result()
        if id not in home.boxes:
            home.open(id)
        if canceled:
            raise canceled

    async def start(self) -> None:
        """Takes up what a crash or a restart has left: nothing that was accepted is lost, and no end comes
        twice (R17e, R21)."""
        home = self.home
        sessions = await home.store.load_all()
        home.counter.latest = await home.store.latest_seq()
        boxes = [home.open(known.session_id, known) async for known in in_shares(sessions)]
        async for box in in_shares(boxes):
            await self.turns.take_up(box, list(box.session.prompts.values()))
        found = describe_sessions(box.session for box in boxes) if home.trace else None
        steps: list[Effects] = []
        left = [box for box in boxes if box.session.prompts]
        async for box in in_shares(left):  # nobody has reached them yet
            steps += box.put(Recover())
        if home.trace:
            home.trace.everywhere("recover", steps, [box.session.mark for box in boxes], found)
        recovering = [box.drained() for box in left]
        for box in left:
            box.look_all()
        for future in recovering:
            future.add_done_callback(lambda done: done.exception())  # a session that stands still has said so
        if recovering:  # what cannot be written yet is waited for by its session, and not by the others
            await asyncio.wait(recovering, timeout=START)

    def leave(self, deadline: float) -> Awaitable[None]:
        """Cancels every session, waits until all prompts are done, and closes the store. Turns that have not ended by
        the deadline are abandoned. What is being accepted is accepted before the cancel, unless that takes too
        long (R15b, R15c)."""
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
                box.start_late(run)
        if not await self._quiet_within(deadline):
            for box, run in home.runs:
                home.spawn(self.turns.abandon(box, run))
            if not await self._quiet_within(self.turns.grace):
                log.error("closing with %d prompts that could not be written; a restart ends them", len(home.runs))
        home.over.set()
        for task in home.tasks:
            task.cancel()
        if home.tasks:
            await asyncio.wait(home.tasks)  # gather waits for what is done already, before Python 3.12
        for box in home.boxes.values():
            box.leave_behind(TOO_LATE)
        await let_watchers_look(home)
        home.store.close()

    def _cancel_all(self) -> None:
        """Has the close carried out in every session. Where many are idle, they follow a share at a time: nothing more
        can happen in them than that the mark is written."""
        home = self.home
        boxes = [box for box in home.boxes.values() if not box.stuck]
        self._canceled = True
        later = [box for box in boxes if box.idle][SHARE:]
        steps = [step for box in boxes for step in box.put(Close())]
        if home.trace:
            home.trace.everywhere("close", steps, [box.session.mark for box in boxes])
        waiting = set(later)
        for box in boxes:
            if box not in waiting:
                box.go()
        if later:
            home.spawn(self._go_later(later))

    async def _go_later(self, boxes: Sequence[Outbox]) -> None:
        async for box in in_shares(boxes):
            box.go()

    async def _quiet_within(self, seconds: float) -> bool:
        self.home.look_quiet()
        try:
            async with asyncio.timeout(seconds):  # wait_for can swallow a cancel in Python 3.11
                await self.home.quiet.wait()
        except TimeoutError:
            return False
        return True


async def let_watchers_look(home: Environment) -> None:
    """Nothing is published any more; those who watch see the rest."""
    home.broker.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_LOOK):
            while home.broker.statistics().subscriptions:
                await asyncio.sleep(0.01)
