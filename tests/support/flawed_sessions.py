"""The flaws of the original that fit into one step, each seeded into the runtime's session by a few changed lines.

The original's races need more than one step; they are in `flawed_runtimes`. Each class is named by `FLAWED`, and breaks
the property that its flaw breaks in the model of the original.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cancelmark.impl.runtime.session import Effects, Prompt, Session
from cancelmark.model.actions import FINISH, Variant
from cancelmark.model.effects import End, Fold, Start
from cancelmark.model.lifecycle import Outcome, State, Trigger


class Flawed(Session):
    """What the flaws are made of."""

    @contextmanager
    def _step(self, action: str, prompt: Prompt | None = None, variant: Variant = None) -> Iterator[Effects]:
        """One step, to be filled in."""
        with self._lock:
            yield self._begin(action, prompt, variant)
            self._end()

    @contextmanager
    def _marked(self, mark: int) -> Iterator[None]:
        """The step sees another mark."""
        kept, self.mark = self.mark, mark
        try:
            yield
        finally:
            self.mark = kept

    def _accepted(self, covered: bool) -> list[Prompt]:
        return [p for p in self.prompts.values() if p.state is State.ACCEPTED and p.covered is covered]


def without_ends(effects: Effects, *seqs: int) -> Effects:
    """Nothing is published for these prompts."""
    effects[:] = [e for e in effects if not (isinstance(e, End) and e.seq in seqs)]
    return effects


# --- a cancel that is lost

class MarkNotAskedOnEntry(Flawed):
    def enter(self, prompt: Prompt) -> Effects:
        with self._marked(0):
            return super().enter(prompt)


class MarkConsumed(Flawed):
    """A cancel sets one flag, and the first prompt it was meant for takes it."""

    flag = False

    def cancel(self, action: str = "cancel") -> Effects:
        self.flag = True
        return super().cancel(action)

    def enter(self, prompt: Prompt) -> Effects:
        asked, self.flag = self.flag, self.flag and not prompt.covered
        with self._marked(self.mark if asked else 0):
            return super().enter(prompt)


class MarkClearedByHandoff(Flawed):
    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = super().finish(prompt, outcome)
        self.mark = 0
        return effects


class StoppingTurnGoesOn(Flawed):
    def requeue(self, prompt: Prompt) -> Effects:
        with self._marked(0):
            return super().requeue(prompt)


class FailureBeatsCancel(Flawed):
    def fail(self, prompt: Prompt) -> Effects:
        with self._marked(0):
            return super().fail(prompt)


# --- a cancel that reaches too far

class CancelsCounted(Flawed):
    """A cancel counts how many are to be canceled, and takes whoever comes."""

    due = 0

    def cancel(self, action: str = "cancel") -> Effects:
        self.due = len(self._accepted(covered=False)) + self.due
        return super().cancel(action)

    def enter(self, prompt: Prompt) -> Effects:
        self.due, due = max(0, self.due - 1), self.due
        with self._marked(prompt.seq if due else 0):
            return super().enter(prompt)

    def fail(self, prompt: Prompt) -> Effects:
        self.due -= prompt.covered
        return super().fail(prompt)


class StaleFlag(Flawed):
    """A prompt that fails before it enters leaves its flag behind."""

    stale = False

    def fail(self, prompt: Prompt) -> Effects:
        self.stale = prompt.covered
        return super().fail(prompt)

    def enter(self, prompt: Prompt) -> Effects:
        stale, self.stale = self.stale and not prompt.covered, self.stale and prompt.covered
        with self._marked(prompt.seq if stale else self.mark):
            return super().enter(prompt)


class NoSeqWithoutRunId(Flawed):
    """A queued prompt without a run id counts as seq 0, which any mark covers."""

    def _hand_off(self) -> None:
        for prompt in [q for q in self.queue if q.run_id is None and self.mark]:
            self._fire(prompt, Trigger.DROP)
        super()._hand_off()


class StoppingTurnFolds(Flawed):
    def step(self, prompt: Prompt) -> Effects:
        with self._marked(0):
            return super().step(prompt)


class ContinuationWithoutSeq(Flawed):
    """A prompt that goes back to the queue counts as seq 0, which any mark covers."""

    def requeue(self, prompt: Prompt) -> Effects:
        with self._step("requeue", prompt) as effects:
            self._fire(prompt, Trigger.REQUEUE)
            if self.mark:
                self._fire(prompt, Trigger.DROP)
            self._hand_off()
        return effects


# --- no end

class SettledInSilence(Flawed):
    def settle(self, prompt: Prompt) -> Effects:
        return without_ends(super().settle(prompt), prompt.seq)


class RunIdFolds(Flawed):
    def step(self, prompt: Prompt) -> Effects:
        with self._step("step", prompt) as effects:
            for queued in list(self.queue) if prompt is self.active and not prompt.covered else ():
                effects.append(Fold(queued.seq, into=prompt.seq))
                queued.run_id = None  # or no row would let it
                self._fire(queued, Trigger.FOLD)
        return effects


class RunIdDroppedInSilence(Flawed):
    def cancel(self, action: str = "cancel") -> Effects:
        dropped = [q.seq for q in self.queue if q.run_id is not None]
        return without_ends(super().cancel(action), *dropped)


class AnonymousDroppedInSilence(Flawed):
    def cancel(self, action: str = "cancel") -> Effects:
        dropped = [q.seq for q in self.queue if q.run_id is None]
        return without_ends(super().cancel(action), *dropped)


class EndGivenUpForTheNext(Flawed):
    """Whoever hands off says nothing of its own end."""

    silent = True  # with a run id, or without one

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = super().finish(prompt, outcome)
        handed_off = any(isinstance(e, Start) for e in effects) and prompt.has_run_id is self.silent
        return without_ends(effects, *[prompt.seq] * handed_off)


class AnonymousEndGivenUp(EndGivenUpForTheNext):
    silent = False


class HandedOffFailsInSilence(Flawed):
    """A prompt that was handed off to and fails says nothing."""

    handed: frozenset[int] = frozenset()

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = super().finish(prompt, outcome)
        if outcome is Outcome.ERROR:
            without_ends(effects, *self.handed)
        self.handed = frozenset(e.seq for e in effects if isinstance(e, Start))
        return effects


# --- stranded, out of order, late

class NoHandoffAfter(Flawed):
    outcome = Outcome.ERROR

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        if outcome is not self.outcome:
            return super().finish(prompt, outcome)
        with self._step("finish", prompt, outcome) as effects:
            self._fire(prompt, FINISH[outcome])
        return effects


class NoHandoffAfterCancel(NoHandoffAfter):
    outcome = Outcome.CANCELED


class QueueInEntryOrder(Flawed):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.entered: list[Prompt] = []

    def enter(self, prompt: Prompt) -> Effects:
        self.entered.append(prompt)
        return super().enter(prompt)

    def _hand_off(self) -> None:
        queue = sorted(self.queue, key=lambda q: self.entered.index(q) if q in self.entered else -1)
        if queue:
            self.queue = queue[:1]  # or no row would let it start
            self._fire(queue[0], Trigger.START)
            self.queue = sorted(queue[1:], key=lambda q: q.seq)


class EndWaitsForTheChain(Flawed):
    """Ends are kept back until the queue is empty."""

    kept: tuple[End, ...] = ()

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        effects = super().finish(prompt, outcome)
        own = tuple(e for e in effects if isinstance(e, End))
        without_ends(effects, prompt.seq)
        self.kept += own
        if self.active is None:
            effects[:0], self.kept = self.kept, ()
        return effects


FLAWED: Mapping[str, type[Session]] = {
    "cancel-before-entry-lost": MarkNotAskedOnEntry,
    "sibling-survives-cancel": MarkConsumed,
    "handoff-eats-cancel": MarkClearedByHandoff,
    "cancel-during-summary": StoppingTurnGoesOn,
    "failure-beats-cancel": FailureBeatsCancel,
    "later-prompt-eats-cancel": CancelsCounted,
    "stale-flag-poisons-next": StaleFlag,
    "in-process-prompt-poisoned": NoSeqWithoutRunId,
    "fold-into-stopping-turn": StoppingTurnFolds,
    "continuation-poisoned": ContinuationWithoutSeq,
    "silent-cancel-on-entry": SettledInSilence,
    "run-id-folded": RunIdFolds,
    "run-id-dropped-silently": RunIdDroppedInSilence,
    "anonymous-drop-in-silence": AnonymousDroppedInSilence,
    "outer-event-suppressed": EndGivenUpForTheNext,
    "anonymous-end-suppressed": AnonymousEndGivenUp,
    "popped-prompt-fails-early": HandedOffFailsInSilence,
    "queue-stranded-by-error": NoHandoffAfter,
    "queue-stranded-by-cancel": NoHandoffAfterCancel,
    "queue-in-entry-order": QueueInEntryOrder,
    "event-waits-for-chain": EndWaitsForTheChain,
}
