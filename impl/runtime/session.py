"""One session at run time: prompts as objects, moved only by the machine that is built from the protocol's rows.

No I/O and no tasks. `take` applies an action of the protocol, the same function that the explorer searches, as one
atomic step under the session's lock. It returns the effects that somebody must carry out, in order, after the lock has
been let go; `impl` code never holds it across I/O. A prompt that is done is forgotten: what must be remembered of it is
in the journal.

The session is the port that actions speak to, with the queue and the active prompts kept at hand. A test replays every
edge of the model's reachable graph here and compares state and effects.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from cancelmark.model.actions import Argument, Variant, effects_of
from cancelmark.model.effects import Effect
from cancelmark.model.family import RUN_ID, Feature
from cancelmark.model.lifecycle import INITIAL, Guard, IllegalTrigger, Outcome, Row, State, Symbol, Trigger, row_of
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.session import PLAIN, Traits

from ..store import make_digest
from .machine import lifecycle_of

_seq, _place = attrgetter("seq"), attrgetter("place")


class Refused(Exception):
    """A session does not take this call now, as its protocol says."""


class Change(NamedTuple):
    """What a step has made of a prompt."""

    prompt: "Prompt"
    traits: Traits
    state: State  # that it has then


class Effects(list[Effect]):
    """One step that was taken: what it asks the world to do, in order, and what the journal and a trace tell of it."""

    __slots__ = ("action", "after", "begun", "changed", "held", "mark", "moved", "prompt", "text", "variant", "was")

    def __init__(self, action: str, prompt: "Prompt | None" = None, variant: Variant = None) -> None:
        self.action, self.prompt, self.variant = action, prompt, variant  # as in `model.actions`
        self.moved: list[tuple[Prompt, Row]] = []  # the rows along which it moved prompts
        self.changed: list[Change] = []  # the prompts to which it has given other traits
        self.begun: list[Prompt] = []  # prompts that have begun in it
        self.text = prompt.text if prompt else ""  # of its prompt
        self.was: str | None = None  # of a replace: the digest of the text before
        self.mark = 0  # the session's, after it
        self.held = False
        self.after = prompt.state if prompt else None  # the state of its prompt


BEFORE = Effects("")  # of a session in which no step was taken yet; nobody adds to it


class Counter:
    """The server's sequence numbers: one counter for all sessions. Safe to use from several threads (R1a)."""

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self.latest += 1
            return self.latest

    def raise_to(self, seq: int) -> None:
        """The seq was given out, by somebody else perhaps."""
        with self._lock:
            self.latest = max(self.latest, seq)


class Prompt:
    """A prompt that is not done. Only the machine changes its state."""

    __slots__ = ("attachments", "begun", "front", "outcome", "place", "revoked", "run_id", "seq", "session", "state",
                 "text", "urgent", "version")

    def __init__(
        self, session: "Session", seq: int, text: str = "", run_id: str | None = None, state: State = INITIAL,
        traits: Traits = PLAIN, attachments: Sequence[Any] = (),
    ) -> None:
        self.session, self.seq, self.text, self.run_id = session, seq, text, run_id
        self.attachments = attachments  # as they are stored
        self.state = state
        self.give(traits)
        self.outcome: Outcome | None = None

    def give(self, traits: Traits) -> None:
        """It has these traits from now on, and the place that they give it."""
        self.revoked, self.front, self.version, self.begun, self.urgent = traits
        self.place = (-self.front, self.seq)

    @property
    def traits(self) -> Traits:
        """What calls have made of it."""
        return Traits(self.revoked, self.front, self.version, self.begun, self.urgent)

    @property
    def covered(self) -> bool:
        """Whether a cancel has reached it."""
        return self.session.holds(self, Guard.COVERED)

    def __repr__(self) -> str:
        return f"{self.seq} of session {self.session.id}" + (f" (run id {self.run_id})" if self.run_id else "")


class Restored(NamedTuple):
    """A prompt that is not done, as the journal has it."""

    seq: int
    text: str
    run_id: str | None
    state: State
    traits: Traits = PLAIN
    attachments: Sequence[Any] = ()


