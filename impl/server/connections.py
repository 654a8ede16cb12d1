"""Connection limits: how long each connection may take, and which one is closed when there are too many.

A client occupies one slot, and no longer than a well-behaved client would need. Each phase of a request has one
deadline, so sending a byte now and then (slowloris) gains no time. When all slots are taken, the server closes the
connection that has been idle longest and admits the new one. It never closes a connection with a request in progress or
a stream for this reason, unless the reader is stalled.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from .answers import encode
from .guard import PATIENCE

KEEP_ALIVE = 60  # seconds that a connection may wait for its next request
LINGER = 2  # seconds to flush the last bytes
HEAD_SIZE = 16_384  # maximum bytes of a request line with its headers
READ_SIZE = 4096  # bytes per read, before yielding to the event loop
PIECES = 1000  # chunks of a body from which on they must not be tiny: each costs as much as many bytes
TINY = 64  # average bytes per chunk below which chunks are tiny
UNWANTED = 64 * 1024 * 1024  # bytes of a body to read after the response, so that its sender sees the response
SMALL = 4096  # writes up to this size are coalesced


class Phase(Enum):
    """The phase of a connection without a request in progress."""

    LEAVING = auto()  # the final response is sent; waiting for the client to read it
    HEAD = auto()  # waiting for a complete head
    BODY = auto()  # waiting for a complete body
    WAITING = auto()  # keep-alive: waiting for the next request


LASTS = {Phase.LEAVING: LINGER, Phase.HEAD: 15.0, Phase.BODY: PATIENCE + LINGER, Phase.WAITING: KEEP_ALIVE + LINGER}
STUCK = 60.0  # seconds without progress after which a stalled reader is disconnected


class Slots:
    """The connection slots of one server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: set[Connection] = set()
        self.buffer = memoryview(bytearray(READ_SIZE))
        # By phase: since when. All connections of a phase have the same deadline, so the first one expires first.
        self._idle: dict[Phase, dict[Connection, float]] = {phase: {} for phase in Phase}
        self._stuck: dict[Connection, tuple[float, int]] = {}  # since when, and its unsent bytes at that time

    def take(self, connection: "Connection") -> bool:
        """Takes a slot; may close another connection for it. False if no slot is free."""
        found = len(self.taken) < self.limit
        if not found and (other := next(self._dispensable(), None)):
            self.give_back(other)
            other.transport.abort()
            found = True
        self.taken.add(connection)
        return found

    def give_back(self, connection: "Connection") -> None:
        self.taken.discard(connection)
        self._stuck.pop(connection, None)
        self._leave_phase(connection)

    def enter(self, connection: "Connection", phase: Phase | None, now: float) -> None:
        """Records the phase of the connection; None while a request is in progress."""
        self._leave_phase(connection)
        if phase and connection in self.taken:
            self._idle[phase][connection] = now

    def _leave_phase(self, connection: "Connection") -> None:
        for connections in self._idle.values():
            connections.pop(connection, None)

    def stick(self, connection: "Connection", now: float) -> None:
        """Records that the connection's reader is stalled."""
        if connection in self.taken:
            self._stuck[connection] = now, connection.unsent

    def come_loose(self, connection: "Connection", now: float) -> None:
        """Records that the reader makes progress again, and restarts the deadline of its phase."""
        self._stuck.pop(connection, None)
        for connections in self._idle.values():
            if connections.pop(connection, None) is not None:
                connections[connection] = now

    def _dispensable(self) -> "Iterator[Connection]":
        """The connections that may be closed, in order: leaving ones, the longest idle, then stalled ones."""
        yield from self._idle[Phase.LEAVING]
        first = [next(iter(connections.items())) for connections in self._idle.values() if connections]
        yield from (connection for connection, _ in sorted(first, key=lambda entry: entry[1]))
        yield from self._stuck

    def sweep(self, now: float) -> None:
        """Closes the connections whose deadline has passed."""
        for phase, connections in self._idle.items():
            while connections:
                connection, since = next(iter(connections.items()))
                if now - since < LASTS[phase]:
                    break
                if connection in self._stuck:  # stalled readers have their own deadline
                    self.enter(connection, phase, now)
                else:
                    connection.end(phase)
        while self._stuck:
            connection, (since, unsent) = next(iter(self._stuck.items()))
            if now - since < STUCK:
                break
            del self._stuck[connection]
            if connection.unsent < unsent:
                self.stick(connection, now)
            else:
                connection.transport.abort()


