"""Sessions of a server, as an agent of the Agent Client Protocol: what an editor asks is asked of the server.

| an editor says | the server is asked |
| --- | --- |
| `session/new` | for a session in the workspace of that directory |
| `session/load`, `session/resume` | for a session that is there; `load` tells what was said in it |
| `session/prompt` | to accept a prompt under a run id; its terminal event is the answer |
| `session/cancel` | to cancel what the session has accepted so far |

**Order.** What an editor asks of a session is asked of the server one after the other, in the order in which it was
written: a cancel when the prompts before it are accepted, and the next prompt when the cancel has taken effect.

**What the protocol cannot say** is in `_meta`, under `cancelmark`: the answer to a prompt has its `runId` and its
`outcome`. When a prompt comes to another state (queued, active, done), a `session_info_update` says which and of whom.
Several editors may share a session: each sees the messages of all.
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
from .peer import INTERNAL, PARAMS, UNKNOWN, Call, Peer

log = logging.getLogger("cancelmark.acp")

NO_SESSION = -32002  # of ACP: a resource was not found
CAPABILITIES = {"loadSession": True, "promptCapabilities": {"embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}}}
TRIES = 8  # to learn what a gap in the events has hidden
STOPS = {"end_turn": "end_turn", "canceled": "cancelled"}
CHUNKS = {"user": "user_message_chunk", "assistant": "agent_message_chunk"}


class Trouble(Exception):
    """A request that cannot be met, and the code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """A session that the editor has opened."""

    id: str
    workspace: str
    asked: "asyncio.Queue[Callable[[], Awaitable[None]]]" = field(default_factory=asyncio.Queue)
    """What is to be asked of the server, in order."""


