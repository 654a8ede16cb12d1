"""What work costs, counted and not timed: functions of Python that it calls, and instructions of SQLite."""

import sys
from collections.abc import Callable

from cancelmark.impl.store import SqliteStore, Store


def count_calls(work: Callable[[], object]) -> int:
    """How many functions are called while the work is done, those of C among them, and generators resumed."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def count_work(store: Store, read: Callable[[Store], object]) -> int:
    """What reading from a store costs: the same, and the instructions of SQLite."""
    instructions = 0

    def count() -> None:
        nonlocal instructions
        instructions += 1

    if not isinstance(store, SqliteStore):
        return count_calls(lambda: read(store))
    store._reader.set_progress_handler(count, 1)
    try:
        return count_calls(lambda: read(store)) + instructions
    finally:
        store._reader.set_progress_handler(None, 0)