class Session:
    """The prompts of one session that are not done, its mark, its queue and its active prompt (R20)."""

    def __init__(self, id: str, counter: Counter, mark: int = 0, *, protocol: Protocol = REFERENCE) -> None:
        self.id, self.counter, self.mark, self.protocol = id, counter, mark, protocol
        self.down = False
        self.torn = False  # a step has failed in the middle
        self.held = False
        self.memory: Any = None
        self.prompts: dict[int, Prompt] = {}  # by seq
        self.queue: list[Prompt] = []  # by place
        self.active: list[Prompt] = []  # one at most, if the protocol is sound
        self.effects = BEFORE  # of the step that is being taken
        self._lifecycle = lifecycle_of(protocol)
        self._notes_begun = Feature.REPLACE in protocol.features
        self._lock = threading.Lock()

    @classmethod
    def restored(
        cls, id: str, counter: Counter, mark: int, prompts: Iterable[Restored], *, held: bool = False,
        protocol: Protocol = REFERENCE,
    ) -> "Session":
        """The session as its journal has it after a crash, with every prompt that was not done. Nothing but `recover`
        may follow."""
        session = cls(id, counter, mark, protocol=protocol)
        session.down = True
        session.reload(mark, prompts, held)
        return session

    def reload(self, mark: int, prompts: Iterable[Restored], held: bool = False) -> None:
        """The session becomes what the journal has of it, whatever steps were taken meanwhile. Its prompts are new
        objects."""
        with self._lock:
            self.mark, self.held, self.torn = mark, held, False
            for known in (self.prompts, self.queue, self.active):
                known.clear()
            for prompt in sorted(prompts, key=lambda p: p[0]):
                self._index(Prompt(self, *prompt))

    def accept(
        self, text: str = "", run_id: str | None = None, seq: int | None = None, mode: Feature | None = None,
        attachments: Sequence[Any] = (),
    ) -> tuple[Prompt, Effects]:
        """The prompt is accepted with the next seq, or with `seq`. With mode `REJECT` a session that is not idle raises
        `Refused`."""
        with self._lock:
            prompt = Prompt(self, self.counter.next() if seq is None else seq, text, run_id, attachments=attachments)
            variant: Variant = run_id is not None
            if mode is not None:
                variant = mode.value + (RUN_ID if variant else "")
            return prompt, self._take("accept", prompt, variant, prompt.seq - 1)

    def renumber(self, numbers: Iterable[tuple[Prompt, int]]) -> None:
        """The prompts, which nobody has seen yet, have these seqs from now on. They may be done by now. One may get a
        seq that another had before, so that all are taken out first."""
        with self._lock:
            numbers = list(numbers)
            live = [prompt for prompt, _ in numbers if self.prompts.pop(prompt.seq, None)]
            for prompt, seq in numbers:
                prompt.seq = seq
                prompt.give(prompt.traits)
            self.prompts.update((prompt.seq, prompt) for prompt in live)

    def take(self, action: str, prompt: Prompt | None = None, variant: Variant = None, latest: int | None = None,
             ) -> Effects:
        """Takes one step: an action of the protocol on the session, or on one of its prompts. What no row allows raises
        `IllegalTrigger` and changes nothing (R2, R3a, R3b, R4, R5a, R6a, R7a, R8a, R8b, R9a, R9b, R9c, R10a, R10b,
        R10c, R10d, R11a, R11b, R12a, R12b, R12c, R12d, R12e, R13a, R13b, R17a, R17b, R17c, R17d, R19a, R19c, R32c,
        R35c). If the action itself raises, the session is torn, and takes nothing more until it is reloaded. A cancel
        reaches what had been accepted by `latest`."""
        with self._lock:
            return self._take(action, prompt, variant, self.counter.latest if latest is None else latest)

    def find(self, key: int | str) -> Prompt | None:
        """The prompt with that seq or run id, if it is not done."""
        if isinstance(key, int):
            return self.prompts.get(key)
        return next((prompt for prompt in self.prompts.values() if prompt.run_id == key), None)

    def is_idle(self) -> bool:
        """Whether every prompt is done and nobody holds the session (R35a)."""
        return not (self.prompts or self.held)

    def replace(self, prompt: Prompt, text: str) -> Effects:
        """The prompt has another text from now on, if it takes one (R33a)."""
        with self._lock:
            effects = self._take("replace", prompt, None, self.counter.latest)
            effects.text, effects.was = text, make_digest(prompt.text, prompt.attachments)
            prompt.text = text
            return effects

    def in_front(self) -> Prompt | None:
        """Whom a stop reaches: the active prompt or, in a session that is not held, the first that is still to
        enter (R31a)."""
        return next(iter(self.active or ([] if self.held else sorted(self.accepted, key=_place))), None)

    def can(self, action: str, prompt: Prompt, variant: Variant = None) -> bool:
        """Whether the action can be taken on the prompt now."""
        subject = self.protocol.action(action).subject
        return not self.down and subject is not None and subject(self, prompt, variant)

    def _take(self, name: str, prompt: Prompt | None, variant: Variant, seq: int) -> Effects:
        action = self.protocol.action(name)
        if self.torn:
            raise RuntimeError(f"session {self.id} has failed in the middle of {self.effects.action}: reload it first")
        if self.down is not action.while_down:
            raise RuntimeError(f"session {self.id} is {'down: recover it first' if self.down else 'not down'}")
        if action.subject is not None:
            assert prompt is not None, f"{name} is an action on a prompt"
            if not action.subject(self, prompt, variant):
                how = f" ({variant.value})" if isinstance(variant, Outcome) else ""
                raise IllegalTrigger(prompt, prompt.state, name + how)
        elif action.allowed is not None and not action.allowed(self, variant):
            raise Refused(f"session {self.id} does not {name} ({variant}): it is held, or not every prompt is done")
        effects = self.effects = Effects(name, prompt, variant)
        self.torn = True
        action.apply(self, Argument(prompt, variant, seq))
        self.torn = False
        effects.mark, effects.held = self.mark, self.held
        if prompt:
            effects.after = prompt.state
        return effects

    # --- the port: what the actions of the model speak to

    @property
    def accepted(self) -> list[Prompt]:
        return [p for p in self.live if p.state is State.ACCEPTED]

    @property
    def live(self) -> list[Prompt]:
        return sorted(self.prompts.values(), key=_seq)

    def holds(self, prompt: Prompt, guard: Symbol) -> bool:
        return self.protocol.guards[guard](self, prompt)

    def may(self, prompt: Prompt, trigger: Trigger) -> bool:
        rows = self.protocol.table.get((trigger, prompt.state), ())
        return row_of(rows, lambda guard: self.holds(prompt, guard)) is not None

    def admit(self, seq: int, run_id: bool) -> Prompt:
        prompt = self.effects.prompt
        assert prompt is not None
        assert (prompt.seq, prompt.run_id is not None) == (seq, run_id), "another prompt than the one that was accepted"
        self._index(prompt)
        return prompt

    def fire(self, prompt: Prompt, trigger: Trigger) -> None:
        """Moves the prompt along its row, and keeps queue, active and prompts in step."""
        row = self._lifecycle.fire(prompt, trigger)
        self.effects.moved.append((prompt, row))
        self._unindex(prompt, row.source)
        self._index(prompt)
        if row.dest is State.ACTIVE and self._notes_begun and not prompt.begun:  # its text is not replaced any more
            self.effects.begun.append(prompt)
            prompt.begun = True
        self.effects += effects_of(row, prompt.seq)

    def change(self, prompt: Prompt, **fields: Any) -> None:
        traits, queued = prompt.traits._replace(**fields), prompt.state is State.QUEUED
        self.effects.changed.append(Change(prompt, traits, prompt.state))
        if queued:
            self._unindex(prompt, State.QUEUED)
        prompt.give(traits)
        if queued:
            self._index(prompt)

    def _unindex(self, prompt: Prompt, state: State) -> None:
        """Takes the prompt from where that state has put it."""
        if state is State.QUEUED:
            del self.queue[bisect_left(self.queue, prompt.place, key=_place)]
        elif state is State.ACTIVE:
            self.active.remove(prompt)

    def _index(self, prompt: Prompt) -> None:
        """Puts the prompt where its state belongs (R5b, R6b)."""
        if prompt.state is State.DONE:
            del self.prompts[prompt.seq]
            return
        self.prompts[prompt.seq] = prompt
        if prompt.state is State.QUEUED:
            insort(self.queue, prompt, key=_place)
        elif prompt.state is State.ACTIVE:
            self.active.append(prompt)
