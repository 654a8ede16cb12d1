"""The rows of a protocol as a `transitions` machine: the only code that moves a prompt of the runtime."""

from functools import lru_cache
from typing import Any, Protocol

from transitions import Machine, MachineError

from cancelmark.model.actions import Answer
from cancelmark.model.lifecycle import INITIAL, IllegalTrigger, Outcome, Row, State, Trigger
from cancelmark.model.protocol import Protocol as Rules


class Movable(Protocol):
    """What the machine moves: an object with a state, an outcome, and a session that answers its guards."""

    state: State
    outcome: Outcome | None

    @property
    def session(self) -> Any: ...


class Lifecycle:
    """One machine for all prompts of a protocol. Prompts are not attached to it, so it costs them nothing."""

    def __init__(self, rules: Rules) -> None:
        ask = {guard: self._question(rules.guards[guard]) for guard in rules.guards}
        self.machine: Any = Machine(
            model=None, states=State, initial=INITIAL, auto_transitions=False,
            transitions=[
                {"trigger": row.trigger.value, "source": row.source, "dest": row.dest,
                 "conditions": [ask[g] for g in row.when], "unless": [ask[g] for g in row.unless]}
                for row in rules.rows
            ],
        )
        self._events = {Trigger(name): event for name, event in self.machine.events.items()}
        self._rows: dict[tuple[Trigger, State, State], Row] = {}
        for row in rules.rows:
            same = self._rows.setdefault((row.trigger, row.source, row.dest), row)
            if same.outcome is not row.outcome:
                raise ValueError(f"two rows {row.name} from {row.source.value} have different outcomes and the same "
                                 "trigger; give each a trigger of its own")

    @staticmethod
    def _question(answer: Answer) -> Any:
        return lambda prompt: answer(prompt.session, prompt)

    def fire(self, prompt: Movable, trigger: Trigger) -> Row:
        """Move the prompt along the one row that applies, and return that row. Raises `IllegalTrigger` and changes
        nothing if none does."""
        source, event = prompt.state, self._events.get(trigger)
        try:
            moved = event is not None and event.trigger(prompt, prompt)
        except MachineError:  # no row from this state
            moved = False
        if not moved:
            raise IllegalTrigger(prompt, source, trigger)
        row = self._rows[trigger, source, prompt.state]
        prompt.outcome = row.outcome
        return row


@lru_cache
def lifecycle_of(rules: Rules) -> Lifecycle:
    return Lifecycle(rules)
