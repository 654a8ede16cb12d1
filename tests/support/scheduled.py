"""A whole runtime under the deterministic loop: clients call it, a chooser decides what runs next, an observer judges.

Everything is the runtime's own but the clock and the language model. Each run has a new store, in memory or on a file.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from support.family_callers import CALLS, Callers
from support.observed import Observed, Told, telling
from support.watching import Complaint, Watch, watched

from cancelmark.conformance.schedule import Choose, Schedule, checkpoint, explore_schedules, fifo, record
from cancelmark.impl.models import Failure, Finish, FinishReason, ModelError, Tool
from cancelmark.impl.models.scripted import Beat, Delay, Fail, Request, ScriptedModel, Stubborn, call, say
from cancelmark.impl.runtime import Closing, Handle, RunIdInUse, Runtime, outbox
from cancelmark.impl.runtime import runtime as runtime_module
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.runtime.entry import Decision, Intent
from cancelmark.impl.runtime.events import Broker, Update
from cancelmark.impl.runtime.outbox import Outbox
from cancelmark.impl.runtime.session import Session, TakenStep
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    Batch,
    CommitAnswer,
    CommitRequest,
    MemoryStore,
    MessageRecord,
    MovePrompt,
    PutMessage,
    RaiseMark,
    SqliteStore,
    Store,
)
from cancelmark.model.effects import Fold, Start
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.oracle import End, judge
from cancelmark.model.oracle import Prompt as Seen
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import label as name_of
from cancelmark.views.traces.text import trace_text

SESSIONS = ("s", "t")
GRACE = 5.0  # seconds of a time that costs nothing
MAX_STEPS = 5000
SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
REST = 1000.0  # by then everything that ever will has happened
TURNS = ("speaks", "takes long", "fails", "calls a tool", "grows too long", "ignores a stop",
         "stops late")


# --- what clients do

@dataclass(frozen=True)
class Do:
    """What one client does: accept, cancel, clear_queue, close, watch, or a call of the family. It does so at once, or
    `when` the sessions take the `nth` step of that name or into that state, or a model is `asked`; if they never do, it
    does nothing."""

    what: str
    when: str = ""
    nth: int = 1
    session: str = "s"
    run_id: bool | str = False  # whether it has one of its own, or the one that it has
    turn: str = "speaks"
    mode: str = ""  # of an acceptance: reject or interrupt
    of: int = 0  # the seq of the prompt that is called by name
    hold: bool = False  # of a stop

    def __repr__(self) -> str:
        told = {name: value for name, value in vars(self).items() if name != "what" and value != getattr(Do, name)}
        return f"{self.what}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


accept, cancel, clear_queue, close, watch = (
    partial(Do, what) for what in ("accept", "cancel", "clear_queue", "close", "watch"))
revoke, stop, hold, resume, replace_text, move_up = (
    partial(Do, what) for what in ("revoke", "stop", "hold", "resume", "replace", "next"))


# --- where it happens

class Memory(MemoryStore):
    """A write takes no time."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
        answer = super()._commit_now(steps)
        self.world.committed(steps.operations)
        return answer


