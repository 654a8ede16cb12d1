"""The model's session: immutable values, and a port on which one step is carried out.

A session consists of a mark and its prompts; everything else is derived from them. The queue is the queued prompts in
seq order. The active prompt is the prompt in state `active`. It has been asked to stop if and only if the mark covers
it: a prompt becomes active only above the mark, so only a later cancel can have covered it.
"""

from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from .actions import GUARDS, Answer, Reach, effects_of
from .effects import Effect
from .family import Feature, place
from .lifecycle import IllegalTrigger, Outcome, Row, State, Symbol, Table, Trigger, row_of
from .observer import Wish
from .questions import Question

# Module constants, because looking up an Enum member is slow.
ACCEPTED, CANCELED_ON_ENTRY, QUEUED = State.ACCEPTED, State.CANCELED_ON_ENTRY, State.QUEUED
ACTIVE, DONE = State.ACTIVE, State.DONE


class Traits(NamedTuple):
    """The attributes of a prompt that only calls of the family change."""

    revoked: bool = False
    front: int = 0
    version: int = 0
    begun: bool = False
    urgent: bool = False


DEFAULT_TRAITS = Traits()


class Prompt(NamedTuple):
    """A prompt. `reach`, `ends` and `wish` are history for the properties; no action reads them."""

    seq: int
    run_id: bool
    state: State = ACCEPTED
    outcome: Outcome | None = None
    reach: Reach = Reach.NOTHING
    ends: int = 0  # terminal events published; the count stops at 2, which already violates a property
    traits: Traits | None = None  # None: all defaults, as for every prompt of the reference
    wish: Wish | None = None
    asks: tuple[Question, ...] = ()  # the questions of its turn; always empty without the feature `ask`

    @property
    def label(self) -> str:
        return label(self.seq)

    @property
    def revoked(self) -> bool:
        return self.traits is not None and self.traits.revoked

    @property
    def front(self) -> int:
        return 0 if self.traits is None else self.traits.front

    @property
    def version(self) -> int:
        return 0 if self.traits is None else self.traits.version

    @property
    def begun(self) -> bool:
        return self.traits is not None and self.traits.begun

    @property
    def urgent(self) -> bool:
        return self.traits is not None and self.traits.urgent

    def changed(self, **fields: Any) -> "Prompt":
        """A copy of the prompt with these traits replaced."""
        traits = (self.traits or DEFAULT_TRAITS)._replace(**fields)
        return self._replace(traits=None if traits == DEFAULT_TRAITS else traits)


def label(seq: int) -> str:
    """A, B, C, … in order of acceptance."""
    return chr(ord("A") + seq - 1)


class NoPrompt(LookupError):
    """The session has no such prompt, or the prompt has finished."""


class AnySession:
    """The part that sessions of all protocols share: those of the reference, and of the original's revisions."""

    __slots__ = ()
    mark: int
    down: bool  # crashed and not yet recovered
    prompts: tuple[Prompt, ...]  # by seq
    held: bool = False
    wished_hold: bool = False  # history: a caller has held the session, and no caller has resumed it

    @property
    def queue(self) -> list[Prompt]:
        """The queued prompts, in queue order."""
        queue = [p for p in self.prompts if p.state is QUEUED]
        if any(p.traits is not None for p in queue):
            queue.sort(key=place)
        return queue

    @property
    def active(self) -> list[Prompt]:
        """The active prompts. There is at most one, but that is a property to check, not an assumption to rely on."""
        return [p for p in self.prompts if p.state is ACTIVE]

    @property
    def live(self) -> list[Prompt]:
        """The unfinished prompts."""
        return [p for p in self.prompts if p.state is not DONE]

    @property
    def owed(self) -> list[Prompt]:
        """The prompts that must finish without further calls: all except those that a hold keeps in the queue."""
        if not self.wished_hold:
            return list(self.prompts)
        return [p for p in self.prompts if p.state is not QUEUED]

    def covered(self, prompt: Prompt) -> bool:
        return prompt.seq <= self.mark or prompt.revoked

    def prompt(self, seq: int) -> Prompt:
        for p in self.prompts:
            if p.seq == seq:
                return p
        raise NoPrompt(f"the session has no prompt {label(seq)}")

    def with_prompts(self, prompts: Iterable[Prompt]) -> Self:
        """A copy of the session with these prompts, sorted by seq."""
        same: Self = self._replace(prompts=tuple(sorted(prompts, key=lambda p: p.seq)))  # type: ignore[attr-defined]
        return same


