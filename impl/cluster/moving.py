"""Moves a workspace from a file into a database: sessions, messages, prompts, and the log with all its offsets.

The move holds the file's lock and is one transaction, so a failed move has changed nothing. Sessions with unfinished
prompts are stored as owned by a dead node: the first node that polls recovers them, as a restart would.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from ..files import UsageError
from ..store import SqliteStore
from ..store.postgres import Database

NOBODY = UUID(int=0)  # a dead node, the owner of what was moved

TABLES = {  # the columns that file and database share, with the order of the rows
    "sessions": ("rowid", "id, title, mark, created_at, held"),
    "prompts": ("seq", "seq, session_id, run_id, text, attachments, state, outcome, done_at, digest, first, "
                       "taken_in_by, revoked, front, version, begun, urgent, questions"),
    "transitions": ("position", "seq, state, outcome"),
    "messages": ("position", "id, session_id, role, parts, model, provider, created_at, updated_at"),
    "events": ("id", "id, session_id, run_id, type, payload, made_at"),
    "lives": ("first", "first, name"),
}
FLAGS = ("held", "revoked", "begun", "urgent")  # numbers in the file
RENAMED = {("events", "id"): "place"}


class MovedWorkspace(NamedTuple):
    """How much was moved."""

    workspace: str
    sessions: int
    prompts: int
    messages: int
    events: int
    replaced: int  # texts in which a NUL was replaced


async def move(file: Path, address: str) -> MovedWorkspace:
    """Move the workspace of the file. Raises `StoreError` or `UsageError`."""
    path, log, ready = find_record(file)
    database = Database(address, 1)
    await database.open()
    try:
        store = SqliteStore(file)
        try:
            with closing(sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True)) as source:
                return await _move(database, source, UUID(file.stem), (path, log, ready))
        finally:
            store.close()
    finally:
        await database.close()


def find_record(file: Path) -> tuple[str, str, bool]:
    """Path, log and readiness of the workspace, from the index of its data directory."""
    index = file.resolve().parent.parent / "index.db"
    try:
        with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=0)) as database:
            rows = database.execute("SELECT path, log, ready FROM workspaces WHERE id = ?", (file.stem,)).fetchall()
    except sqlite3.OperationalError as error:
        raise UsageError(f"{index}: {error}; stop the server that uses this data directory, and give its "
                         "workspaces/ID.db") from error
    if not rows:
        raise UsageError(f"{file}: not in {index}; give the workspaces/ID.db of a data directory")
    return str(rows[0][0]), str(rows[0][1]), bool(rows[0][2])


async def _move(database: Database, source: sqlite3.Connection, workspace: UUID, record: tuple[str, str, bool],
                ) -> MovedWorkspace:
    numbers, replaced = {}, 0
    async with await psycopg.AsyncConnection.connect(database.address, prepare_threshold=None) as connection:
        made = await connection.execute(
            "INSERT INTO cancelmark.workspaces (id, path, log, open, ready) VALUES (%s, %s, %s, true, %s)"
            " ON CONFLICT DO NOTHING", (workspace, *record))
        if not made.rowcount:
            raise UsageError(f"the database already has workspace {workspace}; forget that one first")
        for table, (order, columns) in TABLES.items():
            rows = source.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()
            numbers[table] = len(rows)
            replaced += await _copy(connection, table, columns.split(", "), workspace, rows)
        await _complete(connection, workspace)
    return MovedWorkspace(str(workspace), numbers["sessions"], numbers["prompts"], numbers["messages"],
                          numbers["events"], replaced)


async def _copy(connection: psycopg.AsyncConnection[Any], table: str, columns: Sequence[str], workspace: UUID,
                rows: Iterable[Sequence[Any]]) -> int:
    """Write the rows, and return in how many texts a NUL was replaced."""
    names = [RENAMED.get((table, column), column) for column in columns]
    more = {"sessions": ", closing, owner, epoch, version, live, wanted"}.get(table, "")
    values = {"sessions": ", false, NULL, 0, 0, 0, false"}.get(table, "")
    query = (f"INSERT INTO cancelmark.{table} (workspace_id, {', '.join(names)}{more})"
             f" VALUES (%s{', %s' * len(names)}{values})")
    replaced = 0
    async with connection.cursor() as cursor:
        for row in rows:
            fitted = [_fit(name, value) for name, value in zip(columns, row)]
            replaced += sum(isinstance(value, str) and "\0" in value for value in row)
            await cursor.execute(query.encode(), (workspace, *fitted))
    return replaced


def _fit(name: str, value: Any) -> Any:
    if name in FLAGS:
        return bool(value)
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


async def _complete(connection: psycopg.AsyncConnection[Any], workspace: UUID) -> None:
    """Add what the file has no rows for: the end of the log, the owner of each session, and the next seq."""
    for query in (
        "INSERT INTO cancelmark.logs SELECT %(w)s, coalesce(max(place), 0), coalesce(min(place), 1) - 1"
        " FROM cancelmark.events WHERE workspace_id = %(w)s",
        "INSERT INTO cancelmark.nodes SELECT %(nobody)s, '', now(), now(), true, false ON CONFLICT DO NOTHING",
        "UPDATE cancelmark.sessions s SET live = n, owner = %(nobody)s, epoch = 1 FROM"
        " (SELECT session_id, count(*) AS n FROM cancelmark.prompts WHERE workspace_id = %(w)s AND state <> 'done'"
        " GROUP BY 1) p WHERE s.workspace_id = %(w)s AND s.id = p.session_id",
        "SELECT setval('cancelmark.seqs', greatest((SELECT last_value FROM cancelmark.seqs),"
        " (SELECT max(seq) FROM cancelmark.prompts WHERE workspace_id = %(w)s),"
        " (SELECT max(mark) FROM cancelmark.sessions WHERE workspace_id = %(w)s)))",
        "INSERT INTO cancelmark.lives SELECT %(w)s, latest + 1, substr(md5(random()::text), 1, 12) FROM cancelmark.logs"
        " WHERE workspace_id = %(w)s ON CONFLICT DO NOTHING",
    ):
        await connection.execute(query.encode(), {"w": workspace, "nobody": NOBODY})
