"""A protocol as a value: rows, guards and actions. The explorer, the diagrams and the runtime accept any protocol."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple
from typing import Protocol as Interface

from .actions import GUARDS, Action, Answer, Argument, Reach, Variant
from .effects import Effect, End
from .family import FAMILY_GUARDS, Feature, actions_of, observe, rows_of
from .lifecycle import ROWS, Row, Symbol, Table, compile_rows
from .session import AnySession, Prompt, Session, Step

BY_CANCEL = Reach.CANCEL  # a module constant, because looking up an Enum member is slow


class Move(NamedTuple):
    """One possible step of a session, and its result."""

    action: Action
    seq: int | None
    variant: Variant
    after: AnySession
    effects: tuple[Effect, ...]
    rows: tuple[Row, ...]
    live: AnySession  # `after` without its finished prompts
    ended: tuple[Prompt, ...]  # the finished prompts of `after`
    broken: tuple[str, ...] = ()  # ids of the properties it violates, once it has been checked


class Behaviour(Interface):
    """A state machine that the explorer can explore: the reference, a variant, or a revision of the original."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> tuple[Row, ...]: ...
    @property
    def actions(self) -> tuple[Action, ...]: ...
    @property
    def start(self) -> AnySession: ...

    def limited(self, actions: tuple[Action, ...]) -> "Behaviour":
        """The same behaviour restricted to these actions."""

    def moves(self, session: Any, seq: int) -> Iterable[Move]:
        """Every possible next step of `session`. `seq` is the latest seq that the server has assigned."""


_compile_once = cache(compile_rows)  # a restricted protocol has the same rows


@dataclass(frozen=True, repr=False)
class Protocol:
    """A protocol: the transition table of its prompts, the guards, and the actions that fire the transitions."""

    name: str
    rows: tuple[Row, ...] = ROWS
    actions: tuple[Action, ...] = ()  # if empty, the actions of its features
    guards: Mapping[Symbol, Answer] = field(default_factory=lambda: GUARDS, repr=False, hash=False)
    features: frozenset[Feature] = frozenset()
    table: Table = field(init=False, repr=False, compare=False)
    _by_name: Mapping[str, Action] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.features and self.rows is ROWS:
            object.__setattr__(self, "rows", rows_of(self.features))
        if self.features and self.guards is GUARDS:
            object.__setattr__(self, "guards", FAMILY_GUARDS)
        object.__setattr__(self, "actions", self.actions or actions_of(self.features))
        object.__setattr__(self, "table", _compile_once(self.rows))
        object.__setattr__(self, "_by_name", {action.name: action for action in self.actions})

    def __repr__(self) -> str:
        return f"Protocol({self.name!r})"

    @property
    def start(self) -> Session:
        """An empty session."""
        return Session()

    def limited(self, actions: tuple[Action, ...]) -> "Protocol":
        """The same protocol restricted to these actions."""
        return replace(self, actions=actions)

    def changed(
        self, name: str, rows: Sequence[Row] | None = None, guards: Mapping[Symbol, Answer] | None = None,
        **actions: Mapping[str, Any],
    ) -> "Protocol":
        """A copy with a new name. `rows` replaces the table, `guards` overrides guards, and each keyword argument
        overrides fields of the action of that name."""
        for name_of_action in actions:
            self.action(name_of_action)
        return replace(self, name=name, rows=self.rows if rows is None else tuple(rows),
                       guards={**self.guards, **(guards or {})},
                       actions=tuple(replace(a, **actions.get(a.name, {})) for a in self.actions))

    def action(self, name: str) -> Action:
        """The action of this name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise LookupError(f"protocol {self.name} has no action {name}; it has {', '.join(self._by_name)}") from None

    def moves(self, session: Session, seq: int) -> Iterator[Move]:
        """Every possible next step of `session`. `seq` is the latest seq that the server has assigned."""
        here = self.step(session)
        for action in self.actions:
            if session.down is not action.while_down:
                continue
            for variant in action.variants:
                if action.subject is None:
                    if action.allowed is None or action.allowed(here, variant):
                        yield self.apply(action, session, None, variant, seq)
                    continue
                for prompt in session.live:
                    if action.subject(here, prompt, variant):
                        yield self.apply(action, session, prompt, variant, seq)

    def allows(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant) -> bool:
        """Whether the action is enabled for the prompt or, without one, for the session."""
        step = self.step(session)
        if action.subject is None:
            return prompt is None and (action.allowed is None or action.allowed(step, variant))
        return prompt is not None and action.subject(step, prompt, variant)

    def step(self, session: Session) -> Step:
        """A new step on the session."""
        return Step(self.table, session, self.guards, self.features)

    def apply(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant, seq: int) -> Move:
        """Apply an enabled action, and record its history for the properties."""
        step = self.step(session)
        action.apply(step, Argument(prompt, variant, seq))
        after = with_history(session, action, step, prompt, variant)
        live, ended = after.retire()
        return Move(action, prompt and prompt.seq, variant, after, tuple(step.effects), tuple(step.rows), live, ended)


def with_history(
    before: Session, action: Action, step: Step, prompt: Prompt | None = None, variant: Variant = None,
) -> Session:
    """The session after the step, with its history updated. Only properties read the history; no action does."""
    after = step.session
    events = [e.seq for e in step.effects if isinstance(e, End)]
    reached = [p.seq for p in action.targets(before, prompt, variant)] if action.targets else ()
    if reached or events:
        prompts = []
        for p in after.prompts:
            if p.seq in reached and p.reach is not BY_CANCEL:
                p = p._replace(reach=action.reaches)
            if p.seq in events:
                p = p._replace(ends=min(2, p.ends + events.count(p.seq)))
            prompts.append(p)
        after = after.with_sorted_prompts(prompts)
    return observe(step.features, after, action.name, prompt, variant, step.effects) if step.features else after


REFERENCE = Protocol("ref")
FAMILY = Protocol("family", features=frozenset(Feature))
