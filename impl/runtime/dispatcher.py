"""The dispatcher: it carries out what each step of a session asks for, in order, on asyncio.

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
from typing import Any

from cancelmark.model.actions import ACTIONS
from cancelmark.model.effects import End, Fold, Record, Start, Stop
from cancelmark.model.lifecycle import Outcome, State

from .. import wire
from ..models import Model
from ..store import Answer, Committed, Conflict, Json, Lost, Message, Operation, Snapshot, Store, StoreError
from .conversation import Memory
from .events import Broker, Update
from .lane import NOTHING, Lane, LaneStep
from .messages import canceled_messages, list_names, wire_message
from .refusals import TOO_LATE, Moved, Refusal, Stale, Stuck
from .result import Result
from .run import CALL, STATE, Run, show
from .session import Effects, Prompt
from .tasks import has_succeeded, outlast
from .trace import TraceWriter
from .turn import ToolRunner, Turn
from .writer import UNSTORABLE, Commit, Writer

log = logging.getLogger("cancelmark")

SHOWN = 280  # characters of a prompt that an update of its state carries
SESSION = "session"  # the type of an update that tells of a session
NAMED = {"revoke", "replace", "next"}  # calls on one prompt
EVERYWHERE = {"", *(action.name for action in ACTIONS if action.everywhere)}  # and what is no action at all

Ready = Callable[[str], Awaitable[None]]


class Dispatcher:
    """The lanes of all sessions, and the prompts that are not done. What callers may do is the runtime's."""

    until, remedy = "the server is restarted", "restart the server"  # of a session that stands still

    def __init__(self, model: Model, store: Store, broker: Broker, tools: Iterable[ToolRunner], grace: float,
                 trace: TraceWriter | None) -> None:
        self.model, self.store, self.broker, self.grace, self.trace = model, store, broker, grace, trace
        self.tools = {runner.tool.name: runner for runner in tools}
        self.closing = False
        self.describe: Callable[[str], Json] = lambda session_id: {"id": session_id}  # what is told of a session
        self.ended = dict.fromkeys(Outcome, 0)  # how many prompts have ended so, in this life
        self._lanes: dict[str, Lane] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._draining: dict[asyncio.Future[None], Lane] = {}  # the lane that a task drains
        self._left: set[asyncio.Future[None]] = set()  # tasks of turns that were abandoned
        self._accepting = self._steps = 0  # prompts that are being journaled, steps that are not carried out
        self._quiet = asyncio.Event()  # it is closing, and everything is done
        self._over = asyncio.Event()  # nothing is tried again
        self._writer = Writer(store, self._over)
        self._memory = Memory()

    # --- the life of a prompt

    @property
    def _runs(self) -> list[tuple[Lane, Run]]:
        """The prompts that are not done, each with its lane."""
        return [(lane, run) for lane in self._lanes.values() for run in lane.runs.values()]

    def _register(self, lane: Lane, prompt: Prompt) -> Run:
        feed = self.broker.feed(prompt.session.id, prompt.run_id)
        run = lane.runs[prompt.seq] = Run(prompt, feed, self.broker.latest)
        return run

    async def _enter_if_ready(self, lane: Lane, run: Run, ready: Ready) -> None:
        try:
            await ready(lane.session.id)
        except Exception as error:
            self._fail(lane, run.prompt, str(error) or type(error).__name__)
        else:
            self._enter(lane, run.prompt)

    def _enter(self, lane: Lane, prompt: Prompt) -> None:
        """The prompt enters, and is settled if it was canceled, without being asked to (R7b, R21). It is accepted
        already: if the protocol fails here, the session stops, and its caller is not told otherwise."""
        try:
            self._carry(lane, lane.session.take("enter", prompt))
            self._settle_if_canceled(lane, prompt)
        except Exception as error:
            self._stand_still(lane, error)

    def _fail(self, lane: Lane, prompt: Prompt, why: str) -> None:
        """Ends an accepted prompt that cannot start."""
        run = lane.runs[prompt.seq]
        run.said = run.fail(why)
        self._carry(lane, lane.session.take("fail", prompt))
        self._settle_if_canceled(lane, prompt)

    def _settle_if_canceled(self, lane: Lane, prompt: Prompt) -> None:
        if prompt.state is State.CANCELED_ON_ENTRY:
            self._carry(lane, lane.session.take("settle", prompt))

    async def _run(self, lane: Lane, run: Run, turn: Turn) -> None:
        """The active prompt's task: its turn, and then its end or its return to the queue."""
        try:
            result, messages = await turn.run(), turn.unwritten
        except asyncio.CancelledError:
            return  # the event loop ends: for the prompt that is a crash
        except Exception as failed:  # it cannot even say how it ended
            result, messages = run.fail(f"{type(failed).__name__}: {failed}"), ()
        while result is None and lane.may_stop(run.prompt) and not self._over.is_set():
            with suppress(Refusal):  # what stops it was taken again
                await self._carry_out(lane, NOTHING)
        if turn.abandoned:
            return
        if result is None and run.prompt.covered:
            result, messages = turn.end(Outcome.CANCELED), turn.unwritten
        if result is None:
            run.messages, run.goes_on = messages, True
            self._carry(lane, lane.session.take("requeue", run.prompt))
        else:
            self._end(lane, run, result, messages)

    def _end(self, lane: Lane, run: Run, result: Result, messages: Sequence[Message] = ()) -> None:
        run.close(result, messages)
        try:
            effects = lane.session.take("finish", run.prompt, result.outcome)
        except Exception as error:  # of a protocol that was not checked, or of a session that has changed unseen
            self._stand_still(lane, error)
        else:
            self._carry(lane, effects)

    async def _abandon(self, lane: Lane, run: Run) -> None:
        """Ends a prompt whose turn does not stop (R24a)."""
        if run.turn:
            await self._writer.read(run.turn.look_back)
        if run.prompt.state is State.ACTIVE and run.turn and not run.turn.abandoned:
            log.warning("prompt %s: its turn did not stop and is abandoned", run.prompt)
            result = run.turn.end(Outcome.CANCELED, "the turn did not stop in time")
            self._let_go(run, run.turn)
            self._end(lane, run, result, run.turn.unwritten)

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

    def _carry(self, lane: Lane, effects: Effects, done: "asyncio.Future[Effects] | None" = None) -> None:
        """Puts what a step asks for into the lane. It must be called in the same breath as the step is taken (R19b)."""
        session = lane.session
        if self.trace and effects.action not in EVERYWHERE:
            self.trace.step(session, effects)
        if done and self._over.is_set() and not (effects or effects.changed) and (
                session.mark <= lane.mark and session.held is lane.held):
            done.set_result(effects)  # nothing to cancel or clear, and all that was is written
            return
        lane.steps.append(LaneStep.of(effects, session, done))
        self._steps += 1
        if lane.stuck or self._over.is_set():
            self._leave_behind(lane, lane.stuck or TOO_LATE)
            return
        stopped = self._stop(lane)
        if not lane.working:
            lane.working = True
            if stopped:  # its end may be here in a moment, to be committed together with what has stopped it
                self._spawn(self._drain_lane(lane), lane)
            else:
                self._drain_lane_now(lane)

    def _stop(self, lane: Lane) -> bool:
        """Asks the turn to stop, if a step that waits asks for that, and says whether nobody has before. Its end is
        committed with the call or after it, so that nobody sees more of this than of a crash (R16c). A call that is
        taken again still reaches that turn. The entry of an interrupt may not, and asks when it is durable."""
        asked = {effect.seq for step in lane.steps for effect in step.effects if isinstance(effect, Stop)}
        for prompt in lane.session.active if asked else ():
            if prompt.seq in asked and (run := lane.runs.get(prompt.seq)) and run.turn and not lane.may_stop(prompt):
                return run.turn.stop()
        return False

    def _drain_lane_now(self, lane: Lane) -> None:
        """Carries out what has gathered in the lane, as far as the store answers at once. A task does the rest."""
        try:
            while lane.steps:
                commit, number = self._begin_commit(lane)
                if not has_succeeded(commit.answer) or not isinstance(answer := commit.answer.result(), Committed):
                    self._spawn(self._drain_lane(lane, commit, number), lane)
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
                            self._mark_trouble(lane, number)
                        self._keep(lane, number, answer)
                    case Conflict(snapshot):
                        await self._writer.read(partial(self._take_all_again, lane, snapshot))
                    case _:
                        self._lose(lane)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or not task.cancelling():  # nobody has asked for it
                self._stand_still(lane, error)
                return
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
        self._show_records(lane)
        operations = self._list_operations(lane)
        return self._writer.begin(lane.session.id, lane.version, operations, lane.epoch), len(lane.steps)

    def _list_operations(self, lane: Lane) -> list[Operation]:
        return lane.list_operations()

    def _keep(self, lane: Lane, number: int, answer: Committed) -> None:
        """Answers those who wait for the first steps, now that they are durable, and then shows and does what the steps
        ask for. They run on after this: what fails here stops the session, and is no answer to them."""
        lane.version = answer.version
        kept, lane.steps[:number] = lane.steps[:number], []
        self._steps -= number
        for step in kept:
            if step.done:
                step.done.set_result(step.effects)
        for effects, mark, held, _, shown in kept:
            lane.mark = max(lane.mark, mark)
            if held is not lane.held:
                lane.held = held
                self.broker.publish(Update(lane.session.id, SESSION, {**self.describe(lane.session.id), "held": held}))
            for (prompt, _), (state, now) in zip(effects.changed, shown):
                if run := lane.runs.get(prompt.seq):
                    run.shown = now
                if state in (State.ACCEPTED, State.QUEUED):  # otherwise its move tells, or that it is stopped
                    self._tell(lane, prompt, state)
            for prompt, row in effects.moved:
                self._tell(lane, prompt, row.dest, row.outcome)
            self._do(lane, effects)

    def _mark_trouble(self, lane: Lane, number: int) -> None:
        """The prompts that the first steps start have no message: they cannot run."""
        for effect in (effect for step in lane.steps[:number] for effect in step.effects):
            if isinstance(effect, Start):
                lane.runs[effect.seq].trouble = UNSTORABLE

    # --- when others have written to the session

    async def _take_all_again(self, lane: Lane, snapshot: Snapshot) -> None:
        """The session is not what the steps were taken on: loads it, and takes again what waits in the lane."""
        records = [(run, await self.store.prompt(run.prompt.seq)) for run in self._missing_in(lane, snapshot)]
        if lane.stuck:  # it was lost meanwhile, and nothing of it counts
            return
        for run, record in records:
            if record and record.outcome and lane.runs.get(run.prompt.seq) is run:
                self._leave_ended(lane, run, record.outcome)
        since = [run.prompt for run in self._missing_in(lane, snapshot)]
        lane.reload(snapshot, since)  # no other step comes in between
        for prompt in lane.session.prompts.values():
            if known := lane.runs.get(prompt.seq):
                if known.prompt.text != prompt.text:
                    known.forget_message()
                known.prompt, known.shown = prompt, show(prompt)
        lane.steps = [self._take_again(lane, step) for step in lane.steps]
        for prompt in lane.session.live:
            self._look_at(lane, prompt)

    def _missing_in(self, lane: Lane, snapshot: Snapshot) -> list[Run]:
        """The prompts of the session that the snapshot does not have: others have ended them, or they were accepted
        since. Those that were folded belong to their host."""
        guests = {guest.prompt.seq for run in lane.runs.values() for guest in run.guests}
        known = guests | {record.seq for record in snapshot.prompts}
        return [run for seq, run in lane.runs.items() if seq not in known]

    def _take_again(self, lane: Lane, step: LaneStep) -> LaneStep:
        effects = lane.take_again(step)
        if step.done and not effects.action and (step.effects is NOTHING or step.effects.action in NAMED):
            return self._make_again(lane, step)
        if not effects.action and step.effects.action == "requeue":
            prompt = step.effects.prompt and lane.session.prompts.get(step.effects.prompt.seq)
            if prompt and prompt.state is State.ACTIVE:  # and canceled meanwhile
                run = lane.runs[prompt.seq]
                assert run.turn is not None
                run.close(run.turn.end(Outcome.CANCELED), run.turn.unwritten)
                effects = lane.session.take("finish", prompt, Outcome.CANCELED)
        return LaneStep.of(effects, lane.session, step.done)

    def _make_again(self, lane: Lane, step: LaneStep) -> LaneStep:
        """Nothing comes of the step: whoever has called calls again."""
        assert step.done is not None
        step.done.set_exception(Stale(f"session {lane.session.id} has changed"))
        return LaneStep.of(NOTHING, lane.session)

    def _leave_ended(self, lane: Lane, run: Run, outcome: Outcome) -> None:
        """Tells how a prompt ended that others have ended."""
        if run.turn and not run.turn.abandoned:
            self._let_go(run, run.turn)
        run.said = None
        self._answer(lane, lane.runs.pop(run.prompt.seq), outcome)

    def _look_at(self, lane: Lane, prompt: Prompt) -> None:
        """Does what a prompt's state asks for, whoever has brought it there."""
        run = lane.runs.get(prompt.seq)
        if run is None:
            run = self._register(lane, prompt)
            if prompt.state is State.ACCEPTED:
                self._enter(lane, prompt)
        self._settle_if_canceled(lane, prompt)
        if prompt.state is State.ACTIVE and not lane.starts(prompt.seq):
            if run.turn is None:
                self._start(lane, run)
            elif prompt.covered and run.grace is None and not lane.may_stop(prompt):
                self._begin_grace(lane, run)

    def _lose(self, lane: Lane) -> None:
        """The session belongs to another server: abandons its turns, and forgets this lane. A late answer may say so
        again, when the session has a new lane here: that one stays."""
        if lane.lost:
            return
        log.warning("session %s belongs to another server by now", lane.session.id)
        lane.stuck = Moved(f"session {lane.session.id} belongs to another server by now; ask again")
        if self._lanes.get(lane.session.id) is lane:
            del self._lanes[lane.session.id]
        self._leave_behind(lane, lane.stuck)

    def _show_records(self, lane: Lane) -> None:
        """Shows the messages of prompts that never ran, which come before their ends as those of a turn do."""
        for step in lane.steps:
            for effect in step.effects:
                if isinstance(effect, Record):
                    run = lane.runs[effect.seq]
                    for message in canceled_messages(run.message, effect.seq):
                        run.feed.publish("message", {**wire_message(message), "seq": effect.seq})

    def _tell(self, lane: Lane, prompt: Prompt, state: State, outcome: Outcome | None = None, stopping: bool = False,
              ) -> None:
        """Shows that a prompt has come to another state, or was asked to stop, now that it is durable."""
        if self.broker.watched:
            text, version, front = run.shown if (run := lane.runs.get(prompt.seq)) else show(prompt)
            told = {"run_id": prompt.run_id, "outcome": outcome and outcome.value, "stopping": stopping,
                    "attachments": list_names(prompt.attachments), "version": version, "front": front,
                    "node": self._node_of(lane) if state is State.ACTIVE else ""}
            self.broker.publish(Update(prompt.session.id, STATE, {
                "seq": prompt.seq, "session_id": prompt.session.id, "text": text[:SHOWN], "state": state.value,
                **{name: value for name, value in told.items() if value}}, prompt.run_id))

    def _node_of(self, lane: Lane) -> str:
        """The name of the server that runs its turns, where there are several."""
        return ""

    def _tell_call(self, lane: Lane, name: str, by: str, seq: int = 0, held: bool = False) -> None:
        """Shows those who watch what was called, now that it is durable: with the mark as it is then."""
        if self.broker.watched:
            told = wire.Called(lane.session.id, name, lane.mark, seq, held, by)
            self.broker.publish(Update(lane.session.id, CALL, wire.to_json(told)))

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
                    self._start(lane, lane.runs[seq])
                case Stop(seq):
                    self._begin_grace(lane, lane.runs[seq])
                case Fold(seq, into):
                    guest = lane.runs[seq]  # who may have guests of its own, if it goes on after a summary
                    lane.runs[into].guests += [guest, *guest.guests]
                case End(seq, outcome):
                    self.ended[outcome] += 1
                    if outcome is not Outcome.FOLDED:
                        self._answer(lane, lane.runs.pop(seq), outcome)

    def _start(self, lane: Lane, run: Run) -> None:
        if run.trouble:
            asyncio.get_running_loop().call_soon(self._end, lane, run, run.fail(run.trouble))
            return
        run.turn = self._make_turn(lane, run)
        if run.prompt.covered and not lane.may_stop(run.prompt):  # since the step that started it
            run.turn.stop()
        run.task = self._spawn(self._run(lane, run, run.turn))

    def _make_turn(self, lane: Lane, run: Run) -> Turn:
        prompt, session = run.prompt, lane.session
        history = partial(self.store.messages, session.id)
        return Turn(
            seq=prompt.seq, run_id=prompt.run_id, prompt=run.message, model=self.model, tools=self.tools,
            history=history, recall=partial(self._memory.recall, session.id, history), say=partial(self._say, lane),
            follow_ups=partial(self._take_in, lane, run), feed=run.feed, goes_on=run.goes_on)

    async def _take_in(self, lane: Lane, run: Run) -> tuple[Sequence[Message], asyncio.CancelledError | None]:
        """The messages of the prompts that fold into the turn now, and the request to cancel that came meanwhile."""
        if not lane.session.can("step", run.prompt):
            return (), None
        folding = self._begin_to_carry_out(lane, lane.session.take("step", run.prompt))
        canceled = await outlast(folding)
        guests = [lane.runs.get(e.seq) for e in folding.result() if isinstance(e, Fold)]
        return [guest.message for guest in guests if guest], canceled  # who is not there ended with its host

    def _begin_grace(self, lane: Lane, run: Run) -> None:
        """Asks the turn to stop, if nobody has, and gives it its grace period, if it has not ended already."""
        if run.prompt.state is State.ACTIVE:
            if run.turn:
                run.turn.stop()
            self._tell(lane, run.prompt, State.ACTIVE, stopping=True)
            run.grace = asyncio.get_running_loop().call_later(
                self.grace, lambda: self._spawn(self._abandon(lane, run)))

    def _answer(self, lane: Lane, run: Run, outcome: Outcome) -> None:
        result = run.result(outcome)
        for guest in run.guests:
            lane.runs.pop(guest.prompt.seq, None)
            guest.over(result._replace(run_id=guest.prompt.run_id, outcome=Outcome.FOLDED))
        run.over(result)
        run.turn = run.task = None  # which hold it in turn: nothing of them is left to the garbage collector

    # --- when it cannot go on

    def _stand_still(self, lane: Lane, error: BaseException) -> None:
        """The session's journal cannot be written: whoever waits is told, and nothing more happens in it."""
        if self._over.is_set():
            return  # the runtime has closed, and tells them
        id, told = lane.session.id, isinstance(error, StoreError)
        log.critical("session %s stands still until %s: %s", id, self.until, error, exc_info=None if told else error)
        why = f"{error.problem}; {error.remedy}" if isinstance(error, StoreError) else repr(error)  # not where it is
        lane.stuck = Stuck(f"session {id} cannot go on: {why}; {self.remedy}")
        self._leave_behind(lane, lane.stuck)

    def _leave_behind(self, lane: Lane, why: Refusal) -> None:
        """Tells those who still wait in the lane that they wait in vain: what they wait for cannot be
        written (R25b)."""
        runs, lane.runs = lane.runs, {}
        for run in runs.values():
            run.over(why)
            if run.turn and not run.turn.abandoned:
                self._let_go(run, run.turn)
        for step in lane.steps:
            if step.done:
                step.done.set_exception(why)
                step.done.exception()  # nobody has to wait any more
        self._steps -= len(lane.steps)
        lane.steps.clear()

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None], lane: Lane | None = None) -> "asyncio.Task[None]":
        """Does the work in a task of its own, soon. A lane is drained by it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if lane:
            self._draining[task] = lane
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        self._left.discard(task)
        lane = self._draining.pop(task, None)
        if lane and task.cancelled() and not self._over.is_set():  # the event loop ends, perhaps before it has begun
            lane.stuck = Stuck(f"session {lane.session.id} was interrupted; restart the server")
            self._leave_behind(lane, lane.stuck)
            self._let_lane_rest(lane)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Stuck):
            log.error("a prompt's task failed", exc_info=error)

    def _look_quiet(self) -> None:
        """When the runtime is closing nothing new begins, so that once it is quiet it stays so."""
        if self.closing and not (self._accepting or self._steps or any(lane.runs for lane in self._lanes.values())):
            self._quiet.set()
