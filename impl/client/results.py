"""Parses responses and events into wire types. A required field that is missing or has the wrong type raises a
`BadAnswer` that names it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.wire import RunComplete

from .. import wire
from ..wire import AgentEvent, Ask, Called, Gap, Json, Prompt, Session, TakenOver
from .errors import BadAnswer, Refusal

T = TypeVar("T")

_WORDS = {str: "text", int: "a number", bool: "true or false", list: "a JSON list", dict: "a JSON object"}


# --- reading

def read(kind: type[T], data: object, what: str = "there") -> T:
    """The data as `kind`: a wire type, a tuple of such, or a plain value. Raises `BadAnswer`."""
    made: Any
    if is_dataclass(kind):
        made = kind(**_read_fields(kind, _expect(dict, data, what)))
    elif get_origin(kind) is tuple:  # an empty one may be null
        item = get_args(kind)[0]
        made = tuple(read(item, one, what) for one in _expect(list, [] if data is None else data, what))
    elif kind is Any:
        made = data
    else:
        made = _expect(dict if get_origin(kind) is Mapping else kind, data, what)
    return cast(T, made)


def _read_fields(kind: Any, data: Json) -> dict[str, Any]:
    given = {}
    for name, hint, default, needed in _fields(kind):
        value = data.get(name)
        if value is not None or default is MISSING:
            try:
                given[name] = read(hint, value, f"field {name!r}")
            except BadAnswer:
                if needed:
                    raise
    return given


@cache
def _fields(kind: Any) -> list[tuple[str, Any, Any, bool]]:
    hints = {name: get_args(hint)[0] if isinstance(hint, UnionType) else hint  # the other is None
             for name, hint in get_type_hints(kind).items()}
    return [(f.name, hints[f.name], f.default, f.metadata.get("needed", True)) for f in fields(kind)]


def _expect(kind: type, data: object, what: str) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        shown = "missing" if data is None else f"{json.dumps(data, default=str):.80}"
        raise BadAnswer(f"{what} should be {_WORDS[kind]}, not {shown}")
    return data


# --- types

@dataclass(frozen=True)
class TextPart:
    text: str = ""


@dataclass(frozen=True)
class FinishPart:
    reason: str


@dataclass(frozen=True)
class Message(wire.Message):
    """A message of a session. Not every server reports the prompt that it belongs to."""

    @property
    def text(self) -> str:
        return "".join(read(TextPart, part.get("data")).text for part in self.parts if part.get("type") == "text")

    @property
    def finish_reason(self) -> str | None:
        """Why the message is complete, or None while it is not."""
        finished = (part.get("data") for part in self.parts if part.get("type") == "finish")
        return next((read(FinishPart, data).reason for data in finished), None)


def read_end(data: Json) -> RunComplete:
    """A terminal event. The original server sends no outcome; it follows from other fields."""
    end = read(RunComplete, data)
    other = Outcome.CANCELED if end.cancelled else Outcome.ERROR if end.error else Outcome.END_TURN
    return end if end.outcome else replace(end, outcome=other.value)


def read_ended(refusal: Refusal) -> Ask | None:
    """The question as it ended, if a late answer to it was refused."""
    return read(Ask, refusal.told.ask) if refusal.told.ask else None


Payload: TypeAlias = Message | Session | RunComplete | AgentEvent | Prompt | Ask | Called | TakenOver | Gap | Json

PAYLOADS: Mapping[str, type[Payload]] = {
    "message": Message, "session": Session, "agent_event": AgentEvent, "prompt": Prompt, "ask": Ask, "call": Called,
    "taken_over": TakenOver, "gap": Gap}


@dataclass(frozen=True)
class Change:
    payload: Json
    type: str = ""


@dataclass(frozen=True)
class Envelope:
    type: str
    payload: Change


@dataclass(frozen=True)
class Notice:
    """One event of a workspace. An unknown type keeps its raw payload; a terminal event is always parsed."""

    id: str
    type: str
    change: str
    """`created`, `updated` or `deleted`."""
    payload: Payload
    envelope: Json
    """The raw event."""

    @classmethod
    def read(cls, id: str, data: str) -> "Notice":
        try:
            envelope = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"an event is not JSON: {data:.80}") from error
        told = read(Envelope, envelope)
        return cls(id, told.type, told.payload.type, _payload(told.type, told.payload.payload), envelope)


def _payload(type: str, payload: Json) -> Payload:
    if type == "run_complete":
        return read_end(payload)
    try:
        return read(PAYLOADS[type], payload)
    except (KeyError, BadAnswer):  # an unknown type, or a malformed update: pass on the raw payload
        return payload
