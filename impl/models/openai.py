"""Models behind an OpenAI-compatible chat completions endpoint, streamed over HTTP.

The endpoint may be anybody's, and not all of them keep to the letter. An answer is complete once it has named a finish
reason: `[DONE]`, the usage and an orderly end of the connection may be missing after that, and nothing may be missing
before. Servers that call tools and say `stop`, that number every call 0, or that name the finish twice are understood.

No error text holds the key or a password in the base URL, whoever quotes it back.

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
    Delta,
    Failure,
    Finish,
    FinishReason,
    Message,
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

# By code or type (OpenAI, llama.cpp), or else by what the message says (vLLM and others, whose code is just 400).
CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
CONTEXT_PHRASE = re.compile(r"context (length|size|window)|prompt is too long", re.IGNORECASE)

REFUSAL = 65_536  # bytes of a refusal that are read
CHUNK = 8 * 1024 * 1024  # bytes of one chunk: everybody waits while it is parsed
DONE = "[DONE]"


class OpenAIModel:
    """One model at one endpoint. Steps may run at the same time, all in one event loop; they share its connections.

    `name`, `base_url` and `api_key` default to the environment's OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY. The
    key may be missing if a base URL is given, as for a model on this machine. A step fails when the server is silent
    for `timeout` seconds. Raises `UsageError` if something is missing that it cannot do without.
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
            raise UsageError("no model is named: give its name, or set OPENAI_MODEL")
        url = _setting(base_url, "OPENAI_BASE_URL")
        key = _setting(api_key, "OPENAI_API_KEY")
        if not (key or url):
            raise UsageError("no key is given: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs none")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError("the key has characters that no key has: look for a stray space, line end or quote in it")
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

    async def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        answer = _Answer()
        failure: ModelError | None = None
        body = await encode_request(self.name, messages, tools)
        try:
            async with aclosing(self._chunks(body)) as chunks:
                async for chunk in chunks:
                    for delta in answer.read(chunk):
                        yield delta
        except (Trouble, _Refused) as trouble:
            failure = self._explain(trouble)
        if not answer.reason:  # otherwise what goes wrong is an end like any other
            raise failure or self._cut_short(answer)
        for delta in answer.end():
            yield delta

    async def aclose(self) -> None:
        """Closes the connections that are kept for the next step. No step can follow."""
        self._endpoint.close()

    async def _chunks(self, body: bytes) -> AsyncGenerator[object, None]:
        """The chunks of one answer, as JSON."""
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
            raise Garbled("the answer has a piece that is not JSON in UTF-8") from None
        finally:
            answer.close()

    def _cut_short(self, answer: "_Answer") -> ModelError:
        if answer.begun:
            return self._error(Failure.DISCONNECTED, "the answer stopped before it was complete; ask again")
        return self._error(Failure.BAD_RESPONSE, "the answer was empty; is this a chat completions endpoint?")

    def _explain(self, trouble: "Trouble | _Refused") -> ModelError:
        """What it means that there is no answer."""
        if isinstance(trouble, _Refused):
            return self._failure(trouble)
        if isinstance(trouble, Silent):
            return self._error(Failure.UNAVAILABLE, f"no answer for {self._timeout:g} s; try again later")
        if isinstance(trouble, Lost):
            return self._error(Failure.DISCONNECTED, "the connection was lost before the answer was complete")
        if isinstance(trouble, Garbled):
            return self._error(Failure.BAD_RESPONSE, str(trouble))
        return self._error(Failure.UNAVAILABLE, "cannot connect; is the base URL right, and the server up?")

    def _failure(self, refused: "_Refused") -> ModelError:
        """What the server's refusal means to us."""
        status, headers, code, type, said = refused.args
        number = f" ({status})" if status else ""
        retry_after = _retry_after(headers)
        if status in (401, 403):  # the server's words are left out: some quote the key, or half of it
            return self._error(Failure.AUTH, f"the key was refused{number}: set OPENAI_API_KEY to one that is allowed")
        if status == 413 or (status in (None, 400, 422) and _too_long(code, type, said)):
            return self._error(Failure.CONTEXT_TOO_LONG, f"the messages are too long for {self.name}{number}", said)
        if status == 429 or (status is None and "rate_limit" in f"{code} {type}"):
            return self._error(Failure.RATE_LIMIT, f"too much was asked{number}; try again later", said, retry_after)
        if status is None or status == 408 or status >= 500:
            return self._error(Failure.UNAVAILABLE, f"the server failed{number}; try again later", said, retry_after)
        return self._error(Failure.BAD_REQUEST, f"the request was refused{number}", said)

    def _error(self, kind: Failure, what: str, said: str = "", retry_after: float | None = None) -> ModelError:
        """An error that names the endpoint and quotes what the server said, as one line and without secrets."""
        said = " ".join("".join(c if c.isprintable() else " " for c in self._secrets.hide(said)).split())
        if len(said) > QUOTE_LENGTH:
            said = said[:QUOTE_LENGTH] + "…"
        return ModelError(kind, f"{self._url}: {what}" + (f": {said}" if said else ""), retry_after=retry_after)


