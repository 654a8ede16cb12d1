"""What is read from a store. Records are tuples: many are created, and a frozen dataclass is three times as slow."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import DEFAULT_TRAITS, Traits

TERMINAL = "run_complete"  # the type of a terminal event
ASK = "ask"  # the type of an event that opens or closes a question
Json: TypeAlias = Mapping[str, Any]  # a JSON object; must not be changed once it is shared


def make_digest(text: str, attachments: Sequence[Json] = ()) -> str:
    """The digest that stays when a prompt's text and attachments are forgotten."""
    return sha256((json.dumps([text, *attachments], sort_keys=True) if attachments else text).encode()).hexdigest()


class SessionRecord(NamedTuple):
    """A stored session."""

    id: str
    title: str
    mark: int
    created_at: int


class PromptRecord(NamedTuple):
    """A journaled prompt. It has an `outcome` if and only if it is done."""

    seq: int
    session_id: str
    text: str
    run_id: str | None
    state: State
    outcome: Outcome | None
    digest: str | None = None  # of its text, once the text is forgotten
    attachments: tuple[Json, ...] = ()  # parts of its message
    traits: Traits = DEFAULT_TRAITS
    first: str | None = None  # the digest of its accepted text, once the text is replaced
    into: int | None = None  # once it is folded: the prompt into whose turn
    questions: tuple[Json, ...] = ()  # that its turn has asked, in order of number

    def was(self, text: str, attachments: Sequence[Json] = ()) -> bool:
        """Whether it was accepted with that text and those attachments."""
        known = self.digest or self.first
        if known is None:
            return self.text == text and self.attachments == tuple(attachments)
        return known == make_digest(text, attachments)

    @property
    def accepted_digest(self) -> str:
        """The digest to keep when it is forgotten."""
        return self.digest or self.first or make_digest(self.text, self.attachments)


class Transition(NamedTuple):
    """One line of a prompt's journaled history: the state that it reached."""

    seq: int
    state: State
    outcome: Outcome | None


class MessageRecord(NamedTuple):
    """A message of a session, with the fields that it has on the wire."""

    id: str
    session_id: str
    role: str
    parts: tuple[Json, ...]
    model: str = ""
    provider: str = ""
    created_at: int = 0
    updated_at: int = 0

    @property
    def finish_reason(self) -> str | None:
        """The reason in its finish part; None while it has none."""
        return next((part["data"]["reason"] for part in self.parts if part["type"] == "finish"), None)


class Incarnation(NamedTuple):
    """One life of the store: the first event that it wrote to the log, and its name."""

    first: int
    name: str


class Event(NamedTuple):
    """An event in the log. Ids rise in the order of commits and are never reused."""

    id: int
    session_id: str
    run_id: str | None
    type: str
    payload: Json

    @property
    def terminal(self) -> bool:
        return self.type == TERMINAL
