"""Retention: how long a workspace keeps the events of its log, and prompts that are done.

By default everything is kept. Otherwise, what exceeds a count or an age is deleted, oldest first. Messages stay: they
are the conversation. Run ids stay too, or a prompt that is sent again would run again.

Deletion happens in small commits by the store's own writer, so other writers do not wait long.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from time import time

from ..store import DropEvent, ForgetPrompt, Store, StoreError
from .events import Broker

log = logging.getLogger("cancelmark.retention")

PERIOD = 60.0  # seconds between two runs
PIECE = 64  # rows deleted by one commit
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Keep:
    """A limit: at most so many, or for so many seconds."""

    number: int | None = None
    age: int | None = None


def parse_keep(text: str) -> Keep:
    """The limit that a text names: `10000` is a count, `30d` an age. Raises ValueError."""
    parts = re.fullmatch(r"([0-9]{1,12})([smhdw]?)", text)
    if parts is None or int(parts[1]) < 1:
        raise ValueError("invalid limit; expected a count such as 10000, or an age such as 12h or 30d (s, m, h, d, w)")
    number, unit = int(parts[1]), parts[2]
    return Keep(age=number * UNITS[unit]) if unit else Keep(number)


@dataclass(frozen=True)
class Retention:
    """What a workspace keeps of its events, and of prompts that are done; None keeps everything."""

    events: Keep | None = None
    prompts: Keep | None = None

    async def apply_for_ever(self, store: Store, broker: Broker) -> None:
        """Delete what exceeds the limits, now and periodically."""
        while self.events or self.prompts:
            try:
                await self.apply(store, broker, int(time()))
            except Exception as error:  # the next run retries
                log.warning("retention failed; it is retried later", extra={"problem": error},
                            exc_info=None if isinstance(error, StoreError) else error)
            await asyncio.sleep(PERIOD)

    async def apply(self, store: Store, broker: Broker, now: int) -> None:
        """Delete what exceeds the limits now."""
        if self.events:
            await drop_events(store, broker, self.events, now)
        if self.prompts:
            await forget_prompts(store, self.prompts, now)


EVERYTHING = Retention()


async def drop_events(store: Store, broker: Broker, keep: Keep, now: int) -> None:
    """Delete the oldest events, except those that a subscriber has still to read."""
    first_kept = broker.latest + 1 - (keep.number or 0) if keep.age is None else await store.first_event(now - keep.age)
    floor = broker.raise_floor(first_kept - 1)
    first = await store.first_event()
    while first <= floor:
        piece = range(first, min(first + PIECE, floor + 1))
        await store.write([DropEvent(id) for id in piece])
        first = piece.stop


async def forget_prompts(store: Store, keep: Keep, now: int) -> None:
    """Delete the oldest prompts that are done, except for their run ids."""
    until = await store.latest_seq() - (keep.number or 1)
    before = None if keep.age is None else now - keep.age
    while prompts := await store.done_prompts(until, PIECE, before=before):
        await store.write([
            ForgetPrompt(p.seq, None if p.run_id is None else p.accepted_digest) for p in prompts])
