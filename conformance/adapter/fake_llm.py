"""A fake language model: a server of the OpenAI-compatible wire whose turns a test holds, releases, fails and counts.

A server under test is given `url` as the base URL of its language model, and cannot tell the difference. Prompts are
told apart by a token, a word that a test puts into the text of one prompt and of no other:

    async with FakeModel() as fake:
        fake.hold("a1")
        …                                   the server under test is sent the prompt "do this a1"
        await fake.until_started("a1")      its turn has begun, and waits for an answer
        fake.release("a1")                  or fail("a1"), or the server drops it: count_broken_off("a1") == 1

`again("a1")` makes the turn call a tool and ask again. `outgrow("a1")` says that the turn no longer fits into its
context; the summary that a server asks for then is held until `summarize("a1")`. `flood("a1")` is a very long answer.

Which request is whose turn:

- A request belongs to the prompts whose tokens are in its **last user message**: to several if the server folds several
  into one message. What stands before it is conversation, even if nobody has answered it: that a canceled prompt stays
  in the conversation does not start it. If its own turn never began, `taken_in` says whose turn has heard it instead.
- A request that answers a tool call goes on with the turn that made it, and starts none. Prompts that come behind
  the answer were taken in by that turn. So it is until `settle` says that the turn may be over.
- A request with the words of a prompt whose turn no longer fits, and with another prompt's last, asks for its summary.
- A request for the model `side` starts none. Agent servers ask for titles and summaries with the user's own words in
  the request; many can be told to use another model for that. Give them `side` for those and `turn` for
  turns (any other name does too). For a server that has one model for both, `is_turn` tells them apart.

A request that starts no turn is answered at once, is never held or failed, and is counted nowhere but in `asked`.
"""

import asyncio
import json
import re
import socket
import time
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

