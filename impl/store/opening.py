"""Opening a database file: that it is this store's alone, and that what will be read from it is on the disk."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from .interface import StoreError

CHUNK = 1 << 20  # bytes


def make_private(path: Path) -> None:
    """Makes the file, for its user alone, if it is not there. SQLite gives its files beside it the same mode, and says
    what is wrong if the file cannot be made."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def hold(path: Path, lock: sqlite3.Connection) -> None:
    """Makes the database this store's own, until the connection is closed or the process is gone."""
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise StoreError(path, "another store has the database open, in this process or another",
                         "close that one, or choose another file") from error


def prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")


def confirm(path: Path, db: sqlite3.Connection) -> None:
    """Writes the log that SQLite keeps beside the file once more, as it is, and waits until it is on the disk.

    The last life may have died after a sync that failed. What it had written is then in the page cache, where SQLite
    finds it, and marked as clean, so that no later sync would write it: everything that is committed after it would be
    lost with it when the power fails.
    """
    db.execute("BEGIN IMMEDIATE")  # nobody appends to it meanwhile
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
        raise StoreError(f"{path}-wal", f"it cannot be written again: {error.strerror}",
                         "check the disk's space, its limits and its health, and try again") from error
    finally:
        db.execute("ROLLBACK")