class File(SqliteStore):
    """A write takes its time: a commit takes all that have gathered, and anything may happen between the asking, the
    commit and the answer. What the store's thread does is a job of the loop, whenever that is chosen."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.directory / "scheduled.db")
        self.world = world
        self._thread.join()
        self._writer.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        if not self._waiting:
            asyncio.get_running_loop().run_in_executor(None, self._write_all)
        return super().begin_commit(steps)

    def _wait(self) -> bool:
        return bool(self._waiting)

    def _commit(self, group: Iterable[Any]) -> None:
        jobs = list(group)
        super()._commit(jobs)
        for job in jobs:
            if job.error is None:
                self.world.committed([statement.operation for statement in job.statements])


@dataclass(frozen=True)
class Parts:
    """What a runtime is made of. What is made of the store is between it and the runtime. If there is a `ready`, it
    takes its time."""

    session: type[Session] = Session
    store: type | None = None
    broker: type[Broker] = Broker
    ready: bool = False
    protocol: Protocol = REFERENCE
    runtime: type[Runtime] = Runtime


REAL = Parts()


class World(Watch):
    """A runtime, its clients, and everything that an observer can see of it."""

    def __init__(self, clients: Sequence[Do], store: type[Store] = Memory, parts: Parts = REAL) -> None:
        super().__init__(*SESSIONS, protocol=parts.protocol)
        self.clients, self.parts = clients, parts
        self.directory = Path()
        self.store = type(store.__name__, (parts.store, store), {}) if parts.store else store
        self.runtime: Runtime
        self.texts: dict[int, str] = {}  # what the caller said, by seq
        self.run_ids: dict[int, str | None] = {}
        self.marks: dict[str, int] = {}
        self.journal: dict[int, list[tuple[State, Outcome | None]]] = {}
        self.events: dict[int, list[tuple[float, AppendEvent]]] = {}  # terminal ones by seq, and when
        self.messages: dict[str, MessageRecord] = {}
        self._callers = Callers(self)
        self._handles: list[Handle] = []
        self._observed: list[Observed] = []
        self._told = Told()
        self._tasks: list[asyncio.Task[None]] = []
        self._happened: Counter[str] = Counter()
        self._moments: defaultdict[tuple[str, int], list[asyncio.Future[None]]] = defaultdict(list)  # awaited ones
        self._calling: list[Do] = []
        self._played: Counter[str] = Counter()
        self._guests: dict[int, list[int]] = {}
        self._owed: dict[int, set[int]] = {}  # whose ends must be published before the turn of a prompt begins

    async def main(self) -> None:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="cancelmark-", dir=SHARED_MEMORY)))
            stack.enter_context(patch.object(outbox, "Session", watched(self.parts.session, self)))
            stack.enter_context(patch.object(
                runtime_module, "Broker", telling(self.parts.broker, self._publishes)))
            stack.enter_context(_Errors(self))
            store = self.store(self)
            stack.callback(store.close)
            look = ToolRunner(Tool("look", "looks", {"type": "object"}), _look)
            self.runtime = self.parts.runtime(
                ScriptedModel(self._scene), store, tools=[look], grace=GRACE, protocol=self.parts.protocol,
                ready=_ready if self.parts.ready else None)
            await self._go()

    async def _go(self) -> None:
        await self.runtime.start()
        for session in SESSIONS:
            await self.runtime.create_session(session)
        for number, client in enumerate(self.clients, 1):
            self._tasks.append(asyncio.create_task(self._client(number, client), name=f"client {number}"))
        await asyncio.sleep(GRACE / 2)
        over = all(prompt.state is State.DONE for prompt in self.server.prompts)
        if over and all(do.what == "watch" for do in self._calling):
            self._look_for_timers()
        await asyncio.sleep(REST)
        self.at_rest()
        while any(self.session(name).wished_hold for name in SESSIONS) and not self.runtime.closing:
            await self._resume()  # whereupon a client that has waited for a turn may hold again, once
        await self._end()

    async def _resume(self) -> None:
        """What was held goes on, and ends."""
        for name in SESSIONS:
            returned = self.called("resume", name)
            await self.runtime.resume(name)
            returned()
        await asyncio.sleep(REST)
        self.at_rest()

    def session(self, name: str) -> Any:
        """The session as an observer sees it."""
        return self.server.sessions[self._place[name]]

    # --- what happens

    async def _client(self, number: int, do: Do) -> None:
        if do.when:
            moment: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._moments[do.when, do.nth].append(moment)
            await moment
        self._calling.append(do)
        begin = asyncio.get_running_loop().time()
        if do.what == "accept":
            await self._accept(do, number)
        elif do.what == "watch":
            await self._watch()
        elif do.what in CALLS:
            await self._callers.call(do, number)
        else:
            returned = self.called(do.what, None if do.what == "close" else do.session)  # type: ignore[arg-type]
            await (self.runtime.close() if do.what == "close" else getattr(self.runtime, do.what)(do.session))
            returned()
            if do.what != "close":
                self._callers.expect_durable(do, f"client {number}")
        self._calling.remove(do)
        took = asyncio.get_running_loop().time() - begin
        if do.what != "watch" and took >= GRACE and not self._is_stubborn:
            self.complain("progress", f"{do} took {took} s, and everything stops when it is told to")

    @property
    def _is_stubborn(self) -> bool:
        return any(client.turn == "ignores a stop" for client in self.clients)

    async def _accept(self, do: Do, number: int) -> None:
        begin, text = self.tick(), f"{do.turn} {number}"
        run_id = do.run_id if isinstance(do.run_id, str) else text if do.run_id else None
        try:
            handle = await self._callers.accept(do, number, text, run_id)
        except Closing:
            return
        except RunIdInUse:
            if run_id not in self.run_ids.values():
                self.complain("run-id", f"{do} is refused, and nobody has its run id")
            return
        if handle is not None:
            self.accepted(handle.seq, do.session, run_id is not None, begin)
            self._handles.append(handle)

    async def _watch(self) -> None:
        if self.runtime.broker.closed:
            return
        seen = Observed(max(self.journal, default=0))
        self._observed.append(seen)
        with self.runtime.broker.subscribe(after=0) as subscription:
            async for notice in subscription:
                seen.see(notice)
                await checkpoint()  # it is slow

    def _scene(self, request: Request) -> Iterable[Beat] | None:
        text = request.prompt
        if text == SUMMARIZE:
            return say("in short")
        self._began(text)
        self._played[text] += 1
        turn, first = text.rpartition(" ")[0], self._played[text] == 1
        if turn == "fails":
            return (Fail(ModelError(Failure.UNAVAILABLE, f"{text} failed")),)
        if turn == "grows too long" and first:
            return (Fail(ModelError(Failure.CONTEXT_TOO_LONG, f"{text} is too long")),)
        if turn == "calls a tool" and first:
            return (*call("c1", "look", {}), Finish(FinishReason.TOOL_USE))
        before: dict[str, tuple[Beat, ...]] = {
            "takes long": (Delay(0.5),), "ignores a stop": (Stubborn((Delay(4 * GRACE),)),),
            "stops late": (Stubborn((Delay(0.5),)),)}
        return (*before.get(turn, ()), *say(f"answer to {text}"))

    # --- what is seen of it

    def took(self, session: Session, effects: TakenStep) -> None:
        self._callers.took(session, effects, self._place[session.id])
        super().took(session, effects)
        for name in dict.fromkeys([effects.action, *(row.dest.value for _, row in effects.moved)]):
            self._happens(name)
        done = {p.seq for p in self.server.sessions[self._place[session.id]].prompts
                if p.state is State.DONE and p.outcome is not Outcome.FOLDED}
        for effect in effects:
            if isinstance(effect, Start):
                self._owed[effect.seq] = done
            elif isinstance(effect, Fold):
                self._guests.setdefault(effect.into, []).append(effect.seq)

    def _happens(self, name: str) -> None:
        self._happened[name] += 1
        for moment in self._moments[name, self._happened[name]]:
            moment.set_result(None)

    def committed(self, batch: Batch) -> None:
        for op in batch:
            self._callers.committed(op)
            if isinstance(op, AcceptPrompt):
                self.journal[op.seq], self.texts[op.seq], self.run_ids[op.seq] = [], op.text, op.run_id
            elif isinstance(op, RaiseMark):
                self.marks[op.session_id] = op.mark
            elif isinstance(op, MovePrompt):
                self.journal[op.seq].append((op.state, op.outcome))
            elif isinstance(op, PutMessage):
                self.messages[op.message.id] = op.message
            elif isinstance(op, AppendEvent) and op.type == TERMINAL:
                self.events.setdefault(op.payload["seq"], []).append((self.tick(), op))

    def _publishes(self, update: Update) -> None:
        if hasty := self._told.find_hasty(update, self.journal, self.marks, self._callers.traits, self._callers.texts):
            self.complain("durable", hasty)

    def _began(self, text: str) -> None:
        """A model is asked to answer this text."""
        self._happens("asked")
        if self.server.closing:
            self.complain("closing", f"a model is asked to answer {text!r} after close has begun")
        for prompt in self.server.prompts:
            if prompt.state is State.ACTIVE and self.texts[prompt.seq] == text:
                for late in sorted(self._owed[prompt.seq] - set(self.events)):
                    self.complain("prompt-terminal",
                                  f"{name_of(late)} is not published when the turn of {prompt.label} begins")

    # --- what is wrong with it

    def at_rest(self) -> None:
        """Everybody has had the time to end, and nobody has been told to go."""
        super().at_rest()
        for client, task in zip(self.clients, self._tasks):
            if task.done() and (error := task.exception()):
                self.complain("progress", f"{client} got {error!r}")
            elif client in self._calling and client.what != "watch":
                self.complain("progress", f"{client} still waits")
        for seq in self.journal:
            self._judge_prompt(seq)
        self._callers.at_rest()
        for sentence in judge([self._heard(seq) for seq in self.journal], self.calls):
            self.complain("oracle", sentence)

    def _heard(self, seq: int) -> Seen:
        """What was seen of a prompt, with its end as the log of events has it."""
        seen = self.prompts[seq]
        taken = {end.outcome: end.begin for end in seen.ends}
        folded = [end for end in seen.ends if end.outcome == Outcome.FOLDED.value]
        told = [(when, event.payload["outcome"]) for when, event in self.events.get(seq, [])]
        return replace(seen, ends=(*folded, *(End(taken.get(how, when), when, how) for when, how in told)))

    def _judge_prompt(self, seq: int) -> None:
        """One prompt's journal, terminal events and messages against each other."""
        name, journal = name_of(seq), self.journal[seq]
        moved = [(row.dest, row.outcome) for prompt, row in self.moved if prompt.seq == seq]
        if journal != moved:
            self.complain("journal", f"{name} was moved {moved}, and the journal has {journal}")
        outcome = journal[-1][1] if journal else None
        events = [event for _, event in self.events.get(seq, [])]
        if len(events) > 1:
            self.complain("one-terminal", f"{name} ended {', '.join(e.payload['outcome'] for e in events)}")
        parked = any(p.seq == seq for p in self.server.prompts) and all(p.seq != seq for p in self.server.owed)
        if not (events or parked) and outcome is not Outcome.FOLDED:
            self.complain("some-terminal", f"{name} has no terminal event")
        own = [self.texts[p] for p in (seq, *self._guests.get(seq, ()))]
        for event in events:
            told = event.payload
            if outcome and told["outcome"] != outcome.value:
                self.complain("attribution", f"{name} ended {outcome.value} and is told of as {told['outcome']}")
            if told.get("text", own[0]).removeprefix("answer to ") not in own:
                self.complain("attribution", f"{name} is told of with the text {told['text']!r}")
            if told.get("error", own[0]).rpartition(" failed")[0] not in (*own, ""):
                self.complain("attribution", f"{name} is told of with the error {told['error']!r}")
            if event.run_id != self.run_ids[seq]:
                self.complain("attribution", f"{name} is told of with the run id {event.run_id}")
        if (State.CANCELED_ON_ENTRY, None) in journal:
            said = [m.finish_reason for id, m in self.messages.items() if id.startswith(f"p{seq}-")]
            if f"p{seq}" not in self.messages or said != ["canceled"]:
                self.complain("record", f"{name} was canceled on entry, and its answers are {said}")

    def _look_for_timers(self) -> None:
        """Everything is over, and nothing waits for its time."""
        loop: Any = asyncio.get_running_loop()
        left = [timer for timer in loop._timers if not timer.cancelled()]
        if left and not self._is_stubborn:
            self.complain("quiet", f"timers that nobody has taken back: {left}")

    async def _end(self) -> None:
        """Who waits is told, the runtime closes, and who watches has seen everything."""
        for handle in self._handles:
            try:
                async with asyncio.timeout(1):
                    result = await handle
            except TimeoutError:
                self.complain("told", f"who waits for {name_of(handle.seq)} is not told")
            else:
                if (State.DONE, result.outcome) not in self.journal[handle.seq]:
                    self.complain("told", f"who waits for {name_of(handle.seq)} is told {result.outcome.value}")
        await self.runtime.close()
        self._look_for_timers()
        await asyncio.sleep(REST)
        published = list(range(1, sum(map(len, self.events.values())) + 1))
        for seen in self._observed:
            if seen.events != published:
                self.complain("delivery", f"of the events {published} a subscriber has seen {seen.events}")
            if stale := seen.find_stale(self.messages):
                self.complain("delivery", f"a subscriber has not seen {', '.join(stale)} as they were written")

    # --- for parts with a flaw in them

    def carry(self, session: Session, effects: TakenStep) -> None:
        """Has the runtime carry out what a step asks for."""
        self.runtime.boxes[session.id].submit_nowait(Taken(effects))


