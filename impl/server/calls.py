"""The handlers of all calls. A handler receives the site and the request, and returns the response.

The docstrings of handlers are the summaries in the OpenAPI document."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

from starlette.requests import Request

from cancelmark.model.calls import ClientCall
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import State

from .. import wire
from ..models import Attachment
from ..runtime.messages import list_names, wire_message
from ..runtime.questions import Reply, list_open, name_question
from ..runtime.workspace import Unknown, Workspace
from ..store import PromptRecord, SessionRecord, Store
from .answers import Response, answer
from .lists import PIECE, Listing, list_all, read_page
from .schemas import BadInput
from .site import Site
from .stream import EventStream

VERSION = version("cancelmark")
RUN = "run:"  # prefix of a run id in the path of a prompt
RECENT = 50  # finished prompts in a list of prompts


# --- the server

async def health(site: Site, request: Request) -> Response:
    """Whether the server is alive"""
    return answer(wire.Health("closing" if site.workspaces.closing else "ok"))


async def is_ready(site: Site, request: Request) -> Response:
    """Whether the server can accept prompts: it is not closing, and its database is reachable"""
    status = "closing" if site.workspaces.closing else "ok" if await site.workspaces.is_ready() else "away"
    return answer(wire.Ready(status), 200 if status == "ok" else 503)


async def get_version(site: Site, request: Request) -> Response:
    """The version of the server and of the wire protocol"""
    return answer(wire.Version(VERSION, "cancelmark", wire.PROTOCOL, str(site.directory)))


async def metrics(site: Site, request: Request) -> Response:
    """Prometheus metrics"""
    return Response(200, site.metrics.text(), b"text/plain; version=0.0.4; charset=utf-8")


async def openapi(site: Site, request: Request) -> Response:
    """This document"""
    from .app import document

    return answer(document())


# --- workspaces and clients

async def open_workspace(site: Site, request: Request, sent: wire.OpenWorkspace) -> Response:
    """Open the workspace at a path"""
    workspace = await site.workspaces.open(sent.path, sent.client_id or "")
    return answer(describe_workspace(workspace))


async def list_workspaces(site: Site, request: Request) -> Response:
    """The open workspaces"""
    return answer([describe_workspace(workspace) for workspace in site.workspaces])


async def get_workspace(site: Site, request: Request) -> Response:
    """One workspace"""
    return answer(describe_workspace(await workspace_of(site, request)))


async def delete_workspace(site: Site, request: Request) -> Response:
    """Close a workspace: cancel every run and wait until all have finished. Its sessions are kept, and opening its path
    reopens it; with `forget`, all its data is deleted"""
    workspace = await workspace_of(site, request)
    await site.workspaces.delete(workspace.id, forget=flag_of(request, "forget"))
    return answer(wire.Done())


async def events(site: Site, request: Request) -> EventStream:
    """Watch a workspace: server-sent events"""
    workspace = await workspace_of(site, request)
    client = client_of(request.query_params.get("client_id", ""))
    await workspace.hear()
    return site.stream(workspace, client, request.headers.get("last-event-id"))


async def release_client(site: Site, request: Request) -> Response:
    """Release a client's claims and end its event streams"""
    return answer(wire.Released(site.workspaces.release(client_of(request.path_params["client_id"]))))


# --- sessions

async def create_session(site: Site, request: Request, sent: wire.CreateSession) -> Response:
    """Create a session"""
    workspace = await workspace_of(site, request)
    made = await workspace.create_session(sent.title)
    return answer(wire.Session(made.id, made.title, made.created_at, is_busy=False))


async def list_sessions(site: Site, request: Request) -> Response:
    """The sessions of a workspace: the latest, or the latest before a given one"""
    workspace = await workspace_of(site, request)
    await workspace.look()
    page = read_page(request)
    if page.before is not None and not workspace.has_session(page.before):
        raise BadInput(f"before: no such session {page.before!r:.80}; give the id of a session")

    async def latest_first() -> AsyncIterator[tuple[str, Any]]:
        for session in workspace.sessions(page.before):
            if not workspace.runtime.has_session(session.id):  # other nodes may have taken it over since
                await workspace.look(session.id)
            yield session.id, describe_session(workspace, session)

    listing = Listing()
    return listing.answer(page, await listing.add_page(page, latest_first()))


async def get_session(site: Site, request: Request) -> Response:
    """One session, and whether it is busy"""
    workspace, session = await session_of(site, request)
    workspace.runtime.refuse_if_stuck(session.id)
    return answer(describe_session(workspace, session))


async def list_messages(site: Site, request: Request) -> Response:
    """The messages of a session: the latest, or the latest before a given one"""
    workspace, session = await session_of(site, request)
    page, store = read_page(request), workspace.runtime.store
    if page.before is not None and not await store.messages(session.id, since=page.before, last=1):
        raise BadInput(f"before: no such message {page.before!r:.80} in this session; give the id of a message")
    listing = Listing()
    return listing.answer(page, await listing.add_page(page, messages_before(store, session.id, page.before)))


