"""A fake language model: a server of the usual wires (`llm`) whose turns a test holds, releases, fails and counts.

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
- A prompt that has ended (`finish`) is conversation too, when it comes again in one message with another prompt: some
  agents say what was canceled once more, together with what is said next.
- A request that answers a tool call goes on with the turn that made it, and starts none. Prompts that come behind
  the answer were taken in by that turn. So it is until `settle` says that the turn may be over.
- A request with the words of a prompt whose turn no longer fits, and with another prompt's last, asks for its summary.
- A request for the model `side` starts none. Agent servers ask for titles and summaries with the user's own words in
  the request; many can be told to use another model for that. Give them `side` for those and `turn` for
  turns (any other name does too). For a server that has one model for both, `is_turn` tells them apart.

A request that starts no turn is answered at once, never held or failed, and counted nowhere but in `asked`.
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

from ..llm import WIRES, WORD, Asked, Call, Response, Said, Wire, json_response, list_models

TURN, SIDE = "turn", "side"
LINGER = 2  # seconds for the last bytes to go out
FLOOD = 400  # lines of a very long answer
LINE = f"{'and so on, and on, ' * 7}until whoever reads this has had enough\n"
TOO_MUCH = 1_000_000_000  # tokens, more than any window has
MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
TOKENS = "/v1/messages/count_tokens"
METHODS = {MODELS: "GET", TOKENS: "POST", **dict.fromkeys(WIRES, "POST")}


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
    wire: Wire
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
        with their text, unanswered, before its own: after folding message by message, or after a cancel."""
        self.find_host: Callable[[Sequence[str], Sequence[str]], str | None] = lambda last, waiting: None
        """Of prompts that are new in a request, who speak last and who before: whose turn it is, if not the last's."""
        self.is_over: Callable[[str, Sequence[str]], bool] = lambda token, texts: False
        """Whether a turn that has called a tool is over, though its answer comes: with the texts of another's turn."""
        self.breaks_off_for_good = False
        """A prompt whose turn was broken off has ended, though nobody has said so yet: its text is conversation."""
        self.tool = ("cancelmark_wait", "{}")
        """The tool that is called by `again`, and with what."""
        self.outgrows = "error"
        """How `outgrow` is told: by an `error`, or by the `usage` of an answer."""
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
        self._finished: set[str] = set()
        self._outgrown: set[str] = set()  # a summary is expected
        self._summarized: set[str] = set()  # and may be made
        self._leaving = False
        self._servers: list[asyncio.Server] = []
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

    def finish(self, token: str) -> None:
        """The prompt has ended. Turns of it that begin from now on are answered; in one message with another prompt it
        is conversation. A request that is open stays so: the server has to break it off."""
        self._finished.add(self._known(token))

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

    def count_open(self, token: str) -> int:
        """How many requests of this prompt alone, for its turn or its summary, wait for an answer."""
        return sum(turn.ending is None and turn.tokens & self._steered == {token}
                   for turn in self.turns_of(token) + self.summaries_of(token))

    def count_summaries(self, token: str) -> int:
        """How many summaries for turns of this prompt were asked for."""
        return len(self.summaries_of(token))

    def heard(self, token: str) -> str:
        """What a turn, its own or another's, first said for this token."""
        turns = [*self.turns_of(token), *self.turns_of(self.taken_in.get(token, token))]
        return next(filter(None, (turn.asked.heard(token) for turn in turns)), "")

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
        await self.serve(listener)
        return self

    async def serve(self, listener: socket.socket) -> None:
        """Answers there too: on the loopback of another network namespace, say."""
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
        """One connection, which carries one request: so nothing that the client sends later can be a request."""
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
            await _send(writer, wire.answer(asked, Said("A side answer.")))

    def _find_outgrown(self, asked: Asked) -> str | None:
        """The prompt whose turn no longer fits, if this asks for the summary."""
        words = {word for text in asked.texts for word in WORD.findall(text)} & self._outgrown
        if asked.model != SIDE:
            words -= set(WORD.findall(asked.prompt))
        return max(words, default=None)

    def _find_caller(self, asked: Asked) -> str | None:
        """The prompt whose turn goes on, if this answers its tool call."""
        return next((token for token, call in self._calling.items()
                     if call in asked.calls and not self.is_over(token, asked.unanswered)), None)

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

    def _begin_turn(self, asked: Asked, wire: Wire, owner: str | None) -> Turn:
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
        """Its words without those of prompts that have ended, unless it has none of a prompt that has not."""
        words = WORD.findall(text)
        left = [word for word in words if word not in self._finished and not self._was_broken_off(word)]
        return left if self._steered.intersection(left) else words

    def _was_broken_off(self, token: str) -> bool:
        ending = next((turn.ending for turn in self._by_token.get(token, [])[::-1]), None)
        return self.breaks_off_for_good and ending is Ending.CLOSED

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
            said = Said("", Call(call, *self.tool), TOO_MUCH if how == "outgrow" else 1)
        else:
            said = Said(f"I heard: {heard}" + ("\n" + FLOOD * LINE if how == "flood" else ""))
        await _send(writer, wire.answer(asked, said))
        return Ending.ANSWERED

    async def _decide(self, turn: Turn) -> str:
        """What the turn is answered, once the test has said so."""
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
        await _send(writer, turn.wire.answer(turn.asked, Said("A summary.")))
        return Ending.ANSWERED


# --- HTTP: as much of it as clients of this wire use

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
            """Whatever comes after the request is none."""


# --- what is asked

def _checked(token: str) -> str:
    if not WORD.fullmatch(token):
        raise ValueError(f"a token is one word of letters, digits, - and _: not {token!r}")
    return token


def _read_asked(request: _Request) -> Asked:
    """The request. What clients of a wire differ in is read liberally, and what is not of this wire is refused."""
    wire = WIRES[request.path]
    try:
        return wire.read(json.loads(request.body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{request.method} {request.path}: this is no request for "
                       f"{wire.name} ({type(error).__name__}: {error})", wire) from error
