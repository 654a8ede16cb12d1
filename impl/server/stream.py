"""Events to those who watch: one workspace as server-sent events.

What a subscription gives is sent as it comes, each with the id to come back with. The first thing sent is such an id
alone, so that also who has seen nothing yet can come back to its place. A reader that is slow skips updates, never
events: after a second in which it takes nothing it is left alone until it does, so that a thousand such readers cost
nobody anything, and after a minute it is cut off, and can come back. Nobody waits for it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from cancelmark.model.lifecycle import Outcome

from .. import wire
from ..runtime.events import Notice
from ..runtime.workspace import Watch, Workspace
from ..store import Event, StoreError
from ..store.places import Places
from .answers import encode

log = logging.getLogger("cancelmark.server")

K = TypeVar("K")

HEARTBEAT = 15.0  # seconds of silence after which a comment says that the server is there
BRIEF = 1.0  # seconds without taking anything after which nobody cares for a reader until it does
STALL = 60.0  # and after which it is cut off
CHUNK = 32_768  # bytes that are sent at a time; a reader that takes nothing keeps about three times that here
TOGETHER = 128  # pieces that are sent together
SETTLE = 0.002  # seconds in which updates are gathered, so that one write has several; an event is sent at once
GATHER = 0.00005  # seconds for each stream of a workspace: where many watch, events are gathered too for a moment, as
NOTICEABLE = 0.005  # to wake all of them for each would take longer than that; where few watch, there is no delay
MOST = 0.1
REMEMBERED = 4096  # messages that are known to have been shown before
SHARED = 4_194_304  # bytes of notices that are kept in the form in which they are sent, for the next who wants them

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
           (b"x-accel-buffering", b"no")]


class Encoder:
    """Turns the notices of one workspace into envelopes, once for all who watch (R29a)."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._shown: OrderedDict[str, None] = OrderedDict()  # messages, the latest last
        self._ready: OrderedDict[int, tuple[Notice, bytes]] = OrderedDict()  # events by id, updates by identity
        self._size = 0  # of those

    def place(self, event: int) -> bytes:
        """The line that says where a client is (R29b)."""
        return f"id: {self._places.name(event)}\n".encode()

    def parse_place(self, last_event_id: str | None, latest: int) -> int | None:
        """The event after which a client wants to go on; None if it says nothing. One that comes from another log has
        seen nothing of this one, whose last event is `latest` (R29c)."""
        return (self._places.find(last_event_id, latest) or 0) if last_event_id else None

    def encode_error(self, event: Event, before: int) -> bytes:
        """The notice that announces a terminal event with an error, for clients that listen to such notices: a whole
        event, whose place is the one before. It is made of the terminal event alone: so the notice is as durable, comes
        before it and never without it, and is under its run id. A prompt without a run id has none: a client takes a
        notice without a run id for its own if the session is (R29f)."""
        end = event.payload
        if not (event.terminal and event.run_id and end.get("outcome") == Outcome.ERROR.value):
            return b""
        notice = wire.AgentEvent("error", event.session_id, event.run_id, end.get("error") or "the run failed")
        envelope = {"type": "agent_event", "payload": {"type": "created", "payload": notice}}
        return self.place(before) + f"data: {encode(envelope)}\n\n".encode()

    def encode(self, notice: Notice) -> bytes:
        key = notice.id if isinstance(notice, Event) else -id(notice)  # which is its own as long as it is held here
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = (notice, f"data: {encode(self._envelope(notice))}\n\n".encode())
            self._size += len(found[1])
            while self._size > SHARED:
                self._size -= len(self._ready.popitem(last=False)[1][1])
        return found[1]

    def _envelope(self, notice: Notice) -> dict[str, Any]:
        payload = notice.payload
        change = "created"
        if notice.type == "message":
            if notice.run_id:
                payload = {**payload, "run_id": notice.run_id}
            change = self._change(payload["id"])
        elif (notice.type == "prompt" and payload["state"] != "accepted") or "held" in payload:
            change = "updated"
        return {"type": notice.type, "payload": {"type": change, "payload": payload}}

    def _change(self, message: str) -> str:
        known = message in self._shown
        self._shown[message] = None
        self._shown.move_to_end(message)
        if len(self._shown) > REMEMBERED:
            self._shown.popitem(last=False)
        return "updated" if known else "created"


