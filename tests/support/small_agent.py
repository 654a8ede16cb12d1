"""A small agent of the Agent Client Protocol, good or bad: `python small_agent.py MODEL_URL [FLAW]`.

It shares no code with what judges it: lines of JSON on standard input and output, and requests for chat completions
over a socket. A good one answers the prompts of a session one after the other, and a cancel reaches all that
came before it.
"""

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import SplitResult, urlsplit

FLAWS = {
    "": "none",
    "loses-early-cancel": "a cancel that comes before the language model is asked is lost",
    "error-for-cancelled": "a canceled prompt is answered with an error",
    "swallows-second": "a prompt that comes while another runs is never answered",
    "interrupts": "a prompt that comes while another runs cancels that one",
    "refuses": "a prompt that comes while another runs is answered with an error",
    "withholds": "the answer to a prompt comes when no other waits any more",
    "poisons": "a cancel of an idle session hits the next prompt",
    "crosses": "a cancel hits the prompts of other sessions",
    "goes-on": "a cancel is answered, and the language model is asked on",
    "leaves-open": "a canceled prompt is answered, and its request to the language model stays open",
    "answers-twice": "each prompt is answered twice",
    "never-asks": "the language model is never asked",
    "wants-login": "no session without a login",
    "repeats": "a canceled prompt is said again, in one message with the next one, which is nobody's fault",
    "talks": "writes to standard output what is no message",
    "dies": "ends at the first cancel",
}


class Session:
    """Prompts in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, str]] = []
        self.running: asyncio.Task[None] | None = None
        self.turn: asyncio.Future[str | None] | None = None  # of the prompt that does not wait any more
        self.asking = False  # the language model is being asked
        self.stop = False
        self.withheld: list[tuple[Any, dict[str, Any]]] = []
        self.unsaid: list[str] = []  # prompts that were canceled


class SmallAgent:
    """One process."""

    def __init__(self, model_url: str, flaw: str) -> None:
        self.model, self.flaw = urlsplit(model_url), flaw
        self.sessions: dict[str, Session] = {}

    def write(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def serve(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        if self.flaw == "talks":
            print("Welcome!", flush=True)
        while line := await reader.readline():
            message = json.loads(line)
            if "method" in message:
                self.hear(message.get("id"), message["method"], message.get("params") or {})

    def hear(self, id: Any, method: str, params: dict[str, Any]) -> None:
        if method == "initialize":
            self.write(id=id, result={"protocolVersion": 1, "agentCapabilities": {},
                                      "authMethods": [{"id": "by-hand", "name": "By hand"}]})
        elif method == "session/new" and self.flaw == "wants-login":
            self.write(id=id, error={"code": -32000, "message": "Authentication required"})
        elif method == "session/new":
            name = f"s{len(self.sessions)}"
            self.sessions[name] = Session()
            self.write(id=id, result={"sessionId": name})
        elif method == "session/prompt":
            self.accept(id, self.sessions[params["sessionId"]], params["sessionId"], params["prompt"][0]["text"])
        elif method == "session/cancel":
            if self.flaw == "dies":
                os._exit(3)
            for name, session in self.sessions.items():
                if name == params["sessionId"] or self.flaw == "crosses":
                    self.cancel(session)

    def accept(self, id: Any, session: Session, name: str, text: str) -> None:
        busy = session.running is not None
        if busy and self.flaw == "swallows-second":
            return
        if busy and self.flaw == "refuses":
            self.write(id=id, error={"code": -32603, "message": "A turn is already running"})
            return
        if busy and self.flaw == "interrupts":
            self.cancel(session)
        session.waiting.append((id, text))
        if not busy:
            session.running = asyncio.create_task(self.run(session, name))

    def cancel(self, session: Session) -> None:
        if session.running is None:
            session.stop = self.flaw == "poisons"
            return
        if self.flaw == "loses-early-cancel" and not session.asking:
            return
        waiting, session.waiting = session.waiting, []
        for id, _ in waiting:
            self.end(session, id, self.canceled())
        if session.turn:
            session.stop = True
            if self.flaw != "goes-on":
                session.turn.cancel()

    def canceled(self) -> dict[str, Any]:
        if self.flaw == "error-for-cancelled":
            return {"error": {"code": -32603, "message": "Internal error", "data": {"details": "Request was aborted."}}}
        return {"result": {"stopReason": "cancelled"}}

    def end(self, session: Session, id: Any, answer: dict[str, Any]) -> None:
        session.withheld.append((id, answer))
        if self.flaw == "withholds" and session.waiting:
            return
        for each, said in session.withheld:
            for _ in range(1 + (self.flaw == "answers-twice")):
                self.write(id=each, **said)
        session.withheld.clear()

    async def run(self, session: Session, name: str) -> None:
        while session.waiting:
            id, text = session.waiting.pop(0)
            session.turn = asyncio.create_task(self.ask(session, text))
            if self.flaw == "leaves-open":
                session.turn = asyncio.shield(session.turn)
            try:
                said = await session.turn
            except asyncio.CancelledError:
                said = None
            except OSError as error:
                session.turn, session.stop = None, False
                self.end(session, id, {"error": {"code": -32603, "message": str(error)}})
                continue
            session.turn = None
            stopped, session.stop = session.stop, False
            if stopped or said is None:
                session.unsaid.append(text)
                self.end(session, id, self.canceled())
                continue
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}}
            self.write(method="session/update", params={"sessionId": name, "update": update})
            self.end(session, id, {"result": {"stopReason": "end_turn"}})
        session.running = None

    async def ask(self, session: Session, text: str) -> str | None:
        """What the language model says."""
        await asyncio.sleep(0.02)
        if self.flaw == "never-asks":
            return "I know the answer."
        heard = "\n".join([*session.unsaid, text]) if self.flaw == "repeats" else text
        session.asking = True
        try:
            return await ask_model(self.model, heard)
        finally:
            session.asking = False


async def ask_model(model: SplitResult, text: str) -> str:
    """What the language model says. Raises `OSError` if it fails."""
    body = json.dumps({"model": "turn", "messages": [{"role": "user", "content": text}]}).encode()
    reader, writer = await asyncio.open_connection(model.hostname, model.port)
    try:
        writer.write(f"POST {model.path}/chat/completions HTTP/1.1\r\nhost: model\r\n"
                     f"content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    head, _, said = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.splitlines()[0]:
        raise OSError(json.loads(said)["error"]["message"])
    return str(json.loads(said)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    asyncio.run(SmallAgent(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "").serve())
