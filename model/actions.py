"""The actions: everything that can happen to a session, each as a short function.

An action reads and changes a session only through a *port*. Two kinds of session implement the port: the model's, made
of immutable values, which the explorer model-checks, and the runtime's, whose prompts are `transitions` state machines.
The code that runs is therefore the code that was checked.

An action fires rows of the lifecycle and appends *effects*: requests to the outside world (`effects`). Every row into
`active` implies "start the turn", and every row into `done` implies "publish the terminal event"; the port appends
those two itself (`effects_of`). One application of an action is a *step*. A step is atomic: no other step and no crash
interleaves with it, and none of its results is visible before the whole step is journaled (R16b, R16c, R19a, R19b,
R25a, R25b).

- **turn**: the language model's work on one prompt, from `start` to its outcome, the next requeue or a crash.
- **seq**: the number that a prompt gets when it is accepted, from one counter shared by all sessions of the server.
- **mark**: per session, the latest seq of the server at the session's last cancel; 0 before the first. It only rises.
  A prompt is *covered* if its seq is at or below the mark. A covered prompt that is not active ends canceled: in the
  queue at once, otherwise when it enters. A covered active prompt is asked to stop; it ends canceled, or with whatever
  outcome it was about to produce.
- **crash**: loses `memory` and the running turns. Prompts, their states and the mark are journaled and survive.
- The server performs `enter` (or `fail`, if the prompt cannot start), `settle` and `recover` on its own, sooner or
  later. Other calls can come first.
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
    """An action's view of a prompt."""

    @property
    def seq(self) -> int: ...
    @property
    def run_id(self) -> object: ...
    @property
    def state(self) -> State: ...


class Port(Interface):
    """An action's view of a session during one step. Its prompts, typed `Any`, are `Subject`s."""

    mark: int  # the latest seq at the last cancel
    down: bool  # crashed and not yet recovered; the only action that a session then allows is `recover`
    effects: list[Effect]
    memory: Any  # an immutable value for the protocol's own use, lost in a crash

    @property
    def queue(self) -> Sequence[Any]:
        """The queued prompts in seq order, the next to start first."""
    @property
    def active(self) -> Sequence[Any]:
        """The active prompts. There is at most one, but that is a property to check, not an assumption to rely on."""
    @property
    def accepted(self) -> Sequence[Any]:
        """The prompts in state `accepted`, in seq order."""
    @property
    def live(self) -> Sequence[Any]:
        """The unfinished prompts, in seq order."""

    def holds(self, prompt: Any, guard: Symbol) -> bool:
        """Whether the guard is true of the prompt."""
    def may(self, prompt: Any, trigger: Trigger) -> bool:
        """Whether a row allows the trigger for the prompt."""
    def admit(self, seq: int, run_id: bool) -> Any:
        """Add a new prompt in state `accepted`, and return it."""
    def fire(self, prompt: Any, trigger: Trigger) -> None:
        """Apply the matching row to the prompt, and append that row's effects."""


# --- Guards: the predicates that rows name, evaluated on the port -------------------------------------------------

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
    """The arguments of an action. Each action uses those it needs."""

    prompt: Any  # one of the port's prompts; None if the action applies to the session
    variant: Variant
    seq: int  # the latest seq that the server has assigned

    @property
    def subject(self) -> Any:
        assert self.prompt is not None, "an action on a prompt was applied without one"
        return self.prompt


def effects_of(row: Row, seq: int) -> Iterable[Effect]:
    """The effects that a row implies, whichever action fires it."""
    if row.dest is State.ACTIVE:
        return (Start(seq),)
    if row.outcome is not None:
        return (End(seq, row.outcome, of=seq),)
    return ()


def accept(step: Port, arg: Argument) -> None:
    """Accepts the prompt with the next seq, and acknowledges it once it is journaled."""
    prompt = step.admit(arg.seq + 1, arg.variant is True)
    step.effects.append(Acknowledge(prompt.seq))


def enter(step: Port, arg: Argument) -> None:
    """Cancels the prompt on entry if the mark covers it, queues it if the session is busy, and starts it otherwise."""
    step.fire(arg.subject, Trigger.ENTER)


