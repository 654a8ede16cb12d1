"""The adapter for a LangGraph API server that is killed and restarted on the same storage. It starts the server itself,
from the entry in agents.toml; the environment variable FIELD_PROGRAMS is the directory of its programs."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from cancelmark.conformance.adapter import GUARANTEES
from cancelmark.conformance.adapter.process import ServerProcess
from cancelmark.impl.adapters.connections import Connections
from cancelmark.impl.adapters.langgraph import SILENT, LanggraphAdapter
from examples.field.agents import Listed, read_list
from examples.field.plays import PROGRAMS, make_server

GRAPH = "agent"  # in the list's configuration


class Crash(LanggraphAdapter):
    """Detects ends by joining each run. Does not join runs that no longer exist after a kill."""

    assistant = GRAPH
    claims = GUARANTEES
    promises = dict.fromkeys(GUARANTEES, SILENT)
    llm_port = 0
    start_limit = 600.0
    patience = 15.0  # seconds: it resumes its runs some time after it listens
    listed: ClassVar[Listed] = read_list()["langgraph"]
    process: ClassVar[ServerProcess | None] = None

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        cls.process = make_server(cls.listed, Path(os.environ[PROGRAMS]), model_url)
        cls.server = cls.process.url
        await cls.process.start()

    @classmethod
    async def clean_up(cls) -> None:
        if cls.process:
            await cls.process.close()
            cls.process = None

    async def queued(self, session: str) -> int:
        """The number of queued runs; 0 if the thread no longer exists."""
        there = (await self.ask("GET", f"/threads/{session}")).is_success
        return await super().queued(session) if there else 0

    async def restart(self) -> None:
        assert self.process
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connections in (self.calls, self.joins):
            with suppress(OSError):
                await connections.close()
        await self.process.restart()
        self.calls, self.joins = Connections(self.server), Connections(self.server)
        for thread, runs in self.running.items():
            for run in sorted(runs):
                if (await self.ask("GET", f"/threads/{thread}/runs/{run}")).is_success:
                    self.spawn(self._join(thread, run), name="join")
                else:
                    self.running[thread].discard(run)
