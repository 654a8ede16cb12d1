"""What may come between a runtime and its store."""

import asyncio

from cancelmark.impl.store import Batch, Store


class Meddled(Store):
    """Comes before the store that it meddles with: what a class of its own does in `write` happens to each batch."""

    def begin_write(self, batch: Batch) -> "asyncio.Future[tuple[int, ...]]":
        return asyncio.ensure_future(self.write(batch))

    async def write(self, batch: Batch) -> tuple[int, ...]:
        return await super().begin_write(batch)  # type: ignore[safe-super]
