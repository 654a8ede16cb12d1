"""What a request asks of a language model, and what is answered, whatever the wire."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

WORD = re.compile(r"[\w-]+")
PIECE, LINE = re.compile(r"\S*\s*"), re.compile(r".*\n?")


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    model: str
    roles: tuple[str, ...]
    """Whose messages they are, from the first to the last."""
    texts: tuple[str, ...]
    """What they say."""
    tools: int
    """How many tools the model is offered."""
    stream: bool
    usage: bool
    """Whether the stream is to end with what was spent."""
    calls: tuple[str, ...] = ()
    """The tool calls in the last assistant message, by their ids."""

    @property
    def prompt(self) -> str:
        """The last user message."""
        return next((text for role, text in zip(self.roles[::-1], self.texts[::-1]) if role == "user"), "")

    def heard(self, word: str) -> str:
        """The user messages that have this word in them."""
        said = (text for role, text in zip(self.roles, self.texts) if role == "user")
        return "\n".join(text for text in said if word in WORD.findall(text))

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The user messages that no assistant message follows; if there is one, the last is the prompt."""
        after = max((n for n, role in enumerate(self.roles) if role == "assistant"), default=-1) + 1
        return tuple(text for role, text in zip(self.roles[after:], self.texts[after:]) if role == "user")


class Call(NamedTuple):
    """A tool call that the model makes."""

    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """What the model says: a text, or a tool call."""

    text: str
    call: Call | None = None
    heard: int = 1
    """Tokens that the conversation took."""

    @property
    def pieces(self) -> list[str]:
        """The text as it is streamed: word by word, or line by line if there are lines."""
        return [piece for piece in (LINE if "\n" in self.text else PIECE).findall(self.text) if piece]


class Response(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    kind: str
    pieces: list[bytes]
    """The body, each piece of which goes out by itself."""


class Wire(Protocol):
    """How one API writes requests and answers."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Asked:
        """The request. What clients differ in is read liberally; `KeyError`, `TypeError` and the like: it is none."""

    def answer(self, asked: Asked, said: Said) -> Response:
        """What the model says, as a stream if that is asked for."""

    def error(self, status: HTTPStatus, message: str, code: str | None = None) -> Response:
        """A refusal. The code `context_length_exceeded` says that the conversation no longer fits."""


def json_response(value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, "application/json", [json.dumps(value).encode()])


def stream(events: Sequence[bytes]) -> Response:
    return Response(HTTPStatus.OK, "text/event-stream; charset=utf-8", list(events))


def named_event(event: Mapping[str, Any]) -> bytes:
    """A server-sent event that has the type of what it carries for a name."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def text_of(content: object, kinds: Sequence[str] = ("text",)) -> str:
    """A message's text: it is a string, nothing, or a list of parts of which some are text."""
    if isinstance(content, list):
        return "\n".join(texts_in(content, kinds))
    return content if isinstance(content, str) else ""


def texts_in(parts: Sequence[Any], kinds: Sequence[str]) -> Iterator[str]:
    return (part["text"] for part in parts if part.get("type") in kinds)
