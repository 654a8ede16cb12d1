"""A fake language model: a server of the usual APIs (`llm`) whose turns a test holds, releases, fails and counts.

Configure the server under test with `url` as the base URL of its language model. Prompts are identified by a token, a
word that occurs in the text of one prompt and of no other:

    async with FakeModel() as fake:
        fake.hold("a1")
        …                                   send the prompt "do this a1" to the server under test
        await fake.until_started("a1")      its turn has started, and waits for an answer
        fake.release("a1")                  or fail("a1"), or the server aborts it: count_broken_off("a1") == 1

`again("a1")` makes the turn call a tool and call the model again. `outgrow("a1")` makes it overflow its context; the
summary that the server requests then is held until `summarize("a1")`. `flood("a1")` gives a very long answer.

## Which turn a request belongs to

- A request belongs to the prompts whose tokens are in its **last user message**; to several if the server folds them
  into one message. Earlier messages are conversation, even if they are unanswered: a canceled prompt that stays in the
  conversation does not start. If its own turn never started, `taken_in` names the turn that included its text.
- A prompt that has ended (`finish`) is conversation too, if it comes again in one message with another prompt: some
  agents repeat a canceled prompt together with the next one.
- A request with the result of a tool call continues the turn that made the call, and starts none. Prompts after the
  result were folded into that turn. This holds until `settle` declares that the turn may be over.
- A request that contains a prompt whose turn has overflowed, and ends with another user message, asks for its summary.
- A request for the model `side` starts no turn. Agent servers request titles and summaries with the user's own text in
  the request; many can use another model for that. Configure `side` for those and `turn`, or any other name, for turns.
  For a server with one model for both, pass `is_turn`.

A request that starts no turn is answered immediately, is never held or failed, and is recorded only in `asked`.
"""

import asyncio
import json
import socket
import time
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..llm import WIRES, WORD, ModelAnswer, ModelRequest, Response, ToolCall, Wire, json_response, list_models

TURN, SIDE = "turn", "side"
LINGER = 2  # seconds to send the last bytes
FLOOD = 400  # lines of a very long answer
LINE = f"{'and so on, and on, ' * 7}until every reader of this has had enough\n"
TOO_MUCH = 1_000_000_000  # tokens, more than any context window
MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
TOKENS = "/v1/messages/count_tokens"
METHODS = {MODELS: "GET", TOKENS: "POST", **dict.fromkeys(WIRES, "POST")}


def is_turn(asked: ModelRequest) -> bool:
    """Whether a request starts a turn, as far as that can be decided without knowing the server."""
    return asked.model != SIDE and bool(asked.unanswered)


class Ending(Enum):
    """How a turn ended, as the language model observes it."""

    ANSWERED = "answered"
    FAILED = "failed"
    CLOSED = "closed"
    """The server under test aborted the request."""


@dataclass
class Turn:
    """A request that started or continued a turn, or asked for its summary. Times are from `time.monotonic`."""

    asked: ModelRequest
    wire: Wire
    begin: float
    tokens: frozenset[str] = frozenset()
    """The tokens of the prompts whose turn it is."""
    end: float | None = None
    ending: Ending | None = None