# --- the agent

async def init_agent(site: Site, request: Request, sent: wire.InitAgent) -> Response:
    """Initialize the agent, so that it accepts prompts"""
    workspace = await workspace_of(site, request)
    await site.workspaces.ready(workspace)
    return answer(describe_agent(workspace))


async def get_agent(site: Site, request: Request) -> Response:
    """Whether the agent is ready, and whether any session is busy"""
    workspace = await workspace_of(site, request)
    await workspace.look()
    return answer(describe_agent(workspace))


async def send_prompt(site: Site, request: Request, sent: wire.SendPrompt) -> Response:
    """Accept a prompt. The server responds once the acceptance is durable; the events report the outcome"""
    workspace = await workspace_of(site, request)
    attachments = [Attachment(one.name, one.mime_type, one.text) for one in sent.attachments or ()]
    if not (sent.prompt.strip() or attachments):
        raise BadInput("prompt: empty; send a text or an attachment")
    refuse_long(site, len(sent.prompt) + sum(len(one.text) for one in attachments), bool(attachments))
    mode = None if sent.if_busy in (None, "queue") else Feature(sent.if_busy)
    return answer(await workspace.accept(sent.session_id, sent.prompt, sent.run_id or None, attachments, mode), 202)


def make(call: ClientCall) -> Callable[..., Awaitable[Response]]:
    """The handler of a call in the table: it calls the runtime's method of the same name."""
    async def handle(site: Site, request: Request, sent: wire.Request | None = None) -> Response:
        workspace, session = await session_to_call(site, request)
        arguments = {argument: getattr(sent, field) for field, argument in call.takes.items()}
        refuse_long(site, len(arguments.get("text", "")))
        prompt = [prompt_of(request, call.path)] if call.names_prompt else []
        told = await getattr(workspace.runtime, call.name)(session.id, *prompt, **arguments, by=caller_of(request))
        return answer(wire.Done() if told is None else told)

    handle.__name__, handle.__doc__ = call.name, call.says
    return handle


async def count_queued(site: Site, request: Request) -> Response:
    """The number of queued prompts"""
    workspace, session = await session_of(site, request)
    return answer(len(workspace.runtime.queued(session.id)))


async def list_queued(site: Site, request: Request) -> Response:
    """The texts of the queued prompts, the next one first; with `full`, the prompts"""
    workspace, session = await session_of(site, request)
    if not flag_of(request, "full"):
        return await list_all(workspace.runtime.queued(session.id))
    return await list_all([
        wire.Prompt(p.seq, session.id, p.state.value, p.text, p.run_id or "", "", tuple(list_names(p.attachments)),
                    version=p.version, front=p.front) for p in workspace.runtime.list_queued(session.id)])


async def list_prompts(site: Site, request: Request) -> Response:
    """The unfinished prompts and the most recent finished ones, in order of acceptance; with `before`, earlier finished
    prompts; with `run_id`, only that prompt, even if its text is no longer kept"""
    workspace, session = await session_of(site, request)
    page, store = read_page(request, RECENT), workspace.runtime.store
    if (run_id := request.query_params.get("run_id")) is not None:
        found = await store.prompt(run_id) if store.is_storable(run_id) else None
        node = await workspace.find_owner(session.id) if found else ""
        return answer([describe_prompt(found, node)] if found and found.session_id == session.id else [])
    recent = await store.prompts(session.id, PIECE, before=seq_of(page.before))
    waiting = {prompt.seq: prompt for prompt in recent if not prompt.outcome}
    unfinished, listing = list(waiting.values()), Listing()
    node = await workspace.find_owner(session.id) if waiting else ""
    number, earlier = 0, None
    async for prompt in done_before(store, session.id, [prompt for prompt in recent if prompt.outcome]):
        if number == page.limit or listing.full:
            earlier = str(prompt.seq + 1)
            break
        while unfinished and unfinished[-1].seq > prompt.seq:
            await listing.add(describe_prompt(unfinished.pop(), node))
        if prompt.seq not in waiting:  # else it finished since `recent` was read, and is listed as unfinished
            await listing.add(describe_prompt(prompt))
            number += 1
    for prompt in reversed(unfinished):
        await listing.add(describe_prompt(prompt, node))
    return listing.answer(page, earlier)


async def list_asks(site: Site, request: Request) -> Response:
    """The open questions of the session's turns; with `all`, also those that have ended, of unfinished prompts and
    of the most recent finished ones"""
    workspace, session = await session_of(site, request)
    closed = RECENT if flag_of(request, "all") else 0
    return await list_all(await workspace.runtime.list_asks(session.id, closed=closed))


