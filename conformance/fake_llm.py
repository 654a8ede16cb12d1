"""A fake language model: a server of the OpenAI-compatible wire whose turns a test holds, releases, fails and counts.

A server under test is given `url` as the base URL of its language model, and cannot tell the difference. Prompts are
told apart by a token, a word that a test puts into the text of one prompt and of no other:

    async with FakeModel() as fake:
        fake.hold("a1")
        …                                   the server under test is sent the prompt "do this a1"
        await fake.until_started("a1")      its turn has begun, and waits for an answer
        fake.release("a1")                  or fail("a1"), or the server drops it: closed("a1") == 1

Which request is whose turn:

- A request belongs to the prompts whose tokens are in its **last user message**: to several if the server folds several
  into one message. What stands before it is conversation, even if nobody has answered it: that a canceled prompt stays
  in the conversation does not start it. If its own turn never began, `taken_in` says whose turn has heard it instead.
- A request in which the assistant has spoken after the user goes on with a turn, after a tool call, and starts none.
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
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

TURN, SIDE = "turn", "side"
WORD = re.compile(r"[\w-]+")
LINGER = 2  # seconds for the last bytes to go out


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
    """A request that started a turn. Times are those of `time.monotonic`."""

    asked: Asked
    begin: float
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
        self._port = port
        self._is_turn = is_turn
        self._by_token: defaultdict[str, list[Turn]] = defaultdict(list)
        self._steered: set[str] = set()
        self._held: set[str] = set()
        self._failing: set[str] = set()
        self._leaving = False
        self._changed = asyncio.Event()

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

    def _known(self, token: str) -> str:
        self._steered.add(_checked(token))
        return token

    # --- looking

    def started(self, token: str) -> int:
        """How many turns of this prompt have begun."""
        return len(self._by_token.get(_checked(token), ()))

    def closed(self, token: str) -> int:
        """How many turns of this prompt the server under test dropped before their end."""
        return sum(turn.ending is Ending.CLOSED for turn in self.turns_of(token))

    def turns_of(self, token: str) -> list[Turn]:
        """The turns of this prompt, in the order in which they began."""
        return list(self._by_token.get(_checked(token), ()))

    async def until_started(self, token: str, n: int = 1) -> None:
        """Waits until `n` turns of this prompt have begun, for ever if need be."""
        await self._until(lambda: self.started(token) >= n)

    async def until_closed(self, token: str, n: int = 1) -> None:
        """Waits until `n` turns of this prompt have been dropped, for ever if need be."""
        await self._until(lambda: self.closed(token) >= n)

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
        routes = [
            Route("/v1/models", _models),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
        ]
        self._server = _Server(Starlette(routes=routes, exception_handlers={HTTPException: _refused}))
        self._serving = asyncio.create_task(self._server.serve([listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.001)
        if self._serving.done():
            self._serving.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        self._tell()
        self._server.should_exit = True
        await self._serving

    async def _complete(self, request: Request) -> Response:
        try:
            asked = _read(await request.body())
        except ClientDisconnect:  # it was dropped before it was asked
            return Response()
        self.asked.append(asked)
        if not self._is_turn(asked):
            return _answer(asked, "A side answer.")
        turn = Turn(asked, time.monotonic())
        self.turns.append(turn)
        words = WORD.findall(asked.prompt)
        for word in set(words):
            self._by_token[word].append(turn)
        before = {word for text in asked.unanswered[:-1] for word in WORD.findall(text)} & self._steered
        own = [word for word in words if word in self._steered]
        if own:
            self.taken_in |= dict.fromkeys(before - self._by_token.keys() - self.taken_in.keys(), own[-1])
        self._tell()
        return _Steered(self, turn)

    async def _decision(self, turn: Turn) -> bool:
        """Whether the turn is to be answered, once it is held no more."""
        tokens = set(WORD.findall(turn.asked.prompt))
        await self._until(lambda: self._leaving or not self._held & tokens)
        return not (self._leaving or self._failing & tokens)

    def _ended(self, turn: Turn, ending: Ending) -> None:
        turn.end, turn.ending = time.monotonic(), ending
        self._tell()


class _Steered(Response):
    """The response to a turn: what the test decides, when it does, unless the server under test leaves before that."""

    def __init__(self, fake: FakeModel, turn: Turn) -> None:
        super().__init__()
        self._fake, self._turn = fake, turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responding = asyncio.create_task(self._respond(scope, receive, send))
        leaving = asyncio.create_task(_disconnect(receive))
        ending = Ending.CLOSED
        try:
            await asyncio.wait({responding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if responding.done():
                ending = responding.result()
        finally:
            self._fake._ended(self._turn, ending)
            responding.cancel()
            leaving.cancel()
            await asyncio.gather(responding, leaving, return_exceptions=True)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> Ending:
        if await self._fake._decision(self._turn):
            await _answer(self._turn.asked, f"I heard: {self._turn.asked.prompt}")(scope, receive, send)
            return Ending.ANSWERED
        await _error(400, f"I was told to fail at: {self._turn.asked.prompt}")(scope, receive, send)
        return Ending.FAILED


class _Server(uvicorn.Server):
    """Serves on sockets that are bound already. Signals are not its affair."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=LINGER))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _checked(token: str) -> str:
    if not WORD.fullmatch(token):
        raise ValueError(f"a token is one word of letters, digits, - and _: not {token!r}")
    return token


def _read(body: bytes) -> Asked:
    """The request. What clients of this wire differ in is read liberally, and what is not of this wire is refused."""
    try:
        told = json.loads(body)
        messages = [(message["role"], _text(message.get("content"))) for message in told["messages"]]
        options = told.get("stream_options") or {}
        return Asked(
            model=str(told.get("model", "")), roles=tuple(role for role, _ in messages),
            texts=tuple(text for _, text in messages), tools=len(told.get("tools") or ()),
            stream=bool(told.get("stream")), usage=bool(options.get("include_usage")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"this is no request for chat completions ({type(error).__name__}: {error})"
        raise HTTPException(400, why) from error


def _text(content: object) -> str:
    """A message's text: it is a string, nothing, or a list of parts of which some are text."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _answer(asked: Asked, text: str) -> Response:
    head = {"id": "chatcmpl-fake", "created": int(time.time()), "model": asked.model}
    spent = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not asked.stream:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": spent})

    def event(delta: Mapping[str, str], finish: str | None = None) -> bytes:
        return _event({**head, "object": "chat.completion.chunk",
                       "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    async def events() -> AsyncIterator[bytes]:
        yield event({"role": "assistant", "content": ""})
        for piece in re.findall(r"\S*\s*", text)[:-1]:
            yield event({"content": piece})
        yield event({}, "stop")
        if asked.usage:
            yield _event({**head, "object": "chat.completion.chunk", "choices": [], "usage": spent})
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


async def _models(request: Request) -> Response:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "cancelmark"} for name in (TURN, SIDE)]
    return JSONResponse({"object": "list", "data": models})
