"""Small servers to judge, right and wrong: the worker of the examples with one thing changed, each with its adapter.

    python judged_servers.py KIND PORT MODEL_URL
"""

import asyncio
import sys

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


KINDS = {kind.__name__: kind for kind in (Server, LeavesOpen)}


def adapter_of(kind: type[Server]) -> type[Worker]:
    """The adapter of the examples, with another server behind it."""
    class Judged(Worker):
        patience = 1.0

        @classmethod
        async def prepare(cls, model_url: str) -> None:
            command = [sys.executable, "-m", __name__, kind.__name__, "{port}", model_url]
            path = {"PYTHONPATH": ":".join(sys.path)}
            cls.server = ServerProcess(command, ready="/queued?session=any", environment=path)
            await cls.server.start()

    Judged.__name__ = kind.__name__
    return Judged


if __name__ == "__main__":
    program.Server = KINDS[sys.argv[1]]  # type: ignore[misc]
    asyncio.run(program.main(*sys.argv[2:]))