async def answer_ask(site: Site, request: Request, sent: wire.AnswerAsk) -> Response:
    """Answer a question of a turn. The first answer wins; the same answer again has no effect"""
    workspace, session = await session_to_call(site, request)
    reply = Reply(sent.answer == "allow", sent.option or "", sent.value, sent.text or "")
    refuse_long(site, len(json.dumps(sent.value)) if sent.value is not None else 0, what="value")
    return answer(await workspace.runtime.answer(session.id, request.path_params["ask"], reply, by=caller_of(request)))


async def summarize(site: Site, request: Request) -> Response:
    """Summarize the session; its next turn continues from the summary"""
    workspace, session = await session_of(site, request)
    await workspace.summarize(session.id)
    return answer(wire.Done())


# --- reading a request

async def workspace_of(site: Site, request: Request) -> Workspace:
    return await site.workspaces.find(request.path_params["id"])


async def session_of(site: Site, request: Request) -> tuple[Workspace, SessionRecord]:
    workspace = await workspace_of(site, request)
    await workspace.look(request.path_params["sid"])
    return workspace, workspace.session(request.path_params["sid"])


async def session_to_call(site: Site, request: Request) -> tuple[Workspace, SessionRecord]:
    """Like `session_of`, but does not reconcile a known session: the call does that."""
    workspace = await workspace_of(site, request)
    if not workspace.has_session(request.path_params["sid"]):
        await workspace.look(request.path_params["sid"])
    return workspace, workspace.session(request.path_params["sid"])


def prompt_of(request: Request, what: str = "") -> int | str:
    """The seq or run id of the prompt in the path. `what` follows it in the path."""
    name = str(request.path_params["prompt"])
    if not name.endswith(what):
        raise Unknown(f"no such call {request.url.path!r:.200}; /openapi.json lists them")
    name = name.removesuffix(what)
    if name.startswith(RUN):
        return name.removeprefix(RUN)
    if name.isascii() and name.isdigit() and len(name) < 19:
        return int(name)
    raise BadInput(f"prompt: {name!r:.80} does not name a prompt; give its seq, or {RUN}RUN_ID")


def flag_of(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise BadInput(f"{name}: {value!r:.80} is not a boolean; send true or false")
    return value == "true"


def client_of(text: str, where: str = "client_id") -> str:
    try:
        return wire.check_client_id(text)
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from None


def caller_of(request: Request) -> str:
    """The calling client's id, or an empty string if the request has none."""
    named = request.headers.get(wire.CLIENT, "")
    return client_of(named, wire.CLIENT) if named else ""


def refuse_long(site: Site, size: int, attached: bool = False, what: str = "prompt") -> None:
    if size > site.limits.prompt:
        more = " with its attachments" if attached else ""
        raise BadInput(f"{what}: {size:,} characters{more} exceed the limit of {site.limits.prompt:,}; send less")


def seq_of(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadInput(f"before: {text!r:.80} is not a seq; give the seq of a prompt")
    return None if text is None else int(text)


# --- lists, the latest first

async def messages_before(store: Store, session_id: str, before: str | None) -> AsyncIterator[tuple[str, Any]]:
    """The messages with their ids, latest first."""
    piece = await store.messages(session_id, before=before, last=PIECE)
    while piece:
        for message in reversed(piece):
            yield message.id, wire_message(message)
        piece = await store.messages(session_id, before=piece[0].id, last=PIECE) if len(piece) == PIECE else []


async def done_before(store: Store, session_id: str, piece: list[PromptRecord]) -> AsyncIterator[PromptRecord]:
    """The finished prompts, latest first, starting with those already read."""
    while piece:
        for prompt in reversed(piece):
            yield prompt
        piece = await store.prompts(session_id, PIECE, before=piece[0].seq) if len(piece) == PIECE else []


# --- wire types

def describe_workspace(workspace: Workspace) -> wire.Workspace:
    return wire.Workspace(workspace.id, workspace.path, tuple(workspace.clients), workspace.ready)


def describe_session(workspace: Workspace, session: SessionRecord) -> wire.Session:
    runtime = workspace.runtime
    return wire.Session(session.id, session.title, session.created_at, runtime.is_busy(session.id),
                        runtime.is_held(session.id), runtime.mark(session.id))


def describe_agent(workspace: Workspace) -> wire.Agent:
    runtime = workspace.runtime
    return wire.Agent(runtime.is_busy(), workspace.ready and not runtime.closing, runtime.model.name,
                      runtime.model.provider)


def describe_prompt(prompt: PromptRecord, node: str = "") -> wire.Prompt:
    return wire.Prompt(prompt.seq, prompt.session_id, prompt.state.value, prompt.text, prompt.run_id or "",
                       prompt.outcome.value if prompt.outcome else "", tuple(list_names(prompt.attachments)),
                       version=prompt.traits.version, front=prompt.traits.front,
                       node=node if prompt.state is State.ACTIVE else "",
                       asks=tuple(name_question(prompt.seq, n) for n in list_open(prompt.questions)))
