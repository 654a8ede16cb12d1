"""A store in a PostgreSQL database: one workspace of it, as one node sees it."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import psycopg

from cancelmark.model.lifecycle import INITIAL

from ..interface import (
    Broken,
    ClosingSession,
    ConstraintViolation,
    Store,
    StoreError,
    Unconfirmed,
    UnknownSession,
    closed,
    discard,
)
from ..operations import (
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
from ..records import TERMINAL, Event, Incarnation, MessageRecord, PromptRecord, SessionRecord, Transition
from ..rows import (
    make_event,
    make_life,
    make_message,
    make_prompt,
    make_records,
    make_session,
    make_transition,
)
from ..steps import CommitAnswer, CommitRequest, Committed, Conflict, Lost, Snapshot
from ..tail import Tail
from .database import Database
from .sending import Asked
from .step import CLOSING, REFUSED, WORN_OUT

log = logging.getLogger("cancelmark.store")

V = TypeVar("V")

PATIENCE = 5.0  # seconds of retries under the commit's id
PAUSES = (0.02, 0.1, 0.5)

_PROMPT = ("seq, session_id, text, run_id, state, outcome, digest, attachments::text, revoked, front, version, begun,"
           " urgent, first, taken_in_by, questions::text")
_OF_P = ", ".join(f"p.{column.strip()}" for column in _PROMPT.split(","))
_SNAPSHOT = f"""
SELECT s.id, s.mark, s.held, s.version, s.epoch, s.owner, coalesce(l.latest, 0), {_OF_P}
FROM cancelmark.sessions s
LEFT JOIN cancelmark.prompts p ON p.workspace_id = s.workspace_id AND p.session_id = s.id AND p.state <> 'done'
CROSS JOIN (SELECT max(seq) AS latest FROM cancelmark.prompts WHERE workspace_id = %s) l
WHERE s.workspace_id = %s
"""
_REMEMBERED = "state = 'done' AND digest IS NULL"
_HIGHEST = 2**63 - 1


class PostgresStore(Store):
    """One workspace of a database, for one event loop. Several nodes may have it open: each commit is compared with
    what is stored.

    Commits in one session are applied in the order of the calls. Commits in different sessions do not wait for each
    other.
    """

    UNSTORABLE: ClassVar[str] = "NUL or half a character (a lone surrogate); send valid Unicode without NUL"
    shared: ClassVar[bool] = True

    def __init__(self, database: Database, workspace: UUID) -> None:
        self.database, self.workspace = database, workspace
        self._listeners: list[Callable[[int], None]] = []
        self._last: dict[str, asyncio.Future[None]] = {}  # the last commit in flight of each session
        self._tasks: set[asyncio.Task[None]] = set()
        self._tail = Tail()
        self.seen = 0  # the highest seq of the workspace, as of the last load
        self._open = True

    async def make(self, path: str = "", log: str = "") -> None:
        """Create the workspace in the database. Idempotent."""
        await self.database.fetch(
            "WITH made AS (INSERT INTO cancelmark.workspaces (id, path, log, open, ready)"
            " VALUES (%s, %s, %s, true, false) ON CONFLICT DO NOTHING)"
            " INSERT INTO cancelmark.logs VALUES (%s, 0, 0) ON CONFLICT DO NOTHING",
            self.workspace, path, log, self.workspace)

    # --- writing

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CommitAnswer] = loop.create_future()
        if not self._open:
            answer.set_exception(closed(self.database.where))
            return answer
        before, mine = self._last.get(steps.session_id), loop.create_future()
        self._last[steps.session_id] = mine
        task = asyncio.ensure_future(self._complete(steps, before, answer))
        self._tasks.add(task)

        def leave(done: "asyncio.Task[None]") -> None:
            self._tasks.discard(done)
            mine.set_result(None)
            if self._last.get(steps.session_id) is mine:
                del self._last[steps.session_id]
            if not answer.done():
                answer.cancel()

        task.add_done_callback(leave)
        return answer

    async def _complete(self, steps: CommitRequest, before: "asyncio.Future[None] | None",
                        answer: "asyncio.Future[CommitAnswer]") -> None:
        if before:
            await before
        try:
            result = await self._commit(steps)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # mark it as retrieved: the caller may have stopped waiting
        else:
            if isinstance(result, Committed) and result.events:
                self.hear(result.events[-1])
            if not answer.done():
                answer.set_result(result)

    async def _commit(self, steps: CommitRequest) -> CommitAnswer:
        try:
            encoded = [encode(operation) for operation in steps.operations]
            operations = _dumps(encoded)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.database.explain(UnicodeError(str(error)), True) from error
        values = (self.database.node, self.workspace, steps.session_id, steps.id, steps.version, steps.epoch,
                  steps.claim, steps.release, _dumps(steps.actions), operations)
        for name in (steps.session_id, steps.id):
            if "\0" in name:
                raise self.database.explain(UnicodeError("an id contains NUL"), True)
        status, version, epoch, owner, places, seqs = await self._try(steps, values)
        match status:
            case "ok" | "dup":
                self._remember(steps.operations, encoded, places)
                mine = epoch if owner == self.database.node else None
                return Committed(version, tuple(places), status == "dup", tuple(seqs), mine)
            case "stale":
                return Conflict(await self.load(steps.session_id))
            case _:
                return Lost()

    def _remember(self, operations: Sequence[Operation], encoded: Iterable[Sequence[Any]], places: Iterable[int],
                  ) -> None:
        """Add the appended events to the tail: subscribers ask for them next."""
        if any(isinstance(op, DropEvent) for op in operations):
            self._tail = Tail()
        added = ((op, len(told[3])) for op, told in zip(operations, encoded) if isinstance(op, AppendEvent))
        self._tail = self._tail.grow((Event(place, op.session_id, op.run_id, op.type, op.payload), size)
                                     for place, (op, size) in zip(places, added))

    async def _try(self, steps: CommitRequest, values: Asked) -> tuple[Any, ...]:
        """The answer to the commit. Retries with backoff under its id until the answer comes or `PATIENCE` is over; an
        unknown outcome is then never reported as a failure."""
        loop = asyncio.get_running_loop()
        end, attempt, doubt = loop.time() + PATIENCE, 0, False
        while True:
            try:
                return (await self.database.sender.send(values) if not attempt else None) or (
                    await self.database.sender.send_alone(values))
            except StoreError as error:
                cause = error.__cause__
                state = getattr(cause, "sqlstate", None) or ""
                if isinstance(cause, psycopg.Error) and (judged := self._judge(steps, cause, state)):
                    raise judged from cause
                doubt = doubt or isinstance(error, Unconfirmed)
                known = bool(steps.id) or not doubt  # without an id the operations are idempotent
                if not (error.retry or state == "23505") or loop.time() >= end or not self._open:
                    if doubt and not isinstance(error, Unconfirmed) and known:
                        raise Unconfirmed(error.where, "the database has not answered, and the outcome is unknown",
                                          "retry (a prompt under the same run id)") from error
                    raise
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    def _judge(self, steps: CommitRequest, error: psycopg.Error, state: str) -> StoreError | None:
        """The store error for an error that the step function has raised, or None."""
        where = self.database.where
        if state == REFUSED:
            return ConstraintViolation(where, steps.operations[int(error.diag.message_detail or 0)])
        if state == CLOSING:
            return ClosingSession(where, "the session is closing", "open its workspace again")
        if state == WORN_OUT:
            return Broken(where, "the sequence cancelmark.seqs was reset below a seq already given out",
                          "set it to the highest seq or mark")
        if state == "23505" and error.diag.constraint_name == "one_active":
            return ConstraintViolation(where, next(op for op in steps.operations if isinstance(op, MovePrompt)))
        return None

    def is_storable(self, text: str) -> bool:
        return "\0" not in text and super().is_storable(text)

    # --- reading

    async def load(self, session_id: str) -> Snapshot:
        rows = await self._fetch(f"{_SNAPSHOT} AND s.id = %s ORDER BY p.seq", self.workspace, session_id)
        if not rows:
            raise UnknownSession(session_id)
        return self._snapshots(rows)[0]

    async def load_all(self) -> list[Snapshot]:
        return self._snapshots(await self._fetch(f"{_SNAPSHOT} ORDER BY s.position, p.seq", self.workspace))

    def _snapshots(self, rows: Iterable[tuple[Any, ...]]) -> list[Snapshot]:
        found: dict[str, Snapshot] = {}
        prompts: dict[str, list[tuple[Any, ...]]] = {}
        for id, mark, held, version, epoch, owner, latest, *prompt in rows:
            of = prompts.setdefault(id, [])
            if prompt[0] is not None:
                of.append(tuple(prompt))
            if id not in found:
                mine = owner == self.database.node
                found[id] = Snapshot(id, mark, version, epoch, (), held, mine, owner is None)
                self.seen = max(self.seen, latest)
        return [snapshot._replace(prompts=tuple(self._make(make_prompt, prompts[id])))
                for id, snapshot in found.items()]

    async def prompt(self, key: str | int) -> PromptRecord | None:
        if isinstance(key, str) and not self.is_storable(key):
            return None
        column = "seq" if isinstance(key, int) else "run_id"
        found = await self._read(
            make_prompt, f"SELECT {_PROMPT} FROM cancelmark.prompts WHERE workspace_id = %s AND {column} = %s", key)
        return found[0] if found else None

    async def prompts(self, session_id: str, finished: int, *, before: int | None = None) -> list[PromptRecord]:
        done = (f"SELECT {_PROMPT} FROM cancelmark.prompts WHERE workspace_id = %s AND session_id = %s"
                f" AND {_REMEMBERED} AND seq < %s ORDER BY seq DESC LIMIT %s")
        if before is not None:
            return (await self._read(make_prompt, done, session_id, before, finished))[::-1]
        return await self._read(
            make_prompt, f"(SELECT {_PROMPT} FROM cancelmark.prompts WHERE workspace_id = %s AND session_id = %s"
                         f" AND state <> 'done') UNION ALL ({done}) ORDER BY seq",
            session_id, self.workspace, session_id, _HIGHEST, finished)

    async def done_prompts(self, until: int, limit: int, *, before: int | None = None) -> list[PromptRecord]:
        rows = await self._fetch(
            f"SELECT {_PROMPT}, done_at FROM cancelmark.prompts WHERE workspace_id = %s AND {_REMEMBERED} AND seq <= %s"
            " AND seq < (SELECT max(seq) FROM cancelmark.prompts WHERE workspace_id = %s) ORDER BY seq LIMIT %s",
            until, self.workspace, limit)
        old: list[tuple[Any, ...]] = []
        for *row, done_at in rows:
            if before is not None and done_at >= before:
                break
            old.append(tuple(row))
        return self._make(make_prompt, old)

    async def transitions(self, seq: int) -> list[Transition]:
        return await self._read(
            make_transition,
            f"SELECT seq, '{INITIAL.value}' AS state, NULL AS outcome, 0 AS position FROM cancelmark.prompts"
            " WHERE workspace_id = %s AND seq = %s AND digest IS NULL"
            " UNION ALL SELECT seq, state, outcome, position FROM cancelmark.transitions"
            " WHERE workspace_id = %s AND seq = %s ORDER BY position",
            seq, self.workspace, seq)

    async def latest_seq(self) -> int:
        rows = await self.database.fetch(
            "SELECT greatest((SELECT coalesce(max(seq), 0) FROM cancelmark.prompts WHERE workspace_id = %s),"
            " (SELECT coalesce(max(mark), 0) FROM cancelmark.sessions WHERE workspace_id = %s))",
            self.workspace, self.workspace)
        return int(rows[0][0])

    async def sessions(self) -> list[SessionRecord]:
        return await self._read(
            make_session, "SELECT id, title, mark, created_at FROM cancelmark.sessions WHERE workspace_id = %s"
                          " ORDER BY position")

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[MessageRecord]:
        where, values = ["session_id = %s"], [session_id]
        for relation, id in ((">=", since), ("<", before)):
            if id is not None:
                if not self.is_storable(id):
                    return []
                where.append(f"position {relation} (SELECT position FROM cancelmark.messages"
                             " WHERE workspace_id = %s AND id = %s AND session_id = %s)")
                values += [self.workspace, id, session_id]  # type: ignore[list-item]
        found = await self._read(
            make_message, "SELECT id, session_id, role, parts::text, model, provider, created_at, updated_at"
                          f" FROM cancelmark.messages WHERE workspace_id = %s AND {' AND '.join(where)}"
                          " ORDER BY position DESC LIMIT %s", *values, last)
        return found[::-1]

    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        if self._open and (known := self._tail.find(after, until, session, terminal, limit)) is not None:
            return known
        where: list[str] = ["place > %s"]
        values: list[int | str | None] = [after]
        for condition, value in (("place <= %s", until), ("session_id = %s", session),
                                 ("type = %s", terminal and TERMINAL)):
            if value is not None and value is not False:  # until = 0 is a condition
                where.append(condition)
                values.append(value)
        return await self._read(
            make_event, "SELECT place, session_id, run_id, type, payload::text FROM cancelmark.events"
                        f" WHERE workspace_id = %s AND {' AND '.join(where)} ORDER BY place LIMIT %s", *values, limit)

    async def latest_event(self) -> int:
        return (await self._log())[0]

    async def first_event(self, since: int = 0) -> int:
        rows = await self._fetch("SELECT min(place) FROM cancelmark.events WHERE workspace_id = %s AND made_at >= %s",
                                 since)
        latest, floor = await self._log()
        return int(rows[0][0]) if rows[0][0] is not None else max(latest, floor) + 1

    async def _log(self) -> tuple[int, int]:
        rows = await self._fetch("SELECT latest, floor FROM cancelmark.logs WHERE workspace_id = %s")
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    async def incarnations(self) -> list[Incarnation]:
        """The lives of the log, the same for all nodes: the database is one life, after those of a file that was moved
        here."""
        known = await self._read(
            make_life, "SELECT first, name FROM cancelmark.lives WHERE workspace_id = %s ORDER BY first")
        rows = await self._fetch("SELECT log FROM cancelmark.workspaces WHERE id = %s")
        return known or [Incarnation(1, str(rows[0][0])) for _ in rows]

    # --- listening

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: discard(self._listeners, listener)

    def hear(self, latest: int) -> None:
        """Notify the listeners that the log has reached that offset, by a commit of this node or of another. Nothing
        else publishes."""
        for listener in self._listeners:
            listener(latest)

    def close(self) -> None:
        self._open = False

    async def settle(self) -> None:
        """Wait for the commits in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query whose first value is the workspace."""
        if not self._open:
            raise closed(self.database.where)
        return await self.database.fetch(query, self.workspace, *values)

    async def _read(self, make: Callable[..., V], query: str, *values: Any) -> list[V]:
        return self._make(make, await self._fetch(query, *values))

    def _make(self, make: Callable[..., V], rows: Iterable[Sequence[Any]]) -> list[V]:
        return make_records(self.database.where, make, rows)


def encode(op: Operation) -> list[Any]:
    """The operation as the step function reads it. What is stored as JSON is passed as text: PostgreSQL cannot read a
    list that contains NUL."""
    match op:
        case MovePrompt():
            return ["move", op.seq, op.state.value, op.outcome and op.outcome.value, op.into]
        case PutMessage(m, during):
            return ["message", m.id, m.session_id, m.role, _dumps(m.parts), m.model, m.provider, m.created_at,
                    m.updated_at, during]
        case AppendEvent():
            return ["event", op.session_id, op.type, _dumps(op.payload), op.run_id]
        case AcceptPrompt():
            return ["accept", op.seq, op.session_id, op.text, op.run_id,
                    _dumps(op.attachments) if op.attachments else None, op.traits.front, op.traits.urgent]
        case RaiseMark():
            return ["mark", op.session_id, op.mark]
        case HoldSession():
            return ["hold", op.session_id, op.held]
        case ChangePrompt(seq, traits):
            return ["change", seq, traits.revoked, traits.front, traits.version, traits.urgent]
        case ReplaceText():
            return ["text", op.seq, op.text, op.was]
        case SetQuestions():
            return ["questions", op.seq, _dumps(op.questions)]
        case NewSession():
            return ["session", op.id, op.title, op.created_at]
        case DropEvent():
            return ["drop", op.id]
        case ForgetPrompt():
            return ["forget", op.seq, op.digest]


_dumps = json.JSONEncoder(separators=(",", ":")).encode
