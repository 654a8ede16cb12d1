"""What must hold: each property with an id, one plain sentence, and a check as short as the sentence.

Two kinds, and goals. *Safety* is judged on every step of a session (`SessionStep`) or of the server (`ServerStep`).
*Liveness* is judged at quiescence, when callers have stopped, turns have ended, and the system has no action left;
`progress` says that quiescence is always reached. A *goal* says that a row, an outcome or an action happens
somewhere, so that nothing holds merely because it is impossible.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from itertools import dropwhile
from typing import NamedTuple

from . import observer
from .actions import Reach, Variant, accepted_as
from .effects import Effect, End, Fold, Record, Report, Start, Stop
from .lifecycle import Feature, Outcome
from .protocol import Behaviour, Move
from .server import Change, Server
from .session import ACCEPTED, ACTIVE, CANCELED_ON_ENTRY, DONE, QUEUED, AnySession, Prompt

CANCELED = Outcome.CANCELED
NOTHING, BY_CLEAR, BY_CANCEL = Reach
ENDS = End, Report


class Kind(Enum):
    SAFETY = "safety"
    LIVENESS = "liveness"


class SessionStep(NamedTuple):
    """What happened in one session."""

    call: str
    before: AnySession
    after: AnySession
    effects: tuple[Effect, ...]
    started: list[Prompt]  # the prompts whose turn it starts, as they were before
    folded: list[Prompt]  # the prompts that it folds, as they were before
    into: list[Prompt]  # and the prompts whose turns take them in
    ended: list[End]
    prompt: Prompt | None = None  # that the call is on, as it was before
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
        prompt = next((p for p in there if p.seq == move.seq), None)  # one that is being accepted is new
        return cls(move.action.name, before, move.after, move.effects, started, folded, into, ended, prompt,
                   move.variant)


class ServerStep(NamedTuple):
    """What happened to the server as a whole. What happened inside its sessions is judged session by session."""

    call: str
    session: int | None  # None: everywhere
    closing: tuple[bool, bool]  # before and after
    changed: frozenset[int]  # the sessions that are not as they were

    @classmethod
    def of(cls, before: Server, change: Change) -> "ServerStep":
        after = change.after
        changed = frozenset(i for i, s in enumerate(before.sessions) if after.sessions[i] != s)
        return cls(change.call.name, change.call.session, (before.closing, after.closing), changed)


@dataclass(frozen=True)
class Property:
    """Something that must hold. Where a feature makes the sentence say more, `in_family` has the other words."""

    id: str
    sentence: str
    on_session: Callable[[SessionStep], bool] | None = None
    on_server: Callable[[ServerStep], bool] | None = None
    at_rest: Callable[[Prompt], bool] | None = None
    clauses: tuple[str, ...] = ()  # of specs/protocol.md, that cannot be broken without breaking it
    in_family: str = ""
    reworded_for: frozenset[Feature] = frozenset()  # the features that make `in_family` say more than `sentence`
    feature: Feature | None = None  # without which it says nothing

    @property
    def kind(self) -> Kind:
        return Kind.SAFETY if self.on_session or self.on_server else Kind.LIVENESS


def canceled(p: Prompt) -> bool:
    return p.state is CANCELED_ON_ENTRY or p.outcome is CANCELED


def no_poisoning(step: SessionStep) -> bool:
    return not [p for p in step.after.prompts if p.reach is NOTHING and canceled(p)]


def no_late_fold(step: SessionStep) -> bool:
    # A follow-up that was accepted after the cancel would end with the turn that took it in; so would one that was
    # accepted after an interrupt, once that enters and stops the turn.
    if not step.folded:
        return True
    interrupts = [p for p in step.before.live
                  if p.state is ACCEPTED and p.reach is not BY_CANCEL and observer.wish_of(p).now]
    return (all(p.reach is not BY_CANCEL for p in step.into)
            and not any(host.seq < p.seq < guest.seq
                        for p in interrupts for guest, host in zip(step.folded, step.into)))


def no_lost_cancel(step: SessionStep) -> bool:
    # By what has reached a prompt after the step: a cancel must not itself start what it covers.
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
    # By what has reached a prompt: in the original a call may take more than one step.
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
    # A turn that goes on in a held session was active before, and passes nobody.
    return not step.started or all(
        observer.place(p) < observer.place(q) for p in step.started for q in step.after.queue
        if not (p.state is ACTIVE and step.after.wished_hold))


def no_absorption(step: SessionStep) -> bool:
    return not any(p.run_id for p in step.folded)


def attribution(step: SessionStep) -> bool:
    if [e for e in step.effects if isinstance(e, ENDS) and e.of != e.seq]:
        return False
    # A prompt that was done before has no event in this step.
    return not step.ended or all(
        [p for p in step.after.prompts if p.outcome is e.outcome and p.seq == e.seq] for e in step.ended)


def idle_cancel_noop(step: SessionStep) -> bool:
    idle = step.call in ("cancel", "stop") and not step.variant and not step.before.live
    return not idle or (step.after.prompts == step.before.prompts and not step.effects
                        and step.after.held == step.before.held)


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


# --- of the family's calls

def _unchanged(step: SessionStep, but: Iterable[Prompt]) -> bool:
    """Whether the step leaves every prompt but these as it was, and reaches none of them."""
    apart = [p.seq for p in but]
    return all(p in step.after.prompts and step.after.covered(p) == step.before.covered(p)
               for p in step.before.prompts if p.seq not in apart)


def _reached(step: SessionStep, prompts: Iterable[Prompt]) -> bool:
    """Whether each of these is canceled now, or will be where it enters or stops."""
    return all(canceled(now) or step.after.covered(now)
               for p in prompts for now in step.after.prompts if now.seq == p.seq)


def revoke_exact(step: SessionStep) -> bool:
    if step.call != "revoke" or step.prompt is None:
        return True
    return _unchanged(step, [step.prompt]) and _reached(step, [step.prompt]) and step.after.held == step.before.held


def keeps_queue(step: SessionStep) -> bool:
    return step.call != "stop" or _unchanged(step, observer.in_front(step.before, None, step.variant))


def stop_heard(step: SessionStep) -> bool:
    return step.call != "stop" or _reached(step, observer.in_front(step.before, None, step.variant))


def held(step: SessionStep) -> bool:
    running = [p.seq for p in step.before.active]
    return not step.after.wished_hold or not (step.folded or any(p.state is not ACTIVE for p in step.started)
                                              or any(p.seq in running for p in step.after.queue))


def edited(step: SessionStep) -> bool:
    if step.call == "replace" and step.prompt is not None and (
            step.prompt.state not in (ACCEPTED, QUEUED) or step.prompt.reach is not NOTHING
            or observer.wish_of(step.prompt).ran):
        return False
    return all(p.version == observer.wish_of(p).version for p in step.started + step.folded)


def send_now(step: SessionStep) -> bool:
    return step.call != "enter" or _reached(step, observer.interrupted(step.before, step.prompt, None))


def reject(step: SessionStep) -> bool:
    wanted_idle = step.call == "accept" and accepted_as(step.variant, Feature.REJECT)
    return not wanted_idle or not (step.before.live or step.before.wished_hold)


def all_done(prompt: Prompt) -> bool:
    return prompt.state is DONE


def some_terminal(prompt: Prompt) -> bool:
    return prompt.ends >= 1


CALLS = frozenset({Feature.REVOKE, Feature.STOP, Feature.INTERRUPT})  # that cancel one prompt

PROPERTIES: tuple[Property, ...] = (
    Property("no-poisoning", "A prompt is never canceled by a cancel that came before its acceptance.", no_poisoning,
             clauses=("R1a", "R12b", "R13b"), reworded_for=CALLS,
             in_family="A prompt is never canceled by a call that came before its acceptance, nor by one that did not "
                       "reach it. Calls are cancel, clear_queue, close, revoke, stop, and the entry of an interrupt."),
    Property("no-late-fold", "A turn that a cancel has reached takes nobody in.", no_late_fold, clauses=("R9c",),
             reworded_for=frozenset({Feature.INTERRUPT}),
             in_family="A turn that a call has canceled takes nobody in; nor does a turn take in a prompt that was "
                       "accepted after an interrupt which is still to enter and to stop that turn."),
    Property("no-lost-cancel",
             "A prompt that a cancel has reached never starts or folds; if it was not running it ends canceled.",
             no_lost_cancel, clauses=("R3b", "R4", "R7b", "R8b", "R10c", "R12b", "R17c"), reworded_for=CALLS,
             in_family="A prompt that a cancel, revoke, stop or interrupt has reached never starts or folds; if it was "
                       "not running it ends canceled."),
    Property("cancel-stops", "A cancel asks the running turn to stop, and nothing else does.", cancel_stops,
             clauses=("R12a", "R13b"), reworded_for=CALLS,
             in_family="A cancel, revoke, stop or interrupt asks the running turn that it reaches to stop, and nothing "
                       "else does."),
    Property("queue-dropped", "Whatever a cancel or clear_queue finds queued is done then, and canceled.",
             queue_dropped, clauses=("R12c", "R13a")),
    Property("no-loss", "An accepted prompt is never forgotten before it is done.", no_loss, clauses=("R16a", "R17b")),
    Property("one-terminal", "No prompt has two terminal events.", one_terminal, clauses=("R14a",)),
    Property("single-active", "A session never has two active prompts.", single_active, clauses=("R5a", "R6b")),
    Property("fifo", "No prompt becomes active past an earlier prompt that is queued.", fifo, clauses=("R5b", "R11b"),
             reworded_for=frozenset({Feature.NEXT, Feature.INTERRUPT}),
             in_family="No prompt becomes active past a queued prompt that is ahead: one that was moved to the front "
                       "later, or else was accepted earlier."),
    Property("no-absorption", "A prompt with a caller's run id is never folded.", no_absorption, clauses=("R9b",)),
    Property("attribution", "A terminal event carries its own prompt's id, outcome, text and error.", attribution,
             clauses=("R14c",)),
    Property("idle-cancel-noop", "A cancel of an idle session changes no prompt and asks for nothing.",
             idle_cancel_noop, clauses=("R12e",), reworded_for=frozenset({Feature.STOP, Feature.HOLD}),
             in_family="A cancel or stop of an idle session changes no prompt and not the hold, and "
                       "asks for nothing."),
    Property("isolation", "An action in one session changes no other.", on_server=isolation, clauses=("R20",)),
    Property("closed", "Between a close and the next restart nothing is accepted.", on_server=closed,
             clauses=("R15a",)),
    Property("record", "A prompt canceled on entry leaves its user message and a canceled assistant message.", record,
             clauses=("R7a",)),
    Property("prompt-terminal", "A terminal event is published before the next turn starts.", prompt_terminal,
             clauses=("R14b",)),
    Property("all-done", "At quiescence every prompt is done: nothing is stranded.", at_rest=all_done,
             clauses=("R11a", "R15c", "R17d", "R21"), reworded_for=frozenset({Feature.HOLD}),
             in_family="At quiescence every prompt is done, or is queued in a session that is held."),
    Property("some-terminal", "At quiescence every prompt has its terminal event.", at_rest=some_terminal,
             clauses=("R14a",), reworded_for=frozenset({Feature.HOLD}),
             in_family="At quiescence every prompt has its terminal event, or is queued in a session that is held."),
    Property("progress", "The system cannot go on for ever without reaching quiescence.",  # judged on the whole graph
             clauses=("R21",)),
)

FAMILY_PROPERTIES: tuple[Property, ...] = (
    Property("revoke-exact", "A revoke reaches its prompt and changes nobody else.", revoke_exact,
             clauses=("R30a", "R30b"), feature=Feature.REVOKE),
    Property("keeps-queue", "A stop changes no prompt but the one in front.", keeps_queue, clauses=("R31b",),
             feature=Feature.STOP),
    Property("stop-heard", "A stop reaches the prompt in front, whether it is active or still to enter.", stop_heard,
             clauses=("R31a",), feature=Feature.STOP),
    Property("held", "Between a hold and the next resume no prompt starts that was not active, none folds, and the "
             "running turn is not parked.", held, clauses=("R32a", "R32b", "R32c"), feature=Feature.HOLD),
    Property("edited", "What starts or folds is the latest text that a caller was told is taken; none is taken once "
             "the prompt has begun or is canceled.", edited, clauses=("R33a", "R33b"), feature=Feature.REPLACE),
    Property("send-now", "An interrupt that enters, not canceled and not held, has the active prompt that was accepted "
             "before it asked to stop.", send_now, clauses=("R35b",), feature=Feature.INTERRUPT),
    Property("reject", "A prompt that was accepted with reject found every other prompt done and the session not held.",
             reject, clauses=("R35a",), feature=Feature.REJECT),
)


def properties_for(protocol: Behaviour) -> tuple[Property, ...]:
    """What must hold of a protocol with its features, in the words that these need."""
    return _properties_with(getattr(protocol, "features", frozenset()))


@cache
def _properties_with(features: frozenset[Feature]) -> tuple[Property, ...]:
    reworded = (replace(p, sentence=p.in_family) if p.reworded_for & features else p for p in PROPERTIES)
    return (*reworded, *(p for p in FAMILY_PROPERTIES if p.feature in features)) if features else PROPERTIES


# --- Goals: reachability -----------------------------------------------------------------------------------------

def _bound(default: int, most: int, says: str) -> int:
    """A bound with the largest value that makes sense, and what it limits."""
    made: int = field(default=default, metadata={"most": most, "says": says})
    return made


@dataclass(frozen=True)
class Bounds:
    """How often callers, turns and faults may act. Everything the system does by itself is unbounded."""

    prompts: int = _bound(3, 8, "prompts accepted, each with and without a run id")
    cancels: int = _bound(0, 9, "cancels")
    clears: int = _bound(0, 9, "calls of clear_queue")
    requeues: int = _bound(0, 9, "turns that go on after a summary")
    crashes: int = _bound(0, 9, "crashes, each followed by a recovery")
    closes: int = _bound(0, 9, "closes of the server (one, and one more after each crash)")
    revokes: int = _bound(0, 9, "calls that cancel one prompt")
    stops: int = _bound(0, 9, "stops, each with and without a hold")
    holds: int = _bound(0, 9, "holds; a held session can always be resumed")
    replaces: int = _bound(0, 9, "texts replaced")
    nexts: int = _bound(0, 9, "prompts moved to the front")
    sessions: int = _bound(1, 4, "sessions side by side")

    def __post_init__(self) -> None:
        for name, n in vars(self).items():
            if n < (name in ("prompts", "sessions")):
                raise ValueError(f"bounds with {name}={n}: there is nothing to explore")

    @property
    def total(self) -> int:
        """How many bounded actions there can be."""
        return sum(getattr(self, name) for name in BOUND_NAMES)

    def allows(self, other: "Bounds") -> bool:
        """Whether everything within `other` is within these bounds too."""
        return all(mine >= theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))

    def __str__(self) -> str:
        return " ".join(f"{name}={n}" for name, n in vars(self).items() if n > (name == "sessions"))


BOUND_NAMES = tuple(name for name in vars(Bounds()) if name != "sessions")  # what can be spent

ONE = Bounds(1)
_CANCELED = (Bounds(1, cancels=1), Bounds(1, closes=1))
_QUEUED = (Bounds(2), Bounds(1, crashes=1))
_REQUEUED = (Bounds(1, requeues=1),)
_CRASHED = (Bounds(1, crashes=1),)
_HELD = (Bounds(1, holds=1), Bounds(1, stops=1))

# The least bounds that leave room for a goal, where neither one prompt alone does nor, for an action, its own bound.
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
}


class Goal(NamedTuple):
    """Something that must happen somewhere, whenever the bounds leave room for it."""

    id: str
    possible: bool


def goals(protocol: Behaviour, bounds: Bounds) -> list[Goal]:
    """Every row, outcome and action of a protocol that is made of rows. The history's revisions have none to judge."""
    if not protocol.rows:
        return []

    def possible(goal: str, alone: Bounds = ONE) -> bool:
        return any(bounds.allows(least) for least in LEAST.get(goal, (alone,)))

    rows = {f"row {row.name}": row.outcome for row in protocol.rows}
    ends = {f"outcome {o.value}": any(possible(g) for g, end in rows.items() if end is o) for o in Outcome}
    return [*(Goal(g, possible(g)) for g in rows), *(Goal(g, yes) for g, yes in ends.items()),
            *(Goal(f"action {a.name}", possible(f"action {a.name}", replace(ONE, **({a.bound: 1} if a.bound else {}))))
              for a in protocol.actions)]
