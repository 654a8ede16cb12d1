"""The calls of the wire (specs/wire.md), one method each, over TCP or a unix socket."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import httpx2

from cancelmark.model.calls import CALLS_BY_NAME, Call

from .. import wire
from ..wire import Agent, Attachment, Held, Prompt, Replaced, Revoked, Session, Stopped, Version, Workspace
from .errors import BadAnswer, ClientError, Refusal, Unreachable
from .results import Message, read

T = TypeVar("T")

TIMEOUT = httpx2.Timeout(30, connect=5)
LAST_CALL = 2.0  # seconds
PAGE = 1000  # items of a list that are asked for at a time
UNIX = "unix:"
JSON = {"content-type": "application/json"}
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Client:
    """One client of one server: `http://HOST:PORT`, or `unix:PATH`. It has a client id, under which it holds claims on
    workspaces; leaving it releases them.

    Each call raises `Refusal` if the server answers with an error, `Unreachable` if it does not answer, and `BadAnswer`
    if what answers is something else. Plain HTTP and unix sockets are reached directly, never through a proxy.
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
            if self._claims and kind is not asyncio.CancelledError:  # who is in a hurry leaves them to expire
                with suppress(ClientError, TimeoutError):  # a server that has gone holds none
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
        """Gives up all claims of this client."""
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
        """Closes the workspace; with `forget`, deletes everything that the server keeps of it."""
        await self._ask("DELETE", path("workspaces", id) + ("?forget=true" if forget else ""))

    async def create_session(self, workspace: str, title: str) -> Session:
        return await self._post(Session, path("workspaces", workspace, "sessions"), wire.CreateSession(title))

    async def sessions(self, workspace: str, *, latest: int | None = None) -> tuple[Session, ...]:
        """The sessions, in the order in which they were made: all of them, or only the latest."""
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
        """Has a prompt accepted. Nothing is known of its run yet; whoever wants its end subscribes before: `RunStream`.
        Without a run id it may be folded into a turn that is running (R27b). In a session that is busy it waits, or
        `if_busy` is `reject` (a `Refusal` with code `busy`), or `interrupt`."""
        sent = wire.SendPrompt(session, prompt, run_id or None, list(attachments) or None, if_busy or None)
        await self._ask("POST", path("workspaces", workspace, "agent"), sent)

    async def agent_session(self, workspace: str, session: str) -> Session:
        """The session, and whether it is busy."""
        return await self._get(Session, of_session(workspace, session))

    async def call(self, name: str, workspace: str, session: str, prompt: int | str | None = None,
                   **arguments: Any) -> Any:
        """Makes a call of `model.calls.CALLS`, about a prompt if it names one, and returns its answer."""
        request = write_call(CALLS_BY_NAME[name], workspace, session, prompt, **arguments)
        answer = await self._ask(*request)
        kind = getattr(wire, CALLS_BY_NAME[name].answer)
        return None if kind is wire.Done else self._read(kind, answer)

    async def cancel(self, workspace: str, session: str) -> None:
        """Cancels everything that was accepted in the session so far, whoever sent it."""
        await self.call("cancel", workspace, session)

    async def revoke(self, workspace: str, session: str, prompt: int | str) -> Revoked:
        """Cancels one prompt, by its seq or run id. May be repeated."""
        return cast(Revoked, await self.call("revoke", workspace, session, prompt))

    async def stop(self, workspace: str, session: str, *, hold: bool = False, seq: int | None = None) -> Stopped:
        """Cancels the prompt in front, and keeps the queue. Sent again it reaches the next one, unless `seq` says who
        is meant."""
        return cast(Stopped, await self.call("stop", workspace, session, hold=hold, seq=seq))

    async def hold(self, workspace: str, session: str) -> bool:
        """What waits does not start until somebody resumes the session. May be repeated."""
        return cast(Held, await self.call("hold", workspace, session)).held

    async def resume(self, workspace: str, session: str) -> bool:
        """The queue goes on. May be repeated."""
        return cast(Held, await self.call("resume", workspace, session)).held

    async def replace(self, workspace: str, session: str, prompt: int | str, text: str,
                      if_version: int | None = None) -> Replaced:
        """Gives a prompt that has not begun another text. May be repeated. A `Refusal` says where the prompt is."""
        return cast(Replaced, await self.call("replace", workspace, session, prompt, text=text, if_version=if_version))

    async def next(self, workspace: str, session: str, prompt: int | str) -> None:
        """Moves a prompt that waits ahead of all others."""
        await self.call("next", workspace, session, prompt)

    async def waiting(self, workspace: str, session: str) -> tuple[Prompt, ...]:
        """The queued prompts, the next one first."""
        return await self._get(tuple[Prompt, ...], of_session(workspace, session, "prompts", "list") + "?full=true")

    async def prompts(self, workspace: str, session: str) -> tuple[Prompt, ...]:
        """The prompts that are not done, and those that were done last, in order of acceptance."""
        return await self._get(tuple[Prompt, ...], of_session(workspace, session, "prompts"))

    async def prompt(self, workspace: str, session: str, run_id: str) -> Prompt | None:
        """The prompt with that run id, if the server still knows of it; of one that was forgotten, without its text."""
        url = of_session(workspace, session, "prompts")
        found = await self._get(tuple[Prompt, ...], f"{url}?{urlencode({'run_id': run_id}, errors='surrogatepass')}")
        return next((prompt for prompt in found if prompt.run_id == run_id), None)  # some servers list others, too

    async def queued(self, workspace: str, session: str) -> int:
        """How many prompts are queued."""
        return await self._get(int, of_session(workspace, session, "prompts", "queued"))

    async def queue(self, workspace: str, session: str) -> tuple[str, ...]:
        """The texts of the queued prompts, the next one first."""
        return await self._get(tuple[str, ...], of_session(workspace, session, "prompts", "list"))

    async def clear_queue(self, workspace: str, session: str) -> None:
        """Drops what is queued; the active prompt goes on."""
        await self.call("clear_queue", workspace, session)

    async def summarize(self, workspace: str, session: str) -> None:
        await self._ask("POST", of_session(workspace, session, "summarize"))

    # --- asking

    async def _get(self, kind: type[T], url: str) -> T:
        return self._read(kind, await self._ask("GET", url))

    async def _get_pages(self, kind: type[T], url: str, latest: int | None) -> tuple[T, ...]:
        """The items of a list, page by page, or the latest of them. A server that knows no pages gives all at once."""
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
            raise BadAnswer(f"{self.server} does not answer as a server of prompts does: {error}") from error
        if not response.is_success:
            raise refusal(response)
        return response

    def _read(self, kind: type[T], response: httpx2.Response) -> T:
        try:
            return read(kind, json.loads(response.content))
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"{self.server} answers, but not in JSON: something else runs there") from error
        except BadAnswer as error:
            where = f"{response.request.method} {response.request.url.path}"
            raise BadAnswer(f"{self.server} answers {where} in another way than expected: {error}") from error

    def unreachable(self, error: httpx2.TransportError) -> Unreachable:
        """Why nobody answers, in plain words."""
        sent = not isinstance(error, NOT_SENT)
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"{self.server} does not answer in time", sent=sent)
        if not sent:
            return Unreachable(f"nobody answers at {self.server}", sent=False)
        if isinstance(error, httpx2.RemoteProtocolError):
            return Unreachable(f"{self.server} breaks off without a proper answer; perhaps something else runs there",
                               sent=True)
        return Unreachable(f"{self.server} broke the connection", sent=True)


