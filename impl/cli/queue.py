"""`cancelmark queue`: what waits in a session, and dropping it."""

import argparse
import json
from typing import Any

from .connect import add_place, carry_out, connect_place
from .text import line
from .width import Help

DESCRIPTION = """\
List what is queued in a session, the next one first, or clear it: what is queued is canceled, and the prompt that is
running goes on.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("queue", description=DESCRIPTION,
                                 formatter_class=Help)
    parser.add_argument("what", nargs="?", choices=("list", "clear"), default="list", help="(default: list)")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return carry_out(queue(arguments))


async def queue(arguments: argparse.Namespace) -> int:
    clear = arguments.what == "clear"
    async with connect_place(arguments) as place:
        session = await place.session(arguments.session)
        queued = await place.client.queue(place.workspace.id, session.id) if session else ()
        if session and clear:
            await place.client.clear_queue(place.workspace.id, session.id)
    if arguments.json:
        print(json.dumps({"session_id": session and session.id, "queued": queued, "cleared": clear},
                         ensure_ascii=False))
    elif not queued:
        print(f"nothing is queued in session {arguments.session}")
    elif clear:
        print(f"cleared: {len(queued)} prompt{'s' if len(queued) > 1 else ''} of session {arguments.session}")
    else:
        for number, text in enumerate(queued, 1):
            print(f"{number:3}  {line(text)}")
    return 0
