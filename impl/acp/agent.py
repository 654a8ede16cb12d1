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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from ..client import Client, ClientError, Events, Message, Notice, Prompt, Refusal, RunComplete
from ..client import Session as ServerSession
from .peer import INTERNAL, PARAMS, UNKNOWN, Call, Peer

NO_SESSION = -32002  # of ACP: a resource was not found
CAPABILITIES = {"loadSession": True, "promptCapabilities": {"embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}}}
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
        self._watched: set[str] = set()  # workspaces whose events are read
        self._running: dict[str, Call] = {}  # prompts that are not answered, by run id
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
                            self._show(message)
                    self._take_up(id, workspace)
                    self.peer.reply(call, None if call.method == "session/load" else {})
        except Trouble as trouble:
            self.peer.refuse(call, trouble.code, str(trouble))
        except ClientError as error:
            self.peer.refuse(call, INTERNAL, str(error))

    def _take_up(self, id: str, workspace: str) -> None:
        if id not in self.sessions:
            session = self.sessions[id] = Session(id, workspace)
            self._go_on_with(self._ask_in_order(session))

    async def _find(self, workspace: str, id: str) -> str:
        try:
            return (await self.client.session(workspace, id)).id
        except Refusal as refusal:
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
        if workspace.id not in self._watched:
            self._watched.add(workspace.id)
            await self.client.init_agent(workspace.id)
            events = await self._stack.enter_async_context(Events(self.client, workspace.id))
            self._go_on_with(self._read(events))
        return workspace.id

    async def _ask_in_order(self, session: Session) -> None:
        while True:
            ask = await session.asked.get()
            with suppress(ClientError):  # a cancel has no answer; a prompt has been given its own
                await ask()

    async def _send(self, session: Session, call: Call) -> None:
        run_id = str(uuid4())
        try:
            text = _text(call.params.get("prompt"))
            self._running[run_id] = call
            await self.client.send(session.workspace, session.id, text, run_id)
        except (Trouble, ClientError) as error:
            self._running.pop(run_id, None)
            self.peer.refuse(call, error.code if isinstance(error, Trouble) else INTERNAL, str(error))

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

    def _tell(self, notice: Notice) -> None:
        match notice.payload:
            case Message(session_id=id) as message if id in self.sessions:
                if not (message.role == "user" and message.run_id in self._running):  # its editor knows what it said
                    self._show(message)
            case Prompt(session_id=id) as prompt if id in self.sessions:
                self._update(id, {"sessionUpdate": "session_info_update", "_meta": {"cancelmark": {
                    "runId": prompt.run_id, "seq": prompt.seq, "state": prompt.state, "outcome": prompt.outcome}}})
            case RunComplete(run_id=run_id) as end if run_id in self._running:
                self._answer(self._running.pop(run_id), end)

    def _answer(self, call: Call, end: RunComplete) -> None:
        if end.outcome not in STOPS:
            self.peer.refuse(call, INTERNAL, end.error or "the turn failed")
            return
        if end.text and end.message_id and self._shown.get(end.message_id) is None:  # its updates were missed
            self._chunk(end.session_id, "assistant", end.message_id, end.text)
        about = {"runId": end.run_id, "seq": end.seq, "outcome": end.outcome}
        self.peer.reply(call, {"stopReason": STOPS[end.outcome], "_meta": {"cancelmark": about}})

    def _show(self, message: Message) -> None:
        """Tells of a message what the editor has not been told yet."""
        before, now = self._shown.get(message.id, ""), message.text
        if message.role in CHUNKS and now != before and now.startswith(before):
            self._shown[message.id] = now
            self._chunk(message.session_id, message.role, message.id, now.removeprefix(before))

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
