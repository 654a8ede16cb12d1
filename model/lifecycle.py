"""The life of one prompt: five states, and the rows between them.

Rules of this file:

1. Every change of a prompt's state, in the model and at run time, is a row of `ROWS`. The runtime's machine, the
   explorer's table, the diagrams and the table in specs/protocol.md are made from these rows.
2. The world is closed: a trigger without a row for the prompt's state and guards is an error, and changes nothing.
3. Nothing is implied: rows of one trigger and source have guards that exclude each other, and `compile_rows`
   refuses a table in which two rows could both apply.
4. A guard is a yes-or-no question about the prompt. Rows only name the questions; `actions.GUARDS` answers them.

    accepted ──enter──▶ active ──finish──▶ done          a prompt that nothing disturbs; interrupt: by a restart
        │                ▲  │
        │           start│  │requeue
        ├────enter──▶ queued ──drop, fold──▶ done        the session was busy
        ├────enter, fail──▶ canceled_on_entry ──settle──▶ done   the mark covered it before it entered
        └────fail──▶ done                                it could not start
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, combinations


class Symbol(Enum):
    """A word of a protocol. Members are singletons, so they hash by identity: `Enum` hashes their names, in Python, and
    the explorer does so a million times. A protocol may bring symbols of its own (`family.FamilyGuard`)."""

    __hash__ = object.__hash__


class State(Symbol):
    """Where a prompt is."""

    ACCEPTED = "accepted"
    CANCELED_ON_ENTRY = "canceled_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"


class Outcome(Symbol):
    """How a prompt that is done ended."""

    END_TURN = "end_turn"
    ERROR = "error"
    CANCELED = "canceled"
    FOLDED = "folded"


class Guard(Symbol):
    """A question that a row may ask about its prompt."""

    COVERED = "covered"
    BUSY = "busy"
    FIRST = "first"
    HAS_RUN_ID = "has_run_id"


GUARD_MEANING: Mapping[Symbol, str] = {
    Guard.COVERED: "a cancel has reached the prompt: its seq is at or below its session's mark",
    Guard.BUSY: "the session has an active prompt, or is down (as it still is inside `recover`)",
    Guard.FIRST: "no queued prompt of the session has a lower seq",
    Guard.HAS_RUN_ID: "the caller named the prompt with a run id",
}


class Trigger(Symbol):
    """What can happen to a prompt."""

    ENTER = "enter"
    FAIL = "fail"
    SETTLE = "settle"
    START = "start"
    FOLD = "fold"
    DROP = "drop"
    REQUEUE = "requeue"
    FINISH_END_TURN = "finish_end_turn"
    FINISH_ERROR = "finish_error"
    FINISH_CANCELED = "finish_canceled"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, eq=False)
class Row:
    """One line of the table: `trigger` takes a prompt from `source` to `dest` when all guards answer as asked."""

    trigger: Trigger
    source: State
    dest: State
    when: tuple[Symbol, ...] = ()  # guards
    unless: tuple[Symbol, ...] = ()
    outcome: Outcome | None = None
    rule: str = ""  # the clause of specs/protocol.md that it carries

    @property
    def condition(self) -> str:
        """The guards as people read them: `covered`, `busy, not covered`, or nothing."""
        return ", ".join([g.value for g in self.when] + [f"not {g.value}" for g in self.unless])

    @cached_property
    def name(self) -> str:
        return f"{self.trigger.value}→{self.dest.value}"

    def applies(self, holds: Callable[[Symbol], bool]) -> bool:
        return all(map(holds, self.when)) and not any(map(holds, self.unless))


ROWS: tuple[Row, ...] = (
    # A covered prompt is canceled whether the session is busy or not: it must not reach the queue.
    Row(Trigger.ENTER, State.ACCEPTED, State.CANCELED_ON_ENTRY, when=(Guard.COVERED,), rule="R4"),
    Row(Trigger.ENTER, State.ACCEPTED, State.QUEUED, when=(Guard.BUSY,), unless=(Guard.COVERED,), rule="R5a"),
    Row(Trigger.ENTER, State.ACCEPTED, State.ACTIVE, unless=(Guard.COVERED, Guard.BUSY), rule="R6a"),
    Row(Trigger.FAIL, State.ACCEPTED, State.CANCELED_ON_ENTRY, when=(Guard.COVERED,), rule="R8b"),
    Row(Trigger.FAIL, State.ACCEPTED, State.DONE, unless=(Guard.COVERED,), outcome=Outcome.ERROR, rule="R8a"),
    Row(Trigger.SETTLE, State.CANCELED_ON_ENTRY, State.DONE, outcome=Outcome.CANCELED, rule="R7a"),
    Row(Trigger.START, State.QUEUED, State.ACTIVE, when=(Guard.FIRST,), unless=(Guard.BUSY,), rule="R11b"),
    Row(Trigger.FOLD, State.QUEUED, State.DONE, unless=(Guard.HAS_RUN_ID,), outcome=Outcome.FOLDED, rule="R9a"),
    Row(Trigger.DROP, State.QUEUED, State.DONE, outcome=Outcome.CANCELED, rule="R13a"),
    Row(Trigger.REQUEUE, State.ACTIVE, State.QUEUED, unless=(Guard.COVERED,), rule="R10a"),
    Row(Trigger.FINISH_END_TURN, State.ACTIVE, State.DONE, outcome=Outcome.END_TURN, rule="R11a"),
    Row(Trigger.FINISH_ERROR, State.ACTIVE, State.DONE, outcome=Outcome.ERROR, rule="R11a"),
    Row(Trigger.FINISH_CANCELED, State.ACTIVE, State.DONE, when=(Guard.COVERED,), outcome=Outcome.CANCELED,
        rule="R12d"),
    Row(Trigger.INTERRUPT, State.ACTIVE, State.DONE, outcome=Outcome.ERROR, rule="R17a"),
)

INITIAL = State.ACCEPTED


class IllegalTrigger(Exception):
    """A trigger, or an action, that no row allows. The prompt is as it was (R19c)."""

    def __init__(
        self, prompt: object, state: State, trigger: Trigger | str, guards: Iterable[Symbol] | None = None,
    ) -> None:
        known = "" if guards is None else f" with guards [{', '.join(sorted(g.value for g in guards)) or 'none'}]"
        name = trigger.value if isinstance(trigger, Trigger) else trigger
        super().__init__(f"prompt {prompt} is {state.value}{known}: no row lets it {name}")


# --- The table that the rows make --------------------------------------------------------------------------------

Table = Mapping[tuple[Trigger, State], tuple[Row, ...]]


def list_valuations(rows: Iterable[Row]) -> list[frozenset[Symbol]]:
    """Every combination of answers to the questions that the rows ask, each as the guards that hold."""
    guards = {guard: None for row in rows for guard in (*row.when, *row.unless)}  # in the order of the rows
    return [frozenset(c) for c in chain.from_iterable(combinations(guards, n) for n in range(len(guards) + 1))]


def compile_rows(rows: Sequence[Row] = ROWS) -> Table:
    """The rows by trigger and source, of which one at most applies to any guard valuation."""
    table: dict[tuple[Trigger, State], tuple[Row, ...]] = {}
    valuations = list_valuations(rows)
    for row in rows:
        if (row.dest is State.DONE) != (row.outcome is not None):
            raise ValueError(f"row {row.name}: a row has an outcome if and only if it leads to done")
        others = table.get((row.trigger, row.source), ())
        for holds in valuations:
            if row.applies(holds.__contains__) and (other := row_of(others, holds.__contains__)):
                raise ValueError(f"rows {other.name} and {row.name} both apply to a prompt that is "
                                 f"{row.source.value} with guards {sorted(g.value for g in holds)}")
        table[row.trigger, row.source] = (*others, row)
    return table


def row_of(rows: Sequence[Row], holds: Callable[[Symbol], bool]) -> Row | None:
    """The one of these rows that applies. Only guards that they name are asked."""
    for row in rows:
        if row.applies(holds):
            return row
    return None
