"""The events of a workspace, over as many connections as it takes.

A stream that breaks is taken up again where it was: the client says the last place that it has seen (`Last-Event-ID`),
and the server goes on from there. Whatever of an event had arrived when the connection broke is forgotten, and so is an
event that cannot be read: both come again. A terminal event that comes again although it was seen is not shown twice.
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

REMEMBERED = 16_384  # terminal events that would be recognized if they came again
BEGINNING = "0"  # a place in no log: the server shows all of its own
UNREADABLE = 5  # times that the same place may give something unreadable

Changed: TypeAlias = Callable[[ClientError | None], None]  # told why a connection was lost, or None when it is there


@dataclass(frozen=True)
class Patience:
    """How a client tries again: after `first` seconds, then twice as long each time up to `longest`, each time a random
    part of it less, so that the clients of a server that restarts do not come all at once."""

    first: float = 0.1
    longest: float = 5.0
    total: float | None = 60.0
    """Seconds of trouble after which it gives up; None: never."""
    silence: float = 60.0
    """Seconds without a byte after which a connection is taken for dead. Servers send comments more often than that."""

    def delay(self, attempt: int, error: ClientError | None = None, least: float = 0.0) -> float:
        if isinstance(error, Refusal) and error.retry_after:
            return min(error.retry_after, 10 * self.longest)
        return uniform(0.5, 1.0) * min(self.longest, max(least, self.first) * 2.0 ** min(attempt, 30))


class Events:
    """The events of a workspace from the moment that it is entered, as an async iterator for one reader.

    Entering raises what a call raises. After that it goes on through broken connections and restarts of the server, and
    raises only when that is hopeless: the server refuses for good, does not speak this protocol, or the patience is at
    its end. Canceling the reader loses nothing.
    """

    def __init__(
        self, client: Client, workspace: str, *, after: str = "", patience: Patience | None = None,
        changed: Changed = lambda trouble: None,
    ) -> None:
        self.client, self.workspace, self.patience, self.changed = client, workspace, patience or Patience(), changed
        self.place = after
        """The last place seen, to come back with; empty while the server has told none."""
        self.connections = 0
        """How often it has connected."""
        self.gap = False
        """It had to come back without a place, or to one that the server's log does not reach back to: something may
        have been published meanwhile that it does not know (R29e)."""
        self.trouble: ClientError | None = None
        """Why it is not connected, while it is not."""
        self._arrived: deque[Notice] = deque()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._parser = Parser()
        self._stream = AsyncExitStack()
        self._body: AsyncIterator[bytes] | None = None
        self._attempt = 0
        self._since: float | None = None  # when the trouble began
        self._unreadable = ("", 0)  # the place before something unreadable, and how often it came

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
        """Goes back to the beginning of the server's log: every terminal event that was not seen comes. Not while
        somebody reads."""
        await self._stream.aclose()
        self._body, self.place, self.gap = None, BEGINNING, False

    # --- receiving

    async def _receive(self, body: AsyncIterator[bytes]) -> None:
        """Takes what has arrived; if the stream has ended, or cannot be read, says so."""
        try:
            for event in self._parser.feed(await anext(body)):
                self._take_event(event)
        except httpx2.ReadTimeout:
            await self._lose_connection(Unreachable(f"{self.client.server} has been silent for too long", sent=True))
        except (StopAsyncIteration, httpx2.TransportError):
            await self._lose_connection(Unreachable(f"the connection to {self.client.server} is lost", sent=True))
        except (BadAnswer, TooLongError, httpx2.DecodingError) as error:
            place, times = self._unreadable
            self._unreadable = (self.place, times + 1 if place == self.place else 1)
            await self._lose_connection(BadAnswer(f"{self.client.server} sends what cannot be read: {error}"))
        except asyncio.CancelledError:
            self._body = None  # whatever was on its way comes again
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
        """Whether it is a terminal event that was seen before. There is one for a run id, and one with an event id."""
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
            raise BadAnswer(f"{self.client.server} answers with {kind or 'no content type'} instead of events: "
                            "something else runs there")
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
        """Connects again, or raises if there is no hope."""
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
