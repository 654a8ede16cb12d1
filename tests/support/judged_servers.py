"""Small servers to judge, right and wrong: the worker of the examples with one thing changed, each with its adapter.

    python judged_servers.py KIND PORT MODEL_URL
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from cancelmark.conformance import Ended
from cancelmark.conformance.adapter.process import ServerProcess
from examples.worker import server as program
from examples.worker.adapter import Worker
from examples.worker.server import Server, Session


class LeavesOpen(Server):
    """A cancel publishes the end, leaves the request to the language model open, and starts the next turn beside it."""

    def stop_turn(self, session: Session, turn: asyncio.Task[str]) -> None:
        session.turn = None
        self.end(session.running, "canceled")
        self.start_next(session)

    def finish(self, session: Session, prompt: dict[str, str], turn: asyncio.Task[str]) -> None:
        if session.turn is turn:
            super().finish(session, prompt, turn)


class Lifo(Server):
    """Of two that wait, the last starts first."""

    def start_next(self, session: Session) -> None:
        session.waiting.rotate(1 if session.turn is None else 0)
        super().start_next(session)


class Dies(Server):
    """A prompt that comes while another runs kills it."""

    async def post_prompt(self, request: Request) -> Response:
        if self.sessions[(await request.json())["session"]].turn:
            print("panic: two at once", flush=True)
            os._exit(3)
        return await super().post_prompt(request)


class Slow(Server):
    """Takes its time to ask the language model, and to publish what it says."""

    async def answer(self, text: str) -> str:
        await asyncio.sleep(0.4)
        try:
            return await super().answer(text)
        finally:
            await asyncio.sleep(0.4)


KINDS = {kind.__name__: kind for kind in (Server, LeavesOpen, Lifo, Dies, Slow)}


def adapter_of(kind: type[Server], *, tells_queue: bool = True) -> type[Worker]:
    """The adapter of the examples, with another server behind it; it may offer no `queued`."""
    class Judged(Worker):
        patience = 1.0

        @classmethod
        async def prepare(cls, model_url: str) -> None:
            command = [sys.executable, "-m", __name__, kind.__name__, "{port}", model_url]
            path = {"PYTHONPATH": ":".join(sys.path)}
            cls.server = ServerProcess(command, ready="/queued?session=any", environment=path)
            await cls.server.start()

        def offers(self, what: str) -> bool:
            return super().offers(what) and (what != "queued" or tells_queue)

    Judged.__name__ = kind.__name__ + ("" if tells_queue else "Blind")
    return Judged


class TellsBesides(adapter_of(Server)):  # type: ignore[misc]
    """Its stream has what became of turns; of canceled prompts it tells as soon as it reads of them, in a callback."""

    async def events(self) -> AsyncIterator[Ended]:
        async for end in super().events():
            if end.outcome == "canceled":
                asyncio.get_running_loop().call_soon(self.tell, end)
            else:
                yield end


if __name__ == "__main__":
    program.Server = KINDS[sys.argv[1]]  # type: ignore[misc]
    asyncio.run(program.main(*sys.argv[2:]))
