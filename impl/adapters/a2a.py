"""The adapter for servers of the Agent2Agent protocol (A2A), over JSON-RPC.

| the kit | A2A |
| --- | --- |
| a session | a context, whose id this client chooses |
| a prompt | a message, for which the server creates a task |
| a prompt is accepted | its stream has published the id of its task, or nothing for some seconds |
| cancel | a cancel request for each live task of the context whose id the server has published |
| its terminal event | the first update in its stream with a terminal state; also the task's own state, if it differs |
| `end_turn`, `canceled`, `error` | the state `completed`, `canceled`, or `failed` |
| it is refused | the state `rejected`, or an error instead of a stream |

Version 1.0 differs from 0.2 and 0.3 in names and in the encoding of states. The agent card names the version for
requests; responses are parsed in either encoding.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

from cancelmark.conformance.adapter import GUARANTEES, Adapter, Declined, Ended, Refused, Sent, ServerGone

from ..client.errors import Unreachable
from ..http import Answer
from ..sse import Parser
from .connections import Connections

STATES = {"completed": "end_turn", "canceled": "canceled", "failed": "error", "rejected": "refused"}
LAST_WORDS = 2.0  # seconds to cancel the remaining tasks of a history
NOT_FOUND, NOT_CANCELABLE = -32001, -32002  # A2A error codes for a cancel that comes too late
METHODS: Mapping[str, Mapping[str, str]] = {
    "0": {"stream": "message/stream", "get": "tasks/get", "cancel": "tasks/cancel", "user": "user"},
    "1": {"stream": "SendStreamingMessage", "get": "GetTask", "cancel": "CancelTask", "user": "ROLE_USER"},
}
SILENT = "the text is silent"
CLAUSES: Mapping[str, str] = {
    "some-terminal": "A2A 1.0, 3.1.2 Send Streaming Message: “The stream MUST close when the task reaches a terminal "
                     "state”",
    "one-terminal": "A2A 1.0, 4.1.3 Task State: `completed`, `failed`, `canceled` and `rejected` are terminal",
    "no-lost-cancel": "no promise; A2A 1.0, 3.1.5 Cancel Task: “success is not guaranteed”, and it takes a task's id",
    "cancel-stops": "no promise; A2A 1.0, 3.1.5 Cancel Task: “success is not guaranteed”",
    "attribution": "A2A 1.0, 3.1.5 Cancel Task: what is answered is the task “with cancellation status”",
    "progress": "A2A 1.0, 3.1.5 Cancel Task: it “returns its updated state”",
    "isolation": "A2A 1.0, 3.4.1 Context Identifier: it “logically groups” tasks and messages",
}


class A2aAdapter(Adapter):
    """A client of a server that is already running."""

    outside = True
    server: ClassVar[str]
    """The URL of its JSON-RPC endpoint."""
    version: ClassVar[str]
    naming: ClassVar[float] = 3.0
    """Seconds to wait for the id of a task in its stream. A task without a known id cannot be canceled."""
    promises: ClassVar[Mapping[str, str]] = {guarantee: CLAUSES.get(guarantee, SILENT) for guarantee in GUARANTEES}

    async def open(self) -> None:
        self.words = METHODS[self.version[:1]]
        headers = {"accept": "application/json, text/event-stream", "a2a-version": self.version}
        self.calls, self.looks = (Connections(_root(self.server), headers=headers) for _ in range(2))
        self.path = urlsplit(self.server).path or "/"
        self.tasks: dict[str, dict[str, str]] = {}  # by context: the ids of tasks that have not ended, by prompt
        self.streams: list[Answer] = []

    async def warm(self, n: int) -> None:
        await self.calls.warm(n)

    async def close(self) -> None:
        with suppress(TimeoutError, Refused, ServerGone):
            async with asyncio.timeout(LAST_WORDS):
                for context in self.tasks:
                    await self.cancel(context)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self.streams:
            stream.close()
        await self.calls.close()
        await self.looks.close()

    async def session(self) -> str:
        context = str(uuid4())
        self.tasks[context] = {}
        return context

    async def accept(self, session: str, prompt: Sent) -> None:
        part = {"text": prompt.text} if self.version[:1] == "1" else {"kind": "text", "text": prompt.text}
        message = {"role": self.words["user"], "parts": [part], "messageId": str(uuid4()), "contextId": session}
        if self.version[:1] == "0":
            message["kind"] = "message"
        stream = await _reach(self.calls.begin("POST", self.path, _request(self.words["stream"], {"message": message})))
        self.streams.append(stream)
        if stream.status != HTTPStatus.OK:
            raise Refused(f"the server responds with {stream.status}: {(await _read_all(stream))!r:.200}")
        named = asyncio.Event()
        self.spawn(self._follow(session, prompt.name, stream, named), name="stream")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.naming):
                await named.wait()

    async def cancel(self, session: str) -> None:
        refused = []
        for task in list(self.tasks[session].values()):
            _, error = await self._ask(self.calls, "cancel", {"id": task})
            if error and error.get("code") not in (NOT_FOUND, NOT_CANCELABLE):
                refused.append(str(error.get("message")))
        if refused:
            raise Refused(refused[0])

    async def _ask(self, calls: Connections, what: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any] | None]:
        """Make a call, and return its result and its error."""
        answer = await _reach(calls.ask("POST", self.path, _request(self.words[what], params)))
        said = answer.json()
        return said.get("result"), said.get("error")

    async def _follow(self, session: str, name: str, stream: Answer, named: asyncio.Event) -> None:
        """Read a prompt's stream, and report its end; report the task's own state too, if it differs."""
        tasks, texts = self.tasks[session], list[str]()
        async for update in _read_updates(stream):
            named.set()
            if "error" in update:
                self.tell(Declined(name, str(update["error"].get("message"))))
                return
            if task := str(update.get("taskId") or ("status" in update and update.get("id")) or ""):
                tasks[name] = task
            texts += _texts(update.get("artifact") or update)
            state = "completed" if "messageId" in update else _state(update)  # a message is an answer without a task
            if state in STATES:
                found, _ = await self._ask(self.looks, "get", {"id": tasks[name]}) if name in tasks else ({}, None)
                tasks.pop(name, None)
                self._tell_state(name, state, texts)
                if (other := _state(found or {})) in STATES and other != state:
                    self._tell_state(name, other, texts)
                return

    def _tell_state(self, name: str, state: str, texts: list[str]) -> None:
        if state == "rejected":
            self.tell(Declined(name, "the task was rejected"))
        else:
            self.tell(Ended(name, STATES[state], texts[-1] if texts and state == "completed" else None))


def _request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": str(uuid4()), "method": method, "params": params}


async def _read_updates(stream: Answer) -> AsyncIterator[dict[str, Any]]:
    """The updates in the stream, or the error that the server returned instead."""
    parser, whole = Parser(), b""
    async for piece in stream.pieces():
        whole = (whole + piece)[:10_000]
        for event in parser.feed(piece):
            if event.data:
                yield _unwrap(json.loads(event.data))
    if whole.startswith(b"{"):
        yield _unwrap(json.loads(whole))


def _unwrap(said: dict[str, Any]) -> dict[str, Any]:
    """The update without its envelope. Version 1.0 wraps it under the name of its kind; earlier versions do not."""
    if said.get("error"):
        return {"error": said["error"]}
    result: dict[str, Any] = said.get("result") or {}
    inside = [result[kind] for kind in ("task", "statusUpdate", "artifactUpdate", "message") if kind in result]
    return dict(inside[0]) if inside else result


def _state(update: Mapping[str, Any]) -> str:
    status = update.get("status") or {}
    return str(status.get("state") or "").lower().removeprefix("task_state_").replace("cancelled", "canceled")


def _texts(artifact: Mapping[str, Any]) -> list[str]:
    text = "".join(str(part.get("text") or "") for part in artifact.get("parts") or ())
    return [text] if text else []


async def _read_all(stream: Answer) -> bytes:
    return b"".join([piece async for piece in stream.pieces()])


async def _reach(call: Any) -> Any:
    try:
        return await call
    except Unreachable as error:
        raise ServerGone(str(error)) from error


def _root(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def a2a_adapter(server: str, version: str) -> type[A2aAdapter]:
    """The adapter class for the server at this URL, in this version."""
    return type("A2aClient", (A2aAdapter,), {"server": server, "version": version})
