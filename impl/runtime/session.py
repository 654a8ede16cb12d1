"""One session at run time: prompts as objects, moved only by the machine that is built from the model's rows.

No I/O and no tasks. Each method is one atomic step under the session's lock and returns the effects that somebody must
carry out, in order, after the lock has been let go; `impl` code never holds it across I/O. A prompt that is done is
forgotten: what must be remembered of it is in the journal.

The steps are those of `model.session`, on mutable objects and with the queue and the active prompt kept at hand. A test
replays every edge of the model's reachable graph here and compares state and effects.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter

from cancelmark.model.lifecycle import INITIAL, Lifecycle, Outcome, Row, State, Trigger
from cancelmark.model.session import FINISH, Acknowledge, Effect, End, Fold, Record, Start, Stop, Variant

LIFECYCLE = Lifecycle()
_seq = attrgetter("seq")


class Effects(list[Effect]):
    """One step that was taken: what it asks the world to do, in order, and what the journal and a trace tell of it."""

    __slots__ = ("action", "mark", "moved", "prompt", "variant")

    def __init__(self, action: str, prompt: "Prompt | None" = None, variant: Variant = None) -> None:
        self.action, self.prompt, self.variant = action, prompt, variant  # as in `model.session`
        self.moved: list[tuple[Prompt, Row]] = []  # the rows along which it moved prompts
        self.mark = 0  # the session's, after it


NOTHING = Effects("")


class Counter:
    """The server's sequence numbers: one counter for all sessions. Safe to use from several threads (R1a)."""

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self.latest += 1
            return self.latest


class Prompt:
    """A prompt that is not done. Its session answers the guards; only the machine changes its state."""

    __slots__ = ("outcome", "run_id", "seq", "session", "state", "text")

    def __init__(
        self, session: "Session", seq: int, text: str = "", run_id: str | None = None, state: State = INITIAL,
    ) -> None:
        self.session, self.seq, self.text, self.run_id = session, seq, text, run_id
        self.state = state
        self.outcome: Outcome | None = None

    @property
    def covered(self) -> bool:
        return self.seq <= self.session.mark

    @property
    def busy(self) -> bool:
        return self.session.down or self.session.active is not None

    @property
    def first(self) -> bool:
        queue = self.session.queue
        return not queue or self.seq <= queue[0].seq

    @property
    def has_run_id(self) -> bool:
        return self.run_id is not None

    def __repr__(self) -> str:
        return f"{self.seq} of session {self.session.id}" + (f" (run id {self.run_id})" if self.run_id else "")


