"""The runtime: sessions that run. It carries out what each step of a session asks for, in order, on asyncio.

Each session has a *lane*. A step is taken at once; what it asks for is put into the lane, and carried out one step at a
time: its transitions, its mark and its terminal events are committed together, then turns are started and stopped. So
a terminal event is durable and published before the next turn starts, and no prompt runs inside another's call.

A turn that ignores a stop is abandoned after a grace period: its prompt ends, once, and what it says then goes nowhere.
When the store cannot be written to, a lane waits and tries again: the session stands still, and nothing is lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from time import time
from typing import Any

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import End, Fold, Record, Start, Stop

from .events import Broker, Update
from .handle import STATE, Handle, Result, Run
from .models import Model
from .session import Counter, Effects, Prompt, Session
from .store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    MemoryStore,
    Message,
    MovePrompt,
    NewSession,
    Operation,
    PromptRecord,
    PutMessage,
    RaiseMark,
    Refused,
    Store,
    StoreError,
)
from .turn import Ending, ToolRunner, Turn, canceled_messages, uncut, user_message, wire_message

__all__ = ["Closing", "Handle", "Lane", "Refusal", "Result", "Run", "RunIdInUse", "Runtime"]

log = logging.getLogger("cancelmark")

INTERRUPTED = "interrupted by a restart of the server"
PATIENCE = (0.05, 0.2, 1.0, 5.0)  # seconds between attempts to write
SHOWN = 280  # characters of a prompt that an update of its state carries
LAST_LOOK = 1.0  # seconds for those who watch to see the last events before the store closes


class Refusal(Exception):
    """A prompt was not accepted. Nothing of it is kept."""


class Closing(Refusal):
    """The runtime is closing, or closed."""


class RunIdInUse(Refusal):
    """Another prompt has that run id."""


class Lane:
    """One session, and what its steps have asked for and is still to be carried out."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.mark = session.mark  # as it is stored
        self.steps: deque[tuple[Effects, int, asyncio.Future[None]]] = deque()
        self.worker: asyncio.Task[None] | None = None


