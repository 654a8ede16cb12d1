"""Operations as SQL statements."""

import json
import re
from functools import cache
from time import time
from typing import Any, NamedTuple

from cancelmark.model.lifecycle import INITIAL, State

from .operations import (
    AcceptPrompt,
    AppendEvent,
    ChangePrompt,
    DropEvent,
    ForgetPrompt,
    HoldSession,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
    SetQuestions,
)

_NEW_SESSION = "INSERT INTO sessions (id, title, mark, created_at) VALUES (?, ?, 0, ?)"
_RAISE_MARK = "UPDATE sessions SET mark = max(mark, ?) WHERE id = ?"
_HOLD_SESSION = "UPDATE sessions SET held = ? WHERE id = ?"
_ACCEPT_PROMPT = """
    INSERT INTO prompts (seq, session_id, text, run_id, state, attachments, front, urgent)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_MOVE_PROMPT = """
    UPDATE prompts SET state = ?, outcome = ?, done_at = ?, taken_in_by = ?, begun = begun OR ?
    WHERE seq = ? AND state <> 'done'
"""
_CHANGE_PROMPT = """
    UPDATE prompts SET revoked = ?, front = ?, version = ?, urgent = ? WHERE seq = ? AND state <> 'done'
"""
_REPLACE_TEXT = "UPDATE prompts SET text = ?, first = coalesce(first, ?) WHERE seq = ? AND state <> 'done'"
_SET_QUESTIONS = "UPDATE prompts SET questions = ? WHERE seq = ? AND state <> 'done'"
_PUT_MESSAGE = """
    INSERT INTO messages (id, session_id, role, parts, model, provider, created_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        role = excluded.role, parts = excluded.parts, model = excluded.model, provider = excluded.provider,
        created_at = excluded.created_at, updated_at = excluded.updated_at
        WHERE session_id = excluded.session_id
"""
_PUT_MESSAGE_DURING = _PUT_MESSAGE.replace(
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM prompts WHERE seq = ? AND state <> 'done')")
APPEND_EVENT = "INSERT INTO events (session_id, type, payload, run_id, made_at) VALUES (?, ?, ?, ?, ?)"
_DROP_EVENT = """
    DELETE FROM events WHERE id = ? AND id = (SELECT min(id) FROM events) AND id < (SELECT max(id) FROM events)
"""
_FORGETTABLE = "seq = ? AND state = 'done' AND digest IS NULL AND seq < (SELECT max(seq) FROM prompts)"
_FORGET_PROMPT = f"DELETE FROM prompts WHERE {_FORGETTABLE} AND run_id IS NULL"
_FORGET_TEXT = ("UPDATE prompts SET text = '', attachments = NULL, questions = NULL, digest = ?"
                f" WHERE {_FORGETTABLE} AND run_id IS NOT NULL")
FREEING = frozenset((_DROP_EVENT, _FORGET_PROMPT, _FORGET_TEXT))

_ACCEPTED = INITIAL.value


class Statement(NamedTuple):
    """An operation as SQL. The operation was allowed if and only if the statement changed one row."""

    operation: Operation
    sql: str
    values: tuple[Any, ...]


@cache
def insert_many(sql: str, rows: int) -> str | None:
    """The statement for so many rows at once, in order. None if it is not an insert."""
    if not (found := _VALUES.search(sql)):
        return None
    return f"{sql[:found.end()]}{(', ' + found[1]) * (rows - 1)}{sql[found.end():]}"


_VALUES = re.compile(r"\bVALUES (\([?, 0]+\))")


def make_statement(op: Operation) -> Statement:
    match op:
        case NewSession():
            return Statement(op, _NEW_SESSION, (op.id, op.title, op.created_at))
        case RaiseMark():
            return Statement(op, _RAISE_MARK, (op.mark, op.session_id))
        case AcceptPrompt():
            return Statement(op, _ACCEPT_PROMPT, (op.seq, op.session_id, op.text, op.run_id, _ACCEPTED,
                                                   _dumps(op.attachments) if op.attachments else None,
                                                   op.traits.front, op.traits.urgent))
        case MovePrompt():
            return Statement(op, _MOVE_PROMPT, (op.state.value, op.outcome and op.outcome.value,
                                                 int(time()) if op.outcome else None, op.into,
                                                 op.state is State.ACTIVE, op.seq))
        case ChangePrompt(seq, traits):
            return Statement(op, _CHANGE_PROMPT, (traits.revoked, traits.front, traits.version, traits.urgent, seq))
        case ReplaceText():
            return Statement(op, _REPLACE_TEXT, (op.text, op.was, op.seq))
        case SetQuestions():
            return Statement(op, _SET_QUESTIONS, (_dumps(op.questions), op.seq))
        case HoldSession():
            return Statement(op, _HOLD_SESSION, (op.held, op.session_id))
        case PutMessage(m, during):
            row = (m.id, m.session_id, m.role, _dumps(m.parts), m.model, m.provider, m.created_at, m.updated_at)
            if during is None:
                return Statement(op, _PUT_MESSAGE, row)
            return Statement(op, _PUT_MESSAGE_DURING, (*row, during))
        case AppendEvent():
            return Statement(op, APPEND_EVENT, (op.session_id, op.type, _dumps(op.payload), op.run_id, int(time())))
        case DropEvent():
            return Statement(op, _DROP_EVENT, (op.id,))
        case ForgetPrompt(digest=None):
            return Statement(op, _FORGET_PROMPT, (op.seq,))
        case ForgetPrompt():
            return Statement(op, _FORGET_TEXT, (op.digest, op.seq))


_dumps = json.JSONEncoder(separators=(",", ":")).encode
