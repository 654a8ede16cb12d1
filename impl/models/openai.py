"""Models behind an OpenAI-compatible chat completions endpoint, streamed over HTTP.

Not every compatible endpoint follows the specification exactly. A response is complete once it has a finish reason:
after that, `[DONE]`, the usage and an orderly end of the connection may be missing, but nothing before it. Servers that
call tools and report `stop`, that number every call 0, or that send the finish reason twice are supported.

No error text contains the key or a password in the base URL, even if the server quotes it.

**Rejected:** the official client. It took a third of the processor time of a prompt, and two seconds to import.
"""

import codecs
import json
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ..files import UsageError
from ..models import (
    ChatMessage,
    Delta,
    Failure,
    Finish,
    FinishReason,
    ModelError,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from ..sse import Parser
from ..trouble import Garbled, Lost, Silent, Trouble
from .chat_request import encode_request
from .secrets import Secrets

if TYPE_CHECKING:
    from ..http import Answer

T = TypeVar("T")

DEFAULT_BASE_URL = "https://api.openai.com/v1"
QUOTE_LENGTH = 300

REASONS = {
    "stop": FinishReason.END_TURN,
    "length": FinishReason.MAX_TOKENS,
    "tool_calls": FinishReason.TOOL_USE,
    "content_filter": FinishReason.CONTENT_FILTER,
}

# By code or type (OpenAI, llama.cpp), or else by the message (vLLM and others, whose code is just 400).
CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
CONTEXT_PHRASE = re.compile(r"context (length|size|window)|prompt is too long", re.IGNORECASE)

REFUSAL = 65_536  # maximum bytes to read of an error response
CHUNK = 8 * 1024 * 1024  # maximum bytes of one chunk: parsing it blocks the event loop
DONE = "[DONE]"


class OpenAIModel:
    """One model at one endpoint. Steps may run concurrently in one event loop; they share connections.

    `name`, `base_url` and `api_key` default to the environment's OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY. The
    key is optional if a base URL is given, as for a local model. A step fails when the server is silent for `timeout`
    seconds. Raises `UsageError` if a required setting is missing or invalid.
    """

    provider = "openai"

    def __init__(
        self,
        name: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        try:
            from ..http import Endpoint
        except ModuleNotFoundError as error:
            if error.name != "h11":
                raise
            raise UsageError("this model needs the h11 package: pip install 'cancelmark[openai]'") from None
        self.name = _setting(name, "OPENAI_MODEL")
        if not self.name:
            raise UsageError("no model name: give one (--model-name), or set OPENAI_MODEL")
        url = _setting(base_url, "OPENAI_BASE_URL")
        key = _setting(api_key, "OPENAI_API_KEY")
        if not (key or url):
            raise UsageError("no API key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError("invalid characters in the API key: check OPENAI_API_KEY for a stray space, line break or "
                             "quote")
        url = url or DEFAULT_BASE_URL
        self._url, secrets = _shown(url)
        self._secrets = Secrets({key, *secrets})
        self._timeout = timeout
        self._endpoint = Endpoint(_find_completions(url), {
            "authorization": f"Bearer {key or 'none'}", "content-type": "application/json",
            "accept": "text/event-stream", "user-agent": "cancelmark"}, timeout)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, base_url={self._url!r})"

    hears = None  # everything since the last summary

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        answer = _ResponseParser()
        failure: ModelError | None = None
        body = await encode_request(self.name, messages, tools)
        try:
            async with aclosing(self._chunks(body)) as chunks:
                async for chunk in chunks:
                    for delta in answer.read(chunk):
                        yield delta
        except (Trouble, _Refused) as trouble:
            failure = self._explain(trouble)
        if not answer.reason:  # after a finish reason, the response is complete despite an error
            raise failure or self._cut_short(answer)
        for delta in answer.end():
            yield delta

    async def aclose(self) -> None:
        """Closes the idle connections. No step may follow."""
        self._endpoint.close()

    async def _chunks(self, body: bytes) -> AsyncGenerator[object, None]:
        """The chunks of one response, as JSON."""
        answer = await self._endpoint.request("POST", body=body)
        try:
            if answer.status >= 300:
                raise await _read_refusal(answer)
            parser = Parser(CHUNK, errors="strict")
            async for piece in answer.pieces():
                for event in parser.feed(piece):
                    if event.data is None:
                        continue
                    if event.data.startswith(DONE):
                        await answer.finish()
                        return
                    chunk = json.loads(event.data)
                    if isinstance(chunk, dict) and chunk.get("error"):
                        raise _Refused.of(None, {}, chunk["error"])
                    yield chunk
        except (ValueError, RecursionError):
            raise Garbled("the response has a chunk that is not UTF-8 JSON") from None
        finally:
            answer.close()

    def _cut_short(self, answer: "_ResponseParser") -> ModelError:
        if answer.begun:
            return self._error(Failure.DISCONNECTED, "the response ended before it was complete; try again")
        return self._error(Failure.BAD_RESPONSE, "the response was empty; is this a chat completions endpoint?")

    def _explain(self, trouble: "Trouble | _Refused") -> ModelError:
        """The error for a missing or broken response."""
        if isinstance(trouble, _Refused):
            return self._failure(trouble)
        if isinstance(trouble, Silent):
            return self._error(Failure.UNAVAILABLE, f"no response for {self._timeout:g} s; try again later")
        if isinstance(trouble, Lost):
            return self._error(Failure.DISCONNECTED, "the connection was lost before the response was complete")
        if isinstance(trouble, Garbled):
            return self._error(Failure.BAD_RESPONSE, str(trouble))
        return self._error(Failure.UNAVAILABLE, "cannot connect; check the base URL, and that the server is running")

    def _failure(self, refused: "_Refused") -> ModelError:
        """The error for the server's error response."""
        status, headers, code, type, said = refused.args
        number = f" ({status})" if status else ""
        retry_after = _retry_after(headers)
        if status in (401, 403):  # omit the server's message: some quote the key, or half of it
            return self._error(Failure.AUTH, f"the API key was refused{number}: set OPENAI_API_KEY to a valid key")
        if status == 413 or (status in (None, 400, 422) and _too_long(code, type, said)):
            return self._error(Failure.CONTEXT_TOO_LONG, f"the messages exceed the context of {self.name}{number}",
                               said)
        if status == 429 or (status is None and "rate_limit" in f"{code} {type}"):
            return self._error(Failure.RATE_LIMIT, f"rate limit exceeded{number}; try again later", said, retry_after)
        if status is None or status == 408 or status >= 500:
            return self._error(Failure.UNAVAILABLE, f"the server failed{number}; try again later", said, retry_after)
        return self._error(Failure.BAD_REQUEST, f"the request was refused{number}", said)

    def _error(self, kind: Failure, what: str, said: str = "", retry_after: float | None = None) -> ModelError:
        """An error that names the endpoint and quotes the server's message, on one line and without secrets."""
        said = " ".join("".join(c if c.isprintable() else " " for c in self._secrets.hide(said)).split())
        if len(said) > QUOTE_LENGTH:
            said = said[:QUOTE_LENGTH] + "…"
        return ModelError(kind, f"{self._url}: {what}" + (f": {said}" if said else ""), retry_after=retry_after)


class _Refused(Exception):
    """An error response: its status, headers, code, type and message."""

    @classmethod
    def of(cls, status: int | None, headers: Mapping[str, str], body: object) -> "_Refused":
        if not isinstance(body, dict):
            return cls(status, headers, None, None, body if isinstance(body, str) else "")
        code = body.get("code")
        if status is None and re.fullmatch("[1-5][0-9][0-9]", str(code)):  # an error in the middle of a response
            status = int(str(code))
        said = next((body[key] for key in ("message", "detail", "error") if isinstance(body.get(key), str)), "")
        return cls(status, headers, code, body.get("type"), said)


async def _read_refusal(answer: "Answer") -> _Refused:
    """Reads an error response."""
    data = b""
    async for piece in answer.pieces():
        data += piece
        if len(data) > REFUSAL:
            break
    text = data.decode(errors="replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    return _Refused.of(answer.status, answer.headers, body.get("error", body) if isinstance(body, dict) else body)


class _ResponseParser:
    """The parser's state for one response."""

    def __init__(self) -> None:
        self.begun = False
        self.reason: str | None = None
        self._usage: Usage | None = None
        self._text = _Utf16()
        self._reasoning = _Utf16()
        self._calls: dict[str, _Utf16] = {}
        self._at: dict[int | None, str] = {}
        """The current call of each index. Some servers omit the index, or use 0 for every call."""

    def read(self, chunk: object) -> Iterator[Delta]:
        """The deltas in one chunk. Validates the types of all fields."""
        usage = _field(chunk, "usage", object)
        if usage is not None:
            spent = [_field(usage, name, int) or 0 for name in ("prompt_tokens", "completion_tokens")]
            self._usage = Usage(*spent)
        for choice in (_field(chunk, "choices", list) or [])[:1]:
            self.begun = True
            yield from self._read_delta(_field(choice, "delta", object))
            self.reason = self.reason or _field(choice, "finish_reason", str)

    def _read_delta(self, delta: object) -> Iterator[Delta]:
        thinking = _field(delta, "reasoning_content", str) or _field(delta, "reasoning", str)
        if thought := self._reasoning.join(thinking):
            yield ReasoningDelta(thought)
        for name in ("content", "refusal"):
            if text := self._text.join(_field(delta, name, str)):
                yield TextDelta(text)
        for piece in _field(delta, "tool_calls", list) or []:
            yield from self._read_call(piece)

    def _read_call(self, piece: object) -> Iterator[Delta]:
        index = _field(piece, "index", int)
        function = _field(piece, "function", object)
        id = _field(piece, "id", str) or self._at.get(index)
        if id is None:
            raise ModelError(Failure.BAD_RESPONSE, "the response has a tool call without an id")
        if self._at.get(index) != id:
            name = _field(function, "name", str)
            if id in self._calls or not name:
                raise ModelError(Failure.BAD_RESPONSE, "the response has a tool call without a name, or a duplicate")
            self._at[index] = id
            self._calls[id] = _Utf16()
            yield ToolCallStart(id, name)
        if arguments := self._calls[id].join(_field(function, "arguments", str)):
            yield ToolCallArguments(id, arguments)

    def end(self) -> Iterator[Delta]:
        """The remaining deltas, after a finish reason has arrived."""
        reason = REASONS.get(self.reason or "", FinishReason.UNKNOWN)
        if self._calls and reason is FinishReason.END_TURN:
            reason = FinishReason.TOOL_USE
        elif not self._calls and reason is FinishReason.TOOL_USE:
            reason = FinishReason.UNKNOWN
        if thought := self._reasoning.rest():
            yield ReasoningDelta(thought)
        if text := self._text.rest():
            yield TextDelta(text)
        for id, arguments in self._calls.items():
            if text := arguments.rest():
                yield ToolCallArguments(id, text)
            if reason is FinishReason.TOOL_USE:
                yield ToolCallEnd(id)
        yield Finish(reason, self._usage)


class _Utf16:
    """Joins text that was split between UTF-16 code units, as JavaScript does: holds a surrogate back until its other
    half arrives. A lone surrogate becomes U+FFFD, so that all text can be stored and sent."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")(errors="replace")

    def join(self, piece: str | None) -> str:
        return self._decoder.decode((piece or "").encode("utf-16-le", "surrogatepass"))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


def _field(thing: object, name: str, kind: type[T]) -> T | None:
    """A field of the response; None if it is missing or null."""
    value = thing.get(name) if isinstance(thing, dict) else None
    if value is None or isinstance(value, kind):
        return value
    what = f"the response's {name} has type {type(value).__name__}; expected {kind.__name__}"
    raise ModelError(Failure.BAD_RESPONSE, what)


def _setting(given: str | None, variable: str) -> str:
    return (os.environ.get(variable, "") if given is None else given).strip()


def _shown(url: str) -> tuple[str, set[str]]:
    """The URL without its secrets, and the secrets. Raises `UsageError`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        valid = False
    if not valid:
        raise UsageError("invalid base URL; expected https://HOST/v1 or http://HOST:PORT/v1")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    name, password = parts.username or "", parts.password or ""
    pair = f"{name}:{password}" if password else ""
    secrets = {name, password, pair, *(value for _, value in parse_qsl(parts.query))}
    return f"{parts.scheme}://{host}{port}{parts.path}", secrets | {unquote(secret) for secret in secrets}


def _find_completions(base: str) -> str:
    """The URL of the chat completions endpoint."""
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions", fragment="").geturl()


def _too_long(code: object, type: object, said: str) -> bool:
    return code in CONTEXT_CODES or type in CONTEXT_CODES or bool(CONTEXT_PHRASE.search(said))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of `retry-after-ms` or `retry-after`. A date is relative to the server's `date`, if it sends one."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return max(0.0, seconds) if isfinite(seconds) else None
    try:
        then = parsedate_to_datetime(headers["retry-after"])
        now = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
        return max(0.0, (then - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None
