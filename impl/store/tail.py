"""The end of the event log in memory. Subscribers ask for the latest events as soon as they are committed, and need not
wait for a database. A tail is immutable: it can be read while another thread makes the next one.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .records import Event

SIZE = 65_536  # characters kept


class Tail(NamedTuple):
    """Every event above id `after`, up to `latest`."""

    after: int = 0
    latest: int = 0
    events: tuple[Event, ...] = ()
    size: int = 0

    def grow(self, events: Iterable[tuple[Event, int]]) -> "Tail":
        """The tail with newly committed events, each given with its size. It starts anew after a gap in the ids, and
        when it is too long."""
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
        """The answer of `Store.events`, or None if the tail does not cover it."""
        if until is None or after < self.after or until > self.latest:
            return None
        found = (event for event in self.events if after < event.id <= until
                 and session in (None, event.session_id) and (event.terminal or not terminal))
        return list(islice(found, limit))
