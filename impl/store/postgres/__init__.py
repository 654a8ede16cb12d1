"""A store in a PostgreSQL database, which several nodes share."""

from .database import Database
from .store import PostgresStore

__all__ = ["Database", "PostgresStore"]
