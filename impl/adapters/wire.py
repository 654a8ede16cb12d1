"""The adapter for servers that speak the wire protocol of specs/wire.md."""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2

from cancelmark.conformance import adapter
from cancelmark.conformance.adapter import Ended, Event, Refused, Sent, ServerGone, Spoken
from cancelmark.conformance.adapter.interface import FAMILY
from cancelmark.conformance.adapter.table import TableAdapter
from cancelmark.model.calls import ClientCall
from cancelmark.model.wire import RunComplete

from .. import wire
from ..client import Client, ClientError
from ..client.calls import path, refusal, write_call
from ..client.errors import BadAnswer, Refusal, Unreachable
from ..client.results import Notice, read
from ..sse import Parser
from ..wire import AgentEvent
from .connections import Connections

WINDOW = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)]  # bytes buffered for a subscriber that does not read
ANSWER = 5.0  # seconds for the response to a prompt whose terminal event has already arrived
LATEST = 4  # sessions that an additional client reads
REFUSALS = (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class JudgedClient(Client):
    """A client that raises `ServerGone` if the server is unreachable."""

    async def _ask(self, method: str, url: str, sent: wire.Request | None = None) -> httpx2.Response:
        try:
            return await super()._ask(method, url, sent)
        except Unreachable as error:
            raise ServerGone(str(error)) from error


class NodeConnections(NamedTuple):
    """The connections to a server, or to one node of a cluster."""

    client: JudgedClient
    connections: Connections
    http: httpx2.AsyncClient  # for streams


class OpenWireAdapter(TableAdapter):
    """The adapter for a server that the kit must not close. All histories use one workspace, and new sessions each.

    Events are read without deduplication: unlike `client.Events`, this must notice a terminal event that arrives twice.

    Several addresses are nodes of one cluster, judged as one server: each call, and each subscription, goes to a random
    node.
    """

    outside = run_ids = True
    outgrows = "error"

    def __init__(self, *servers: str, token: str | None = None, workspace: str = "/cancelmark-conform",
                 identifies_by_seq: bool = True, grace: float | None = None, offered: Collection[str] = ()) -> None:
        """`identifies_by_seq`: a terminal event names a prompt that has no run id, by its seq. `grace`: see `Adapter`.
        `offered`: the server's optional calls, from `find_calls`."""
        self.servers, self.token, self.place = servers, token, workspace
        self.server = ", ".join(servers)
        self.reached: list[NodeConnections] = []
        self.random = Random()
        self.folds, self.grace = identifies_by_seq, grace
        self.offered, self.if_busy = offered, frozenset({"reject", "interrupt"}.intersection(offered))
        self.after = ""
        self.names: dict[int, str] = {}  # of prompts, by seq; those with a run id only if it has optional calls
        self.named = asyncio.Event()
        self.closed = False
        self.stack, self.watching = AsyncExitStack(), AsyncExitStack()

    def offers(self, what: str) -> bool:
        return super().offers(what) and (what not in FAMILY or what in self.offered)

    async def open(self) -> None:
        self.client_id = str(uuid4())
        self.reached = [await self.reach(server) for server in self.servers]
        await self.open_workspace()
        await self.come_back()

    async def reach(self, server: str) -> NodeConnections:
        client = await self.stack.enter_async_context(
            JudgedClient(server, token=self.token, client_id=self.client_id))
        connections = Connections(server, self.token)
        self.stack.push_async_callback(connections.close)
        http = client.http
        if server.startswith("http:"):
            transport = httpx2.AsyncHTTPTransport(verify=False, socket_options=WINDOW)
            http = await self.stack.enter_async_context(
                httpx2.AsyncClient(base_url=server, transport=transport, headers=client.http.headers))
        return NodeConnections(client, connections, http)

    @property
    def client(self) -> JudgedClient:
        """The client of the server; in a cluster, of a random node each time."""
        return self.random.choice(self.reached).client

    @property
    def connections(self) -> Connections:
        return self.random.choice(self.reached).connections

    async def open_workspace(self) -> None:
        self.id = (await self.client.open_workspace(self.place)).id
        await self.client.init_agent(self.id, interactive=False)

    async def warm(self, n: int) -> None:
        for one in self.reached:
            await one.connections.warm(n)

    async def close(self) -> None:
        await self.leave()
        await self.stack.aclose()

    async def session(self) -> str:
        return (await self.client.create_session(self.id, "conformance")).id

    async def accept(self, session: str, prompt: Sent) -> None:
        try:
            answer = await self.post(
                path("workspaces", self.id, "agent"),
                wire.SendPrompt(session, prompt.text, prompt.run_id, if_busy=prompt.if_busy or None))
        except Refusal as no:
            if no.status in REFUSALS or (self.closed and no.status == HTTPStatus.NOT_FOUND):
                raise Refused(str(no)) from no
            raise
        if prompt.run_id is None or self.offered:
            self.names[read(wire.Accepted, answer.json()).seq] = prompt.name
            self.named.set()

    async def lose(self, session: str, prompt: Sent) -> None:
        sent = wire.SendPrompt(session, prompt.text, prompt.run_id, if_busy=prompt.if_busy or None)
        await self.connections.send_and_leave("POST", path("workspaces", self.id, "agent"), wire.to_json(sent))

    async def post(self, url: str, sent: wire.Request | None = None, method: str = "POST") -> httpx2.Response:
        """Make a call that may race with others: on an open connection, in one write."""
        answer = await self.connections.ask(method, url, wire.to_json(sent) if sent else None)
        if not answer.is_success:
            raise refusal(answer)
        return answer

    async def make_call(
        self, call: ClientCall, session: str, prompt: Sent | None = None, **arguments: Any,
    ) -> httpx2.Response:
        """Make a call. Raises `Refused` if it names a prompt for which it comes too early or too late."""
        key = self.key_of(prompt) if prompt else None
        method, url, sent = write_call(call, self.id, session, key, **arguments)
        try:
            return await self.post(url, sent, method)
        except Refusal as no:
            if prompt and no.status in (*REFUSALS, HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED):
                raise Refused(str(no)) from no
            raise

    def key_of(self, prompt: Sent) -> int | str:
        return prompt.run_id or next(seq for seq, name in self.names.items() if name == prompt.name)

    async def name_stopped(self, answer: httpx2.Response) -> str | None:
        """The name of the stopped prompt; None if the response with its seq has not arrived yet."""
        seq = read(wire.Stopped, answer.json()).stopped
        return self.names.get(seq) if seq else ""

    # --- state

    async def queued(self, session: str) -> int:
        return await self.client.queued(self.id, session)

    async def messages(self, session: str) -> Sequence[Spoken]:
        return [Spoken(m.role, m.text, m.finish_reason) for m in await self.client.messages(self.id, session)]

    # --- events

    async def events(self) -> AsyncIterator[Event]:
        parser = Parser()
        with suppress(httpx2.TransportError):
            async for piece in self.stream.aiter_bytes():
                for event in parser.feed(piece):
                    self.after = event.id or self.after
                    if event.data is not None and (told := await self.tell_event(event.id, event.data)):
                        yield told
        raise ServerGone(f"{self.server} ended its event stream")

    async def tell_event(self, id: str, data: str) -> Event | None:
        try:
            payload = Notice.read(id, data).payload
        except BadAnswer as error:
            raise ClientError(f"{self.server} sent a malformed event: {error}") from error
        if isinstance(payload, RunComplete):
            name = payload.run_id or await self.name_of(payload)
            return Ended(name, payload.outcome, payload.text or None, payload.error or None)
        if isinstance(payload, AgentEvent) and payload.error:
            return adapter.Notice(payload.run_id, payload.error)
        return None

    async def name_of(self, end: RunComplete) -> str:
        """The name of a prompt without a run id. Its terminal event may arrive before the response with its seq."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                while end.seq not in self.names:
                    self.named.clear()
                    await self.named.wait()
        return self.names.get(end.seq, f"the prompt {end.seq}")

    @property
    def has_place(self) -> bool:
        return bool(self.after)

    async def leave(self) -> None:
        await self.watching.aclose()

    async def come_back(self) -> None:
        self.watching = AsyncExitStack()
        try:
            self.stream = await self.watch(self.client_id, self.watching)
        except Refusal as no:
            if no.status != HTTPStatus.NOT_FOUND or self.grace is None:
                raise
            await self.open_workspace()  # closed after the grace period; the outcomes of its prompts are judged
            self.stream = await self.watch(self.client_id, self.watching)

    async def watch(self, client_id: str, until: AsyncExitStack) -> httpx2.Response:
        """The event stream for this client, from its last offset."""
        headers = {"accept": "text/event-stream", **({"last-event-id": self.after} if self.after else {})}
        try:
            stream = await until.enter_async_context(self.random.choice(self.reached).http.stream(
                "GET", path("workspaces", self.id, "events"), params={"client_id": client_id},
                headers=headers, timeout=httpx2.Timeout(120, connect=5)))
        except httpx2.TransportError as error:
            raise ServerGone(f"{self.server} closed the connection") from error
        if stream.status_code != HTTPStatus.OK:
            await stream.aread()
            raise refusal(stream)
        return stream

    async def slow(self) -> None:
        """Do nothing: the kit does not read `events`, so the stream is not read."""

    async def attach(self) -> None:
        """Connect another client that opens the workspace, reads its sessions, and reads events until `close`."""
        server = self.random.choice(self.servers)
        other = await self.stack.enter_async_context(JudgedClient(server, token=self.token))
        await other.open_workspace(self.place)
        for session in await other.sessions(self.id, latest=LATEST):
            await other.messages(self.id, session.id)
        watching = await self.stack.enter_async_context(AsyncExitStack())
        reading = asyncio.create_task(self.read_all(await self.watch(other.client_id, watching)), name="another client")
        watching.callback(reading.cancel)

    async def read_all(self, stream: httpx2.Response) -> None:
        with suppress(httpx2.TransportError):
            async for _ in stream.aiter_bytes():
                """Discard the events of the additional client."""


class WireAdapter(OpenWireAdapter):
    """The adapter for a server whose workspace the kit may close. A workspace is what the rules call a server."""

    async def shut(self) -> None:
        self.closed = True
        await self.client.delete_workspace(self.id)
