"""What SQLite's errors mean to a caller: what may pass, what does not, and after which nobody knows what is kept."""

import sqlite3
from collections.abc import Mapping

from .interface import Broken, NoRoom, StoreError, Unstorable

# What may pass: a batch that met it can be written again.
_TROUBLES: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("the database is locked by another program", "end that program, or wait until it is done"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "make the file and its directory writable"),
    sqlite3.SQLITE_IOERR: ("the disk could not be read or written",
                           "check its space, its limits and its health, and try again"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened",
                              "choose a file, in a directory that exists and may be written"),
    sqlite3.SQLITE_NOMEM: ("there is not enough memory", "end other programs and try again"),
}
# What does not.
_NOT_A_DATABASE = ("the file is not a database", "choose another file, or move this one out of the way")
DAMAGED = ("the database is damaged", "restore a backup, or save what is left: sqlite3 FILE .recover")


# What a COMMIT fails with before its last page is written.
_NOT_WRITTEN = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT)


def explain(where: object, error: Exception) -> StoreError:
    """The error that a caller gets for one that SQLite, or the conversion to and from it, has raised."""
    if isinstance(error, StoreError):
        return error
    explained = _describe(where, error)
    explained.__cause__ = error
    return explained


def _describe(where: object, error: Exception) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    if code == sqlite3.SQLITE_FULL:
        return NoRoom(where, "the disk is full", "make room and try again; nothing of the batch was kept")
    if code in _TROUBLES:
        return StoreError(where, *_TROUBLES[code])
    if code == sqlite3.SQLITE_NOTADB:
        return Broken(where, *_NOT_A_DATABASE)
    if code == sqlite3.SQLITE_CORRUPT:
        return Broken(where, *DAMAGED)
    if code == sqlite3.SQLITE_TOOBIG or not code:  # without a code it is not the database that failed
        return Unstorable(where, "the batch has a value that cannot be stored", "nothing of it was kept", error)
    return Broken(where, "the database failed", "nothing of the batch was kept", error)


def leaves_doubt(error: sqlite3.Error) -> bool:
    """Whether a restart may find a transaction whose COMMIT failed so. Only a commit that was written as a whole is
    found, so what could not be written leaves none; what could not be synced does."""
    code = error.sqlite_errorcode
    return code & 0xFF not in _NOT_WRITTEN and code != sqlite3.SQLITE_IOERR_WRITE
