"""`cancelmark send`: has a prompt accepted, and does not wait for its end."""

import argparse
import json
from typing import Any

from ...files import UsageError
from ...wire import Attachment
from ..width import Help
from .connect import add_place, add_prompt, carry_out, connect_place, prompt_of, read_attachments

DESCRIPTION = """\
Send a prompt and return as soon as it is accepted, which is when it is safe from a crash of the server. Prints its run
id, under which its end will be told (see cancelmark watch).
"""

EPILOG = """\
examples:
  cancelmark send "summarize the log"
  cancelmark send --session talks - < prompt.txt
  cancelmark send --fold "and in French, please"      (joins the turn that is running)
  cancelmark send --attach app.log "what went wrong?"
  cancelmark send --now "no, the other file"          (stops what runs; --if-idle waits for nobody and stops nobody)
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("send", description=DESCRIPTION,
                                 epilog=EPILOG, formatter_class=Help)
    add_prompt(parser)
    naming = parser.add_mutually_exclusive_group()
    naming.add_argument("--run-id", metavar="ID",
                        help="the run id (default: a new one). The same prompt under the same id is accepted once")
    naming.add_argument("--fold", action="store_true",
                        help="no run id: if a turn is running the prompt joins it, and has no end of its own")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    attachments = read_attachments(arguments.attach)
    return carry_out(send(arguments, prompt_of(arguments.prompt, attached=bool(attachments)), attachments))


async def send(arguments: argparse.Namespace, prompt: str, attachments: list[Attachment]) -> int:
    from uuid import uuid4

    run_id = "" if arguments.fold else arguments.run_id or str(uuid4())
    async with connect_place(arguments) as place:
        from ...client import Refusal, Unreachable

        session = await place.session(arguments.session, create=True)
        assert session
        try:
            await place.client.send(place.workspace.id, session.id, prompt, run_id, attachments, arguments.if_busy)
        except (Refusal, Unreachable) as error:
            if run_id and (error.unknown if isinstance(error, Refusal) else error.sent):
                raise UsageError(f"{error}; nobody knows whether it was accepted: send the same again with "
                                 f"--run-id {run_id}, and it is accepted once") from error
            raise
    if arguments.json:
        print(json.dumps({"run_id": run_id or None, "session_id": session.id, "workspace_id": place.workspace.id}))
    else:
        print(run_id or "accepted")
    return 0
