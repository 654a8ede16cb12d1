"""Server-sent events: the stream of one workspace to each subscriber.

Every notice is sent with the id from which the client can resume. The stream starts with such an id alone, so that even
a client that has received no event yet can resume.

A slow reader skips updates, but never events. After a second without progress the server stops feeding it, so that even
a thousand stalled readers cost nothing. After a minute it is disconnected, and can resume. No other client waits for
it.
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
from ..store.offsets import Offsets
from .answers import encode

log = logging.getLogger("cancelmark.server")

K = TypeVar("K")

HEARTBEAT = 15.0  # seconds of silence after which a comment is sent as a heartbeat
BRIEF = 1.0  # seconds without progress after which the server stops feeding a reader
STALL = 60.0  # seconds without progress after which a reader is disconnected
CHUNK = 32_768  # bytes per write; a stalled reader occupies about three times that
TOGETHER = 128  # notices per batch
SETTLE = 0.002  # seconds in which updates are batched into one write; an event is sent at once
# With many streams, events are batched too: waking every stream for each event would take longer than the delay.
GATHER = 0.00005  # seconds of batching delay per active stream of a workspace
NOTICEABLE = 0.005  # no delay unless it would exceed this: with few streams, events are sent at once
MOST = 0.1  # maximum delay
REMEMBERED = 4096  # message ids remembered, to tell `created` from `updated`
SHARED = 4_194_304  # bytes of encoded notices that are cached for other streams

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
           (b"x-accel-buffering", b"no")]


class Encoder:
    """Encodes the notices of one workspace as envelopes, once for all subscribers."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._shown: OrderedDict[str, None] = OrderedDict()  # messages, the latest last
        self._ready: OrderedDict[int, tuple[Notice, bytes]] = OrderedDict()  # events by id, updates by identity
        self._size = 0  # bytes in `_ready`

    def encode_offset(self, event: int) -> bytes:
        """The line with the id from which a client can resume."""
        return f"id: {self._offsets.name(event)}\n".encode()

    def parse_offset(self, last_event_id: str | None, latest: int) -> int | None:
        """The event after which a client resumes; None if it sent no id. With an id of another log, the client has seen
        nothing of this one, whose last event is `latest`."""
        return (self._offsets.find(last_event_id, latest) or 0) if last_event_id else None

    def encode_error(self, event: Event, before: int) -> bytes:
        """The notice that announces a terminal event with an error, for clients that expect such notices: a complete
        event with the preceding offset. It is derived from the terminal event only, so it is equally durable, always
        precedes it, and has its run id. A prompt without a run id gets no notice: a client would attribute a notice
        without a run id to its own prompt in that session."""
        end = event.payload
        if not (event.terminal and event.run_id and end.get("outcome") == Outcome.ERROR.value):
            return b""
        notice = wire.AgentEvent("error", event.session_id, event.run_id, end.get("error") or "the run failed")
        envelope = {"type": "agent_event", "payload": {"type": "created", "payload": notice}}
        return self.encode_offset(before) + f"data: {encode(envelope)}\n\n".encode()

    def encode(self, notice: Notice) -> bytes:
        key = notice.id if isinstance(notice, Event) else -id(notice)  # unique while the cache holds the notice
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
        elif notice.type == "ask":
            change = "created" if payload["status"] == "open" else "updated"
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


