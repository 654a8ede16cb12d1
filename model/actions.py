"""The actions: everything that can happen to a session, each written once, in a few lines.

An action speaks to a *port* and to nothing else. Two sessions offer one: the model's, made of immutable values, which
the explorer searches, and the runtime's, whose prompts are moved by `transitions`. So what runs is what was checked.

An action fires rows of the lifecycle and notes effects: what the world must be asked to do (`effects`). A row into
`active` always means "start its turn", a row into `done` always means "publish its terminal event": the port notes
those itself, by `effects_of`. A step is atomic: no other step and no crash comes in between, and nothing of it is seen
before all of it is journaled (R16b, R16c, R19a, R19b, R25a, R25b).

- A prompt gets its **seq** when it is accepted, from one counter for all sessions of the server.
- A session's **mark** is the seq up to which a cancel has reached: 0 at first, and it only rises. A prompt is *covered*
  if its seq is at or below the mark. One that waits then ends canceled. One that runs is asked to stop; it ends
  canceled, or as it was just about to end.
- **A crash** loses `memory` and the running turns. Prompts, their states and the mark are journaled, and stay.
- The server takes `enter`, `settle` and `recover` by itself, as soon as they are possible.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias
from typing import Protocol as Interface

from . import observer
from .effects import Acknowledge, Effect, End, Fold, Record, Start, Stop
from .lifecycle import Guard, Outcome, Row, State, Symbol, Trigger


class Subject(Interface):
    """A prompt as an action sees it."""

    @property
    def seq(self) -> int: ...
    @property
    def run_id(self) -> object: ...
    @property
    def state(self) -> State: ...


class Port(Interface):
    """A session in the middle of one step, as an action sees it. `Any` prompt of it is a `Subject`."""

    mark: int  # the seq up to which a cancel has reached
    down: bool  # crashed and not yet recovered; then it takes no action but `recover`
    effects: list[Effect]
    memory: Any  # what a protocol keeps for itself until the next crash: an immutable value

    @property
    def queue(self) -> Sequence[Any]:
        """The queued prompts, the next one first: by seq."""
    @property
    def active(self) -> Sequence[Any]:
        """The active prompts: at most one, which is a property to check and not an assumption to build on."""
    @property
    def accepted(self) -> Sequence[Any]:
        """The accepted prompts, by seq."""
    @property
    def live(self) -> Sequence[Any]:
        """The prompts that are not done, by seq."""

    def holds(self, prompt: Any, guard: Symbol) -> bool:
        """The answer to a question about the prompt."""
    def may(self, prompt: Any, trigger: Trigger) -> bool:
        """Whether a row lets the trigger happen to the prompt."""
    def admit(self, seq: int, run_id: bool) -> Any:
        """A new prompt, accepted."""
    def fire(self, prompt: Any, trigger: Trigger) -> None:
        """Moves the prompt along the row that applies, and notes the effects of that row."""


# --- Guards: the questions that rows ask, answered from the port --------------------------------------------------

Answer: TypeAlias = Callable[[Any, Any], bool]  # (Port, Subject)


def covered(port: Port, prompt: Subject) -> bool:
    return prompt.seq <= port.mark


def busy(port: Port, prompt: Subject) -> bool:
    return port.down or bool(port.active)


def first(port: Port, prompt: Subject) -> bool:
    return not (queue := port.queue) or prompt.seq <= queue[0].seq


def has_run_id(port: Port, prompt: Subject) -> bool:
    return bool(prompt.run_id)


GUARDS: Mapping[Symbol, Answer] = {
    Guard.COVERED: covered, Guard.BUSY: busy, Guard.FIRST: first, Guard.HAS_RUN_ID: has_run_id}


# --- The actions themselves ---------------------------------------------------------------------------------------

Variant: TypeAlias = Outcome | bool | str | None


class Argument(NamedTuple):
    """What an action is applied to: a prompt, a variant, the latest seq of the server; whichever it needs."""

    prompt: Any  # of the port, or None
    variant: Variant
    seq: int

    @property
    def subject(self) -> Any:
        assert self.prompt is not None, "an action on a prompt was applied without one"
        return self.prompt


def effects_of(row: Row, seq: int) -> Iterable[Effect]:
    """What a row means to the world, whichever action fires it."""
    if row.dest is State.ACTIVE:
        return (Start(seq),)
    if row.outcome is not None:
        return (End(seq, row.outcome, of=seq),)
    return ()


def accept(step: Port, arg: Argument) -> None:
    """The prompt is accepted with the next seq, and journaled before the caller is told."""
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    step.effects.append(Acknowledge(prompt.seq))


def enter(step: Port, arg: Argument) -> None:
    """Canceled on entry if the mark covers it, queued if the session is busy, active otherwise."""
    step.fire(arg.subject, Trigger.ENTER)


def fail(step: Port, arg: Argument) -> None:
    """The prompt could not start: done with an error, or canceled on entry if the mark covers it."""
    step.fire(arg.subject, Trigger.FAIL)


def settle(step: Port, arg: Argument) -> None:
    """The messages of a prompt canceled on entry, which has no turn to write them, are written, and it is done."""
    step.effects.append(Record(arg.subject.seq))
    step.fire(arg.subject, Trigger.SETTLE)


def take_in(step: Port, arg: Argument) -> None:
    """Queued prompts without a run id fold into the running turn."""
    for prompt in foldable(step):
        step.effects.append(Fold(prompt.seq, into=arg.subject.seq))
        step.fire(prompt, Trigger.FOLD)


def foldable(port: Port) -> list[Any]:
    return [p for p in port.queue if not p.run_id]


def requeue(step: Port, arg: Argument) -> None:
    """The turn must go on after a summary: back to the queue by its seq, and the first in the queue becomes active."""
    step.fire(arg.subject, Trigger.REQUEUE)
    hand_off(step)


FINISH: Mapping[Variant, Trigger] = {
    Outcome.END_TURN: Trigger.FINISH_END_TURN,
    Outcome.ERROR: Trigger.FINISH_ERROR,
    Outcome.CANCELED: Trigger.FINISH_CANCELED,
}


def finish(step: Port, arg: Argument) -> None:
    """The turn is over, and in the same step the first in the queue becomes active, however the turn ended."""
    step.fire(arg.subject, FINISH[arg.variant])
    hand_off(step)


def hand_off(step: Port) -> None:
    """Follows in every step that ends a turn. So a session that is not busy has no queue, and `enter` passes nobody."""
    if (queue := step.queue) and not step.holds(queue[0], Guard.BUSY):
        step.fire(queue[0], Trigger.START)


def cancel(step: Port, arg: Argument) -> None:
    """The active prompt is asked to stop, everything accepted so far is covered, and the queue is dropped."""
    stop_active(step)  # before the mark rises, and covers the active prompt
    step.mark = max(step.mark, arg.seq)
    clear_queue(step, arg)


def stop_active(step: Port) -> None:
    for prompt in step.active:
        if not step.holds(prompt, Guard.COVERED):
            step.effects.append(Stop(prompt.seq))


def close(step: Port, arg: Argument) -> None:
    """Every session is canceled, and nothing is accepted until the server is started again."""
    cancel(step, arg)


def clear_queue(step: Port, arg: Argument) -> None:
    """The queue is dropped; the mark and the active prompt stay as they are."""
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


def crash(step: Port, arg: Argument) -> None:
    """The server stops, and its turns with it."""
    step.down, step.memory = True, None


def recover(step: Port, arg: Argument) -> None:
    """After the restart: what was active ends with an error, what had not started goes on in order of seq."""
    for prompt in list(step.active):
        step.fire(prompt, Trigger.INTERRUPT)
    for prompt in list(step.accepted):  # the session is still down, and so busy: they queue, and the first is started
        step.fire(prompt, Trigger.ENTER)
    step.down = False
    hand_off(step)


# --- The table of actions -----------------------------------------------------------------------------------------

class Actor(Enum):
    """Who decides that an action happens."""

    CLIENT = "client"
    OPERATOR = "operator"
    SERVER = "server"
    TURN = "turn"
    FAULT = "fault"


class Reach(Enum):
    """The prompts that a call is meant for. Of a prompt: the strongest call that reached it before its end."""

    NOTHING = "nothing"
    CLEAR = "clear_queue"  # what is queued
    CANCEL = "cancel"  # everything that is not done

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class Action:
    """An atomic action: who takes it, on what, and what it does."""

    name: str
    actor: Actor
    apply: Callable[..., None]  # of the reference: (Port, Argument)
    guard: str
    rule: str  # of specs/protocol.md, the one that defines it
    subject: Callable[[Any, Any, Variant], bool] | None = None  # (Port, prompt, variant): whether it can be applied to
    # that prompt; None: it is applied to a session
    variants: tuple[Variant, ...] = (None,)
    allowed: Callable[[Any, Variant], bool] | None = None  # (Port, variant): whether a session takes it; None: always
    reaches: Reach = Reach.NOTHING
    whom: Callable[[Any, Any, Variant], Iterable[Any]] | None = None  # (session, prompt, variant): whom it reaches
    bound: str | None = None  # the field of `Bounds` that limits how often it happens
    everywhere: bool = False  # applied to all sessions in one step
    while_closing: bool = True  # whether a server that is closing still takes it
    while_down: bool = False  # taken by a session that has crashed, and by no other
    sets_closing: bool | None = None
    clauses: tuple[str, ...] = ()  # of specs/protocol.md, that it carries; its rows carry theirs

    @cached_property
    def system(self) -> bool:
        """Whether the system takes it by itself, without a caller, a fault or a turn that wants to go on."""
        return self.actor in (Actor.SERVER, Actor.TURN) and self.bound is None

    @property
    def effect(self) -> str:
        return " ".join((self.apply.__doc__ or "").split())  # it is a cell of tables: one line


def _by(trigger: Trigger) -> Callable[[Port, Any, Variant], bool]:
    return lambda port, prompt, _: port.may(prompt, trigger)


def can_take_in(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED) and bool(foldable(port))


ACTIONS: tuple[Action, ...] = (
    Action("accept", Actor.CLIENT, accept, "not closing; valid; run id new", "R1",
           variants=(False, True), bound="prompts", while_closing=False, clauses=("R1a", "R1b", "R1c", "R22a")),
    Action("enter", Actor.SERVER, enter, "p accepted", "R3", _by(Trigger.ENTER), clauses=("R3a", "R3b")),
    Action("fail", Actor.SERVER, fail, "p accepted", "R8", _by(Trigger.FAIL), clauses=("R3a",)),
    Action("settle", Actor.SERVER, settle, "p canceled on entry", "R7", _by(Trigger.SETTLE), clauses=("R7a",)),
    Action("step", Actor.TURN, take_in, "p active, not covered", "R9", can_take_in, clauses=("R9a", "R9c")),
    Action("requeue", Actor.TURN, requeue, "p active, not covered", "R10", _by(Trigger.REQUEUE), bound="requeues",
           clauses=("R10a", "R10b", "R10c", "R10d")),
    Action("finish", Actor.TURN, finish, "p active; canceled only if covered", "R11",
           lambda port, prompt, how: port.may(prompt, FINISH[how]), variants=tuple(FINISH),
           clauses=("R11a", "R24a", "R24b")),
    Action("cancel", Actor.CLIENT, cancel, "any", "R12", reaches=Reach.CANCEL, whom=observer.everyone,
           bound="cancels", clauses=("R2", "R12a", "R12b", "R12c")),
    Action("clear_queue", Actor.CLIENT, clear_queue, "any", "R13", reaches=Reach.CLEAR, whom=observer.waiting,
           bound="clears", clauses=("R13a", "R13b")),
    Action("close", Actor.OPERATOR, close, "not closing", "R15", reaches=Reach.CANCEL, whom=observer.everyone,
           bound="closes", everywhere=True, while_closing=False, sets_closing=True, clauses=("R15a", "R15b")),
    Action("crash", Actor.FAULT, crash, "any", "R16", bound="crashes", everywhere=True, clauses=("R16a",)),
    Action("recover", Actor.SERVER, recover, "after a crash", "R17", everywhere=True, while_down=True,
           sets_closing=False,
           clauses=("R17a", "R17b", "R17c", "R17d", "R17e", "R2", "R21")),
)
