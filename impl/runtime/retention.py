"""How long a workspace keeps what is over: events in its log, and prompts that are done.

By default everything is kept. Otherwise what is older than a number of later ones, or than an age, goes in the order in
which it came. Messages stay: they are the conversation. So do run ids, or a prompt that is sent again would run again.

The work is done in small commits, by the store's own writer, so that nobody who writes waits long for it.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from time import time

from ..store import DropEvent, ForgetPrompt, Store, StoreError
from .events import Broker

log = logging.getLogger("cancelmark.retention")

PERIOD = 60.0  # seconds between two looks at what is too old
PIECE = 64  # rows that one commit deletes
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Keep:
    """How much is kept: so many, or for so many seconds."""

    number: int | None = None
    age: int | None = None


def parse_keep(text: str) -> Keep:
    """`10000`: so many. `30d`: for so long. Raises ValueError."""
    parts = re.fullmatch(r"([0-9]{1,12})([smhdw]?)", text)
    if parts is None or int(parts[1]) < 1:
        raise ValueError("give a number such as 10000, or an age such as 12h or 30d (s, m, h, d, w)")
    number, unit = int(parts[1]), parts[2]
    return Keep(age=number * UNITS[unit]) if unit else Keep(number)


@dataclass(frozen=True)
class Retention:
    """What a workspace keeps of its events and of its prompts that are done; None: everything."""

    events: Keep | None = None
    prompts: Keep | None = None

    async def apply_for_ever(self, store: Store, broker: Broker) -> None:
        """Lets go of what is too old, now and again."""
        while self.events or self.prompts:
            try:
                await self.apply(store, broker, int(time()))
            except Exception as error:  # what could not be deleted now can be later
                log.warning("nothing is deleted", extra={"problem": error},
                            exc_info=None if isinstance(error, StoreError) else error)
            await asyncio.sleep(PERIOD)

    async def apply(self, store: Store, broker: Broker, now: int) -> None:
        """Lets go of what is too old now."""
        if self.events:
            await drop_events(store, broker, self.events, now)
        if self.prompts:
            await forget_prompts(store, self.prompts, now)


EVERYTHING = Retention()


async def drop_events(store: Store, broker: Broker, keep: Keep, now: int) -> None:
    """Deletes the oldest events, as far as nobody is still to see them (R18c)."""
    first_kept = broker.latest + 1 - (keep.number or 0) if keep.age is None else await store.first_event(now - keep.age)
    floor = broker.raise_floor(first_kept - 1)
    first = await store.first_event()
    while first <= floor:
        piece = range(first, min(first + PIECE, floor + 1))
        await store.write([DropEvent(id) for id in piece])
        first = piece.stop


async def forget_prompts(store: Store, keep: Keep, now: int) -> None:
    """Forgets the oldest prompts that are done, except for their run ids (R22d)."""
    until = await store.latest_seq() - (keep.number or 1)
    before = None if keep.age is None else now - keep.age
    while prompts := await store.done_prompts(until, PIECE, before=before):
        await store.write([
            ForgetPrompt(p.seq, None if p.run_id is None else p.accepted_digest) for p in prompts])
