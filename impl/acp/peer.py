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
        """What is said in one step of the event loop goes out in one write. Half a character (a lone surrogate), which
        JSON can say and UTF-8 cannot, goes out as a question mark."""
        if not self._said:
            get_running_loop().call_soon(self._flush)
        self._said += json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode(errors="replace") + b"\n"

    def _flush(self) -> None:
        said, self._said = self._said, b""
        self._writer.write(said)

    # --- listening

    async def listen(self, hear: Callable[[Call], None]) -> None:
        """Reads until the other side closes. Each request and notification is heard before the next line is read. What
        is malformed, too long or nested too deep is answered with an error, and reading goes on."""
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

    def _take(self, message: Any, hear: Callable[[Call], None]) -> bool:
        """Whether it is a message of JSON-RPC."""
        id = message.get("id") if isinstance(message, dict) else None
        if not isinstance(id, int | str | None):
            return False
        match message:
            case {"method": str(method)}:
                params = message.get("params")
                hear(Call(id, method, params if isinstance(params, dict) else {}))
                return True
            case {"error": dict(error)}:
                code = error.get("code")
                answer = Answer(error=_say(error), code=code if isinstance(code, int) else 0)
            case {"result": result}:
                answer = Answer(result)
            case _:
                return False
        if isinstance(id, int) and (then := self._asked.get(id)):
            then(answer)
        return True


def _say(error: dict[str, Any]) -> str:
    """What an error says; some have what matters in their data."""
    data = error.get("data")
    detail = data.get("details") or data.get("message") or "" if isinstance(data, dict) else data or ""
    return " ".join(str(part) for part in (error.get("message"), detail) if part)
