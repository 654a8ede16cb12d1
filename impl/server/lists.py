"""Lists in pages. A page has the latest items, or the latest before a place, in order. `limit` says how many at most,
and a page of long items has fewer. If there are earlier ones, the page's `Link` header has the query that asks for
them, as rel="prev". Others run while a long page is made.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from .answers import Answer, encode
from .schemas import BadInput

LIMIT = 1000  # items of a page
SIZE = 4_194_304  # bytes after which a page is full
PIECE = 64  # items that are read at a time
SHARE = 65_536  # bytes that are encoded before others run


@dataclass(frozen=True)
class Page:
    """What is asked for: how many items, and before which place."""

    limit: int
    before: str | None


def read_page(request: Request, limit: int = LIMIT) -> Page:
    """The page that the query asks for; without a limit, one of so many items."""
    asked = request.query_params.get("limit")
    if asked is not None:
        if not (asked.isascii() and asked.isdigit() and len(asked) < 9 and 1 <= int(asked) <= LIMIT):
            raise BadInput(f"limit: {asked!r:.80} is no number from 1 to {LIMIT}; ask for one page after the other")
        limit = int(asked)
    return Page(limit, request.query_params.get("before"))


class Listing:
    """The items of a list in the form in which they are sent. Whoever adds them begins with the latest."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._size = self._share = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return self._size > SIZE

    async def add(self, item: Any) -> None:
        encoded = encode(item).encode()
        self._items.append(encoded)
        self._size += len(encoded)
        self._share += len(encoded)
        if self._share > SHARE:
            self._share = 0
            await asyncio.sleep(0)

    async def add_page(self, page: Page, items: AsyncIterator[tuple[str, Any]]) -> str | None:
        """Adds as many items as the page has. Items come with their places. Returns the place of the earliest one on
        the page, if there are others before it."""
        place = None
        number = 0
        async for at, item in items:
            if number == page.limit or self.full:
                return place
            await self.add(item)
            place, number = at, number + 1
        return None

    def answer(self, page: Page | None = None, earlier: str | None = None) -> Answer:
        """The list, in order, and the query that asks for what is earlier."""
        headers = {}
        if page and earlier is not None:
            headers["link"] = f'<?{urlencode({"limit": page.limit, "before": earlier})}>; rel="prev"'
        return Answer(200, b"[%s]" % b",".join(reversed(self._items)), headers=headers)


async def list_all(items: Iterable[Any]) -> Answer:
    """All items, in order."""
    listing = Listing()
    for item in reversed(list(items)):
        await listing.add(item)
    return listing.answer()
