"""Detection of the optional calls of a server that speaks our wire protocol, once before it is judged.

A server without a call responds with 400, 404, 405 or 501. It also responds with 404 if it does not know the prompt
that a call names. So the detection sends one prompt to a new session, which is held if the server supports that, and
cancels it afterwards.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from uuid import uuid4

from cancelmark.conformance.adapter.interface import FAMILY
from cancelmark.model.calls import CALLS_BY_WORD

from .. import wire
from ..client.calls import Client, of_session, path, write_call
from .connections import Connections

UNSUPPORTED = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
IF_BUSY = ("reject", "interrupt")
ANSWER = 2.0  # seconds


def write_text() -> str:
    """A unique text."""
    return f"cancelmark conform detects the supported calls ({uuid4()})"


async def find_calls(server: str, token: str | None, workspace_path: str) -> frozenset[str]:
    """The optional calls and the values of `if_busy` that the server supports, tried in a workspace at this path."""
    asking, run_id = Connections(server, token), f"cancelmark-{uuid4()}"
    async with Client(server, token=token) as client:
        id = (await client.open_workspace(workspace_path)).id
        await client.init_agent(id, interactive=False)
        session = (await client.create_session(id, "conformance")).id

        async def ask(method: str, url: str, sent: wire.Request | None = None) -> int:
            """The status; 0 without a response in time, which the judgement will report."""
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER):
                    return (await asking.ask(method, url, wire.to_json(sent) if sent else None)).status_code
            return 0

        async def send(if_busy: str) -> int:
            body = wire.SendPrompt(session, write_text(), if_busy=if_busy)
            return await ask("POST", path("workspaces", id, "agent"), body)

        offered = set[str]()
        try:
            for what in ("hold", *sorted(FAMILY - {"hold"})):
                call = CALLS_BY_WORD[what.removesuffix("_hold")]
                known = {"text": write_text()} if "text" in call.takes.values() else {}
                asked = write_call(call, id, session, run_id if call.names_prompt else None,
                                   **known, **({"hold": True} if what == "stop_hold" else {}))
                if await ask(*asked) not in UNSUPPORTED:
                    offered.add(what)
                if what == "hold":
                    await ask("POST", path("workspaces", id, "agent"), wire.SendPrompt(session, write_text(), run_id))
            if await send("cancelmark") in UNSUPPORTED:  # a server that does not know the field accepts any value
                offered |= {word for word in IF_BUSY if await send(word) not in UNSUPPORTED}
            return frozenset(offered)
        finally:
            await ask("POST", of_session(id, session, "cancel"))
            await asking.close()
