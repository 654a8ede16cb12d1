"""The properties of the protocol: each has an id, one plain sentence, and a check as short as the sentence.

- *Safety* properties are checked on every step of a session (`SessionStep`) or of the server (`ServerStep`).
- *Liveness* properties are checked at quiescence: callers have stopped, turns have ended, and the system has no action
  left. `progress` states that quiescence is always reached.
- A *goal* is a row, an outcome or an action that some reachable step must exercise. Goals keep properties from holding
  vacuously.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import dropwhile
from typing import NamedTuple

from .actions import Reach, Variant
from .effects import Effect, End, Fold, Record, Report, Start, Stop
from .lifecycle import Outcome
from .protocol import Behaviour, Move
from .server import Change, Server
from .session import ACTIVE, CANCELED_ON_ENTRY, DONE, QUEUED, AnySession, Prompt

CANCELED = Outcome.CANCELED
NOTHING, BY_CLEAR, BY_CANCEL = Reach
ENDS = End, Report


class Kind(Enum):
    SAFETY = "safety"
    LIVENESS = "liveness"


class SessionStep(NamedTuple):
    """One step of one session, with the effects sorted by kind. Prompts are given in their state before the step."""

    call: str
    before: AnySession
    after: AnySession
    effects: tuple[Effect, ...]
    started: list[Prompt]  # prompts whose turn starts
    folded: list[Prompt]  # prompts that are folded
    into: list[Prompt]  # for each folded prompt, the prompt whose turn it is folded into
    ended: list[End]
    prompt: Prompt | None = None  # the prompt that the call applies to
    variant: Variant = None

    @classmethod
    def of(cls, before: AnySession, move: Move) -> "SessionStep":
        started, folded, into, ended = [], [], [], []
        for effect in move.effects:
            if isinstance(effect, Start):
                started.append(before.prompt(effect.seq))
            elif isinstance(effect, Fold):
                folded.append(before.prompt(effect.seq))
                into.append(before.prompt(effect.into))
            elif isinstance(effect, End):
                ended.append(effect)
        there = () if move.seq is None else before.prompts
        prompt = next((p for p in there if p.seq == move.seq), None)  # None while the prompt is being accepted
        return cls(move.action.name, before, move.after, move.effects, started, folded, into, ended, prompt,
                   move.variant)


class ServerStep(NamedTuple):
    """One step of the server as a whole. Steps inside its sessions are checked separately, as `SessionStep`s."""

    call: str
    session: int | None  # None: all sessions
    closing: tuple[bool, bool]  # before and after
    changed: frozenset[int]  # indexes of the sessions that the step changed

    @classmethod
    def of(cls, before: Server, change: Change) -> "ServerStep":
        after = change.after
        changed = frozenset(i for i, s in enumerate(before.sessions) if after.sessions[i] != s)
        return cls(change.call.name, change.call.session, (before.closing, after.closing), changed)


@dataclass(frozen=True)
class Property:
    """A property with its check. The three optional checks determine its kind."""

    id: str
    sentence: str
    on_session: Callable[[SessionStep], bool] | None = None
    on_server: Callable[[ServerStep], bool] | None = None
    at_rest: Callable[[Prompt], bool] | None = None  # checked on every prompt at quiescence
    clauses: tuple[str, ...] = ()  # clauses of specs/protocol.md whose violation also violates this property

    @property
    def kind(self) -> Kind:
        return Kind.SAFETY if self.on_session or self.on_server else Kind.LIVENESS


def canceled(p: Prompt) -> bool:
    return p.state is CANCELED_ON_ENTRY or p.outcome is CANCELED


def no_poisoning(step: SessionStep) -> bool:
    return not [p for p in step.after.prompts if p.reach is NOTHING and canceled(p)]


def no_late_fold(step: SessionStep) -> bool:
    # Otherwise a follow-up accepted after the cancel would be canceled together with the turn it was folded into.
    return all(p.reach is not BY_CANCEL for p in step.into)


def no_lost_cancel(step: SessionStep) -> bool:
    # Uses `reach` after the step, so that it also catches a cancel that starts a prompt it covers.
    reached = [p for p in step.after.prompts if p.reach is BY_CANCEL]
    begun = [p.seq for p in step.started + step.folded]
    ended_otherwise = [p.seq for p in reached if p.outcome is not None and p.outcome is not CANCELED]
    return (not (begun and any(p.seq in begun for p in reached))
            and not (ended_otherwise and any(
                p.seq in ended_otherwise for p in step.before.live if p.state is not ACTIVE)))


def cancel_stops(step: SessionStep) -> bool:
    asked = [e.seq for e in step.effects if isinstance(e, Stop)]
    running = [p.seq for p in step.before.prompts if p.state is ACTIVE and p.reach is not BY_CANCEL]
    if not asked and not running:
        return True
    reached = [p.seq for p in step.after.prompts if p.reach is BY_CANCEL]
    return (not [seq for seq in asked if seq not in reached]
            and not [seq for seq in running if seq in reached and seq not in asked])


def queue_dropped(step: SessionStep) -> bool:
    # Uses `reach` instead of the call's name: in the original, one call can take several steps.
    reached = [p for p in step.after.prompts if p.reach is not NOTHING and p.outcome is not CANCELED]
    if not reached:
        return True
    waiting = [p.seq for p in step.before.prompts if p.state is QUEUED and p.reach is NOTHING]
    return not [p for p in reached if p.reach is BY_CLEAR or p.seq in waiting]


def one_terminal(step: SessionStep) -> bool:
    return not [p for p in step.after.prompts if p.ends > 1]


def no_loss(step: SessionStep) -> bool:
    left = [p.seq for p in step.after.prompts]
    return not [p for p in step.before.prompts if p.seq not in left]


def single_active(step: SessionStep) -> bool:
    return len(step.after.active) <= 1


def fifo(step: SessionStep) -> bool:
    return all(p.seq < q.seq for p in step.started for q in step.after.queue)


def no_absorption(step: SessionStep) -> bool:
    return not any(p.run_id for p in step.folded)


def attribution(step: SessionStep) -> bool:
    if [e for e in step.effects if isinstance(e, ENDS) and e.of != e.seq]:
        return False
    # A prompt that was already done gets no event in this step.
    return not step.ended or all(
        [p for p in step.after.prompts if p.outcome is e.outcome and p.seq == e.seq] for e in step.ended)


def idle_cancel_noop(step: SessionStep) -> bool:
    idle = step.call == "cancel" and not step.before.live
    return not idle or (step.after.prompts == step.before.prompts and not step.effects)


def isolation(step: ServerStep) -> bool:
    return step.call in ("close", "crash", "recover") or all(i == step.session for i in step.changed)


def closed(step: ServerStep) -> bool:
    before, after = step.closing
    if step.call == "accept":
        return not before
    return after if step.call == "close" else after == before or step.call == "recover"


def record(step: SessionStep) -> bool:
    waiting = [p.seq for p in step.before.prompts if p.state is CANCELED_ON_ENTRY]
    settled = waiting and [p.seq for p in step.after.prompts if p.state is DONE and p.seq in waiting]
    return not settled or all(Record(seq) in step.effects for seq in settled)


def prompt_terminal(step: SessionStep) -> bool:
    if not step.started:
        return True
    ends_after_a_start = any(isinstance(e, End) for e in dropwhile(lambda e: not isinstance(e, Start), step.effects))
    return not ends_after_a_start and all(p.ends for p in step.after.prompts if p.state is DONE)


def all_done(prompt: Prompt) -> bool:
    return prompt.state is DONE


def some_terminal(prompt: Prompt) -> bool:
    return prompt.ends >= 1


PROPERTIES: tuple[Property, ...] = (
    Property("no-poisoning", "A prompt is never canceled by a cancel sent before the prompt was accepted.",
             no_poisoning, clauses=("R1a", "R12b", "R13b")),
    Property("no-late-fold", "A turn covered by a cancel folds no prompts.", no_late_fold, clauses=("R9c",)),
    Property("no-lost-cancel",
             "A prompt covered by a cancel never starts or folds; unless it was already running, it ends canceled.",
             no_lost_cancel, clauses=("R3b", "R4", "R7b", "R8b", "R10c", "R12b", "R17c")),
    Property("cancel-stops", "A cancel asks the running turn to stop; nothing else does.", cancel_stops,
             clauses=("R12a", "R13b")),
    Property("queue-dropped", "A cancel or clear_queue immediately ends every queued prompt as canceled.",
             queue_dropped, clauses=("R12c", "R13a")),
    Property("no-loss", "No accepted prompt is lost before it is done.", no_loss, clauses=("R16a", "R17b")),
    Property("one-terminal", "No prompt has more than one terminal event.", one_terminal, clauses=("R14a",)),
    Property("single-active", "A session never has two active prompts.", single_active, clauses=("R5a", "R6b")),
    Property("fifo", "No prompt starts ahead of an earlier prompt that is queued.", fifo, clauses=("R5b", "R11b")),
    Property("no-absorption", "A prompt with a run id is never folded.", no_absorption, clauses=("R9b",)),
    Property("attribution", "A terminal event carries its own prompt's id, outcome, text and error.", attribution,
             clauses=("R14c",)),
    Property("idle-cancel-noop", "Canceling an idle session changes no prompt and has no effects.",
             idle_cancel_noop, clauses=("R12e",)),
    Property("isolation", "An action in one session changes no other session.", on_server=isolation, clauses=("R20",)),
    Property("closed", "No prompt is accepted between a close and the next restart.", on_server=closed,
             clauses=("R15a",)),
    Property("record", "A prompt canceled on entry leaves its user message and a canceled assistant message.", record,
             clauses=("R7a",)),
    Property("prompt-terminal", "A prompt's terminal event is published before the next turn starts.", prompt_terminal,
             clauses=("R14b",)),
    Property("all-done", "At quiescence every prompt is done: none is stranded.", at_rest=all_done,
             clauses=("R11a", "R15c", "R17d", "R21")),
    Property("some-terminal", "At quiescence every prompt has its terminal event.", at_rest=some_terminal,
             clauses=("R14a",)),
    Property("progress", "The system always reaches quiescence: it cannot keep running forever on its own.",
             clauses=("R21",)),  # checked on the whole graph, not on a step
)

# --- Goals: reachability -----------------------------------------------------------------------------------------

def _bound(default: int, most: int, says: str) -> int:
    """Declare a bound: its default, the largest useful value, and a description of what it limits."""
    made: int = field(default=default, metadata={"most": most, "says": says})
    return made


@dataclass(frozen=True)
class Bounds:
    """How often callers, turns and faults may act in an exploration. The system's own actions are unbounded."""

    prompts: int = _bound(3, 8, "prompts accepted, each with and without a run id")
    cancels: int = _bound(0, 9, "cancels")
    clears: int = _bound(0, 9, "calls of clear_queue")
    requeues: int = _bound(0, 9, "turns that resume after compaction")
    crashes: int = _bound(0, 9, "crashes, each followed by a recovery")
    closes: int = _bound(0, 9, "closes of the server (one, and one more after each crash)")
    revokes: int = _bound(0, 9, "calls that cancel one prompt")
    stops: int = _bound(0, 9, "stops, each with and without a hold")
    holds: int = _bound(0, 9, "holds; a held session can always be resumed")
    replaces: int = _bound(0, 9, "prompt texts replaced")
    nexts: int = _bound(0, 9, "prompts moved to the front")
    asks: int = _bound(0, 2, "questions that turns ask")
    sessions: int = _bound(1, 4, "concurrent sessions")

    def __post_init__(self) -> None:
        for name, n in vars(self).items():
            if n < (least := int(name in ("prompts", "sessions"))):
                raise ValueError(f"bounds with {name}={n} leave nothing to explore: {name} must be at least {least}")

    @property
    def total(self) -> int:
        """The maximum number of bounded actions in one history."""
        return sum(getattr(self, name) for name in BOUND_NAMES)

    def allows(self, other: "Bounds") -> bool:
        """Whether these bounds are at least as large as `other` in every field."""
        return all(mine >= theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))

    def __str__(self) -> str:
        return " ".join(f"{name}={n}" for name, n in vars(self).items() if n > (name == "sessions"))


