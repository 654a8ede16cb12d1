"""Language models: what a turn asks of one, and what comes back.

A model is asked for one *step* of a turn: it is given the messages so far and streams what it says, as deltas. What
every model here guarantees:

- A step that succeeds ends with exactly one `Finish`, its last delta. One that fails raises `ModelError` instead.
- Each tool call is one `ToolCallStart`, any number of `ToolCallArguments` and, once the arguments are complete, one
  `ToolCallEnd`; their ids are distinct within the step. Calls may interleave. A step that was cut off ends no call.
- The reason is `tool_use` if and only if the step was not cut off and called a tool.
- Nothing is tried twice: whether to ask again is the caller's to decide.
- Canceling the task that waits for the next delta, or closing the generator, ends the request at once. A generator that
  is left without either is closed whenever it is collected, so hold it with `contextlib.aclosing`.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class Text:
    """What is said."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """What a model thought before it spoke. It is shown, and never sent back."""

    thinking: str


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants to be run. `input` is the text of its arguments: JSON, if the model got it right."""

    id: str
    name: str
    input: str
    finished: bool = True
    """Whether the arguments are complete."""


@dataclass(frozen=True)
class ToolResult:
    """What came of a tool call."""

    tool_call_id: str
    name: str
    content: str
    is_error: bool = False


@dataclass(frozen=True)
class Attachment:
    """A text that a user has attached, such as a file."""

    path: str
    """Its name, or where it comes from; may be empty."""
    mime_type: str
    text: str

    @property
    def heard(self) -> str:
        """How a model hears it: its name, what it says, and where that ends."""
        name = self.path or "text"
        return f"[attached: {name} ({self.mime_type})]\n{self.text}\n[end of {name}]"


Part = Text | Reasoning | ToolCall | ToolResult | Attachment


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Everything that is said in it, and after that what is attached."""
        said = "".join(part.text for part in self.parts if isinstance(part, Text))
        return "\n\n".join(filter(None, (said, *(p.heard for p in self.parts if isinstance(p, Attachment)))))


class Kept:
    """What a model may keep of messages that stay as they are from one step to the next, in any form that it likes."""

    __slots__ = ("encoded", "number")

    def __init__(self) -> None:
        self.number, self.encoded = 0, b""  # so many of the messages, as they are sent


class Conversation(list[Message]):
    """What a model hears. The first `settled` messages are the same in every later step."""

    __slots__ = ("kept", "settled")

    def __init__(self, messages: Iterable[Message], settled: int, kept: Kept) -> None:
        super().__init__(messages)
        self.settled, self.kept = settled, kept


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, object]


class FinishReason(StrEnum):
    """Why an assistant message ended. A model never says `canceled` or `error`: those are for who stops or gives up."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    CANCELED = "canceled"
    ERROR = "error"
    CONTENT_FILTER = "content_filter"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Usage:
    """What a step cost, in tokens."""

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
    """The model begins to call a tool."""

    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of the arguments of call `id`; a piece need not be JSON, only all of them together."""

    id: str
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The arguments of call `id` are complete."""

    id: str


@dataclass(frozen=True)
class Finish:
    """The step is over."""

    reason: FinishReason
    usage: Usage | None = None
    """None if the model did not say."""


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | Finish


class Failure(StrEnum):
    """The kinds of `ModelError`."""

    AUTH = "auth"
    """The key is missing, wrong, or not allowed to do this."""
    RATE_LIMIT = "rate_limit"
    """Too much was asked for; later it may work."""
    UNAVAILABLE = "unavailable"
    """The model cannot be reached, is too slow, or is broken on its side."""
    BAD_REQUEST = "bad_request"
    """The model refuses what was asked: asking the same again is useless."""
    BAD_RESPONSE = "bad_response"
    """What came back is not an answer."""
    DISCONNECTED = "disconnected"
    """The connection was lost before the answer was complete."""
    CONTEXT_TOO_LONG = "context_too_long"
    """The messages do not fit: the turn can go on after a summary."""


class ModelError(Exception):
    """A step failed. The message is fit for a log and for a user: it says what to do, and holds no secret."""

    def __init__(self, kind: Failure, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        """How many seconds the model asks to be left alone, if it said so."""

    def __repr__(self) -> str:
        return f"ModelError({self.kind.value}, {self.message!r}, retry_after={self.retry_after})"


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """Which model it is, as in a message's `model`."""

    @property
    def provider(self) -> str:
        """Who runs it, as in a message's `provider`."""

    @property
    def hears(self) -> int | None:
        """How many of the latest messages it looks at. None: everything that was said since the last summary, which
        takes the place of what becomes too long (`runtime.conversation`)."""

    def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Asks for one step. The module's docstring says what is guaranteed of the deltas."""

    async def aclose(self) -> None:
        """Gives back what the model holds. Call it when no step is running; it may be called again."""


class Draft:
    """An assistant message while it arrives. Its parts are right after every delta, whatever comes next."""

    def __init__(self) -> None:
        self._parts: list[tuple[type[Text | Reasoning] | ToolCall, list[str]]] = []
        self._calls: dict[str, int] = {}
        self.finish: Finish | None = None
        """The end of the step, once it has come."""

    def add(self, delta: Delta) -> None:
        """Takes in the next delta."""
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
        """What has been said so far: neighbouring text is one part, and each tool call is one."""
        return tuple(
            ToolCall(kind.id, kind.name, "".join(pieces), kind.finished) if isinstance(kind, ToolCall)
            else kind("".join(pieces))
            for kind, pieces in self._parts
        )

    @property
    def message(self) -> Message:
        """What has been said so far, as a message."""
        return Message(Role.ASSISTANT, self.parts)

    def _append(self, kind: type[Text | Reasoning], text: str) -> None:
        if not self._parts or self._parts[-1][0] is not kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(text)
