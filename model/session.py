"""One session: the reference protocol as atomic actions on immutable values.

A session is a mark and its prompts; everything else is derived. The queue is the queued prompts by seq, the
active prompt is the one that is active, and it has been asked to stop if and only if the mark covers it: a prompt
becomes active only above the mark, so only a cancel that came later can have covered it.

Each action is a few lines on a `Step`: it fires rows of the lifecycle and notes what the world must be asked to do.
A row into `active` always means "start its turn", a row into `done` always means "publish its terminal event", so
`Step.fire` notes those itself. Order matters: effects are carried out in the order in which they were noted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias
from typing import Protocol as Interface

from .lifecycle import ROWS, Guard, IllegalTrigger, Outcome, Row, State, Table, Trigger, compile_rows, row_of

ACCEPTED, CANCELED_ON_ENTRY, QUEUED, ACTIVE, DONE = State  # names of their own: a member of an Enum is slow to look up


class Reach(Enum):
    """History: the strongest call that reached a prompt between its acceptance and its end."""

    NOTHING = "nothing"
    CLEAR = "clear_queue"
    CANCEL = "cancel"

    __hash__ = object.__hash__


class Prompt(NamedTuple):
    """One prompt. The last two fields are history, kept for the properties; no action reads them."""

    seq: int
    run_id: bool
    state: State = ACCEPTED
    outcome: Outcome | None = None
    reach: Reach = Reach.NOTHING
    ends: int = 0  # terminal events published; counting stops at 2, which is one too many already

    @property
    def label(self) -> str:
        return label(self.seq)


def label(seq: int) -> str:
    """A, B, C, … in order of acceptance."""
    return chr(ord("A") + seq - 1)


class AnySession:
    """What the session of any protocol can tell about its prompts: the reference's, and those of its history."""

    __slots__ = ()
    mark: int
    down: bool  # crashed and not yet recovered
    prompts: tuple[Prompt, ...]  # by seq

    @property
    def queue(self) -> list[Prompt]:
        return [p for p in self.prompts if p.state is QUEUED]

    @property
    def active(self) -> list[Prompt]:
        """The active prompts: at most one, which is a property to check and not an assumption to build on."""
        return [p for p in self.prompts if p.state is ACTIVE]

    @property
    def live(self) -> list[Prompt]:
        """The prompts that are not done."""
        return [p for p in self.prompts if p.state is not DONE]

    def covered(self, prompt: Prompt) -> bool:
        return prompt.seq <= self.mark

    def prompt(self, seq: int) -> Prompt:
        for p in self.prompts:
            if p.seq == seq:
                return p
        raise LookupError(f"the session has no prompt {label(seq)}")

    def with_prompts(self, prompts: Iterable[Prompt]) -> Self:
        """The same session with other prompts, which are put in order."""
        same: Self = self._replace(prompts=tuple(sorted(prompts, key=lambda p: p.seq)))  # type: ignore[attr-defined]
        return same


class _Fields(NamedTuple):
    mark: int = 0
    down: bool = False
    prompts: tuple[Prompt, ...] = ()


class Session(_Fields, AnySession):
    """The state of one session of the reference protocol."""

    __slots__ = ()

    def busy(self, prompt: Prompt) -> bool:
        return self.down or bool(self.active)

    def first(self, prompt: Prompt) -> bool:
        return all(prompt.seq <= p.seq for p in self.queue)

    def has_run_id(self, prompt: Prompt) -> bool:
        return prompt.run_id

    def holds(self, prompt: Prompt, guard: Guard) -> bool:
        """The session's answer to a question about `prompt`."""
        return ANSWERS[guard](self, prompt)

    def row(self, table: Table, prompt: Prompt, trigger: Trigger) -> Row | None:
        """The row along which `trigger` takes `prompt`, if it may."""
        rows = table.get((trigger, prompt.state))
        return row_of(rows, partial(self.holds, prompt)) if rows else None

    def holding(self, prompts: Iterable[Prompt]) -> "Session":
        """The same session with other prompts, which are in order."""
        return Session(self.mark, self.down, tuple(prompts))

    def retire(self) -> "tuple[Session, tuple[Prompt, ...]]":
        """The session without its finished prompts, and those. No action looks at a finished prompt."""
        ended = tuple(p for p in self.prompts if p.state is DONE)
        return (self.holding(self.live), ended) if ended else (self, ())


