"""How a prompt ended."""

from typing import NamedTuple

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.wire import RunComplete

from ..store import Json
from ..wire import to_json


class Result(NamedTuple):
    """How a prompt ended. A folded prompt has the text and error of the turn that it was folded into."""

    session_id: str
    run_id: str | None
    outcome: Outcome
    text: str = ""
    message_id: str | None = None
    error: str | None = None
    asks: tuple[Json, ...] = ()  # the questions of its turn

    def to_json(self, seq: int) -> Json:
        """The terminal event on the wire."""
        return to_json(RunComplete(
            self.session_id, seq, self.outcome.value, self.run_id or "", self.message_id or "", self.text,
            self.error or "", self.asks, self.outcome is Outcome.CANCELED))
