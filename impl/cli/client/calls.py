"""`cancelmark cancel`, `stop`, `hold` and `resume`: calls on a session, or on one run of it."""

import argparse
import json

from .connect import add_target, connect_target, run_client, tell_revoked

DESCRIPTIONS = {
    "cancel": """\
Cancel every prompt that the session has accepted so far, whether running, queued or not yet entered. Prompts accepted
later are not affected. Canceling an idle session has no effect.

With --run, cancel only the prompt with that run id.
""",
    "stop": """\
Stop the running prompt, or the one that is about to start. The next queued prompt then starts; with --hold, the queue
waits until cancelmark resume.
""",
    "hold": """\
Hold a session: the running prompt continues, but no queued prompt starts or is folded into it until cancelmark resume.
Prompts sent meanwhile wait too.
""",
    "resume": """\
Release a hold: queued prompts start again. Any client can resume a session, not only the one that held it.
""",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    if command == "cancel":
        parser.add_argument("--run", dest="run_id", metavar="ID",
                            help="cancel only the prompt with this run id")
    elif command == "stop":
        parser.add_argument("--hold", action="store_true", help="also hold the session, in the same step")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.command != "cancel":
        return run_client(steer(arguments))
    return run_client(cancel(arguments) if arguments.run_id is None else revoke(arguments))


async def cancel(arguments: argparse.Namespace) -> int:
    async with connect_target(arguments) as target:
        session = await target.session(arguments.session)
        busy = False
        if session:
            busy = bool((await target.client.agent_session(target.workspace.id, session.id)).is_busy)
            await target.client.cancel(target.workspace.id, session.id)
    words = (f"canceled all prompts of session {arguments.session}" if busy else
             f"session {arguments.session} is idle: nothing to cancel")
    print(json.dumps({"session_id": session and session.id, "was_busy": busy}) if arguments.json else words)
    return 0


async def revoke(arguments: argparse.Namespace) -> int:
    """Cancels one prompt. Returns 1 if it had already finished."""
    async with connect_target(arguments) as target:
        session = await target.known_session(arguments.session, f"there is no run {arguments.run_id}")
        told = await target.client.revoke(target.workspace.id, session.id, arguments.run_id)
    data = {"session_id": session.id, "run_id": arguments.run_id, "effect": told.effect,
            "outcome": told.outcome or None}
    print(json.dumps(data) if arguments.json else f"run {arguments.run_id} {tell_revoked(told)}")
    return int(told.effect == "none")


async def steer(arguments: argparse.Namespace) -> int:
    """Stops, holds or resumes a session."""
    command = arguments.command
    async with connect_target(arguments) as target:
        if command == "hold":
            await target.session(arguments.session, create=True)
        session = await target.known_session(arguments.session, f"there is nothing to {command}")
        more = {"hold": arguments.hold} if command == "stop" else {}
        told = await target.client.call(command, target.workspace.id, session.id, **more)
    if arguments.json:
        stopped = {"stopped": told.stopped or None} if command == "stop" else {}
        print(json.dumps({"session_id": session.id, "held": told.held, **stopped}))
        return 0
    if command == "stop":
        print(f"stopped prompt #{told.stopped}" if told.stopped else "nothing is running")
    if command != "stop" or told.held:
        print(f"session {arguments.session} is {'held' if told.held else 'not held'}")
    return 0
