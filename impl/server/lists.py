"""Paginated lists. A page contains the latest items, or the latest before a cursor, in order. It has at most `limit`
items, fewer if they are long. If there are earlier items, the `Link` header has the query for the previous page, as
rel="prev". Encoding a long page yields to the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from .answers import Response, encode
from .schemas import BadInput

LIMIT = 1000  # maximum items per page
SIZE = 4_194_304  # bytes after which a page is full
PIECE = 64  # items per read from the store
SHARE = 65_536  # bytes encoded before yielding to the event loop


@dataclass(frozen=True)
class Page:
    """The requested page: how many items, and the cursor before which they end."""

    limit: int
    before: str | None


def read_page(request: Request, limit: int = LIMIT) -> Page:
    """The page that the query requests; `limit` is the default number of items."""
    asked = request.query_params.get("limit")
    if asked is not None:
        if not (asked.isascii() and asked.isdigit() and len(asked) < 9 and 1 <= int(asked) <= LIMIT):
            raise BadInput(f"limit: {asked!r:.80} is not a number from 1 to {LIMIT}; request more pages instead")
        limit = int(asked)
    return Page(limit, request.query_params.get("before"))


class Listing:
    """The encoded items of a list. Items must be added latest first."""

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
        """Adds the items of the page. Items come with their cursors. Returns the cursor of the earliest item on the
        page, if there are items before it."""
        place = None
        number = 0
        async for at, item in items:
            if number == page.limit or self.full:
                return place
            await self.add(item)
            place, number = at, number + 1
        return None

    def answer(self, page: Page | None = None, earlier: str | None = None) -> Response:
        """The list, in order, with a link to the previous page."""
        headers = {}
        if page and earlier is not None:
            headers["link"] = f'<?{urlencode({"limit": page.limit, "before": earlier})}>; rel="prev"'
        return Response(200, b"[%s]" % b",".join(reversed(self._items)), headers=headers)


async def list_all(items: Iterable[Any]) -> Response:
    """All items, in order."""
    listing = Listing()
    for item in reversed(list(items)):
        await listing.add(item)
    return listing.answer()