ANSWERS: Mapping[Guard, Callable[[Session, Prompt], bool]] = {guard: getattr(Session, guard.value) for guard in Guard}


# --- Effects: what an action asks the world to do ---------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the caller that the prompt is accepted, once that is journaled."""

    seq: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the prompt's turn, or go on with it after a summary."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the prompt's running turn to stop."""

    seq: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Write the prompt's user message, and hand its text to the running turn of another."""

    seq: int
    into: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write the prompt's user message, and an assistant message with finish reason `canceled`."""

    seq: int


@dataclass(frozen=True, slots=True)
class End:
    """Journal the prompt's terminal event, with its outcome, and publish it unless that is `folded`. `of` is the prompt
    whose text and error it carries."""

    seq: int
    outcome: Outcome
    of: int


@dataclass(frozen=True, slots=True)
class Report:
    """Publish an error notice under the prompt's run id, apart from its terminal event. `of`: whose error it is.

    The original has these; the reference says everything in the terminal event and never asks for one.
    """

    seq: int
    of: int


Effect: TypeAlias = Acknowledge | Start | Stop | Fold | Record | End | Report


# --- Actions -----------------------------------------------------------------------------------------------------

class Step:
    """One atomic step in the making: the session as far as it has moved, the rows fired, the effects noted, in order.
    Nobody sees it before it is whole: no other step and no crash comes in between (R16b, R16c, R19a, R19b, R25a, R25b).
    """

    def __init__(self, table: Table, session: Session) -> None:
        self.table, self.session = table, session
        self.rows: list[Row] = []
        self.effects: list[Effect] = []

    def fire(self, prompt: Prompt, trigger: Trigger) -> None:
        """Moves the prompt along the row that applies."""
        row = self.session.row(self.table, prompt, trigger)
        if row is None:
            raise IllegalTrigger(prompt.label, prompt.state, trigger,
                                 filter(partial(self.session.holds, prompt), Guard))
        self.put(prompt._replace(state=row.dest, outcome=row.outcome))
        self.rows.append(row)
        if row.dest is ACTIVE:
            self.effects.append(Start(prompt.seq))
        if row.outcome is not None:
            self.effects.append(End(prompt.seq, row.outcome, of=prompt.seq))

    def put(self, prompt: Prompt) -> None:
        """Replaces the prompt of that seq."""
        self.session = self.session.holding([prompt if p.seq == prompt.seq else p for p in self.session.prompts])


Variant: TypeAlias = Outcome | bool | str | None


class Argument(NamedTuple):
    """What an action is applied to: a prompt, a variant, the latest seq; whichever it needs."""

    prompt: Prompt | None
    variant: Variant
    seq: int

    @property
    def subject(self) -> Prompt:
        assert self.prompt is not None, "an action on a prompt was applied without one"
        return self.prompt


def accept(step: Step, arg: Argument) -> None:
    """The prompt is accepted with the next seq, and journaled before the caller is told."""
    prompt = Prompt(arg.seq + 1, run_id=arg.variant is True)
    step.session = step.session.holding((*step.session.prompts, prompt))
    step.effects.append(Acknowledge(prompt.seq))


def enter(step: Step, arg: Argument) -> None:
    """Canceled on entry if the mark covers it, queued if the session is busy, active otherwise."""
    step.fire(arg.subject, Trigger.ENTER)


def fail(step: Step, arg: Argument) -> None:
    """The prompt could not start: done with an error, or canceled on entry if the mark covers it."""
    step.fire(arg.subject, Trigger.FAIL)


def settle(step: Step, arg: Argument) -> None:
    """The record of a prompt canceled on entry is written, and it is done."""
    step.effects.append(Record(arg.subject.seq))
    step.fire(arg.subject, Trigger.SETTLE)


