"""`cancelmark send`: sends a prompt and returns once the server has accepted it."""

import argparse
import json

from ...files import UsageError
from ...wire import Attachment
from .connect import add_prompt, add_target, connect_target, prompt_of, read_attachments, run_client

DESCRIPTION = """\
Send a prompt and return as soon as the server has accepted it: from then on it survives a server crash. Prints the run
id, which identifies the prompt's terminal event (see cancelmark watch).
"""

EPILOG = """\
examples:
  cancelmark send "summarize the log"
  cancelmark send --session talks - < prompt.txt
  cancelmark send --fold "and in French, please"      join the running turn
  cancelmark send --attach app.log "what went wrong?"
  cancelmark send --now "no, the other file"          stop the running prompt and run this one next
  cancelmark send --if-idle "good morning"            fail if the session is busy
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_prompt(parser)
    naming = parser.add_mutually_exclusive_group()
    naming.add_argument("--run-id", metavar="ID",
                        help="the run id (default: a new one); sending the same prompt with the same id is idempotent")
    naming.add_argument("--fold", action="store_true",
                        help="send without a run id: a running turn may take the prompt in, and the prompt then has no "
                             "terminal event of its own")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    attachments = read_attachments(arguments.attach)
    return run_client(send(arguments, prompt_of(arguments.prompt, attached=bool(attachments)), attachments))


async def send(arguments: argparse.Namespace, prompt: str, attachments: list[Attachment]) -> int:
    from uuid import uuid4

    run_id = "" if arguments.fold else arguments.run_id or str(uuid4())
    async with connect_target(arguments) as target:
        from ...client import Refusal, Unreachable

        session = await target.session(arguments.session, create=True)
        assert session
        try:
            await target.client.send(target.workspace.id, session.id, prompt, run_id, attachments, arguments.if_busy)
        except (Refusal, Unreachable) as error:
            if run_id and (error.unknown if isinstance(error, Refusal) else error.sent):
                raise UsageError(f"{error}; the prompt may have been accepted: to retry safely, send it again with "
                                 f"--run-id {run_id}") from error
            raise
    if arguments.json:
        print(json.dumps({"run_id": run_id or None, "session_id": session.id, "workspace_id": target.workspace.id}))
    else:
        print(run_id or "accepted")
    return 0
