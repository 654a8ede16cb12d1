"""An Agent Client Protocol agent that forwards an editor's requests to a server.

| request of the editor | call to the server |
| --- | --- |
| `session/new` | create a session in the workspace of that directory |
| `session/load`, `session/resume` | find an existing session; `load` also replays its messages |
| `session/prompt` | send a prompt with a run id; its terminal event is the response |
| `session/cancel` | cancel every prompt that the session has accepted so far |

**Order.** The requests of an editor on a session are forwarded one at a time, in order. A cancel is forwarded once the
prompts before it are accepted, and a prompt once the cancels before it have taken effect.

**Extensions** are in `_meta`, under `cancelmark`: the response to a prompt has its `runId` and its `outcome`. When a
prompt changes its state (queued, active, done), a `session_info_update` reports the prompt and its state. Several
editors may share a session: each sees the messages of all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from ..client import Client, ClientError, Events, Message, Notice, Prompt, Refusal, RunComplete, Unreachable
from ..client import Session as ServerSession
from ..client.run import find_recorded_end, post
from .peer import INTERNAL, PARAMS, UNKNOWN, Peer, RpcCall

log = logging.getLogger("cancelmark.acp")

NO_SESSION = -32002  # ACP: resource not found
CAPABILITIES = {"loadSession": True, "promptCapabilities": {"embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}}}
TRIES = 8  # attempts to catch up after a gap in the events
STOPS = {"end_turn": "end_turn", "canceled": "cancelled"}
CHUNKS = {"user": "user_message_chunk", "assistant": "agent_message_chunk"}


class RequestError(Exception):
    """A request fails, with a JSON-RPC error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """A session that the editor has opened."""

    id: str
    workspace: str
    outgoing: "asyncio.Queue[Callable[[], Awaitable[None]]]" = field(default_factory=asyncio.Queue)
    """The calls to forward to the server, in order."""