def take_in(step: Step, arg: Argument) -> None:
    """Queued prompts without a run id fold into the running turn."""
    for prompt in foldable(step.session):
        step.effects.append(Fold(prompt.seq, into=arg.subject.seq))
        step.fire(prompt, Trigger.FOLD)


def foldable(session: Session) -> list[Prompt]:
    return [p for p in session.queue if not p.run_id]


def requeue(step: Step, arg: Argument) -> None:
    """The turn must go on after a summary: back to the queue at its seq, and the first in the queue becomes active."""
    step.fire(arg.subject, Trigger.REQUEUE)
    hand_off(step)


FINISH: Mapping[Variant, Trigger] = {
    Outcome.END_TURN: Trigger.FINISH_END_TURN,
    Outcome.ERROR: Trigger.FINISH_ERROR,
    Outcome.CANCELED: Trigger.FINISH_CANCELED,
}


def finish(step: Step, arg: Argument) -> None:
    """The turn is over, and in the same step the first in the queue becomes active, however the turn ended."""
    step.fire(arg.subject, FINISH[arg.variant])
    hand_off(step)


def hand_off(step: Step) -> None:
    if queue := step.session.queue:
        step.fire(queue[0], Trigger.START)


def cancel(step: Step, arg: Argument) -> None:
    """The active prompt is asked to stop, everything accepted so far is covered, and the queue is dropped."""
    for prompt in step.session.active:
        if not step.session.covered(prompt):
            step.effects.append(Stop(prompt.seq))
    step.session = step.session._replace(mark=arg.seq)
    clear_queue(step, arg)


def close(step: Step, arg: Argument) -> None:
    """From now on nothing is accepted, and every session is canceled."""
    cancel(step, arg)


def clear_queue(step: Step, arg: Argument) -> None:
    """The queue is dropped; the mark and the active prompt stay as they are."""
    for prompt in step.session.queue:
        step.fire(prompt, Trigger.DROP)


def crash(step: Step, arg: Argument) -> None:
    """The server stops; what is journaled stays."""
    step.session = step.session._replace(down=True)


def recover(step: Step, arg: Argument) -> None:
    """After the restart: what was active ends with an error, what had not started goes on in order of seq."""
    for prompt in step.session.active:
        step.fire(prompt, Trigger.INTERRUPT)
    for prompt in step.session.prompts:
        if prompt.state is ACCEPTED:
            step.fire(prompt, Trigger.ENTER)
    step.session = step.session._replace(down=False)
    hand_off(step)


class Look(NamedTuple):
    """A prompt as an action sees it when it asks whether it may be applied."""

    table: Table
    session: Session
    prompt: Prompt

    def may(self, trigger: Trigger) -> bool:
        return self.session.row(self.table, self.prompt, trigger) is not None


class Actor(Enum):
    """Who decides that an action happens."""

    CLIENT = "client"
    OPERATOR = "operator"
    SERVER = "server"
    TURN = "turn"
    FAULT = "fault"


@dataclass(frozen=True, eq=False)
class Action:
    """An atomic action: who takes it, on what, and what it does."""

    name: str
    actor: Actor
    apply: Callable[..., None]  # of the reference: (Step, Argument)
    guard: str
    rule: str  # of specs/protocol.md, the one that defines it
    subject: Callable[[Look, Variant], bool] | None = None  # which prompts it can be applied to; None: a session
    variants: tuple[Variant, ...] = (None,)
    bound: str | None = None  # the field of `Bounds` that limits how often it happens
    everywhere: bool = False  # applied to all sessions in one step
    while_closing: bool = True  # whether a server that is closing still takes it
    sets_closing: bool | None = None
    clauses: tuple[str, ...] = ()  # of specs/protocol.md, that it carries; its rows carry theirs

    @property
    def system(self) -> bool:
        """Whether the system takes it by itself, without a caller, a fault or a turn that wants to go on."""
        return self.actor in (Actor.SERVER, Actor.TURN) and self.bound is None

    @property
    def effect(self) -> str:
        return (self.apply.__doc__ or "").strip()


def _by(trigger: Trigger) -> Callable[[Look, Variant], bool]:
    return lambda look, _: look.may(trigger)


