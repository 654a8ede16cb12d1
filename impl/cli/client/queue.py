"""`cancelmark queue`: lists the queued prompts of a session, and drops, edits and moves them."""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cancelmark.model.calls import CALLS

from ...files import UsageError
from ..text import line, plain
from .connect import Target, add_target, connect_target, run_client, tell_revoked

if TYPE_CHECKING:
    from ...client import Prompt, Refusal, Session

CHANGES = {call.queue[0]: call for call in CALLS if call.names_prompt}
LINES = "\n".join(f"  {f'{word} NUMBER':14} {call.queue[1]}" for word, call in CHANGES.items())

DESCRIPTION = f"""\
List the queued prompts of a session, the next one first, each with its number (#12), or change the queue:

  clear          cancel all queued prompts; the running prompt continues
{LINES}

If another client changes the prompt first, the command reports its current state.
"""

EPILOG = """\
exit status:
  0     success
  1     too late, or another client has changed the text
  2     usage error, no server, or the server refused
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("list", "clear", *CHANGES), default="list",
                        help="the operation (default: list)")
    parser.add_argument("number", nargs="?", metavar="NUMBER", help="the number of a prompt, as listed")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    seq = 0
    if arguments.what in CHANGES:
        number = (arguments.number or "").removeprefix("#")
        if not (number.isascii() and number.isdigit()):
            wrong = f"{arguments.number!r} is not a prompt number" if arguments.number else "missing prompt number"
            raise UsageError(f"queue {arguments.what}: {wrong}; cancelmark queue lists them")
        seq = int(number)
    elif arguments.number:
        raise UsageError(f"queue {arguments.what}: unexpected argument {arguments.number}; only {', '.join(CHANGES)} "
                         "accept a number")
    return run_client(change(arguments, seq) if seq else queue(arguments))


async def queue(arguments: argparse.Namespace) -> int:
    clear = arguments.what == "clear"
    async with connect_target(arguments) as target:
        session = await target.session(arguments.session)
        waiting = await list_waiting(target, session) if session else ()
        held = bool(session and (await target.client.agent_session(target.workspace.id, session.id)).held)
        if session and clear:
            await target.client.clear_queue(target.workspace.id, session.id)
    if arguments.json:
        prompts = [{"seq": p.seq, "text": p.text, "version": p.version, "run_id": p.run_id or None} for p in waiting]
        print(json.dumps({"session_id": session and session.id, "queued": [p.text for p in waiting], "prompts": prompts,
                          "held": held, "cleared": clear}, ensure_ascii=False))
        return 0
    if held:
        print(f"session {arguments.session} is held: queued prompts do not start until cancelmark resume")
    if not waiting:
        print(f"no prompts are queued in session {arguments.session}")
    elif clear:
        print(f"canceled {len(waiting)} queued prompt{'s' if len(waiting) > 1 else ''} of session {arguments.session}")
    else:
        for prompt in waiting:
            named = f"#{prompt.seq}" if prompt.seq else "-"
            print(f"{named:>5}  {line(prompt.text)}{' (edited)' if prompt.version else ''}")
    return 0


async def list_waiting(target: Target, session: "Session") -> "tuple[Prompt, ...]":
    """The queued prompts. If the server reports only their texts, their seqs are 0."""
    from ...client import BadAnswer, Prompt

    try:
        return await target.client.waiting(target.workspace.id, session.id)
    except BadAnswer:
        texts = await target.client.queue(target.workspace.id, session.id)
        return tuple(Prompt(0, session.id, "queued", text) for text in texts)


async def change(arguments: argparse.Namespace, seq: int) -> int:
    """Drops, edits or moves one prompt."""
    async with connect_target(arguments) as target:
        from ...client import Refusal

        session = await target.known_session(arguments.session, f"it has no prompt #{seq}")
        where = target.workspace.id, session.id
        try:
            if arguments.what == "drop":
                told = await target.client.revoke(*where, seq)
                late, done = told.effect == "none", tell_revoked(told)
            elif arguments.what == "edit":
                late, done = await edit(target, session, seq)
            else:
                await target.client.call(CHANGES[arguments.what].name, *where, seq)
                late, done = False, f"is {CHANGES[arguments.what].done}"
        except Refusal as error:
            if not error.told.code:
                raise
            late, done = True, tell_late(error)
    if arguments.json:
        print(json.dumps({"session_id": session.id, "seq": seq, "done": not late, "says": done}))
    else:
        print(f"prompt #{seq} {done}")
    return int(late)


def tell_late(error: "Refusal") -> str:
    told = error.told
    if told.code == "other_version":
        return "was edited by another client meanwhile; check it and edit again"
    return tell_state(told.state, told.outcome)


def tell_state(state: str, outcome: str) -> str:
    return f"is no longer waiting: it is {(outcome or state).replace('_', ' ')}"


async def edit(target: Target, session: "Session", seq: int) -> tuple[bool, str]:
    """Edits the text, holding the session meanwhile. If the server rejects the new text, the message contains it.

    Returns whether it was too late, and the message."""
    from ...client import Refusal

    where = target.workspace.id, session.id
    held = (await target.client.agent_session(*where)).held
    await target.client.hold(*where)
    try:
        prompt = next((p for p in await target.client.waiting(*where) if p.seq == seq), None)
        if prompt is None:
            known = next((p for p in await target.client.prompts(*where) if p.seq == seq), None)
            if known and known.state == "accepted":
                return True, "has not entered the queue yet; try again"
            return True, tell_state(known.state, known.outcome) if known else "does not exist in this session"
        text = ask_editor(prompt.text)
        if text == prompt.text:
            return False, "is unchanged"
        try:
            await target.client.replace(*where, seq, text, prompt.version)
        except Refusal as error:
            if not error.told.code:
                raise
            return True, f"{tell_late(error)}. Your text: {plain(text)}"
        return False, "has the new text"
    finally:
        if not held:
            await target.client.resume(*where)


def ask_editor(text: str) -> str:
    """The text as the user's editor leaves it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="cancelmark-") as directory:
        file = Path(directory) / "prompt.txt"
        file.write_text(text)
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
        except (OSError, ValueError) as error:
            raise UsageError(f"$EDITOR {editor}: {error}; set EDITOR to a program that edits a file") from error
        if code:
            raise UsageError(f"$EDITOR {editor} failed with exit status {code}; the prompt is unchanged")
        try:
            edited = file.read_text()
        except UnicodeDecodeError as error:
            raise UsageError(f"the text is not UTF-8 at byte {error.start}; the prompt is unchanged") from error
    edited = edited if text.endswith("\n") else edited.removesuffix("\n")
    if not edited.strip():
        raise UsageError("the text is empty; the prompt is unchanged (to cancel it: cancelmark queue drop)")
    return edited
