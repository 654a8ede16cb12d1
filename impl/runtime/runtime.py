"""The runtime: sessions that run, as callers see them. `dispatcher` carries out what their steps ask for."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time

from cancelmark.model.family import HOLD, Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import PLAIN, Traits

from .. import wire
from ..models import Attachment, Model
from ..store import AcceptPrompt, MemoryStore, NewSession, PromptRecord, Refused, Store, StoreError
from .dispatcher import Dispatcher, Ready
from .events import Broker
from .lane import NOTHING, Lane, restore
from .messages import wire_part
from .refusals import (
    TOO_LATE,
    Busy,
    Closing,
    NoPrompt,
    NoSession,
    OtherVersion,
    Refusal,
    RunIdInUse,
    Stale,
    TooLate,
    repeated_on,
)
from .run import Handle, Run
from .session import Counter, Effects, Prompt, Session
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

    interrupted = INTERRUPTED  # what is said of a turn whose server is gone

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
                map(restore, known.prompts), held=known.held, protocol=self.protocol)
            self._lanes[known.session_id] = Lane(session, known.version, known.epoch)
        lanes = list(self._lanes.values())
        left = ((lane, prompt) for lane in lanes for prompt in lane.session.prompts.values())
        async for lane, prompt in in_shares(left):
            await self._take_up(lane, prompt)
        found = describe_sessions(lane.session for lane in lanes) if self.trace else None
        steps = [lane.session.take("recover") async for lane in in_shares(lanes)]  # nobody has reached them yet
        if self.trace:
            self.trace.everywhere("recover", steps, found)
        recovering = [self._begin_to_carry_out(lane, effects) for lane, effects in zip(lanes, steps) if effects.moved]
        for lane in lanes:
            for prompt in list(lane.session.prompts.values()):
                self._settle_if_canceled(lane, prompt)
        for future in recovering:
            future.add_done_callback(lambda done: done.exception())  # a session that stands still has said so
        if recovering:  # what cannot be written yet is waited for by its session, and not by the others
            await asyncio.wait(recovering, timeout=START)

    async def _take_up(self, lane: Lane, prompt: Prompt) -> None:
        """A prompt that the last life has left."""
        run = self._register(lane, prompt)
        run.goes_on = any(move.state is State.ACTIVE for move in await self.store.transitions(prompt.seq))
        if prompt in lane.session.active:
            await self._end_interrupted(lane, run)

    async def _end_interrupted(self, lane: Lane, run: Run) -> None:
        turn = self._make_turn(lane, run)
        try:
            await turn.look_back()
            run.said, run.messages = turn.end(Outcome.ERROR, self.interrupted), turn.unwritten
        except Exception as error:  # what its turn has written cannot be read: it ends all the same
            log.error("prompt %s: its messages cannot be ended: %s", run.prompt, error)
            run.said = run.fail(self.interrupted)

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
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> Handle:
        """Accepts a prompt: a text, or attachments, or both. When this returns it is journaled, and its end will come.
        Raises `Refusal` or `StoreError`, and then nothing is accepted. If the caller is canceled meanwhile, the prompt
        may or may not be accepted (R1a, R1b, R1c, R15a, R22a). With mode `REJECT` a session that is not idle raises
        `Busy`; with mode `INTERRUPT` the prompt goes to the front, and stops what runs (R35a, R35b)."""
        self._refuse_unstorable(text, run_id, attachments)
        attached = tuple(map(wire_part, attachments)) if attachments else ()
        lane = self._lane(session_id)
        self._refuse_if_closing()
        traits = self._look_before(lane, mode) if mode else PLAIN
        after = self.trace.n if self.trace else 0
        seq = self._counter.next()  # a cancel from here on covers it, and so does a close
        self._accepting += 1
        try:
            lane.accepting.add(seq)
            accepted = AcceptPrompt(seq, session_id, text, run_id or None, attached, traits)
            journaled = self._writer.begin(session_id, None, [accepted])
            canceled = await outlast(journaled.answer)
            journaled.answer.result()
            handle, placed = self._admit(lane, accepted, after, mode)
            if placed:
                canceled = await outlast(placed) or canceled
                placed.exception()  # a session that stands still has said so
            if canceled:
                raise canceled
            return handle
        except Refused as error:  # it has another prompt with that run id
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
        finally:
            lane.accepting.discard(seq)
            self._accepting -= 1
            self._look_quiet()

    def _refuse_unstorable(self, text: str, run_id: str | None, attachments: Sequence[Attachment]) -> None:
        if not (text.strip() or attachments):
            raise Refusal("the prompt is empty; say something, or attach a text")
        is_storable = self.store.is_storable
        if not (is_storable(text) and is_storable(run_id or "")
                and all(is_storable(word) for one in attachments for word in (one.path, one.mime_type, one.text))):
            raise Refusal(f"the prompt, its run id or an attachment has {self.store.UNSTORABLE}")

    def _look_before(self, lane: Lane, mode: Feature) -> Traits:
        """What a prompt that is accepted in this mode begins with, or a refusal. A prompt that is being journaled
        counts as one that is not done."""
        session = lane.session
        self._refuse_without(mode)
        if mode is Feature.INTERRUPT:
            return Traits(urgent=True, front=session.next_front)
        if lane.accepting or not session.is_idle():
            why = "held; resume it" if session.held else "busy; wait"
            raise Busy(f"session {session.id} is {why}, or let the prompt queue")
        return PLAIN

    def _admit(self, lane: Lane, accepted: AcceptPrompt, after: int, mode: Feature | None,
               ) -> "tuple[Handle, asyncio.Future[Effects] | None]":
        """The prompt is journaled, and enters. One that has found the session idle is accepted, whoever came while it
        was being journaled: it came before them. An interrupt keeps nobody from folding while it is being journaled:
        the journal answers in order of seq, and its caller waits until then, so that for every client those who fold
        came first. The future is there for one that has a place of its own: others may have gone to the front
        meanwhile, so that its place is journaled again."""
        session = lane.session
        late = mode is Feature.REJECT and not session.is_idle()
        prompt, effects = session.accept(accepted.text, accepted.run_id, accepted.seq, None if late else mode)
        lane.accepting.discard(prompt.seq)  # a conflict finds it in the session from now on
        prompt.attachments = accepted.attachments
        placed: asyncio.Future[Effects] | None = None
        if self.trace:
            self.trace.step(session, effects, after, mode)
        run = self._register(lane, prompt)
        if effects.changed:
            run.shown = run.shown._replace(front=accepted.traits.front)
        self._tell(lane, prompt, prompt.state)
        if effects.changed:
            placing = Effects("", prompt)
            placing.changed = effects.changed
            placed = self._begin_to_carry_out(lane, placing)
        if self.ready:
            self._spawn(self._enter_if_ready(lane, run, self.ready))
        else:
            self._enter(lane, prompt)
        return Handle(run, self.broker, lane.held), placed

    # `by` is the id of the client that calls: those who watch are told.

    async def cancel(self, session_id: str, *, by: str = "") -> None:
        """Cancels everything accepted in the session so far. When this returns, that will outlive a crash (R27c)."""
        lane = await self._reach(session_id)
        await self._carry_out(lane, lane.session.take("cancel"))
        self._tell_call(lane, "cancel", by)

    async def clear_queue(self, session_id: str, *, by: str = "") -> None:
        """Drops what is queued; the active prompt goes on (R27c)."""
        lane = await self._reach(session_id)
        await self._carry_out(lane, lane.session.take("clear_queue"))
        self._tell_call(lane, "clear_queue", by)

    def mark(self, session_id: str) -> int:
        """The seq up to which a cancel has reached, as it is journaled."""
        return self._find_lane(session_id).mark

    @repeated_on(Stale)
    async def revoke(self, session_id: str, key: int | str, *, by: str = "") -> wire.Revoked:
        """Cancels one prompt, by its seq or run id, and says what that has come to. Repeating it changes nothing.
        Raises `NoPrompt` if there is none (R30a, R30b)."""
        self._refuse_without(Feature.REVOKE)
        lane = await self._reach(session_id)
        found = await self._find_prompt(lane, key)
        if isinstance(found, PromptRecord):
            return wire.Revoked(found.seq, "none", found.state.value, found.text,
                                found.outcome.value if found.outcome else "", found.into or 0)
        effects = await self._carry_out(lane, lane.session.take("revoke", found))
        assert effects.prompt is not None
        assert effects.after is not None
        self._tell_call(lane, "revoke", by, found.seq)
        return wire.Revoked(found.seq, "asked" if effects.after is State.ACTIVE else "canceled", effects.after.value,
                            effects.prompt.text, Outcome.CANCELED.value if effects.after is State.DONE else "")

    @repeated_on(Stale)
    async def stop(self, session_id: str, *, hold: bool = False, seq: int | None = None, by: str = "") -> wire.Stopped:
        """Cancels the prompt in front, and keeps the queue; with `hold`, holds the session in the same step. With `seq`
        nothing is done unless that prompt is in front: only so can it be repeated (R31a, R31b, R31c)."""
        self._refuse_without(Feature.STOP, *([Feature.HOLD] if hold else []))
        lane = await self._reach(session_id)
        session = lane.session
        front, before = next(iter(session.active), None) if hold else session.in_front(), session.held
        if seq is not None and (front is None or front.seq != seq):
            await self._carry_out(lane, NOTHING)
            return wire.Stopped(0, before)
        effects = await self._carry_out(lane, session.take("stop", None, HOLD if hold else None))
        told = wire.Stopped(front.seq if front else 0, hold or (effects.held if effects.action else before))
        if told.stopped or told.held is not before:
            self._tell_call(lane, "stop", by, told.stopped, hold)
        return told

    async def hold(self, session_id: str, *, by: str = "") -> wire.Held:
        """Nothing that waits starts or folds any more; a running turn goes on to its end (R32a, R32b)."""
        return await self._hold_or_resume(session_id, "hold", by)

    async def resume(self, session_id: str, *, by: str = "") -> wire.Held:
        """The hold is over, and the queue goes on (R32d)."""
        return await self._hold_or_resume(session_id, "resume", by)

    async def _hold_or_resume(self, session_id: str, action: str, by: str) -> wire.Held:
        self._refuse_without(Feature.HOLD)
        lane = await self._reach(session_id)
        before = lane.session.held
        effects = lane.session.take(action)
        told = wire.Held(lane.session.held)
        await self._carry_out(lane, effects)
        if told.held is not before:
            self._tell_call(lane, action, by, held=told.held)
        return told

    @repeated_on(Stale)
    async def replace(self, session_id: str, key: int | str, text: str, if_version: int | None = None, *, by: str = "",
                      ) -> wire.Replaced:
        """Gives a prompt that has not begun another text. The text that it has already is no change, and is taken in
        every state. Raises `TooLate`, or `OtherVersion` if its text is not of the version that is asked
        for (R33a, R33b)."""
        self._refuse_without(Feature.REPLACE)
        lane = await self._reach(session_id)
        found = await self._find_prompt(lane, key)
        if not (text.strip() or found.attachments):
            raise Refusal("prompt: it is empty; say something, or drop the prompt")
        if not self.store.is_storable(text):
            raise Refusal(f"prompt: it has {self.store.UNSTORABLE}")
        version, effects = found.traits.version, NOTHING
        refusal: Refusal | None = None
        if text != found.text:
            if if_version not in (None, version):
                refusal = OtherVersion(f"its text has version {version} by now; read it again", found.state,
                                       found.outcome, version)
            elif isinstance(found, PromptRecord) or not lane.session.can("replace", found):
                refusal = self._too_late(found)
            else:
                effects = lane.session.replace(found, text)
                version += 1
                if run := lane.runs.get(found.seq):
                    run.forget_message()
        await self._carry_out(lane, effects)
        if refusal:
            raise refusal
        if effects.action:
            self._tell_call(lane, "replace", by, found.seq)
        return wire.Replaced(found.seq, version)

    @repeated_on(Stale)
    async def next(self, session_id: str, key: int | str, *, by: str = "") -> wire.Placed:
        """Moves a prompt that waits ahead of all others. Raises `TooLate` (R34a, R34b)."""
        self._refuse_without(Feature.NEXT)
        lane = await self._reach(session_id)
        found = await self._find_prompt(lane, key)
        if isinstance(found, PromptRecord) or not lane.session.can("next", found):
            refusal = self._too_late(found)
            await self._carry_out(lane, NOTHING)
            raise refusal
        await self._carry_out(lane, lane.session.take("next", found))
        self._tell_call(lane, "next", by, found.seq)
        return wire.Placed(0)

    def _too_late(self, prompt: Prompt | PromptRecord) -> TooLate:
        where = prompt.outcome or prompt.state
        return TooLate(f"prompt {prompt.seq} does not wait any more: it is {where.value.replace('_', ' ')}",
                       prompt.state, prompt.outcome, prompt.traits.version)

    async def _find_prompt(self, lane: Lane, key: int | str) -> Prompt | PromptRecord:
        """The prompt with that seq or run id, if it is not done; otherwise its record (R27d)."""
        while True:
            known = lane.session.prompts
            prompt = known.get(key) if isinstance(key, int) else next(
                (p for p in known.values() if p.run_id == key), None)
            if prompt is not None:
                return prompt
            storable = key < 2**63 if isinstance(key, int) else self.store.is_storable(key)
            try:
                record = await self.store.prompt(key) if storable else None
            except StoreError:
                if self._over.is_set():  # it has closed while news was waited for
                    self._refuse_if_closing()
                raise
            if record is None or record.session_id != lane.session.id:
                raise NoPrompt(f"session {lane.session.id} has no prompt {key!r:.80}")
            if record.outcome:
                return record
            await self._wait_for_news(lane)

    async def _wait_for_news(self, lane: Lane) -> None:
        """A prompt has just been accepted, or its end is being journaled."""
        await self._carry_out(lane, NOTHING)
        await asyncio.sleep(0.001)

    def _refuse_without(self, *features: Feature) -> None:
        for feature in features:
            if feature not in self.protocol.features:
                raise Refusal(f"protocol {self.protocol.name} has no {feature.value}; use one that has")

    def has_session(self, session_id: str) -> bool:
        """Whether the session is known here. One that is shared may not be, even if it was a moment ago."""
        return session_id in self._lanes

    def is_held(self, session_id: str) -> bool:
        """Whether the session is held, as it is journaled."""
        return self._find_lane(session_id).held

    def list_queued(self, session_id: str) -> list[Prompt]:
        """The queued prompts, the next one first."""
        return list(self._lane(session_id).session.queue)

    def queued(self, session_id: str) -> list[str]:
        """The texts of the queued prompts, the next one first."""
        return [prompt.text for prompt in self.list_queued(session_id)]

    def unfinished(self, session_id: str | None = None) -> int:
        """How many prompts of the session are not done; without an id, of all sessions."""
        if session_id is None:
            return sum(1 - len(run.guests) for _, run in self._runs)
        return len(self._lane(session_id).session.prompts)

    def is_busy(self, session_id: str | None = None) -> bool:
        """Whether the session has a prompt whose end has not been published; without an id, whether any has. One that
        stands still is busy: it has something to write."""
        if session_id is None:
            return any(lane.runs or lane.stuck for lane in self._lanes.values())
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
            for lane, run in self._runs:
                self._spawn(self._abandon(lane, run))
            if not await self._quiet_within(self.grace):
                log.error("closing with %d prompts that could not be written; a restart ends them", len(self._runs))
        self._over.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)  # gather waits for what is done already, before Python 3.12
        for lane in self._lanes.values():
            self._leave_behind(lane, TOO_LATE)
        await self._let_watchers_look()
        self.store.close()

    async def _let_watchers_look(self) -> None:
        """Nothing is published any more; those who watch see the rest."""
        self.broker.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK):
                while self.broker.statistics().subscriptions:
                    await asyncio.sleep(0.01)

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

    async def _reach(self, session_id: str) -> Lane:
        """The session's lane, with all that was done in the session before."""
        return self._lane(session_id)

    def _find_lane(self, session_id: str) -> Lane:
        try:
            return self._lanes[session_id]
        except KeyError:
            raise NoSession(f"there is no session {session_id}; create it first") from None

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Closing("the server is closing; ask another, or this one when it is back")