def _can_take_in(look: Look, _: Variant) -> bool:
    return (look.prompt.state is ACTIVE and not look.session.covered(look.prompt)
            and bool(foldable(look.session)))


ACTIONS: tuple[Action, ...] = (
    Action("accept", Actor.CLIENT, accept, "not closing; valid; run id new", "R1",
           variants=(False, True), bound="prompts", while_closing=False, clauses=("R1a", "R1b", "R1c", "R22a")),
    Action("enter", Actor.SERVER, enter, "p accepted", "R3", _by(Trigger.ENTER), clauses=("R3a", "R3b")),
    Action("fail", Actor.SERVER, fail, "p accepted", "R8", _by(Trigger.FAIL), clauses=("R3a",)),
    Action("settle", Actor.SERVER, settle, "p canceled on entry", "R7", _by(Trigger.SETTLE), clauses=("R7a",)),
    Action("step", Actor.TURN, take_in, "p active, not covered", "R9", _can_take_in, clauses=("R9a", "R9c")),
    Action("requeue", Actor.TURN, requeue, "p active, not covered", "R10", _by(Trigger.REQUEUE), bound="requeues",
           clauses=("R10a", "R10b", "R10c", "R10d")),
    Action("finish", Actor.TURN, finish, "p active; canceled only if covered", "R11",
           lambda look, how: look.may(FINISH[how]), variants=tuple(FINISH), clauses=("R11a", "R24a", "R24b")),
    Action("cancel", Actor.CLIENT, cancel, "any", "R12", bound="cancels", clauses=("R2", "R12a", "R12b", "R12c")),
    Action("clear_queue", Actor.CLIENT, clear_queue, "any", "R13", bound="clears", clauses=("R13a", "R13b")),
    Action("close", Actor.OPERATOR, close, "not closing", "R15", bound="closes", everywhere=True,
           while_closing=False, sets_closing=True, clauses=("R15a", "R15b")),
    Action("crash", Actor.FAULT, crash, "any", "R16", bound="crashes", everywhere=True, clauses=("R16a",)),
    Action("recover", Actor.SERVER, recover, "after a crash", "R17", everywhere=True, sets_closing=False,
           clauses=("R17a", "R17b", "R17c", "R17d", "R17e", "R2", "R21")),
)

REACHES: Mapping[str, Reach] = {"cancel": Reach.CANCEL, "close": Reach.CANCEL, "clear_queue": Reach.CLEAR}


# --- Protocol: rows and actions put together --------------------------------------------------------------------

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


@dataclass(frozen=True)
class Protocol:
    """A protocol: the rows its prompts live by and the actions that fire them."""

    name: str
    rows: tuple[Row, ...] = ROWS
    actions: tuple[Action, ...] = ACTIONS
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", compile_rows(self.rows))

    @property
    def start(self) -> Session:
        return Session()

    def limited(self, actions: tuple[Action, ...]) -> "Protocol":
        return replace(self, actions=actions)

    def moves(self, session: Session, seq: int) -> Iterator[Move]:
        looks = [Look(self.table, session, p) for p in session.live]
        for action in self.actions:
            if session.down != (action.name == "recover"):
                continue
            for variant in action.variants:
                if action.subject is None:
                    yield self.apply(action, session, None, variant, seq)
                    continue
                for look in looks:
                    if action.subject(look, variant):
                        yield self.apply(action, session, look.prompt, variant, seq)

    def apply(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant, seq: int) -> Move:
        """Applies an action that is allowed, then lets the observer note what it saw."""
        step = Step(self.table, session)
        action.apply(step, Argument(prompt, variant, seq))
        after = witnessed(session, action, step)
        live, ended = after.retire()
        return Move(action, prompt and prompt.seq, variant, after, tuple(step.effects), tuple(step.rows), live, ended)


def witnessed(before: Session, action: Action, step: Step) -> Session:
    """The session with its prompts' history brought up to date: an observer writes it, the protocol never reads it."""
    reach = REACHES.get(action.name, Reach.NOTHING)
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
