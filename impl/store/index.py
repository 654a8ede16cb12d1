"""The index of a data directory: its workspaces, and the lock that limits it to one server at a time.

Everything in a data directory is private to its user, even if the directory itself is readable by others.
"""

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..files import UsageError
from .troubles import explain

VERSION = 0  # of the index


class Record(NamedTuple):
    """A workspace in the index."""

    id: str
    path: str
    log: str
    open: bool
    ready: bool


class Index:
    """The workspaces of a data directory; without a directory, of this process. The file is locked while the index is
    open."""

    def __init__(self, directory: Path | None) -> None:
        self._where = ":memory:" if directory is None else str(directory / "index.db")
        try:
            if directory is not None:
                with suppress(FileExistsError):
                    os.close(os.open(self._where, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._database = sqlite3.connect(self._where, isolation_level=None, check_same_thread=False, timeout=0)
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise UsageError(f"{self._where}: written by a newer Cancelmark (index version {version}); upgrade, or "
                                 "choose another --data-dir")
            self._database.execute("CREATE TABLE IF NOT EXISTS workspaces (id TEXT PRIMARY KEY, path TEXT NOT NULL,"
                                   " log TEXT NOT NULL, open INTEGER NOT NULL, ready INTEGER NOT NULL)")
            self._database.execute("COMMIT")
            self._known = self._read()
        except sqlite3.Error as error:
            self._database.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise UsageError(f"another server uses {directory}; use that server, or choose another --data-dir"
                                 ) from error
            raise self._unusable(error) from error
        except UsageError:
            self._database.close()
            raise

    def _unusable(self, error: Exception) -> UsageError:
        why = error.strerror if isinstance(error, OSError) else error
        return UsageError(f"{self._where}: {why}; choose another --data-dir, or move the file away")

    def _read(self) -> dict[str, Record]:
        rows = self._database.execute("SELECT id, path, log, open, ready FROM workspaces ORDER BY rowid").fetchall()
        return {row[0]: Record(str(row[0]), str(row[1]), str(row[2]), bool(row[3]), bool(row[4])) for row in rows}

    def all(self) -> dict[str, Record]:
        return dict(self._known)

    def put(self, record: Record) -> None:
        """Store the record. Raises `StoreError` and changes nothing if that fails."""
        if self._known.get(record.id) == record:
            return
        try:
            self._database.execute("INSERT INTO workspaces VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                                   " log = excluded.log, open = excluded.open, ready = excluded.ready", record)
        except sqlite3.Error as error:
            raise explain(self._where, error) from error
        self._known[record.id] = record

    def remove(self, id: str) -> None:
        """Delete the workspace's record. Raises `StoreError` and changes nothing if that fails."""
        try:
            self._database.execute("DELETE FROM workspaces WHERE id = ?", (id,))
        except sqlite3.Error as error:
            raise explain(self._where, error) from error
        self._known.pop(id, None)

    def close(self) -> None:
        self._database.close()


def make_private(directory: Path) -> None:
    """Remove the access rights that an older version has left to other users."""
    ours = directory / "workspaces"
    for file in (ours, *directory.glob("index.db*"), *ours.iterdir()):
        with suppress(OSError):  # another user owns it, or it is gone
            mode = file.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                file.chmod(mode & 0o700)