class Taken(Intent):
    """A step that was taken already."""

    def __init__(self, effects: TakenStep) -> None:
        self._effects = effects

    def apply(self, box: Outbox) -> Decision:
        return Decision([self._effects])


async def _ready(session_id: str) -> None:
    await checkpoint()


async def _look(arguments: str) -> str:
    return "nothing to see"


# --- one run

class Played(NamedTuple):
    """One run: its schedule, and what was seen of it."""

    schedule: Schedule[None]
    world: World

    @property
    def complaints(self) -> list[Complaint]:
        error = self.schedule.error
        stuck = [] if error is None else [Complaint(
            "progress", f"{type(error).__name__}: {error}", len(self.world.steps))]
        return list(dict.fromkeys([*self.world.complaints, *stuck]))

    def __str__(self) -> str:
        clients = f"{self.world.store.__name__}, {', '.join(map(str, self.world.clients))}"
        return "\n".join([clients, trace_text(self.world.trace), str(self.schedule), *map(str, self.complaints)])


def play(
    clients: Sequence[Do], choose: Choose = fifo, store: type[Store] = Memory, parts: Parts = REAL,
) -> Played:
    """Lets the clients loose on a new runtime."""
    world = World(clients, store, parts)
    return Played(record(world.main(), choose, max_steps=MAX_STEPS), world)


def play_all(clients: Sequence[Do], store: type[Store] = Memory, preemptions: int | None = None, parts: Parts = REAL,
             ) -> Iterator[Played]:
    """The same in every schedule, or in those that depart from first in, first out that often or less."""
    worlds: list[World] = []

    def main() -> Coroutine[Any, Any, None]:
        worlds[:] = [World(clients, store, parts)]
        return worlds[0].main()

    for schedule in explore_schedules(main, preemptions=preemptions, max_steps=MAX_STEPS):
        yield Played(schedule, worlds[0])


class _Errors(logging.Handler):
    """What the runtime logs as an error is one."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        cause = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._world.complain("quiet", f"{record.getMessage()}{cause}")

    def __enter__(self) -> None:
        outbox.log.addHandler(self)

    def __exit__(self, *_: object) -> None:
        outbox.log.removeHandler(self)