class AcpAgent:
    """One editor's agent."""

    def __init__(self, client: Client, peer: Peer) -> None:
        self.client, self.peer = client, peer
        self.sessions: dict[str, Session] = {}
        self._watched: dict[str, Events] = {}  # by workspace
        self._watching = asyncio.Lock()
        self._running: dict[str, tuple[Session, RpcCall]] = {}  # prompts without a response yet, by run id
        self._shown: dict[str, str] = {}  # by message id: the text already sent to the editor
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serves until the editor closes the connection. Raises `ClientError` if the server is lost permanently."""
        listening = asyncio.ensure_future(self.peer.listen(self.hear))
        try:
            await asyncio.wait([listening, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            listening.result()
        finally:
            listening.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(listening, *self._tasks, return_exceptions=True)
            await self._stack.aclose()

    # --- requests of the editor

    def hear(self, call: RpcCall) -> None:
        match call.method:
            case "session/prompt" | "session/cancel":
                session = self.sessions.get(str(call.params.get("sessionId")))
                if session is None:
                    self.peer.refuse(call, NO_SESSION, "no such session; open it with session/new or session/load")
                elif call.method == "session/prompt":
                    session.outgoing.put_nowait(lambda: self._send(session, call))
                else:
                    session.outgoing.put_nowait(lambda: self.client.cancel(session.workspace, session.id))
            case "initialize":
                agent = {"name": "cancelmark", "title": "Cancelmark", "version": version("cancelmark")}
                self.peer.reply(call, {"protocolVersion": 1, "agentCapabilities": CAPABILITIES, "agentInfo": agent,
                                       "authMethods": []})
            case "session/new" | "session/load" | "session/resume" | "session/list":
                self._spawn(self._open(call))
            case "authenticate":
                self.peer.reply(call, {})
            case _:
                self.peer.refuse(call, UNKNOWN, f"method {call.method} is not supported")

    async def _open(self, call: RpcCall) -> None:
        try:
            match call.method:
                case "session/new":
                    workspace = await self._watch(call)
                    made = await self.client.create_session(workspace, "")
                    self._register_session(made.id, workspace)
                    self.peer.reply(call, {"sessionId": made.id})
                case "session/list":
                    self.peer.reply(call, {"sessions": await self._list(call)})
                case _:
                    workspace = await self._watch(call)
                    id = await self._find(workspace, str(call.params.get("sessionId")))
                    if call.method == "session/load":
                        for message in await self.client.messages(workspace, id):
                            self._show(id, message.role, message.id, message.text)
                    self._register_session(id, workspace)
                    self.peer.reply(call, None if call.method == "session/load" else {})
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: RpcCall, error: Exception) -> None:
        """Reports the failure of one request; the agent keeps running."""
        if not isinstance(error, RequestError | ClientError):
            log.error("a request failed", extra={"call": call.method}, exc_info=error)
        self.peer.refuse(call, error.code if isinstance(error, RequestError) else INTERNAL, str(error))

    def _register_session(self, id: str, workspace: str) -> None:
        if id not in self.sessions:
            session = self.sessions[id] = Session(id, workspace)
            self._spawn(self._ask_in_order(session))

    async def _find(self, workspace: str, id: str) -> str:
        try:
            return (await self.client.session(workspace, id)).id
        except Refusal as refusal:
            if refusal.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):  # it may exist
                raise
            raise RequestError(NO_SESSION, f"no such session {id!r:.80} in that directory") from refusal

    async def _list(self, call: RpcCall) -> list[dict[str, Any]]:
        spaces = await self.client.workspaces()
        if call.params.get("cwd"):
            wanted = await self.client.open_workspace(_directory(call))
            spaces = tuple(space for space in spaces if space.id == wanted.id) or (wanted,)
        return [_info(session, space.path) for space in spaces for session in await self.client.sessions(space.id)]

    async def _watch(self, call: RpcCall) -> str:
        """The id of the directory's workspace, subscribed to its events."""
        workspace = await self.client.open_workspace(_directory(call))
        async with self._watching:  # reply only after the subscription
            if workspace.id not in self._watched:
                await self.client.init_agent(workspace.id)
                events = await self._stack.enter_async_context(Events(self.client, workspace.id))
                self._watched[workspace.id] = events
                self._spawn(self._read(events))
        return workspace.id

    async def _ask_in_order(self, session: Session) -> None:
        while True:
            ask = await session.outgoing.get()
            with suppress(ClientError):  # a cancel has no response; a prompt has already had its error response
                await ask()

    async def _send(self, session: Session, call: RpcCall) -> None:
        run_id = str(uuid4())
        self._running[run_id] = session, call  # the terminal event may arrive before the server's response
        try:
            text = _text(call.params.get("prompt"))
            await post(self._watched[session.workspace], session.id, text, run_id)
        except Exception as error:
            if self._running.pop(run_id, None):
                self._refuse(call, error)

    def _spawn(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                if not self._failed.done():
                    self._failed.set_exception(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- events of the server

    async def _read(self, events: Events) -> None:
        async for notice in events:
            self._on_notice(notice)
            if notice.type == "gap":
                await self._catch_up(events)

    async def _catch_up(self, events: Events) -> None:
        """Sends what the editor missed in a gap of the events: messages, and recorded outcomes."""
        for attempt in range(TRIES):
            try:
                for session in [session for session in self.sessions.values() if session.workspace == events.workspace]:
                    for message in await self.client.messages(session.workspace, session.id):
                        self._tell_message(message)
                for run_id, (session, _) in list(self._running.items()):
                    if session.workspace == events.workspace:
                        end = await find_recorded_end(self.client, session.workspace, session.id, run_id)
                        if end and run_id in self._running:
                            self._answer(self._running.pop(run_id)[1], end)
                return
            except (Unreachable, Refusal) as error:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(events.patience.delay(attempt, error))

    def _on_notice(self, notice: Notice) -> None:
        match notice.payload:
            case Message(session_id=id) as message if id in self.sessions:
                self._tell_message(message)
            case Prompt(session_id=id) as prompt if id in self.sessions:
                self._update(id, {"sessionUpdate": "session_info_update", "_meta": {"cancelmark": {
                    "runId": prompt.run_id, "seq": prompt.seq, "state": prompt.state, "outcome": prompt.outcome}}})
            case RunComplete(run_id=run_id) as end if run_id in self._running:
                self._answer(self._running.pop(run_id)[1], end)

    def _tell_message(self, message: Message) -> None:
        if not (message.role == "user" and message.run_id in self._running):  # the editor has its own prompt already
            self._show(message.session_id, message.role, message.id, message.text)

    def _answer(self, call: RpcCall, end: RunComplete) -> None:
        if end.message_id:
            self._show(end.session_id, "assistant", end.message_id, end.text)  # in case updates were skipped
        if end.outcome not in STOPS:
            self.peer.refuse(call, INTERNAL, end.error or "the turn failed")
            return
        about = {"runId": end.run_id, "seq": end.seq, "outcome": end.outcome}
        self.peer.reply(call, {"stopReason": STOPS[end.outcome], "_meta": {"cancelmark": about}})

    def _show(self, session: str, role: str, id: str, text: str) -> None:
        """Sends the part of a message that the editor does not have yet."""
        before = self._shown.get(id, "")
        if role in CHUNKS and text != before and text.startswith(before):
            self._shown[id] = text
            self._chunk(session, role, id, text.removeprefix(before))

    def _chunk(self, session: str, role: str, id: str, text: str) -> None:
        content = {"type": "text", "text": text}
        self._update(session, {"sessionUpdate": CHUNKS[role], "messageId": id, "content": content})

    def _update(self, session: str, update: dict[str, Any]) -> None:
        self.peer.notify("session/update", {"sessionId": session, "update": update})


def _directory(call: RpcCall) -> str:
    directory = call.params.get("cwd")
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise RequestError(PARAMS, f"cwd: {directory!r:.80} is not an absolute path")
    return directory


def _text(blocks: object) -> str:
    """The text of a prompt: its text blocks, embedded resources and links."""
    if not isinstance(blocks, Sequence) or isinstance(blocks, str):
        raise RequestError(PARAMS, "prompt: expected a list of content blocks")
    said = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                said.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                said.append(uri)
            case {"type": "resource", "resource": {"text": str(text), "uri": str(uri)}}:
                said.append(f"{uri}:\n{text}")
            case _:
                raise RequestError(PARAMS, f"prompt: only text and text resources are supported, not {block!r:.80}")
    return "\n".join(said)


def _info(session: ServerSession, directory: str) -> dict[str, Any]:
    return {"sessionId": session.id, "cwd": directory, **({"title": session.title} if session.title else {})}