def fail(step: Port, arg: Argument) -> None:
    """Ends a prompt that cannot start: with an error, or canceled on entry if the mark covers it."""
    step.fire(arg.subject, Trigger.FAIL)


def settle(step: Port, arg: Argument) -> None:
    """Writes the messages of a prompt canceled on entry, since no turn will write them, and ends it as canceled."""
    step.effects.append(Record(arg.subject.seq))
    step.fire(arg.subject, Trigger.SETTLE)


def fold_queue(step: Port, arg: Argument) -> None:
    """Folds every queued prompt without a run id into the running turn: its text joins that turn."""
    for prompt in foldable(step):
        step.effects.append(Fold(prompt.seq, into=arg.subject.seq))
        step.fire(prompt, Trigger.FOLD)


def foldable(port: Port) -> list[Any]:
    return [p for p in port.queue if not p.run_id]


def requeue(step: Port, arg: Argument) -> None:
    """Puts a prompt that must resume after compaction back into the queue in seq order, then starts the first queued
    prompt: this one, if none is older."""
    step.fire(arg.subject, Trigger.REQUEUE)
    hand_off(step)


FINISH: Mapping[Variant, Trigger] = {
    Outcome.END_TURN: Trigger.FINISH_END_TURN,
    Outcome.ERROR: Trigger.FINISH_ERROR,
    Outcome.CANCELED: Trigger.FINISH_CANCELED,
}


def finish(step: Port, arg: Argument) -> None:
    """Ends the turn's prompt and, in the same step, starts the first queued prompt, whatever the outcome."""
    step.fire(arg.subject, FINISH[arg.variant])
    hand_off(step)


def hand_off(step: Port) -> None:
    """Start the first queued prompt, if the session is not busy.

    Every step that ends a turn also hands off. A session that is not busy therefore has an empty queue, and a prompt
    that enters and starts at once overtakes no queued prompt.
    """
    if (queue := step.queue) and not step.holds(queue[0], Guard.BUSY):
        step.fire(queue[0], Trigger.START)


def cancel(step: Port, arg: Argument) -> None:
    """Asks the active prompt to stop, raises the mark over every prompt accepted so far, and drops the queue."""
    stop_active(step)  # before the mark rises: a prompt that is covered already was asked to stop by an earlier cancel
    step.mark = max(step.mark, arg.seq)
    clear_queue(step, arg)


def stop_active(step: Port) -> None:
    for prompt in step.active:
        if not step.holds(prompt, Guard.COVERED):
            step.effects.append(Stop(prompt.seq))


def close(step: Port, arg: Argument) -> None:
    """Cancels every session, and stops accepting prompts until the server restarts."""
    cancel(step, arg)


def clear_queue(step: Port, arg: Argument) -> None:
    """Drops the queue. The mark and the active prompt are unchanged."""
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


def crash(step: Port, arg: Argument) -> None:
    """Kills the server and every running turn."""
    step.down, step.memory = True, None


def recover(step: Port, arg: Argument) -> None:
    """After the restart, ends the active prompt with an error and resumes the waiting prompts in seq order."""
    for prompt in list(step.active):
        step.fire(prompt, Trigger.INTERRUPT)
    for prompt in list(step.accepted):  # a session that is down counts as busy: they queue, then the first one starts
        step.fire(prompt, Trigger.ENTER)
    step.down = False
    hand_off(step)


# --- The table of actions -----------------------------------------------------------------------------------------

class Actor(Enum):
    """The party that initiates an action."""

    CLIENT = "client"
    OPERATOR = "operator"
    SERVER = "server"
    TURN = "turn"
    FAULT = "fault"