class Deadlines(Generic[K]):
    """Many waits of one length, and one timer for all of them: a loop that has to sort a timer for each of thousands
    does little else. `miss` is called with each that has not ended in time, and has ended then."""

    def __init__(self, seconds: float, miss: Callable[[K], None]) -> None:
        self._seconds, self._miss = seconds, miss
        self._until: dict[K, float] = {}  # the first is over first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wait: K) -> None:
        loop = asyncio.get_running_loop()
        self._until[wait] = until = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def end(self, wait: K) -> bool:
        """Whether that was in time."""
        return self._until.pop(wait, None) is not None

    def _look(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        while self._until:
            wait, until = next(iter(self._until.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._look)
                break
            del self._until[wait]
            self._miss(wait)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None


class Crowd:
    """All streams of one workspace: what they send is encoded once, and where they wait for time they wait together."""

    def __init__(self, places: Places, *, heartbeat: float = HEARTBEAT, stall: float = STALL) -> None:
        self.encoder, self.stall, self.brief = Encoder(places), stall, min(BRIEF, stall)
        self.silences: Deadlines[Watch] = Deadlines(heartbeat, Watch.nudge)
        self.sendings: Deadlines[EventStream] = Deadlines(self.brief, EventStream.rest)
        self.streams = 0
        self.keen = 0  # streams that are not held up by their readers
        self._pause: asyncio.Event | None = None  # that lasts now

    def leave(self) -> None:
        """A stream is over."""
        self.streams -= 1
        if not self.streams:
            self.silences.close()
            self.sendings.close()

    async def pause(self) -> bool:
        """Where many watch, lets notices gather for a moment. False, at once, where few do."""
        seconds = self.keen * GATHER
        if seconds <= NOTICEABLE:
            return False
        if self._pause is None:
            self._pause = asyncio.Event()
            asyncio.get_running_loop().call_later(min(seconds, MOST), self._end_pause, self._pause)
        await self._pause.wait()
        return True

    def _end_pause(self, pause: asyncio.Event) -> None:
        self._pause = None
        pause.set()


class EventStream:
    """An answer that goes on until the client leaves, or the workspace closes."""

    def __init__(self, workspace: Workspace, crowd: Crowd, client: str, after: int | None) -> None:
        self._crowd = crowd
        self._watching = workspace.watch(client, after)
        self._watch: Watch | None = None
        self._abort: Callable[[], None] | None = None
        self._resting: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watching as watch:
            self._watch, self._abort = watch, scope["state"]["abort"]
            self._crowd.streams += 1
            leaving = asyncio.ensure_future(_close_when_left(receive, watch))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                told = [b"retry: 1000\n", self._crowd.encoder.place(watch.place), b"\n"]
                while told:
                    for chunk in _chunks(told):
                        await self._send(watch, send({"type": "http.response.body", "body": chunk, "more_body": True}))
                    told = await self._gather(watch)
                await self._send(watch, send({"type": "http.response.body", "body": b""}))
            finally:
                leaving.cancel()
                self._crowd.leave()

    async def _send(self, watch: Watch, sending: Awaitable[None]) -> None:
        """Waits until there is room for more. If that takes long the watch rests; if it takes too long, the reader is
        cut off, and then there is nobody to wait for."""
        self._crowd.sendings.begin(self)
        try:
            await sending
        finally:
            self._crowd.sendings.end(self)
            if self._resting:
                self._resting.cancel()
                self._resting = None
                watch.resume()

    def rest(self) -> None:
        """Its reader takes nothing: nobody cares for it until it does, and if that takes too long, it is cut off."""
        assert self._watch is not None
        self._watch.rest()
        self._resting = asyncio.get_running_loop().call_later(self._crowd.stall - self._crowd.brief, self._cut_off)

    def _cut_off(self) -> None:
        assert self._abort is not None
        log.debug("a reader took nothing and was cut off")  # as often as readers like
        self._abort()

    async def _gather(self, watch: Watch) -> list[bytes]:
        """What there is to send, or a heartbeat if there is nothing for a while, or nothing at the end."""
        told: list[bytes] = []
        crowd = self._crowd
        crowd.keen += 1
        try:
            while (first := await watch.take()) is None:
                if watch.over:
                    return told
                crowd.silences.begin(watch)
                await watch.wait()
                if not crowd.silences.end(watch):
                    return [b":\n\n"]
            self._add_notice(told, watch, first)
            if not await crowd.pause():
                if not isinstance(first, Event):
                    await watch.settle(SETTLE)
                await asyncio.sleep(0)  # what is told of an event in the same breath goes with it
            while len(told) < TOGETHER and (notice := await watch.take()):
                self._add_notice(told, watch, notice)
        except StoreError:  # the store is closed: what is left in it can be had after a restart
            pass
        finally:
            crowd.keen -= 1
            crowd.silences.end(watch)
        return told

    def _add_notice(self, told: list[bytes], watch: Watch, notice: Notice) -> None:
        place, encoder = watch.place, self._crowd.encoder
        if isinstance(notice, Event):
            place = notice.id
            if announced := encoder.encode_error(notice, place - 1):
                told.append(announced)
        told += (encoder.place(place), encoder.encode(notice))


def _chunks(told: Iterable[bytes]) -> Iterator[bytes]:
    """All of it in pieces that are not too large, and not smaller than need be. What is large is not copied as a whole:
    it is shared by all who wait for it."""
    small: list[bytes] = []
    size = 0
    for data in told:
        if small and size + len(data) > CHUNK:
            yield b"".join(small)
            small, size = [], 0
        if len(data) > CHUNK:
            yield from (data[start:start + CHUNK] for start in range(0, len(data), CHUNK))
        else:
            small.append(data)
            size += len(data)
    if small:
        yield b"".join(small)


async def _close_when_left(receive: Receive, watch: Watch) -> None:
    """Ends the watch when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    watch.close()
