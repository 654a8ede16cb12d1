"""A lane: one session, and the steps that were taken in it and are still to be committed and carried out.

**Steps are taken at once and committed by version.** A step is taken on the session in memory when it is asked for, so
that its caller knows what came of it, and a cancel stops the running turn in the same breath (R16c). Then it waits in
the lane, together with what was asked for: the action, its prompt, its variant. What has gathered is committed against
the version that the store last answered with. If the store has another one by now, nothing was kept: the session is
loaded from the snapshot that came with the answer, and what waits in the lane is asked for again, in order. So a
requeue of a prompt that was canceled meanwhile becomes its end, a step folds what may still be folded, and an end that
somebody else has written is not written again. A cancel reaches no further the second time than the first, and a stop
nobody else. A caller is told what was committed: a call on one prompt that cannot be taken again as it was, and one
that was refused, is made again from its beginning. A clear_queue drops what it finds queued when it is committed:
nobody has its answer before, so for every caller it came after those. A turn that a call has stopped is stopped by it
the second time too; the entry of an interrupt may stop nobody then, so that its turn is asked when it is committed.

**Rejected:** taking steps only when they are committed. A queue of intents that nobody has applied cannot tell its
caller what a step will do, and everything that asks the session (who is active, what is queued) would have to wait for
the disk. An undo record of every step that waits is not needed: a conflict brings the whole session along, so the
ordinary step pays nothing for it.

One process alone has no conflict: its store belongs to it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cancelmark.model.effects import End, Fold, Record, Start, Stop
from cancelmark.model.family import HOLD
from cancelmark.model.lifecycle import INITIAL, Outcome, State

from ..store import (
    EPOCH,
    TERMINAL,
    AppendEvent,
    ChangePrompt,
    HoldSession,
    Message,
    MovePrompt,
    Operation,
    PromptRecord,
    PutMessage,
    RaiseMark,
    ReplaceText,
    Snapshot,
)
from .messages import canceled_messages
from .refusals import Moved, Refusal
from .run import Run, Shown, show
from .session import Effects, Prompt, Restored, Session

NOTHING = Effects("")


class LaneStep(NamedTuple):
    """A step that was taken and is to be carried out."""

    effects: Effects
    mark: int  # the session's, after it
    held: bool  # whether the session is, after it
    done: "asyncio.Future[Effects] | None"  # of whoever waits until it is carried out
    shown: tuple[tuple[State, Shown], ...] = ()  # the prompts that it has changed, as they are after it

    @classmethod
    def of(cls, effects: Effects, session: Session, done: "asyncio.Future[Effects] | None" = None) -> "LaneStep":
        """The step that the session has just taken."""
        shown = tuple((prompt.state, show(prompt)) for prompt, _ in effects.changed) if effects.changed else ()
        return cls(effects, session.mark, session.held, done, shown)


def restore(record: PromptRecord) -> Restored:
    """A prompt that is not done, as it is stored."""
    return Restored(record.seq, record.text, record.run_id, record.state, record.traits, record.attachments)


class Lane:
    """One session, and what its steps have asked for and is still to be carried out."""

    __slots__ = ("accepting", "epoch", "held", "mark", "runs", "session", "steps", "stuck", "version", "working")

    def __init__(self, session: Session, version: int = 0, epoch: int = EPOCH) -> None:
        self.session = session
        self.version, self.mark, self.held = version, session.mark, session.held  # as stored
        self.epoch: int | None = epoch  # None: it is another process's, or nobody's
        self.steps: list[LaneStep] = []
        self.runs: dict[int, Run] = {}  # the prompts that run or wait here, by seq
        self.accepting: set[int] = set()  # seqs of prompts that are being journaled
        self.working = False
        self.stuck: Refusal | None = None

    @property
    def lost(self) -> bool:
        """Whether the session belongs to another server by now: nothing more happens in this lane."""
        return isinstance(self.stuck, Moved)

    @property
    def idle(self) -> bool:
        """Whether the session has no prompt that is not done, and nothing is to be carried out in it."""
        return not (self.session.prompts or self.accepting or self.steps or self.working)

    def list_operations(self) -> list[Operation]:
        """Everything of the steps that must survive, to be committed together (R14a, R14d, R16b)."""
        session_id, held, runs = self.session.id, self.held, self._all_runs()
        operations: list[Operation] = []
        for effects, mark, holds, *_ in self.steps:
            if mark > self.mark:
                operations.append(RaiseMark(session_id, mark))
            if holds is not held:
                operations.append(HoldSession(session_id, held := holds))
            if effects.changed:
                operations += [ChangePrompt(prompt.seq, prompt.traits) for prompt, _ in effects.changed]
            if effects.replaced and effects.prompt:
                operations.append(ReplaceText(effects.prompt.seq, *effects.replaced))
            hosts = {e.seq: e.into for e in effects if isinstance(e, Fold)} if effects.action == "step" else {}
            for prompt, row in effects.moved:
                run = runs[prompt.seq]
                if row.source is State.ACTIVE:
                    operations += map(PutMessage, run.messages)
                if row.outcome is Outcome.FOLDED or (row.dest is State.ACTIVE and not run.goes_on):
                    operations.append(PutMessage(run.message))
                operations.append(MovePrompt(prompt.seq, row.dest, row.outcome, hosts.get(prompt.seq)))
            for effect in effects:
                if isinstance(effect, Record):
                    operations += map(PutMessage, self._hand_over(runs))  # what was begun before comes before
                    operations += map(PutMessage, canceled_messages(runs[effect.seq].message, effect.seq))
                elif isinstance(effect, End) and effect.outcome is not Outcome.FOLDED:
                    run = runs[effect.seq]
                    payload = run.result(effect.outcome).to_json(effect.seq)
                    operations.append(AppendEvent(session_id, TERMINAL, payload, run.prompt.run_id))
        return operations

    def _all_runs(self) -> Mapping[int, Run]:
        """The runs of all prompts that the steps have moved."""
        return self.runs

    def _hand_over(self, runs: Mapping[int, Run]) -> Iterator[Message]:
        """What the running turn is still to write."""
        for prompt in self.session.active:
            if (run := runs.get(prompt.seq)) and run.turn:
                yield from run.turn.hand_over()

    def reload(self, snapshot: Snapshot, since: Iterable[Prompt]) -> None:
        """The session becomes what is stored: the snapshot, and what was accepted `since`. What is being journaled
        comes later."""
        self.version, self.epoch = snapshot.version, snapshot.epoch
        self.mark, self.held = snapshot.mark, snapshot.held
        stored = [restore(p) for p in snapshot.prompts if p.seq not in self.accepting]
        new = [Restored(p.seq, p.text, p.run_id, INITIAL, p.traits._replace(revoked=False, version=0, begun=False),
                        p.attachments) for p in since]
        self.session.reload(snapshot.mark, [*stored, *new], snapshot.held)

    def take_again(self, step: LaneStep) -> Effects:
        """Takes the step on the session that was loaded, as far as it can still be taken."""
        session, first = self.session, step.effects
        if not first.action:
            prompt = first.prompt and session.prompts.get(first.prompt.seq)
            return session.place_in_front(prompt) if prompt and first.changed else NOTHING
        session.down = session.protocol.action(first.action).while_down
        if first.action == "stop" and not self._stops_the_same(first):
            return session.take("hold") if first.variant == HOLD else NOTHING
        if first.prompt is None:
            return session.take(first.action, None, first.variant, first.mark)
        prompt = session.prompts.get(first.prompt.seq)
        if prompt is None or not session.can(first.action, prompt, first.variant):
            return NOTHING
        if first.replaced and prompt.version != first.changed[0][1].version:
            return NOTHING  # the caller may have asked for the version before
        if first.replaced:
            return session.replace(prompt, first.replaced[0])
        return session.take(first.action, prompt, first.variant)

    def _stops_the_same(self, first: Effects) -> bool:
        """Whether a stop that is taken again would reach nobody whom it did not reach at first (R31a)."""
        front = next(iter(self.session.active), None) if first.variant == HOLD else self.session.in_front()
        return front is None or front.seq in [prompt.seq for prompt, _ in first.changed]

    def may_stop(self, prompt: Prompt) -> bool:
        """Whether nothing but the entry of an interrupt that waits stops the prompt. Taken again, it may not: others
        have revoked the interrupt, or hold the session."""
        return prompt.covered and prompt.seq > self.session.mark and any(
            isinstance(effect, Stop) and effect.seq == prompt.seq
            for step in self.steps if step.effects.action == "enter" for effect in step.effects)

    def had_begun(self, prompt: Prompt) -> bool:
        """Whether the prompt had begun before the steps that wait: then its message is written."""
        return prompt.begun and not any(prompt in step.effects.begun for step in self.steps)

    def starts(self, seq: int) -> bool:
        """Whether a step that waits starts the prompt."""
        return any(isinstance(effect, Start) and effect.seq == seq for step in self.steps for effect in step.effects)
