"""`cancelmark stop`, `hold` and `resume`: what runs, and what waits, apart."""

import argparse
import json
from typing import Any

from ...files import UsageError
from ..width import Help
from .connect import add_place, carry_out, connect_place

DESCRIPTIONS = {
    "stop": """\
Stop the prompt that is running, or the one that is about to. What waits goes on with the next one; with --hold it waits
until cancelmark resume.
""",
    "hold": """\
Hold a session: the prompt that is running goes on to its end, and nothing of what waits starts or joins it, until
cancelmark resume. What is sent meanwhile waits too.
""",
    "resume": """\
End a hold: what waits goes on. Anybody can, whoever has held the session.
""",
}


def add_parser(commands: Any) -> None:
    for name, description in DESCRIPTIONS.items():
        parser = commands.add_parser(name, description=description, formatter_class=Help)
        if name == "stop":
            parser.add_argument("--hold", action="store_true", help="hold the session in the same step")
        parser.add_argument("--json", action="store_true", help="report as JSON")
        add_place(parser)
        parser.set_defaults(run=run, call=name)


def run(arguments: argparse.Namespace) -> int:
    return carry_out(call(arguments))


async def call(arguments: argparse.Namespace) -> int:
    async with connect_place(arguments) as place:
        session = await place.session(arguments.session, create=arguments.call == "hold")
        if session is None:
            raise UsageError(f"session {arguments.session} does not exist yet: there is nothing to {arguments.call}")
        where, stopped = (place.workspace.id, session.id), 0
        if arguments.call == "stop":
            told = await place.client.stop(*where, hold=arguments.hold)
            stopped, held = told.stopped, told.held
        else:
            held = await (place.client.hold if arguments.call == "hold" else place.client.resume)(*where)
    if arguments.json:
        more = {"stopped": stopped or None} if arguments.call == "stop" else {}
        print(json.dumps({"session_id": session.id, "held": held, **more}))
        return 0
    if arguments.call == "stop":
        print(f"prompt #{stopped} is stopped" if stopped else "nothing runs")
    if arguments.call != "stop" or held:
        print(f"session {arguments.session} is {'held' if held else 'not held'}")
    return 0
