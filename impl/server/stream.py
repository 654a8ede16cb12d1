"""Events to those who watch: one workspace as server-sent events.

What a subscription gives is sent as it comes, each with the id to come back with. The first thing sent is such an id
alone, so that also who has seen nothing yet can come back to its place. A reader that is slow skips updates, never
events; one that takes nothing for a while is cut off, and can come back. Nobody else waits for either.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from cancelmark.impl.events import Notice, Subscription
from cancelmark.impl.store import Event
from cancelmark.impl.workspace import Workspace

log = logging.getLogger("cancelmark.server")

HEARTBEAT = 15.0  # seconds of silence after which a comment says that the server is there
STALL = 60.0  # seconds without taking anything after which a reader is cut off
CHUNK = 32_768  # bytes that are sent together
REMEMBERED = 4096  # messages that are known to have been shown before
SHARED = 256  # notices that are kept in the form in which they are sent

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
           (b"x-accel-buffering", b"no")]

_dumps = json.JSONEncoder(separators=(",", ":")).encode


class Encoder:
    """Turns the notices of one workspace into envelopes, once for all who watch."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._shown: OrderedDict[str, None] = OrderedDict()  # messages, the latest last
        self._ready: OrderedDict[int, tuple[Notice, bytes]] = OrderedDict()  # events by id, updates by identity

    def place(self, event: int) -> bytes:
        """The line that says where a client is."""
        return b"id: %s-%d\n" % (self._log.encode(), event)

    def after(self, last_event_id: str | None) -> int | None:
        """The event after which a client wants to go on; None if it says nothing. One that comes from another log has
        seen nothing of this one."""
        if not last_event_id:
            return None
        log, _, number = last_event_id.partition("-")
        return int(number) if log == self._log and number.isascii() and number.isdigit() and len(number) < 19 else 0

    def encoded(self, notice: Notice) -> bytes:
        key = notice.id if isinstance(notice, Event) else -id(notice)  # which is its own as long as it is held here
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = (notice, f"data: {_dumps(self._envelope(notice))}\n\n".encode())
            if len(self._ready) > SHARED:
                self._ready.popitem(last=False)
        return found[1]

    def _envelope(self, notice: Notice) -> dict[str, Any]:
        payload = notice.payload
        change = "created"
        if notice.type == "message":
            if notice.run_id:
                payload = {**payload, "run_id": notice.run_id}
            change = self._change(payload["id"])
        elif notice.type == "prompt" and payload["state"] != "accepted":
            change = "updated"
        return {"type": notice.type, "payload": {"type": change, "payload": payload}}

    def _change(self, message: str) -> str:
        known = message in self._shown
        self._shown[message] = None
        self._shown.move_to_end(message)
        if len(self._shown) > REMEMBERED:
            self._shown.popitem(last=False)
        return "updated" if known else "created"


class EventStream:
    """An answer that goes on until the client leaves, or the workspace closes."""

    def __init__(self, workspace: Workspace, encoder: Encoder, client: str, after: int | None, *,
                 heartbeat: float = HEARTBEAT, stall: float = STALL) -> None:
        self._encoder, self._heartbeat, self._stall = encoder, heartbeat, stall
        self._watching = workspace.watch(client, after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watching as subscription:
            abort: Callable[[], None] = scope["state"]["abort"]
            leaving = asyncio.ensure_future(_left(receive, subscription))
            try:
                async with asyncio.timeout(self._stall):
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await self._send(send, b"retry: 1000\n" + self._encoder.place(subscription.place) + b"\n")
                while (chunk := await self._chunk(subscription)) is not None:
                    await self._send(send, chunk)
                async with asyncio.timeout(self._stall):
                    await send({"type": "http.response.body", "body": b""})
            except TimeoutError:
                log.info("a reader took nothing and was cut off")
                abort()
                await leaving
            finally:
                leaving.cancel()

    async def _chunk(self, subscription: Subscription) -> bytes | None:
        """What there is to send, or a heartbeat if there is nothing for a while, or None at the end."""
        try:
            async with asyncio.timeout(self._heartbeat):
                notice = await anext(subscription)
        except TimeoutError:
            return b":\n\n"
        except StopAsyncIteration:
            return None
        chunk = self._told(subscription, notice)
        while subscription.held and len(chunk) < CHUNK:
            try:
                chunk += self._told(subscription, await anext(subscription))
            except StopAsyncIteration:
                break
        return chunk

    def _told(self, subscription: Subscription, notice: Notice) -> bytes:
        place = notice.id if isinstance(notice, Event) else subscription.place
        return self._encoder.place(place) + self._encoder.encoded(notice)

    async def _send(self, send: Send, chunk: bytes) -> None:
        async with asyncio.timeout(self._stall):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _left(receive: Receive, subscription: Subscription) -> None:
    """Ends the subscription when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    subscription.close()
