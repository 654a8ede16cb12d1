"""Offsets in the event log as clients keep them: `NAME-NUMBER`.

**The name.** The number is an event's id. The name is that of the store's life in which the event was written: each
time a store is opened it draws a new name, and stores it with the first event that it writes. If events are lost,
because a backup was restored or the disk lost what it had confirmed, the events that reuse their numbers have another
name. A client that has seen the lost events then learns that its offset is not of this log. The offsets of all other
clients stay valid.

**Rejected:** one name for a whole log, which would have to change whenever events may have been lost. Nothing outside
the log knows how far the log had come, unless it is written with each event.
"""

from bisect import bisect_right
from collections.abc import Sequence

from .records import Incarnation


class Offsets:
    """Names the offsets of one log. `older` is the name of what was written before lives had names."""

    def __init__(self, lives: Sequence[Incarnation], older: str) -> None:
        self._firsts = [life.first for life in lives]
        self._names = [older, *(life.name for life in lives)]

    def name(self, event: int) -> str:
        """The offset of a client that has seen every event up to this one."""
        return f"{self._names[bisect_right(self._firsts, event)]}-{event}"

    def find(self, place: str, latest: int) -> int | None:
        """The event id of the offset, in a log that ends with event `latest`. None if the offset is not of this log."""
        number = place.rpartition("-")[2]
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return None
        return int(number) if int(number) <= latest and self.name(int(number)) == place else None
