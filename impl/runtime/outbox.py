"""An outbox: one session, and what was asked of it and is still to be stored.

**Memory is what the store has last answered, and what was asked since, in order.** What somebody wants is an *intent*.
It is applied to the session at once, so that a cancel stops the running turn in the same breath (R16c), and waits here.
What has gathered is committed against the version that the store has last answered with; one commit is under way at
most. Once it is stored, those who have asked are answered, and what the steps ask for is done, in order: updates are
published, turns are started and stopped (R19b). So a terminal event is durable before the next turn starts.

**If that cannot be, the session is loaded, and what waits is applied again**, in order: after a conflict, since others
have written to the session; after a refused acceptance, on which others may have been applied; after a step that has
failed in the middle. An intent is not a step that was computed: it does what its caller wants on any state. It keeps
what cannot be withdrawn: how far a cancel reaches, and whom a stop has stopped.

**A prompt is accepted and enters in one commit.** Acceptances come last in it, and what is asked behind them waits for
the next: a store that several servers share gives the prompt its seq in that commit, and nothing else may name a prompt
that has none; and an acceptance that is refused takes nobody along.

**When the store fails.** A failure that may pass (a full disk, a locked file) refuses the acceptances, and is waited
out for the rest: nothing is lost (R1c, R25a). A commit of which it is not known whether it is kept stays as it is, and
is sent again under its id, unless it has acceptances only: the session is loaded then, which tells. What is asked
behind it waits. A message that the store will never take is left out, and ends the turn that needs it with an error. A
journal that it will never take is fatal to the session: that is said loudly, everybody who waits is told, and a restart
goes on from what the journal has (R25b).

**Rejected:** applying intents only when they are committed. Nobody could be told what a call will do, and everything
that asks the session (who is active, what is queued) would have to wait for the disk.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from cancelmark.model.actions import ACTIONS
from cancelmark.model.effects import Effect, End, Fold, Start, Stop
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import Protocol as Rules

from .. import wire
from ..store import (
    EPOCH,
    AcceptPrompt,
    Committed,
    Conflict,
    Json,
    Operation,
    PromptRecord,
    Refused,
    Snapshot,
    Store,
    StoreError,
    Unconfirmed,
    UnknownSession,
)
from .events import Broker, Update
from .journal import Journal
from .messages import list_names, wire_message
from .refusals import TOO_LATE, Moved, NoSession, Refusal, Stuck
from .run import CALL, STATE, Run, Shown, show
from .session import Counter, Effects, Prompt, Restored, Session
from .tasks import has_succeeded
from .trace import TraceWriter
from .writer import UNSTORABLE, Commit, Writer

log = logging.getLogger("cancelmark")

SHOWN = 280  # characters of a prompt that an update of its state carries
SESSION = "session"  # the type of an update that tells of a session
EVERYWHERE = {action.name for action in ACTIONS if action.everywhere}  # whose trace is one line for all sessions


Ready = Callable[[str], Awaitable[None]]


class Decision(NamedTuple):
    """What an intent has come to on a session: the steps that were taken, and what is answered once they are stored,
    with all that was asked before. What is shown to those who watch is told then too."""

    steps: Sequence[Effects] = ()
    answer: Any = None  # a `Refusal` is raised
    call: wire.Called | None = None


class Intent:
    """What somebody wants of a session. It can be applied more than once: only the last time counts."""

    accepts = False  # it accepts a prompt
    alone = False  # and that is not committed together with acceptances before it
    fatal = False  # the session cannot go on without it
    run: Run | None = None  # of its prompt

    def apply(self, box: "Outbox") -> Decision:
        """Takes the steps, in one breath."""
        raise NotImplementedError


class Nothing(Intent):
    """It is answered when all that was asked before is."""

    def apply(self, box: "Outbox") -> Decision:
        return Decision()


NOTHING = Nothing()


class Entry:
    """An intent in an outbox."""

    __slots__ = ("after", "answer", "applied", "call", "done", "intent", "steps", "traced")

    def __init__(self, intent: Intent, done: "asyncio.Future[Any] | None") -> None:
        self.intent, self.done = intent, done
        self.steps: Sequence[Effects] = ()
        self.answer: Any = None
        self.call: wire.Called | None = None
        self.after: int | None = None  # the last line of the trace when it was first applied
        self.applied = self.traced = False

    def resolve(self, answer: Any) -> None:
        if self.done and not self.done.done():
            if isinstance(answer, BaseException):
                self.done.set_exception(answer)
                self.done.exception()  # nobody has to wait any more
            else:
                self.done.set_result(answer)


class Ownership(Protocol):
    """Whether this process runs the prompts of a session. It answers questions, and asks for claims."""

    shared: bool  # other servers may have written to a session, and own it
    until: str  # of a session that stands still: when it goes on
    remedy: str
    interrupted: str  # what is said of a turn whose server is gone

    async def start(self) -> None:
        """Takes up what the last life has left."""

    async def create(self, id: str, title: str) -> None:
        """A new session."""

    async def reach(self, session_id: str) -> "Outbox":
        """The session, with all that was done in it before. Raises `NoSession`, `Stuck`."""

    def leave(self, deadline: float) -> Awaitable[None]:
        """This process accepts nothing more, and stops running turns. It has closed the store in the end."""

    def starts(self, box: "Outbox") -> bool:
        """Whether a prompt that is accepted now enters here, in the same commit."""

    def may_start(self) -> bool:
        """Whether turns are started here."""

    def ask(self, box: "Outbox", batch: Sequence[Entry]) -> tuple[str, str]:
        """The claim and the release that go with the commit."""

    def hear(self, box: "Outbox", answer: Committed) -> bool:
        """The commit is stored. Whether the session has become this process's by it."""

    def settled(self, box: "Outbox", answer: Committed) -> None:
        """And everything that it asks for is done."""

    def name(self, box: "Outbox") -> str:
        """The name of the server that runs its turns, where there are several."""


