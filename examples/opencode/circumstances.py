"""opencode under different conditions, each as an adapter that starts the server itself:

    FIELD_PROGRAMS=/usr/bin cancelmark conform --adapter examples.opencode.circumstances:InUse

FIELD_PROGRAMS is the directory of the program `opencode`; `make field ONLY=opencode` installs the version in
agents.toml.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cancelmark.conformance.adapter import GUARANTEES, Sent
from examples.opencode.adapter import PROMISES, Opencode
from examples.opencode.process import OpencodeServer

SILENT = "no promise"


def quote_promises(description: Mapping[str, str]) -> dict[str, str]:
    """By guarantee, the description of the operation that promises it, and how we read it."""
    return {guarantee: f"of `{promise.operation}` it says “{description[promise.operation]}” {promise.reading}"
            if (promise := PROMISES.get(guarantee)) else SILENT for guarantee in GUARANTEES}


class InUse(Opencode):
    """The server has answered a prompt since its start. Judged by all guarantees, promised or not."""

    claims = GUARANTEES
    start_limit = 600.0
    llm_port = 0
    program: ClassVar[Path] = Path(os.environ.get("FIELD_PROGRAMS", "/usr/bin")) / "opencode"
    promises: ClassVar[Mapping[str, str]] = dict.fromkeys(GUARANTEES, SILENT)
    server: ClassVar[OpencodeServer | None] = None

    def __init__(self) -> None:
        super().__init__(self.server.url if self.server else "")

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        cls.server = OpencodeServer(cls.program, model_url)
        await cls.server.start()
        cls.promises = quote_promises(await cls.server.description())
        client = cls()
        await client.subscribe()
        await client.accept(await client.session(), Sent("warm-up", "Say something about warm-up", None))
        await anext(aiter(client.events()))
        await client.close()

    @classmethod
    async def clean_up(cls) -> None:
        if cls.server:
            await cls.server.close()
            cls.server = None


class JustStarted(InUse):
    """The server is restarted for each history."""

    patience = 10.0

    async def open(self) -> None:
        assert self.server
        await self.server.restart()
        await super().open()


class Killed(InUse):
    """A restart in a script kills the process, and starts it again on the same data."""

    patience = 10.0

    async def restart(self) -> None:
        assert self.server
        await self.unsubscribe()
        await self.server.restart()
        await self.subscribe()
