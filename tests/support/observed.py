"""What those who watch a runtime are told, held against what is durable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cancelmark.impl.runtime.events import Broker, Notice, Update
from cancelmark.impl.runtime.messages import wire_message
from cancelmark.impl.runtime.run import STATE
from cancelmark.impl.store import Event, Json, MessageRecord
from cancelmark.model.lifecycle import INITIAL, Outcome, State
from cancelmark.model.session import DEFAULT_TRAITS, Traits, label

Moves = Sequence[tuple[State, Outcome | None]]


@dataclass
class Observed:
    """What one who watches has seen since the prompt with the seq `since`."""

    since: int
    events: list[int] = field(default_factory=list)  # their ids
    messages: dict[str, Json] = field(default_factory=dict)  # each as it was shown last

    def see(self, notice: Notice) -> None:
        if isinstance(notice, Event):
            self.events.append(notice.id)
        elif notice.type == "message":
            self.messages[notice.payload["id"]] = {k: v for k, v in notice.payload.items() if k != "seq"}

    def find_stale(self, written: Mapping[str, MessageRecord]) -> list[str]:
        """The messages of prompts that came later than the watcher, and that it has not seen as they were written."""
        return [id for id, message in written.items()
                if int(id[1:].partition("-")[0]) > self.since and self.messages.get(id) != wire_message(message)]


class Told:
    """Which states of prompts were told, in their order."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # how much of a prompt's journal has been told

    def find_hasty(self, update: Update, journal: Mapping[int, Moves], marks: Mapping[str, int],
                   traits: Mapping[int, Traits], texts: Mapping[int, Sequence[str]]) -> str | None:
        """What is wrong with an update that tells of a state: the journal has not got so far (R16c)."""
        if update.type != STATE:
            return None
        seq, state, outcome = update.payload["seq"], update.payload["state"], update.payload.get("outcome")
        kept = traits.get(seq, DEFAULT_TRAITS)
        if update.payload.get("front", 0) > kept.front:
            return f"{label(seq)} is told of at front {update.payload['front']}, and the journal has {kept.front}"
        version, written = update.payload.get("version", 0), texts.get(seq, ())
        if [update.payload["text"]] != list(written[version:version + 1]):
            return f"{label(seq)} is told of as {update.payload['text']!r}, {version}, and the journal has {written}"
        if update.payload.get("stopping"):
            return None if kept.revoked or marks.get(update.session_id, 0) >= seq else (
                f"{label(seq)} is told to stop before its cancel")
        known = [(INITIAL, None), *journal[seq]] if seq in journal else []
        if kept is not DEFAULT_TRAITS and known[(self._places.get(seq) or 1) - 1] == (State(state), None):
            return None  # told again, because a call has changed it
        for place in range(self._places.get(seq, 0), len(known)):
            if known[place] == (State(state), outcome and Outcome(outcome)):
                self._places[seq] = place + 1
                return None
        return f"{label(seq)} is told of as {outcome or state}, and the journal has {known}"


def telling(kind: type[Broker], hear: Callable[[Update], None]) -> type[Broker]:
    """The same kind of broker, which tells of each update when it is published."""
    def publish(self: Broker, update: Update) -> None:
        hear(update)
        kind.publish(self, update)

    return type(kind.__name__, (kind,), {"publish": publish})