class FakeModel:
    """Serves on 127.0.0.1 inside `async with`. Answers and errors repeat the prompt, so that they can be attributed.

    ToolCall its methods only in the event loop in which it was entered. On exit, turns that are still held fail.
    """

    def __init__(self, port: int = 0, *, is_turn: Callable[[ModelRequest], bool] = is_turn) -> None:
        self.asked: list[ModelRequest] = []
        """Every request for an answer, including those that started no turn."""
        self.turns: list[Turn] = []
        self.taken_in: dict[str, str] = {}
        """By the token of a prompt without a turn of its own: the first turn whose request contained its text,
        unanswered, before the host's. Either it was folded as a separate message, or it was canceled."""
        self.find_host: Callable[[Sequence[str], Sequence[str]], str | None] = lambda last, waiting: None
        """Given the new prompts in a request, those in the last message and those before it: the prompt whose turn it
        is, if that is not the last one."""
        self.is_over: Callable[[str, Sequence[str]], bool] = lambda token, texts: False
        """Whether a turn that has called a tool is over although a request contains the tool's result, given the
        unanswered texts in that request."""
        self.breaks_off_for_good = False
        """A prompt whose turn was aborted has ended, even before its terminal event: its text is conversation."""
        self.tool = ("cancelmark_wait", "{}")
        """The tool that `again` calls, and its arguments."""
        self.outgrows = "error"
        """How `outgrow` reports the overflow: by an `error`, or by the `usage` of an answer."""
        self._port = port
        self._is_turn = is_turn
        self._by_token: defaultdict[str, list[Turn]] = defaultdict(list)
        self._hosts: dict[str, str] = {}  # by the token of a prompt that folded before its host's first request
        self._summaries: defaultdict[str, list[Turn]] = defaultdict(list)
        self._steered: set[str] = set()
        self._held: set[str] = set()
        self._failing: set[str] = set()
        self._flooding: set[str] = set()
        self._once: dict[str, str] = {}  # the next response of a held turn: again, outgrow
        self._calling: dict[str, str] = {}  # by token, the tool call that its turn has made
        self._finished: set[str] = set()
        self._outgrown: set[str] = set()  # a summary is expected
        self._summarized: set[str] = set()  # the summary may be answered
        self._leaving = False
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._reading: set[StreamWriter] = set()  # connections whose request has not arrived yet

    # --- steering

    def hold(self, token: str) -> None:
        """Leave turns of this prompt unanswered until they are released or failed."""
        self._failing.discard(self._known(token))
        self._held.add(token)

    def release(self, token: str) -> None:
        """Answer turns of this prompt: the one that is held, and later ones."""
        self._held.discard(self._known(token))
        self._failing.discard(token)
        self._tell()

    def fail(self, token: str) -> None:
        """Fail turns of this prompt: the one that is held, and later ones. Clients do not retry the status (400); one
        that does so nevertheless starts another turn."""
        self._held.discard(self._known(token))
        self._failing.add(token)
        self._tell()

    def flood(self, token: str) -> None:
        """Answer like `release`, with many lines."""
        self._flooding.add(token)
        self.release(token)

    def again(self, token: str) -> None:
        """Answer the held turn, or the next one, with a tool call; its next request is held."""
        self._plan(token, "again")

    def outgrow(self, token: str) -> None:
        """Report a context overflow to the held turn, or to the next one; its next request is held."""
        self._plan(token, "outgrow")

    def _plan(self, token: str, what: str) -> None:
        self._once[self._known(token)] = what
        self._tell()

    def summarize(self, token: str) -> None:
        """Answer the held request for a summary, or the next one."""
        self._summarized.add(self._known(token))
        self._tell()

    def settle(self, token: str) -> None:
        """Note that the turn may be over: a request after its tool call may belong to another turn from now on."""
        self._calling.pop(token, None)

    def finish(self, token: str) -> None:
        """Note that the prompt has ended. Later turns of it are answered; in one message with another prompt it is
        conversation. An open request stays open: the server has to abort it."""
        self._finished.add(self._known(token))

    def _known(self, token: str) -> str:
        self._steered.add(_checked(token))
        return token

    # --- observing

    def count_starts(self, token: str) -> int:
        """How many turns of this prompt have started."""
        return len(self._by_token.get(_checked(token), ()))

    def count_broken_off(self, token: str) -> int:
        """How many turns of this prompt the server under test has aborted."""
        return sum(turn.ending is Ending.CLOSED for turn in self.turns_of(token) + self.summaries_of(token))

    def count_open(self, token: str) -> int:
        """How many requests of only this prompt, for its turn or its summary, are open."""
        return sum(turn.ending is None and turn.tokens & self._steered == {token}
                   for turn in self.turns_of(token) + self.summaries_of(token))

    def count_summaries(self, token: str) -> int:
        """How many summaries were requested for turns of this prompt."""
        return len(self.summaries_of(token))

    def heard(self, token: str) -> str:
        """The user messages with this token in the first request that had any, of its own turn or its host's."""
        turns = [*self.turns_of(token), *self.turns_of(self.taken_in.get(token, token))]
        return next(filter(None, (turn.asked.heard(token) for turn in turns)), "")

    def turns_of(self, token: str) -> list[Turn]:
        """The turns of this prompt, in the order of their starts."""
        return list(self._by_token.get(_checked(token), ()))

    def summaries_of(self, token: str) -> list[Turn]:
        """The requests for summaries of this prompt's conversation, in the order of their starts."""
        return list(self._summaries.get(_checked(token), ()))

    async def until_started(self, token: str, n: int = 1) -> None:
        """Wait until `n` turns of this prompt have started. No timeout."""
        await self._until(lambda: self.count_starts(token) >= n)

    async def until_closed(self, token: str, n: int = 1) -> None:
        """Wait until the server has aborted `n` turns of this prompt. No timeout."""
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
        """The base URL for OpenAI-compatible clients. It ends in /v1."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # unnamed, Nagle's delay stays
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
        except (OSError, OverflowError) as error:
            listener.close()
            raise OSError(f"the fake language model cannot listen on 127.0.0.1 port {self._port}: {error}; choose "
                          "another port, or 0 for any free one") from error
        self._port = listener.getsockname()[1]
        self._leaving = False
        await self.serve(listener)
        return self

    async def serve(self, listener: socket.socket) -> None:
        """Serve on this listener too, for example on the loopback interface of another network namespace."""
        self._servers.append(await asyncio.start_server(self._connect, sock=listener))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        self._tell()
        for server in self._servers:
            server.close()
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
        """Serve one connection with a single request, so that nothing the client sends later can be a request."""
        try:
            with suppress(ConnectionError, IncompleteReadError):  # the client has left
                try:
                    request = await _read_request(reader, writer)
                    self._reading.discard(writer)
                    await self._answer(request, reader, writer)
                except _Refused as no:
                    await _send(writer, no.wire.error(no.status, str(no)))
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
            await _send(writer, list_models(TURN, SIDE))
            return
        if request.path == TOKENS:
            await _send(writer, json_response({"input_tokens": 1}))
            return
        asked, wire = _read_asked(request), WIRES[request.path]
        self.asked.append(asked)
        if token := self._find_outgrown(asked):
            turn = Turn(asked, wire, time.monotonic(), frozenset({token}))
            self._summaries[token].append(turn)
            self._tell()
            await self._take_turn(turn, self._respond_summary(token, turn, writer), reader)
        elif (owner := self._find_caller(asked) or self._find_host(asked)) or self._is_turn(asked):
            turn = self._begin_turn(asked, wire, owner)
            await self._take_turn(turn, self._respond(turn, writer), reader)
        else:
            await _send(writer, wire.answer(asked, ModelAnswer("A side answer.")))

    def _find_outgrown(self, asked: ModelRequest) -> str | None:
        """The prompt whose turn has overflowed, if the request asks for its summary."""
        words = {word for text in asked.texts for word in WORD.findall(text)} & self._outgrown
        if asked.model != SIDE:
            words -= set(WORD.findall(asked.prompt))
        return max(words, default=None)

    def _find_caller(self, asked: ModelRequest) -> str | None:
        """The prompt whose turn continues, if the request has the result of its tool call."""
        return next((token for token, call in self._calling.items()
                     if call in asked.calls and not self.is_over(token, asked.unanswered)), None)

    def _find_host(self, asked: ModelRequest) -> str | None:
        """The prompt whose turn it is, if not the last one in the request: a turn may fold others before it starts."""
        *before, last = [[word for word in WORD.findall(text) if word in self._steered]
                         for text in asked.unanswered] or [[]]
        if not (last and self._is_turn(asked)):
            return None
        waiting = [word for words in before for word in words if word not in self._by_token]
        host = self._hosts.get(last[-1]) or self.find_host(last, waiting)
        if host:
            self._hosts |= dict.fromkeys(last, host)
        return host

    def _begin_turn(self, asked: ModelRequest, wire: Wire, owner: str | None) -> Turn:
        words = [owner] if owner else self._find_owners(asked.prompt)
        turn = Turn(asked, wire, time.monotonic(), frozenset(words))
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

    def _find_owners(self, text: str) -> list[str]:
        """The words of the text without the tokens of ended prompts, unless those are the only tokens."""
        words = WORD.findall(text)
        left = [word for word in words if word not in self._finished and not self._was_broken_off(word)]
        return left if self._steered.intersection(left) else words

    def _was_broken_off(self, token: str) -> bool:
        ending = next((turn.ending for turn in self._by_token.get(token, [])[::-1]), None)
        return self.breaks_off_for_good and ending is Ending.CLOSED

    async def _take_turn(self, turn: Turn, response: Coroutine[Any, Any, Ending], reader: StreamReader) -> None:
        """Respond when and how the test decides, unless the server under test aborts the request before that."""
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
        how, asked, wire = await self._decide(turn), turn.asked, turn.wire
        own = turn.tokens.issuperset(WORD.findall(asked.prompt))
        heard = asked.prompt if own else " ".join(sorted(turn.tokens & self._steered))
        for token in turn.tokens:
            self.settle(token)
        if how == "fail":
            await _send(writer, wire.error(HTTPStatus.BAD_REQUEST, f"I was told to fail at: {heard}"))
            return Ending.FAILED
        if how == "outgrow":
            self._outgrown |= turn.tokens & self._steered
            if self.outgrows == "error":
                await _send(writer, wire.error(HTTPStatus.BAD_REQUEST, "this exceeds the maximum context length",
                                               "context_length_exceeded"))
                return Ending.FAILED
        if how in ("again", "outgrow"):
            call = f"call-{len(self.asked)}"
            self._calling |= dict.fromkeys(turn.tokens & self._steered if how == "again" else (), call)
            said = ModelAnswer("", ToolCall(call, *self.tool), TOO_MUCH if how == "outgrow" else 1)
        else:
            said = ModelAnswer(f"I heard: {heard}" + ("\n" + FLOOD * LINE if how == "flood" else ""))
        await _send(writer, wire.answer(asked, said))
        return Ending.ANSWERED

    async def _decide(self, turn: Turn) -> str:
        """Wait until the test has decided how the turn is answered."""
        tokens = turn.tokens - self._finished
        await self._until(lambda: self._leaving or not self._held & tokens or bool(tokens & self._once.keys()))
        if planned := [self._once.pop(token) for token in tokens & self._once.keys()]:
            return planned[0]
        if self._leaving or self._failing & tokens:
            return "fail"
        return "flood" if self._flooding & tokens else "release"

    async def _respond_summary(self, token: str, turn: Turn, writer: StreamWriter) -> Ending:
        await self._until(lambda: self._leaving or token in self._summarized)
        if self._leaving:
            await _send(writer, turn.wire.error(HTTPStatus.BAD_REQUEST, "I was told to leave"))
            return Ending.FAILED
        self._summarized.discard(token)
        self._outgrown.discard(token)
        await _send(writer, turn.wire.answer(turn.asked, ModelAnswer("A summary.")))
        return Ending.ANSWERED


# --- HTTP, as far as clients of these APIs use it

class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str, wire: Wire = WIRES[CHAT]) -> None:
        super().__init__(message)
        self.status, self.wire = status, wire


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes


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
        raise _Refused(HTTPStatus.BAD_REQUEST, f"malformed HTTP request ({error})") from error
    return _Request(method, target.partition("?")[0], body)


async def _read_chunks(reader: StreamReader) -> bytes:
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        """Skip the trailers."""
    return b"".join(chunks)


async def _send(writer: StreamWriter, response: Response) -> None:
    status, kind, pieces = response
    writer.write(f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\n"
                 f"content-length: {sum(map(len, pieces))}\r\nconnection: close\r\n\r\n".encode())
    for piece in pieces:
        writer.write(piece)
        await writer.drain()


async def _until_left(reader: StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            """Ignore anything after the request."""


# --- requests

def _checked(token: str) -> str:
    if not WORD.fullmatch(token):
        raise ValueError(f"invalid token {token!r}; use one word of letters, digits, - and _")
    return token


def _read_asked(request: _Request) -> ModelRequest:
    """Parse the request, tolerating the differences between clients. Raises `_Refused` if it is malformed."""
    wire = WIRES[request.path]
    try:
        return wire.read(json.loads(request.body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{request.method} {request.path}: malformed {wire.name} request "
                       f"({type(error).__name__}: {error})", wire) from error
