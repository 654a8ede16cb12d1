"""One side of a line-based JSON-RPC 2.0 connection: an editor's or an agent's.

Each message is handled before the next line is read. So a cancel that was written after a prompt is handled after that
prompt.
"""

import json
from asyncio import Future, StreamReader, get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

PARSE, INVALID, UNKNOWN, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
LONGEST = 64 * 1024 * 1024  # maximum bytes of a line


@dataclass(frozen=True)
class RpcResponse:
    """The other side's response to a request."""

    result: Any = None
    error: str | None = None
    code: int = 0

    def value(self) -> Any:
        if self.error is not None:
            raise AnsweredError(self.error, self.code)
        return self.result


@dataclass(frozen=True)
class RpcCall:
    """A request from the other side, or a notification if it has no id."""

    id: int | str | None
    method: str
    params: dict[str, Any]


class AnsweredError(Exception):
    """The other side responded to a request with an error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class LineSink(Protocol):
    """A sink for lines."""

    def write(self, data: bytes) -> None: ...


class Peer:
    """Writes without waiting; `listen` reads until the other side closes."""

    def __init__(self, reader: StreamReader, writer: LineSink) -> None:
        self._reader, self._writer = reader, writer
        self._said = b""  # buffered output
        self._requests: dict[int, Callable[[RpcResponse], None]] = {}

    # --- writing

    def send_request(self, method: str, params: dict[str, Any], then: Callable[[RpcResponse], None]) -> None:
        """Writes a request. `then` is called with the response, and again if the other side wrongly responds twice."""
        id = len(self._requests) + 1
        self._requests[id] = then
        self._write({"id": id, "method": method, "params": params})

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Writes a request and waits for its result. Raises `AnsweredError`."""
        answered: Future[RpcResponse] = get_running_loop().create_future()
        self.send_request(method, params, lambda answer: None if answered.done() else answered.set_result(answer))
        return (await answered).value()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._write({"method": method, "params": params})

    def reply(self, call: RpcCall, result: Any) -> None:
        """Responds to a request; a notification has no response."""
        if call.id is not None:
            self._write({"id": call.id, "result": result})

    def refuse(self, call: RpcCall, code: int, message: str) -> None:
        if call.id is not None:
            self._write({"id": call.id, "error": {"code": code, "message": message}})

    def _write(self, message: dict[str, Any]) -> None:
        """Buffers a message; the messages of one event loop iteration go out in one write. A lone surrogate, which JSON
        allows and UTF-8 does not, becomes a question mark."""
        if not self._said:
            get_running_loop().call_soon(self._flush)
        self._said += json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode(errors="replace") + b"\n"

    def _flush(self) -> None:
        said, self._said = self._said, b""
        self._writer.write(said)

    # --- reading

    async def listen(self, hear: Callable[[RpcCall], None]) -> None:
        """Reads until the other side closes. Calls `hear` with each request and notification before reading the next
        line. Responds with an error to a malformed, oversized or too deeply nested message, and continues."""
        while True:
            try:
                line = await self._reader.readline()
                if not line:
                    return
                malformed = bool(line.strip()) and not self._take(json.loads(line), hear)
            except (ValueError, RecursionError):
                malformed = True
            if malformed:
                self._write({"id": None, "error": {"code": PARSE, "message": "malformed JSON-RPC message"}})

    def _take(self, message: Any, hear: Callable[[RpcCall], None]) -> bool:
        """Handles a message. Returns whether it is valid JSON-RPC."""
        id = message.get("id") if isinstance(message, dict) else None
        if not isinstance(id, int | str | None):
            return False
        match message:
            case {"method": str(method)}:
                params = message.get("params")
                hear(RpcCall(id, method, params if isinstance(params, dict) else {}))
                return True
            case {"error": dict(error)}:
                code = error.get("code")
                answer = RpcResponse(error=_error_text(error), code=code if isinstance(code, int) else 0)
            case {"result": result}:
                answer = RpcResponse(result)
            case _:
                return False
        if isinstance(id, int) and (then := self._requests.get(id)):
            then(answer)
        return True


def _error_text(error: dict[str, Any]) -> str:
    """The text of an error, with the details that some agents put into its `data`."""
    data = error.get("data")
    detail = data.get("details") or data.get("message") or "" if isinstance(data, dict) else data or ""
    return " ".join(str(part) for part in (error.get("message"), detail) if part)
