"""A small agent server: each session answers one prompt at a time, and accepted prompts survive a crash.

    python server.py PORT MODEL_URL         writes its journal to the file `journal` in the working directory

    POST /prompts  {"session", "text"}         202 when the prompt is journaled, with the {"id"} that the server assigns
    POST /cancel   {"session"}                 204 when every prompt that the session has accepted is canceled
    GET  /queued?session=…                     the number of waiting prompts
    GET  /events?after=PLACE                   the terminal events after that offset, one JSON object per line, and all
                                               that follow; without an offset, from now on. The header `place` has the
                                               offset at which the stream starts.
"""

import asyncio
import json
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

JOURNAL = Path("journal")


@dataclass
class Session:
    """The waiting prompts, and the running one."""

    waiting: deque[dict[str, str]] = field(default_factory=deque)
    running: dict[str, str] = field(default_factory=dict)
    turn: asyncio.Task[str] | None = None


class Server:
    def __init__(self, model_url: str) -> None:
        self.model = httpx2.AsyncClient(base_url=model_url, timeout=None)
        self.sessions: defaultdict[str, Session] = defaultdict(Session)
        self.ends: list[dict[str, Any]] = []
        self.changed = asyncio.Event()

    def recover(self) -> None:
        """Restart every accepted prompt that has not ended."""
        lines = JOURNAL.read_text().splitlines() if JOURNAL.exists() else []
        prompts: dict[str, dict[str, str]] = {}
        for line in map(json.loads, lines):
            if "text" in line:
                prompts[line["id"]] = line
            else:
                self.ends.append(line)
                prompts.pop(line["id"], None)
        for prompt in prompts.values():
            self.enqueue(prompt)

    def write_down(self, line: dict[str, Any]) -> None:
        with JOURNAL.open("a") as journal:
            journal.write(json.dumps(line) + "\n")

    def enqueue(self, prompt: dict[str, str]) -> None:
        session = self.sessions[prompt["session"]]
        session.waiting.append(prompt)
        self.start_next(session)

    def start_next(self, session: Session) -> None:
        if session.turn is None and session.waiting:
            session.running = prompt = session.waiting.popleft()
            session.turn = asyncio.create_task(self.answer(prompt["text"]))
            session.turn.add_done_callback(lambda turn: self.finish(session, prompt, turn))

    def finish(self, session: Session, prompt: dict[str, str], turn: asyncio.Task[str]) -> None:
        """Publish the outcome of a turn, even if it was canceled before its first step."""
        session.turn = None
        if turn.cancelled():
            self.end(prompt, "canceled")
        elif error := turn.exception():
            self.end(prompt, "error", str(error))
        else:
            self.end(prompt, "end_turn", turn.result())
        self.start_next(session)

    def end(self, prompt: dict[str, str], outcome: str, text: str = "") -> None:
        self.ends.append({"id": prompt["id"], "session": prompt["session"], "outcome": outcome, "says": text})
        self.write_down(self.ends[-1])
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer(self, text: str) -> str:
        asked = {"model": "turn", "messages": [{"role": "user", "content": text}]}
        answer = await self.model.post("chat/completions", json=asked)
        if answer.status_code != 200:
            raise RuntimeError(answer.json()["error"]["message"])
        return str(answer.json()["choices"][0]["message"]["content"])

    # --- the wire

    async def post_prompt(self, request: Request) -> Response:
        prompt = {**await request.json(), "id": str(uuid4())}
        self.write_down(prompt)
        self.enqueue(prompt)
        return JSONResponse({"id": prompt["id"]}, status_code=202)

    async def cancel(self, request: Request) -> Response:
        session = self.sessions[(await request.json())["session"]]
        for prompt in session.waiting:
            self.end(prompt, "canceled")
        session.waiting.clear()
        if session.turn:
            self.stop_turn(session, session.turn)
        return Response(status_code=204)

    def stop_turn(self, session: Session, turn: asyncio.Task[str]) -> None:
        turn.cancel()

    async def queued(self, request: Request) -> Response:
        return JSONResponse(len(self.sessions[request.query_params["session"]].waiting))

    async def watch(self, request: Request) -> Response:
        place = request.query_params.get("after") or str(len(self.ends))
        return StreamingResponse(self.tell_ends(int(place)), headers={"place": place})

    async def tell_ends(self, place: int) -> AsyncIterator[str]:
        while True:
            changed = self.changed
            for end in self.ends[place:]:
                place += 1
                yield json.dumps({**end, "place": str(place)}) + "\n"
            await changed.wait()


async def main(port: str, model_url: str) -> None:
    server = Server(model_url)
    server.recover()
    app = Starlette(routes=[
        Route("/prompts", server.post_prompt, methods=["POST"]), Route("/cancel", server.cancel, methods=["POST"]),
        Route("/queued", server.queued), Route("/events", server.watch)])
    await uvicorn.Server(uvicorn.Config(app, port=int(port), timeout_graceful_shutdown=1)).serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