TURN, SIDE = "turn", "side"
WORD = re.compile(r"[\w-]+")
LINGER = 2  # seconds for the last bytes to go out
FLOOD = 400  # lines of a very long answer
LINE = f"{'and so on, and on, ' * 7}until whoever reads this has had enough\n"
TOO_MUCH = 1_000_000_000  # tokens, more than any window has
MODELS = "/v1/models"
METHODS = {MODELS: "GET", "/v1/chat/completions": "POST"}


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

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The user messages that no assistant message follows; if there is one, the last is the prompt."""
        after = max((n for n, role in enumerate(self.roles) if role == "assistant"), default=-1) + 1
        return tuple(text for role, text in zip(self.roles[after:], self.texts[after:]) if role == "user")


def is_turn(asked: Asked) -> bool:
    """Whether a request starts a turn, as far as one can tell without knowing the server."""
    return asked.model != SIDE and bool(asked.unanswered)


class Ending(Enum):
    """How a turn ended, as the language model sees it."""

    ANSWERED = "answered"
    FAILED = "failed"
    CLOSED = "closed"
    """The server under test dropped the request before its end."""


@dataclass
class Turn:
    """A request that started a turn or went on with it, or asked for its summary. Times: `time.monotonic`."""

    asked: Asked
    begin: float
    tokens: frozenset[str] = frozenset()
    """Of the prompts whose turn it is."""
    end: float | None = None
    ending: Ending | None = None


class FakeModel:
    """Answers on 127.0.0.1 while it is entered. Answers and errors repeat the prompt, so that they can be attributed.

    The methods are for the event loop in which it was entered. On leaving, turns that are still held fail.
    """

    def __init__(self, port: int = 0, *, is_turn: Callable[[Asked], bool] = is_turn) -> None:
        self.asked: list[Asked] = []
        """Every request for an answer, also those that started no turn."""
        self.turns: list[Turn] = []
        self.taken_in: dict[str, str] = {}
        """By token, of prompts that were steered and have had no turn of their own: whose turn was the first that came
        with their text, unanswered, before its own. Servers that fold message by message do that; others, after a
        cancel."""
        self.find_host: Callable[[Sequence[str], Sequence[str]], str | None] = lambda last, waiting: None
        """Of prompts that are in one request for the first time, those that speak last and those before them: the one
        whose turn it is, if it is not that of the last."""
        self.tool = ("cancelmark_wait", "{}")
        """The tool that is called by `again`, and with what."""
        self.outgrows = "error"
        """How `outgrow` is told: by an `error`, or by the `usage` of an answer that calls the tool."""
        self._port = port
        self._is_turn = is_turn
        self._by_token: defaultdict[str, list[Turn]] = defaultdict(list)
        self._hosts: dict[str, str] = {}  # by token, whose turn has taken it in before that turn first asked
        self._summaries: defaultdict[str, list[Turn]] = defaultdict(list)
        self._steered: set[str] = set()
        self._held: set[str] = set()
        self._failing: set[str] = set()
        self._flooding: set[str] = set()
        self._once: dict[str, str] = {}  # what a turn is answered though it is held: again, outgrow
        self._calling: dict[str, str] = {}  # by token, the tool call that its turn has made
        self._outgrown: set[str] = set()  # a summary is expected
        self._summarized: set[str] = set()  # and may be made
        self._leaving = False
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._reading: set[StreamWriter] = set()  # of the connections whose request has not arrived yet

    # --- steering

    def hold(self, token: str) -> None:
        """From now on, turns of this prompt say nothing until they are released or failed."""
        self._failing.discard(self._known(token))
        self._held.add(token)

    def release(self, token: str) -> None:
        """Turns of this prompt are answered: the one that is held, and those to come."""
        self._held.discard(self._known(token))
        self._failing.discard(token)
        self._tell()

    def fail(self, token: str) -> None:
        """Turns of this prompt are refused: the one that is held, and those to come. The refusal (400) is one that
        clients do not try again; one that does so nevertheless starts another turn."""
        self._held.discard(self._known(token))
        self._failing.add(token)
        self._tell()

    def flood(self, token: str) -> None:
        """As `release`, with an answer of many lines."""
        self._flooding.add(token)
        self.release(token)

    def again(self, token: str) -> None:
        """The turn that is held, or the next one, calls a tool; when it asks again, it is held."""
        self._plan(token, "again")

    def outgrow(self, token: str) -> None:
        """The turn that is held, or the next one, is told that it no longer fits; what it asks then is held."""
        self._plan(token, "outgrow")

    def _plan(self, token: str, what: str) -> None:
        self._once[self._known(token)] = what
        self._tell()

    def summarize(self, token: str) -> None:
        """The summary that is held, or the next one, is answered."""
        self._summarized.add(self._known(token))
        self._tell()

    def settle(self, token: str) -> None:
        """The turn may be over: what comes behind its tool call from now on may be another's turn."""
        self._calling.pop(token, None)

    def _known(self, token: str) -> str:
        self._steered.add(_checked(token))
        return token

    # --- looking

    def count_starts(self, token: str) -> int:
        """How many turns of this prompt have begun."""
        return len(self._by_token.get(_checked(token), ()))

    def count_broken_off(self, token: str) -> int:
        """How many turns of this prompt the server under test dropped before their end."""
        return sum(turn.ending is Ending.CLOSED for turn in self.turns_of(token) + self.summaries_of(token))

    def count_summaries(self, token: str) -> int:
        """How many summaries for turns of this prompt were asked for."""
        return len(self.summaries_of(token))

    def turns_of(self, token: str) -> list[Turn]:
        """The turns of this prompt, in the order in which they began."""
        return list(self._by_token.get(_checked(token), ()))

    def summaries_of(self, token: str) -> list[Turn]:
        """The requests for summaries of this prompt's conversation, in the order in which they began."""
        return list(self._summaries.get(_checked(token), ()))

    async def until_started(self, token: str, n: int = 1) -> None:
        """Waits until `n` turns of this prompt have begun, for ever if need be."""
        await self._until(lambda: self.count_starts(token) >= n)

    async def until_closed(self, token: str, n: int = 1) -> None:
        """Waits until `n` turns of this prompt have been dropped, for ever if need be."""
        await self._until(lambda: self.count_broken_off(token) >= n)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- serving

    @property
    def url(self) -> str:
        """The base URL for a client of the OpenAI-compatible wire. It ends in /v1."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # unnamed, Nagle's delay stays
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
        except (OSError, OverflowError) as error:
            listener.close()
            raise OSError(f"the fake model cannot listen on 127.0.0.1 port {self._port}: {error}; choose another, or 0"
                          ) from error
        self._port = listener.getsockname()[1]
        self._leaving = False
        self._server = await asyncio.start_server(self._connect, sock=listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        self._tell()
        self._server.close()
        for writer in self._reading:
            writer.transport.abort()
        while self._connections:
            _, late = await asyncio.wait(self._connections, timeout=LINGER)
            for connection in late:
                connection.cancel()

    def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._leaving:
            writer.transport.abort()
            return
        self._reading.add(writer)
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, which carries one request: so nothing that the client sends later can be a request."""
        try:
            with suppress(ConnectionError, IncompleteReadError):  # the client has left
                try:
                    request = await _read_request(reader, writer)
                    self._reading.discard(writer)
                    await self._answer(request, reader, writer)
                except _Refused as no:
                    await _send(writer, _error(no.status, str(no)))
                writer.close()
                await writer.wait_closed()
        finally:
            self._reading.discard(writer)
            writer.transport.abort()

    async def _answer(self, request: "_Request", reader: StreamReader, writer: StreamWriter) -> None:
        method = METHODS.get(request.path)
        if method != request.method:
            status = HTTPStatus.METHOD_NOT_ALLOWED if method else HTTPStatus.NOT_FOUND
            raise _Refused(status, f"{request.method} {request.path}: {status.phrase}")
        if request.path == MODELS:
            await _send(writer, _models())
            return
        asked = _read_asked(request)
        self.asked.append(asked)
        if token := self._find_outgrown(asked):
            turn = Turn(asked, time.monotonic(), frozenset({token}))
            self._summaries[token].append(turn)
            self._tell()
            await self._take_turn(turn, self._respond_summary(token, turn, writer), reader)
        elif (owner := self._find_caller(asked) or self._find_host(asked)) or self._is_turn(asked):
            turn = self._begin_turn(asked, owner)
            await self._take_turn(turn, self._respond(turn, writer), reader)
        else:
            await _send(writer, _answer(asked, "A side answer."))

    def _find_outgrown(self, asked: Asked) -> str | None:
        """The prompt whose turn no longer fits, if this asks for the summary."""
        words = {word for text in asked.texts for word in WORD.findall(text)} & self._outgrown
        if asked.model != SIDE:
            words -= set(WORD.findall(asked.prompt))
        return max(words, default=None)

    def _find_caller(self, asked: Asked) -> str | None:
        """The prompt whose turn goes on, if this answers its tool call."""
        return next((token for token, call in self._calling.items() if call in asked.calls), None)

    def _find_host(self, asked: Asked) -> str | None:
        """Whose turn it is, if not that of the prompt that speaks last: a turn may take others in before it asks."""
        *before, last = [[word for word in WORD.findall(text) if word in self._steered]
                         for text in asked.unanswered] or [[]]
        if not (last and self._is_turn(asked)):
            return None
        waiting = [word for words in before for word in words if word not in self._by_token]
        host = self._hosts.get(last[-1]) or self.find_host(last, waiting)
        if host:
            self._hosts |= dict.fromkeys(last, host)
        return host

    def _begin_turn(self, asked: Asked, owner: str | None) -> Turn:
        words = [owner] if owner else WORD.findall(asked.prompt)
        turn = Turn(asked, time.monotonic(), frozenset(words))
        self.turns.append(turn)
        for word in set(words):
            self._by_token[word].append(turn)
        self._outgrown -= turn.tokens
        others = asked.unanswered if owner else asked.unanswered[:-1]
        before = {word for text in others for word in WORD.findall(text)} & self._steered
        own = [word for word in words if word in self._steered]
        if own:
            self.taken_in |= dict.fromkeys(before - self._by_token.keys() - self.taken_in.keys(), own[-1])
        self._tell()
        return turn

    async def _take_turn(self, turn: Turn, response: Coroutine[Any, Any, Ending], reader: StreamReader) -> None:
        """Responds as the test decides, when it does, unless the server under test leaves before that."""
        responding = asyncio.create_task(response)
        leaving = asyncio.create_task(_until_left(reader))
        ending = Ending.CLOSED
        try:
            await asyncio.wait({responding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if responding.done():
                ending = responding.result()
        finally:
            turn.end, turn.ending = time.monotonic(), ending
            self._tell()
            responding.cancel()
            leaving.cancel()
            await asyncio.gather(responding, leaving, return_exceptions=True)

    async def _respond(self, turn: Turn, writer: StreamWriter) -> Ending:
        how, asked = await self._decide(turn), turn.asked
        own = turn.tokens.issuperset(WORD.findall(asked.prompt))
        heard = asked.prompt if own else " ".join(sorted(turn.tokens & self._steered))
        for token in turn.tokens:
            self.settle(token)
        if how == "fail":
            await _send(writer, _error(HTTPStatus.BAD_REQUEST, f"I was told to fail at: {heard}"))
            return Ending.FAILED
        if how == "outgrow":
            self._outgrown |= turn.tokens & self._steered
            if self.outgrows == "error":
                await _send(writer, _error(HTTPStatus.BAD_REQUEST, "this exceeds the maximum context length",
                                           "context_length_exceeded"))
                return Ending.FAILED
        if how in ("again", "outgrow"):
            call = f"call-{len(self.asked)}"
            self._calling |= dict.fromkeys(turn.tokens & self._steered if how == "again" else (), call)
            await _send(writer, _answer(asked, "", (call, *self.tool), TOO_MUCH if how == "outgrow" else 1))
        else:
            await _send(writer, _answer(asked, f"I heard: {heard}" + ("\n" + FLOOD * LINE if how == "flood" else "")))
        return Ending.ANSWERED

    async def _decide(self, turn: Turn) -> str:
        """What the turn is answered, once the test has said so."""
        tokens = turn.tokens
        await self._until(lambda: self._leaving or not self._held & tokens or bool(tokens & self._once.keys()))
        if planned := [self._once.pop(token) for token in tokens & self._once.keys()]:
            return planned[0]
        if self._leaving or self._failing & tokens:
            return "fail"
        return "flood" if self._flooding & tokens else "release"

    async def _respond_summary(self, token: str, turn: Turn, writer: StreamWriter) -> Ending:
        await self._until(lambda: self._leaving or token in self._summarized)
        if self._leaving:
            await _send(writer, _error(HTTPStatus.BAD_REQUEST, "I was told to leave"))
            return Ending.FAILED
        self._summarized.discard(token)
        self._outgrown.discard(token)
        await _send(writer, _answer(turn.asked, "A summary."))
        return Ending.ANSWERED


# --- HTTP: as much of it as clients of this wire use

class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes


class _Response(NamedTuple):
    status: HTTPStatus
    kind: str
    pieces: list[bytes]
    """The body, each piece of which goes out by itself."""


async def _read_request(reader: StreamReader, writer: StreamWriter) -> _Request:
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        method, target, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = await _read_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (ValueError, LimitOverrunError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"this is no HTTP request ({error})") from error
    return _Request(method, target.partition("?")[0], body)


async def _read_chunks(reader: StreamReader) -> bytes:
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        """A trailer, which says nothing to us."""
    return b"".join(chunks)


async def _send(writer: StreamWriter, response: _Response) -> None:
    status, kind, pieces = response
    writer.write(f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\n"
                 f"content-length: {sum(map(len, pieces))}\r\nconnection: close\r\n\r\n".encode())
    for piece in pieces:
        writer.write(piece)
        await writer.drain()


async def _until_left(reader: StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            """Whatever comes after the request is none."""


# --- the OpenAI-compatible wire

def _checked(token: str) -> str:
    if not WORD.fullmatch(token):
        raise ValueError(f"a token is one word of letters, digits, - and _: not {token!r}")
    return token


def _read_asked(request: _Request) -> Asked:
    """The request. What clients of this wire differ in is read liberally, and what is not of this wire is refused."""
    try:
        told = json.loads(request.body)
        messages = [(message["role"], _text(message.get("content"))) for message in told["messages"]]
        options = told.get("stream_options") or {}
        spoken = [message for message in told["messages"] if message["role"] == "assistant"][-1:]
        calls = tuple(str(call["id"]) for message in spoken for call in message.get("tool_calls") or ())
        return Asked(
            model=str(told.get("model", "")), roles=tuple(role for role, _ in messages),
            texts=tuple(text for _, text in messages), tools=len(told.get("tools") or ()),
            stream=bool(told.get("stream")), usage=bool(options.get("include_usage")), calls=calls)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{request.method} {request.path}: this is no request for chat "
                       f"completions ({type(error).__name__}: {error})") from error


def _text(content: object) -> str:
    """A message's text: it is a string, nothing, or a list of parts of which some are text."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _answer(asked: Asked, text: str, call: tuple[str, str, str] | None = None, heard: int = 1) -> _Response:
    """An answer of this text, or with this tool call: its id, the tool's name and its arguments."""
    head = {"id": "chatcmpl-fake", "created": int(time.time()), "model": asked.model}
    spent = {"prompt_tokens": heard, "completion_tokens": 1, "total_tokens": heard + 1}
    reason = "tool_calls" if call else "stop"
    calls = [{"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2]}}] if call else []
    if not asked.stream:
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return _json({**head, "object": "chat.completion", "choices": [choice], "usage": spent})

    def event(delta: Mapping[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json.dumps(chunk)}\n\n".encode()

    cut = r".*\n?" if "\n" in text else r"\S*\s*"
    pieces = [event({"content": piece}) for piece in re.findall(cut, text) if piece]
    usage = [event(None, usage=spent)] if asked.usage else []
    return _Response(HTTPStatus.OK, "text/event-stream; charset=utf-8", [
        event({"role": "assistant", "content": ""}), *pieces,
        *(event({"tool_calls": [{"index": n, **made}]}) for n, made in enumerate(calls)),
        event({}, reason), *usage, b"data: [DONE]\n\n"])


def _error(status: HTTPStatus, message: str, code: str | None = None) -> _Response:
    return _json({"error": {"message": message, "type": "invalid_request_error", "code": code}}, status)


def _models() -> _Response:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "cancelmark"} for name in (TURN, SIDE)]
    return _json({"object": "list", "data": models})


def _json(value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> _Response:
    return _Response(status, "application/json", [json.dumps(value).encode()])
