"""Places in the log of events, as clients keep them: `NAME-NUMBER`.

The number is an event's id. The name is that of the store's life in which the event was written: each time that a store
is opened it draws a new one, and keeps it with the first event that it writes. So if events were lost, because a backup
was restored or the disk forgot what it had confirmed, the events that get their numbers have another name, and whoever
has seen the lost ones is told that its place is not of this log. The places of everybody else stay good.

Rejected: one name for a whole log, which would have to change whenever events may have been lost. Nothing beside the
log knows how far the log had come, unless it is written with each event.
"""

from bisect import bisect_right
from collections.abc import Sequence

from .records import Life


class Places:
    """Names the places of one log. `older` is the name of what was written before lives had names."""

    def __init__(self, lives: Sequence[Life], older: str) -> None:
        self._firsts = [life.first for life in lives]
        self._names = [older, *(life.name for life in lives)]

    def name(self, event: int) -> str:
        """The place of whoever has seen every event up to this one (R29b)."""
        return f"{self._names[bisect_right(self._firsts, event)]}-{event}"

    def find(self, place: str, latest: int) -> int | None:
        """Which event the place is at, in a log that ends with event `latest`. None if it is not of this log (R29c)."""
        number = place.rpartition("-")[2]
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return None
        return int(number) if int(number) <= latest and self.name(int(number)) == place else None
