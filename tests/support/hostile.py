"""A server of prompts that misbehaves as a test tells it to, on real sockets."""

import json
from asyncio import Event
from collections.abc import Callable, Mapping

from support.openai_server import Act, Framing, Received, Reply, Server

Route = Reply | Callable[[Received], Reply]

EVENTS = "GET /v1/workspaces/w/events"
POST = "POST /v1/workspaces/w/agent"
STATUS = "GET /v1/workspaces/w/agent/sessions/s"


class Hostile(Server):
    """Answers each request by its route, `METHOD /path`; the query is not part of it. A route is a reply, a function
    that makes one, or several of these: one for each request, and the last for all that follow."""

    def __init__(self, routes: Mapping[str, Route | list[Route]]) -> None:
        super().__init__()
        self._routes = {name: list(route) if isinstance(route, list) else [route] for name, route in routes.items()}

    @property
    def address(self) -> str:
        return self.url.removesuffix("/v1")

    def to(self, route: str) -> list[Received]:
        """The requests of one route."""
        return [received for received in self.received if name(received) == route]

    def reply(self, received: Received) -> Reply:
        routes = self._routes.get(name(received)) or [says(404, {"message": f"no route {name(received)}"})]
        route = routes.pop(0) if len(routes) > 1 else routes[0]
        return route(received) if callable(route) else route


def name(received: Received) -> str:
    return f"{received.method} {received.path.partition('?')[0]}"


def says(status: int, body: object, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer that is no stream; the body is JSON unless it is given as bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply((content,), status, headers if headers is not None else {"content-type": "application/json"})


ACCEPTED = says(202, {})


def envelope(type: str, /, **payload: object) -> dict[str, object]:
    return {"type": type, "payload": {"type": "updated", "payload": payload}}


def event(id: str | int | None, type: str, /, **payload: object) -> bytes:
    """One event as it is on the wire."""
    place = b"" if id is None else f"id: {id}\n".encode()
    return place + b"data: " + json.dumps(envelope(type, **payload)).encode() + b"\n\n"


def ended(id: str | int | None, run_id: str, session_id: str = "s", /, **more: object) -> bytes:
    """A terminal event."""
    return event(id, "run_complete", session_id=session_id, run_id=run_id, **more)


def place(id: str | int) -> bytes:
    """Says how far the stream has come."""
    return f"id: {id}\n\n".encode()


def stream(*pieces: bytes | Act | Event, framing: Framing = Framing.CHUNKED) -> Reply:
    """A stream of events, which ends after the last piece unless that says otherwise."""
    return Reply(pieces, headers={"content-type": "text/event-stream; charset=utf-8"}, framing=framing)


def open_stream(*pieces: bytes | Event) -> Reply:
    """A stream that stays open."""
    return stream(*pieces, Act.HOLD)
