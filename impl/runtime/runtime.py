"""The runtime: sessions that run, as callers see them. `dispatcher` carries out what their steps ask for."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import REFERENCE, Protocol

from ..models import Attachment, Model
from ..store import AcceptPrompt, MemoryStore, NewSession, PromptRecord, Refused, Store
from .dispatcher import Dispatcher, Ready
from .events import Broker
from .lane import Lane
from .messages import wire_part
from .refusals import TOO_LATE, Closing, NoSession, Refusal, RunIdInUse
from .run import Handle, Run
from .session import Counter, Effects, Prompt, Restored, Session
from .tasks import SHARE, in_shares, outlast
from .trace import TraceWriter, describe_sessions
from .turn import ToolRunner

log = logging.getLogger("cancelmark")

INTERRUPTED = "interrupted by a restart of the server"
START = 2.0  # seconds for what the last life has left to be written
LAST_LOOK = 1.0  # seconds for those who watch to see the last events before the store closes


class Runtime(Dispatcher):
    """Runs prompts. Use it as `async with Runtime(model) as runtime`, or call `start` and `close`.

    `ready`, if given, is awaited with the session's id before an accepted prompt enters. What it raises is the reason
    why the prompt cannot start: it ends with that error, unless it was canceled meanwhile. `trace`, if given, is told
    of every action; whoever has opened it closes it. `protocol` is what its sessions live by.
    """

    def __init__(
        self, model: Model, store: Store | None = None, *, tools: Iterable[ToolRunner] = (), grace: float = 5.0,
        ready: Ready | None = None, trace: TraceWriter | None = None, protocol: Protocol = REFERENCE,
    ) -> None:
        store = store or MemoryStore()
        super().__init__(model, store, Broker(store), tools, grace, trace)
        self.ready, self.protocol = ready, protocol
        self._counter = Counter()
        self._close: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Runtime":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- what callers do

    async def start(self) -> None:
        """Takes up what a crash or a restart has left: nothing that was accepted is lost, and no end comes
        twice (R17e, R21)."""
        await self.broker.start()
        sessions = await self.store.load_all()
        self._counter.latest = await self.store.latest_seq()
        async for known in in_shares(sessions):
            session = Session.restored(
                known.session_id, self._counter, known.mark,
                (Restored(r.seq, r.text, r.run_id, r.state) for r in known.prompts), protocol=self.protocol)
            session.attach({record.seq: record.attachments for record in known.prompts})
            self._lanes[known.session_id] = Lane(session, known.version, known.epoch)
        lanes = list(self._lanes.values())
        left = ((lane, prompt) for lane in lanes for prompt in lane.session.prompts.values())
        runs = [await self._take_up(lane, prompt) async for lane, prompt in in_shares(left)]
        found = describe_sessions(lane.session for lane in lanes) if self.trace else None
        steps = [lane.session.take("recover") async for lane in in_shares(lanes)]  # nobody has reached them yet
        if self.trace:
            self.trace.everywhere("recover", steps, found)
        recovering = [self._begin_to_carry_out(lane, effects) for lane, effects in zip(lanes, steps) if effects.moved]
        for run in runs:
            self._settle_if_canceled(self._lanes[run.prompt.session.id], run.prompt)
        for future in recovering:
            future.add_done_callback(lambda done: done.exception())  # a session that stands still has said so
        if recovering:  # what cannot be written yet is waited for by its session, and not by the others
            await asyncio.wait(recovering, timeout=START)

    async def _take_up(self, lane: Lane, prompt: Prompt) -> Run:
        """A prompt that the last life has left."""
        run = self._register(prompt)
        run.goes_on = any(move.state is State.ACTIVE for move in await self.store.transitions(prompt.seq))
        if prompt in lane.session.active:
            await self._end_interrupted(lane, run)
        return run

    async def _end_interrupted(self, lane: Lane, run: Run) -> None:
        turn = self._make_turn(lane, run)
        try:
            await turn.look_back()
            run.said, run.messages = turn.end(Outcome.ERROR, INTERRUPTED), turn.unwritten
        except Exception as error:  # what its turn has written cannot be read: it ends all the same
            log.error("prompt %s: its messages cannot be ended: %s", run.prompt, error)
            run.said = run.fail(INTERRUPTED)

    async def create_session(self, id: str, title: str = "") -> None:
        """A new session. One that exists is left as it is."""
        if id not in self._lanes:
            self._refuse_if_closing()
            made = self._writer.begin(id, None, [NewSession(id, title, int(time()))])
            canceled = await outlast(made.answer)
            with suppress(Refused):  # another caller was faster
                made.answer.result()
            self._lanes.setdefault(id, Lane(Session(id, self._counter, protocol=self.protocol)))
            if canceled:
                raise canceled

    async def accept(self, session_id: str, text: str, run_id: str | None = None,
                     attachments: Sequence[Attachment] = ()) -> Handle:
        """Accepts a prompt: a text, or attachments, or both. When this returns it is journaled, and its end will come.
        Raises `Refusal` or `StoreError`, and then nothing is accepted. If the caller is canceled meanwhile, the prompt
        may or may not be accepted (R1a, R1b, R1c, R15a, R22a)."""
        if not (text.strip() or attachments):
            raise Refusal("the prompt is empty; say something, or attach a text")
        said = (text, run_id or "", *(word for one in attachments for word in (one.path, one.mime_type, one.text)))
        if not all(map(self.store.is_storable, said)):
            raise Refusal("the prompt, its run id or an attachment has half a character in it (a lone surrogate); send "
                          "whole ones")
        attached = tuple(map(wire_part, attachments))
        lane = self._lane(session_id)
        self._refuse_if_closing()
        after = self.trace.n if self.trace else 0
        seq = self._counter.next()  # a cancel from here on covers it, and so does a close
        self._accepting += 1
        try:
            lane.accepting.add(seq)
            accepted = AcceptPrompt(seq, session_id, text, run_id or None, attached)
            journaled = self._writer.begin(session_id, None, [accepted])
            canceled = await outlast(journaled.answer)
            journaled.answer.result()
            handle = self._admit(lane, accepted, after)
            if canceled:
                raise canceled
            return handle
        except Refused as error:  # it has another prompt with that run id
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
        finally:
            lane.accepting.discard(seq)
            self._accepting -= 1
            self._look_quiet()

    def _admit(self, lane: Lane, accepted: AcceptPrompt, after: int) -> Handle:
        """The prompt is journaled, and enters."""
        session = lane.session
        prompt, effects = session.accept(accepted.text, accepted.run_id, accepted.seq)
        prompt.attachments = accepted.attachments
        if self.trace:
            self.trace.step(session, effects, after)
        run = self._register(prompt)
        self._tell(prompt, prompt.state)
        if self.ready:
            self._spawn(self._enter_if_ready(lane, run, self.ready))
        else:
            self._enter(lane, prompt)
        return Handle(run, self.broker)

    async def cancel(self, session_id: str) -> None:
        """Cancels everything accepted in the session so far. When this returns, that will outlive a crash (R27c)."""
        lane = self._lane(session_id)
        await self._carry_out(lane, lane.session.take("cancel"))

    async def clear_queue(self, session_id: str) -> None:
        """Drops what is queued; the active prompt goes on (R27c)."""
        lane = self._lane(session_id)
        await self._carry_out(lane, lane.session.take("clear_queue"))

    def queued(self, session_id: str) -> list[str]:
        """The texts of the queued prompts, the next one first."""
        return [prompt.text for prompt in self._lane(session_id).session.queue]

    def unfinished(self, session_id: str | None = None) -> int:
        """How many prompts of the session are not done; without an id, of all sessions."""
        if session_id is None:
            return len(self._runs) - sum(len(run.guests) for run in self._runs.values())
        return len(self._lane(session_id).session.prompts)

    def is_busy(self, session_id: str | None = None) -> bool:
        """Whether the session has a prompt whose end has not been published; without an id, whether any has. One that
        stands still is busy: it has something to write."""
        if session_id is None:
            return bool(self._runs)
        lane = self._find_lane(session_id)
        return bool(lane.stuck or lane.session.prompts) or any(step.effects.moved for step in lane.steps)

    async def status(self, run_id: str) -> PromptRecord | None:
        """Where the prompt with that run id is, or how it ended."""
        return await self.store.prompt(run_id)

    async def close(self, deadline: float | None = None) -> None:
        """Accepts nothing more, cancels every session, waits until all prompts are done, and closes the store. Turns
        that have not ended by the deadline (seconds; by default the grace period) are abandoned. Closing twice is
        closing once, and a close goes on when its caller is canceled (R15a, R15b, R15c)."""
        if self._close is None:
            self.closing = True
            lanes = [lane for lane in self._lanes.values() if not lane.stuck]
            steps = [lane.session.take("close") for lane in lanes]
            if self.trace:
                self.trace.everywhere("close", steps)
            self._carry_close(list(zip(lanes, steps)))
            self._close = asyncio.ensure_future(self._close_down(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    def _carry_close(self, steps: Sequence[tuple[Lane, Effects]]) -> None:
        """Has the close carried out in every session. Where many are idle, they follow a share at a time: nothing more
        can happen in them than that the mark is written."""
        idle = [lane for lane, effects in steps if lane.idle and not effects]
        later = set(idle[SHARE:])
        self._steps += len(later)  # it is not quiet before these are done
        for lane, effects in steps:
            if lane not in later:
                self._carry(lane, effects)
        if later:
            self._spawn(self._carry_later([step for step in steps if step[0] in later]))

    async def _carry_later(self, steps: Sequence[tuple[Lane, Effects]]) -> None:
        async for lane, effects in in_shares(steps):
            self._steps -= 1
            self._carry(lane, effects)

    async def _close_down(self, deadline: float) -> None:
        if not await self._quiet_within(deadline):
            for run in list(self._runs.values()):
                self._spawn(self._abandon(run))
            if not await self._quiet_within(self.grace):
                log.error("closing with %d prompts that could not be written; a restart ends them", len(self._runs))
        self._over.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)  # gather waits for what is done already, before Python 3.12
        for lane in self._lanes.values():
            self._leave_behind(lane, TOO_LATE)
        self.broker.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK):
                while self.broker.statistics().subscriptions:
                    await asyncio.sleep(0.01)
        self.store.close()

    async def _quiet_within(self, seconds: float) -> bool:
        self._look_quiet()
        try:
            async with asyncio.timeout(seconds):  # wait_for can swallow a cancel in Python 3.11
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    # --- machinery

    def refuse_if_stuck(self, session_id: str) -> None:
        """Raises `Stuck` if the session stands still until the server is restarted (R25b)."""
        self._lane(session_id)

    def _lane(self, session_id: str) -> Lane:
        lane = self._find_lane(session_id)
        if lane.stuck:
            raise lane.stuck
        return lane

    def _find_lane(self, session_id: str) -> Lane:
        try:
            return self._lanes[session_id]
        except KeyError:
            raise NoSession(f"there is no session {session_id}; create it first") from None

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Closing("the server is closing; ask another, or this one when it is back")
