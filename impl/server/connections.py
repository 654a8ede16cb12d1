"""Connections: how long each may take, and which has to go when there are too many.

A stranger costs the server one place, and keeps it no longer than an honest client would need it. Each part of a
request has a deadline as a whole, so whoever sends a byte now and then wins no time. When all places are taken, the
connection on which nothing was answered for the longest time has to go, and a newcomer gets in. A request that is being
answered, and a stream, have to go for nobody, unless their reader takes nothing.
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

KEEP_ALIVE = 60  # seconds in which a connection may wait for its next request
LINGER = 2  # seconds for the last bytes to go out
HEAD_SIZE = 16_384  # bytes of a request line with its headers
READ_SIZE = 4096  # bytes that are read at a time: so much is looked at before others have their turn
PIECES = 1000  # of a body: if there are more, they must not be tiny, since each costs as much as many bytes
TINY = 64  # bytes of a piece
UNWANTED = 64 * 1024 * 1024  # bytes of a body that are read after the answer, so that its sender gets to see that
SMALL = 4096  # bytes that are written together with others


class Phase(Enum):
    """What a connection does on which no request is being answered."""

    LEAVING = auto()  # it was told the last word, and is listened to until it has read that
    HEAD = auto()  # it has yet to send a whole head
    BODY = auto()  # it has yet to send a whole body
    WAITING = auto()  # it has its answer, and may ask again


LASTS = {Phase.LEAVING: LINGER, Phase.HEAD: 15.0, Phase.BODY: PATIENCE + LINGER, Phase.WAITING: KEEP_ALIVE + LINGER}
STUCK = 60.0  # seconds without taking anything after which a reader is cut off


class Places:
    """The places of one server, and who has them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: set[Connection] = set()
        self.buffer = memoryview(bytearray(READ_SIZE))
        # Since when. All of one phase have the same time, so the first of them is the one whose time is over first.
        self._idle: dict[Phase, dict[Connection, float]] = {phase: {} for phase in Phase}
        self._stuck: dict[Connection, tuple[float, int]] = {}  # and how many bytes it had to take then

    def take(self, connection: "Connection") -> bool:
        """Takes a place, for which another may have to go. False if there was none: it cannot stay."""
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
        """The connection has come to this phase; None if a request is being answered."""
        self._leave_phase(connection)
        if phase and connection in self.taken:
            self._idle[phase][connection] = now

    def _leave_phase(self, connection: "Connection") -> None:
        for connections in self._idle.values():
            connections.pop(connection, None)

    def stick(self, connection: "Connection", now: float) -> None:
        """The connection has more to take than it takes."""
        if connection in self.taken:
            self._stuck[connection] = now, connection.unsent

    def come_loose(self, connection: "Connection", now: float) -> None:
        """The connection takes on: for the little that is left its phase begins anew."""
        self._stuck.pop(connection, None)
        for connections in self._idle.values():
            if connections.pop(connection, None) is not None:
                connections[connection] = now

    def _dispensable(self) -> "Iterator[Connection]":
        """Who can go, the first to go first: who is leaving, who was answered nothing for the longest time, and who
        takes nothing."""
        yield from self._idle[Phase.LEAVING]
        first = [next(iter(connections.items())) for connections in self._idle.values() if connections]
        yield from (connection for connection, _ in sorted(first, key=lambda entry: entry[1]))
        yield from self._stuck

    def sweep(self, now: float) -> None:
        """Those whose time is over have to go."""
        for phase, connections in self._idle.items():
            while connections:
                connection, since = next(iter(connections.items()))
                if now - since < LASTS[phase]:
                    break
                if connection in self._stuck:  # what it is sent has a time of its own
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
    """What is HTTP in the bytes of a connection."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._size = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("two lengths: a proxy may see another request in its body")
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._size += len(event.data)
            if self._pieces > PIECES and self._size < self._pieces * TINY:
                raise h11.RemoteProtocolError("the body comes in tiny pieces")
        return event


class Corked:
    """A transport that sends the small things that are written in one turn of the event loop together: an answer's head
    and its body go out in one call of the system. Everything else is the transport's."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        if len(data) > SMALL:  # whether there is room for more must be known before the next
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
    """One connection. A request can cut it off."""

    places: Places  # of its server
    cycle: RequestResponseCycle | None  # type: ignore[assignment]
    transport: Any

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = Framing(h11.SERVER, HEAD_SIZE)
        self._at: tuple[Phase | None, object] = None, None  # the phase, and of which request
        self._unwanted = 0
        self._leaving = False

    @property
    def unsent(self) -> int:
        """How many bytes wait for the other side to take them."""
        waiting: int = self.transport.get_write_buffer_size()
        return waiting

    # --- what the transport tells

    def connection_made(self, transport: Any) -> None:
        corked: Any = Corked(transport, self.loop)
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

    # --- what HTTP tells

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
        """The time for this phase is over."""
        if phase is Phase.HEAD and self.conn.trailing_data[0]:
            self.turn_away(_SLOW)
        else:
            self.places.give_back(self)
            self.transport.abort()

    def turn_away(self, last_word: bytes) -> None:
        """Says a last word, unless it has said something. What comes from now on is not looked at."""
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
            with suppress(OSError):  # it may be gone
                self.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)


def _make_answer(status: bytes, message: str, more: bytes = b"") -> bytes:
    body = encode({"message": message}).encode()
    return (b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (status, len(body), more, body))


_FULL = _make_answer(b"503 Service Unavailable", "the server has too many connections; try again later",
                     b"retry-after: 1\r\n")
_BAD = _make_answer(b"400 Bad Request", "this is no request of HTTP/1.1, or its head is too large")
_SLOW = _make_answer(b"408 Request Timeout", f"the head did not arrive within {LASTS[Phase.HEAD]:g} seconds")
