"""The events of a workspace, across reconnects.

A broken stream is resumed: the client sends the id of the last event (`Last-Event-ID`), and the server continues after
it. A partially received or unreadable event is discarded; the server sends it again. A terminal event that arrives
twice is reported once.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import uniform
from typing import Self, TypeAlias

import httpx2

from cancelmark.model.wire import RunComplete

from ..sse import Parser, ServerEvent, TooLongError
from .calls import Client, path, refusal
from .errors import BadAnswer, ClientError, Refusal, Unreachable
from .results import Notice

REMEMBERED = 16_384  # terminal events remembered for deduplication
BEGINNING = "0"  # an id in no log: the server sends its whole log
UNREADABLE = 5  # attempts to read past an unreadable event

Changed: TypeAlias = Callable[[ClientError | None], None]  # called with why the connection was lost; None: connected


@dataclass(frozen=True)
class Patience:
    """Retry policy: exponential backoff from `first` to `longest` seconds, with jitter, so that the clients of a
    restarting server do not reconnect all at once."""

    first: float = 0.1
    longest: float = 5.0
    total: float | None = 60.0
    """Seconds without a connection after which to give up; None: never."""
    silence: float = 60.0
    """Seconds without a byte after which a connection counts as dead. Servers send heartbeats more often."""

    def delay(self, attempt: int, error: ClientError | None = None, least: float = 0.0) -> float:
        if isinstance(error, Refusal) and error.retry_after:
            return min(error.retry_after, 10 * self.longest)
        return uniform(0.5, 1.0) * min(self.longest, max(least, self.first) * 2.0 ** min(attempt, 30))


class Events:
    """The events of a workspace from the moment of subscription, as an async iterator for one reader.

    Entering connects, and raises what the calls of `Client` raise. After that, the iterator survives broken connections
    and server restarts. It raises only if retrying is pointless: the server refuses permanently, does not follow the
    protocol, or `patience.total` has passed. Canceling the reader loses no events.
    """

    def __init__(
        self, client: Client, workspace: str, *, after: str = "", patience: Patience | None = None,
        changed: Changed = lambda trouble: None,
    ) -> None:
        self.client, self.workspace, self.patience, self.changed = client, workspace, patience or Patience(), changed
        self.place = after
        """The id of the last event, to resume from; empty until the server has sent one."""
        self.connections = 0
        """The number of connections so far."""
        self.gap = False
        """Whether events may have been missed: it had to reconnect without an event id, or with one that the server's
        log no longer has."""
        self.trouble: ClientError | None = None
        """Why it is disconnected; None while connected."""
        self._arrived: deque[Notice] = deque()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._parser = Parser()
        self._stream = AsyncExitStack()
        self._body: AsyncIterator[bytes] | None = None
        self._attempt = 0
        self._since: float | None = None  # when the connection was lost
        self._unreadable = ("", 0)  # the id before an unreadable event, and how often it was received

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        while True:
            while self._arrived:
                notice = self._arrived.popleft()
                if not self._was_seen(notice):
                    return notice
            if self._body is None:
                await self._reconnect()
            else:
                await self._receive(self._body)

    async def rewind(self) -> None:
        """Restarts from the beginning of the server's log, so that every terminal event not yet seen arrives. Must not
        be called while a reader waits."""
        await self._stream.aclose()
        self._body, self.place, self.gap = None, BEGINNING, False

    # --- receiving

    async def _receive(self, body: AsyncIterator[bytes]) -> None:
        """Reads the next events; handles a broken or unreadable stream as a lost connection."""
        try:
            for event in self._parser.feed(await anext(body)):
                self._take_event(event)
        except httpx2.ReadTimeout:
            await self._lose_connection(Unreachable(f"{self.client.server} sent no heartbeat in time", sent=True))
        except (StopAsyncIteration, httpx2.TransportError):
            await self._lose_connection(Unreachable(f"lost the connection to {self.client.server}", sent=True))
        except (BadAnswer, TooLongError, httpx2.DecodingError) as error:
            place, times = self._unreadable
            self._unreadable = (self.place, times + 1 if place == self.place else 1)
            await self._lose_connection(BadAnswer(f"{self.client.server} sent an unreadable event: {error}"))
        except asyncio.CancelledError:
            self._body = None  # the server sends again what was in transit
            raise
        else:
            self._attempt, self._since = 0, None

    def _take_event(self, event: ServerEvent) -> None:
        if event.data is not None:
            notice = Notice.read(event.id, event.data)
            self.gap = self.gap or notice.type == "gap"
            self._arrived.append(notice)
        self.place = event.id

    def _was_seen(self, notice: Notice) -> bool:
        """Whether it is a terminal event that was seen before. Run ids and event ids identify terminal events."""
        if not isinstance(notice.payload, RunComplete):
            return False
        end = notice.payload
        key = (end.session_id, end.run_id) if end.run_id else (notice.id, end.session_id, end.message_id)
        if not end.run_id and not notice.id:
            return False
        seen = key in self._seen
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    # --- connecting

    async def _connect(self) -> None:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.place:
            headers["last-event-id"] = self.place
        url, patience = path("workspaces", self.workspace, "events"), self.patience
        timeout = httpx2.Timeout(patience.silence, connect=5)
        await self._stream.aclose()
        try:
            response = await self._stream.enter_async_context(self.client.http.stream(
                "GET", url, params={"client_id": self.client.client_id}, headers=headers, timeout=timeout))
            if response.status_code != 200:
                await response.aread()
                raise refusal(response)
        except httpx2.TransportError as error:
            await self._stream.aclose()
            raise self.client.unreachable(error) from error
        except Refusal:
            await self._stream.aclose()
            raise
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            await self._stream.aclose()
            raise BadAnswer(f"{self.client.server} responds with {kind or 'no content type'} instead of events; check "
                            "the address")
        self._body, self._parser = aiter(response.aiter_bytes()), Parser()
        self.gap = self.gap or bool(self.connections and not self.place)
        self.connections += 1
        self.trouble = None
        self.changed(self.trouble)

    async def _lose_connection(self, error: ClientError) -> None:
        self._body, self.trouble = None, error
        self._since = asyncio.get_running_loop().time() if self._since is None else self._since
        await self._stream.aclose()
        self.changed(self.trouble)

    async def _reconnect(self) -> None:
        """Reconnects with backoff, or raises if retrying is pointless."""
        error = self.trouble
        while True:
            if error and self._is_hopeless(error):
                raise error
            least = (self._parser.retry or 0) / 1000
            await asyncio.sleep(self.patience.delay(self._attempt, error, least))
            self._attempt += 1
            try:
                return await self._connect()
            except (Unreachable, Refusal) as failed:
                error = failed
                await self._lose_connection(failed)

    def _is_hopeless(self, error: ClientError) -> bool:
        if isinstance(error, Refusal) and not error.passes:
            return True
        if isinstance(error, BadAnswer) and self._unreadable[1] >= UNREADABLE:
            return True
        waited = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return self.patience.total is not None and waited > self.patience.total
