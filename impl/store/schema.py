"""The schema of a database file: its owner, its version, and the migrations to later versions."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from shutil import copymode

from .interface import StoreError
from .opening import make_private

APPLICATION_ID = 0x434D_524B  # in the file's header: CMRK

INCREMENTAL = 2  # SQLite releases free pages on request

# The script at index n takes a database from version n to n + 1. A script that was released is never changed.
MIGRATIONS: tuple[str, ...] = (
    f"""
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE sessions (
        id TEXT NOT NULL PRIMARY KEY,
        title TEXT NOT NULL,
        mark INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE messages (
        position INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES sessions,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        model TEXT NOT NULL,
        provider TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX messages_of_session ON messages (session_id, position);
    CREATE TABLE prompts (
        seq INTEGER PRIMARY KEY CHECK (seq > 0),
        session_id TEXT NOT NULL REFERENCES sessions,
        run_id TEXT UNIQUE,
        text TEXT NOT NULL,
        state TEXT NOT NULL,
        outcome TEXT,
        CHECK ((state = 'done') = (outcome IS NOT NULL))
    );
    CREATE INDEX unfinished ON prompts (seq) WHERE state <> 'done';
    CREATE TABLE transitions (
        position INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL REFERENCES prompts,
        state TEXT NOT NULL,
        outcome TEXT
    );
    CREATE INDEX transitions_of_prompt ON transitions (seq, position);
    CREATE TRIGGER journal_acceptance AFTER INSERT ON prompts BEGIN
        INSERT INTO transitions (seq, state, outcome) VALUES (new.seq, new.state, new.outcome);
    END;
    CREATE TRIGGER journal_move AFTER UPDATE OF state ON prompts BEGIN
        INSERT INTO transitions (seq, state, outcome) VALUES (new.seq, new.state, new.outcome);
    END;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions,
        run_id TEXT,
        type TEXT NOT NULL,
        payload TEXT NOT NULL
    );
    CREATE INDEX events_of_session ON events (session_id, id);
    """,
    """
    -- Every prompt begins as accepted: that it is in the table says so already.
    DROP TRIGGER journal_acceptance;
    DELETE FROM transitions WHERE state = 'accepted';
    CREATE INDEX prompts_of_session ON prompts (session_id, seq);
    """,
    """
    CREATE TABLE lives (
        first INTEGER PRIMARY KEY,
        name TEXT NOT NULL
    );
    """,
    """
    -- When it was, in seconds. Of what is older than these columns nobody knows: it counts from now on.
    ALTER TABLE events ADD COLUMN made_at INTEGER NOT NULL DEFAULT 0;
    UPDATE events SET made_at = CAST(strftime('%s', 'now') AS INTEGER);
    ALTER TABLE prompts ADD COLUMN done_at INTEGER;
    UPDATE prompts SET done_at = CAST(strftime('%s', 'now') AS INTEGER) WHERE state = 'done';
    -- Of the text of a prompt whose text is forgotten.
    ALTER TABLE prompts ADD COLUMN digest TEXT;
    CREATE INDEX remembered ON prompts (seq) WHERE state = 'done' AND digest IS NULL;
    CREATE TRIGGER forget_prompt BEFORE DELETE ON prompts BEGIN
        DELETE FROM transitions WHERE seq = old.seq;
    END;
    CREATE TRIGGER forget_text AFTER UPDATE OF digest ON prompts BEGIN
        DELETE FROM transitions WHERE seq = new.seq;
    END;
    """,
    """
    -- A JSON list of message parts; nothing if there are none.
    ALTER TABLE prompts ADD COLUMN attachments TEXT;
    """,
    """
    ALTER TABLE sessions ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE prompts ADD COLUMN revoked INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE prompts ADD COLUMN front INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE prompts ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE prompts ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE prompts ADD COLUMN urgent INTEGER NOT NULL DEFAULT 0;
    -- The digest of the text of acceptance, once another text has taken its place.
    ALTER TABLE prompts ADD COLUMN first TEXT;
    -- Of a prompt that was folded: whose turn has taken it in.
    ALTER TABLE prompts ADD COLUMN taken_in_by INTEGER;
    UPDATE prompts SET begun = 1 WHERE state <> 'done' AND seq IN (SELECT seq FROM transitions WHERE state = 'active');
    """,
    """
    -- A JSON list of the questions that its turn has asked; nothing if it has asked none.
    ALTER TABLE prompts ADD COLUMN questions TEXT;
    """,
)


def check_identity(path: Path, db: sqlite3.Connection) -> None:
    """Refuse a database of another program or of a later version, before anything in it is changed."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not (ours or (empty and version == 0)):
        raise StoreError(path, "the database belongs to another program", "choose another file")
    if version > len(MIGRATIONS):
        raise StoreError(path, f"the database has schema version {version}; this program supports {len(MIGRATIONS)}",
                         "upgrade Cancelmark, or choose another file")


def migrate(path: Path, db: sqlite3.Connection) -> None:
    """Bring the schema up to date, one version at a time. A migration that fails or is interrupted has no effect. A
    database of an older version is copied first: to FILE-v1, if it had version 1."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"PRAGMA user_version = {version}")  # fails now if the file is not writable
    db.execute("ROLLBACK")
    if 0 < version < len(MIGRATIONS):
        _copy(path, db, Path(f"{path}-v{version}"))
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
    if db.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:
        with suppress(sqlite3.OperationalError):  # disk full: it reuses its pages, and the next start retries
            db.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
            db.execute("VACUUM")


def _copy(path: Path, db: sqlite3.Connection, copy: Path) -> None:
    """Copy the database. An incomplete copy never has the final name."""
    incomplete = Path(f"{copy}-incomplete")
    incomplete.unlink(missing_ok=True)
    try:
        make_private(incomplete)
        with closing(sqlite3.connect(incomplete)) as target:
            copymode(path, incomplete)
            db.backup(target)
        incomplete.replace(copy)
    finally:
        incomplete.unlink(missing_ok=True)
