"""opencode in the circumstances in which it is judged, each as an adapter that starts the server by itself:

    cancelmark conform --adapter examples.opencode.circumstances:InUse --script 'accept A, cancel' --times 5

opencode is installed from npm into build/field; OPENCODE in the environment says which version.
"""

import asyncio
import os
from pathlib import Path
from typing import ClassVar

from cancelmark.conformance.adapter import GUARANTEES, Sent
from examples.opencode.adapter import Opencode
from examples.opencode.process import OpencodeServer, install


class InUse(Opencode):
    """It has answered a prompt since it was started. Judged by all guarantees, whether they are promised or not."""

    circumstances = "in use"
    claims = GUARANTEES
    start_limit = 600.0
    llm_port = 0
    place: ClassVar[Path] = Path("build/field")
    version: ClassVar[str] = os.environ.get("OPENCODE", "latest")
    server: ClassVar[OpencodeServer | None] = None
    description: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__(self.server.url if self.server else "")

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        program = await asyncio.to_thread(install, cls.place.resolve(), cls.version)
        cls.server = OpencodeServer(program, model_url)
        await cls.server.start()
        InUse.version, InUse.description = cls.server.version, await cls.server.description()
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

    circumstances = "just started"
    patience = 20.0

    async def open(self) -> None:
        assert self.server
        await self.server.restart()
        await super().open()


class Killed(InUse):
    """The process is killed and started again on the same data, which the histories call a restart."""

    circumstances = "killed and started again"
    patience = 20.0

    async def restart(self) -> None:
        assert self.server
        await self.unsubscribe()
        await self.server.restart()
        await self.subscribe()
