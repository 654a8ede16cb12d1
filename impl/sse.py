"""A parser of server-sent events (WHATWG HTML, 9.2.6), for bytes that arrive in pieces of any size.

The HTTP library has a parser too. This one exists because an incomplete event must never count as complete: that parser
returns an event that was cut off between the CR and the LF of its line, and loses the first event after a byte order
mark.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LIMIT = 64 << 20  # bytes of one event: a server that sends more is broken

_LINE_END = re.compile(rb"\r\n?|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TooLongError(ValueError):
    """An event exceeds the size limit."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. Without data it only advances the stream's last event id."""

    id: str
    data: str | None
    type: str = "message"


class Parser:
    """Takes the bytes of one stream in pieces of any size, and yields each event as soon as it is complete. Bytes that
    are incomplete when the stream ends are not an event: use a new parser for the next stream."""

    def __init__(self, limit: int = LIMIT, errors: str = "replace") -> None:
        self._errors = errors  # how to decode bytes that are not UTF-8
        self.retry: int | None = None  # milliseconds that the server requests between reconnects
        self._limit = limit
        self._size = 0  # bytes of the event so far
        self._line: list[bytes] = []  # the pieces of the line so far
        self._after_cr = False
        self._first = True
        self._id = self._seen_id = ""
        self._data: list[str] = []
        self._type = ""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that this piece completes. Consume them all before the next piece."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or piece.endswith(b"\r")
        *ends, rest = _LINE_END.split(piece)
        for end in ends:
            self._keep_piece(end)
            line = b"".join(self._line)
            self._line.clear()
            if not line.startswith(b"data"):  # a stream may consist of comments, which are not kept
                self._size -= len(line)
            if self._first:
                line, self._first = line.removeprefix(_BYTE_ORDER_MARK), False
            if line:
                self._take_field(line.decode(errors=self._errors))
            elif (event := self._complete_event()) is not None:
                yield event
        if rest:
            self._keep_piece(rest)

    def _keep_piece(self, piece: bytes) -> None:
        self._line.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLongError(f"an event exceeds {self._limit:,} bytes")

    def _take_field(self, line: str) -> None:
        name, _, value = line.partition(":")  # a comment has an empty name, as no field has
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and re.fullmatch("[0-9]{1,9}", value):
            self.retry = int(value)

    def _complete_event(self) -> ServerEvent | None:
        """The event that an empty line ends, if there is one."""
        data = "\n".join(self._data) if self._data else None
        event = ServerEvent(self._id, data, self._type or "message")
        moved, self._seen_id = self._id != self._seen_id, self._id
        self._data, self._type, self._size = [], "", 0
        return event if moved or data is not None else None