class Session:
    """The prompts of one session that are not done, its mark, its queue and its active prompt (R20)."""

    def __init__(self, id: str, counter: Counter, mark: int = 0) -> None:
        self.id, self.counter, self.mark = id, counter, mark
        self.down = False
        self.prompts: dict[int, Prompt] = {}  # by seq
        self.queue: list[Prompt] = []  # by seq
        self.active: Prompt | None = None
        self._lock = threading.Lock()
        self._effects = NOTHING  # of the step that is being taken

    @classmethod
    def restored(
        cls, id: str, counter: Counter, mark: int, prompts: Iterable[tuple[int, str, str | None, State]],
    ) -> "Session":
        """The session as its journal has it after a crash: (seq, text, run id, state) of every prompt that was not
        done. Nothing but `recover` may follow."""
        session = cls(id, counter, mark)
        session.down = True
        for seq, text, run_id, state in sorted(prompts, key=lambda p: p[0]):
            session._index(Prompt(session, seq, text, run_id, state))
        return session

    # --- the actions: one step each

    def accept(self, text: str = "", run_id: str | None = None, seq: int | None = None) -> tuple[Prompt, Effects]:
        """The prompt is accepted with the next seq, or with `seq`, which the caller has taken from the counter before
        in order to journal it first. A cancel in between covers it already (R1a)."""
        with self._lock:
            prompt = Prompt(self, self.counter.next() if seq is None else seq, text, run_id)
            effects = self._begin("accept", prompt, run_id is not None)
            self._index(prompt)
            effects.append(Acknowledge(prompt.seq))
            return prompt, self._end()

    def enter(self, prompt: Prompt) -> Effects:
        """Canceled on entry, queued, or active (R3a, R3b, R4, R5a, R6a)."""
        with self._lock:
            self._begin("enter", prompt)
            self._fire(prompt, Trigger.ENTER)
            return self._end()

    def fail(self, prompt: Prompt) -> Effects:
        """The prompt could not start (R8a, R8b)."""
        with self._lock:
            self._begin("fail", prompt)
            self._fire(prompt, Trigger.FAIL)
            return self._end()

    def settle(self, prompt: Prompt) -> Effects:
        """The record of a prompt canceled on entry is to be written, and the prompt is done (R7a)."""
        with self._lock:
            effects = self._begin("settle", prompt)
            self._fire(prompt, Trigger.SETTLE)
            effects.insert(0, Record(prompt.seq))
            return self._end()

    def step(self, prompt: Prompt) -> Effects:
        """The turn takes in the queued prompts without a run id; one that was asked to stop takes in
        none (R9a, R9b, R9c)."""
        with self._lock:
            effects = self._begin("step", prompt)
            if self.queue and prompt is self.active and not prompt.covered:
                for queued in [q for q in self.queue if q.run_id is None]:
                    effects.append(Fold(queued.seq, into=prompt.seq))
                    self._fire(queued, Trigger.FOLD)
            return self._end()

    def requeue(self, prompt: Prompt) -> Effects:
        """The turn goes on after a summary: back into the queue at its seq, and the first becomes
        active (R10a, R10b, R10c, R10d)."""
        with self._lock:
            self._begin("requeue", prompt)
            self._fire(prompt, Trigger.REQUEUE)
            self._hand_off()
            return self._end()

    def finish(self, prompt: Prompt, outcome: Outcome) -> Effects:
        """The turn is over, and the first in the queue becomes active, however it ended (R11a, R11b, R12d)."""
        with self._lock:
            self._begin("finish", prompt, outcome)
            self._fire(prompt, FINISH[outcome])
            self._hand_off()
            return self._end()

    def cancel(self, action: str = "cancel") -> Effects:
        """Everything accepted so far is covered, the queue is dropped, the active prompt is asked to stop. A close is
        the same (R2, R12a, R12b, R12c, R12e)."""
        with self._lock:
            effects = self._begin(action)
            if self.active and not self.active.covered:
                effects.append(Stop(self.active.seq))
            self.mark = max(self.mark, self.counter.latest)
            self._drop()
            return self._end()

    def clear_queue(self) -> Effects:
        """The queue is dropped; the mark and the active prompt stay as they are (R13a, R13b)."""
        with self._lock:
            self._begin("clear_queue")
            self._drop()
            return self._end()

    def recover(self) -> Effects:
        """After a restart: what was active ends with an error, what had not started goes on in order of
        seq (R2, R17a, R17b, R17c, R17d)."""
        with self._lock:
            self._begin("recover", down=True)
            if self.active:
                self._fire(self.active, Trigger.INTERRUPT)
            for prompt in sorted((p for p in self.prompts.values() if p.state is State.ACCEPTED), key=_seq):
                self._fire(prompt, Trigger.ENTER)
            self.down = False
            self._hand_off()
            return self._end()

    # --- machinery

    def _begin(self, action: str, prompt: Prompt | None = None, variant: Variant = None, down: bool = False) -> Effects:
        """One step begins, under the lock; its effects are to be filled in (R19a)."""
        if self.down is not down:
            raise RuntimeError(f"session {self.id} is {'down: recover it first' if self.down else 'not down'}")
        self._effects = Effects(action, prompt, variant)
        return self._effects

    def _end(self) -> Effects:
        effects, self._effects = self._effects, NOTHING
        effects.mark = self.mark
        return effects

    def _fire(self, prompt: Prompt, trigger: Trigger) -> None:
        """Moves the prompt along its row, keeps queue, active and prompts in step, and notes what the row
        means (R19c)."""
        row = LIFECYCLE.fire(prompt, trigger)
        self._effects.moved.append((prompt, row))
        if row.source is State.QUEUED:
            del self.queue[bisect_left(self.queue, prompt.seq, key=_seq)]
        elif row.source is State.ACTIVE:
            self.active = None
        self._index(prompt)
        if row.dest is State.ACTIVE:
            self._effects.append(Start(prompt.seq))
        elif row.outcome is not None:
            self._effects.append(End(prompt.seq, row.outcome, of=prompt.seq))

    def _index(self, prompt: Prompt) -> None:
        """Puts the prompt where its state belongs (R5b, R6b)."""
        if prompt.state is State.DONE:
            del self.prompts[prompt.seq]
            return
        self.prompts[prompt.seq] = prompt
        if prompt.state is State.QUEUED:
            insort(self.queue, prompt, key=_seq)
        elif prompt.state is State.ACTIVE:
            self.active = prompt

    def _hand_off(self) -> None:
        if self.queue:
            self._fire(self.queue[0], Trigger.START)

    def _drop(self) -> None:
        for prompt in list(self.queue):
            self._fire(prompt, Trigger.DROP)