class _Fields(NamedTuple):
    mark: int = 0
    down: bool = False
    prompts: tuple[Prompt, ...] = ()
    memory: Hashable = None  # a variant's own state; the reference has none
    held: bool = False
    wished_hold: bool = False


class Session(_Fields, AnySession):
    """The state of one session of the reference protocol."""

    __slots__ = ()

    def with_sorted_prompts(self, prompts: Iterable[Prompt]) -> "Session":
        """A copy of the session with these prompts, which must already be sorted by seq."""
        return Session(self.mark, self.down, tuple(prompts), self.memory, self.held, self.wished_hold)

    def retire(self) -> "tuple[Session, tuple[Prompt, ...]]":
        """Split off the finished prompts: the session without them, and the prompts themselves. No action reads a
        finished prompt, so its traits, wishes and questions are dropped."""
        ended = tuple([p if p.traits is None and p.wish is None and not p.asks
                       else p._replace(traits=None, wish=None, asks=()) for p in self.prompts if p.state is DONE])
        return (self.with_sorted_prompts(self.live), ended) if ended else (self, ())


class Step:
    """A port on which one atomic step is carried out: the session so far, the rows fired, and the effects."""

    def __init__(
        self, table: Table, session: Session, guards: Mapping[Symbol, Answer] = GUARDS,
        features: frozenset[Feature] = frozenset(),
    ) -> None:
        self.table, self.session, self.guards, self.features = table, session, guards, features
        self.rows: list[Row] = []
        self.effects: list[Effect] = []

    @property
    def mark(self) -> int:
        return self.session.mark

    @mark.setter
    def mark(self, mark: int) -> None:
        self.session = self.session._replace(mark=mark)

    @property
    def down(self) -> bool:
        return self.session.down

    @down.setter
    def down(self, down: bool) -> None:
        self.session = self.session._replace(down=down)

    @property
    def held(self) -> bool:
        return self.session.held

    @held.setter
    def held(self, held: bool) -> None:
        self.session = self.session._replace(held=held)

    @property
    def memory(self) -> Any:
        return self.session.memory

    @memory.setter
    def memory(self, memory: Hashable) -> None:
        self.session = self.session._replace(memory=memory)

    @property
    def queue(self) -> list[Prompt]:
        return self.session.queue

    @property
    def active(self) -> list[Prompt]:
        return self.session.active

    @property
    def live(self) -> list[Prompt]:
        return self.session.live

    @property
    def accepted(self) -> list[Prompt]:
        return [p for p in self.session.prompts if p.state is ACCEPTED]

    def holds(self, prompt: Prompt, guard: Symbol) -> bool:
        return self.guards[guard](self, prompt)

    def row(self, prompt: Prompt, trigger: Trigger) -> Row | None:
        """The row that `trigger` would apply to `prompt`, or None if no row allows it."""
        rows = self.table.get((trigger, prompt.state))
        return row_of(rows, partial(self.holds, prompt)) if rows else None

    def may(self, prompt: Prompt, trigger: Trigger) -> bool:
        return self.row(prompt, trigger) is not None

    def admit(self, seq: int, run_id: bool) -> Prompt:
        prompt = Prompt(seq, run_id)
        self.session = self.session.with_sorted_prompts((*self.session.prompts, prompt))
        return prompt

    def fire(self, prompt: Prompt, trigger: Trigger) -> None:
        if self.features:  # the step may have changed the prompt since
            prompt = self.session.prompt(prompt.seq)
        row = self.row(prompt, trigger)
        if row is None and not isinstance(trigger, Trigger):
            raise TypeError(f"fire expects a Trigger, not {trigger!r}; use one of {', '.join(map(str, Trigger))}")
        if row is None:
            raise IllegalTrigger(prompt.label, prompt.state, trigger, filter(partial(self.holds, prompt), self.guards))
        moved = prompt._replace(state=row.dest, outcome=row.outcome)
        if row.dest is ACTIVE and Feature.REPLACE in self.features:  # from now on its text cannot be replaced
            moved = moved.changed(begun=True)
        self.put(moved)
        self.rows.append(row)
        self.effects += effects_of(row, prompt.seq)

    def change(self, prompt: Prompt, **fields: Any) -> None:
        self.put(self.session.prompt(prompt.seq).changed(**fields))

    def set_asks(self, prompt: Prompt, asks: tuple[Question, ...]) -> None:
        self.put(self.session.prompt(prompt.seq)._replace(asks=asks))

    def put(self, prompt: Prompt) -> None:
        """Replace the prompt that has the same seq."""
        prompts = [prompt if p.seq == prompt.seq else p for p in self.session.prompts]
        self.session = self.session.with_sorted_prompts(prompts)