class Reach(Enum):
    """The prompts that a call targets. The observer keeps, for each prompt, the strongest call that targeted it."""

    NOTHING = "nothing"
    CLEAR = "clear_queue"  # queued prompts
    CANCEL = "cancel"  # all unfinished prompts

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class Action:
    """An atomic action: who initiates it, what it applies to, and what it does."""

    name: str
    actor: Actor
    apply: Callable[..., None]  # in the reference: (Port, Argument)
    guard: str
    rule: str  # the rule of specs/protocol.md that defines it
    # (Port, prompt, variant): whether it applies to that prompt. None: it applies to a session, not to a prompt.
    subject: Callable[[Any, Any, Variant], bool] | None = None
    variants: tuple[Variant, ...] = (None,)
    allowed: Callable[[Any, Variant], bool] | None = None  # (Port, variant): whether a session allows it; None: always
    reaches: Reach = Reach.NOTHING
    targets: Callable[[Any, Any, Variant], Iterable[Any]] | None = None  # (session, prompt, variant): its prompts
    bound: str | None = None  # the field of `Bounds` that limits how often it happens
    everywhere: bool = False  # applies to all sessions in one step
    while_closing: bool = True  # still allowed while the server is closing
    while_down: bool = False  # allowed in a crashed session, and in no other
    sets_closing: bool | None = None
    clauses: tuple[str, ...] = ()  # clauses of specs/protocol.md that it implements, besides those of its rows

    @cached_property
    def system(self) -> bool:
        """Whether the system performs it unprompted: no caller, no fault, and no turn that asks to be requeued."""
        return self.actor in (Actor.SERVER, Actor.TURN) and self.bound is None

    @property
    def effect(self) -> str:
        """The docstring of `apply` on one line, for a table cell."""
        return " ".join((self.apply.__doc__ or "").split())


def _by(trigger: Trigger) -> Callable[[Port, Any, Variant], bool]:
    return lambda port, prompt, _: port.may(prompt, trigger)


def can_fold(port: Port, prompt: Subject, _: Variant) -> bool:
    return prompt.state is State.ACTIVE and not port.holds(prompt, Guard.COVERED) and bool(foldable(port))


ACTIONS: tuple[Action, ...] = (
    Action("accept", Actor.CLIENT, accept, "not closing; valid; run id new", "R1",
           variants=(False, True), bound="prompts", while_closing=False, clauses=("R1a", "R1b", "R1c", "R22a")),
    Action("enter", Actor.SERVER, enter, "p accepted", "R3", _by(Trigger.ENTER), clauses=("R3a", "R3b")),
    Action("fail", Actor.SERVER, fail, "p accepted", "R8", _by(Trigger.FAIL), clauses=("R3a",)),
    Action("settle", Actor.SERVER, settle, "p canceled on entry", "R7", _by(Trigger.SETTLE), clauses=("R7a",)),
    Action("step", Actor.TURN, fold_queue, "p active, not covered", "R9", can_fold, clauses=("R9a", "R9c")),
    Action("requeue", Actor.TURN, requeue, "p active, not covered", "R10", _by(Trigger.REQUEUE), bound="requeues",
           clauses=("R10a", "R10b", "R10c", "R10d")),
    Action("finish", Actor.TURN, finish, "p active; canceled only if covered", "R11",
           lambda port, prompt, how: port.may(prompt, FINISH[how]), variants=tuple(FINISH),
           clauses=("R11a", "R24a", "R24b")),
    Action("cancel", Actor.CLIENT, cancel, "any", "R12", reaches=Reach.CANCEL, targets=observer.everyone,
           bound="cancels", clauses=("R2", "R12a", "R12b", "R12c")),
    Action("clear_queue", Actor.CLIENT, clear_queue, "any", "R13", reaches=Reach.CLEAR, targets=observer.waiting,
           bound="clears", clauses=("R13a", "R13b")),
    Action("close", Actor.OPERATOR, close, "not closing", "R15", reaches=Reach.CANCEL, targets=observer.everyone,
           bound="closes", everywhere=True, while_closing=False, sets_closing=True, clauses=("R15a", "R15b")),
    Action("crash", Actor.FAULT, crash, "any", "R16", bound="crashes", everywhere=True, clauses=("R16a",)),
    Action("recover", Actor.SERVER, recover, "after a crash", "R17", everywhere=True, while_down=True,
           sets_closing=False,
           clauses=("R17a", "R17b", "R17c", "R17d", "R17e", "R2", "R21")),
)
