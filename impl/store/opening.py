"""Opening a database file: ensures that only this store uses it, and that what it reads is on the disk."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from .interface import StoreError

CHUNK = 1 << 20  # bytes


def make_private(path: Path) -> None:
    """Create the file, for its user alone, if it does not exist. SQLite gives its side files the same mode, and reports
    the error if the file cannot be created."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def hold(path: Path, lock: sqlite3.Connection) -> None:
    """Lock the database for this store, until the connection is closed or the process ends."""
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise StoreError(path, "another store has the database open, in this process or another",
                         "close that one, or choose another file") from error


def prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only effective in a new file
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")


def confirm(path: Path, db: sqlite3.Connection) -> None:
    """Rewrite SQLite's write-ahead log as it is, and wait until it is on the disk.

    The previous process may have died after a failed sync. What it had written is then in the page cache, where SQLite
    finds it, but marked as clean, so no later sync would write it. A power failure would lose it, and everything
    committed after it.
    """
    db.execute("BEGIN IMMEDIATE")  # no writer may append to it meanwhile
    try:
        log = os.open(f"{path}-wal", os.O_RDWR)
        try:
            place = 0
            while data := os.pread(log, CHUNK, place):
                place += os.pwrite(log, data, place)
            if place:
                os.fsync(log)
        finally:
            os.close(log)
    except OSError as error:
        raise StoreError(f"{path}-wal", f"the log cannot be rewritten: {error.strerror}",
                         "check the disk's space, quota and health, then retry") from error
    finally:
        db.execute("ROLLBACK")