BOUND_NAMES = tuple(name for name in vars(Bounds()) if name != "sessions")  # the bounds that actions use up

ONE = Bounds(1)
_CANCELED = (Bounds(1, cancels=1), Bounds(1, closes=1))
_QUEUED = (Bounds(2), Bounds(1, crashes=1))
_REQUEUED = (Bounds(1, requeues=1),)
_CRASHED = (Bounds(1, crashes=1),)
_HELD = (Bounds(1, holds=1), Bounds(1, stops=1))
_ASKED = (Bounds(1, asks=1),)

# The smallest bounds within which each goal is reachable. Goals not listed need only one prompt or, for an action, also
# one unit of the action's own bound.
LEAST: Mapping[str, tuple[Bounds, ...]] = {
    "row enter→canceled_on_entry": _CANCELED,
    "row enter→queued": _QUEUED,
    "row fail→canceled_on_entry": _CANCELED,
    "row settle→done": _CANCELED,
    "row start→active": _QUEUED + _REQUEUED,
    "row fold→done": (Bounds(2),),
    "row drop→done": (Bounds(2, cancels=1), Bounds(2, clears=1), Bounds(2, closes=1)),
    "row requeue→queued": _REQUEUED,
    "row finish_canceled→done": _CANCELED,
    "row interrupt→done": _CRASHED,
    "action settle": _CANCELED,
    "action step": (Bounds(2),),
    "action recover": _CRASHED,
    "row requeue→active": tuple(replace(b, requeues=1) for b in _HELD),
    "action resume": _HELD,
    "action answer": _ASKED,
    "action run": _ASKED,
    "action withdraw": _ASKED,
}


class Goal(NamedTuple):
    """A row, outcome or action that must be reached, if it is possible within the bounds."""

    id: str
    possible: bool


def goals(protocol: Behaviour, bounds: Bounds) -> list[Goal]:
    """Every row, outcome and action of a table-driven protocol. Revisions of the original have no rows and no goals."""
    if not protocol.rows:
        return []

    def possible(goal: str, alone: Bounds = ONE) -> bool:
        return any(bounds.allows(least) for least in LEAST.get(goal, (alone,)))

    rows = {f"row {row.name}": row.outcome for row in protocol.rows}
    ends = {f"outcome {o.value}": any(possible(g) for g, end in rows.items() if end is o) for o in Outcome}
    return [*(Goal(g, possible(g)) for g in rows), *(Goal(g, yes) for g, yes in ends.items()),
            *(Goal(f"action {a.name}", possible(f"action {a.name}", replace(ONE, **({a.bound: 1} if a.bound else {}))))
              for a in protocol.actions)]
