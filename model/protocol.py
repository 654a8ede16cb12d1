"""A protocol as a value: rows, guards and actions put together. Model, explorer, diagrams and runtime take any."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from typing import Protocol as Interface

from .actions import ACTIONS, GUARDS, Action, Answer, Argument, Reach, Variant
from .effects import Effect, End
from .lifecycle import ROWS, Guard, Row, Table, compile_rows
from .session import AnySession, Prompt, Session, Step


class Move(NamedTuple):
    """One thing that can happen to a session, and what it leads to."""

    action: Action
    seq: int | None
    variant: Variant
    after: AnySession
    effects: tuple[Effect, ...]
    rows: tuple[Row, ...]
    live: AnySession  # `after` without its finished prompts
    ended: tuple[Prompt, ...]  # and those
    broken: tuple[str, ...] = ()  # ids of the properties it breaks, once it has been judged


class Behaviour(Interface):
    """What the explorer explores."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> tuple[Row, ...]: ...
    @property
    def actions(self) -> tuple[Action, ...]: ...
    @property
    def start(self) -> AnySession: ...

    def limited(self, actions: tuple[Action, ...]) -> "Behaviour":
        """The same behaviour with these of its actions only."""

    def moves(self, session: Any, seq: int) -> Iterable[Move]:
        """Everything that can happen to `session` next, when `seq` is the latest seq the server has given out."""


@dataclass(frozen=True, repr=False)
class Protocol:
    """A protocol: the rows its prompts live by, what their guards mean, and the actions that fire them."""

    name: str
    rows: tuple[Row, ...] = ROWS
    actions: tuple[Action, ...] = ACTIONS
    guards: Mapping[Guard, Answer] = field(default_factory=lambda: GUARDS, repr=False, hash=False)
    table: Table = field(init=False, repr=False, compare=False)
    _by_name: Mapping[str, Action] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", compile_rows(self.rows))
        object.__setattr__(self, "_by_name", {action.name: action for action in self.actions})

    def __repr__(self) -> str:
        return f"Protocol({self.name!r})"

    @property
    def start(self) -> Session:
        """A session in which nothing has happened yet."""
        return Session()

    def limited(self, actions: tuple[Action, ...]) -> "Protocol":
        """The same protocol with these of its actions only."""
        return replace(self, actions=actions)

    def changed(
        self, name: str, rows: Sequence[Row] | None = None, guards: Mapping[Guard, Answer] | None = None,
        **actions: Mapping[str, Any],
    ) -> "Protocol":
        """This protocol under another name, with other rows, other answers to these guards, and other fields in the
        actions of those names."""
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
        """Everything that can happen to `session` next, when `seq` is the latest seq the server has given out."""
        here = self.step(session)
        for action in self.actions:
            if session.down is not action.while_down:
                continue
            for variant in action.variants:
                if action.subject is None:
                    yield self.apply(action, session, None, variant, seq)
                    continue
                for prompt in session.live:
                    if action.subject(here, prompt, variant):
                        yield self.apply(action, session, prompt, variant, seq)

    def allows(self, action: Action, session: Session, prompt: Prompt, variant: Variant) -> bool:
        """Whether the action can be applied to the prompt."""
        return action.subject is not None and action.subject(self.step(session), prompt, variant)

    def step(self, session: Session) -> Step:
        """A step of the session that nothing has happened in yet."""
        return Step(self.table, session, self.guards)

    def apply(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant, seq: int) -> Move:
        """Applies an action that is allowed, then lets the observer note what it saw."""
        step = self.step(session)
        action.apply(step, Argument(prompt, variant, seq))
        after = witnessed(session, action, step)
        live, ended = after.retire()
        return Move(action, prompt and prompt.seq, variant, after, tuple(step.effects), tuple(step.rows), live, ended)


def witnessed(before: Session, action: Action, step: Step) -> Session:
    """The session with its prompts' history brought up to date: an observer writes it, the protocol never reads it."""
    reach = action.reaches
    events = [e.seq for e in step.effects if isinstance(e, End)]
    if reach is Reach.NOTHING and not events:
        return step.session
    reached = before.live if reach is Reach.CANCEL else before.queue if reach is Reach.CLEAR else []
    seqs = {p.seq for p in reached}
    prompts = []
    for p in step.session.prompts:
        if p.seq in seqs and p.reach is not Reach.CANCEL:
            p = p._replace(reach=reach)
        if p.seq in events:
            p = p._replace(ends=min(2, p.ends + events.count(p.seq)))
        prompts.append(p)
    return step.session.holding(prompts)


REFERENCE = Protocol("ref")
