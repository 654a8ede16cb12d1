"""A server as one writes it in an afternoon: a queue and a worker for each session. It looks right, and is not.

`judge(NaiveAdapter)` shows what is wrong with it, and specs/conformance.md has the verdicts. In short: a cancel does
not reach a prompt that the worker has taken and not begun, it forgets those that it drops without a word, and an error
takes the worker with it.
"""

import asyncio
from collections.abc import Callable

from cancelmark.conformance.adapter import Adapter, Ended, Sent, TurnFailed, Turns


class NaiveServer:
    """Prompts go into an `asyncio.Queue`; a worker takes them out, one after the other."""

    def __init__(self, model: Turns, on_end: Callable[[str, str], None]) -> None:
        self.model, self.on_end = model, on_end
        self.queues: dict[str, asyncio.Queue[Sent]] = {}
        self.running: dict[str, asyncio.Task[str]] = {}
        self.workers: list[asyncio.Task[None]] = []

    def post(self, session: str, prompt: Sent) -> None:
        if session not in self.queues:
            self.queues[session] = asyncio.Queue()
            self.workers.append(asyncio.create_task(self.work(session)))
        self.queues[session].put_nowait(prompt)

    async def work(self, session: str) -> None:
        while True:
            prompt = await self.queues[session].get()
            await asyncio.sleep(0)  # where a real one reads the session from its database
            turn = self.running[session] = asyncio.create_task(self.model(prompt.text))
            try:
                await turn
                self.on_end(prompt.name, "end_turn")
            except asyncio.CancelledError:
                self.on_end(prompt.name, "canceled")
            except TurnFailed:
                self.on_end(prompt.name, "error")
                raise

    def cancel(self, session: str) -> None:
        if turn := self.running.get(session):
            turn.cancel()
        while session in self.queues and not self.queues[session].empty():
            self.queues[session].get_nowait()

    async def close(self) -> None:
        for task in [*self.workers, *self.running.values()]:
            task.cancel()
        await asyncio.gather(*self.workers, *self.running.values(), return_exceptions=True)


class NaiveAdapter(Adapter):
    """The adapter: twelve lines."""

    async def open(self) -> None:
        self.server = NaiveServer(self.turns, lambda name, how: self.tell(Ended(name, how)))

    async def accept(self, session: str, prompt: Sent) -> None:
        self.server.post(session, prompt)

    async def cancel(self, session: str) -> None:
        self.server.cancel(session)

    async def queued(self, session: str) -> int:
        return self.server.queues[session].qsize() if session in self.server.queues else 0

    async def close(self) -> None:
        await self.server.close()
