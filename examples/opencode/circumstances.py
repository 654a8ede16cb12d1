"""opencode in the circumstances in which it is judged, each as an adapter that starts the server by itself:

    FIELD_PROGRAMS=/usr/bin cancelmark conform --adapter examples.opencode.circumstances:InUse

FIELD_PROGRAMS in the environment says where the program `opencode` is; `make field ONLY=opencode` installs the version
of the list.
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
    """By guarantee, what the server says of itself, by operation, and how we read it."""
    return {guarantee: f"of `{promise.operation}` it says “{description[promise.operation]}” {promise.reading}"
            if (promise := PROMISES.get(guarantee)) else SILENT for guarantee in GUARANTEES}


class InUse(Opencode):
    """It has answered a prompt since it was started. Judged by all guarantees, whether they are promised or not."""

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
    """It was started for this history alone."""

    patience = 10.0

    async def open(self) -> None:
        assert self.server
        await self.server.restart()
        await super().open()


class Killed(InUse):
    """The process is killed and started again on the same data, which the histories call a restart."""

    patience = 10.0

    async def restart(self) -> None:
        assert self.server
        await self.unsubscribe()
        await self.server.restart()
        await self.subscribe()
