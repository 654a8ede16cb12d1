"""Maps SQLite's errors to store errors: which are transient, which are not, and which leave the outcome unknown."""

import sqlite3
from collections.abc import Mapping

from .interface import Broken, NoRoom, StoreError, Unstorable

# Transient: the batch can be retried.
_TROUBLES: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("the database is locked by another program", "stop that program, or retry when it is done"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "make the file and its directory writable"),
    sqlite3.SQLITE_IOERR: ("the disk could not be read or written",
                           "check its space, quota and health, then retry"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened",
                              "choose a file in a directory that exists and is writable"),
    sqlite3.SQLITE_NOMEM: ("out of memory", "stop other programs, then retry"),
}
# Permanent.
_NOT_A_DATABASE = ("the file is not a database", "choose another file, or move this one away")
DAMAGED = ("the database is damaged", "restore a backup, or save what is left: sqlite3 FILE .recover")


# Errors of a COMMIT before its last page is written.
_NOT_WRITTEN = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT)


def explain(where: object, error: Exception) -> StoreError:
    """The store error for an error of SQLite, or of the conversion to and from it."""
    if isinstance(error, StoreError):
        return error
    explained = _describe(where, error)
    explained.__cause__ = error
    return explained


def _describe(where: object, error: Exception) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
    if code == sqlite3.SQLITE_FULL:
        return NoRoom(where, "the disk is full", "free some space, then retry; nothing of the batch was kept")
    if code in _TROUBLES:
        return StoreError(where, *_TROUBLES[code])
    if code == sqlite3.SQLITE_NOTADB:
        return Broken(where, *_NOT_A_DATABASE)
    if code == sqlite3.SQLITE_CORRUPT:
        return Broken(where, *DAMAGED)
    if code == sqlite3.SQLITE_TOOBIG or not code:  # without a code, the conversion failed
        return Unstorable(where, "the batch contains a value that cannot be stored", "nothing of it was kept", error)
    return Broken(where, "the database failed", "nothing of the batch was kept", error)


def leaves_doubt(error: sqlite3.Error) -> bool:
    """Whether a restart may find a transaction whose COMMIT failed with this error. SQLite finds only a commit that was
    written completely: a failed write leaves none, a failed sync may."""
    code = error.sqlite_errorcode
    return code & 0xFF not in _NOT_WRITTEN and code != sqlite3.SQLITE_IOERR_WRITE
