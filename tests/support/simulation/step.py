"""The function `step` of the schema, in Python. It compares and writes as that one does, statement by statement; the
contract tests hold both to the same promises."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cancelmark.impl.store.postgres.step import CLOSING, REFUSED, WORN_OUT


class Raised(psycopg.DatabaseError):
    """An error of the database with this code."""

    def __init__(self, state: str, detail: str = "", constraint: str = "") -> None:
        super().__init__(f"{state} {detail}{constraint}")
        self.sqlstate = state
        self._told = SimpleNamespace(message_detail=detail, constraint_name=constraint)

    @property
    def diag(self) -> Any:
        return self._told


class Asked(NamedTuple):
    """What a step is called with."""

    node: UUID
    home: UUID
    sid: str
    step_id: str
    known: int | None
    fence: int | None
    claim: str
    frees: str
    actions: str
    operations: str


@dataclass
class Row:
    """The row of the session, under its lock; without one, what SQL makes of that."""

    mark: int = 0
    held: bool = False
    closing: bool = False
    owner: UUID | None = None
    epoch: int | None = None
    version: int = 0
    live: int = 0
    wanted: bool = False


Answer = tuple[str, int, int | None, UUID | None, list[int], list[int]]


class Step:
    """One call of the function, within a transaction of its own. What it raises is taken back."""

    def __init__(self, server: Any, asked: Asked) -> None:
        self.server, self._db, self.asked, self._now = server, server.db, asked, server.clock()
        self._row = self._lock() if asked.sid else None
        self.row = self._row or Row()
        self._seqs: list[int] = []
        self._taken = 0  # the seq of the prompt that it has accepted
        self._noted: list[list[Any]] = []
        self._index = -1

    @classmethod
    def begin(cls, server: Any, asked: Asked) -> None:
        """The step is sent. What takes something then takes it before others that commit sooner: nobody should."""

    @property
    def has_session(self) -> bool:
        return bool(self._row)

    def run(self) -> Answer:
        asked = self.asked
        row = self.row
        if asked.step_id and (kept := self._find_kept()):
            version, epoch, node, places, seqs = kept
            mine = epoch == row.epoch and row.owner == asked.node
            return "dup", version, epoch, node if mine else None, places, seqs
        if self._row and self.is_fenced(row):
            return "lost", row.version, None, None, [], []
        if asked.known is not None and not self.is_known(row):
            return "stale", row.version, None, None, [], []
        if asked.claim:
            if not self.may_claim(row):
                return "held", row.version, None, None, [], []
            self.take_over(row)
        for self._index, (what, *values) in enumerate(json.loads(asked.operations)):
            self._refuse_unstorable(values)
            getattr(self, f"_{what}")(*values)
        return self._write()

    # --- the comparisons

    def is_fenced(self, row: Row) -> bool:
        asked = self.asked
        return asked.fence is not None and (row.epoch != asked.fence or row.owner != asked.node)

    def is_known(self, row: Row) -> bool:
        return row.version == self.asked.known

    def may_claim(self, row: Row) -> bool:
        if self._is_dead(self.asked.node):
            return False
        return row.owner is None if self.asked.claim == "adopt" else self._is_dead(row.owner)

    def take_over(self, row: Row) -> None:
        row.owner, row.wanted = self.asked.node, False
        row.epoch = None if row.epoch is None else row.epoch + 1

    def release(self, row: Row) -> None:
        row.owner, row.wanted = None, self.asked.frees == "handover"

    def next_seq(self) -> int:
        seq: int = self.server.next_seq()
        if seq <= self.row.mark:
            raise Raised(WORN_OUT)
        return seq

    def take_places(self, number: int) -> list[int]:
        """So many places from the counter of the workspace."""
        ((latest,),) = self._rows("UPDATE logs SET latest = latest + ? WHERE workspace_id = ? RETURNING latest",
                                  number, self._home)
        return list(range(latest - number + 1, latest + 1))

    # --- the operations

    def _move(self, seq: int, state: str, outcome: str | None, into: int | None) -> None:
        seq = seq or self._taken
        rows = self._rows(
            "UPDATE prompts SET state = ?, outcome = ?, taken_in_by = ?, done_at = ?, begun = begun OR ? = 'active'"
            " WHERE workspace_id = ? AND seq = ? AND state <> 'done' AND (? = 'done') = (? IS NOT NULL)"
            " RETURNING session_id", state, outcome, into, None if outcome is None else int(self._now), state,
            self._home, seq, state, outcome)
        self._need(bool(rows))
        self._rows("INSERT INTO transitions (workspace_id, seq, state, outcome) VALUES (?, ?, ?, ?)",
                   self._home, seq, state, outcome)
        if state == "done":
            self._count(rows[0][0], -1)

    def _message(self, id: str, session: str, *values: Any) -> None:
        *values, during = values
        self._need(self._exists(session))
        self._need(during is None or bool(self._rows(
            "SELECT 1 FROM prompts WHERE workspace_id = ? AND seq = ? AND state <> 'done'", self._home, during)))
        id = f"p{self._taken}" if id == "p0" else id
        self._need(bool(self._rows(
            "INSERT INTO messages AS m (workspace_id, id, session_id, role, parts, model, provider, created_at,"
            " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (workspace_id, id) DO UPDATE SET"
            " role = excluded.role, parts = excluded.parts, model = excluded.model, provider = excluded.provider,"
            " created_at = excluded.created_at, updated_at = excluded.updated_at"
            " WHERE m.session_id = excluded.session_id RETURNING 1", self._home, id, session, *values)))

    def _event(self, session: str, *values: Any) -> None:
        self._need(self._exists(session))
        self._noted.append([session, *values])

    def _accept(self, seq: int, session: str, text: str, run_id: str | None, attachments: str | None, front: int,
                urgent: bool) -> None:
        self._need(self._exists(session))
        mine = self._row if session == self.asked.sid else None
        if mine and mine.closing:
            raise Raised(CLOSING)
        if seq == 0:
            seq = self.next_seq()
            self._seqs.append(seq)
        self._taken = seq
        self._need(seq > 0 and bool(self._rows(
            "INSERT INTO prompts (workspace_id, seq, session_id, text, run_id, state, attachments, front, urgent,"
            " revoked, version, begun) VALUES (?, ?, ?, ?, ?, 'accepted', ?, ?, ?, false, 0, false)"
            " ON CONFLICT DO NOTHING RETURNING 1", self._home, seq, session, text, run_id, attachments, front, urgent)))
        self._count(session, 1)

    def _mark(self, session: str, mark: int) -> None:
        if self._row and session == self.asked.sid:
            self._row.mark = max(self._row.mark, mark)
        else:
            self._need(bool(self._rows("UPDATE sessions SET mark = max(mark, ?) WHERE workspace_id = ? AND id = ?"
                                       " RETURNING 1", mark, self._home, session)))

    def _hold(self, session: str, held: bool) -> None:
        if self._row and session == self.asked.sid:
            self._row.held = held
        else:
            self._need(bool(self._rows("UPDATE sessions SET held = ? WHERE workspace_id = ? AND id = ? RETURNING 1",
                                       held, self._home, session)))

    def _change(self, seq: int, revoked: bool, front: int, version: int, urgent: bool) -> None:
        self._need(bool(self._rows(
            "UPDATE prompts SET revoked = ?, front = ?, version = ?, urgent = ? WHERE workspace_id = ? AND seq = ?"
            " AND state <> 'done' RETURNING 1", revoked, front, version, urgent, self._home, seq)))

    def _text(self, seq: int, text: str, was: str) -> None:
        self._need(bool(self._rows(
            "UPDATE prompts SET text = ?, first = coalesce(first, ?) WHERE workspace_id = ? AND seq = ?"
            " AND state <> 'done' RETURNING 1", text, was, self._home, seq)))

    def _questions(self, seq: int, questions: str) -> None:
        self._need(bool(self._rows(
            "UPDATE prompts SET questions = ? WHERE workspace_id = ? AND seq = ? AND state <> 'done' RETURNING 1",
            questions, self._home, seq)))

    def _session(self, id: str, title: str, created_at: int) -> None:
        if not self._rows("SELECT 1 FROM workspaces WHERE id = ?", self._home):
            raise Raised(CLOSING)
        closing = bool(self._rows("SELECT 1 FROM sessions WHERE workspace_id = ? AND closing", self._home))
        self._need(bool(self._rows(
            "INSERT INTO sessions (workspace_id, id, title, created_at, mark, held, closing, owner, epoch, version,"
            " live, wanted) VALUES (?, ?, ?, ?, 0, false, ?, NULL, 0, 0, 0, false) ON CONFLICT DO NOTHING RETURNING 1",
            self._home, id, title, created_at, closing)))
        if id == self.asked.sid:
            self._row = self._lock()
            self.row = self._row or Row()

    def _drop(self, place: int) -> None:
        self._need(bool(self._rows(
            "UPDATE logs SET floor = floor + 1 WHERE workspace_id = ? AND floor + 1 = ? AND floor + 1 < latest"
            " RETURNING 1", self._home, place)))
        self._rows("DELETE FROM events WHERE workspace_id = ? AND place = ?", self._home, place)

    def _forget(self, seq: int, digest: str | None) -> None:
        change = ("DELETE FROM prompts" if digest is None else
                  "UPDATE prompts SET text = '', attachments = NULL, questions = NULL, digest = ?")
        rows = self._rows(
            f"{change} WHERE workspace_id = ? AND seq = ? AND state = 'done' AND digest IS NULL"
            f" AND run_id IS {'' if digest is None else 'NOT '}NULL"
            " AND seq < (SELECT max(seq) FROM prompts WHERE workspace_id = ?) RETURNING 1",
            *([] if digest is None else [digest]), self._home, seq, self._home)
        self._need(bool(rows))
        self._rows("DELETE FROM transitions WHERE workspace_id = ? AND seq = ?", self._home, seq)

    # --- what is written in the end

    def _write(self) -> Answer:
        asked, row = self.asked, self.row
        if self._row:
            if asked.known is not None:
                row.version += 1
            if asked.frees:
                self.release(row)
            self._rows("UPDATE sessions SET mark = ?, held = ?, owner = ?, epoch = ?, version = ?, live = ?, wanted = ?"
                       " WHERE workspace_id = ? AND id = ?", row.mark, row.held, row.owner and str(row.owner),
                       row.epoch, row.version, row.live, row.wanted, self._home, asked.sid)
        places = self.take_places(len(self._noted)) if self._noted else []
        for place, (session, type, payload, run_id) in zip(places, self._noted):
            self._rows("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", self._home, place, session, run_id, type,
                       payload, int(self._now))
        if asked.step_id:
            self._rows("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._home, asked.step_id,
                       self._now, asked.sid, self._row is not None and asked.known is not None, row.version,
                       row.epoch or 0, str(asked.node), asked.claim, asked.frees, asked.actions, json.dumps(places),
                       json.dumps(self._seqs))
        return "ok", row.version, row.epoch, row.owner, places, self._seqs

    # --- machinery

    @property
    def _home(self) -> str:
        return str(self.asked.home)

    def _lock(self) -> Row | None:
        rows = self._rows(f"SELECT {', '.join(Row.__annotations__)} FROM sessions WHERE workspace_id = ? AND id = ?",
                          self._home, self.asked.sid)
        return Row(*rows[0]) if rows else None

    def _find_kept(self) -> Sequence[Any] | None:
        rows = self._rows("SELECT version, epoch, node, places, seqs FROM steps WHERE workspace_id = ? AND id = ?",
                          self._home, self.asked.step_id)
        return rows[0] if rows else None

    def _is_dead(self, node: UUID | None) -> bool:
        return bool(self._rows("SELECT 1 FROM nodes WHERE id = ? AND dead", node and str(node)))

    def _exists(self, session: str) -> bool:
        return bool(self._rows("SELECT 1 FROM sessions WHERE workspace_id = ? AND id = ?", self._home, session))

    def _count(self, session: str, number: int) -> None:
        """The session has so many more prompts that are not done."""
        if self._row and session == self.asked.sid:
            self._row.live += number
        else:
            self._rows("UPDATE sessions SET live = live + ? WHERE workspace_id = ? AND id = ?", number, self._home,
                       session)

    def _need(self, holds: bool) -> None:
        if not holds:
            raise Raised(REFUSED, str(self._index))

    def _refuse_unstorable(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
                raise Raised("22P05", "the text cannot be stored")
            if isinstance(value, int) and not -2**63 <= value < 2**63:
                raise Raised("22003", "the number is out of range")

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(query, values).fetchall()
