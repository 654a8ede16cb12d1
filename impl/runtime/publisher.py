"""The updates that subscribers of a session receive, published once they are stored."""

from collections.abc import Mapping

from cancelmark.model.lifecycle import Outcome, State

from .. import wire
from ..store import Json
from .events import Broker, Update
from .messages import list_names
from .run import CALL, STATE, Run, Shown, show
from .session import LivePrompt, TakenStep

SHOWN = 280  # characters of a prompt's text in an update of its state
SESSION = "session"  # the type of an update of a session


class Publisher:
    """Publishes the updates of one session. `runs` holds its prompts that run or wait here, by seq."""

    def __init__(self, session_id: str, broker: Broker, runs: Mapping[int, Run]) -> None:
        self._id, self._broker, self._runs = session_id, broker, runs

    def publish_hold(self, described: Json, held: bool) -> None:
        """Publish that the session was held or resumed."""
        self._broker.publish(Update(self._id, SESSION, {**described, "held": held}))

    def publish_call(self, call: wire.Called) -> None:
        """Publish a client's call."""
        if self._broker.watched:
            self._broker.publish(Update(self._id, CALL, wire.to_json(call)))

    def publish_step(self, step: TakenStep, watched: bool, node: str) -> None:
        """Publish the states of the prompts that the step has moved or changed, if the broker is `watched`. `node` is
        the server that runs the active ones."""
        if watched and step.action == "accept" and step.prompt:
            self.publish_state(step.prompt, State.ACCEPTED)
        for prompt, traits, state in step.changed:
            if run := self._runs.get(prompt.seq):
                text = run.shown.text if step.was is None else step.text
                run.shown = Shown(text, traits.version, traits.front)
            if watched and state in (State.ACCEPTED, State.QUEUED) and step.action != "accept":  # else its move does
                self.publish_state(prompt, state)
        for prompt, row in step.moved if watched else ():
            self.publish_state(prompt, row.dest, row.outcome, node=node)

    def publish_stopping(self, prompt: LivePrompt, node: str) -> None:
        """Publish that an active prompt was asked to stop."""
        if self._broker.watched:
            self.publish_state(prompt, State.ACTIVE, stopping=True, node=node)

    def publish_state(self, prompt: LivePrompt, state: State, outcome: Outcome | None = None, *, stopping: bool = False,
                      node: str = "") -> None:
        text, version, front = run.shown if (run := self._runs.get(prompt.seq)) else show(prompt)
        more = {"run_id": prompt.run_id, "outcome": outcome and outcome.value, "stopping": stopping,
                "attachments": list_names(prompt.attachments), "version": version, "front": front,
                "node": node if state is State.ACTIVE else ""}
        self._broker.publish(Update(self._id, STATE, {
            "seq": prompt.seq, "session_id": self._id, "text": text[:SHOWN], "state": state.value,
            **{name: value for name, value in more.items() if value}}, prompt.run_id))
