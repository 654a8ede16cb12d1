"""JSON responses. A thin class, because the server sends many."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from ..wire import Problem, to_json

ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
encode = json.JSONEncoder(separators=(",", ":"), default=to_json).encode


class Response:
    """A complete response."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, kind: bytes = b"application/json",
                 headers: Mapping[str, str] | None = None) -> None:
        self.status, self.body = status, body
        self.headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *ALWAYS]
        if headers:
            self.headers += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response with the value, which may be a wire type."""
    return Response(status, encode(value).encode())


def problem(status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """An error response."""
    return Response(status, encode(Problem(message, **more)).encode(), headers=headers)