class TimeoutGroup(Generic[K]):
    """Many waits of the same length with a single timer: sorting thousands of timers would keep the event loop busy.
    `miss` is called with each wait that has not ended in time, which then counts as ended."""

    def __init__(self, seconds: float, miss: Callable[[K], None]) -> None:
        self._seconds, self._miss = seconds, miss
        self._until: dict[K, float] = {}  # in order of expiry
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wait: K) -> None:
        loop = asyncio.get_running_loop()
        self._until[wait] = until = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def end(self, wait: K) -> bool:
        """Ends a wait. Returns whether it was in time."""
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
        """Cancels the timer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None


class WorkspaceStreams:
    """All streams of one workspace. They share the encoder and the timers."""

    def __init__(self, offsets: Offsets, *, heartbeat: float = HEARTBEAT, stall: float = STALL) -> None:
        self.encoder, self.stall, self.brief = Encoder(offsets), stall, min(BRIEF, stall)
        self.silences: TimeoutGroup[Watch] = TimeoutGroup(heartbeat, Watch.nudge)
        self.sendings: TimeoutGroup[EventStream] = TimeoutGroup(self.brief, EventStream.rest)
        self.streams = 0
        self.keen = 0  # streams that are not blocked by their readers
        self._pause: asyncio.Event | None = None  # the current pause

    def leave(self) -> None:
        """Removes a stream."""
        self.streams -= 1
        if not self.streams:
            self.silences.close()
            self.sendings.close()

    async def pause(self) -> bool:
        """With many streams, waits a moment so that notices can be batched. With few, returns False at once."""
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
    """A response that lasts until the client disconnects or the workspace closes."""

    def __init__(self, workspace: Workspace, shared: WorkspaceStreams, client: str, after: int | None) -> None:
        self._shared = shared
        self._watching = workspace.watch(client, after)
        self._watch: Watch | None = None
        self._abort: Callable[[], None] | None = None
        self._paused: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watching as watch:
            self._watch, self._abort = watch, scope["state"]["abort"]
            self._shared.streams += 1
            leaving = asyncio.ensure_future(_close_when_left(receive, watch))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                told = [b"retry: 1000\n", self._shared.encoder.encode_offset(watch.offset), b"\n"]
                while told:
                    for chunk in _chunks(told):
                        await self._send(watch, send({"type": "http.response.body", "body": chunk, "more_body": True}))
                    told = await self._gather(watch)
                await self._send(watch, send({"type": "http.response.body", "body": b""}))
            finally:
                leaving.cancel()
                self._shared.leave()

    async def _send(self, watch: Watch, sending: Awaitable[None]) -> None:
        """Waits until the transport can take more. If that takes long, the watch rests; if it takes too long, the
        reader is disconnected, which ends the wait."""
        self._shared.sendings.begin(self)
        try:
            await sending
        finally:
            self._shared.sendings.end(self)
            if self._paused:
                self._paused.cancel()
                self._paused = None
                watch.resume()

    def rest(self) -> None:
        """Handles a stalled reader: stops feeding it, and disconnects it later if it stays stalled."""
        assert self._watch is not None
        self._watch.rest()
        self._paused = asyncio.get_running_loop().call_later(self._shared.stall - self._shared.brief, self._cut_off)

    def _cut_off(self) -> None:
        assert self._abort is not None
        log.debug("disconnected a stalled reader")  # debug level: clients can trigger it at will
        self._abort()

    async def _gather(self, watch: Watch) -> list[bytes]:
        """The next batch to send; a heartbeat after some silence; empty at the end of the stream."""
        told: list[bytes] = []
        shared = self._shared
        shared.keen += 1
        try:
            while (first := await watch.take()) is None:
                if watch.over:
                    return told
                shared.silences.begin(watch)
                await watch.wait()
                if not shared.silences.end(watch):
                    return [b":\n\n"]
            self._add_notice(told, watch, first)
            if not await shared.pause():
                if not isinstance(first, Event):
                    await watch.settle(SETTLE)
                await asyncio.sleep(0)  # notices published in the same iteration join the batch
            while len(told) < TOGETHER and (notice := await watch.take()):
                self._add_notice(told, watch, notice)
        except StoreError:  # the store is closed: clients get the remaining events after a restart
            pass
        finally:
            shared.keen -= 1
            shared.silences.end(watch)
        return told

    def _add_notice(self, told: list[bytes], watch: Watch, notice: Notice) -> None:
        offset, encoder = watch.offset, self._shared.encoder
        if isinstance(notice, Event):
            offset = notice.id
            if announced := encoder.encode_error(notice, offset - 1):
                told.append(announced)
        told += (encoder.encode_offset(offset), encoder.encode(notice))


def _chunks(told: Iterable[bytes]) -> Iterator[bytes]:
    """The data in chunks: small items are joined, large ones are split without copying them as a whole, because streams
    share them."""
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
    """Closes the watch when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    watch.close()
