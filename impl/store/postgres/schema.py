"""The schema of the database: its version, and the migrations to later versions.

Everything is in the schema `cancelmark`. A database has many workspaces. `steps` is the journal of commits: under which
id, on which version, by which node, and of which actions of the protocol.
"""

from typing import Any

from psycopg import AsyncConnection

from ..interface import StoreError
from .step import FORGET, STEP, STEP_ALL

LOCK = 0x434D_524B  # the advisory lock for migrations: CMRK

TABLES = """
CREATE SCHEMA IF NOT EXISTS cancelmark;
SET LOCAL search_path = cancelmark;
CREATE TABLE schema_version (version int NOT NULL);
INSERT INTO schema_version VALUES (0);
-- One life of one server. Death is one-way: a server that finds itself dead goes on under another id.
CREATE TABLE nodes (
    id uuid PRIMARY KEY,
    url text NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    dead bool NOT NULL,
    draining bool NOT NULL
);
CREATE TABLE workspaces (
    position bigint GENERATED ALWAYS AS IDENTITY,
    id uuid PRIMARY KEY,
    path text NOT NULL,
    log text NOT NULL,
    open bool NOT NULL,
    ready bool NOT NULL
);
-- The events of a workspace have the places floor + 1 to latest, without a gap.
CREATE TABLE logs (
    workspace_id uuid PRIMARY KEY,
    latest bigint NOT NULL,
    floor bigint NOT NULL
) WITH (fillfactor = 50);
-- Under which names its places were given out before: by a file that was moved here, life by life.
CREATE TABLE lives (
    workspace_id uuid NOT NULL,
    first bigint NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (workspace_id, first)
);
CREATE SEQUENCE seqs CACHE 1;
CREATE TABLE sessions (
    position bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id uuid NOT NULL,
    id text NOT NULL,
    title text NOT NULL,
    created_at bigint NOT NULL,
    mark bigint NOT NULL,
    held bool NOT NULL,
    closing bool NOT NULL,
    owner uuid,
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    live int NOT NULL,
    wanted bool NOT NULL,
    PRIMARY KEY (workspace_id, id)
) WITH (fillfactor = 50);
CREATE INDEX owned ON sessions (owner) WHERE owner IS NOT NULL;
CREATE INDEX handed_over ON sessions (workspace_id) WHERE wanted;
CREATE TABLE prompts (
    workspace_id uuid NOT NULL,
    seq bigint NOT NULL CHECK (seq > 0),
    session_id text NOT NULL,
    run_id text,
    text text NOT NULL,
    attachments json,
    state text NOT NULL,
    outcome text,
    done_at bigint,
    digest text,
    first text,
    taken_in_by bigint,
    revoked bool NOT NULL,
    front bigint NOT NULL,
    version bigint NOT NULL,
    begun bool NOT NULL,
    urgent bool NOT NULL,
    PRIMARY KEY (workspace_id, seq),
    UNIQUE (workspace_id, run_id),
    CHECK ((state = 'done') = (outcome IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX prompts_of_session ON prompts (workspace_id, session_id, seq);
CREATE INDEX unfinished ON prompts (workspace_id, session_id, seq) WHERE state <> 'done';
CREATE INDEX remembered ON prompts (workspace_id, seq) WHERE state = 'done' AND digest IS NULL;
CREATE UNIQUE INDEX one_active ON prompts (workspace_id, session_id) WHERE state = 'active';
CREATE TABLE transitions (
    position bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id uuid NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    outcome text,
    PRIMARY KEY (workspace_id, seq, position)
);
CREATE TABLE messages (
    position bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id uuid NOT NULL,
    id text NOT NULL,
    session_id text NOT NULL,
    role text NOT NULL,
    parts json NOT NULL,
    model text NOT NULL,
    provider text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (workspace_id, id)
);
CREATE INDEX messages_of_session ON messages (workspace_id, session_id, position);
CREATE TABLE events (
    workspace_id uuid NOT NULL,
    place bigint NOT NULL,
    session_id text NOT NULL,
    run_id text,
    type text NOT NULL,
    payload json NOT NULL,
    made_at bigint NOT NULL,
    PRIMARY KEY (workspace_id, place)
);
CREATE INDEX events_of_session ON events (workspace_id, session_id, place);
CREATE TABLE steps (
    workspace_id uuid NOT NULL,
    id text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    session_id text NOT NULL,
    computed bool NOT NULL,
    version bigint NOT NULL,
    epoch bigint NOT NULL,
    node uuid NOT NULL,
    claim text NOT NULL,
    released text NOT NULL,
    actions json NOT NULL,
    places bigint[] NOT NULL,
    seqs bigint[] NOT NULL,
    PRIMARY KEY (workspace_id, id)
);
CREATE UNIQUE INDEX one_step ON steps (workspace_id, session_id, version) WHERE computed;
CREATE INDEX steps_by_age ON steps (made_at);
"""

# The script at index n takes a database from version n to n + 1. A script that was released is never changed.
MIGRATIONS: tuple[str, ...] = (
    TABLES + STEP + STEP_ALL,
    "SET LOCAL search_path = cancelmark;" + STEP + FORGET,
    "SET LOCAL search_path = cancelmark;" + STEP,  # a turn's messages name their prompt
    "SET LOCAL search_path = cancelmark; ALTER TABLE prompts ADD COLUMN questions json;" + STEP,
)


async def migrate(where: str, connection: AsyncConnection[Any]) -> None:
    """Bring the schema up to date, even if other nodes start at the same time. A migration that fails or is interrupted
    has no effect. A database of a later version is refused."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        known = await (await connection.execute("SELECT to_regclass('cancelmark.schema_version')")).fetchone()
        version = 0
        if known and known[0] is not None:
            row = await (await connection.execute("SELECT version FROM cancelmark.schema_version")).fetchone()
            assert row is not None
            version = row[0]
        if version > len(MIGRATIONS):
            raise StoreError(where, f"the database has schema version {version}; this program supports "
                                    f"{len(MIGRATIONS)}", "upgrade Cancelmark, or choose another database")
        for script in MIGRATIONS[version:]:
            await connection.execute(script.encode())
        if version < len(MIGRATIONS):
            await connection.execute("UPDATE cancelmark.schema_version SET version = %s", (len(MIGRATIONS),))
