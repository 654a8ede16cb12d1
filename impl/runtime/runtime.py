"""The runtime: sessions that run. It carries out what each step of a session asks for, in order, on asyncio.

Each session has a *lane*. A step is taken at once; what it asks for is put into the lane, and carried out in order: the
transitions, the mark and the terminal events of the steps that have gathered are committed together, then turns are
started and stopped. So a terminal event is durable and published before the next turn starts, and no prompt runs inside
another's call.

A turn that ignores a stop is abandoned after a grace period: its prompt ends, once, and what it says then goes nowhere.

**When the store fails.** A failure that may pass (a full disk, a locked file) is waited out: lane and turn try again as
long as it takes, the session stands still, and nothing is lost. A message that the store will never take is left out,
and ends the turn that needs it with an error. A journal that the store will never take, or a store that is broken, is
fatal to the session: it is said loudly, whoever waits is told at once, nothing more is accepted there, and a restart
goes on from what the journal has.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import time
from typing import Any

from cancelmark.model.actions import ACTIONS
from cancelmark.model.effects import End, Fold, Record, Start, Stop
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import REFERENCE, Protocol

from ..models import Model
from ..store import (
    AcceptPrompt,
    Answer,
    Committed,
    Conflict,
    Lost,
    MemoryStore,
    Message,
    NewSession,
    PromptRecord,
    Refused,
    Snapshot,
    Store,
    StoreError,
)
from .events import Broker, Update
from .lane import Lane, LaneStep
from .messages import canceled_messages, wire_message
from .refusals import TOO_LATE, Closing, Moved, NoSession, Refusal, RunIdInUse, Stuck
from .run import STATE, UNKNOWN, Handle, Run
from .session import Counter, Effects, Prompt, Session
from .tasks import has_succeeded, outlast
from .trace import Trace, found_in
from .turn import Ending, ToolRunner, Turn
from .writer import UNSTORABLE, Commit, Writer

log = logging.getLogger("cancelmark")

INTERRUPTED = "interrupted by a restart of the server"
SHOWN = 280  # characters of a prompt that an update of its state carries
LAST_LOOK = 1.0  # seconds for those who watch to see the last events before the store closes

EVERYWHERE = {action.name for action in ACTIONS if action.everywhere}

Ready = Callable[[str], Awaitable[None]]


class Runtime:
    """Runs prompts. Use it as `async with Runtime(model) as runtime`, or call `start` and `close`.

    `ready`, if given, is awaited with the session's id before an accepted prompt enters. What it raises is the reason
    why the prompt cannot start: it ends with that error, unless it was canceled meanwhile. `trace`, if given, is told
    of every action; whoever has opened it closes it. `protocol` is what its sessions live by.
    """

    def __init__(
        self, model: Model, store: Store | None = None, *, tools: Iterable[ToolRunner] = (), grace: float = 5.0,
        ready: Ready | None = None, trace: Trace | None = None, protocol: Protocol = REFERENCE,
    ) -> None:
        self.trace, self.protocol = trace, protocol
        self.model, self.store, self.grace, self.ready = model, store or MemoryStore(), grace, ready
        self.tools = {runner.tool.name: runner for runner in tools}
        self.broker = Broker(self.store)
        self.closing = False
        self.ended = dict.fromkeys(Outcome, 0)  # how many prompts have ended so, in this life
        self._counter = Counter()
        self._lanes: dict[str, Lane] = {}
        self._runs: dict[int, Run] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._left: set[asyncio.Future[None]] = set()  # tasks of turns that were abandoned
        self._accepting = self._steps = 0  # prompts that are being journaled, steps that are not carried out
        self._quiet = asyncio.Event()  # it is closing, and everything is done
        self._over = asyncio.Event()  # nothing is tried again
        self._writer = Writer(self.store, self._over)
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
        self._counter.latest = await self.store.latest_seq()
        for known in await self.store.load_all():
            self._lanes[known.session_id] = Lane(Session.restored(
                known.session_id, self._counter, known.mark,
                ((r.seq, r.text, r.run_id, r.state) for r in known.prompts), protocol=self.protocol),
                known.version, known.epoch)
        lanes = list(self._lanes.values())
        runs = [await self._take_up(lane, prompt) for lane in lanes for prompt in lane.session.prompts.values()]
        found = found_in(lane.session for lane in lanes) if self.trace else None
        steps = [lane.session.take("recover") for lane in lanes]
        if self.trace:
            self.trace.everywhere("recover", steps, found)
        recovering = [self._begin_to_carry_out(lane, effects) for lane, effects in zip(lanes, steps) if effects.moved]
        for run in runs:
            self._settle_if_canceled(self._lanes[run.prompt.session.id], run.prompt)
        await asyncio.gather(*recovering, return_exceptions=True)  # a session that stands still has said so

    async def _take_up(self, lane: Lane, prompt: Prompt) -> Run:
        """A prompt that the last life has left."""
        run = self._register(prompt)
        run.goes_on = any(move.state is State.ACTIVE for move in await self.store.transitions(prompt.seq))
        if prompt in lane.session.active:
            run.ending = await self._end_interrupted(lane, run)
        return run

    async def _end_interrupted(self, lane: Lane, run: Run) -> Ending:
        turn = self._turn(lane, run)
        try:
            await turn.look_back()
            return turn.end(Outcome.ERROR, INTERRUPTED)
        except StoreError as error:  # what its turn has written cannot be read: it ends all the same
            log.error("prompt %s: its messages cannot be ended: %s", run.prompt, error)
            return Ending(Outcome.ERROR, error=INTERRUPTED)

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

    async def accept(self, session_id: str, text: str, run_id: str | None = None) -> Handle:
        """Accepts a prompt; when this returns it is journaled, and its end will come. Raises `Refusal` or `StoreError`,
        and then nothing is accepted. If the caller is canceled meanwhile, the prompt may or may not be
        accepted (R1a, R1b, R1c, R15a, R22a)."""
        if not text.strip():
            raise Refusal("the prompt is empty; say something")
        if not (self.store.is_storable(text) and self.store.is_storable(run_id or "")):
            raise Refusal("the prompt or its run id has half a character in it (a lone surrogate); send whole ones")
        lane = self._lane(session_id)
        self._refuse_if_closing()
        after = self.trace.n if self.trace else 0
        seq = self._counter.next()  # a cancel from here on covers it, and so does a close
        self._accepting += 1
        try:
            lane.accepting.add(seq)
            journaled = self._writer.begin(session_id, None, [AcceptPrompt(seq, session_id, text, run_id or None)])
            canceled = await outlast(journaled.answer)
            journaled.answer.result()
            handle = self._admit(lane, seq, text, run_id or None, after)
            if canceled:
                raise canceled
            return handle
        except Refused as error:  # it has another prompt with that run id
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
        finally:
            lane.accepting.discard(seq)
            self._accepting -= 1
            self._look_quiet()

    def _admit(self, lane: Lane, seq: int, text: str, run_id: str | None, after: int) -> Handle:
        """The prompt is journaled, and enters."""
        session = lane.session
        prompt, effects = session.accept(text, run_id, seq)
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

    def unfinished(self, session_id: str) -> int:
        """How many prompts of the session are not done."""
        return len(self._lane(session_id).session.prompts)

    def is_busy(self, session_id: str | None = None) -> bool:
        """Whether the session has a prompt whose end has not been published; without an id, whether any has."""
        if session_id is None:
            return bool(self._runs)
        lane = self._lane(session_id)
        return bool(lane.session.prompts) or any(step.effects.moved for step in lane.steps)

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
            for lane, effects in zip(lanes, steps):
                self._carry(lane, effects)
            self._close = asyncio.ensure_future(self._closed(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    async def _closed(self, deadline: float) -> None:
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

    # --- the life of a prompt

    def _register(self, prompt: Prompt) -> Run:
        feed = self.broker.feed(prompt.session.id, prompt.run_id)
        run = self._runs[prompt.seq] = Run(prompt, feed, self.broker.latest)
        return run

    async def _enter_if_ready(self, lane: Lane, run: Run, ready: Ready) -> None:
        try:
            await ready(lane.session.id)
        except Exception as error:
            self._fail(lane, run.prompt, str(error) or type(error).__name__)
        else:
            self._enter(lane, run.prompt)

    def _enter(self, lane: Lane, prompt: Prompt) -> None:
        """The prompt enters, and is settled if it was canceled: nobody has to ask for it (R7b, R21)."""
        self._carry(lane, lane.session.take("enter", prompt))
        self._settle_if_canceled(lane, prompt)

    def _fail(self, lane: Lane, prompt: Prompt, why: str) -> None:
        """Ends an accepted prompt that cannot start."""
        self._runs[prompt.seq].ending = Ending(Outcome.ERROR, error=why)
        self._carry(lane, lane.session.take("fail", prompt))
        self._settle_if_canceled(lane, prompt)

    def _settle_if_canceled(self, lane: Lane, prompt: Prompt) -> None:
        if prompt.state is State.CANCELED_ON_ENTRY:
            self._carry(lane, lane.session.take("settle", prompt))

    async def _run(self, lane: Lane, run: Run, turn: Turn) -> None:
        """The active prompt's task: its turn, and then its end or its return to the queue."""
        try:
            ending = await turn.run()
        except asyncio.CancelledError:
            return  # the event loop ends: for the prompt that is a crash
        except Exception as failed:  # it cannot even say how it ended
            ending = Ending(Outcome.ERROR, error=f"{type(failed).__name__}: {failed}")
        if turn.abandoned:
            return
        if ending.outcome is None and run.prompt.covered:
            ending = turn.end(Outcome.CANCELED)
        if ending.outcome is None:
            run.ending, run.goes_on = ending, True
            self._carry(lane, lane.session.take("requeue", run.prompt))
        else:
            self._end(lane, run, ending)

    def _end(self, lane: Lane, run: Run, ending: Ending) -> None:
        assert ending.outcome is not None
        self._close_run(run, ending)
        self._carry(lane, lane.session.take("finish", run.prompt, ending.outcome))

    def _close_run(self, run: Run, ending: Ending) -> None:
        run.ending = ending
        run.feed.close()
        if run.grace:
            run.grace.cancel()

    async def _abandon(self, run: Run) -> None:
        """Ends a prompt whose turn does not stop (R24a)."""
        if run.turn:
            await run.turn.look_back()
        if run.prompt.state is State.ACTIVE and run.turn and not run.turn.abandoned:
            log.warning("prompt %s: its turn did not stop and is abandoned", run.prompt)
            ending = run.turn.end(Outcome.CANCELED, "the turn did not stop in time")
            self._let_go(run, run.turn)
            self._end(self._lanes[run.prompt.session.id], run, ending)

    def _let_go(self, run: Run, turn: Turn) -> None:
        """Nobody waits for the turn any more."""
        if run.task:
            self._tasks.discard(run.task)
            self._left.add(run.task)
        turn.abandon()

    # --- carrying out

    async def _carry_out(self, lane: Lane, effects: Effects) -> Effects:
        """Waits until what a step asks for is carried out, and returns it as it was committed. Takes no part in being
        canceled."""
        return await asyncio.shield(self._begin_to_carry_out(lane, effects))

    def _begin_to_carry_out(self, lane: Lane, effects: Effects) -> "asyncio.Future[Effects]":
        done: asyncio.Future[Effects] = asyncio.get_running_loop().create_future()
        self._carry(lane, effects, done)
        return done

    def _carry(self, lane: Lane, effects: Effects, done: "asyncio.Future[Effects] | None" = None,
               ) -> None:
        """Puts what a step asks for into the lane. It must be called in the same breath as the step is taken (R19b)."""
        if self.trace and effects.action not in EVERYWHERE:
            self.trace.step(lane.session, effects)
        if done and self._over.is_set() and not effects and lane.session.mark <= lane.mark:
            done.set_result(effects)  # nothing to cancel or clear, and all that was is written
            return
        lane.steps.append(LaneStep(effects, lane.session.mark, done))
        self._steps += 1
        stopped = self._stop(effects)
        if lane.stuck or self._over.is_set():
            self._leave_behind(lane, lane.stuck or TOO_LATE)
        elif not lane.working:
            lane.working = True
            if stopped:  # its end may be here in a moment, to be committed together with what has stopped it
                self._spawn(self._drain_lane(lane))
            else:
                self._drain_lane_now(lane)

    def _stop(self, effects: Effects) -> bool:
        """Asks the turn to stop, if there is one that the step stops. Its end is committed with the step or after it,
        so that nobody sees more of this than of a crash (R16c)."""
        for effect in effects:
            if isinstance(effect, Stop) and (run := self._runs.get(effect.seq)) and run.turn:
                run.turn.stop()
                return True
        return False

    def _drain_lane_now(self, lane: Lane) -> None:
        """Carries out what has gathered in the lane, as far as the store answers at once. A task does the rest."""
        try:
            while lane.steps:
                commit, number = self._begin_commit(lane)
                if not has_succeeded(commit.answer) or not isinstance(answer := commit.answer.result(), Committed):
                    self._spawn(self._drain_lane(lane, commit, number))
                    return
                self._keep(lane, number, answer)
        except Exception as error:
            self._stand_still(lane, error)
        self._let_lane_rest(lane)

    async def _drain_lane(self, lane: Lane, commit: Commit | None = None, number: int = 0) -> None:
        """Carries out what has gathered in the lane, until nothing is left; first what was begun, of so many steps."""
        try:
            while lane.steps:
                if commit is None:
                    commit, number = self._begin_commit(lane)
                answer, poorer = await self._writer.complete_poorer(commit)
                commit = None
                match answer:
                    case Committed():
                        if poorer:
                            self._mark_trouble(lane.steps[:number])
                        self._keep(lane, number, answer)
                    case Conflict(snapshot):
                        await self._take_all_again(lane, snapshot)
                    case _:
                        self._lose(lane)
        except asyncio.CancelledError:  # the event loop ends, and nobody knows what was committed
            lane.stuck = Stuck(f"session {lane.session.id} was interrupted; restart the server")
            raise
        except Exception as error:
            self._stand_still(lane, error)
        finally:
            self._let_lane_rest(lane)

    def _let_lane_rest(self, lane: Lane) -> None:
        lane.working = False
        self._look_quiet()

    def _begin_commit(self, lane: Lane) -> tuple[Commit, int]:
        """Begins to make everything durable that has gathered in the lane, and says how many steps that is."""
        self._show_records(lane.steps)
        operations = lane.operations(lane.steps, self._runs)
        return self._writer.begin(lane.session.id, lane.version, operations, lane.epoch), len(lane.steps)

    def _keep(self, lane: Lane, number: int, answer: Committed) -> None:
        """Shows and does what the first steps ask for, now that they are durable."""
        lane.version = answer.version
        for effects, mark, done in lane.steps[:number]:
            lane.mark = max(lane.mark, mark)
            for prompt, row in effects.moved:
                self._tell(prompt, row.dest, row.outcome)
            self._do(lane, effects)
            if done:
                done.set_result(effects)
        del lane.steps[:number]
        self._steps -= number

    def _mark_trouble(self, steps: Iterable[LaneStep]) -> None:
        """The prompts that these steps start have no message: they cannot run."""
        for effect in (effect for step in steps for effect in step.effects):
            if isinstance(effect, Start):
                self._runs[effect.seq].trouble = UNSTORABLE

    # --- when others have written to the session

    async def _take_all_again(self, lane: Lane, snapshot: Snapshot) -> None:
        """The session is not what the steps were taken on: loads it, and takes again what waits in the lane."""
        records = [(run, await self.store.prompt(run.prompt.seq)) for run in self._missing_in(snapshot)]
        for run, record in records:
            if record and record.outcome:
                self._leave_ended(run, record.outcome)
        lane.reload(snapshot, [run.prompt for run in self._missing_in(snapshot)])  # no other step comes in between
        for prompt in lane.session.prompts.values():
            if known := self._runs.get(prompt.seq):
                known.prompt = prompt
        lane.steps = [self._take_again(lane, step) for step in lane.steps]
        for prompt in lane.session.live:
            self._look_at(lane, prompt)

    def _missing_in(self, snapshot: Snapshot) -> list[Run]:
        """The prompts of the session that the snapshot does not have: others have ended them, or they were accepted
        since. Those that were folded belong to their host."""
        runs = [run for run in self._runs.values() if run.prompt.session.id == snapshot.session_id]
        known = {record.seq for record in snapshot.prompts} | {g.prompt.seq for run in runs for g in run.guests}
        return [run for run in runs if run.prompt.seq not in known]

    def _take_again(self, lane: Lane, step: LaneStep) -> LaneStep:
        effects = lane.take_again(step)
        if not effects.action and step.effects.action == "requeue":
            prompt = step.effects.prompt and lane.session.prompts.get(step.effects.prompt.seq)
            if prompt and prompt.state is State.ACTIVE:  # and canceled meanwhile
                run = self._runs[prompt.seq]
                assert run.turn is not None
                self._close_run(run, run.turn.end(Outcome.CANCELED))
                effects = lane.session.take("finish", prompt, Outcome.CANCELED)
        return LaneStep(effects, lane.session.mark, step.done)

    def _leave_ended(self, run: Run, outcome: Outcome) -> None:
        """Tells how a prompt ended that others have ended."""
        if run.turn and not run.turn.abandoned:
            self._let_go(run, run.turn)
        run.ending = UNKNOWN
        self._answer(self._runs.pop(run.prompt.seq), outcome)

    def _look_at(self, lane: Lane, prompt: Prompt) -> None:
        """Does what a prompt's state asks for, whoever has brought it there."""
        run = self._runs.get(prompt.seq)
        if run is None:
            run = self._register(prompt)
            if prompt.state is State.ACCEPTED:
                self._enter(lane, prompt)
        self._settle_if_canceled(lane, prompt)
        if prompt.state is State.ACTIVE and not lane.starts(prompt.seq):
            if run.turn is None:
                self._start(lane, run)
            elif prompt.covered and run.grace is None:
                run.turn.stop()
                self._stopping(run)

    def _lose(self, lane: Lane) -> None:
        """The session belongs to another server: lets go of its turns, and forgets it."""
        log.warning("session %s belongs to another server by now", lane.session.id)
        lane.stuck = Moved(f"session {lane.session.id} belongs to another server by now; ask again")
        self._lanes.pop(lane.session.id, None)
        self._leave_behind(lane, lane.stuck)

    def _show_records(self, steps: Iterable[LaneStep]) -> None:
        """Shows the messages of prompts that never ran, which come before their ends as those of a turn do."""
        for effect in (effect for step in steps for effect in step.effects):
            if isinstance(effect, Record):
                run = self._runs[effect.seq]
                for message in canceled_messages(run.prompt.session.id, run.prompt.seq, run.prompt.text):
                    run.feed.publish("message", {**wire_message(message), "seq": effect.seq})

    def _tell(self, prompt: Prompt, state: State, outcome: Outcome | None = None, stopping: bool = False) -> None:
        """Shows that a prompt has come to another state, or was asked to stop, now that it is durable."""
        if self.broker.watched:
            told = {"run_id": prompt.run_id, "outcome": outcome and outcome.value, "stopping": stopping}
            self.broker.publish(Update(prompt.session.id, STATE, {
                "seq": prompt.seq, "session_id": prompt.session.id, "text": prompt.text[:SHOWN], "state": state.value,
                **{name: value for name, value in told.items() if value}}, prompt.run_id))

    def _say(self, lane: Lane, messages: Sequence[Message], wanted: Callable[[], bool]) -> "asyncio.Future[Any]":
        """Begins to write what a turn has said, and tries again for as long as that may help and is wanted."""
        answer = self.store.begin_say(lane.session.id, messages, lane.epoch)
        if has_succeeded(answer) and isinstance(answer.result(), Committed):
            return answer
        return asyncio.ensure_future(self._complete_say(lane, messages, answer, wanted))

    async def _complete_say(self, lane: Lane, messages: Sequence[Message], begun: "asyncio.Future[Answer]",
                            wanted: Callable[[], bool]) -> None:
        begin_again = partial(self.store.begin_say, lane.session.id, messages, lane.epoch)
        if isinstance(await self._writer.complete(begun, begin_again, wanted), Lost):
            self._lose(lane)

    def _do(self, lane: Lane, effects: Effects) -> None:
        """What is left of a step once it is durable and published: turns to start and stop, waiters to
        answer (R14b, R16c)."""
        for effect in effects:
            match effect:
                case Start(seq):
                    self._start(lane, self._runs[seq])
                case Stop(seq):
                    self._stopping(self._runs[seq])
                case Fold(seq, into):
                    guest = self._runs[seq]  # who may have guests of its own, if it goes on after a summary
                    self._runs[into].guests += [guest, *guest.guests]
                case End(seq, outcome):
                    self.ended[outcome] += 1
                    if outcome is not Outcome.FOLDED:
                        self._answer(self._runs.pop(seq), outcome)

    def _start(self, lane: Lane, run: Run) -> None:
        if run.trouble:
            asyncio.get_running_loop().call_soon(self._end, lane, run, Ending(Outcome.ERROR, error=run.trouble))
            return
        run.turn = self._turn(lane, run)
        if run.prompt.covered:  # a cancel came between the step that started it and this one
            run.turn.stop()
        run.task = self._spawn(self._run(lane, run, run.turn))

    def _turn(self, lane: Lane, run: Run) -> Turn:
        prompt, session = run.prompt, lane.session

        async def follow_ups() -> list[Message]:
            if not session.can("step", run.prompt):
                return []
            effects = await self._carry_out(lane, session.take("step", run.prompt))
            return [self._runs[effect.seq].message for effect in effects if isinstance(effect, Fold)]

        return Turn(
            seq=prompt.seq, prompt=run.message, model=self.model, tools=self.tools,
            history=partial(self.store.messages, session.id), say=partial(self._say, lane), follow_ups=follow_ups,
            feed=run.feed, goes_on=run.goes_on)

    def _stopping(self, run: Run) -> None:
        """Gives the turn its grace period, if it has not ended already."""
        if run.prompt.state is State.ACTIVE:
            self._tell(run.prompt, State.ACTIVE, stopping=True)
            run.grace = asyncio.get_running_loop().call_later(self.grace, lambda: self._spawn(self._abandon(run)))

    def _answer(self, run: Run, outcome: Outcome) -> None:
        result = run.result(outcome)
        for guest in run.guests:
            self._runs.pop(guest.prompt.seq, None)
            guest.over(result._replace(run_id=guest.prompt.run_id, outcome=Outcome.FOLDED))
        run.over(result)

    # --- when it cannot go on

    def _stand_still(self, lane: Lane, error: Exception) -> None:
        """The session's journal cannot be written: whoever waits is told, and nothing more happens in it."""
        if self._over.is_set():
            return  # the runtime has closed, and tells them
        session = lane.session
        told = isinstance(error, StoreError)
        log.critical("session %s stands still until the server is restarted: %s", session.id, error,
                     exc_info=None if told else error)
        lane.stuck = Stuck(f"session {session.id} cannot go on: {error if told else repr(error)}; restart the server")
        self._leave_behind(lane, lane.stuck)

    def _leave_behind(self, lane: Lane, why: Refusal) -> None:
        """Tells those who still wait in the lane that they wait in vain: what they wait for cannot be
        written (R25b)."""
        runs = [run for run in self._runs.values() if run.prompt.session is lane.session]
        for run in runs:
            del self._runs[run.prompt.seq]
            run.over(why)
            if run.turn and not run.turn.abandoned:
                self._let_go(run, run.turn)
        for step in lane.steps:
            if step.done:
                step.done.set_exception(why)
        self._steps -= len(lane.steps)
        lane.steps.clear()

    # --- machinery

    def _lane(self, session_id: str) -> Lane:
        lane = self._lanes.get(session_id)
        if lane is None:
            raise NoSession(f"there is no session {session_id}; create it first")
        if lane.stuck:
            raise lane.stuck
        return lane

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Closing("the server is closing; ask another, or this one when it is back")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Does the work in a task of its own, soon."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        self._left.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Stuck):
            log.error("a prompt's task failed", exc_info=error)

    def _look_quiet(self) -> None:
        """When the runtime is closing nothing new begins, so that once it is quiet it stays so."""
        if self.closing and not (self._accepting or self._runs or self._steps):
            self._quiet.set()
