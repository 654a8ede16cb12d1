"""A runtime that shares its sessions with other nodes.

**Level-triggered.** Whatever was written, by this node or another, the owner loads the session, and compares what is
stored with what it runs: what is accepted enters, what is active runs, what is covered stops (`_look_at`). A wake-up
makes it look sooner and nothing else.

**A call that meets a conflict is made again**, on the session as it is then, so that its caller hears what came of it.
At the owner it is taken again in its lane, as the steps of turns are: a turn that it has stopped may have ended.

**A session is owned only while there is something to do in it.** Whoever gives work to a session that is free claims it
in the same step; the step after which nothing is left to do releases it.

**At the owner a prompt is accepted and enters in one step**, if nothing else waits to be written there. What the entry
comes to is worked out on the session as it is stored. Steps that are taken in the session while that commit is under
way did not know of the prompt: they are taken again on the session as it is then, as after a conflict.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import time
from typing import Any

from cancelmark.model.effects import End
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import PLAIN

from ..models import Attachment
from ..runtime import Closing, NoSession, RunIdInUse
from ..runtime.lane import Lane, LaneStep
from ..runtime.messages import user_message, wire_part
from ..runtime.refusals import Refusal, Stale, pause
from ..runtime.run import Handle, Run
from ..runtime.runtime import Runtime
from ..runtime.session import Effects, Prompt, Session
from ..runtime.tasks import cancel_all, outlast
from ..runtime.writer import Commit
from ..store import (
    AcceptPrompt,
    Answer,
    Committed,
    Conflict,
    MovePrompt,
    NewSession,
    Operation,
    PromptRecord,
    PutMessage,
    Refused,
    Snapshot,
    StoreError,
)
from ..store.postgres import ClosingSession, PostgresStore
from .lane import SharedLane
from .repeating import CALLS, repeated

log = logging.getLogger("cancelmark.cluster")

class SharedRuntime(Runtime):
    """Runs the prompts of the sessions that this node owns, and takes calls for all (C1a). `tell` is called with a
    session at which other nodes should look."""

    store: PostgresStore
    interrupted = "interrupted: the server that ran it is gone"
    until, remedy = "a node goes on with it", "ask again"

    def __init__(self, *args: Any, tell: Callable[[str], None] = lambda session: None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tell_others = tell
        self.node: Callable[[], str] = lambda: ""  # how this server is called
        self.draining, self.recovered = False, 0  # it leaves; sessions of others that it has taken over

    async def start(self) -> None:
        await self.broker.start()
        self._counter.latest = await self.store.latest_seq()

    # --- what callers do

    async def accept(self, session_id: str, text: str, run_id: str | None = None,
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> Handle:
        self._refuse_unstorable(text, run_id, attachments)
        attached = tuple(map(wire_part, attachments)) if attachments else ()
        accepted = AcceptPrompt(0, session_id, text, run_id or None, attached)
        self._accepting += 1
        accepting = asyncio.ensure_future(self._accept(accepted, mode))
        try:
            canceled = await outlast(accepting)
            if canceled:
                raise canceled
            return accepting.result()
        except Refused as error:
            if not run_id:
                raise NoSession(f"session {session_id} was deleted; create another") from error
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
        except ClosingSession as error:
            raise Closing("the workspace is closing; open it again") from error
        finally:
            self._accepting -= 1
            self._look_quiet()

    async def _accept(self, accepted: AcceptPrompt, mode: Feature | None) -> Handle:
        known = self._lanes.get(accepted.session_id) if mode is None else None
        lane = known or await self._reach(accepted.session_id)
        attempts = 0
        while True:
            assert isinstance(lane, SharedLane)
            await lane.take()
            try:
                self._refuse_if_closing()
                if lane.stuck and not lane.lost:
                    raise lane.stuck
                handle = None if lane.lost else await self._try_accept(lane, accepted, mode)
            finally:
                self._rest(lane)
            if handle:
                return handle
            await pause(attempts := attempts + 1)
            lane = await self._reach(accepted.session_id)

    async def _try_accept(self, lane: SharedLane, accepted: AcceptPrompt, mode: Feature | None) -> Handle | None:
        """Accepts the prompt, if the session is what this node knows. Otherwise it is loaded, and None is returned."""
        accepted = accepted._replace(traits=self._look_before(lane, mode) if mode else PLAIN)
        variant, mark, held = [mode.value if mode else "", accepted.run_id is not None], lane.mark, lane.held
        lane.claim, lane.release = "adopt" if lane.free else "", ""
        entering = self._foresee_entry(lane, accepted) if mode is None else []
        commit = self._writer.begin(
            lane.session.id, lane.version, [accepted, *entering], lane.epoch, lane.claim,
            actions=[["accept", None, variant, mark, held], *[["enter", 0, None, mark, held]] * bool(entering)])
        match await commit.answer:
            case Conflict(snapshot):
                await self._take_all_again(lane, snapshot)
                return None
            case Committed() as answer:
                accepted = accepted._replace(seq=answer.seqs[0])
                if entering and lane.steps and not lane.stuck:
                    return await self._catch_up(lane, accepted, answer)
                return self._place(lane, accepted, answer, mode, entering)
            case _:
                self._lose(lane)
                return None

    def _foresee_entry(self, lane: SharedLane, accepted: AcceptPrompt) -> list[Operation]:
        """What lets the prompt enter in the step in which it is accepted: if this node owns the session after that, and
        has nothing else to write first."""
        mine = lane.owned or (lane.free and not lane.session.prompts)
        if not mine or lane.steps or lane.session.held or self.draining or self.ready:
            return []
        state = lane.session.foresee_entry()
        message = user_message(lane.session.id, 0, accepted.text, accepted.attachments)
        return [*([PutMessage(message)] if state is State.ACTIVE else []), MovePrompt(0, state)]

    def _place(self, lane: SharedLane, accepted: AcceptPrompt, answer: Committed, mode: Feature | None,
               entering: Sequence[Operation]) -> Handle:
        """The prompt is accepted: this node takes it in if it owns the session, and else the owner does (C1b). If it
        was to enter in the same step, it has. If the lane was lost meanwhile, nothing more is done in it."""
        if lane.lost:
            return self._leave_to_others(lane, accepted)
        self._hear(lane, accepted, answer)
        if answer.epoch is not None:
            handle, placed = self._admit(lane, accepted, 0, mode)
            if placed:  # its place was journaled with it
                placed.add_done_callback(lambda done: done.cancelled() or done.exception())
            if entering and not lane.stuck:
                for operation in entering:
                    if isinstance(operation, PutMessage):
                        lane.runs[accepted.seq].keep_message(operation.message._replace(id=f"p{accepted.seq}"))
                self._keep(lane, 1, answer)
            return handle
        prompt, _ = lane.session.accept(accepted.text, accepted.run_id, accepted.seq, mode)
        prompt.attachments = accepted.attachments
        self._tell(lane, prompt, prompt.state)
        self._tell_others(lane.session.id)
        return Handle(lane.make_run(prompt), self.broker, lane.held)

    def _leave_to_others(self, lane: SharedLane, accepted: AcceptPrompt) -> Handle:
        """The prompt is accepted, and this lane has nothing more to do with it: any node goes on with it."""
        run = lane.make_run(Prompt(lane.session, accepted.seq, accepted.text, accepted.run_id))
        if lane.stuck:
            run.over(lane.stuck)
        return Handle(run, self.broker, lane.held)

    async def _catch_up(self, lane: SharedLane, accepted: AcceptPrompt, answer: Committed) -> Handle:
        """The prompt is accepted and has entered. What was taken in the session meanwhile is taken again."""
        async def load_again() -> None:
            await self._take_all_again(lane, await self._load(lane.session.id))

        self._hear(lane, accepted, answer)
        try:
            await self._writer.read(load_again)
        except Exception as error:
            self._stand_still(lane, error)
        run = lane.runs.get(accepted.seq)
        return Handle(run, self.broker, lane.held) if run else self._leave_to_others(lane, accepted)

    def _hear(self, lane: SharedLane, accepted: AcceptPrompt, answer: Committed) -> None:
        """The session, as it is once the prompt is accepted. What was accepted before it became this node's is looked
        at."""
        lane.version = answer.version
        self._counter.latest = max(self._counter.latest, accepted.seq)
        if answer.epoch is not None:
            claimed, lane.epoch, lane.free = not lane.owned, answer.epoch, False
            if claimed:
                self._look_all(lane)

    cancel = repeated(Runtime.cancel)
    clear_queue = repeated(Runtime.clear_queue)
    revoke = repeated(Runtime.revoke)
    stop = repeated(Runtime.stop)
    hold = repeated(Runtime.hold)
    resume = repeated(Runtime.resume)
    replace = repeated(Runtime.replace)
    next = repeated(Runtime.next)

    async def create_session(self, id: str, title: str = "") -> None:
        if id not in self._lanes:
            self._refuse_if_closing()
            try:
                with suppress(Refused):  # another caller was faster
                    made = await self._writer.begin(id, None, [NewSession(id, title, int(time()))]).answer
                    if isinstance(made, Committed) and id not in self._lanes:
                        lane = SharedLane(Session(id, self._counter, protocol=self.protocol), self.broker)
                        lane.version, lane.free = made.version, True
                        self._lanes[id] = lane
            except ClosingSession as error:
                raise Closing("the workspace is closing; open it again") from error

    def unfinished(self, session_id: str | None = None) -> int:
        if session_id is None:
            return super().unfinished()
        return len(lane.session.prompts) if (lane := self._lanes.get(session_id)) else 0

    def is_behind(self, session_id: str, version: int) -> bool:
        """Whether this node has not seen what its session is."""
        lane = self._lanes.get(session_id)
        return lane is None or lane.epoch is None or (lane.version != version and not lane.working)

    def count_owned(self) -> int:
        return sum(lane.epoch is not None for lane in self._lanes.values())

    def is_working(self) -> bool:
        """Whether a session is this node's, or is about to be."""
        return any(lane.working or lane.epoch is not None for lane in self._lanes.values())

    def _node_of(self, lane: Lane) -> str:
        return self.node() if lane.epoch is not None else ""

    # --- looking at what is stored

    async def look(self, session_id: str | None = None) -> None:
        """Hears of what other nodes have done: in the session, or in all. Raises `NoSession`."""
        if session_id is not None:
            await self._reach(session_id)
            return
        for snapshot in await self.store.load_all():
            await self._see_if_free(snapshot)

    async def look_at_own(self, session_id: str) -> bool:
        """Looks at the session, if it is this node's, and says whether it is."""
        lane = self._lanes.get(session_id)
        if not isinstance(lane, SharedLane) or not lane.owned:
            return False
        snapshot = await self._load(session_id)  # meanwhile its turn goes on
        async with self._taken(lane):
            if lane.owned and not lane.stuck:
                await self._see(lane, snapshot)
        return True

    async def _reach(self, session_id: str) -> Lane:
        known = self._lanes.get(session_id)
        lane = known or await self._load_lane(session_id)
        assert isinstance(lane, SharedLane)
        while lane.session.down:  # it is being recovered here
            await lane.take()
            self._rest(lane)
        if lane.stuck:
            raise lane.stuck
        if known and not lane.working:  # else its commit compares
            async with self._taken(lane):
                await self._see(lane, await self._load(session_id))
        return self._lanes.get(session_id) or await self._reach(session_id)

    async def _load(self, session_id: str) -> Snapshot:
        try:
            snapshot = await self.store.load(session_id)
            self._counter.latest = max(self._counter.latest, self.store.seen)  # a mark covers all before
            return snapshot
        except LookupError:
            raise NoSession(f"there is no session {session_id}; create it first") from None

    async def _load_lane(self, session_id: str) -> Lane:
        """The lane of a session that this node does not know. Who comes second takes the lane of who came first: a turn
        that is asked to stop in one lane could not end in another."""
        snapshot = await self._load(session_id)
        if known := self._lanes.get(session_id):
            return known
        lane = SharedLane(Session(session_id, self._counter, protocol=self.protocol), self.broker)
        self._lanes[session_id] = lane
        lane.reload(snapshot, [])
        self._look_all(lane)
        return lane

    @asynccontextmanager
    async def _taken(self, lane: SharedLane) -> AsyncIterator[None]:
        await lane.take()
        try:
            yield
        finally:
            self._rest(lane)

    def _rest(self, lane: SharedLane) -> None:
        """Whoever has kept others out is done. What has gathered meanwhile is carried out."""
        self._let_lane_rest(lane)
        if lane.steps and not lane.stuck:
            lane.working = True
            self._spawn(self._drain_lane(lane), lane)

    def _let_lane_rest(self, lane: Lane) -> None:
        super()._let_lane_rest(lane)
        assert isinstance(lane, SharedLane)
        lane.wake()

    async def _see_if_free(self, snapshot: Snapshot) -> None:
        """Takes the snapshot for what the session is, unless something is under way in it."""
        lane = self._lanes.get(snapshot.session_id)
        if lane is None:
            lane = SharedLane(Session(snapshot.session_id, self._counter, protocol=self.protocol), self.broker)
            self._lanes[snapshot.session_id] = lane
        assert isinstance(lane, SharedLane)
        if not (lane.working or lane.stuck or lane.session.down):
            async with self._taken(lane):
                await self._see(lane, snapshot)

    async def _see(self, lane: SharedLane, snapshot: Snapshot) -> None:
        """The session is what the snapshot says, unless this node knows of something later. A lane that was lost while
        its turn was waited for stays so: the session may have another one by now."""
        if lane.lost or snapshot.version < lane.version:
            return
        if lane.owned:
            if snapshot.epoch != lane.epoch or not snapshot.owned:
                self._lose(lane)
            elif snapshot.version != lane.version:
                await self._take_all_again(lane, snapshot)
            return
        if lane.steps:
            return
        lane.reload(snapshot, [])
        if lane.owned:  # the answer to a claim of this node was lost
            self._look_all(lane)

    def _look_all(self, lane: SharedLane) -> None:
        for prompt in lane.session.live:
            self._look_at(lane, prompt)

    def _look_at(self, lane: Lane, prompt: Prompt) -> None:
        if lane.epoch is not None:
            if prompt.seq not in lane.runs and prompt.state is not State.ACCEPTED:
                self._register(lane, prompt)
            super()._look_at(lane, prompt)

    def _register(self, lane: Lane, prompt: Prompt) -> Run:
        run = super()._register(lane, prompt)
        run.goes_on = lane.had_begun(prompt)
        return run

    async def _take_all_again(self, lane: Lane, snapshot: Snapshot) -> None:
        assert isinstance(lane, SharedLane)
        if lane.owned and (snapshot.epoch != lane.epoch or not snapshot.owned):
            self._lose(lane)
            return
        try:
            await super()._take_all_again(lane, snapshot)
        except StoreError:
            raise
        except Exception as error:  # it is loaded in part, whoever has asked for it
            self._stand_still(lane, error)

    def _take_again(self, lane: Lane, step: LaneStep) -> LaneStep:
        called = step.done is not None and step.effects.action in CALLS | {""}
        if called and lane.epoch is None:
            return self._make_again(lane, step)
        again = super()._take_again(lane, step)  # a turn that a call has stopped needs that call before its end
        return self._make_again(lane, step) if called and again.done and not again.effects.action else again

    async def _find_prompt(self, lane: Lane, key: int | str) -> Prompt | PromptRecord:
        found = await super()._find_prompt(lane, key)
        if lane.session.down:  # this node has begun to recover it
            raise Stale(f"session {lane.session.id} has changed")
        return found

    async def _wait_for_news(self, lane: Lane) -> None:
        await asyncio.sleep(0.001)
        raise Stale(f"session {lane.session.id} has changed")

    # --- committing

    def _begin_commit(self, lane: Lane) -> tuple[Commit, int]:
        assert isinstance(lane, SharedLane)
        self._show_records(lane)
        lane.claim = lane.release = ""
        if lane.owned and not lane.needs_owner():
            lane.release = "idle"
        elif lane.free and lane.needs_owner():  # a node that leaves gives it to whoever comes
            lane.claim, lane.release = ("", "handover") if self.draining else ("adopt", "")
        commit = self._writer.begin(lane.session.id, lane.version, self._list_operations(lane), lane.epoch, lane.claim,
                                    lane.release, lane.list_actions())
        return commit, len(lane.steps)

    def _keep(self, lane: Lane, number: int, answer: Committed) -> None:
        assert isinstance(lane, SharedLane)
        super()._keep(lane, number, answer)  # does what the steps ask for only if the session is this node's
        if answer.events or not lane.owned:
            self._tell_others(lane.session.id)
        if lane.claim and answer.epoch is not None:
            lane.epoch, lane.free = answer.epoch, False
            self._look_all(lane)
        elif lane.release:
            self._leave(lane)

    def _leave(self, lane: SharedLane) -> None:
        """The session is nobody's any more."""
        lane.epoch, lane.free = None, True
        lane.runs.clear()

    def _do(self, lane: Lane, effects: Effects) -> None:
        if lane.epoch is not None:
            for prompt, _ in effects.moved:
                if prompt.seq not in lane.runs:  # the step was taken before the session was this node's
                    self._register(lane, prompt)
            super()._do(lane, effects)
            return
        for effect in effects:
            if isinstance(effect, End):
                self.ended[effect.outcome] += 1

    def _start(self, lane: Lane, run: Run) -> None:
        if not self.draining:  # what is active then has not begun, and is another node's
            super()._start(lane, run)

    # --- sessions of others

    async def claim(self, session_id: str) -> None:
        """Takes over a session that was handed over, or whose owner is dead (C4d)."""
        if self.draining:
            return
        lane = self._lanes.get(session_id) or await self._load_lane(session_id)
        assert isinstance(lane, SharedLane)
        if lane.owned or lane.stuck:
            return
        async with self._taken(lane):
            snapshot = await self._load(session_id)
            if lane.steps or lane.stuck or snapshot.owned:
                return
            lane.reload(snapshot, [])
            if snapshot.free:
                await self._adopt(lane)
            else:
                await self._recover(lane, snapshot)

    async def _adopt(self, lane: SharedLane) -> None:
        """Nobody owns it: what is active has not begun. If nothing is left to do in it, since others were faster, it is
        given up in the same step."""
        release = "" if lane.needs_owner() else "idle"
        answer = await self._writer.begin(lane.session.id, lane.version, [], None, "adopt", release).answer
        if not isinstance(answer, Committed):
            return
        lane.version = answer.version
        if answer.epoch is not None:
            lane.epoch, lane.free = answer.epoch, False
            log.info("session adopted", extra={"session": lane.session.id})
            self._look_all(lane)

    async def give_up_stuck(self) -> None:
        """Gives up the sessions with which this node could not go on, as if it had died: what was active ends with an
        error, and any node goes on with the rest."""
        for id, old in [(id, lane) for id, lane in self._lanes.items() if lane.stuck]:
            snapshot = await self._load(id)
            if self._lanes.get(id) is not old:  # it was lost meanwhile, and may have been loaded again
                continue
            lane = self._lanes[id] = SharedLane(Session(id, self._counter, protocol=self.protocol), self.broker)
            lane.reload(snapshot, [])
            async with self._taken(lane):
                try:
                    if lane.owned:
                        await self._recover(lane, snapshot)
                finally:
                    if not lane.lost:
                        lane.stuck = old.stuck if lane.owned else None

    async def _recover(self, lane: SharedLane, snapshot: Snapshot) -> None:
        """Its owner is dead, or gives it up: what was active ends with an error (C4b)."""
        session, fence = lane.session, lane.epoch
        session.down = True  # calls wait
        answer: Answer | None = None
        try:
            for prompt in session.live:
                await self._take_up(lane, prompt)
            lane.steps.append(LaneStep.of(session.take("recover"), session))
            self._steps += 1
            lane.release = "idle" if not lane.needs_owner() else "" if fence is None else "handover"
            answer = await self._writer.begin(
                session.id, lane.version, self._list_operations(lane), fence, "recover" if fence is None else "",
                lane.release, lane.list_actions()).answer
        finally:
            if isinstance(answer, Committed):
                self._take_over(lane, answer)
            else:  # another was faster, or the owner lives, or the database is away
                self._leave(lane)
                for step in lane.steps:  # of calls that came meanwhile
                    if step.done:
                        self._make_again(lane, step)
                self._steps -= len(lane.steps)
                lane.steps.clear()
                session.down = False
                lane.reload(snapshot, [])

    def _take_over(self, lane: SharedLane, answer: Committed) -> None:
        self.recovered += 1
        log.warning("session recovered", extra={"session": lane.session.id})
        lane.epoch, lane.free, lane.claim = answer.epoch or 0, False, ""
        self._keep(lane, 1, answer)  # calls that came meanwhile are still to be written
        for prompt in lane.session.live:
            self._settle_if_canceled(lane, prompt)

    def lose_all(self) -> None:
        """This node is dead to the others: nothing of what it runs counts any more."""
        for lane in list(self._lanes.values()):
            if lane.epoch is not None:
                self._lose(lane)

    # --- leaving

    async def close(self, deadline: float | None = None) -> None:
        """Hands its sessions over: starts nothing more, lets turns end until the deadline, ends the others as
        interrupted, and closes the store. Prompts that wait go on at another node (C7a)."""
        if self._close is None:
            self._close = asyncio.ensure_future(self._hand_over(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    async def _hand_over(self, deadline: float) -> None:
        self.closing = self.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline
        while loop.time() < end and (self._accepting or any(run.task for _, run in self._runs)):
            await asyncio.sleep(0.01)
        for lane, run in [(lane, run) for lane, run in self._runs if run.turn and run.task]:
            await self._interrupt(lane, run)
        try:
            async with asyncio.timeout(self.grace):
                await asyncio.gather(*(self._release(lane) for lane in list(self._lanes.values())))
        except (TimeoutError, StoreError, Refusal) as error:
            log.error("closing with sessions that could not be handed over; another node recovers them: %s", error)
        self._over.set()
        await cancel_all(self._tasks)
        await self._let_watchers_look()
        self.store.close()

    async def _interrupt(self, lane: Lane, run: Run) -> None:
        """Ends a turn that has not ended by itself, once its task has."""
        turn = run.turn  # None: it has ended meanwhile
        if turn is None or turn.abandoned or run.prompt.state is not State.ACTIVE:
            return
        await turn.look_back()
        task, result = run.task, turn.end(Outcome.ERROR, self.interrupted)
        self._let_go(run, turn)
        if task:
            await asyncio.wait([task], timeout=self.grace)
        self._end(lane, run, result, turn.unwritten)

    async def _release(self, lane: Lane) -> None:
        assert isinstance(lane, SharedLane)
        while lane.steps:
            await lane.take()
            self._rest(lane)
            await asyncio.sleep(0)
        async with self._taken(lane):
            if lane.owned and not lane.stuck:
                answer = await self._writer.begin(
                    lane.session.id, lane.version, [], lane.epoch, "", "handover" if lane.needs_owner() else "idle",
                    ).answer
                if isinstance(answer, Conflict):  # somebody has called meanwhile: whoever has it next sees that
                    answer = await self._writer.begin(
                        lane.session.id, answer.snapshot.version, [], lane.epoch, "", "handover").answer
                self._leave(lane)
                self._tell_others(lane.session.id)
