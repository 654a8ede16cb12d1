"""The adapter of the server beside this file. Judge it with `cancelmark conform --adapter adapter.py:Worker`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import httpx2

from cancelmark import Adapter, Ended, Sent
from cancelmark.conformance.adapter.process import ServerProcess

SERVER = Path(__file__).with_name("server.py")


class Worker(Adapter):
    """One client, for one history. The server is started once, and all histories are played on it."""

    outside = True  # it has a process, sockets and a clock
    llm_port = 0  # the kit serves its language model on any free port, and `prepare` tells the server
    server: ClassVar[ServerProcess]

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        cls.server = ServerProcess([sys.executable, SERVER, "{port}", model_url], ready="/queued?session=any")
        await cls.server.start()

    @classmethod
    async def clean_up(cls) -> None:
        await cls.server.close()

    async def open(self) -> None:
        self.http = httpx2.AsyncClient(base_url=self.server.url, timeout=None)
        self.place = ""
        self.names: dict[str, asyncio.Future[str]] = {}  # of prompts, by the ids that the server gives them
        self.sessions: set[str] = set()
        await self.come_back()

    async def close(self) -> None:
        await self.leave()
        await self.http.aclose()

    async def session(self) -> str:
        self.sessions.add(session := str(uuid4()))
        return session

    async def accept(self, session: str, prompt: Sent) -> None:
        answer = await self.http.post("/prompts", json={"session": session, "text": prompt.text})
        self.name_of(answer.raise_for_status().json()["id"]).set_result(prompt.name)

    def name_of(self, id: str) -> asyncio.Future[str]:
        """The end of a prompt may arrive before the answer that says its id: then it waits for the name here."""
        return self.names.setdefault(id, asyncio.get_running_loop().create_future())

    async def cancel(self, session: str) -> None:
        (await self.http.post("/cancel", json={"session": session})).raise_for_status()

    async def queued(self, session: str) -> int:
        return int((await self.http.get("/queued", params={"session": session})).json())

    async def events(self) -> AsyncIterator[Ended]:
        async for line in self.stream.aiter_lines():
            end = json.loads(line)
            if end["session"] not in self.sessions:
                continue  # left of an earlier history
            name = await asyncio.shield(self.name_of(end["id"]))
            self.place = end["place"]
            yield Ended(name, end["outcome"], end["says"] if end["outcome"] == "end_turn" else None,
                        end["says"] if end["outcome"] == "error" else None)

    async def leave(self) -> None:
        await self.watching.aclose()

    async def come_back(self) -> None:
        self.watching = AsyncExitStack()
        request = self.http.stream("GET", "/events", params={"after": self.place})
        self.stream = await self.watching.enter_async_context(request)
        self.place = self.stream.headers["place"]

    async def restart(self) -> None:
        await self.leave()
        await self.server.restart()
        await self.come_back()
