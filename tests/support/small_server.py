"""A small server, good or bad, that speaks as much of the LangGraph API and of A2A as clients need.

It shares no code with what judges it. Prompts of a session are answered one after the other, and are canceled one by
one, by their ids. It runs in a thread of its own, `with small_server(model_url, flaw) as url`, or as a program: `python
small_server.py PORT MODEL_URL [FLAW]`.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.small_agent import ask_model

FLAWS = {
    "": "none",
    "loses-early-cancel": "a cancel that comes before the language model is asked is lost",
    "error-for-canceled": "a canceled prompt ends in an error",
    "swallows-second": "a prompt that comes while another runs is never answered",
    "hides-waiting": "of a prompt that was canceled while it waited, watchers hear nothing",
    "says-completed": "the stream of a canceled task says that it was completed",
    "revokes-all": "a cancel of one run cancels its whole thread",
    "late-id": "the id of a task is said when it starts",
    "no-cancel": "a cancel is answered with an error",
    "only-enqueues": "what a second prompt is to do is not heard: it waits",
    "no-streaming": "the card says that there are no streams",
}
CANCELED = "interrupted"
A2A = {"pending": "submitted", "running": "working", "success": "completed", CANCELED: "canceled", "error": "failed"}


@dataclass
class Run:
    """One prompt."""

    id: str
    text: str
    state: str = "pending"
    said: str = ""
    asking: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Task[str | None] | None = None


@dataclass
class Session:
    """Prompts in the order in which they came."""

    runs: dict[str, Run] = field(default_factory=dict)
    waiting: list[Run] = field(default_factory=list)
    working: asyncio.Task[None] | None = None
    watchers: list[asyncio.Queue[Run]] = field(default_factory=list)


class SmallServer:
    """Both wires, over one queue for each session."""

    def __init__(self, model_url: str, flaw: str) -> None:
        self.model, self.flaw = urlsplit(model_url), flaw
        self.sessions: dict[str, Session] = {}
        self.ids = count(1)
        self.url = ""

    # --- what it does

    def accept(self, name: str, text: str, policy: str = "enqueue") -> Run | None:
        session = self.sessions.setdefault(name, Session())
        busy = session.working is not None
        policy = "enqueue" if self.flaw == "only-enqueues" else policy
        if busy and policy == "reject":
            return None
        if busy and policy == "interrupt":
            for run in session.runs.values():
                self.cancel(session, run)
        run = Run(f"run-{next(self.ids)}", text)
        session.runs[run.id] = run
        if busy and self.flaw == "swallows-second":
            return run
        session.waiting.append(run)
        session.working = session.working or asyncio.create_task(self.work(session))
        return run

    def cancel(self, session: Session, run: Run) -> None:
        if self.flaw == "loses-early-cancel" and not run.asking:
            return
        if run in session.waiting:
            session.waiting.remove(run)
            self.end(session, run, self.canceled, hidden=self.flaw == "hides-waiting")
        elif run.turn:
            run.turn.cancel()

    @property
    def canceled(self) -> str:
        return "error" if self.flaw == "error-for-canceled" else CANCELED

    def end(self, session: Session, run: Run, state: str, *, hidden: bool = False) -> None:
        run.state = state
        run.over.set()
        for watcher in session.watchers if not hidden else ():
            watcher.put_nowait(run)

    async def work(self, session: Session) -> None:
        while session.waiting:
            run = session.waiting.pop(0)
            run.state = "running"
            run.started.set()
            run.turn = asyncio.create_task(self.ask(run))
            try:
                run.said, state = await run.turn or "", "success"
            except asyncio.CancelledError:
                state = self.canceled
            except OSError:
                state = "error"
            self.end(session, run, state)
        session.working = None

    async def ask(self, run: Run) -> str | None:
        await asyncio.sleep(0.02)
        run.asking = True
        return await ask_model(self.model, run.text)

    # --- HTTP

    async def listen(self, port: int) -> asyncio.Server:
        server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, _ = head.decode().split("\r\n")[0].split(" ")
                sizes = [line for line in head.decode().lower().split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0].split(":")[1]) if sizes else 0)
                answer = await self.answer(method, target, json.loads(body or b"null"))
                if isinstance(answer, tuple):
                    said = json.dumps(answer[1]).encode() if answer[0] != 204 else b""
                    writer.write(f"HTTP/1.1 {answer[0]} It\r\ncontent-length: {len(said)}\r\n\r\n".encode() + said)
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                async for event in answer:
                    writer.write(f"event: {event.pop('event', 'message')}\ndata: {json.dumps(event)}\n\n".encode())
                return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            """The client has left, or the server does."""
        finally:
            writer.close()

    async def answer(self, method: str, target: str, sent: Any) -> tuple[int, Any] | AsyncIterator[dict[str, Any]]:
        url = urlsplit(target)
        if url.path == "/.well-known/agent-card.json":
            return 200, {"name": "small", "supportedInterfaces": [
                {"protocolBinding": "JSONRPC", "url": f"{self.url}/rpc", "protocolVersion": "1.0"}],
                "capabilities": {"streaming": self.flaw != "no-streaming"}}
        if url.path == "/rpc":
            return await self.answer_a2a(sent["id"], sent["method"], sent["params"])
        return await self.answer_langgraph(method, url.path.strip("/").split("/"), parse_qs(url.query), sent)

    # --- LangGraph

    async def answer_langgraph(
        self, method: str, path: list[str], query: dict[str, list[str]], sent: Any,
    ) -> tuple[int, Any] | AsyncIterator[dict[str, Any]]:
        if path[0] == "threads" and not set(path[1:2]) <= self.sessions.keys():
            return 404, {"detail": f"Thread with ID {path[1]} not found"}
        match method, path:
            case "POST", ["assistants", "search"]:
                return 200, [{"graph_id": "agent"}]
            case "POST", ["threads"]:
                name = f"thread-{next(self.ids)}"
                self.sessions[name] = Session()
                return 200, {"thread_id": name}
            case "GET", ["threads", name]:
                return 200, {"thread_id": name}
            case "POST", ["threads", name, "runs"]:
                run = self.accept(name, sent["input"]["messages"][0]["content"], sent["multitask_strategy"])
                return (200, _run(run)) if run else (409, {"detail": "Thread is already running a task."})
            case "GET", ["threads", name, "runs"]:
                return 200, [_run(run) for run in self.sessions[name].runs.values() if run.state in query["status"]]
            case "GET", ["threads", name, "runs", id]:
                return 200, _run(self.sessions[name].runs[id])
            case "GET", ["threads", name, "runs", id, "join"]:
                await self.sessions[name].runs[id].over.wait()
                return 200, {}
            case "GET", ["threads", name, "stream"]:
                return self.watch(self.sessions[name])
            case "DELETE", ["threads", name]:
                session = self.sessions[name]
                for run in list(session.runs.values()):
                    self.cancel(session, run)
                return 200, {}
            case "POST", ["runs", "cancel"]:
                session = self.sessions[sent["thread_id"]]
                meant = session.runs if self.flaw == "revokes-all" else sent["run_ids"]
                live = [session.runs[id] for id in meant if not session.runs[id].over.is_set()]
                for run in live:
                    self.cancel(session, run)
                return (204 if live else 404), {}
        return 404, {"detail": "Not Found"}

    async def watch(self, session: Session) -> AsyncIterator[dict[str, Any]]:
        ends: asyncio.Queue[Run] = asyncio.Queue()
        session.watchers.append(ends)
        while True:
            yield {"event": "metadata", "status": "run_done", "run_id": (await ends.get()).id}

    # --- A2A

    async def answer_a2a(
        self, id: Any, method: str, params: Any,
    ) -> tuple[int, Any] | AsyncIterator[dict[str, Any]]:
        if method == "SendStreamingMessage":
            message = params["message"]
            run = self.accept(message["contextId"], message["parts"][0]["text"])
            assert run
            return self.stream(id, message["contextId"], run)
        name, session, run = next((name, session, session.runs[params["id"]])
                                  for name, session in self.sessions.items() if params["id"] in session.runs)
        if method == "CancelTask":
            if self.flaw == "no-cancel" or run.over.is_set():
                code, why = (-32004, "not supported") if self.flaw == "no-cancel" else (-32002, "not cancelable")
                return 200, {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": why}}
            self.cancel(session, run)
            if self.flaw != "loses-early-cancel":
                await run.over.wait()
        return 200, {"jsonrpc": "2.0", "id": id, "result": _task(name, run)}

    async def stream(self, id: Any, name: str, run: Run) -> AsyncIterator[dict[str, Any]]:
        def event(**result: Any) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": id, "result": result}

        if self.flaw == "late-id":
            await run.started.wait()
        yield event(task=_task(name, run))
        await run.over.wait()
        if run.said:
            artifact = {"parts": [{"text": run.said}]}
            yield event(artifactUpdate={"taskId": run.id, "contextId": name, "artifact": artifact})
        told = "success" if self.flaw == "says-completed" else run.state
        yield event(statusUpdate={"taskId": run.id, "contextId": name, "status": _status(told)})


def _run(run: Run) -> dict[str, Any]:
    return {"run_id": run.id, "status": run.state}


def _status(state: str) -> dict[str, str]:
    return {"state": f"TASK_STATE_{A2A[state].upper()}"}


def _task(name: str, run: Run) -> dict[str, Any]:
    return {"id": run.id, "contextId": name, "status": _status(run.state)}


@contextmanager
def small_server(model_url: str, flaw: str = "") -> Iterator[str]:
    """Where it answers."""
    ready, stop = threading.Event(), list[Callable[[], object]]()
    made = SmallServer(model_url, flaw)

    async def serve() -> None:
        until = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(until.set))
        server = await made.listen(0)
        ready.set()
        await until.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made.url
    finally:
        stop[0]()
        thread.join()


async def main(port: str, model_url: str, flaw: str = "") -> None:
    await (await SmallServer(model_url, flaw).listen(int(port))).serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
