"""A session's outbox: the session in memory, and the intents that are not stored yet.

**What memory holds.** Memory is the state that the store last confirmed, plus the intents submitted since, in order. An
*intent* is what a caller wants. The outbox applies it to the session at once, so a cancel stops the running turn
without waiting for the disk, and then keeps it until it is stored. Each commit takes the intents that have gathered and
names the version that the store last confirmed; at most one commit is in flight. When a commit is stored, the outbox
answers its callers and then applies the effects of its steps in order: it publishes updates, starts turns and stops
them. So a terminal event is durable before the next turn starts.

**Reload and re-apply.** When a commit cannot be stored as it is, the outbox reloads the session and re-applies the
waiting intents in order. This happens in three cases:
- after a conflict, because another server has written to the session;
- after a refused acceptance, because later intents may have been applied on top of it;
- after a step that failed halfway.

An intent is not a precomputed step: it does what its caller wants on any state. It remembers what cannot be withdrawn:
how far a cancel reaches, and which prompt a stop has stopped.

**A prompt is accepted and enters in one commit.** Acceptances are the last entries of a commit, and intents submitted
after them wait for the next one. There are two reasons. A shared store assigns the prompt its seq in that commit, and
nothing may name a prompt without a seq. And a refused acceptance must not fail other callers.

**When the store fails.**
- A transient failure (a full disk, a locked file) fails the acceptances. The outbox retries everything else with
  backoff, so nothing is lost.
- An unconfirmed commit keeps its id and is retried under it, which is idempotent. Intents submitted after it wait. A
  commit of acceptances only is not retried: the outbox reloads the session to learn the outcome.
- A message that the store can never take is left out, and the turn that needs it ends with an error.
- A journal entry that the store can never take is fatal to the session. The outbox logs this as critical, fails all
  waiters, and a restart resumes from the journal.

**Rejected:** applying intents only when they are committed. No caller could learn what a call will do, and every
query of the session (who is active, what is queued) would have to wait for the disk.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cancelmark.model.actions import ACTIONS
from cancelmark.model.effects import Answered, Effect, End, Fold, Start, Stop, Withdraw
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.questions import Question

from ..store import (
    EPOCH,
    AcceptPrompt,
    Committed,
    Conflict,
    ConstraintViolation,
    Operation,
    PromptRecord,
    Snapshot,
    StoreError,
    Unconfirmed,
    UnknownSession,
)
from .entry import NOTHING, Entry, Intent
from .environment import Environment
from .journal import Journal
from .messages import wire_message
from .publisher import Publisher
from .refusals import Moved, NoSession, Refusal, Stuck
from .run import Run, show
from .session import LivePrompt, Restored, Session, TakenStep
from .tasks import has_succeeded
from .writer import UNSTORABLE, Commit

log = logging.getLogger("cancelmark")

EVERYWHERE = {action.name for action in ACTIONS if action.everywhere}  # traced as one line for all sessions


def restore(record: PromptRecord) -> Restored:
    """The in-memory form of a stored prompt that is not done."""
    return Restored(record.seq, record.text, record.run_id, record.state, record.traits, record.attachments,
                    record.questions)


class Outbox:
    """One session, and the intents that are not stored yet."""

    def __init__(self, session: Session, home: Environment, version: int = 0) -> None:
        self.session, self.home = session, home
        self.version, self.mark, self.held = version, session.mark, session.held  # as stored
        self.epoch: int | None = EPOCH  # None: another server owns the session, or it is unowned
        self.free = False  # it is unowned
        self.entries: list[Entry] = []
        self.runs: dict[int, Run] = {}  # the prompts that run or wait here, by seq
        self.unstored: dict[int, Run] = {}  # by a provisional seq: their acceptance is not stored yet
        self.claim = self.release = ""  # of the commit in flight
        self.working = False  # a commit is in flight, or the session is being loaded
        self._sent = 0  # how many of the entries are in the commit in flight
        self.loading = False  # intents submitted now are applied after the load
        self.stuck: Refusal | None = None
        self._hurry: asyncio.Event | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.publisher = Publisher(session.id, home.broker, self.runs)

    @classmethod
    def open(cls, home: Environment, id: str, snapshot: Snapshot | None = None, version: int = 0) -> "Outbox":
        """A registered outbox for a new session, or for the stored session of `snapshot`."""
        box = home.boxes[id] = cls(Session(id, home.counter, protocol=home.protocol), home, version)
        if snapshot:
            box.restore(snapshot)
        return box

    @property
    def lost(self) -> bool:
        """Whether another server has taken the session over. Nothing more happens in this outbox then."""
        return isinstance(self.stuck, Moved)

    @property
    def owned(self) -> bool:
        return self.epoch is not None

    @property
    def idle(self) -> bool:
        """Whether every prompt is done and nothing waits to be stored."""
        return not (self.session.prompts or self.entries or self.working)

    @property
    def accepting(self) -> bool:
        """Whether an acceptance is not stored yet."""
        return any(entry.intent.accepts for entry in self.entries)

    def find(self, key: int | str) -> LivePrompt | None:
        """The prompt with that seq or run id, unless it is done. Before a shared store has assigned a seq, the prompt
        is not found by seq."""
        return None if self.home.store.shared and key in self.unstored else self.session.find(key)

    def run_of(self, prompt: LivePrompt) -> Run:
        """The `Run` of a prompt. For a prompt that does not run on this server, a closed one that holds little more
        than the prompt."""
        known = self.runs.get(prompt.seq) or self.unstored.get(prompt.seq)
        return known or self._make_run(prompt, closed=True)

    def _make_run(self, prompt: LivePrompt, closed: bool = False) -> Run:
        broker = self.home.broker
        run = Run(prompt, broker.feed(prompt.session.id, prompt.run_id), broker.latest)
        if closed:
            run.feed.close()
        run.is_resumed = prompt.begun and not any(
            prompt in step.begun for entry in self.entries for step in entry.steps)
        return run

    def register(self, prompt: LivePrompt) -> Run:
        """The new `Run` of a prompt that runs or waits on this server from now on."""
        run = self.runs[prompt.seq] = self._make_run(prompt)
        return run

    # --- submitting

    def submit(self, intent: Intent) -> "asyncio.Future[Any]":
        """Submit an intent, and return a future of its answer. Canceling the future does not withdraw the intent."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.add(intent, done)
        self.flush()
        return done

    def submit_nowait(self, intent: Intent) -> None:
        """Submit an intent whose answer is not needed."""
        self.add(intent)
        self.flush()

    def drained(self) -> "asyncio.Future[None]":
        """A future that is done when everything submitted before it is answered."""
        return self.submit(NOTHING)

    def add(self, intent: Intent, done: "asyncio.Future[Any] | None" = None) -> Sequence[TakenStep]:
        """Apply the intent, and return the steps that it took. The next flush commits it."""
        entry = Entry(intent, done)
        if self.stuck:
            entry.resolve(self.stuck)
            return ()
        self.entries.append(entry)
        self.home.pending += 1
        if intent.accepts and self._hurry:
            self._hurry.set()  # retry now: the caller of an acceptance does not wait for the backoff
        if not (self.loading or self.session.torn):
            self._apply(entry)
        return entry.steps

    def _apply_all(self) -> None:
        """Apply the waiting intents, in order, to the session as it was loaded."""
        self.loading = False
        for entry in self.entries[:]:
            if not (entry.applied or self.stuck or self.session.torn):
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        """Apply the intent to the session as it is now."""
        entry.applied = True
        trace = self.home.trace
        if trace and entry.after is None:
            entry.after = trace.n
        try:
            entry.steps, entry.answer, entry.call = entry.intent.apply(self)
        except Refusal as refusal:
            entry.steps, entry.answer, entry.call = (), refusal, None
        except Exception as error:
            self.session.torn = True  # it may have taken steps: the session must be reloaded without them
            self._fail([entry], error)
            if entry.done is None or entry.intent.fatal:
                self.mark_stuck(error)
            return
        if trace and not self.accepting:
            self._trace(entry)

    def _fail(self, entries: Iterable[Entry], error: BaseException) -> None:
        """Remove the entries, and fail their callers with `error`."""
        for entry in list(entries):
            self.entries.remove(entry)
            self.home.pending -= 1
            entry.resolve(error)

    def _trace(self, entry: Entry, late: bool = False) -> None:
        """Write the trace lines of the entry's steps. An acceptance is traced when it is stored, and steps after it
        follow its line."""
        trace = self.home.trace
        if trace and not entry.traced:
            entry.traced = True
            for step in entry.steps:
                if step.action not in EVERYWHERE:
                    told = late and step.action in ("accept", "cancel")
                    trace.step(self.session, step, entry.after if told else None)

    # --- committing

    def flush(self) -> None:
        """Start to store what was submitted, unless a commit is in flight."""
        if self.stuck:
            return
        if self.home.over.is_set():
            self._answer_when_over()
            return
        stopped = self._stop_turn()
        if not self.working and (self.entries or self.session.torn):
            self.working = True
            if stopped or self.session.torn:  # its end may come in a moment, and is stored in the same commit
                self.home.spawn(self._commit_all(), self)
            else:
                self._commit_now()

    def _answer_when_over(self) -> None:
        """Answer the leading intents that change nothing, and fail the rest: the runtime has closed, and nothing more
        is stored."""
        for entry in self.entries[:]:
            if not entry.applied or any(
                    step or step.moved or step.changed or step.mark > self.mark or step.held is not self.held
                    for step in entry.steps):
                break
            self.entries.remove(entry)
            self.home.pending -= 1
            entry.resolve(entry.answer)
        self.fail_waiters()

    def _stop_turn(self) -> bool:
        """Ask the running turn to stop, if a waiting intent wants that. Return whether this was the first request.

        The turn's end is stored with the call or after it: if the call is never stored, this looks like a crash. A call
        that is re-applied still reaches the same turn. But an interrupt that is re-applied as it enters may not reach
        it, so it asks only once its entry is stored.
        """
        asked = {effect.seq for entry in self.entries for step in entry.steps for effect in step
                 if type(effect) is Stop}
        for prompt in self.session.active if asked else ():
            if prompt.seq in asked and (run := self.runs.get(prompt.seq)) and run.turn and not self.may_stop(prompt):
                return run.turn.stop()
        return False

    def may_stop(self, prompt: LivePrompt) -> bool:
        """Whether only the entry of a waiting interrupt stops the prompt. When that is re-applied it may not stop the
        prompt: another server may have revoked the interrupt, or hold the session."""
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

    def _begin_commit(self) -> tuple[Commit, list[Entry]]:
        """Begin the commit of the gathered entries."""
        batch = self._next_batch()
        self.claim, self.release = self.home.ownership.get_claims(self, batch)
        commit, self._sent = self._send(batch), len(batch)
        return commit, batch

    async def commit_first(self, intent: Intent, claim: str, release: Callable[[], str]) -> bool:
        """Commit the intent ahead of everything that waits, and return whether it is stored. The caller must have
        locked the outbox."""
        entry, answer = Entry(intent, None), None
        self.entries.insert(0, entry)
        self.home.pending += 1
        try:
            self._apply(entry)
            if self.stuck:
                return False
            self.claim, self.release = claim, release()
            answer = await self._send([entry]).answer
        finally:
            if not isinstance(answer, Committed) and entry in self.entries:
                self._fail([entry], Moved("the call had no effect; retry it"))
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
        for run, message in journal.records:  # before the terminal events, as with the messages of a turn
            run.feed.publish("message", {**wire_message(message), "seq": run.prompt.seq})
        return self.home.writer.begin(self.session.id, self.version, journal.operations, self.epoch, self.claim,
                                      self.release, journal.actions)

    def _commit_now(self) -> None:
        """Store what has gathered, as long as the store answers at once. A task does the rest."""
        try:
            while self.entries or self.session.torn:
                if self.session.torn:
                    self.home.spawn(self._commit_all(), self)
                    return
                commit, batch = self._begin_commit()
                if not has_succeeded(commit.answer) or not isinstance(answer := commit.answer.result(), Committed):
                    self.home.spawn(self._commit_all(commit, batch), self)
                    return
                self._settle(batch, answer)
        except (Exception, asyncio.CancelledError) as error:  # nothing here suspends: no caller canceled it
            self.mark_stuck(error)
        self.stop_working()

    async def _commit_all(self, commit: Commit | None = None, batch: Sequence[Entry] = ()) -> None:
        """Store what has gathered until nothing is left, starting with the commit in flight, if there is one."""
        attempt, doubt = 0, False
        try:
            while not self.stuck and (self.entries or self.session.torn):
                if self.session.torn:
                    await self._reload()
                    continue
                if commit is None:
                    (commit, batch), doubt = self._begin_commit(), False
                try:
                    answer, without_messages = await self.home.writer.complete(commit)
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
                        await self._reload()
                        continue
                    if not error.retry or self.home.over.is_set():
                        raise
                    log.error("commit failed, retrying: %s", error)
                    await self._pause(attempt)
                    attempt, commit = attempt + 1, self.home.writer.again(commit) if doubt else None
                    continue
                commit, attempt = None, 0
                match answer:
                    case Committed():
                        if without_messages:
                            self._mark_unstorable(batch)
                        self._settle(batch, answer)
                        if self.entries and answer.seqs:
                            await self._reload()  # later intents were applied without their seqs
                    case Conflict(snapshot):
                        await self._reload(snapshot)
                    case _:
                        self.lose()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or not task.cancelling():  # no caller requested this cancel
                self.mark_stuck(error)
                return
            if commit is not None:
                self._fail_unconfirmed(batch)
            raise
        except UnknownSession:
            self.forget(NoSession(f"session {self.session.id} was deleted; create another"))
        except Exception as error:
            self.mark_stuck(error)
        finally:
            self.stop_working()

    def stop_working(self) -> None:
        """Mark the outbox as not working, and wake those that wait for that."""
        self.working, self._sent = False, 0
        if self.stuck:
            self._fail(self.entries, self.stuck)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        if self.home.closing:
            self.home.check_quiet()

    async def _pause(self, attempt: int) -> None:
        self._hurry = asyncio.Event()
        try:
            await self.home.writer.pause(attempt, self._hurry)
        finally:
            self._hurry = None

    def _refuse(self, batch: Iterable[Entry], error: StoreError, operations: Iterable[Operation] = ()) -> bool:
        """Fail the callers whose prompts the store did not accept, and return whether there were any.

        If the store has refused one operation, only its prompt is refused. If two prompts of the commit have the same
        run id, that is the later one.
        """
        accepting = [entry for entry in batch if entry.intent.accepts]
        if isinstance(error, ConstraintViolation):
            accepted = [operation for operation in operations if isinstance(operation, AcceptPrompt)]
            asked = [entry for entry in accepting if entry.steps]
            accepting = [entry for entry, operation in zip(asked, accepted) if operation == error.operation][-1:]
        self._fail(accepting, error)
        return bool(accepting)

    def _mark_unstorable(self, batch: Iterable[Entry]) -> None:
        """Mark the started prompts whose user message was left out: they cannot run."""
        for entry in batch:
            for step in entry.steps:
                for effect in step:
                    if isinstance(effect, Start) and (
                            run := self.runs.get(effect.seq) or self.unstored.get(effect.seq)):
                        run.trouble = UNSTORABLE

    # --- once it is stored

    def _settle(self, batch: Sequence[Entry], answer: Committed) -> None:
        """Answer the callers of a stored commit, then publish and apply the effects of its steps.

        The callers go on after this, so an error in here makes the session stuck and is not their answer. If the
        session has become stuck meanwhile, they still get their answers: a caller must not repeat what is stored.
        """
        self.version, self._sent = answer.version, 0
        del self.entries[:len(batch)]
        self.home.pending -= len(batch)
        accepted = [entry.intent.run for entry in batch if entry.intent.run and entry.steps]
        for run in accepted:
            self.unstored.pop(run.prompt.seq, None)
        if accepted and answer.seqs:
            self._assign_seqs(accepted, answer.seqs, batch)
        for entry in batch:
            if self.home.trace:
                self._trace(entry, late=True)
            entry.resolve(entry.answer)
        if self.stuck:
            return
        claimed = self.home.ownership.on_committed(self, answer)
        for run in accepted:
            if self.owned:
                self.runs[run.prompt.seq] = run
            else:
                run.feed.close()
        watched = self.home.broker.watched
        node = self.home.ownership.name_node(self) if watched else ""
        for entry in batch:
            for step in entry.steps:
                if step.held is not self.held:
                    self.publisher.publish_hold(self.home.describe(self.session.id), step.held)
                self.mark, self.held = max(self.mark, step.mark), step.held
                self.publisher.publish_step(step, watched, node)
                self._apply_effects(step)
            if entry.call:
                self.publisher.publish_call(replace(entry.call, mark=self.mark))
        if claimed:
            self.reconcile_all()
        for entry in batch:
            if entry.intent.run and entry.steps and entry.steps[-1].action == "accept" and self.owned:
                self.home.turns.admit(self, entry.intent.run)
        self.home.ownership.on_settled(self, answer)

    def _assign_seqs(self, accepted: Sequence[Run], seqs: Sequence[int], batch: Iterable[Entry]) -> None:
        """Give the prompts the seqs that the store has assigned, also where later steps name them."""
        numbers = {run.prompt.seq: seq for run, seq in zip(accepted, seqs, strict=True)}
        for entry in (*batch, *self.entries):
            for step in entry.steps:
                step[:] = [replace(effect, seq=numbers.get(effect.seq, effect.seq)) for effect in step]
        self.session.renumber((run.prompt, seq) for run, seq in zip(accepted, seqs))
        for run in accepted:
            run.renumber()
        self.session.counter.raise_to(max(seqs))

    def _apply_effects(self, step: TakenStep) -> None:
        """Apply the effects of a step that is durable and published: start and stop turns, answer waiters. Only the
        owner does."""
        owned = self.owned
        for prompt, _ in step.moved if owned else ():
            if prompt.seq not in self.runs:  # the step was taken before this server owned the session
                self.register(prompt)
        for effect in step:
            match effect:
                case End(outcome=outcome):
                    self.home.ended[outcome] += 1
                    if owned and outcome is not Outcome.FOLDED:
                        self.answer(self.runs.pop(effect.seq), outcome)
                case Start(seq) if owned:
                    run = self.runs[seq]
                    run.turn = run.task = None  # left from before a summary
                    if self.home.ownership.may_start():
                        self.home.turns.start(self, run)
                case Stop(seq) if owned:
                    self.home.turns.begin_grace(self, self.runs[seq])
                case Answered(seq, n) | Withdraw(seq, n) if owned and seq in self.runs:
                    self.runs[seq].hear_answer(n)
                case Fold(seq, into) if owned:
                    guest = self.runs[seq]  # it has folded runs of its own if it resumes after a summary
                    self.runs[into].folded_runs += [guest, *guest.folded_runs]

    def answer(self, run: Run, outcome: Outcome) -> None:
        """Give the outcome to those that wait for the prompt, or for a prompt that was folded into it."""
        result = run.result(outcome)
        for guest in run.folded_runs:
            self.runs.pop(guest.prompt.seq, None)
            guest.resolve(result._replace(run_id=guest.prompt.run_id, outcome=Outcome.FOLDED))
        run.resolve(result)
        run.turn = run.task = None  # break the reference cycle, or the garbage collector must

    # --- reloading and reconciling

    async def _reload(self, snapshot: Snapshot | None = None) -> None:
        """Reload the session, with backoff, and re-apply what waits. Acceptances fail at once if the store cannot be
        read."""
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
                    log.error("session load failed, retrying: %s", error)
                    await self._pause(attempt)
                    attempt += 1
        finally:
            self.loading = False

    async def load(self, snapshot: Snapshot) -> None:
        """Replace the session by the snapshot, re-apply what waits, and reconcile."""
        if self.owned and (snapshot.epoch != self.epoch or not snapshot.owned):
            self.lose()
            return
        store = self.home.store
        records = [(run, await store.prompt(run.prompt.seq)) for run in self._runs_missing_in(snapshot)]
        if self.stuck:  # it was lost or became stuck meanwhile
            return
        for run, record in records:
            if record and record.outcome and self.runs.get(run.prompt.seq) is run:
                self._end_elsewhere(run, record.outcome)
        self.restore(snapshot)
        self._apply_all()
        self.reconcile_all()

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the session by the snapshot. The waiting intents are not applied yet."""
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

    def _runs_missing_in(self, snapshot: Snapshot) -> list[Run]:
        """The prompts that run or wait here and that another server has ended. A folded prompt belongs to its host."""
        guests = {guest.prompt.seq for run in self.runs.values() for guest in run.folded_runs}
        known = guests | {record.seq for record in snapshot.prompts}
        return [run for seq, run in self.runs.items() if seq not in known]

    def _end_elsewhere(self, run: Run, outcome: Outcome) -> None:
        """Answer the waiters of a prompt that another server has ended."""
        if run.turn and not run.turn.abandoned:
            self.home.turns.release(run)
        run.pending_result = None
        self.answer(self.runs.pop(run.prompt.seq), outcome)

    def reconcile_all(self) -> None:
        """Reconcile what runs here with the states of the prompts, whichever server caused them. Does nothing unless
        this server owns the session and can go on."""
        for prompt in self.session.live if self.owned and not (self.stuck or self.session.torn) else ():
            if prompt.seq not in self.unstored:
                self._reconcile(prompt)

    def _reconcile(self, prompt: LivePrompt) -> None:
        run = self.runs.get(prompt.seq)
        if run is None:
            run = self.register(prompt)
            if prompt.state is State.ACCEPTED:
                self.home.turns.admit(self, run)
        if prompt.state is State.CANCELED_ON_ENTRY:
            self.home.turns.settle(self, run)
        for n in [*run.asking]:  # another server may have taken the answer
            if n <= len(prompt.asks) and prompt.asks[n - 1] is not Question.OPEN:
                run.hear_answer(n)
        self.start_if_missing(run)
        if prompt.state is State.ACTIVE and run.turn and prompt.covered and not self._has_pending(Stop, prompt.seq):
            self.home.turns.begin_grace(self, run)

    def start_if_missing(self, run: Run) -> None:
        """Start the turn of an active prompt that has none, unless a waiting intent starts it."""
        if (run.prompt.state is State.ACTIVE and run.turn is None and not self._has_pending(Start, run.prompt.seq)
                and self.home.ownership.may_start()):
            self.home.turns.start(self, run)

    def _has_pending(self, kind: type[Effect], seq: int) -> bool:
        """Whether a waiting intent has such an effect on the prompt."""
        return any(isinstance(effect, kind) and effect.seq == seq
                   for entry in self.entries for step in entry.steps for effect in step)

    async def lock(self) -> None:
        """Lock the outbox: wait until nothing is in flight. Until it is unlocked, intents are queued and not
        applied."""
        while self.working:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        self.working = self.loading = True

    def unlock(self) -> None:
        """Unlock the outbox, then apply and store what was submitted meanwhile."""
        self._apply_all()
        self.stop_working()
        self.flush()

    # --- stuck or lost

    def lose(self) -> None:
        """Abandon the session's turns and forget the session: another server owns it. Idempotent: a late answer may
        report the loss when the session already has a new outbox here, and that one stays."""
        if not self.lost:
            log.warning("session %s: ownership lost to another server", self.session.id)
            self.forget(Moved(f"session {self.session.id} has moved to another server; retry the call"))

    def forget(self, why: Refusal) -> None:
        """Remove the outbox for good: the session was deleted, or another server owns it."""
        if self.home.boxes.get(self.session.id) is self:
            del self.home.boxes[self.session.id]
        self.stop(why)

    def mark_stuck(self, error: BaseException) -> None:
        """Mark the session as stuck, because its journal cannot be written. Fails all waiters; nothing more happens in
        it."""
        if self.home.over.is_set():
            return  # the closing runtime fails the waiters itself
        owner, id, told = self.home.ownership, self.session.id, isinstance(error, StoreError)
        log.critical("session %s is stuck until %s: %s", id, owner.until, error, exc_info=None if told else error)
        why = f"{error.problem}; {error.remedy}" if isinstance(error, StoreError) else repr(error)  # without the path
        self.stop(Stuck(f"session {id} is stuck: {why}; {owner.remedy}"))

    def stop(self, why: Refusal) -> None:
        """Mark the session as stuck for `why`, and fail its waiters. The callers of the commit in flight still get its
        outcome: another server resumes from what is stored."""
        self.stuck = why
        self._release_runs(why)
        self._fail(self.entries[self._sent:], why)
        if not self.working:
            self.stop_working()

    def fail_waiters(self) -> None:
        """Fail everything that still waits: the server has closed before it was saved."""
        why = self.home.ownership.refuse_unsaved()
        self._release_runs(why)
        self._fail(self.entries, why)

    def _fail_unconfirmed(self, batch: Iterable[Entry]) -> None:
        """Fail the entries of a commit that was sent and never answered: it may be stored."""
        waiting = [entry for entry in batch if entry in self.entries]
        self._fail(waiting, Unconfirmed(
            f"session {self.session.id}", "the server closed before the store confirmed this",
            "retry (a prompt under the same run id)"))

    def _release_runs(self, why: Refusal) -> None:
        runs = [*self.runs.values(), *self.unstored.values()]
        self.runs.clear()
        self.unstored.clear()
        for run in runs:
            run.resolve(why)
            if run.turn and not run.turn.abandoned:
                self.home.turns.release(run)
