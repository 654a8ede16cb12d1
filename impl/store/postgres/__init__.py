"""A store in a PostgreSQL database, which several nodes share."""

from .database import Database
from .store import ClosingSession, PostgresStore

__all__ = ["ClosingSession", "Database", "PostgresStore"]
