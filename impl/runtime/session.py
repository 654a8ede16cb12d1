"""One session at run time: prompts as objects, moved only by the machine that is built from the protocol's rows.

**No I/O and no tasks.** `take` applies an action of the protocol, the same function that the explorer searches, as one
atomic step under the session's lock. It returns the effects that the caller must apply, in order, after the lock is
released; code in `impl` never holds the lock across I/O. A prompt that is done is forgotten here: the journal has what
must be remembered of it.

**The port.** The session is the port that the protocol's actions use, with the queue and the active prompts kept as
indexes. A test replays every edge of the model's reachable graph here and compares state and effects.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from cancelmark.model.actions import Argument, Variant, effects_of
from cancelmark.model.effects import Effect
from cancelmark.model.family import RUN_ID, Feature
from cancelmark.model.lifecycle import INITIAL, Guard, IllegalTrigger, Outcome, Row, State, Symbol, Trigger, row_of
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.questions import Question
from cancelmark.model.session import DEFAULT_TRAITS, Traits

from ..store import Json, make_digest
from .machine import lifecycle_of

_seq, _position = attrgetter("seq"), attrgetter("position")


# By action: why it withdraws the questions of a prompt. All others cancel the prompt.
WHY: Mapping[str, str] = {"finish": "ended", "requeue": "requeued", "recover": "crash"}


class NotAllowed(Exception):
    """The protocol does not allow this call in the session's present state."""


class TraitChange(NamedTuple):
    """New traits that a step has given a prompt."""

    prompt: "LivePrompt"
    traits: Traits
    state: State  # of the prompt after the change


class TakenStep(list[Effect]):
    """A step that was taken: its effects, in order, and what the journal and a trace record of it."""

    __slots__ = ("action", "after", "asked", "begun", "changed", "held", "mark", "moved", "prompt", "says", "text",
                 "variant", "was")

    def __init__(
        self, action: str, prompt: "LivePrompt | None" = None, variant: Variant = None, says: Json | None = None,
    ) -> None:
        self.action, self.prompt, self.variant = action, prompt, variant  # as in `model.actions`
        self.says = says  # of a step on a question: what is journaled of it besides its state
        self.asked: Sequence[tuple[LivePrompt, Sequence[Json]]] = ()  # prompts whose questions it changed, and these
        self.moved: list[tuple[LivePrompt, Row]] = []  # prompts that it moved, and along which rows
        self.changed: list[TraitChange] = []  # prompts to which it gave new traits
        self.begun: list[LivePrompt] = []  # prompts that it started for the first time
        self.text = prompt.text if prompt else ""  # of its prompt
        self.was: str | None = None  # of a replace: the digest of the old text
        self.mark = 0  # the session's, after it
        self.held = False
        self.after = prompt.state if prompt else None  # the state of its prompt after it


BEFORE = TakenStep("")  # of a session without a step so far; never changed


class Counter:
    """The server's sequence numbers: one counter for all sessions. Thread-safe."""

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self.latest += 1
            return self.latest

    def raise_to(self, seq: int) -> None:
        """Take note that the seq was given out, perhaps by another server."""
        with self._lock:
            self.latest = max(self.latest, seq)


class LivePrompt:
    """A prompt that is not done. Only the machine changes its state."""

    __slots__ = ("asks", "attachments", "begun", "front", "outcome", "position", "questions", "revoked", "run_id",
                 "seq", "session", "state", "text", "urgent", "version")

    def __init__(
        self, session: "Session", seq: int, text: str = "", run_id: str | None = None, state: State = INITIAL,
        traits: Traits = DEFAULT_TRAITS, attachments: Sequence[Any] = (), questions: Sequence[Json] = (),
    ) -> None:
        self.session, self.seq, self.text, self.run_id = session, seq, text, run_id
        self.attachments, self.questions = attachments, questions  # as they are stored
        self.asks = tuple([Question(one["status"]) for one in questions]) if questions else ()  # their states
        self.state = state
        self.give(traits)
        self.outcome: Outcome | None = None

    def give(self, traits: Traits) -> None:
        """Set the traits, and the position in the queue that follows from them."""
        self.revoked, self.front, self.version, self.begun, self.urgent = traits
        self.position = (-self.front, self.seq)

    @property
    def traits(self) -> Traits:
        """The flags that calls have set."""
        return Traits(self.revoked, self.front, self.version, self.begun, self.urgent)

    @property
    def covered(self) -> bool:
        """Whether a cancel has reached it."""
        return self.session.holds(self, Guard.COVERED)

    def __repr__(self) -> str:
        return f"{self.seq} of session {self.session.id}" + (f" (run id {self.run_id})" if self.run_id else "")