def storable(text: str) -> bool:
    """Whether the text can be written as UTF-8: what can never be stored must not be accepted."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Runtime:
    """Runs prompts. Use it as `async with Runtime(model) as runtime`, or call `start` and `close`."""

    def __init__(
        self, model: Model, store: Store | None = None, *, tools: Iterable[ToolRunner] = (), grace: float = 5.0,
    ) -> None:
        self.model, self.store, self.grace = model, store or MemoryStore(), grace
        self.tools = {runner.tool.name: runner for runner in tools}
        self.broker = Broker(self.store)
        self.closing = False
        self._counter = Counter(self.store.latest_seq())
        self._lanes: dict[str, Lane] = {}
        self._runs: dict[int, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = 0
        self._quiet = asyncio.Event()  # it is closing, and everything is done
        self._over = asyncio.Event()  # nothing is tried again
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
        left: dict[str, list[PromptRecord]] = {}
        for record in self.store.unfinished():
            left.setdefault(record.session_id, []).append(record)
        for known in self.store.sessions():
            session = Session(known.id, self._counter, known.mark)
            lane = self._lanes[known.id] = Lane(session)
            if known.id in left:
                lane.session = session = Session.restored(known.id, self._counter, known.mark, (
                    (r.seq, r.text, r.run_id, r.state) for r in left[known.id]))
                runs = [self._known(prompt) for prompt in session.prompts.values()]
                for run in runs:
                    if run.prompt is session.active:
                        run.ending = await self._turn(lane, run).end(Outcome.ERROR, INTERRUPTED)
                await self._carried(lane, session.recover())
                for run in runs:
                    if run.prompt.state is State.CANCELED_ON_ENTRY:
                        await self._carried(lane, session.settle(run.prompt))

    async def create_session(self, id: str, title: str = "") -> None:
        """A new session. One that exists is left as it is."""
        if id not in self._lanes:
            self._refuse_if_closing()
            await uncut(self._created(id, title))

    async def _created(self, id: str, title: str) -> None:
        with suppress(Refused):  # another caller was faster
            await self.store.write([NewSession(id, title, int(time()))])
        self._lanes.setdefault(id, Lane(Session(id, self._counter)))

    async def accept(self, session_id: str, text: str, run_id: str | None = None) -> Handle:
        """Accepts a prompt; when this returns it is journaled, and its end will come. Raises `Refusal` or `StoreError`,
        and then nothing is accepted. If the caller is canceled meanwhile, the prompt may or may not be
        accepted (R1a, R1b, R1c, R15a, R22a)."""
        if not text.strip():
            raise Refusal("the prompt is empty; say something")
        if not storable(text) or not storable(run_id or ""):
            raise Refusal("the prompt or its run id has half a character in it (a lone surrogate); send whole ones")
        lane = self._lane(session_id)
        self._refuse_if_closing()
        run_id = run_id or None
        if run_id is not None and self.store.prompt(run_id) is not None:
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt")
        seq = self._counter.next()  # a cancel from here on covers it, and so does a close
        self._accepting += 1
        try:
            return await uncut(self._accepted(lane, seq, text, run_id))
        except Refused as error:  # another caller was faster with the same run id
            raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
        finally:
            self._accepting -= 1
            self._look_quiet()

    async def _accepted(self, lane: Lane, seq: int, text: str, run_id: str | None) -> Handle:
        session = lane.session
        await self.store.write([AcceptPrompt(seq, session.id, text, run_id)])
        prompt, _ = session.accept(text, run_id, seq)
        run = self._known(prompt)
        self._tell(prompt, prompt.state, None)
        self._spawn(self._enter(lane, prompt))
        return Handle(run, self.broker)

    async def cancel(self, session_id: str) -> None:
        """Cancels everything accepted in the session so far. When this returns, that will outlive a crash (R27c)."""
        lane = self._lane(session_id)
        await self._carried(lane, lane.session.cancel())

    async def clear_queue(self, session_id: str) -> None:
        """Drops what is queued; the active prompt goes on (R27c)."""
        lane = self._lane(session_id)
        await self._carried(lane, lane.session.clear_queue())

    def queued(self, session_id: str) -> list[str]:
        """The texts of the queued prompts, the next one first."""
        return [prompt.text for prompt in self._lane(session_id).session.queue]

    def unfinished(self, session_id: str) -> int:
        """How many prompts of the session are not done."""
        return len(self._lane(session_id).session.prompts)

    def is_busy(self, session_id: str) -> bool:
        """Whether the session has a prompt whose end has not been published."""
        session = self._lane(session_id).session
        return any(run.prompt.session is session for run in self._runs.values())

    def status(self, run_id: str) -> PromptRecord | None:
        """Where the prompt with that run id is, or how it ended."""
        return self.store.prompt(run_id)

    async def close(self, deadline: float | None = None) -> None:
        """Accepts nothing more, cancels every session, waits until all prompts are done, and closes the store. Turns
        that have not ended by the deadline (seconds; by default the grace period) are abandoned. Closing twice is
        closing once, and a close goes on when its caller is canceled (R15a, R15b, R15c)."""
        if self._close is None:
            self.closing = True
            for lane in self._lanes.values():
                self._carry(lane, lane.session.cancel())
            self._close = asyncio.ensure_future(self._closed(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    async def _closed(self, deadline: float) -> None:
        if not await self._quiet_within(deadline):
            for run in list(self._runs.values()):
                self._abandon(run)
            if not await self._quiet_within(self.grace):
                log.error("closing with %d prompts that could not be written; a restart ends them", len(self._runs))
        self._over.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._leave_behind()
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

    def _leave_behind(self) -> None:
        """Tells those who still wait that they wait in vain: what they wait for could not be written (R25b)."""
        waiting: list[asyncio.Future[Any]] = [run.done for run in self._runs.values()]
        waiting += [future for lane in self._lanes.values() for _, _, future in lane.steps]
        for future in waiting:
            future.set_exception(Closing("the server has closed and could not write this; a restart ends it"))
            future.exception()  # whether anybody waits or not

    # --- the life of a prompt

    def _known(self, prompt: Prompt) -> Run:
        feed = self.broker.feed(prompt.session.id, prompt.run_id)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        run = self._runs[prompt.seq] = Run(prompt, feed, future, self.broker.latest)
        return run

    async def _enter(self, lane: Lane, prompt: Prompt) -> None:
        """The prompt enters, and is settled if it was canceled: nobody has to ask for it (R7b, R21)."""
        await self._carried(lane, lane.session.enter(prompt))
        if prompt.state is State.CANCELED_ON_ENTRY:
            await self._carried(lane, lane.session.settle(prompt))

    async def _run(self, lane: Lane, run: Run) -> None:
        """The active prompt's task: its turn, and then its end or its return to the queue."""
        turn = run.turn
        assert turn is not None
        try:
            ending = await turn.run()
            if ending.outcome is None:
                if not run.prompt.covered:
                    await self._carried(lane, lane.session.requeue(run.prompt))
                    return
                ending = await turn.end(Outcome.CANCELED)
        except asyncio.CancelledError:
            return  # the runtime has closed
        except Exception as failed:  # its ending cannot be written, and no retry would help
            ending = Ending(Outcome.ERROR, error=f"{type(failed).__name__}: {failed}")
        if not turn.abandoned:
            await self._ended(lane, run, ending)

    async def _ended(self, lane: Lane, run: Run, ending: Ending) -> None:
        assert ending.outcome is not None
        run.ending = ending
        run.feed.close()
        if run.grace:
            run.grace.cancel()
        await self._carried(lane, lane.session.finish(run.prompt, ending.outcome))

    def _abandon(self, run: Run) -> None:
        """Ends a prompt whose turn does not stop (R24a)."""
        if run.prompt.state is State.ACTIVE and run.turn and not run.turn.abandoned:
            log.warning("prompt %s: its turn did not stop and is abandoned", run.prompt)
            self._spawn(self._abandoned(run, run.turn.abandon()))

    async def _abandoned(self, run: Run, stand_in: Turn) -> None:
        ending = await stand_in.end(Outcome.CANCELED, "the turn did not stop in time")
        await self._ended(self._lanes[run.prompt.session.id], run, ending)

    # --- carrying out

    async def _carried(self, lane: Lane, effects: Effects) -> None:
        """Waits until what a step asks for is carried out. Takes no part in being canceled."""
        await asyncio.shield(self._carry(lane, effects))

    def _carry(self, lane: Lane, effects: Effects) -> "asyncio.Future[None]":
        """Puts what a step asks for into the lane. It must be called in the same breath as the step is taken (R19b)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.steps.append((effects, lane.session.mark, future))
        if lane.worker is None or lane.worker.done():
            lane.worker = self._spawn(self._work(lane))
        return future

    async def _work(self, lane: Lane) -> None:
        while lane.steps:
            effects, mark, future = lane.steps[0]
            await self._record(effects)
            await self._persist(self._operations(lane, effects, mark))
            lane.mark = mark
            for prompt, row in effects.moved:
                self._tell(prompt, row.dest, row.outcome)
            self._do(lane, effects)
            lane.steps.popleft()
            future.set_result(None)
        self._look_quiet()

    async def _record(self, effects: Effects) -> None:
        """Writes and shows the messages of prompts that never ran, before their ends are published. Their ids follow
        from the prompts, so that doing it again after a crash changes nothing."""
        for effect in effects:
            if isinstance(effect, Record):
                run = self._runs[effect.seq]
                messages = canceled_messages(run.prompt.session.id, run.prompt.seq, run.prompt.text)
                await self._persist([PutMessage(message) for message in messages])
                for message in messages:
                    run.feed.publish("message", {**wire_message(message), "seq": effect.seq})

    def _tell(self, prompt: Prompt, state: State, outcome: Outcome | None) -> None:
        """Shows that a prompt has come to another state, now that it is durable."""
        told = {"run_id": prompt.run_id, "outcome": outcome and outcome.value}
        self.broker.publish(Update(prompt.session.id, STATE, {
            "seq": prompt.seq, "session_id": prompt.session.id, "text": prompt.text[:SHOWN], "state": state.value,
            **{name: value for name, value in told.items() if value}}, prompt.run_id))

    def _operations(self, lane: Lane, effects: Effects, mark: int) -> list[Operation]:
        """Everything of one step that must survive, to be committed together (R14a, R14d, R16b)."""
        session = lane.session
        operations: list[Operation] = [RaiseMark(session.id, mark)] if mark > lane.mark else []
        for effect in effects:
            if isinstance(effect, Fold):
                prompt = self._runs[effect.seq].prompt
                operations.append(PutMessage(user_message(session.id, prompt.seq, prompt.text)))
        operations += [MovePrompt(prompt.seq, row.dest, row.outcome) for prompt, row in effects.moved]
        for effect in effects:
            if isinstance(effect, End) and effect.outcome is not Outcome.FOLDED:
                run = self._runs[effect.seq]
                payload = {**self._result(run, effect.outcome).payload, "seq": effect.seq}
                operations.append(AppendEvent(session.id, TERMINAL, payload, run.prompt.run_id))
        return operations

    def _result(self, run: Run, outcome: Outcome) -> Result:
        ending = run.ending
        return Result(run.prompt.session.id, run.prompt.run_id, outcome, ending.text, ending.message_id,
                      ending.error if outcome is Outcome.ERROR else None)

    async def _persist(self, operations: Sequence[Operation]) -> None:
        """Writes a step, and tries again for as long as that can help (R25a)."""
        attempt = 0
        while operations:
            try:
                await self.store.write(operations)
                return
            except StoreError as error:
                if isinstance(error, Refused) or self._over.is_set():
                    raise  # trying again cannot help
                log.error("a step cannot be written, trying again: %s", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), PATIENCE[min(attempt, len(PATIENCE) - 1)])
                attempt += 1

    def _do(self, lane: Lane, effects: Effects) -> None:
        """What is left of a step once it is durable and published: turns to start and stop, waiters to
        answer (R14b, R16c)."""
        for effect in effects:
            match effect:
                case Start(seq):
                    self._start(lane, self._runs[seq])
                case Stop(seq):
                    self._stop(self._runs[seq])
                case Fold(seq, into):
                    self._runs[into].guests.append(self._runs[seq])
                case End(seq, outcome) if outcome is not Outcome.FOLDED:
                    self._answer(self._runs.pop(seq), outcome)

    def _start(self, lane: Lane, run: Run) -> None:
        run.turn = self._turn(lane, run)
        if run.prompt.covered:  # a cancel came between the step that started it and this one
            run.turn.stop()
        self._spawn(self._run(lane, run))

    def _turn(self, lane: Lane, run: Run) -> Turn:
        prompt, session = run.prompt, lane.session

        async def follow_ups() -> list[Message]:
            effects = session.step(prompt)
            taken = [self._runs[e.seq].prompt for e in effects if isinstance(e, Fold)]
            if taken:
                await self._carried(lane, effects)
            return [user_message(session.id, p.seq, p.text) for p in taken]

        return Turn(
            seq=prompt.seq, session_id=session.id, text=prompt.text, model=self.model, tools=self.tools,
            history=lambda: self.store.messages(session.id), write=self._persist, follow_ups=follow_ups,
            feed=run.feed)

    def _stop(self, run: Run) -> None:
        if run.turn:
            run.turn.stop()
        if run.prompt.state is State.ACTIVE:
            run.grace = asyncio.get_running_loop().call_later(self.grace, self._abandon, run)

    def _answer(self, run: Run, outcome: Outcome) -> None:
        result = self._result(run, outcome)
        for guest in run.guests:
            self._runs.pop(guest.prompt.seq, None)
            self._settle(guest, Result(result.session_id, guest.prompt.run_id, Outcome.FOLDED, result.text,
                                       result.message_id, result.error))
        self._settle(run, result)

    def _settle(self, run: Run, result: Result) -> None:
        run.feed.close()
        if not run.done.done():
            run.done.set_result(result)

    # --- machinery

    def _lane(self, session_id: str) -> Lane:
        if session_id not in self._lanes:
            raise Refusal(f"there is no session {session_id}; create it first")
        return self._lanes[session_id]

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Closing("the server is closing; ask another, or this one when it is back")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a prompt's task failed", exc_info=error)

    def _look_quiet(self) -> None:
        """When the runtime is closing nothing new begins, so that once it is quiet it stays so."""
        if self.closing and not (self._accepting or self._runs or any(lane.steps for lane in self._lanes.values())):
            self._quiet.set()