class Workers(Protocol):
    """Who runs turns."""

    def start(self, box: "Outbox", run: Run) -> None: ...
    def begin_grace(self, box: "Outbox", run: Run) -> None: ...
    def let_go(self, run: Run) -> None: ...
    def let_in(self, box: "Outbox", run: Run) -> None: ...
    def settle(self, box: "Outbox", run: Run) -> None: ...


class Environment:
    """What the outboxes of one runtime have in common."""

    turns: Workers
    ownership: Ownership
    ready: Ready | None = None  # awaited with the session's id before an accepted prompt enters

    def __init__(self, store: Store, broker: Broker, trace: TraceWriter | None, protocol: Rules) -> None:
        self.store, self.broker, self.trace, self.protocol = store, broker, trace, protocol
        self.counter = Counter()
        self.boxes: dict[str, Outbox] = {}
        self.describe: Callable[[str], Json] = lambda session_id: {"id": session_id}  # what is told of a session
        self.ended = dict.fromkeys(Outcome, 0)  # how many prompts have ended so, in this life
        self.closing = False
        self.asked = 0  # intents that are not stored
        self.quiet = asyncio.Event()  # it is closing, and everything is done
        self.over = asyncio.Event()  # nothing is tried again
        self.writer = Writer(store, self.over)
        self.tasks: set[asyncio.Future[None]] = set()
        self.left: set[asyncio.Future[None]] = set()  # tasks of turns that were abandoned
        self._committing: dict[asyncio.Future[None], Outbox] = {}

    def open(self, id: str, snapshot: Snapshot | None = None, version: int = 0) -> "Outbox":
        """An outbox for a new session, or for one as it is stored."""
        box = self.boxes[id] = Outbox(Session(id, self.counter, protocol=self.protocol), self, version)
        if snapshot:
            box.restore(snapshot)
        return box

    def find(self, session_id: str) -> "Outbox":
        """The session's outbox. Raises `NoSession`."""
        try:
            return self.boxes[session_id]
        except KeyError:
            raise NoSession(f"there is no session {session_id}; create it first") from None

    @property
    def runs(self) -> "list[tuple[Outbox, Run]]":
        """The prompts that are not done, each with its outbox."""
        return [(box, run) for box in self.boxes.values() for run in box.runs.values()]

    def spawn(self, work: Coroutine[Any, Any, None], box: "Outbox | None" = None) -> "asyncio.Task[None]":
        """Does the work in a task of its own, soon. What an outbox has is committed by it."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        if box:
            self._committing[task] = box
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Future[None]") -> None:
        self.tasks.discard(task)
        self.left.discard(task)
        box = self._committing.pop(task, None)
        if box and task.cancelled() and not self.over.is_set():  # the event loop ends, perhaps before it has begun
            box.stop_for_good(Stuck(f"session {box.session.id} was interrupted; restart the server"))
            box.rest()
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Stuck):
            log.error("a prompt's task failed", exc_info=error)

    def look_quiet(self) -> None:
        """When the runtime is closing nothing new begins, so that once it is quiet it stays so."""
        if self.closing and not (self.asked or any(box.runs for box in self.boxes.values())):
            self.quiet.set()


def restore(record: PromptRecord) -> Restored:
    """A prompt that is not done, as it is stored."""
    return Restored(record.seq, record.text, record.run_id, record.state, record.traits, record.attachments)


class Outbox:
    """One session, and what was asked of it and is not stored."""

    def __init__(self, session: Session, home: Environment, version: int = 0) -> None:
        self.session, self.home = session, home
        self.version, self.mark, self.held = version, session.mark, session.held  # as stored
        self.epoch: int | None = EPOCH  # None: the session is another server's, or nobody's
        self.free = False  # it is nobody's
        self.entries: list[Entry] = []
        self.runs: dict[int, Run] = {}  # the prompts that run or wait here, by seq
        self.unstored: dict[int, Run] = {}  # those whose acceptance is not stored, by seq, which may change
        self.claim = self.release = ""  # what the commit that is under way asks for
        self.working = False  # a commit is under way, or the session is being loaded
        self._sent = 0  # so many of the entries are in the commit that is under way
        self.loading = False  # what is asked now is applied later, as it is when the session is torn
        self.stuck: Refusal | None = None
        self._hurry: asyncio.Event | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def lost(self) -> bool:
        """Whether the session belongs to another server by now: nothing more happens in this outbox."""
        return isinstance(self.stuck, Moved)

    @property
    def owned(self) -> bool:
        return self.epoch is not None

    @property
    def idle(self) -> bool:
        """Whether every prompt is done, and nothing is to be stored."""
        return not (self.session.prompts or self.entries or self.working)

    @property
    def accepting(self) -> bool:
        """Whether an acceptance is not stored yet."""
        return any(entry.intent.accepts for entry in self.entries)

    def find(self, key: int | str) -> Prompt | None:
        """The prompt with that seq or run id, if it is not done. It has no seq before a shared store gives it one."""
        return None if self.home.store.shared and key in self.unstored else self.session.find(key)

    def run_of(self, prompt: Prompt) -> Run:
        """What is known of a prompt. Of one that another server runs, or nobody, that is not much."""
        known = self.runs.get(prompt.seq) or self.unstored.get(prompt.seq)
        return known or self._make_run(prompt, closed=True)

    def _make_run(self, prompt: Prompt, closed: bool = False) -> Run:
        broker = self.home.broker
        run = Run(prompt, broker.feed(prompt.session.id, prompt.run_id), broker.latest)
        if closed:
            run.feed.close()
        run.goes_on = prompt.begun and not any(
            prompt in step.begun for entry in self.entries for step in entry.steps)
        return run

    def register(self, prompt: Prompt) -> Run:
        """The prompt runs or waits here from now on."""
        run = self.runs[prompt.seq] = self._make_run(prompt)
        return run

    # --- asking

    def ask(self, intent: Intent) -> "asyncio.Future[Any]":
        """Asks for something, and returns a future of the answer. Whoever cancels that takes nothing back."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.put(intent, done)
        self.go()
        return done

    def tell(self, intent: Intent) -> None:
        """Asks for something, and needs no answer."""
        self.put(intent)
        self.go()

    def drained(self) -> "asyncio.Future[None]":
        """It is done when everything that was asked before is answered."""
        return self.ask(NOTHING)

    def put(self, intent: Intent, done: "asyncio.Future[Any] | None" = None) -> Sequence[Effects]:
        """Applies the intent, to be committed at the next `go`, and returns the steps that were taken."""
        entry = Entry(intent, done)
        if self.stuck:
            entry.resolve(self.stuck)
            return ()
        self.entries.append(entry)
        self.home.asked += 1
        if intent.accepts and self._hurry:
            self._hurry.set()  # the store may be well again, and if not, the caller need not wait
        if not (self.loading or self.session.torn):
            self._apply(entry)
        return entry.steps

    def _apply_all(self) -> None:
        """Applies what waits to the session that was loaded, in order."""
        self.loading = False
        for entry in self.entries[:]:
            if not (entry.applied or self.stuck or self.session.torn):
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        """Applies the intent to the session as it is now."""
        entry.applied = True
        trace = self.home.trace
        if trace and entry.after is None:
            entry.after = trace.n
        try:
            entry.steps, entry.answer, entry.call = entry.intent.apply(self)
        except Refusal as refusal:
            entry.steps, entry.answer, entry.call = (), refusal, None
        except Exception as error:
            self.session.torn = True  # it may have taken steps: it is loaded again, as it was without them
            self._drop([entry], error)
            if entry.done is None or entry.intent.fatal:
                self.stand_still(error)
            return
        if trace and not self.accepting:
            self._trace(entry)

    def _drop(self, entries: Iterable[Entry], error: BaseException) -> None:
        """Nothing comes of these."""
        for entry in list(entries):
            self.entries.remove(entry)
            self.home.asked -= 1
            entry.resolve(error)

    def _trace(self, entry: Entry, late: bool = False) -> None:
        """Writes the lines of its steps. A line behind an acceptance is written after that of the acceptance, which is
        written when it is stored."""
        trace = self.home.trace
        if trace and not entry.traced:
            entry.traced = True
            for step in entry.steps:
                if step.action not in EVERYWHERE:
                    told = late and step.action in ("accept", "cancel")
                    trace.step(self.session, step, entry.after if told else None)

    # --- committing

    def go(self) -> None:
        """Begins to store what was asked, unless a commit is under way."""
        if self.stuck:
            return
        if self.home.over.is_set():
            self._answer_at_the_end()
            return
        stopped = self._stop()
        if not self.working and (self.entries or self.session.torn):
            self.working = True
            if stopped or self.session.torn:  # its end may be here in a moment, to be stored with what has stopped it
                self.home.spawn(self._drain(), self)
            else:
                self._drain_now()

    def _answer_at_the_end(self) -> None:
        """Nothing is stored any more: what changes nothing is answered, the rest is told."""
        for entry in self.entries[:]:
            if not entry.applied or any(
                    step or step.moved or step.changed or step.mark > self.mark or step.held is not self.held
                    for step in entry.steps):
                break
            self.entries.remove(entry)
            self.home.asked -= 1
            entry.resolve(entry.answer)
        self.leave_behind(TOO_LATE)

    def _stop(self) -> bool:
        """Asks the turn to stop, if something that waits asks for that, and says whether nobody has before. Its end is
        stored with the call or after it, so that nobody sees more of this than of a crash (R16c). A call that is
        applied again still reaches that turn. The entry of an interrupt may not, and asks when it is stored."""
        asked = {effect.seq for entry in self.entries for step in entry.steps for effect in step
                 if type(effect) is Stop}
        for prompt in self.session.active if asked else ():
            if prompt.seq in asked and (run := self.runs.get(prompt.seq)) and run.turn and not self.may_stop(prompt):
                return run.turn.stop()
        return False

    def may_stop(self, prompt: Prompt) -> bool:
        """Whether nothing but the entry of an interrupt that waits stops the prompt. Applied again, it may not: others
        have revoked the interrupt, or hold the session."""
        return prompt.covered and prompt.seq > self.session.mark and any(
            isinstance(effect, Stop) and effect.seq == prompt.seq
            for entry in self.entries for step in entry.steps if step.action == "enter" for effect in step)

    def _next_batch(self) -> list[Entry]:
        batch: list[Entry] = []
        for entry in self.entries:
            if batch and batch[-1].intent.accepts and (not entry.intent.accepts or entry.intent.alone):
                break
            batch.append(entry)
        return batch

    def _begin(self) -> tuple[Commit, list[Entry]]:
        """Begins to make durable what has gathered."""
        batch = self._next_batch()
        self.claim, self.release = self.home.ownership.ask(self, batch)
        commit, self._sent = self._send(batch), len(batch)
        return commit, batch

    async def commit_first(self, intent: Intent, claim: str, release: Callable[[], str]) -> bool:
        """Commits the intent before all that waits, while others are kept out, and says whether it is stored."""
        entry, answer = Entry(intent, None), None
        self.entries.insert(0, entry)
        self.home.asked += 1
        try:
            self._apply(entry)
            if self.stuck:
                return False
            self.claim, self.release = claim, release()
            answer = await self._send([entry]).answer
        finally:
            if not isinstance(answer, Committed) and entry in self.entries:
                self._drop([entry], Moved("nothing came of it"))
        if isinstance(answer, Committed) and not self.stuck:
            self._settle([entry], answer)
            return True
        return False

    def _send(self, batch: Sequence[Entry]) -> Commit:
        journal = Journal(self.session, self.mark, self.held, self.run_of,
                          self.unstored if self.home.store.shared else None)
        for entry in batch:
            if self.home.trace and not entry.intent.accepts:
                self._trace(entry, late=True)
            for step in entry.steps:
                journal.add(step)
        for run, message in journal.records:  # these come before the ends, as those of a turn do
            run.feed.publish("message", {**wire_message(message), "seq": run.prompt.seq})
        return self.home.writer.begin(self.session.id, self.version, journal.operations, self.epoch, self.claim,
                                      self.release, journal.actions)

    def _drain_now(self) -> None:
        """Stores what has gathered, as far as the store answers at once. A task does the rest."""
        try:
            while self.entries or self.session.torn:
                if self.session.torn:
                    self.home.spawn(self._drain(), self)
                    return
                commit, batch = self._begin()
                if not has_succeeded(commit.answer) or not isinstance(answer := commit.answer.result(), Committed):
                    self.home.spawn(self._drain(commit, batch), self)
                    return
                self._settle(batch, answer)
        except (Exception, asyncio.CancelledError) as error:  # nobody can have asked for that here
            self.stand_still(error)
        self.rest()

    async def _drain(self, commit: Commit | None = None, batch: Sequence[Entry] = ()) -> None:
        """Stores what has gathered, until nothing is left; first what was begun."""
        attempt, doubt = 0, False
        try:
            while not self.stuck and (self.entries or self.session.torn):
                if self.session.torn:
                    await self._load_again()
                    continue
                if commit is None:
                    (commit, batch), doubt = self._begin(), False
                try:
                    answer, poorer = await self.home.writer.complete(commit)
                except StoreError as error:
                    if self.stuck:
                        self._refuse(batch, error, commit.steps.operations)
                        break
                    doubt = doubt or (isinstance(error, Unconfirmed) and self.home.store.shared)
                    if doubt and error.retry and not all(entry.intent.accepts for entry in batch):
                        for entry in batch:
                            if entry.intent.accepts:
                                entry.resolve(error)
                    elif self._refuse(batch, error, commit.steps.operations):
                        commit = None
                        await self._load_again()
                        continue
                    if not error.retry or self.home.over.is_set():
                        raise
                    log.error("a step cannot be written, trying again: %s", error)
                    await self._pause(attempt)
                    attempt, commit = attempt + 1, self.home.writer.again(commit) if doubt else None
                    continue
                commit, attempt = None, 0
                match answer:
                    case Committed():
                        if poorer:
                            self._mark_trouble(batch)
                        self._settle(batch, answer)
                        if self.entries and answer.seqs:
                            await self._load_again()  # what was applied behind them did not know their seqs
                    case Conflict(snapshot):
                        await self._load_again(snapshot)
                    case _:
                        self.lose()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or not task.cancelling():  # nobody has asked for it
                self.stand_still(error)
                return
            raise
        except UnknownSession:
            self.forget(NoSession(f"session {self.session.id} was deleted; create another"))
        except Exception as error:
            self.stand_still(error)
        finally:
            self.rest()

    def rest(self) -> None:
        """Nothing is under way any more: those who wait for that look again."""
        self.working, self._sent = False, 0
        if self.stuck:
            self._drop(self.entries, self.stuck)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        if self.home.closing:
            self.home.look_quiet()

    async def _pause(self, attempt: int) -> None:
        self._hurry = asyncio.Event()
        try:
            await self.home.writer.pause(attempt, self._hurry)
        finally:
            self._hurry = None

    def _refuse(self, batch: Iterable[Entry], error: StoreError, operations: Iterable[Operation] = ()) -> bool:
        """Tells those whose prompts were to be accepted that they are not, and says whether there were any (R1c). If
        the store has refused one of the operations, that is the one whose prompt it is: another of the same commit may
        have the same run id, and came before."""
        accepting = [entry for entry in batch if entry.intent.accepts]
        if isinstance(error, Refused):
            accepted = [operation for operation in operations if isinstance(operation, AcceptPrompt)]
            asked = [entry for entry in accepting if entry.steps]
            accepting = [entry for entry, operation in zip(asked, accepted) if operation == error.operation][-1:]
        self._drop(accepting, error)
        return bool(accepting)

    def _mark_trouble(self, batch: Iterable[Entry]) -> None:
        """The prompts that are started have no message: they cannot run."""
        for entry in batch:
            for step in entry.steps:
                for effect in step:
                    if isinstance(effect, Start) and (
                            run := self.runs.get(effect.seq) or self.unstored.get(effect.seq)):
                        run.trouble = UNSTORABLE

    # --- once it is stored

    def _settle(self, batch: Sequence[Entry], answer: Committed) -> None:
        """Answers those who have asked, and then shows and does what the steps ask for. They run on after this: what
        fails here stops the session, and is no answer to them. If it was stopped meanwhile, they are answered all the
        same: nobody may ask again for what is stored."""
        self.version, self._sent = answer.version, 0
        del self.entries[:len(batch)]
        self.home.asked -= len(batch)
        accepted = [entry.intent.run for entry in batch if entry.intent.run and entry.steps]
        for run in accepted:
            self.unstored.pop(run.prompt.seq, None)
        if accepted and answer.seqs:
            self._number(accepted, answer.seqs, batch)
        for entry in batch:
            if self.home.trace:
                self._trace(entry, late=True)
            entry.resolve(entry.answer)
        if self.stuck:
            return
        claimed = self.home.ownership.hear(self, answer)
        for run in accepted:
            if self.owned:
                self.runs[run.prompt.seq] = run
            else:
                run.feed.close()
        watched = self.home.broker.watched
        for entry in batch:
            for step in entry.steps:
                self._show(step, watched)
                self._do(step)
            if entry.call and watched:
                told = replace(entry.call, mark=self.mark)
                self.home.broker.publish(Update(self.session.id, CALL, wire.to_json(told)))
        if claimed:
            self.look_all()
        for entry in batch:
            if entry.intent.run and entry.steps and entry.steps[-1].action == "accept" and self.owned:
                self.home.turns.let_in(self, entry.intent.run)
        self.home.ownership.settled(self, answer)

    def _number(self, accepted: Sequence[Run], seqs: Sequence[int], batch: Iterable[Entry]) -> None:
        """The store has given the prompts their seqs. What was applied behind them names them too."""
        numbers = {run.prompt.seq: seq for run, seq in zip(accepted, seqs, strict=True)}
        for entry in (*batch, *self.entries):
            for step in entry.steps:
                step[:] = [replace(effect, seq=numbers.get(effect.seq, effect.seq)) for effect in step]
        self.session.renumber((run.prompt, seq) for run, seq in zip(accepted, seqs))
        for run in accepted:
            run.renumber()
        self.session.counter.raise_to(max(seqs))

    def _show(self, step: Effects, watched: bool) -> None:
        """Tells those who watch of a step that is durable."""
        self.mark = max(self.mark, step.mark)
        if step.held is not self.held:
            self.held = step.held
            told = {**self.home.describe(self.session.id), "held": step.held}
            self.home.broker.publish(Update(self.session.id, SESSION, told))
        if watched and step.action == "accept" and step.prompt:
            self._show_prompt(step.prompt, State.ACCEPTED)
        for prompt, traits, state in step.changed:
            if run := self.runs.get(prompt.seq):
                text = run.shown.text if step.was is None else step.text
                run.shown = Shown(text, traits.version, traits.front)
            if watched and state in (State.ACCEPTED, State.QUEUED) and step.action != "accept":  # else its move tells
                self._show_prompt(prompt, state)
        for prompt, row in step.moved if watched else ():
            self._show_prompt(prompt, row.dest, row.outcome)

    def _show_prompt(self, prompt: Prompt, state: State, outcome: Outcome | None = None, stopping: bool = False,
                     ) -> None:
        """Shows that a prompt has come to another state, or was asked to stop, now that it is durable."""
        text, version, front = run.shown if (run := self.runs.get(prompt.seq)) else show(prompt)
        told = {"run_id": prompt.run_id, "outcome": outcome and outcome.value, "stopping": stopping,
                "attachments": list_names(prompt.attachments), "version": version, "front": front,
                "node": self.home.ownership.name(self) if state is State.ACTIVE else ""}
        self.home.broker.publish(Update(prompt.session.id, STATE, {
            "seq": prompt.seq, "session_id": prompt.session.id, "text": text[:SHOWN], "state": state.value,
            **{name: value for name, value in told.items() if value}}, prompt.run_id))

    def show_stopping(self, prompt: Prompt) -> None:
        if self.home.broker.watched:
            self._show_prompt(prompt, State.ACTIVE, stopping=True)

    def _do(self, step: Effects) -> None:
        """What is left of a step once it is durable and published: turns to start and stop, waiters to answer. The
        owner does it (R14b, R16c)."""
        owned = self.owned
        for prompt, _ in step.moved if owned else ():
            if prompt.seq not in self.runs:  # the step was taken before the session was this server's
                self.register(prompt)
        for effect in step:
            match effect:
                case End(outcome=outcome):
                    self.home.ended[outcome] += 1
                    if owned and outcome is not Outcome.FOLDED:
                        self.answer(self.runs.pop(effect.seq), outcome)
                case Start(seq) if owned:
                    run = self.runs[seq]
                    run.turn = run.task = None  # of before a summary
                    if self.home.ownership.may_start():
                        self.home.turns.start(self, run)
                case Stop(seq) if owned:
                    self.home.turns.begin_grace(self, self.runs[seq])
                case Fold(seq, into) if owned:
                    guest = self.runs[seq]  # who may have guests of its own, if it goes on after a summary
                    self.runs[into].guests += [guest, *guest.guests]

    def answer(self, run: Run, outcome: Outcome) -> None:
        """Tells those who wait for the prompt, and for those that were folded into it, how it has ended."""
        result = run.result(outcome)
        for guest in run.guests:
            self.runs.pop(guest.prompt.seq, None)
            guest.over(result._replace(run_id=guest.prompt.run_id, outcome=Outcome.FOLDED))
        run.over(result)
        run.turn = run.task = None  # which hold it in turn: nothing of them is left to the garbage collector

    # --- when the session is not what the intents were applied to

    async def _load_again(self, snapshot: Snapshot | None = None) -> None:
        """Loads the session, and applies again what waits. Acceptances do not wait for a store that cannot be read."""
        attempt, self.loading = 0, True
        try:
            while not self.stuck:
                try:
                    await self.load(snapshot or await self.home.store.load(self.session.id))
                    return
                except StoreError as error:
                    self._refuse(self.entries, error)
                    if not error.retry or self.home.over.is_set():
                        raise
                    log.error("a session cannot be read, trying again: %s", error)
                    await self._pause(attempt)
                    attempt += 1
        finally:
            self.loading = False

    async def load(self, snapshot: Snapshot) -> None:
        """The session becomes what is stored, and what waits is applied to it again."""
        if self.owned and (snapshot.epoch != self.epoch or not snapshot.owned):
            self.lose()
            return
        store = self.home.store
        records = [(run, await store.prompt(run.prompt.seq)) for run in self._missing_in(snapshot)]
        if self.stuck:  # it was lost meanwhile, and nothing of it counts
            return
        for run, record in records:
            if record and record.outcome and self.runs.get(run.prompt.seq) is run:
                self._leave_ended(run, record.outcome)
        self.restore(snapshot)
        self._apply_all()
        self.look_all()

    def restore(self, snapshot: Snapshot) -> None:
        """The session becomes what is stored."""
        session = self.session
        self.version, self.mark, self.held = snapshot.version, snapshot.mark, snapshot.held
        self.epoch, self.free = snapshot.epoch if snapshot.owned else None, snapshot.free
        self.unstored.clear()
        for entry in self.entries:
            entry.applied, entry.steps = False, ()
        session.down = False
        session.reload(snapshot.mark, map(restore, snapshot.prompts), snapshot.held)
        session.counter.raise_to(max([snapshot.mark, *session.prompts]))
        for prompt in session.prompts.values():
            if known := self.runs.get(prompt.seq):
                if known.prompt.text != prompt.text:
                    known.forget_message()
                known.prompt, known.shown = prompt, show(prompt)

    def _missing_in(self, snapshot: Snapshot) -> list[Run]:
        """The prompts that the snapshot does not have: others have ended them. Those that were folded belong to their
        host."""
        guests = {guest.prompt.seq for run in self.runs.values() for guest in run.guests}
        known = guests | {record.seq for record in snapshot.prompts}
        return [run for seq, run in self.runs.items() if seq not in known]

    def _leave_ended(self, run: Run, outcome: Outcome) -> None:
        """Tells how a prompt ended that others have ended."""
        if run.turn and not run.turn.abandoned:
            self.home.turns.let_go(run)
        run.said = None
        self.answer(self.runs.pop(run.prompt.seq), outcome)

    def look_all(self) -> None:
        """Does what the prompts' states ask for, whoever has brought them there: the owner does, if it can go on."""
        for prompt in self.session.live if self.owned and not (self.stuck or self.session.torn) else ():
            if prompt.seq not in self.unstored:
                self._look_at(prompt)

    def _look_at(self, prompt: Prompt) -> None:
        run = self.runs.get(prompt.seq)
        if run is None:
            run = self.register(prompt)
            if prompt.state is State.ACCEPTED:
                self.home.turns.let_in(self, run)
        if prompt.state is State.CANCELED_ON_ENTRY:
            self.home.turns.settle(self, run)
        self.start_late(run)
        if prompt.state is State.ACTIVE and run.turn and prompt.covered and not self._asks(Stop, prompt.seq):
            self.home.turns.begin_grace(self, run)

    def start_late(self, run: Run) -> None:
        """Starts the turn of an active prompt that has none, unless something that waits does."""
        if (run.prompt.state is State.ACTIVE and run.turn is None and not self._asks(Start, run.prompt.seq)
                and self.home.ownership.may_start()):
            self.home.turns.start(self, run)

    def _asks(self, kind: type[Effect], seq: int) -> bool:
        """Whether something that waits asks for such an effect."""
        return any(isinstance(effect, kind) and effect.seq == seq
                   for entry in self.entries for step in entry.steps for effect in step)

    async def take(self) -> None:
        """Waits until nothing is under way, and then keeps others out: what is asked meanwhile is applied later."""
        while self.working:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        self.working = self.loading = True

    def give_back(self) -> None:
        """Whoever has kept others out is done: what was asked meanwhile is applied, and stored."""
        self._apply_all()
        self.rest()
        self.go()

    # --- when it cannot go on

    def lose(self) -> None:
        """The session belongs to another server: its turns are let go of, and it is forgotten here. A late answer may
        say so again, when the session has a new outbox here: that one stays."""
        if not self.lost:
            log.warning("session %s belongs to another server by now", self.session.id)
            self.forget(Moved(f"session {self.session.id} belongs to another server by now; ask again"))

    def forget(self, why: Refusal) -> None:
        """Nothing more happens here: the session is gone, or another server's."""
        if self.home.boxes.get(self.session.id) is self:
            del self.home.boxes[self.session.id]
        self.stop_for_good(why)

    def stand_still(self, error: BaseException) -> None:
        """The session's journal cannot be written: everybody who waits is told, and nothing more happens in it."""
        if self.home.over.is_set():
            return  # the runtime has closed, and tells them
        owner, id, told = self.home.ownership, self.session.id, isinstance(error, StoreError)
        log.critical("session %s stands still until %s: %s", id, owner.until, error, exc_info=None if told else error)
        why = f"{error.problem}; {error.remedy}" if isinstance(error, StoreError) else repr(error)  # not where it is
        self.stop_for_good(Stuck(f"session {id} cannot go on: {why}; {owner.remedy}"))

    def stop_for_good(self, why: Refusal) -> None:
        """Nothing more happens in the session. Those in the commit that is under way are told what comes of it: what is
        stored, others go on with."""
        self.stuck = why
        self._let_runs_go(why)
        self._drop(self.entries[self._sent:], why)
        if not self.working:
            self.rest()

    def leave_behind(self, why: Refusal) -> None:
        """Tells those who still wait that they wait in vain: what they wait for cannot be written (R25b)."""
        self._let_runs_go(why)
        self._drop(self.entries, why)

    def _let_runs_go(self, why: Refusal) -> None:
        runs, self.runs = {**self.runs, **self.unstored}, {}
        self.unstored = {}
        for run in runs.values():
            run.over(why)
            if run.turn and not run.turn.abandoned:
                self.home.turns.let_go(run)
