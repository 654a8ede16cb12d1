"""`cancelmark cancel`: cancels everything that a session has accepted so far, or one prompt."""

import argparse
import json
from typing import Any

from ...files import UsageError
from ..width import Help
from .connect import add_place, carry_out, connect_place

DESCRIPTION = """\
Cancel everything that the session has accepted so far: the prompt that is running, those that are queued, and those
that are on their way. What is accepted later is not touched, and a session that is idle is left as it is.
With --run only the prompt with that run id is canceled.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("cancel",
                                 description=DESCRIPTION, formatter_class=Help)
    parser.add_argument("--run", dest="run_id", metavar="ID", help="cancel the prompt with this run id, and no other")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return carry_out(cancel(arguments) if arguments.run_id is None else revoke(arguments))


async def revoke(arguments: argparse.Namespace) -> int:
    """Cancels one prompt. Exit 1 if it had ended before."""
    async with connect_place(arguments) as place:
        session = await place.session(arguments.session)
        if session is None:
            raise UsageError(f"session {arguments.session} does not exist yet: it has no run {arguments.run_id}")
        told = await place.client.revoke(place.workspace.id, session.id, arguments.run_id)
    if arguments.json:
        print(json.dumps({"session_id": session.id, "run_id": arguments.run_id, "effect": told.effect,
                          "outcome": told.outcome or None}))
    else:
        print({"canceled": f"run {arguments.run_id} is canceled", "asked": f"run {arguments.run_id} was asked to stop",
               "none": f"run {arguments.run_id} had ended before: {told.outcome.replace('_', ' ')}"}[told.effect])
    return int(told.effect == "none")


async def cancel(arguments: argparse.Namespace) -> int:
    async with connect_place(arguments) as place:
        session = await place.session(arguments.session)
        busy = False
        if session:
            busy = bool((await place.client.agent_session(place.workspace.id, session.id)).is_busy)
            await place.client.cancel(place.workspace.id, session.id)
    if arguments.json:
        print(json.dumps({"session_id": session and session.id, "was_busy": busy}))
    elif busy:
        print(f"canceled everything that session {arguments.session} had accepted")
    else:
        print(f"session {arguments.session} is idle: nothing to cancel")
    return 0