class _Refused(Exception):
    """The server refuses: the status, the headers, the code and the type that the server gives, and what it says."""

    @classmethod
    def of(cls, status: int | None, headers: Mapping[str, str], body: object) -> "_Refused":
        if not isinstance(body, dict):
            return cls(status, headers, None, None, body if isinstance(body, str) else "")
        code = body.get("code")
        if status is None and re.fullmatch("[1-5][0-9][0-9]", str(code)):  # of an error in the middle of an answer
            status = int(str(code))
        said = next((body[key] for key in ("message", "detail", "error") if isinstance(body.get(key), str)), "")
        return cls(status, headers, code, body.get("type"), said)


async def _read_refusal(answer: "Answer") -> _Refused:
    """The refusal that an answer is."""
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


class _Answer:
    """What has been read of one answer."""

    def __init__(self) -> None:
        self.begun = False
        self.reason: str | None = None
        self._usage: Usage | None = None
        self._text = _Utf16()
        self._reasoning = _Utf16()
        self._calls: dict[str, _Utf16] = {}
        self._at: dict[int | None, str] = {}
        """Which call each index means now. Some servers leave the index out, or use 0 for every call."""

    def read(self, chunk: object) -> Iterator[Delta]:
        """The deltas in one chunk. The client checks no types, so this does."""
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
            raise ModelError(Failure.BAD_RESPONSE, "the answer calls a tool without an id")
        if self._at.get(index) != id:
            name = _field(function, "name", str)
            if id in self._calls or not name:
                raise ModelError(Failure.BAD_RESPONSE, "the answer has a tool call without a name, or one twice")
            self._at[index] = id
            self._calls[id] = _Utf16()
            yield ToolCallStart(id, name)
        if arguments := self._calls[id].join(_field(function, "arguments", str)):
            yield ToolCallArguments(id, arguments)

    def end(self) -> Iterator[Delta]:
        """What is left to say once a finish reason has come."""
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
    """Text whose pieces were cut as JavaScript and JSON escapes count: a character may come in two halves, and is held
    back until it is whole. What never becomes whole becomes U+FFFD, so that all text can be stored and sent."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")(errors="replace")

    def join(self, piece: str | None) -> str:
        return self._decoder.decode((piece or "").encode("utf-16-le", "surrogatepass"))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


def _field(thing: object, name: str, kind: type[T]) -> T | None:
    """A field of the answer; None if it is missing or null."""
    value = thing.get(name) if isinstance(thing, dict) else None
    if value is None or isinstance(value, kind):
        return value
    what = f"the answer's {name} is of type {type(value).__name__}, where {kind.__name__} is expected"
    raise ModelError(Failure.BAD_RESPONSE, what)


def _setting(given: str | None, variable: str) -> str:
    return (os.environ.get(variable, "") if given is None else given).strip()


def _shown(url: str) -> tuple[str, set[str]]:
    """The URL as it may be shown, and the secrets that were in it."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        valid = False
    if not valid:
        raise UsageError("the base URL is not one: it starts with http:// or https:// and a host, and ends as in /v1")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    name, password = parts.username or "", parts.password or ""
    pair = f"{name}:{password}" if password else ""
    secrets = {name, password, pair, *(value for _, value in parse_qsl(parts.query))}
    return f"{parts.scheme}://{host}{port}{parts.path}", secrets | {unquote(secret) for secret in secrets}


def _find_completions(base: str) -> str:
    """Where answers are asked for."""
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions", fragment="").geturl()


def _too_long(code: object, type: object, said: str) -> bool:
    return code in CONTEXT_CODES or type in CONTEXT_CODES or bool(CONTEXT_PHRASE.search(said))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of `retry-after-ms` or `retry-after`. A date counts from the server's own, if it sends one."""
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