class Framing(h11.Connection):
    """HTTP framing with two extra checks against malicious requests."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._size = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("two lengths: possible request smuggling")
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._size += len(event.data)
            if self._pieces > PIECES and self._size < self._pieces * TINY:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class CoalescingTransport:
    """A transport that coalesces the small writes of one event loop iteration: the head and body of a response go out
    in one system call. Everything else is delegated to the transport."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        if len(data) > SMALL:  # the next write depends on backpressure
            self.flush()

    def flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size + sum(map(len, self._pieces))

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection. A request can abort it through its state."""

    places: Slots  # of its server
    cycle: RequestResponseCycle | None  # type: ignore[assignment]
    transport: Any

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = Framing(h11.SERVER, HEAD_SIZE)
        self._at: tuple[Phase | None, object] = None, None  # the phase and its request
        self._unwanted = 0
        self._leaving = False

    @property
    def unsent(self) -> int:
        """The number of buffered bytes that the client has not read yet."""
        waiting: int = self.transport.get_write_buffer_size()
        return waiting

    # --- transport callbacks

    def connection_made(self, transport: Any) -> None:
        corked: Any = CoalescingTransport(transport, self.loop)
        super().connection_made(corked)
        self.app_state = {**self.app_state, "abort": transport.abort}
        if self.places.take(self):
            self._note_phase()
        else:
            self.turn_away(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.give_back(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.places.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.places.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if not self._leaving:
            super().data_received(data)
            self._note_phase()
            if self._at[0] is Phase.BODY and self.cycle and self.cycle.response_complete:
                self._unwanted += len(data)
                if self._unwanted > UNWANTED:
                    self.end(Phase.BODY)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.places.stick(self, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.places.come_loose(self, self.loop.time())

    # --- HTTP callbacks

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_phase()

    def send_400_response(self, msg: str) -> None:
        self.turn_away(_BAD)

    def shutdown(self) -> None:
        if self._leaving:
            self.transport.abort()
        else:
            super().shutdown()

    # --- phases

    def _note_phase(self) -> None:
        now_at = self._find_phase(), self.cycle
        if now_at != self._at:
            self._at, self._unwanted = now_at, 0
            self.places.enter(self, now_at[0], self.loop.time())

    def _find_phase(self) -> Phase | None:
        if self._leaving:
            return Phase.LEAVING
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        if self.cycle is None:
            return Phase.HEAD
        if not self.cycle.response_complete:
            return None
        return Phase.HEAD if self.conn.trailing_data[0] else Phase.WAITING

    def end(self, phase: Phase) -> None:
        """Closes the connection because the deadline of this phase has passed."""
        if phase is Phase.HEAD and self.conn.trailing_data[0]:
            self.turn_away(_SLOW)
        else:
            self.places.give_back(self)
            self.transport.abort()

    def turn_away(self, last_word: bytes) -> None:
        """Sends a final response, unless a response has started, and ignores all further input."""
        self._leaving = True
        self._unset_keepalive_if_required()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(last_word)
        self.transport.flush()
        self._note_phase()
        if not self.unsent:
            with suppress(OSError):  # the client may be gone
                self.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)


def _make_answer(status: bytes, message: str, more: bytes = b"") -> bytes:
    body = encode({"message": message}).encode()
    return (b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (status, len(body), more, body))


_FULL = _make_answer(b"503 Service Unavailable", "too many connections; try again later",
                     b"retry-after: 1\r\n")
_BAD = _make_answer(b"400 Bad Request", "malformed HTTP/1.1 request, or its head is too large")
_SLOW = _make_answer(b"408 Request Timeout", f"the head did not arrive within {LASTS[Phase.HEAD]:g} seconds")
