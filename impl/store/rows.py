"""Converts the rows of a database to records. A row that no store can have written raises an error that names it."""

import json
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, TypeVar

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.questions import Question
from cancelmark.model.session import Traits

from .interface import Broken
from .records import Event, Incarnation, Json, MessageRecord, PromptRecord, SessionRecord, Transition
from .troubles import DAMAGED

V = TypeVar("V")

STATUSES = frozenset(question.value for question in Question)

NAMES = {"make_session": "session", "make_mark": "session", "make_prompt": "prompt", "make_transition": "prompt",
         "make_message": "message", "make_event": "event", "make_life": "life", "int": "number"}


def make_records(where: object, make: Callable[..., V], rows: Iterable[Sequence[Any]]) -> list[V]:
    """A record of each row. Raises `Broken` for a malformed row."""
    records: list[V] = []
    for row in rows:
        try:
            records.append(make(*row))
        except (ValueError, RecursionError) as error:
            problem, remedy = DAMAGED
            raise Broken(where, f"{problem}: {NAMES[make.__name__]} {row[0]!r:.80}: {error}",
                         remedy) from error
    return records


def make_session(id: Any, title: Any, mark: Any, created_at: Any) -> SessionRecord:
    return SessionRecord(_text("id", id), _text("title", title), _number("mark", mark), _number("time", created_at))


def make_mark(session_id: Any, mark: Any, held: Any) -> tuple[str, int, bool]:
    """A session's id and mark, and whether it is held."""
    return _text("id", session_id), _number("mark", mark), bool(_number("hold", held))


def make_prompt(seq: int, session_id: Any, text: Any, run_id: Any, state: Any, outcome: Any, digest: Any,
                attachments: Any, revoked: Any, front: Any, version: Any, begun: Any, urgent: Any, first: Any,
                into: Any, questions: Any) -> PromptRecord:
    traits = Traits(bool(_number("revoked", revoked)), _number("front", front), _number("version", version),
                    bool(_number("begun", begun)), bool(_number("urgent", urgent)))
    return PromptRecord(seq, _text("session_id", session_id), _text("text", text), _text_or_none("run_id", run_id),
                        State(state), None if outcome is None else Outcome(outcome), _text_or_none("digest", digest),
                        () if attachments is None else _parts("attachments", attachments), traits,
                        _text_or_none("first", first), None if into is None else _number("taken_in_by", into),
                        () if questions is None else _questions(questions))


def make_transition(seq: int, state: Any, outcome: Any, position: int) -> Transition:
    return Transition(seq, State(state), None if outcome is None else Outcome(outcome))


def make_message(
    id: Any, session_id: Any, role: Any, parts: Any, model: Any, provider: Any, *times: Any,
) -> MessageRecord:
    created_at, updated_at = (_number("time", time) for time in times)
    return MessageRecord(_text("id", id), _text("session_id", session_id), _text("role", role), _parts("parts", parts),
                   _text("model", model), _text("provider", provider), created_at, updated_at)


def _parts(name: str, value: Any) -> tuple[Json, ...]:
    found = json.loads(_text(name, value))
    if not isinstance(found, list) or not all(map(_is_part, found)):
        raise ValueError(f"{name}: expected a list of objects with a type and data")
    return tuple(found)


def _questions(value: Any) -> tuple[Json, ...]:
    found = json.loads(_text("questions", value))
    if not isinstance(found, list) or not all(isinstance(one, dict) and one.get("status") in STATUSES for one in found):
        raise ValueError("questions: expected a list of objects with a status")
    return tuple(found)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and isinstance(part.get("data"), dict)


def make_event(id: int, session_id: Any, run_id: Any, type: Any, payload: Any) -> Event:
    found = json.loads(_text("payload", payload))
    if not isinstance(found, dict):
        raise ValueError("payload: expected an object")
    return Event(id, _text("session_id", session_id), _text_or_none("run_id", run_id), _text("type", type), found)


def make_life(first: int, name: Any) -> Incarnation:
    return Incarnation(first, _text("name", name))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text")
    return value


def _text_or_none(name: str, value: Any) -> str | None:
    return None if isinstance(value, NoneType) else _text(name, value)


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{name}: expected a number")
    return value