class Restored(NamedTuple):
    """A prompt that is not done, as journaled."""

    seq: int
    text: str
    run_id: str | None
    state: State
    traits: Traits = DEFAULT_TRAITS
    attachments: Sequence[Any] = ()
    questions: Sequence[Json] = ()


class Session:
    """The prompts of one session that are not done, its mark, its queue and its active prompt."""

    def __init__(self, id: str, counter: Counter, mark: int = 0, *, protocol: Protocol = REFERENCE) -> None:
        self.id, self.counter, self.mark, self.protocol = id, counter, mark, protocol
        self.down = False
        self.torn = False  # a step has failed halfway
        self.held = False
        self.memory: Any = None
        self.prompts: dict[int, LivePrompt] = {}  # by seq
        self.queue: list[LivePrompt] = []  # by position
        self.active: list[LivePrompt] = []  # at most one, if the protocol is sound
        self.effects = BEFORE  # of the step in progress
        self._lifecycle = lifecycle_of(protocol)
        self._notes_begun = Feature.REPLACE in protocol.features
        self._lock = threading.Lock()

    def reload(self, mark: int, prompts: Iterable[Restored], held: bool = False) -> None:
        """Replace the session's state by the journaled one, whatever steps were taken since. Its prompts are new
        objects."""
        with self._lock:
            self.mark, self.held, self.torn = mark, held, False
            for known in (self.prompts, self.queue, self.active):
                known.clear()
            for prompt in sorted(prompts, key=lambda p: p[0]):
                self._index(LivePrompt(self, *prompt))

    def accept(
        self, text: str = "", run_id: str | None = None, seq: int | None = None, mode: Feature | None = None,
        attachments: Sequence[Any] = (),
    ) -> tuple[LivePrompt, TakenStep]:
        """Accept a prompt under `seq`, or under the next seq. With mode `REJECT`, raises `NotAllowed` if the session is
        not idle."""
        with self._lock:
            seq = self.counter.next() if seq is None else seq
            prompt = LivePrompt(self, seq, text, run_id, attachments=attachments)
            variant: Variant = run_id is not None
            if mode is not None:
                variant = mode.value + (RUN_ID if variant else "")
            return prompt, self._take("accept", prompt, variant, prompt.seq - 1)

    def renumber(self, numbers: Iterable[tuple[LivePrompt, int]]) -> None:
        """Give the prompts these seqs. The prompts are not published yet, and may be done already. All leave the index
        before any re-enters it, because one may get a seq that another had."""
        with self._lock:
            numbers = list(numbers)
            live = [prompt for prompt, _ in numbers if self.prompts.pop(prompt.seq, None)]
            for prompt, seq in numbers:
                prompt.seq = seq
                prompt.give(prompt.traits)
            self.prompts.update((prompt.seq, prompt) for prompt in live)

    def take(self, action: str, prompt: LivePrompt | None = None, variant: Variant = None, latest: int | None = None,
             says: Json | None = None) -> TakenStep:
        """Take one step: an action of the protocol on the session, or on one of its prompts. A cancel covers the
        prompts up to the seq `latest`. A step on a question is journaled with what it `says`.

        If no row allows the action, raises `IllegalTrigger` and changes nothing. If the action itself raises, the
        session is torn and takes no more steps until it is reloaded.
        """
        with self._lock:
            return self._take(action, prompt, variant, self.counter.latest if latest is None else latest, says)

    def find(self, key: int | str) -> LivePrompt | None:
        """The prompt with that seq or run id, unless it is done."""
        if isinstance(key, int):
            return self.prompts.get(key)
        return next((prompt for prompt in self.prompts.values() if prompt.run_id == key), None)

    def is_idle(self) -> bool:
        """Whether every prompt is done and the session is not held."""
        return not (self.prompts or self.held)

    def replace(self, prompt: LivePrompt, text: str) -> TakenStep:
        """Replace the text of a prompt that has not started."""
        with self._lock:
            effects = self._take("replace", prompt, None, self.counter.latest)
            effects.text, effects.was = text, make_digest(prompt.text, prompt.attachments)
            prompt.text = text
            return effects

    def in_front(self) -> LivePrompt | None:
        """The prompt that a stop reaches: the active one or, if the session is not held, the first that is still to
        enter."""
        return next(iter(self.active or ([] if self.held else sorted(self.accepted, key=_position))), None)

    def can(self, action: str, prompt: LivePrompt, variant: Variant = None) -> bool:
        """Whether the action is allowed on the prompt now."""
        subject = self.protocol.action(action).subject
        return not self.down and subject is not None and subject(self, prompt, variant)

    def _take(
        self, name: str, prompt: LivePrompt | None, variant: Variant, seq: int, says: Json | None = None,
    ) -> TakenStep:
        action = self.protocol.action(name)
        if self.torn:
            raise RuntimeError(f"session {self.id} failed halfway through {self.effects.action}; reload it first")
        if self.down is not action.while_down:
            raise RuntimeError(f"session {self.id} is {'down; recover it first' if self.down else 'not down'}")
        if action.subject is not None:
            assert prompt is not None, f"{name} is an action on a prompt"
            if not action.subject(self, prompt, variant):
                how = f" ({variant.value})" if isinstance(variant, Outcome) else ""
                raise IllegalTrigger(prompt, prompt.state, name + how)
        elif action.allowed is not None and not action.allowed(self, variant):
            raise NotAllowed(f"session {self.id} is held or busy; retry {name} ({variant}) when it is idle")
        effects = self.effects = TakenStep(name, prompt, variant, says)
        self.torn = True
        action.apply(self, Argument(prompt, variant, seq))
        self.torn = False
        effects.mark, effects.held = self.mark, self.held
        if prompt:
            effects.after = prompt.state
        return effects

    # --- the port that the model's actions use

    @property
    def accepted(self) -> list[LivePrompt]:
        return [p for p in self.live if p.state is State.ACCEPTED]

    @property
    def live(self) -> list[LivePrompt]:
        return sorted(self.prompts.values(), key=_seq)

    def holds(self, prompt: LivePrompt, guard: Symbol) -> bool:
        return self.protocol.guards[guard](self, prompt)

    def may(self, prompt: LivePrompt, trigger: Trigger) -> bool:
        rows = self.protocol.table.get((trigger, prompt.state), ())
        return row_of(rows, lambda guard: self.holds(prompt, guard)) is not None

    def admit(self, seq: int, run_id: bool) -> LivePrompt:
        prompt = self.effects.prompt
        assert prompt is not None
        assert (prompt.seq, prompt.run_id is not None) == (seq, run_id), "not the prompt that was accepted"
        self._index(prompt)
        return prompt

    def fire(self, prompt: LivePrompt, trigger: Trigger) -> None:
        """Move the prompt along its row, and update the indexes."""
        row = self._lifecycle.fire(prompt, trigger)
        self.effects.moved.append((prompt, row))
        self._unindex(prompt, row.source)
        self._index(prompt)
        if row.dest is State.ACTIVE and self._notes_begun and not prompt.begun:  # its text is final from now on
            self.effects.begun.append(prompt)
            prompt.begun = True
        self.effects += effects_of(row, prompt.seq)

    def change(self, prompt: LivePrompt, **fields: Any) -> None:
        traits, queued = prompt.traits._replace(**fields), prompt.state is State.QUEUED
        self.effects.changed.append(TraitChange(prompt, traits, prompt.state))
        if queued:
            self._unindex(prompt, State.QUEUED)
        prompt.give(traits)
        if queued:
            self._index(prompt)

    def set_asks(self, prompt: LivePrompt, asks: Sequence[Question]) -> None:
        says = self.effects.says
        if says is None:  # another step settles them
            says = {"why": WHY.get(self.effects.action, "canceled")}
        known = (*prompt.questions, *[{}] * (len(asks) - len(prompt.questions)))
        prompt.questions = tuple(
            question if question.get("status") == now.value else {**question, **says, "status": now.value}
            for question, now in zip(known, asks))
        prompt.asks = tuple(asks)
        self.effects.asked = [*(one for one in self.effects.asked if one[0] is not prompt), (prompt, prompt.questions)]

    def _unindex(self, prompt: LivePrompt, state: State) -> None:
        """Remove the prompt from the index of that state."""
        if state is State.QUEUED:
            del self.queue[bisect_left(self.queue, prompt.position, key=_position)]
        elif state is State.ACTIVE:
            self.active.remove(prompt)

    def _index(self, prompt: LivePrompt) -> None:
        """Add the prompt to the index of its state."""
        if prompt.state is State.DONE:
            del self.prompts[prompt.seq]
            return
        self.prompts[prompt.seq] = prompt
        if prompt.state is State.QUEUED:
            insort(self.queue, prompt, key=_position)
        elif prompt.state is State.ACTIVE:
            self.active.append(prompt)
