"""Any server that speaks the wire of specs/wire.md, under the conformance kit."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus

import httpx2

from cancelmark.conformance import adapter
from cancelmark.conformance.adapter import Adapter, Ended, Event, Refused, Sent, Spoken
from cancelmark.model.wire import RunComplete

from ..client import Client, ClientError
from ..client.calls import path, refusal
from ..client.errors import BadAnswer, Refusal
from ..client.results import Notice
from ..client.sse import Parser
from ..wire import AgentEvent

NO = (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class OpenWireAdapter(Adapter):
    """A server at an address, which is never closed. All histories use one workspace, and each has sessions of its own.

    Events are read as they come: unlike `client.Events`, which shows no end twice, this must see if one comes twice.
    """

    outside = True

    def __init__(self, server: str, token: str | None = None, workspace: str = "/cancelmark-conform") -> None:
        self.server, self.token, self.place = server, token, workspace
        self.after = ""
        self.closed = False
        self.stack, self.watching = AsyncExitStack(), AsyncExitStack()

    async def open(self) -> None:
        self.client = await self.stack.enter_async_context(Client(self.server, token=self.token))
        self.id = (await self.client.open_workspace(self.place)).id
        await self.client.init_agent(self.id, interactive=False)
        await self.come_back()

    async def close(self) -> None:
        await self.leave()
        await self.stack.aclose()

    async def session(self) -> str:
        return (await self.client.create_session(self.id, "conformance")).id

    async def accept(self, session: str, prompt: Sent) -> None:
        try:
            await self.client.send(self.id, session, prompt.text, prompt.run_id or "")
        except Refusal as no:
            if no.status in NO or (self.closed and no.status == HTTPStatus.NOT_FOUND):
                raise Refused(str(no)) from no
            raise

    async def cancel(self, session: str) -> None:
        await self.client.cancel(self.id, session)

    async def clear(self, session: str) -> None:
        await self.client.clear_queue(self.id, session)

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
                    if event.data is not None and (told := self.read(event.id, event.data)):
                        yield told
        if not self.closed:  # what should have come on it would be taken for missing
            raise ClientError(f"{self.server} has ended its stream of events")

    def read(self, id: str, data: str) -> Event | None:
        try:
            payload = Notice.read(id, data).payload
        except BadAnswer as error:
            raise ClientError(f"{self.server} sends what cannot be read: {error}") from error
        if isinstance(payload, RunComplete):
            return Ended(payload.run_id, payload.outcome, payload.text or None, payload.error or None)
        if isinstance(payload, AgentEvent) and payload.error:
            return adapter.Notice(payload.run_id, payload.error)
        return None

    async def leave(self) -> None:
        await self.watching.aclose()

    async def come_back(self) -> None:
        self.watching = AsyncExitStack()
        headers = {"accept": "text/event-stream", **({"last-event-id": self.after} if self.after else {})}
        try:
            self.stream = await self.watching.enter_async_context(self.client.http.stream(
                "GET", path("workspaces", self.id, "events"), params={"client_id": self.client.client_id},
                headers=headers, timeout=httpx2.Timeout(120, connect=5)))
        except httpx2.TransportError as error:
            raise ClientError(f"{self.server} broke the connection") from error
        if self.stream.status_code != HTTPStatus.OK:
            await self.stream.aread()
            raise refusal(self.stream)


class WireAdapter(OpenWireAdapter):
    """The same with a close: of the workspace, which is what the rules call a server."""

    async def shut(self) -> None:
        self.closed = True
        await self.client.delete_workspace(self.id)
