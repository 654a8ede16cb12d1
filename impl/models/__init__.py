"""Language models: the interface between a turn and a model.

A turn requests one *step* at a time: the model receives the messages so far and streams its output as deltas. Every
model in this package guarantees:

- A step that succeeds ends with exactly one `Finish`, its last delta. A step that fails raises `ModelError` instead.
- Each tool call is one `ToolCallStart`, any number of `ToolCallArguments` and, once the arguments are complete, one
  `ToolCallEnd`; their ids are distinct within the step. Calls may interleave. A truncated step ends no call.
- The reason is `tool_use` if and only if the step was not truncated and called a tool.
- The model never retries: that is the caller's decision.
- Canceling the task that waits for the next delta, or closing the generator, ends the request at once. An abandoned
  generator is closed only when it is garbage-collected, so use `contextlib.aclosing`.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class Text:
    """The text of a message."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A model's reasoning. It is shown to users and never sent back to the model."""

    thinking: str


@dataclass(frozen=True)
class ToolCall:
    """A tool call requested by the model. `input` is the text of its arguments: JSON, unless the model got it wrong."""

    id: str
    name: str
    input: str
    finished: bool = True
    """Whether the arguments are complete."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call."""

    tool_call_id: str
    name: str
    content: str
    is_error: bool = False


@dataclass(frozen=True)
class Attachment:
    """A text attached by a user, such as a file."""

    path: str
    """Its name or origin; may be empty."""
    mime_type: str
    text: str

    @property
    def heard(self) -> str:
        """The attachment as sent to a model: with its name, and delimiters around its text."""
        name = self.path or "text"
        return f"[attached: {name} ({self.mime_type})]\n{self.text}\n[end of {name}]"


Part = Text | Reasoning | ToolCall | ToolResult | Attachment


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The whole text, followed by the attachments."""
        said = "".join(part.text for part in self.parts if isinstance(part, Text))
        return "\n\n".join(filter(None, (said, *(p.heard for p in self.parts if isinstance(p, Attachment)))))


class EncodingCache:
    """A model's cache of the encoded messages that do not change from one step to the next."""

    __slots__ = ("encoded", "number")

    def __init__(self) -> None:
        self.number, self.encoded = 0, b""  # the number of cached messages, and their encoding


class Conversation(list[ChatMessage]):
    """The messages sent to a model. The first `settled` messages are the same in every later step."""

    __slots__ = ("kept", "settled")

    def __init__(self, messages: Iterable[ChatMessage], settled: int, kept: EncodingCache) -> None:
        super().__init__(messages)
        self.settled, self.kept = settled, kept


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, object]


class FinishReason(StrEnum):
    """Why an assistant message ended. A model never reports `canceled` or `error`: the caller sets those."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    CANCELED = "canceled"
    ERROR = "error"
    CONTENT_FILTER = "content_filter"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Usage:
    """The cost of a step in tokens."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """The start of a tool call."""

    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of the arguments of call `id`; only all pieces together are JSON."""

    id: str
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The arguments of call `id` are complete."""

    id: str


@dataclass(frozen=True)
class Finish:
    """The end of the step."""

    reason: FinishReason
    usage: Usage | None = None
    """None if the model did not report it."""


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | Finish


class Failure(StrEnum):
    """The kinds of `ModelError`."""

    AUTH = "auth"
    """The key is missing, wrong, or not allowed to do this."""
    RATE_LIMIT = "rate_limit"
    """The rate limit is exceeded; a later retry may succeed."""
    UNAVAILABLE = "unavailable"
    """The model is unreachable, too slow, or failing."""
    BAD_REQUEST = "bad_request"
    """The model refuses the request; retrying is pointless."""
    BAD_RESPONSE = "bad_response"
    """The response is invalid."""
    DISCONNECTED = "disconnected"
    """The connection was lost before the response was complete."""
    CONTEXT_TOO_LONG = "context_too_long"
    """The messages exceed the context window: the turn can resume after compaction."""


class ModelError(Exception):
    """A step failed. The message is fit for logs and users: it names the remedy and contains no secret."""

    def __init__(self, kind: Failure, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait before a retry, if the model specified them."""

    def __repr__(self) -> str:
        return f"ModelError({self.kind.value}, {self.message!r}, retry_after={self.retry_after})"


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """The model's name, as in a message's `model`."""

    @property
    def provider(self) -> str:
        """The provider, as in a message's `provider`."""

    @property
    def hears(self) -> int | None:
        """The number of latest messages that it needs. None: all messages since the last summary, which replaces
        earlier ones when the conversation becomes too long (`runtime.conversation`)."""

    def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Streams one step. See the module's docstring for the guarantees."""

    async def aclose(self) -> None:
        """Releases the model's resources. Call it when no step is running. Idempotent."""


class Draft:
    """An assistant message while it is streamed. Its parts are consistent after every delta."""

    def __init__(self) -> None:
        self._parts: list[tuple[type[Text | Reasoning] | ToolCall, list[str]]] = []
        self._calls: dict[str, int] = {}
        self.finish: Finish | None = None
        """The end of the step, once it has arrived."""

    def add(self, delta: Delta) -> None:
        """Applies the next delta."""
        match delta:
            case TextDelta(text):
                self._append(Text, text)
            case ReasoningDelta(text):
                self._append(Reasoning, text)
            case ToolCallStart(id, name):
                self._calls[id] = len(self._parts)
                self._parts.append((ToolCall(id, name, "", finished=False), []))
            case ToolCallArguments(id, text):
                self._parts[self._calls[id]][1].append(text)
            case ToolCallEnd(id):
                call, pieces = self._parts[self._calls[id]]
                assert isinstance(call, ToolCall)
                self._parts[self._calls[id]] = (ToolCall(id, call.name, ""), pieces)
            case Finish():
                self.finish = delta

    @property
    def called(self) -> bool:
        """Whether a tool was called."""
        return bool(self._calls)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts so far: adjacent text is one part, and each tool call is one."""
        return tuple(
            ToolCall(kind.id, kind.name, "".join(pieces), kind.finished) if isinstance(kind, ToolCall)
            else kind("".join(pieces))
            for kind, pieces in self._parts
        )

    @property
    def message(self) -> ChatMessage:
        """The parts so far as a message."""
        return ChatMessage(Role.ASSISTANT, self.parts)

    def _append(self, kind: type[Text | Reasoning], text: str) -> None:
        if not self._parts or self._parts[-1][0] is not kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(text)