class AcpAgent:
    """One editor's agent."""

    def __init__(self, client: Client, peer: Peer) -> None:
        self.client, self.peer = client, peer
        self.sessions: dict[str, Session] = {}
        self._watched: dict[str, Events] = {}  # by workspace
        self._watching = asyncio.Lock()
        self._running: dict[str, tuple[Session, Call]] = {}  # prompts that are not answered, by run id
        self._shown: dict[str, str] = {}  # the text of a message, as far as the editor has been told, by its id
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Until the editor has gone. Raises `ClientError` if the server is gone for good."""
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

    # --- what the editor says

    def hear(self, call: Call) -> None:
        match call.method:
            case "session/prompt" | "session/cancel":
                session = self.sessions.get(str(call.params.get("sessionId")))
                if session is None:
                    self.peer.refuse(call, NO_SESSION, "there is no such session; open it with session/new or "
                                                       "session/load")
                elif call.method == "session/prompt":
                    session.asked.put_nowait(lambda: self._send(session, call))
                else:
                    session.asked.put_nowait(lambda: self.client.cancel(session.workspace, session.id))
            case "initialize":
                agent = {"name": "cancelmark", "title": "Cancelmark", "version": version("cancelmark")}
                self.peer.reply(call, {"protocolVersion": 1, "agentCapabilities": CAPABILITIES, "agentInfo": agent,
                                       "authMethods": []})
            case "session/new" | "session/load" | "session/resume" | "session/list":
                self._go_on_with(self._open(call))
            case "authenticate":
                self.peer.reply(call, {})
            case _:
                self.peer.refuse(call, UNKNOWN, f"this agent has no {call.method}")

    async def _open(self, call: Call) -> None:
        try:
            match call.method:
                case "session/new":
                    workspace = await self._watch(call)
                    made = await self.client.create_session(workspace, "")
                    self._take_up(made.id, workspace)
                    self.peer.reply(call, {"sessionId": made.id})
                case "session/list":
                    self.peer.reply(call, {"sessions": await self._list(call)})
                case _:
                    workspace = await self._watch(call)
                    id = await self._find(workspace, str(call.params.get("sessionId")))
                    if call.method == "session/load":
                        for message in await self.client.messages(workspace, id):
                            self._show(id, message.role, message.id, message.text)
                    self._take_up(id, workspace)
                    self.peer.reply(call, None if call.method == "session/load" else {})
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: Call, error: Exception) -> None:
        """A request that fails, in whatever way, fails alone: the agent goes on."""
        if not isinstance(error, Trouble | ClientError):
            log.error("a request failed", extra={"call": call.method}, exc_info=error)
        self.peer.refuse(call, error.code if isinstance(error, Trouble) else INTERNAL, str(error))

    def _take_up(self, id: str, workspace: str) -> None:
        if id not in self.sessions:
            session = self.sessions[id] = Session(id, workspace)
            self._go_on_with(self._ask_in_order(session))

    async def _find(self, workspace: str, id: str) -> str:
        try:
            return (await self.client.session(workspace, id)).id
        except Refusal as refusal:
            if refusal.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):  # whether it is there is not known
                raise
            raise Trouble(NO_SESSION, f"there is no session {id!r:.80} in that directory") from refusal

    async def _list(self, call: Call) -> list[dict[str, Any]]:
        spaces = await self.client.workspaces()
        if call.params.get("cwd"):
            wanted = await self.client.open_workspace(_directory(call))
            spaces = tuple(space for space in spaces if space.id == wanted.id) or (wanted,)
        return [_info(session, space.path) for space in spaces for session in await self.client.sessions(space.id)]

    async def _watch(self, call: Call) -> str:
        """The workspace of the directory, whose events are read from now on."""
        workspace = await self.client.open_workspace(_directory(call))
        async with self._watching:  # a session is told of only when its events are read
            if workspace.id not in self._watched:
                await self.client.init_agent(workspace.id)
                events = await self._stack.enter_async_context(Events(self.client, workspace.id))
                self._watched[workspace.id] = events
                self._go_on_with(self._read(events))
        return workspace.id

    async def _ask_in_order(self, session: Session) -> None:
        while True:
            ask = await session.asked.get()
            with suppress(ClientError):  # a cancel has no answer; a prompt has been given its own
                await ask()

    async def _send(self, session: Session, call: Call) -> None:
        run_id = str(uuid4())
        self._running[run_id] = session, call  # its end may come before the answer to its posting
        try:
            text = _text(call.params.get("prompt"))
            await post(self._watched[session.workspace], session.id, text, run_id)
        except Exception as error:
            if self._running.pop(run_id, None):
                self._refuse(call, error)

    def _go_on_with(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                if not self._failed.done():
                    self._failed.set_exception(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what the server says

    async def _read(self, events: Events) -> None:
        async for notice in events:
            self._tell(notice)
            if notice.type == "gap":
                await self._catch_up(events)

    async def _catch_up(self, events: Events) -> None:
        """Tells what a gap in the events has hidden: messages, and ends as they are recorded (R29e)."""
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

    def _tell(self, notice: Notice) -> None:
        match notice.payload:
            case Message(session_id=id) as message if id in self.sessions:
                self._tell_message(message)
            case Prompt(session_id=id) as prompt if id in self.sessions:
                self._update(id, {"sessionUpdate": "session_info_update", "_meta": {"cancelmark": {
                    "runId": prompt.run_id, "seq": prompt.seq, "state": prompt.state, "outcome": prompt.outcome}}})
            case RunComplete(run_id=run_id) as end if run_id in self._running:
                self._answer(self._running.pop(run_id)[1], end)

    def _tell_message(self, message: Message) -> None:
        if not (message.role == "user" and message.run_id in self._running):  # its editor knows what it said
            self._show(message.session_id, message.role, message.id, message.text)

    def _answer(self, call: Call, end: RunComplete) -> None:
        if end.message_id:
            self._show(end.session_id, "assistant", end.message_id, end.text)  # updates may have been skipped
        if end.outcome not in STOPS:
            self.peer.refuse(call, INTERNAL, end.error or "the turn failed")
            return
        about = {"runId": end.run_id, "seq": end.seq, "outcome": end.outcome}
        self.peer.reply(call, {"stopReason": STOPS[end.outcome], "_meta": {"cancelmark": about}})

    def _show(self, session: str, role: str, id: str, text: str) -> None:
        """Tells of a message what the editor has not been told yet."""
        before = self._shown.get(id, "")
        if role in CHUNKS and text != before and text.startswith(before):
            self._shown[id] = text
            self._chunk(session, role, id, text.removeprefix(before))

    def _chunk(self, session: str, role: str, id: str, text: str) -> None:
        content = {"type": "text", "text": text}
        self._update(session, {"sessionUpdate": CHUNKS[role], "messageId": id, "content": content})

    def _update(self, session: str, update: dict[str, Any]) -> None:
        self.peer.notify("session/update", {"sessionId": session, "update": update})


def _directory(call: Call) -> str:
    directory = call.params.get("cwd")
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise Trouble(PARAMS, f"cwd: {directory!r:.80} is no absolute path")
    return directory


def _text(blocks: object) -> str:
    """What a prompt says: its texts, and the texts and addresses of what it refers to."""
    if not isinstance(blocks, Sequence) or isinstance(blocks, str):
        raise Trouble(PARAMS, "prompt: give a list of content blocks")
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
                raise Trouble(PARAMS, f"prompt: this agent takes text and text resources, not {block!r:.80}")
    return "\n".join(said)


def _info(session: ServerSession, directory: str) -> dict[str, Any]:
    return {"sessionId": session.id, "cwd": directory, **({"title": session.title} if session.title else {})}
