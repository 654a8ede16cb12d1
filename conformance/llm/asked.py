"""Requests to a language model, and its answers, independent of the API."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

WORD = re.compile(r"[\w-]+")
PIECE, LINE = re.compile(r"\S*\s*"), re.compile(r".*\n?")


@dataclass(frozen=True)
class ModelRequest:
    """A request to the language model."""

    model: str
    roles: tuple[str, ...]
    """The roles of its messages, in order."""
    texts: tuple[str, ...]
    """The texts of its messages, in order."""
    tools: int
    """How many tools the request offers."""
    stream: bool
    usage: bool
    """Whether the stream is to end with the token usage."""
    calls: tuple[str, ...] = ()
    """The ids of the tool calls in the last assistant message."""

    @property
    def prompt(self) -> str:
        """The last user message."""
        return next((text for role, text in zip(self.roles[::-1], self.texts[::-1]) if role == "user"), "")

    def heard(self, word: str) -> str:
        """The user messages that contain this word."""
        said = (text for role, text in zip(self.roles, self.texts) if role == "user")
        return "\n".join(text for text in said if word in WORD.findall(text))

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The user messages that no assistant message follows; if there is one, the last is the prompt."""
        after = max((n for n, role in enumerate(self.roles) if role == "assistant"), default=-1) + 1
        return tuple(text for role, text in zip(self.roles[after:], self.texts[after:]) if role == "user")


class ToolCall(NamedTuple):
    """A tool call that the model makes."""

    id: str
    name: str
    arguments: str


class ModelAnswer(NamedTuple):
    """An answer of the model: a text, or a tool call."""

    text: str
    call: ToolCall | None = None
    heard: int = 1
    """Input tokens to report."""

    @property
    def pieces(self) -> list[str]:
        """The text as it is streamed: word by word, or line by line if there are lines."""
        return [piece for piece in (LINE if "\n" in self.text else PIECE).findall(self.text) if piece]


class Response(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    kind: str
    pieces: list[bytes]
    """The body, in pieces that are sent one by one."""


class Wire(Protocol):
    """The encoding of requests and answers in one API."""

    name: str

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        """Parse a request, tolerating the differences between clients. Raises `KeyError`, `TypeError` or the like if it
        is malformed."""

    def answer(self, asked: ModelRequest, said: ModelAnswer) -> Response:
        """Encode an answer, as a stream if the request asks for one."""

    def error(self, status: HTTPStatus, message: str, code: str | None = None) -> Response:
        """Encode an error. The code `context_length_exceeded` means that the conversation has overflowed its context.
        """


def json_response(value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, "application/json", [json.dumps(value).encode()])


def stream(events: Sequence[bytes]) -> Response:
    return Response(HTTPStatus.OK, "text/event-stream; charset=utf-8", list(events))


def named_event(event: Mapping[str, Any]) -> bytes:
    """A server-sent event named by the `type` of its data."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def text_of(content: object, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a message's content, which is a string, None, or a list of parts some of which are text."""
    if isinstance(content, list):
        return "\n".join(texts_in(content, kinds))
    return content if isinstance(content, str) else ""


def texts_in(parts: Sequence[Any], kinds: Sequence[str]) -> Iterator[str]:
    return (part["text"] for part in parts if part.get("type") in kinds)
