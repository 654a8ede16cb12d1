"""The lifecycle of a prompt: five states, and a table of the transitions between them.

Rules of this file:

1. Every state change of a prompt, in the model and at run time, is a row of `ROWS`. The runtime's state machine, the
   explorer's tables, the diagrams and the table in specs/protocol.md are all generated from these rows.
2. The table is complete. A trigger for which no row has the prompt's state and true guards raises an error and changes
   nothing.
3. At most one row matches. Rows with the same trigger and source have mutually exclusive guards; `compile_rows`
   rejects a table in which two rows could both apply.
4. A guard is a predicate on a prompt. Rows only name their guards; `actions.GUARDS` implements them.

    accepted ──enter──▶ active ──finish──▶ done                  the normal path (interrupt, at a restart: done)
        │                ▲  │
        │           start│  │requeue
        ├────enter──▶ queued ──drop, fold──▶ done                the session was busy
        ├────enter, fail──▶ canceled_on_entry ──settle──▶ done   the mark covered the prompt before it entered
        └────fail──▶ done                                        the prompt could not start
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, combinations


class Symbol(Enum):
    """Base of the enums that name parts of a protocol. A protocol can add its own (`family.FamilyGuard`).

    Members hash by identity, because they are singletons. `Enum` would hash their names in Python code, which shows
    in the explorer's profile: it hashes millions of them.
    """

    __hash__ = object.__hash__


class State(Symbol):
    """The state of a prompt."""

    ACCEPTED = "accepted"
    CANCELED_ON_ENTRY = "canceled_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"


class Outcome(Symbol):
    """The outcome of a finished prompt."""

    END_TURN = "end_turn"
    ERROR = "error"
    CANCELED = "canceled"
    FOLDED = "folded"


class Guard(Symbol):
    """A predicate on a prompt that a row can require or exclude."""

    COVERED = "covered"
    BUSY = "busy"
    FIRST = "first"
    HAS_RUN_ID = "has_run_id"


GUARD_MEANING: Mapping[Symbol, str] = {
    Guard.COVERED: "a cancel covers the prompt: its seq is at or below its session's mark",
    Guard.BUSY: "the session has an active prompt, or is down (it is still down while `recover` runs)",
    Guard.FIRST: "no queued prompt of the session has a lower seq",
    Guard.HAS_RUN_ID: "the caller gave the prompt a run id",
}


class Trigger(Symbol):
    """An event that changes a prompt's state."""

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
    """One transition: `trigger` moves a prompt from `source` to `dest` if all `when` and no `unless` guards hold."""

    trigger: Trigger
    source: State
    dest: State
    when: tuple[Symbol, ...] = ()  # guards
    unless: tuple[Symbol, ...] = ()
    outcome: Outcome | None = None
    rule: str = ""  # the clause of specs/protocol.md that it implements

    @property
    def condition(self) -> str:
        """The guards for display: `covered`, `busy, not covered`, or an empty string."""
        return ", ".join([g.value for g in self.when] + [f"not {g.value}" for g in self.unless])

    @cached_property
    def name(self) -> str:
        return f"{self.trigger.value}→{self.dest.value}"

    def applies(self, holds: Callable[[Symbol], bool]) -> bool:
        return all(map(holds, self.when)) and not any(map(holds, self.unless))


ROWS: tuple[Row, ...] = (
    # A covered prompt is canceled even if the session is busy: it must never reach the queue.
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
    """No row allows this trigger or action. The prompt is unchanged (R19c)."""

    def __init__(
        self, prompt: object, state: State, trigger: Trigger | str, guards: Iterable[Symbol] | None = None,
    ) -> None:
        known = "" if guards is None else f" with guards [{', '.join(sorted(g.value for g in guards)) or 'none'}]"
        name = trigger.value if isinstance(trigger, Trigger) else trigger
        super().__init__(f"prompt {prompt} is {state.value}{known}: no row allows {name}")


# --- The table compiled from the rows ----------------------------------------------------------------------------

Table = Mapping[tuple[Trigger, State], tuple[Row, ...]]


def list_valuations(rows: Iterable[Row]) -> list[frozenset[Symbol]]:
    """Every subset of the guards named in the rows: the guards that hold in one valuation."""
    guards = {guard: None for row in rows for guard in (*row.when, *row.unless)}  # a dict keeps the rows' order
    return [frozenset(c) for c in chain.from_iterable(combinations(guards, n) for n in range(len(guards) + 1))]


def compile_rows(rows: Sequence[Row] = ROWS) -> Table:
    """Group the rows by trigger and source. Raise ValueError if two rows apply under the same guard valuation."""
    table: dict[tuple[Trigger, State], tuple[Row, ...]] = {}
    valuations = list_valuations(rows)
    for row in rows:
        if (row.dest is State.DONE) != (row.outcome is not None):
            raise ValueError(f"row {row.name}: a row must have an outcome if its dest is done, and only then")
        others = table.get((row.trigger, row.source), ())
        for holds in valuations:
            if row.applies(holds.__contains__) and (other := row_of(others, holds.__contains__)):
                raise ValueError(f"rows {other.name} and {row.name} both apply to a prompt that is "
                                 f"{row.source.value} with guards {sorted(g.value for g in holds)}")
        table[row.trigger, row.source] = (*others, row)
    return table


def row_of(rows: Sequence[Row], holds: Callable[[Symbol], bool]) -> Row | None:
    """Return the row that applies, or None. Only guards that the rows name are evaluated."""
    for row in rows:
        if row.applies(holds):
            return row
    return None
