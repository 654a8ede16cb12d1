"""What the store and the nodes send to PostgreSQL, in the words of SQLite: their own statements, translated one by one.

A statement that cannot be translated fails, and says so: nothing is guessed, and nothing is written a second time.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

INTERVALS = {"2 seconds": 2.0, "1 day": 86_400, "1 hour": 3_600}

_WORDS: Sequence[tuple[str, str]] = (
    (r"cancelmark\.", ""),
    (r"(\w+(?:\.\w+)?)::text\b", r"CAST(\1 AS text)"),
    (r"::\w+(\[\])?", ""),
    (r"make_interval\(secs => %s\)", "%s"),
    (r"interval '([^']+)'", lambda found: str(INTERVALS[found[1]])),  # type: ignore[list-item]
    (r"= ANY\(%s\)", "IN (SELECT value FROM json_each(%s))"),
    (r"SELECT FROM", "SELECT 1 FROM"),
    (r" FOR NO KEY UPDATE", ""),
    (r"LIMIT %s", "LIMIT coalesce(%s, -1)"),
    (r"^\(SELECT", "SELECT * FROM (SELECT"),
    (r"UNION ALL \(SELECT", "UNION ALL SELECT * FROM (SELECT"),
    (r"(DELETE FROM \w+) n ", r"\1 AS n "),
    (r"%s", "?"),
)
_TABLES: Sequence[tuple[str, str]] = (
    (r"--[^\n]*", ""),
    (r"CREATE (SCHEMA|SEQUENCE)[^;]*;|SET LOCAL[^;]*;", ""),
    (r" WITH \(fillfactor = \d+\)", ""),
    (r" DEFAULT clock_timestamp\(\)", ""),
    (r"bigint\[\]", "numbers"),
)


@cache
def translate(query: str) -> list[tuple[str, str]]:
    """The statements that do what this one does, each with a name for what it returns, or none. The last one's answer
    is the answer. A statement that changes rows may stand in a WITH of PostgreSQL, and in none of SQLite."""
    for pattern, words in _WORDS:
        query = re.sub(pattern, words, query.strip())
    found: list[tuple[str, str]] = []
    rest = re.sub(r"^WITH ", "", query) if re.match(r"WITH \w+ AS \((INSERT|UPDATE|DELETE)", query) else query
    while rest is not query and (part := re.match(r",? ?(\w+) AS \(", rest)):
        end = _find_end(rest, part.end())
        found.append((part[1], rest[part.end():end]))
        rest = rest[end + 1:]
    return [*found, ("", rest.strip())]


def _find_end(text: str, start: int) -> int:
    """Where the bracket ends that was opened before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"a bracket is not closed: {text}")


@cache
def translate_tables(script: str) -> str:
    """The tables of the schema. A position that PostgreSQL counts is SQLite's own number of the row."""
    for pattern, words in _TABLES:
        script = re.sub(pattern, words, script)
    made = []
    for statement in script.split(";"):
        if "GENERATED ALWAYS AS IDENTITY" in statement:
            statement = statement.replace("PRIMARY KEY", "UNIQUE")
            statement = statement.replace("bigint GENERATED ALWAYS AS IDENTITY", "integer PRIMARY KEY AUTOINCREMENT")
        made.append(statement)
    return ";".join(made)


def fit(value: Any) -> Any:
    """A value as SQLite takes it."""
    match value:
        case UUID():
            return str(value)
        case list():
            return json.dumps([fit(one) for one in value])
    return value


def connect(clock: Callable[[], float], notify: Callable[[str], None]) -> sqlite3.Connection:
    """An empty database with the functions of PostgreSQL that are used."""
    connection = sqlite3.connect(":memory:", isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
    for name in ("clock_timestamp", "now"):
        connection.create_function(name, 0, clock)
    connection.create_function("greatest", -1, lambda *values: max((v for v in values if v is not None), default=None))
    connection.create_function("pg_notify", 2, lambda channel, payload: notify(payload))
    return connection


sqlite3.register_converter("uuid", lambda text: UUID(text.decode()))
sqlite3.register_converter("bool", lambda text: text == b"1")
sqlite3.register_converter("json", json.loads)
sqlite3.register_converter("numbers", json.loads)