def route(server: str) -> tuple[str, httpx2.AsyncBaseTransport | None]:
    """The base URL of a server, and how to get there if not by the usual way."""
    if server.startswith(UNIX):
        if not server.removeprefix(UNIX):
            raise ValueError(f"{server}: after unix: comes the path of a socket")
        return "http://localhost", httpx2.AsyncHTTPTransport(uds=server.removeprefix(UNIX), verify=False)
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{server}: give http://HOST:PORT, https://HOST or unix:PATH")
    return server, None if parts.scheme == "https" else httpx2.AsyncHTTPTransport(verify=False)


def path(*segments: str) -> str:
    return "/v1/" + "/".join(quote(segment, safe="", errors="surrogatepass") for segment in segments)


def of_session(workspace: str, session: str, *segments: str) -> str:
    return path("workspaces", workspace, "agent", "sessions", session, *segments)


def of_prompt(workspace: str, session: str, prompt: int | str) -> str:
    """A prompt by its seq, or by its run id."""
    return of_session(workspace, session, "prompts", str(prompt) if isinstance(prompt, int) else f"run:{prompt}")


def write_call(call: Call, workspace: str, session: str, prompt: int | str | None = None, **arguments: Any,
               ) -> tuple[str, str, wire.Request | None]:
    """The method, the URL and the body of a call. The arguments are those of the runtime's method."""
    assert (prompt is not None) is call.names_prompt, f"{call.name} is about a prompt, or about a session"
    where = of_session(workspace, session) if prompt is None else of_prompt(workspace, session, prompt)
    sent = {name: arguments[argument] for name, argument in call.takes.items() if argument in arguments}
    return call.method, where + call.path, getattr(wire, call.sent)(**sent) if call.sent else None


def earlier(response: httpx2.Response) -> str | None:
    """The query that asks for the page before this one, if there is one."""
    link = response.links.get("prev", {}).get("url")
    return None if link is None else urlsplit(link).query


def refusal(response: httpx2.Response) -> Refusal:
    """An error as the server tells it; if it tells nothing that can be read, its status."""
    try:
        told = read(wire.Problem, json.loads(response.content))
    except (ValueError, BadAnswer, RecursionError):
        told = wire.Problem("")
    try:
        after = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        after = None
    return Refusal(response.status_code, told.message, after, told)
