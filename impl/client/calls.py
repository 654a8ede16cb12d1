"""The calls of the wire protocol (specs/wire.md), one method each, over TCP or a Unix socket."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import httpx2

from cancelmark.model.calls import CALLS_BY_NAME, ClientCall

from .. import wire
from ..wire import (
    Agent,
    Ask,
    AskAnswered,
    Attachment,
    Held,
    Prompt,
    Replaced,
    Revoked,
    Session,
    Stopped,
    Version,
    Workspace,
)
from .errors import BadAnswer, ClientError, Refusal, Unreachable
from .results import Message, read

T = TypeVar("T")

TIMEOUT = httpx2.Timeout(30, connect=5)
LAST_CALL = 2.0  # seconds for the release on exit
PAGE = 1000  # items per page of a list
UNIX = "unix:"
JSON = {"content-type": "application/json"}
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Client:
    """One client of one server: `http://HOST:PORT`, or `unix:PATH`. Its client id holds claims on workspaces; exiting
    the `async with` block releases them.

    Each call raises `Refusal` if the server responds with an error, `Unreachable` if it does not respond, and
    `BadAnswer` if the response does not follow the protocol. Plain HTTP and Unix sockets never use a proxy.
    """

    def __init__(self, server: str, *, token: str | None = None, client_id: str | None = None) -> None:
        self.server, self.client_id = server, client_id or str(uuid4())
        self._claims = False
        headers = {"user-agent": "cancelmark", wire.CLIENT: self.client_id}
        if token:
            headers["authorization"] = f"Bearer {token}"
        base, transport = route(server)
        self.http = httpx2.AsyncClient(base_url=base, transport=transport, headers=headers, timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._claims and kind is not asyncio.CancelledError:  # when canceled, let the claims expire
                with suppress(ClientError, TimeoutError):  # without a server there are no claims
                    async with asyncio.timeout(LAST_CALL):
                        await self.release()
        finally:
            await self.http.aclose()

    # --- the server

    async def health(self) -> None:
        await self._ask("GET", "/v1/health")

    async def version(self) -> Version:
        return await self._get(Version, "/v1/version")

    async def release(self) -> None:
        """Releases all claims of this client."""
        await self._ask("DELETE", path("clients", self.client_id))
        self._claims = False

    # --- workspaces and sessions

    async def open_workspace(self, directory: str) -> Workspace:
        """The workspace of this directory, claimed for this client."""
        self._claims = True
        return await self._post(Workspace, "/v1/workspaces", wire.OpenWorkspace(directory, self.client_id))

    async def workspaces(self) -> tuple[Workspace, ...]:
        return await self._get(tuple[Workspace, ...], "/v1/workspaces")

    async def workspace(self, id: str) -> Workspace:
        return await self._get(Workspace, path("workspaces", id))

    async def delete_workspace(self, id: str, *, forget: bool = False) -> None:
        """Closes the workspace; with `forget`, also deletes its data."""
        await self._ask("DELETE", path("workspaces", id) + ("?forget=true" if forget else ""))

    async def create_session(self, workspace: str, title: str) -> Session:
        return await self._post(Session, path("workspaces", workspace, "sessions"), wire.CreateSession(title))

    async def sessions(self, workspace: str, *, latest: int | None = None) -> tuple[Session, ...]:
        """The sessions in order of creation: all of them, or only the latest."""
        return await self._get_pages(Session, path("workspaces", workspace, "sessions"), latest)

    async def session(self, workspace: str, id: str) -> Session:
        return await self._get(Session, path("workspaces", workspace, "sessions", id))

    async def messages(self, workspace: str, session: str, *, latest: int | None = None) -> tuple[Message, ...]:
        """The messages, in order: all of them, or only the latest."""
        return await self._get_pages(Message, path("workspaces", workspace, "sessions", session, "messages"), latest)

    # --- prompts

    async def init_agent(self, workspace: str, *, interactive: bool = True) -> None:
        """Prepares the workspace for prompts."""
        await self._ask("POST", path("workspaces", workspace, "agent", "init"), wire.InitAgent(interactive))

    async def agent(self, workspace: str) -> Agent:
        return await self._get(Agent, path("workspaces", workspace, "agent"))

    async def send(self, workspace: str, session: str, prompt: str, run_id: str = "",
                   attachments: Sequence[Attachment] = (), if_busy: str = "") -> None:
        """Sends a prompt, and returns once it is accepted. To wait for its terminal event, subscribe first: use
        `RunStream`. A prompt without a run id may be folded into a running turn. In a busy session the prompt
        waits, unless `if_busy` is `reject` (raises `Refusal` with code `busy`) or `interrupt`."""
        sent = wire.SendPrompt(session, prompt, run_id or None, list(attachments) or None, if_busy or None)
        await self._ask("POST", path("workspaces", workspace, "agent"), sent)

    async def agent_session(self, workspace: str, session: str) -> Session:
        """The session, and whether it is busy."""
        return await self._get(Session, of_session(workspace, session))

    async def call(self, name: str, workspace: str, session: str, prompt: int | str | None = None,
                   **arguments: Any) -> Any:
        """Makes a call of `model.calls.CALLS`, on a prompt if one is given, and returns the response."""
        request = write_call(CALLS_BY_NAME[name], workspace, session, prompt, **arguments)
        answer = await self._ask(*request)
        kind = getattr(wire, CALLS_BY_NAME[name].answer)
        return None if kind is wire.Done else self._read(kind, answer)

    async def cancel(self, workspace: str, session: str) -> None:
        """Cancels every prompt that the session has accepted so far, from any client."""
        await self.call("cancel", workspace, session)

    async def revoke(self, workspace: str, session: str, prompt: int | str) -> Revoked:
        """Cancels one prompt, by its seq or run id. Idempotent."""
        return cast(Revoked, await self.call("revoke", workspace, session, prompt))

    async def stop(self, workspace: str, session: str, *, hold: bool = False, seq: int | None = None) -> Stopped:
        """Cancels the active prompt (or the next to start) and keeps the queue. A repeated call stops the next prompt,
        unless `seq` names the prompt to stop."""
        return cast(Stopped, await self.call("stop", workspace, session, hold=hold, seq=seq))

    async def hold(self, workspace: str, session: str) -> bool:
        """Keeps queued prompts from starting until a client resumes the session. Idempotent."""
        return cast(Held, await self.call("hold", workspace, session)).held

    async def resume(self, workspace: str, session: str) -> bool:
        """Releases the hold. Idempotent."""
        return cast(Held, await self.call("resume", workspace, session)).held

    async def replace(self, workspace: str, session: str, prompt: int | str, text: str,
                      if_version: int | None = None) -> Replaced:
        """Replaces the text of a prompt that has not started. Idempotent. If it is too late, raises `Refusal` with the
        prompt's state."""
        return cast(Replaced, await self.call("replace", workspace, session, prompt, text=text, if_version=if_version))

    async def next(self, workspace: str, session: str, prompt: int | str) -> None:
        """Moves a waiting prompt to the front of the queue."""
        await self.call("next", workspace, session, prompt)

    async def waiting(self, workspace: str, session: str) -> tuple[Prompt, ...]:
        """The queued prompts, the next one first."""
        return await self._get(tuple[Prompt, ...], of_session(workspace, session, "prompts", "list") + "?full=true")

    async def prompts(self, workspace: str, session: str) -> tuple[Prompt, ...]:
        """The unfinished prompts and the most recent finished ones, in order of acceptance."""
        return await self._get(tuple[Prompt, ...], of_session(workspace, session, "prompts"))

    async def prompt(self, workspace: str, session: str, run_id: str) -> Prompt | None:
        """The prompt with this run id, or None if the server does not know it. Its text is empty if it is deleted."""
        url = of_session(workspace, session, "prompts")
        found = await self._get(tuple[Prompt, ...], f"{url}?{urlencode({'run_id': run_id}, errors='surrogatepass')}")
        return next((prompt for prompt in found if prompt.run_id == run_id), None)  # some servers ignore the query

    async def queued(self, workspace: str, session: str) -> int:
        """The number of queued prompts."""
        return await self._get(int, of_session(workspace, session, "prompts", "queued"))

    async def queue(self, workspace: str, session: str) -> tuple[str, ...]:
        """The texts of the queued prompts, the next one first."""
        return await self._get(tuple[str, ...], of_session(workspace, session, "prompts", "list"))

    async def asks(self, workspace: str, session: str, *, ended: bool = False) -> tuple[Ask, ...]:
        """The open questions of the session's turns; with `ended`, also recent ones that have ended."""
        return await self._get(tuple[Ask, ...], of_session(workspace, session, "asks") + ("?all=true" if ended else ""))

    async def answer(self, workspace: str, session: str, ask: str, answer: str, *, option: str = "", value: Any = None,
                     text: str = "") -> AskAnswered:
        """Answers a question (`SEQ.N`) with `allow` or `deny`. The first answer wins; the same answer again has no
        effect. A late caller gets a `Refusal` whose `problem.ask` is the question as it ended."""
        sent = wire.AnswerAsk(answer, option or None, value, text or None)
        return await self._post(AskAnswered, of_session(workspace, session, "asks", ask), sent)

    async def clear_queue(self, workspace: str, session: str) -> None:
        """Drops all queued prompts; the active prompt continues."""
        await self.call("clear_queue", workspace, session)

    async def summarize(self, workspace: str, session: str) -> None:
        await self._ask("POST", of_session(workspace, session, "summarize"))

    # --- requests

    async def _get(self, kind: type[T], url: str) -> T:
        return self._read(kind, await self._ask("GET", url))

    async def _get_pages(self, kind: type[T], url: str, latest: int | None) -> tuple[T, ...]:
        """The items of a list, page by page, or the latest of them. A server without pagination returns all at once."""
        backwards: list[T] = []
        query: str | None = urlencode({} if latest is None else {"limit": min(latest, PAGE)})
        while query is not None and (latest is None or len(backwards) < latest):
            response = await self._ask("GET", f"{url}?{query}" if query else url)
            page: tuple[T, ...] = self._read(tuple[kind, ...], response)  # type: ignore[valid-type]
            backwards += reversed(page)
            query = earlier(response) if page else None
        return tuple(reversed(backwards[:latest]))

    async def _post(self, kind: type[T], url: str, sent: wire.Request) -> T:
        return self._read(kind, await self._ask("POST", url, sent))

    async def _ask(self, method: str, url: str, sent: wire.Request | None = None) -> httpx2.Response:
        try:
            body = json.dumps(sent, default=wire.to_json).encode() if sent else None
            response = await self.http.request(method, url, content=body, headers=JSON if sent else None)
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        except (httpx2.DecodingError, httpx2.InvalidURL) as error:
            raise BadAnswer(f"{self.server} sent an invalid response: {error}; check the address") from error
        if not response.is_success:
            raise refusal(response)
        return response

    def _read(self, kind: type[T], response: httpx2.Response) -> T:
        try:
            return read(kind, json.loads(response.content))
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"{self.server} does not respond with JSON; check the address") from error
        except BadAnswer as error:
            where = f"{response.request.method} {response.request.url.path}"
            raise BadAnswer(f"{self.server} sent an unexpected response to {where}: {error}") from error

    def unreachable(self, error: httpx2.TransportError) -> Unreachable:
        """The error as `Unreachable`, with a plain message."""
        sent = not isinstance(error, NOT_SENT)
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"{self.server} did not respond in time", sent=sent)
        if not sent:
            return Unreachable(f"cannot connect to {self.server}", sent=False)
        if isinstance(error, httpx2.RemoteProtocolError):
            return Unreachable(f"{self.server} closed the connection without a valid response; check the address",
                               sent=True)
        return Unreachable(f"{self.server} closed the connection", sent=True)


