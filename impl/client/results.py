"""What a server answers and publishes, as data. Fields that nobody here needs are left out; those that are needed, and
are missing or of the wrong kind, make a `BadAnswer` that names them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .errors import BadAnswer

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")


# --- reading

def field(data: Json, name: str, kind: type[T], default: T | None = None) -> T:
    """A field of this kind. With a default it may be missing or null."""
    value = data.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadAnswer(f"field {name!r} should be {_KINDS[kind]}, not {_shown(value)}")
    return value


def mapping(data: object) -> Json:
    if not isinstance(data, dict):
        raise BadAnswer(f"there should be a JSON object, not {_shown(data)}")
    return data


def one(read: Callable[[Json], T]) -> Callable[[object], T]:
    """Reads such an object."""
    return lambda data: read(mapping(data))


def each(read: Callable[[Json], T]) -> Callable[[object], tuple[T, ...]]:
    """Reads a list of such objects. A list with nothing in it may be null."""
    def read_all(data: object) -> tuple[T, ...]:
        if data is not None and not isinstance(data, list):
            raise BadAnswer(f"there should be a JSON list, not {_shown(data)}")
        return tuple(read(mapping(item)) for item in data or ())
    return read_all


_KINDS: Mapping[type, str] = {str: "text", int: "a number", bool: "true or false", list: "a list", dict: "an object"}


def _shown(value: object) -> str:
    return "missing" if value is None else f"{json.dumps(value, default=str):.80}"


# --- answers

@dataclass(frozen=True)
class Version:
    """Which server it is. One that does not say its name and protocol may be the original."""

    version: str
    name: str = ""
    protocol: int = 0

    @classmethod
    def read(cls, data: Json) -> "Version":
        return cls(field(data, "version", str), field(data, "name", str, ""), field(data, "protocol", int, 0))


@dataclass(frozen=True)
class Workspace:
    """A directory whose sessions clients share. The same resolved path is the same workspace."""

    id: str
    path: str

    @classmethod
    def read(cls, data: Json) -> "Workspace":
        return cls(field(data, "id", str), field(data, "path", str))


@dataclass(frozen=True)
class Session:
    id: str
    title: str
    is_busy: bool | None = None
    """Whether it has a prompt that is not done; not every answer says so."""

    @classmethod
    def read(cls, data: Json) -> "Session":
        busy = field(data, "is_busy", bool) if "is_busy" in data else None
        return cls(field(data, "id", str), field(data, "title", str, ""), busy)


@dataclass(frozen=True)
class Agent:
    """Whether prompts can be sent, and whether any is not done."""

    is_ready: bool
    is_busy: bool

    @classmethod
    def read(cls, data: Json) -> "Agent":
        return cls(field(data, "is_ready", bool), field(data, "is_busy", bool))


@dataclass(frozen=True)
class Message:
    """A message of a session as it is now. Not every server says which prompt it belongs to."""

    id: str
    session_id: str
    role: str
    parts: Sequence[Json] = ()
    run_id: str = ""
    seq: int = 0

    @classmethod
    def read(cls, data: Json) -> "Message":
        parts = tuple(map(mapping, field(data, "parts", list, [])))
        return cls(field(data, "id", str), field(data, "session_id", str), field(data, "role", str), parts,
                   field(data, "run_id", str, ""), field(data, "seq", int, 0))

    @property
    def text(self) -> str:
        return "".join(field(mapping(part.get("data")), "text", str, "")
                       for part in self.parts if part.get("type") == "text")

    @property
    def finish_reason(self) -> str | None:
        """Why it is complete, or None while it is not."""
        return next((field(mapping(part.get("data")), "reason", str) for part in self.parts
                     if part.get("type") == "finish"), None)


# --- events

@dataclass(frozen=True)
class RunComplete:
    """The terminal event of a prompt: it is done, and how. Without a run id it is that of a prompt that had none."""

    session_id: str
    run_id: str
    outcome: str
    """`end_turn`, `error` or `canceled`."""
    text: str = ""
    error: str = ""
    message_id: str = ""
    seq: int = 0

    @classmethod
    def read(cls, data: Json) -> "RunComplete":
        error = field(data, "error", str, "")
        canceled = field(data, "cancelled", bool, False)
        outcome = field(data, "outcome", str, "canceled" if canceled else "error" if error else "end_turn")
        return cls(field(data, "session_id", str, ""), field(data, "run_id", str, ""), outcome,
                   field(data, "text", str, ""), error, field(data, "message_id", str, ""), field(data, "seq", int, 0))


@dataclass(frozen=True)
class AgentEvent:
    """Something that the agent has to say; with an error, that something failed."""

    type: str
    session_id: str = ""
    run_id: str = ""
    error: str = ""

    @classmethod
    def read(cls, data: Json) -> "AgentEvent":
        return cls(field(data, "type", str, ""), field(data, "session_id", str, ""), field(data, "run_id", str, ""),
                   field(data, "error", str, ""))


@dataclass(frozen=True)
class Prompt:
    """A prompt has come to this state; `outcome` says how it ended, once it is done."""

    seq: int
    session_id: str
    state: str
    outcome: str = ""
    run_id: str = ""
    text: str = ""

    @classmethod
    def read(cls, data: Json) -> "Prompt":
        return cls(field(data, "seq", int), field(data, "session_id", str), field(data, "state", str),
                   field(data, "outcome", str, ""), field(data, "run_id", str, ""), field(data, "text", str, ""))


Payload: TypeAlias = Message | Session | RunComplete | AgentEvent | Prompt | Json

PAYLOADS: Mapping[str, Callable[[Json], Payload]] = {
    "message": Message.read,
    "session": Session.read,
    "agent_event": AgentEvent.read,
    "prompt": Prompt.read,
}


@dataclass(frozen=True)
class Notice:
    """One event of a workspace. What is not known here has its payload as it came; a terminal event is always known."""

    id: str
    type: str
    change: str
    """`created`, `updated` or `deleted`."""
    payload: Payload
    envelope: Json
    """All of it, as it came."""

    @classmethod
    def read(cls, id: str, data: str) -> "Notice":
        try:
            envelope = mapping(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"an event is not JSON: {data:.80}") from error
        type, inner = field(envelope, "type", str), mapping(envelope.get("payload"))
        payload = mapping(inner.get("payload"))
        return cls(id, type, field(inner, "type", str, ""), _payload(type, payload), envelope)


def _payload(type: str, payload: Json) -> Payload:
    if type == "run_complete":
        return RunComplete.read(payload)
    try:
        return PAYLOADS[type](payload)
    except (KeyError, BadAnswer):  # a type for others, or an update: those may be missed
        return payload
