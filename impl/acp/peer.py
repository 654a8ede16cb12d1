"""One side of a JSON-RPC 2.0 connection over lines: an editor's or an agent's.

Whatever comes is handled in the order in which it came, before the next line is read. So a cancel that was written
after a prompt is heard after that prompt, whatever each of them leads to.
"""

import json
from asyncio import Future, StreamReader, get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

PARSE, INVALID, UNKNOWN, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
LONGEST = 64 * 1024 * 1024  # bytes of a line


@dataclass(frozen=True)
class Answer:
    """What the other side has answered to a request."""

    result: Any = None
    error: str | None = None
    code: int = 0

    def value(self) -> Any:
        if self.error is not None:
            raise AnsweredError(self.error, self.code)
        return self.result


@dataclass(frozen=True)
class Call:
    """A request of the other side, or a notification if it has no id."""

    id: int | str | None
    method: str
    params: dict[str, Any]


class AnsweredError(Exception):
    """The other side has answered a request with an error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class Writes(Protocol):
    """Where lines are written to."""

    def write(self, data: bytes) -> None: ...


class Peer:
    """Writes without waiting; `listen` reads until the other side has gone."""

    def __init__(self, reader: StreamReader, writer: Writes) -> None:
        self._reader, self._writer = reader, writer
        self._said = b""  # and not written yet
        self._asked: dict[int, Callable[[Answer], None]] = {}
        self.strange: list[bytes] = []
        """Lines that are no message of JSON-RPC."""

    # --- speaking

    def ask(self, method: str, params: dict[str, Any], then: Callable[[Answer], None]) -> None:
        """Writes a request. `then` is called with each answer that comes, of which there should be one."""
        id = len(self._asked) + 1
        self._asked[id] = then
        self._write({"id": id, "method": method, "params": params})

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Writes a request, and waits for its result. Raises `AnsweredError`."""
        answered: Future[Answer] = get_running_loop().create_future()
        self.ask(method, params, lambda answer: None if answered.done() else answered.set_result(answer))
        return (await answered).value()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._write({"method": method, "params": params})

    def reply(self, call: Call, result: Any) -> None:
        """Answers a request; a notification has no answer."""
        if call.id is not None:
            self._write({"id": call.id, "result": result})

    def refuse(self, call: Call, code: int, message: str) -> None:
        if call.id is not None:
            self._write({"id": call.id, "error": {"code": code, "message": message}})

    def _write(self, message: dict[str, Any]) -> None:
        """What is said in one step of the event loop goes out in one write."""
        if not self._said:
            get_running_loop().call_soon(self._flush)
        self._said += json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"

    def _flush(self) -> None:
        said, self._said = self._said, b""
        self._writer.write(said)

    # --- listening

    async def listen(self, hear: Callable[[Call], None]) -> None:
        """Reads until the other side closes. Each request and notification is heard before the next line is read."""
        while line := await self._reader.readline():
            try:
                message = json.loads(line)
                strange = not isinstance(message, dict) or not self._take(message, hear)
            except ValueError:
                strange = True
            if strange and line.strip():
                self.strange.append(line)
                self._write({"id": None, "error": {"code": PARSE, "message": "this is no message of JSON-RPC"}})

    def _take(self, message: dict[str, Any], hear: Callable[[Call], None]) -> bool:
        """Whether it is a message of JSON-RPC."""
        if isinstance(method := message.get("method"), str):
            params = message.get("params")
            hear(Call(message.get("id"), method, params if isinstance(params, dict) else {}))
        elif "result" in message or isinstance(message.get("error"), dict):
            error = message.get("error") or None
            answer = (Answer(error=_say(error), code=int(error.get("code") or 0)) if error
                      else Answer(message.get("result")))
            if then := self._asked.get(message.get("id", 0)):
                then(answer)
        else:
            return False
        return True


def _say(error: dict[str, Any]) -> str:
    """What an error says; some have what matters in their data."""
    data = error.get("data")
    detail = data.get("details") or data.get("message") or "" if isinstance(data, dict) else data or ""
    return " ".join(str(part) for part in (error.get("message"), detail) if part)
