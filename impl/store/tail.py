"""The end of the log of events, in memory: whoever watches asks for the latest events as soon as they are committed,
and need not wait for a database to find what was there a moment ago. A tail never changes: it can be read while another
thread makes the next.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .records import Event

SIZE = 65_536  # characters that are kept


class Tail(NamedTuple):
    """Every event above id `after`, and up to `latest`."""

    after: int = 0
    latest: int = 0
    events: tuple[Event, ...] = ()
    size: int = 0

    def grow(self, events: Iterable[tuple[Event, int]]) -> "Tail":
        """The tail with what was committed now, each with its size. It begins anew where an id was left out, and when
        it is too long."""
        tail = self
        for event, size in events:
            if event.id != tail.latest + 1 or tail.size + size > SIZE:
                tail = Tail(event.id - 1)
            if size <= SIZE:
                tail = Tail(tail.after, event.id, (*tail.events, event), tail.size + size)
            else:
                tail = Tail(event.id, event.id)
        return tail

    def find(self, after: int, until: int | None, session: str | None, terminal: bool, limit: int | None,
             ) -> list[Event] | None:
        """What `Store.events` answers, or None if that cannot be told from here."""
        if until is None or after < self.after or until > self.latest:
            return None
        found = (event for event in self.events if after < event.id <= until
                 and session in (None, event.session_id) and (event.terminal or not terminal))
        return list(islice(found, limit))