def route(server: str) -> tuple[str, httpx2.AsyncBaseTransport | None]:
    """The base URL of a server, and its transport, if it is not the default. Raises `ValueError`."""
    if server.startswith(UNIX):
        if not server.removeprefix(UNIX):
            raise ValueError(f"{server}: missing socket path; expected unix:PATH")
        return "http://localhost", httpx2.AsyncHTTPTransport(uds=server.removeprefix(UNIX), verify=False)
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{server}: invalid address; expected http://HOST:PORT, https://HOST or unix:PATH")
    return server, None if parts.scheme == "https" else httpx2.AsyncHTTPTransport(verify=False)


def path(*segments: str) -> str:
    return "/v1/" + "/".join(quote(segment, safe="", errors="surrogatepass") for segment in segments)


def of_session(workspace: str, session: str, *segments: str) -> str:
    return path("workspaces", workspace, "agent", "sessions", session, *segments)


def of_prompt(workspace: str, session: str, prompt: int | str) -> str:
    """The path of a prompt, by its seq or its run id."""
    return of_session(workspace, session, "prompts", str(prompt) if isinstance(prompt, int) else f"run:{prompt}")


def write_call(call: ClientCall, workspace: str, session: str, prompt: int | str | None = None, **arguments: Any,
               ) -> tuple[str, str, wire.Request | None]:
    """The method, the URL and the body of a call. The arguments are those of the runtime's method."""
    assert (prompt is not None) is call.names_prompt, f"{call.name}: prompt missing or unexpected"
    where = of_session(workspace, session) if prompt is None else of_prompt(workspace, session, prompt)
    sent = {name: arguments[argument] for name, argument in call.takes.items() if argument in arguments}
    return call.method, where + call.path, getattr(wire, call.sent)(**sent) if call.sent else None


def earlier(response: httpx2.Response) -> str | None:
    """The query for the previous page, or None."""
    link = response.links.get("prev", {}).get("url")
    return None if link is None else urlsplit(link).query


def refusal(response: httpx2.Response) -> Refusal:
    """The server's error response as a `Refusal`; without a message if the body cannot be read."""
    try:
        told = read(wire.Problem, json.loads(response.content))
    except (ValueError, BadAnswer, RecursionError):
        told = wire.Problem("")
    try:
        after = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        after = None
    return Refusal(response.status_code, told.message, after, told)
