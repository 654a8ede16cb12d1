"""The rows of a protocol as a `transitions` machine: the only thing that moves a prompt of the runtime."""

from functools import lru_cache
from typing import Any, Protocol

from transitions import Event, EventData, Machine, Transition
from transitions.core import Condition

from cancelmark.model.actions import Answer
from cancelmark.model.lifecycle import INITIAL, IllegalTrigger, Outcome, Row, State, Trigger
from cancelmark.model.protocol import Protocol as Rules


class Movable(Protocol):
    """What the machine moves: any object with a state, an outcome, and a session that its guards are answered from."""

    state: State
    outcome: Outcome | None

    @property
    def session(self) -> Any: ...


class Question(Condition):
    """A guard that is asked of the prompt alone."""

    func: Any  # always a function, never the name of one

    def check(self, event_data: Any) -> bool:
        return bool(self.func(event_data.model) == self.target)


class Direct(Transition):
    """A transition that calls nobody back, between states that have nothing to do when a prompt comes or goes: its
    guards, and the move. That is a third of the work."""

    condition_cls = Question

    def execute(self, event_data: Any) -> bool:
        if not self._eval_conditions(event_data):
            return False
        event_data.machine.set_state(self.dest, event_data.model)
        return True


class DirectEvent(Event):
    """A trigger that nobody prepares, queues or finalizes: the transitions from the prompt's state, the first that its
    guards allow. That is half of the rest."""

    def trigger(self, model: Any, *args: Any, **kwargs: Any) -> bool:
        event_data = EventData(None, self, self.machine, model, args, kwargs)
        return any(transition.execute(event_data) for transition in self.transitions.get(model.state.name, ()))


class DirectMachine(Machine):
    event_cls = DirectEvent
    transition_cls = Direct


class Lifecycle:
    """One machine for all prompts of a protocol. They are not attached to it, so it costs them nothing."""

    def __init__(self, rules: Rules) -> None:
        ask = {guard: self._question(rules.guards[guard]) for guard in rules.guards}
        self.machine: Any = DirectMachine(
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
                raise ValueError(f"two rows {row.name} from {row.source.value} have different outcomes: the machine "
                                 "cannot tell them apart; give each a trigger of its own")

    @staticmethod
    def _question(answer: Answer) -> Any:
        return lambda prompt: answer(prompt.session, prompt)

    def fire(self, prompt: Movable, trigger: Trigger) -> Row:
        """Moves `prompt` along the one row that applies and returns that row, or raises and changes nothing."""
        source = prompt.state
        try:
            moved = self._events[trigger].trigger(prompt, prompt)
        except KeyError:  # no row at all
            moved = False
        if not moved:
            raise IllegalTrigger(prompt, source, trigger)
        row = self._rows[trigger, source, prompt.state]
        prompt.outcome = row.outcome
        return row


@lru_cache
def lifecycle_of(rules: Rules) -> Lifecycle:
    return Lifecycle(rules)
